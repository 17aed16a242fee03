//! The integration tests: one binary, a folder for each subject.

mod gfs;
