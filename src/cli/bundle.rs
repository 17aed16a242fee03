//! `bundle` writes the evidence of one bet into a file; `verify --bundle` checks such a file, with no database and no settings.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::config::Settings;
use crate::gfs::seed::Commitment;
use crate::history::bundle::{BundleReport, BundleStatus, verify};

use super::CliError;
use super::coverage::{history_of, print_check};
use super::database::{Database, Role};

/// Bytes of a file that are read at the most: more than any bundle has.
const FILE_BYTES_MAX: u64 = (16 << 20) + 1;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Commitment of the bet's seed
    commitment: Commitment,
    /// The bet's nonce
    nonce: u64,
    /// Write it here instead of to standard output; a file that is there is not overwritten
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let store = database.open(settings).await?;
        let bundle = history_of(&store).bundle(&args.commitment, args.nonce).await?;
        store.close().await;
        Ok::<_, CliError>(bundle)
    }
    .await;
    database.leave().await?;
    let text = done?.to_canonical().map_err(|error| CliError::Refused(error.to_string()))?;
    match &args.out {
        None => show!("{text}"),
        Some(path) => {
            let written = std::fs::File::create_new(path).and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.write_all(b"\n")?;
                file.sync_all()
            });
            written.map_err(|error| CliError::io(format!("writing {}", path.display()), error))?;
            show!("{}: {} bytes; check it with: fairledger verify --bundle {0}", path.display(), text.len());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks a bundle, and the receipt that the player kept, where there is one.
pub(super) fn verify_file(bundle: &Path, receipt: Option<&Path>, json: bool) -> Result<ExitCode, CliError> {
    let bundle = read(bundle)?;
    let receipt = receipt.map(read).transpose()?;
    let report = verify(&bundle, receipt.as_deref()).map_err(|error| CliError::Refused(error.to_string()))?;
    if json {
        let text = serde_json::to_string(&report).map_err(|error| CliError::Refused(error.to_string()))?;
        show!("{text}");
    } else {
        print(&report);
    }
    Ok(if report.status == BundleStatus::Mismatch { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    read.map_err(|error| CliError::io(format!("reading {}", path.display()), error))?;
    Ok(bytes)
}

fn print(report: &BundleReport) {
    show!("{}, nonce {} under commitment {}", report.game, report.nonce, report.commitment);
    report.checks.iter().for_each(print_check);
    show!("\nNot provable from the bundle, so the operator's word:");
    for word in &report.not_provable {
        show!("  {:<28}{}", word.field, word.why);
    }
    show!(
        "\n{}",
        match report.status {
            BundleStatus::Matches => "matches: the result follows from the revealed seed, and everything fits",
            BundleStatus::Mismatch => "MISMATCH: something does not fit",
            BundleStatus::Incomplete =>
                "incomplete: what can be checked fits, and the result cannot be recalculated from the bundle",
        }
    );
}
