//! The calculation, held against the vectors of the specification and against inputs that nobody wrote by hand.

mod vectors;
