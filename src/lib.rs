//! Durable memory for two promises that are worthless without one: a single-use token is accepted once, and a provably fair bet can
//! still be checked years later.
//!
//! | module | holds |
//! |---|---|
//! | [`gfs`] | how results are calculated, signed and inspected: pure |
//! | [`db`] | every SQL statement, the pools, migrations, rights |
//! | [`ledger`] | single-use tokens: keys, spends, sweeping |
//! | [`seeds`] | sessions, seeds, bets and rounds |
//! | [`history`] | queries, exports, coverage and evidence for disputes; checking all of it |
//! | [`embedded`] | a private PostgreSQL in a data folder |
//! | [`http`] | the HTTP API |
//! | [`config`], [`telemetry`] | settings; logs |
//! | [`cli`] | the commands of the program |
//!
//! Each module may use only those above it in this table.
#![deny(unsafe_code)]
#![warn(missing_docs)]
// Both panic when nobody reads; `cli::output` does not.
#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod cli;
pub mod config;
pub mod db;
pub mod embedded;
pub mod gfs;
pub mod history;
pub mod http;
pub mod ledger;
pub mod seeds;
pub mod telemetry;
