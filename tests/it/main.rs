//! The integration tests: one binary, a folder for each subject.

mod embedded;
mod gfs;
