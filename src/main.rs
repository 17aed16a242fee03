//! The program `fairledger`: everything is in the library.
#![deny(unsafe_code)]

fn main() -> std::process::ExitCode {
    fairledger::cli::main()
}
