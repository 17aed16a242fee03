//! History: what is asked of the stored bets.

mod bundle;
mod coverage;
mod past;
