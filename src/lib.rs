//! Durable memory for two promises: a single-use token is accepted once, and a provably fair bet can be checked later.
#![deny(unsafe_code)]

pub mod db;
pub mod embedded;
pub mod gfs;
