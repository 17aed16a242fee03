//! The secrets that `serve` keeps in its data folder: `seed-keys`, `secret`, `signing-key` and `admin-token`, one line each.
//!
//! Keeps I6: they are readable by their owner alone, or refused. A file is there completely or not at all, and is never overwritten:
//! seeds sealed under a key that is gone are gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::config::{self, Settings};
use crate::gfs::SigningKey;
use crate::http::auth::ApiToken;
use crate::seeds::{KeyRing, ServiceSecret};

use super::CliError;

/// Name of the first key of a new ring.
const FIRST_KEY_ID: &str = "k1";

/// What the service works with.
pub(super) struct Keys {
    pub ring: KeyRing,
    pub secret: ServiceSecret,
    pub signing_key: Option<SigningKey>,
    /// The token of the data folder, where there is one.
    pub admin_token: Option<ApiToken>,
}

/// Makes the folder where it is missing. The private server opens its way through it where it needs to.
pub(super) fn prepare(dir: &Path) -> Result<(), CliError> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|error| CliError::io(format!("making the data folder {}", dir.display()), error))
}

/// The keys for a private database: those of the settings, and for the rest those of the folder, made where they are missing.
///
/// # Errors
/// A file that is wrong or open to others; and seed keys that are missing although there is a database sealed under them.
pub(super) fn keys(settings: &mut Settings) -> Result<Keys, CliError> {
    let dir = settings.data_dir.clone();
    let ring = match settings.seed_keys.take() {
        Some(ring) => ring,
        None => {
            let path = dir.join("seed-keys");
            if !path.exists() && dir.join("pg").exists() {
                let reason = "is missing, and the database in this folder is sealed under its keys: bring it back from a \
                              backup, or set FAIRLEDGER_SEED_KEYS";
                return Err(CliError::File { path, reason: reason.to_owned() });
            }
            kept(&path, || KeyRing::generate_entry(FIRST_KEY_ID), config::parse_seed_keys)?
        }
    };
    let secret = match settings.secret.take() {
        Some(secret) => secret,
        None => kept(&dir.join("secret"), new_secret, config::parse_secret)?,
    };
    let signing_key = match settings.signing_key.take() {
        Some(key) => key,
        None => kept(&dir.join("signing-key"), || SigningKey::generate().to_hex(), config::parse_signing_key)?,
    };
    let admin_token = kept(&dir.join("admin-token"), new_token, parse_token)?;
    Ok(Keys { ring, secret, signing_key: Some(signing_key), admin_token: Some(admin_token) })
}

/// The seed keys for a command on a private database: those of the settings, or of the folder; none are made.
pub(super) fn seed_keys(settings: &mut Settings) -> Result<KeyRing, CliError> {
    match settings.seed_keys.take() {
        Some(ring) => Ok(ring),
        None => read(&settings.data_dir.join("seed-keys"), config::parse_seed_keys),
    }
}

fn new_token() -> Zeroizing<String> {
    Zeroizing::new(ApiToken::generate().expose().to_owned())
}

fn parse_token(text: &str) -> Result<ApiToken, String> {
    ApiToken::parse(text).ok_or_else(|| "is not a token".to_owned())
}

pub(super) fn new_secret() -> Zeroizing<String> {
    let bytes = Zeroizing::new(rand::random::<[u8; 32]>());
    Zeroizing::new(STANDARD.encode(bytes.as_slice()))
}

/// Reads a secret, made anew when the file is not there.
pub(super) fn kept<T>(
    path: &Path,
    make: impl FnOnce() -> Zeroizing<String>,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, CliError> {
    if !path.exists() {
        create(path, &make()).map_err(|error| CliError::io(format!("making {}", path.display()), error))?;
        tracing::info!(path = %path.display(), "made a new secret");
    }
    read(path, parse)
}

/// Reads a secret that nobody but its owner may read.
fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, String>) -> Result<T, CliError> {
    let wrong = |reason: String| CliError::File { path: path.to_owned(), reason };
    let mode = fs::metadata(path).map_err(|error| wrong(format!("cannot be read: {error}")))?.mode();
    if mode & 0o077 != 0 {
        let reason = format!("has mode {:04o}, and others must not read it: chmod 600 it", mode & 0o7777);
        return Err(wrong(reason));
    }
    let text = config::read_secret_file(path).map_err(CliError::Refused)?;
    parse(&text).map_err(wrong)
}

/// Makes a file with one line, completely or not at all, durably, and never over another one: written under a name of its own, then
/// linked to its place, which fails where something is.
fn create(path: &Path, line: &str) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let unfinished = unfinished_name(path);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&unfinished)?;
        file.write_all(line.as_bytes())?;
        file.write_all(b"\n")?;
        file.sync_all()?;
        fs::hard_link(&unfinished, path)
    })();
    let removed = fs::remove_file(&unfinished);
    match written {
        Ok(()) => removed?,
        // Another process was first: its file counts.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    File::open(dir)?.sync_all()
}

fn unfinished_name(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{:016x}", rand::random::<u64>()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn text(path: &Path) -> Result<String, CliError> {
        kept(path, || Zeroizing::new("new".to_owned()), |text| Ok(text.to_owned()))
    }

    #[test]
    fn a_secret_is_made_once_for_its_owner_alone_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        assert_eq!(text(&path).unwrap(), "new");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        fs::write(&path, "other\n").unwrap();
        assert_eq!(text(&path).unwrap(), "other");
        create(&path, "overwritten").unwrap();
        assert_eq!(text(&path).unwrap(), "other");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing unfinished stays behind");
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused_i6() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        text(&path).unwrap();
        for mode in [0o640, 0o604, 0o620] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = text(&path).unwrap_err().to_string();
            assert!(error.contains("chmod 600") && !error.contains("new"), "{error}");
        }
    }

    #[test]
    fn many_makers_at_once_agree_on_one_secret() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("secret");
        let barrier = std::sync::Barrier::new(8);
        let secrets: Vec<String> = std::thread::scope(|scope| {
            let make = || {
                barrier.wait();
                kept(&path, new_secret, |text| Ok(text.to_owned())).unwrap()
            };
            let makers: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
            makers.into_iter().map(|maker| maker.join().unwrap()).collect()
        });
        assert!(secrets.iter().all(|secret| *secret == secrets[0]), "{secrets:?}");
    }
}
