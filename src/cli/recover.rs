//! `recover`: shows what the database lacks of what was acknowledged, and opens a new epoch.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::config::Settings;
use crate::db::fence::{self, FolderContents, Mark};
use crate::db::witness::{Affected, InstanceRows, QuarantineRow};
use crate::db::{Datastore, Reader};
use crate::seeds::values::Timestamp;
use crate::seeds::{Seeds, ServiceSecret};

use super::database::{Database, Role};
use super::seed_keys::{progress_bar, seed_keys};
use super::{CliError, output};

/// Without --confirm nothing is changed. With it every key is closed, and every session goes on with fresh seeds: its live and its next
/// seed are revealed, and its pending bets are void. Works as the owner of the tables, over MIGRATE_DATABASE_URL, while the services run
/// or not. Stop those that have no witness folder first: they do not notice.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Open a new epoch
    #[arg(long, requires = "reason")]
    confirm: bool,
    /// Why, in words that are kept for ever and shown with what they explain
    #[arg(long, value_name = "TEXT", requires = "confirm", value_parser = parse_reason)]
    reason: Option<String>,
    /// Open one although nothing is found missing: after a restore or a failover that no witness folder could notice
    #[arg(long, requires = "confirm")]
    sound_database: bool,
    /// Move every session at once, rather than as each is used or the services find the time. Needs the seed keys
    #[arg(long, requires = "confirm")]
    move_sessions: bool,
}

fn parse_reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    if (1..=1_000).contains(&text.chars().count()) && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err("must have 1 to 1,000 characters, on one line and printable".to_owned())
    }
}

/// What was found.
struct Findings {
    epoch: i32,
    folder: Option<FolderContents>,
    missing: Vec<String>,
    witnesses: Vec<InstanceRows>,
    quarantines: Vec<QuarantineRow>,
    affected: Affected,
    last_recovery: Option<String>,
}

pub(super) async fn run(mut settings: Settings, args: Args) -> Result<ExitCode, CliError> {
    let ring = if args.move_sessions { Some(seed_keys(&mut settings)?) } else { None };
    let database = Database::reach(&settings, Role::Owner).await?;
    let done = async {
        let store = database.open(&settings).await?;
        let folder = look_at_folder(&settings)?;
        let found = find(&store, folder).await?;
        found.print();
        if let Some(reason) = args.reason.filter(|_| args.confirm) {
            if found.is_clean() && !args.sound_database {
                return Err(CliError::NothingMissing);
            }
            let opened = confirm(&store, &found, &reason).await?;
            output::outcome(&format!(
                "\n{opened}: every key is closed; register new ones. Running services follow within seconds"
            ));
            if let Some(ring) = ring {
                // Moving a session needs no secret and signs nothing.
                let secret = ServiceSecret::new(rand::random());
                let seeds = Seeds::start(store.clone(), ring, secret, None, settings.seeds.clone()).await?;
                let bar = progress_bar(found.affected.sessions.unsigned_abs(), "sessions");
                let moved = seeds.recover_all(|count| bar.inc(count)).await;
                bar.finish_and_clear();
                moved?;
                output::outcome(&format!("{} sessions were moved", bar.position()));
            }
        } else if !found.is_clean() {
            show!("\nnothing was changed. `fairledger recover --confirm --reason TEXT` opens a new epoch");
        }
        store.close().await;
        Ok(if args.confirm || found.is_clean() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
    .await;
    database.leave().await?;
    done
}

fn look_at_folder(settings: &Settings) -> Result<Option<FolderContents>, CliError> {
    let private = settings.data_dir.join("witness");
    let dir = match &settings.witness_dir {
        Some(dir) => dir.clone(),
        None if settings.database_url.is_none() && private.exists() => private,
        None => return Ok(None),
    };
    Ok(Some(fence::look(&dir)?))
}

async fn find(store: &Datastore, folder: Option<FolderContents>) -> Result<Findings, CliError> {
    let mut tx = Reader::from(store).snapshot("recover.look").await?;
    let epoch = tx.current_epoch().await?;
    let witnesses = tx.witnesses().await?;
    let quarantines = tx.quarantines_in_force().await?;
    let affected = tx.affected_by_recovery().await?;
    let last_recovery = tx.last_recovery().await?.map(|at| Timestamp(at).to_string());
    tx.rollback().await;
    let missing = folder.as_ref().map_or_else(Vec::new, |folder| {
        let rows = witnesses.iter().find(|rows| rows.instance == folder.instance);
        let rows: &[Option<Mark>] = rows.map_or(&[], |rows| &rows.marks);
        let mut missing = fence::missing(&folder.marks, rows, epoch);
        missing.extend(
            folder.unknown(rows).into_iter().map(|what| format!("not known, as the witness folder is damaged: {what}")),
        );
        missing
    });
    Ok(Findings { epoch, folder, missing, witnesses, quarantines, affected, last_recovery })
}

/// Opens an epoch later than any that the database or a witness knows of: a recovery may itself have been lost. Says what was done: what was
/// found is one recovery's work, and another one may have been faster.
async fn confirm(store: &Datastore, found: &Findings, reason: &str) -> Result<String, CliError> {
    let marks = found.folder.iter().flat_map(|folder| folder.marks.iter().flatten().map(|mark| mark.epoch));
    let known = marks.chain(found.quarantines.iter().map(|row| row.epoch)).chain([found.epoch]).max().unwrap_or(0);
    let findings = found.to_json().to_string();
    let mut tx = store.begin("recover.confirm").await?;
    tx.lock_recovery().await?;
    let current = tx.current_epoch().await?;
    if current != found.epoch {
        let at = tx.last_recovery().await?.map(|at| format!(" at {}", Timestamp(at))).unwrap_or_default();
        tx.rollback().await;
        return Ok(format!("another recovery opened epoch {current}{at}, meanwhile, and this one nothing"));
    }
    let epoch = known + 1;
    tx.open_epoch(epoch, reason, &findings).await?;
    tx.commit().await?;
    Ok(format!("recovery epoch {epoch} is open"))
}

impl Findings {
    fn is_clean(&self) -> bool {
        self.missing.is_empty() && self.quarantines.is_empty()
    }

    fn rows_of(&self, instance: &str) -> &[Option<Mark>] {
        self.witnesses.iter().find(|rows| rows.instance == instance).map_or(&[], |rows| &rows.marks)
    }

    fn print(&self) {
        let last = self.last_recovery.as_deref().map_or_else(|| "none".to_owned(), |at| format!("at {at}"));
        show!("recovery epoch {}, last recovery: {last}", self.epoch);
        match &self.folder {
            None => show!(
                "no witness folder is set: what an instance acknowledged is known only as far as it told the database"
            ),
            Some(folder) => {
                show!("instance {}, by its witness folder:", folder.instance);
                let rows = self.rows_of(&folder.instance);
                for (writer, mark) in folder.marks.iter().enumerate() {
                    let row = rows.get(writer).copied().flatten();
                    if let Some(line) = writer_line(writer, *mark, row) {
                        show!("  {line}");
                    }
                }
            }
        }
        for row in &self.witnesses {
            show!("instance {} has {} writers in the database", row.instance, row.marks.iter().flatten().count());
        }
        for line in &self.missing {
            show!("missing: {line}");
        }
        for QuarantineRow { instance, found_at, reason, .. } in &self.quarantines {
            show!("instance {instance} found at {}: {reason}", Timestamp(*found_at));
        }
        if self.is_clean() {
            show!("nothing is known to be missing");
        }
        let Affected { sessions, pending, keys } = self.affected;
        show!(
            "a recovery ends: the live and next seeds of {sessions} open sessions, {pending} pending bets, {keys} open keys"
        );
    }

    fn to_json(&self) -> Value {
        let mark = |mark: Option<Mark>| mark.map(|mark| json!({ "epoch": mark.epoch, "seq": mark.seq }));
        let instance = self.folder.as_ref().map(|folder| {
            let rows = self.rows_of(&folder.instance);
            let writers: Vec<Value> = (0..folder.marks.len().max(rows.len()))
                .map(|writer| {
                    let (file, row) = (folder.marks.get(writer), rows.get(writer));
                    json!({ "writer": writer, "acknowledged": mark(file.copied().flatten()), "database": mark(row.copied().flatten()) })
                })
                .collect();
            json!({ "instance": folder.instance, "writers": writers })
        });
        let quarantines: Vec<Value> = self
            .quarantines
            .iter()
            .map(|row| {
                let found_at = Timestamp(row.found_at).to_string();
                json!({ "instance": row.instance, "epoch": row.epoch, "foundAt": found_at, "reason": row.reason })
            })
            .collect();
        let Affected { sessions, pending, keys } = self.affected;
        json!({
            "epochBefore": self.epoch,
            "witness": instance,
            "missing": self.missing,
            "quarantines": quarantines,
            "affected": { "sessions": sessions, "pending": pending, "keys": keys },
            "software": concat!("fairledger ", env!("CARGO_PKG_VERSION")),
        })
    }
}

/// A line about a writer that ever wrote.
fn writer_line(writer: usize, mark: Option<Mark>, row: Option<Mark>) -> Option<String> {
    let words = |mark: Mark| format!("{} in epoch {}", mark.seq, mark.epoch);
    let mark = mark.filter(|mark| mark.seq > 0 || row.is_none_or(|row| row.seq > 0))?;
    let row = row.map_or_else(|| "nothing of it".to_owned(), words);
    Some(format!("writer {writer}: acknowledged {}, the database has {row}", words(mark)))
}
