//! `verify`: recomputes every stored record from its revealed seed, on all cores.
//!
//! The check of everything that the ledger promises about bets, against what it stored (I3, I7, I8 as far as rows can tell).

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use futures_util::StreamExt as _;
use serde::Serialize;
use uuid::Uuid;

use crate::config::Settings;
use crate::db::bets::BetKey;
use crate::db::details::BetDetails;
use crate::db::{Datastore, DbError};
use crate::seeds::values::Timestamp;
use crate::seeds::verify::{Verdict, verify_bet};

use super::CliError;
use super::database::{Database, Role};
use super::seed_keys::progress_bar;

/// Bets read in one snapshot.
const PAGE: i64 = 1_000;

/// Findings that are listed at the most; all are counted.
const LISTED_MAX: usize = 1_000;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Check a file of `fairledger bundle` instead, with no database
    #[arg(long, value_name = "FILE")]
    bundle: Option<PathBuf>,
    /// With --bundle: the receipt that the player kept, or the view of the session that has it
    #[arg(long, value_name = "FILE", requires = "bundle")]
    receipt: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What verifying came to.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Recomputed and found equal.
    verified: u64,
    /// Their seed is not revealed, or their result not there yet.
    not_revealed: u64,
    /// Ended without a result.
    void: u64,
    /// Of outside games: commitment, cursor and signature checked.
    custom: u64,
    /// Not what their seed gives.
    mismatched: u64,
    /// Rows that cannot be read.
    corrupt: u64,
    /// The first of the mismatched and corrupt ones.
    findings: Vec<Finding>,
}

/// A bet that is not as it must be.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Finding {
    session_id: Uuid,
    seed_no: i32,
    nonce: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    bet: Option<FoundBet>,
    /// The check that failed, or `Row`.
    check: String,
    detail: String,
}

/// How its session and its engine know it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct FoundBet {
    commitment: String,
    bet_ref: String,
    game: String,
    taken_at: Timestamp,
}

type Row = (BetKey, Result<BetDetails, DbError>);

impl Report {
    fn count(&mut self, (key, row): &Row) {
        let (bet, check, detail) = match row {
            Ok(bet) => match verify_bet(bet) {
                Verdict::Verified => return self.verified += 1,
                Verdict::Custom => return self.custom += 1,
                Verdict::NotRevealed => return self.not_revealed += 1,
                Verdict::Void => return self.void += 1,
                Verdict::Mismatch { check, detail } => {
                    self.mismatched += 1;
                    (Some(bet), check, detail)
                }
            },
            Err(error) => {
                self.corrupt += 1;
                (None, "Row".to_owned(), error.to_string())
            }
        };
        let bet = bet.map(|bet| FoundBet {
            commitment: bet.commitment.to_string(),
            bet_ref: bet.bet_ref.clone(),
            game: bet.game.clone(),
            taken_at: Timestamp(bet.taken_at),
        });
        if self.findings.len() < LISTED_MAX {
            let BetKey { session_id, seed_no, nonce } = *key;
            self.findings.push(Finding { session_id, seed_no, nonce, bet, check, detail });
        }
    }

    fn add(&mut self, other: Self) {
        let Self { verified, not_revealed, void, custom, mismatched, corrupt, findings } = other;
        self.verified += verified;
        self.not_revealed += not_revealed;
        self.void += void;
        self.custom += custom;
        self.mismatched += mismatched;
        self.corrupt += corrupt;
        let room = LISTED_MAX - self.findings.len();
        self.findings.extend(findings.into_iter().take(room));
    }

    fn is_sound(&self) -> bool {
        self.mismatched == 0 && self.corrupt == 0
    }

    fn print(&self, seconds: f64) {
        for finding in &self.findings {
            let Finding { session_id, seed_no, nonce, bet, check, detail } = finding;
            let bet = bet.as_ref().map_or_else(String::new, |bet| {
                format!(" ({} {:?}, commitment {}, taken {})", bet.game, bet.bet_ref, bet.commitment, bet.taken_at)
            });
            println!("session {session_id}, seed {seed_no}, nonce {nonce}{bet}: {check}: {detail}");
        }
        let found = self.mismatched + self.corrupt;
        if found > self.findings.len() as u64 {
            println!("and {} more", found - self.findings.len() as u64);
        }
        let Self { verified, not_revealed, void, custom, mismatched, corrupt, .. } = self;
        println!(
            "{verified} verified, {custom} of outside games checked, {not_revealed} not revealed yet, {void} void, {mismatched} \
             mismatched, {corrupt} corrupt, in {seconds:.1} s"
        );
    }
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    if let Some(bundle) = &args.bundle {
        return super::bundle::verify_file(bundle, args.receipt.as_deref(), args.json);
    }
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let store = database.open(settings).await?;
        let started = Instant::now();
        let report = verify(&store).await?;
        store.close().await;
        Ok::<_, CliError>((report, started.elapsed().as_secs_f64()))
    }
    .await;
    database.leave().await?;
    let (report, seconds) = done?;
    if args.json {
        let text = serde_json::to_string(&report).map_err(|error| CliError::Refused(error.to_string()))?;
        println!("{text}");
    } else {
        report.print(seconds);
    }
    Ok(if report.is_sound() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reads page after page, each in a snapshot of its own, while the pages before are checked on the other cores.
async fn verify(store: &Datastore) -> Result<Report, CliError> {
    let mut tx = store.snapshot("verify.estimate").await?;
    let bar = progress_bar(tx.bets_estimate().await?, "bets");
    tx.rollback().await;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let pages = futures_util::stream::try_unfold(None, |above| async move {
        let mut tx = store.snapshot("verify.page").await?;
        let page: Vec<Row> = tx.bets_after(above, PAGE).await?;
        tx.rollback().await;
        let last = page.last().map(|(key, _)| *key);
        Ok::<_, DbError>(last.map(|last| (page, Some(last))))
    });
    let checked = pages
        .map(|page| async {
            let page = page?;
            let checked = tokio::task::spawn_blocking(move || {
                let mut report = Report::default();
                page.iter().for_each(|row| report.count(row));
                (report, page.len() as u64)
            });
            checked.await.map_err(|error| CliError::Refused(format!("a check ended: {error}")))
        })
        // In order, so that two runs list the same findings.
        .buffered(cores + 1);
    let mut checked = std::pin::pin!(checked);
    let mut report = Report::default();
    while let Some(page) = checked.next().await {
        let (page, count) = page?;
        report.add(page);
        bar.inc(count);
    }
    bar.finish_and_clear();
    Ok(report)
}
