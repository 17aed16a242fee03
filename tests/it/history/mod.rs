//! History: what is asked of the stored bets.

mod coverage;
mod past;
