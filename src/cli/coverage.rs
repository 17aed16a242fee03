//! `coverage`: whether every nonce that was handed out is accounted for, in one session or in all.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use serde::Serialize;
use uuid::Uuid;

use crate::config::Settings;
use crate::db::{Datastore, PoolSettings, Reader};
use crate::history::coverage::{Finding, Recovery, SeedCoverage, Seen, SessionCoverage, Totals};
use crate::history::{Check, History, HistorySettings, State};
use crate::seeds::{PAGE_MAX, ServiceSecret};

use super::CliError;
use super::database::{Database, Role};
use super::seed_keys::progress_bar;

/// How long one statement may count. A single seed with very many bets is counted by one.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Findings that JSON lists at the most; all are counted, and as text all are printed.
const LISTED_MAX: usize = 1_000;

/// Of one session everything is told, of all of them only what is wrong. Exits with 1 when anything is.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Only this session, with everything there is to tell
    #[arg(long, value_name = "ID")]
    session: Option<Uuid>,
    /// Of all sessions, list also what accuses nobody by itself
    #[arg(long, conflicts_with = "session")]
    notes: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What looking at everything came to.
#[derive(Serialize)]
struct Report<'r> {
    #[serde(flatten)]
    totals: Totals,
    findings: &'r [Finding],
    #[serde(skip_serializing_if = "Option::is_none")]
    notes: Option<&'r [Finding]>,
}

/// History over a database that a command has reached.
pub(super) fn history_of(store: &Datastore) -> History {
    // It seals page tokens, and no command gives one away.
    let secret = ServiceSecret::new(rand::random());
    History::new(Reader::from(store), secret, HistorySettings::default())
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let database = Database::reach(settings, Role::Service).await?;
    let done = async {
        let pool = PoolSettings { statement_timeout: STATEMENT_TIMEOUT, ..settings.pool.clone() };
        let store = database.open_pool(&pool).await?;
        let history = history_of(&store);
        let sound = match args.session {
            Some(session_id) => one(&history, session_id, args.json).await?,
            None => all(&history, args.notes, args.json).await?,
        };
        store.close().await;
        Ok::<_, CliError>(sound)
    }
    .await;
    database.leave().await?;
    Ok(if done? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn one(history: &History, session_id: Uuid, json: bool) -> Result<bool, CliError> {
    let mut whole: Option<SessionCoverage> = None;
    loop {
        let after = whole.as_ref().and_then(|covered| covered.next_after);
        let page = history.coverage(session_id, after, PAGE_MAX).await?;
        match &mut whole {
            None => whole = Some(page),
            Some(covered) => {
                covered.checks = merged(std::mem::take(&mut covered.checks), page.checks);
                covered.seeds.extend(page.seeds);
                covered.next_after = page.next_after;
            }
        }
        let Some(covered) = whole.as_ref().filter(|covered| covered.next_after.is_none()) else { continue };
        if json {
            print_json(covered)?;
        } else {
            print_session(covered);
        }
        let session_sound = covered.checks.iter().all(|check| check.state != State::Mismatch);
        return Ok(session_sound && covered.seeds.iter().all(SeedCoverage::is_sound));
    }
}

/// The checks of the session as a whole come with every page; those of places without seed only once.
fn merged(mut checks: Vec<Check>, more: Vec<Check>) -> Vec<Check> {
    for check in more {
        if !checks.contains(&check) {
            checks.push(check);
        }
    }
    checks
}

fn print_json(value: &impl Serialize) -> Result<(), CliError> {
    let text = serde_json::to_string(value).map_err(|error| CliError::Refused(error.to_string()))?;
    show!("{text}");
    Ok(())
}

/// A check on a line of its own.
pub(super) fn print_check(check: &Check) {
    let state = match check.state {
        State::Matches => "matches",
        State::Mismatch => "MISMATCH",
        State::Noted => "noted",
        State::NotProvable => "not provable",
    };
    show!("  {state:<13}{:<18}{}", check.name, check.detail);
}

fn print_session(covered: &SessionCoverage) {
    show!("session {}, as of {}", covered.session_id, covered.as_of);
    covered.checks.iter().for_each(print_check);
    for seed in &covered.seeds {
        let SeedCoverage { seed_no, commitment, status, handed_out, recorded, void, pending, missing_total, .. } = seed;
        let by = seed.retired_by.as_ref().map_or_else(String::new, |by| format!(" by {by}"));
        let epoch = if seed.epoch > 0 { format!(", epoch {}", seed.epoch) } else { String::new() };
        show!("\nseed {seed_no}  {commitment}  {status}{by}{epoch}");
        show!(
            "  {handed_out} handed out: {recorded} recorded, {void} void, {pending} pending, {missing_total} missing"
        );
        if !seed.missing.is_empty() {
            let range = |from, to| if from == to { format!("{from}") } else { format!("{from} to {to}") };
            let ranges: Vec<String> = seed.missing.iter().map(|missing| range(missing.from, missing.to)).collect();
            show!("  missing: {}", ranges.join(", "));
        }
        seed.checks.iter().for_each(print_check);
    }
    for Recovery { epoch, recovered_at, reason } in &covered.recoveries {
        show!("\nrecovery at {recovered_at}, which opened epoch {epoch}: {reason}");
    }
}

async fn all(history: &History, with_notes: bool, json: bool) -> Result<bool, CliError> {
    let started = Instant::now();
    let bar = progress_bar(history.seeds_estimate().await?, "seeds");
    let (mut findings, mut notes) = (Vec::new(), Vec::new());
    let list = |list: &mut Vec<Finding>, finding| {
        if list.len() < LISTED_MAX {
            list.push(finding);
        }
    };
    let totals = history
        .coverage_of_all(|seen| match seen {
            Seen::Seeds(count) => bar.inc(count),
            Seen::Wrong(finding) if json => list(&mut findings, finding),
            Seen::Noted(finding) if json && with_notes => list(&mut notes, finding),
            Seen::Wrong(finding) => bar.suspend(|| print_finding("", &finding)),
            Seen::Noted(finding) if with_notes => bar.suspend(|| print_finding("noted, ", &finding)),
            Seen::Noted(_) => {}
        })
        .await?;
    bar.finish_and_clear();
    if json {
        print_json(&Report { totals, findings: &findings, notes: with_notes.then_some(&notes) })?;
    } else {
        let Totals { sessions, seeds, commitments, handed_out, recorded, void, pending, wrong, noted } = totals;
        show!(
            "{sessions} sessions, {seeds} seeds, {commitments} commitments; {handed_out} nonces handed out: {recorded} recorded, {void} \
             void, {pending} pending; {wrong} checks failed, {noted} noted, in {:.1} s",
            started.elapsed().as_secs_f64()
        );
    }
    Ok(totals.wrong == 0)
}

fn print_finding(noted: &str, finding: &Finding) {
    let Finding { session_id, seed_no, commitment, check, detail } = finding;
    let seed = seed_no.map_or_else(String::new, |seed_no| format!(", seed {seed_no}"));
    let commitment = commitment.map_or_else(String::new, |commitment| format!(", commitment {commitment}"));
    show!("{noted}session {session_id}{seed}{commitment}: {check}: {detail}");
}
