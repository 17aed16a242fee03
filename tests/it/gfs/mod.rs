//! The calculation, held against the vectors of the specification and against inputs that nobody wrote by hand.

mod fixture;
mod inspect;
mod inspect_errors;
mod properties;
mod vectors;
