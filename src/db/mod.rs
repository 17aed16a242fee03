//! Every SQL statement of fairledger, one file a subject.

pub mod bootstrap;
pub mod migrate;
pub mod rights;
