//! The whole history: looking at it, and checking it.
//!
//! Keeps I6, I7, I8 and I11 as a reader can: nothing here changes a row.

pub mod distribution;
pub mod verify;
