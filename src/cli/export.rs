//! `export`: the history, or what of it fits the filters, into a file.
//!
//! The file has its name only when it is whole. Until then it is `NAME.part`, and can be gone on with.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use chrono::{DateTime, Utc};
use indicatif::ProgressBar;
use uuid::Uuid;

use crate::config::Settings;
use crate::db::Reader;
use crate::gfs::seed::Commitment;
use crate::history::export::{ExportError, ExportRequest, ExportSink, Resume, SinkClosed};
use crate::history::format::Format;
use crate::history::resume::{Found, scan};
use crate::history::{Filters, History};
use crate::seeds::ServiceSecret;
use crate::seeds::model::BetStatus;
use crate::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};

use super::CliError;
use super::database::{Database, Role};
use super::seed_keys::progress_bar;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// ndjson or csv
    #[arg(long, value_name = "FORM", value_parser = parse_format, default_value = "ndjson")]
    format: Format,
    /// File to write; standard output when absent or `-`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Go on with FILE.part where an earlier export with the same filters broke off
    #[arg(long, requires = "out")]
    resume: bool,
    #[command(flatten)]
    filters: FilterArgs,
}

/// Filters as flags.
#[derive(Debug, clap::Args)]
pub(super) struct FilterArgs {
    /// Bets taken at this time or later (RFC 3339)
    #[arg(long, value_name = "TIME")]
    from: Option<DateTime<Utc>>,
    /// Bets taken before this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    to: Option<DateTime<Utc>>,
    /// Bets of this session
    #[arg(long, value_name = "ID")]
    session: Option<Uuid>,
    /// Bets of all sessions of this player
    #[arg(long, value_name = "REF", value_parser = PlayerRef::parse)]
    player: Option<PlayerRef>,
    /// Bets on this game
    #[arg(long, value_name = "NAME", value_parser = GameName::parse)]
    game: Option<GameName>,
    /// Bets under this seed
    #[arg(long, value_name = "HEX")]
    commitment: Option<Commitment>,
    /// The bet with this nonce; only with --commitment
    #[arg(long, value_name = "N", requires = "commitment")]
    nonce: Option<u64>,
    /// Bets of this reference, in any session
    #[arg(long, value_name = "REF", value_parser = BetRef::parse)]
    bet_ref: Option<BetRef>,
    /// Bets in this state: recorded, pending or void
    #[arg(long, value_name = "STATE", value_parser = parse_status)]
    status: Option<BetStatus>,
}

fn parse_format(text: &str) -> Result<Format, String> {
    match text {
        "ndjson" => Ok(Format::Ndjson),
        "csv" => Ok(Format::Csv),
        _ => Err("must be ndjson or csv".to_owned()),
    }
}

fn parse_status(text: &str) -> Result<BetStatus, String> {
    match text {
        "recorded" => Ok(BetStatus::Recorded),
        "pending" => Ok(BetStatus::Pending),
        "void" => Ok(BetStatus::Void),
        _ => Err("must be recorded, pending or void".to_owned()),
    }
}

impl FilterArgs {
    /// The filters, checked.
    pub(super) fn filters(&self) -> Result<Filters, CliError> {
        let filters = Filters {
            session_id: self.session,
            player_ref: self.player.clone(),
            commitment: self.commitment,
            nonce: self.nonce,
            bet_ref: self.bet_ref.clone(),
            game: self.game.clone(),
            status: self.status,
            from: self.from.map(Timestamp),
            to: self.to.map(Timestamp),
        };
        Ok(filters.checked()?)
    }
}

pub(super) async fn run(settings: &Settings, args: &Args) -> Result<ExitCode, CliError> {
    let filters = args.filters.filters()?;
    let target = match args.out.as_deref().filter(|path| *path != Path::new("-")) {
        Some(name) => {
            let (part, found) = Part::open(name, args, &filters)?;
            let resume = match found {
                Found::Complete(records) => {
                    // All that was left to do is the name.
                    part.finish()?;
                    note!("{records} bets, complete before");
                    return Ok(ExitCode::SUCCESS);
                }
                Found::Part { resume, .. } => Some(resume),
                Found::Nothing => None,
            };
            Target { out: part.writer()?, part: Some(part), resume }
        }
        None if args.resume => return Err(CliError::Refused("only a file can be gone on with: name it".to_owned())),
        None => Target { out: Box::new(io::stdout()), part: None, resume: None },
    };
    let database = Database::reach(settings, Role::Service).await?;
    let done = export(settings, &database, args.format, filters, target).await;
    database.leave().await?;
    done?;
    Ok(ExitCode::SUCCESS)
}

async fn export(
    settings: &Settings,
    database: &Database,
    format: Format,
    filters: Filters,
    mut target: Target,
) -> Result<(), CliError> {
    // Also where a replica is read: it has the schema of its primary.
    let store = database.open(settings).await?;
    let reader = match &settings.replica_url {
        Some(url) => Reader::replica(url.expose(), &settings.pool)?,
        None => Reader::from(&store),
    };
    // No page tokens are made here.
    let history = History::new(reader, ServiceSecret::new(rand::random()), settings.history.clone());
    let all = filters.is_empty();
    let export = history.export(ExportRequest { filters, format, resume: target.resume.take() }).await?;
    let bar = if all {
        let mut tx = history.reader().snapshot("export.estimate").await?;
        let bar = progress_bar(tx.bets_estimate().await?, "bets");
        tx.rollback().await;
        bar
    } else {
        counting_bar("bets")
    };
    let started = Instant::now();
    let mut sink = FileSink { out: target.out, bar, error: None };
    let to_file = target.part.is_some();
    let not_written = |error| if to_file { CliError::io("writing the export", error) } else { CliError::Output(error) };
    let written = export.write_to(&mut sink).await;
    sink.bar.finish_and_clear();
    let records = match (written, sink.error.take()) {
        (Ok(records), None) => records,
        (_, Some(error)) => return Err(not_written(error)),
        (Err(ExportError::Db(error)), None) => return Err(error.into()),
        (Err(error), None) => return Err(CliError::Refused(error.to_string())),
    };
    sink.out.flush().map_err(not_written)?;
    if let Some(part) = target.part {
        part.finish()?;
    }
    history.reader().close().await;
    store.close().await;
    note!("{records} bets in {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}

/// A count on standard error, where nobody knows how many there will be.
fn counting_bar(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    let template = format!("{{elapsed_precise}} {{spinner}} {{pos}} {what}, {{per_sec}}");
    // The template is ours; a mistake in it shows as the plain style.
    if let Ok(style) = indicatif::ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Where an export goes.
struct Target {
    out: Box<dyn Write + Send>,
    part: Option<Part>,
    resume: Option<Resume>,
}

/// A file that is not whole yet.
struct Part {
    file: File,
    path: PathBuf,
    name: PathBuf,
}

impl Part {
    /// Opens what is to become the file of this name, and looks at what it has already. What is not good of that is cut off.
    fn open(name: &Path, args: &Args, filters: &Filters) -> Result<(Self, Found), CliError> {
        if name.exists() {
            return Err(CliError::File { path: name.to_owned(), reason: "is there already".to_owned() });
        }
        let mut path = name.as_os_str().to_owned();
        path.push(".part");
        let path = PathBuf::from(path);
        let at = |reason: String| CliError::File { path: path.clone(), reason };
        let io = |error: io::Error| at(error.to_string());
        if !args.resume && path.exists() {
            return Err(at("an earlier export broke off here: go on with --resume, or delete it".to_owned()));
        }
        let mut file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path).map_err(io)?;
        let found = scan(BufReader::new(&file), args.format, filters).map_err(|error| at(error.to_string()))?;
        let good = match &found {
            Found::Nothing => Some(0),
            Found::Part { bytes, .. } => Some(*bytes),
            Found::Complete(_) => None,
        };
        if let Some(good) = good {
            file.set_len(good).map_err(io)?;
            file.seek(io::SeekFrom::Start(good)).map_err(io)?;
        }
        Ok((Self { file, path, name: name.to_owned() }, found))
    }

    fn writer(&self) -> Result<Box<dyn Write + Send>, CliError> {
        let file = self.file.try_clone();
        let file = file.map_err(|error| CliError::File { path: self.path.clone(), reason: error.to_string() })?;
        Ok(Box::new(file))
    }

    /// Gives the whole file its name, once it is on the disk.
    fn finish(self) -> Result<(), CliError> {
        let Self { file, path, name } = self;
        file.sync_all()
            .and_then(|()| std::fs::rename(&path, &name))
            .map_err(|error| CliError::File { path, reason: error.to_string() })
    }
}

/// Writes where the export goes, at once: a page is a large piece.
struct FileSink {
    out: Box<dyn Write + Send>,
    bar: ProgressBar,
    error: Option<io::Error>,
}

impl ExportSink for FileSink {
    async fn take(&mut self, bytes: Vec<u8>, records: u64) -> Result<(), SinkClosed> {
        self.bar.set_position(records);
        // Blocks this thread for as long as the disk takes; nothing else runs in this process.
        self.out.write_all(&bytes).map_err(|error| {
            self.error = Some(error);
            SinkClosed
        })
    }
}
