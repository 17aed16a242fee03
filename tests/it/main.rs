//! The integration tests: one binary, a folder for each subject, a real PostgreSQL always.

mod architecture;
mod cli;
mod embedded;
mod faults;
mod fence;
mod gfs;
mod harness;
mod history;
mod http;
mod ledger;
mod seeds;
mod service;
