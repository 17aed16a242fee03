//! `verify`: recomputes every stored record from its revealed seed, on all cores.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use chrono::{DateTime, Datelike as _, Utc};
use uuid::Uuid;

use crate::config::Settings;
use crate::db::scan::{GameName, ScanFilter};
use crate::db::{PoolSettings, Reader};
use crate::gfs::seed::Commitment;
use crate::history::distribution::{ChiSquare, Distribution};
use crate::history::filters::whole_microsecond;
use crate::history::verify::{Finding, Report, Whose, verify};
use crate::seeds::values::PlayerRef;

use super::CliError;
use super::database::{Database, Role};
use super::seed_keys::progress_bar;

/// One that reads bets and one that reads what belongs to them.
const CONNECTIONS_MIN: u32 = 2;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only bets of this session
    #[arg(long, value_name = "ID", group = "whose")]
    session: Option<Uuid>,
    /// Only bets of this player's sessions
    #[arg(long, value_name = "REF", group = "whose", value_parser = PlayerRef::parse)]
    player: Option<PlayerRef>,
    /// Only bets under this commitment
    #[arg(long, value_name = "HEX", group = "whose")]
    commitment: Option<Commitment>,
    /// Only bets of this game
    #[arg(long, value_parser = game_name)]
    game: Option<GameName>,
    /// Only bets taken at this time or later, such as 2026-11-30T00:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<DateTime<Utc>>,
    /// Only bets taken before this time
    #[arg(long, value_name = "TIME")]
    to: Option<DateTime<Utc>>,
    /// Check a file of `fairledger bundle` instead, with no database
    #[arg(long, value_name = "FILE", conflicts_with_all = ["whose", "game", "from", "to"])]
    bundle: Option<PathBuf>,
    /// With --bundle: the receipt that the player kept, or the view of the session that has it
    #[arg(long, value_name = "FILE", requires = "bundle")]
    receipt: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn game_name(text: &str) -> Result<GameName, &'static str> {
    GameName::new(text).ok_or("a game has 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
}

impl Args {
    fn whose(&self) -> Whose {
        // Clap lets one of these through at the most.
        match (self.session, &self.player, self.commitment) {
            (Some(session_id), _, _) => Whose::Session(session_id),
            (_, Some(player_ref), _) => Whose::Player(player_ref.clone()),
            (_, _, Some(commitment)) => Whose::Commitment(commitment),
            (None, None, None) => Whose::All,
        }
    }

    /// A period that cannot have a bet is a slip of whoever asked, and no finding.
    fn check_period(&self) -> Result<(), CliError> {
        let refused = |text: &str| Err(CliError::Refused(text.to_owned()));
        match (self.from, self.to) {
            (Some(from), Some(to)) if from >= to => refused("--from must be before --to"),
            (from, to) if from.into_iter().chain(to).any(|time| !(1970..10_000).contains(&time.year())) => {
                refused("--from and --to must be in the years 1970 to 9999")
            }
            _ => Ok(()),
        }
    }

    fn filter(&self) -> ScanFilter {
        ScanFilter {
            game: self.game.clone(),
            from: self.from.map(whole_microsecond),
            to: self.to.map(whole_microsecond),
        }
    }

    /// Whether all bets there are will be checked.
    fn is_everything(&self) -> bool {
        self.whose() == Whose::All && self.game.is_none() && self.from.is_none() && self.to.is_none()
    }
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    if let Some(bundle) = &args.bundle {
        return super::bundle::verify_file(bundle, args.receipt.as_deref(), args.json);
    }
    args.check_period()?;
    let database = Database::reach(settings, Role::Service).await?;
    let started = Instant::now();
    let report = async {
        let connections_max = settings.pool.connections_max.max(CONNECTIONS_MIN);
        let store = database.open_pool(&PoolSettings { connections_max, ..settings.pool.clone() }).await?;
        let report = check(&Reader::from(&store), args).await;
        store.close().await;
        report
    }
    .await;
    database.leave().await?;
    let report = report?;
    if args.json {
        let text = serde_json::to_string(&report).map_err(|error| CliError::Refused(error.to_string()))?;
        show!("{text}");
    } else {
        print(&report, started.elapsed().as_secs_f64());
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn check(reader: &Reader, args: &Args) -> Result<Report, CliError> {
    // How many bets a filter leaves nobody knows before they are read.
    let estimate = if args.is_everything() {
        let mut tx = reader.snapshot("verify.estimate").await?;
        tx.bets_estimate().await?
    } else {
        0
    };
    let bar = progress_bar(estimate, "bets");
    let report = verify(reader, &args.whose(), &args.filter(), |bets| bar.inc(bets)).await;
    bar.finish_and_clear();
    Ok(report?)
}

fn print(report: &Report, seconds: f64) {
    for finding in &report.findings {
        let Finding { session_id, seed_no, nonce, bet, check, detail } = finding;
        let bet = bet.as_ref().map_or_else(String::new, |bet| {
            format!(" ({} {:?}, commitment {}, taken {})", bet.game, bet.bet_ref, bet.commitment, bet.taken_at)
        });
        show!("session {session_id}, seed {seed_no}, nonce {nonce}{bet}: {check}: {detail}");
    }
    let found = report.mismatched + report.corrupt;
    if found > report.findings.len() as u64 {
        show!("and {} more", found - report.findings.len() as u64);
    }
    let Report { verified, not_revealed, void, custom, unsigned, mismatched, corrupt, .. } = report;
    show!(
        "{verified} verified, {custom} of outside games checked, {not_revealed} not revealed yet, {void} void, {mismatched} \
         mismatched, {corrupt} corrupt, in {seconds:.1} s"
    );
    if report.signing_key_known && *unsigned > 0 {
        show!("{unsigned} results carry no signature, though a signing key has been in use: ask since when and why");
    }
    report.distributions.iter().for_each(|found| print_distribution("results", found));
    report.voided.iter().for_each(|found| print_distribution("what voided bets would have come to", found));
}

fn print_distribution(what: &str, found: &Distribution) {
    let Distribution { game, params, sample, test: Some(test), unlikely } = found else {
        // Too few to say anything.
        return;
    };
    let params =
        if params.is_empty() { String::new() } else { format!(" {}", crate::gfs::json::canonical_map(params)) };
    let mark = if *unlikely { ": UNLIKELY by chance" } else { "" };
    let ChiSquare { statistic, bins, p_value } = test;
    show!("{game}{params}, {what}: {sample}, chi-square {statistic:.1} over {bins} bins, p = {p_value:.4}{mark}");
}
