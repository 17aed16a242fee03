//! Where the server's socket stands, and the URL that leads to it.

use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

use super::error::{EmbeddedError, IoContext as _};
use super::predecessor::PidFile;
use super::user::{ServerUser, make_private_dir, own_private_dir};

/// Only a part of the socket's name; nothing listens on a network port.
pub(super) const PORT: u16 = 5432;
/// The bytes in `sockaddr_un.sun_path`, the closing NUL included.
const SOCKET_PATH_MAX: usize = if cfg!(target_os = "linux") { 108 } else { 104 };
const SHORT_PREFIX: &str = "fairledger-";

pub(super) fn file(dir: &Path) -> PathBuf {
    dir.join(format!(".s.PGSQL.{PORT}"))
}

/// Whether a socket can stand in `dir`: its path is short enough, and neither PostgreSQL's list of folders nor a URL's list of hosts reads
/// anything into it.
fn suits(dir: &Path) -> bool {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+~".contains(byte);
    file(dir).as_os_str().len() < SOCKET_PATH_MAX && dir.as_os_str().as_bytes().iter().all(plain)
}

/// Makes the folder for the socket: `run` in the data folder, or where that does not suit, a folder with a name that nobody can guess in a place
/// with a short path. The caller holds the lock and has seen the predecessor gone, so what lies there is left over and is removed.
pub(super) fn make_dir(
    data_dir: &Path,
    stale: Option<&PidFile>,
    user: Option<&ServerUser>,
) -> Result<PathBuf, EmbeddedError> {
    if let Some(stale) = stale {
        remove_short_dir(&stale.socket_dir);
    }
    let usual = data_dir.join("run");
    if suits(&usual) {
        let make = || -> io::Result<()> {
            match std::fs::symlink_metadata(&usual) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return make_private_dir(&usual, user),
                Err(error) => return Err(error),
                Ok(metadata) if !metadata.is_dir() => return Err(io::Error::other("it is not a folder")),
                Ok(_) => own_private_dir(&usual, user)?,
            }
            // A lock file with the pid of a process that happens to exist again would keep the server from starting.
            for leftover in [file(&usual), file(&usual).with_extension(format!("{PORT}.lock"))] {
                match std::fs::remove_file(leftover) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
            Ok(())
        };
        make().during(format!("making {}", usual.display()))?;
        return Ok(usual);
    }

    let mut tried = Vec::new();
    let places = [
        geteuid().is_root().then(|| PathBuf::from("/run")),
        std::env::var_os("XDG_RUNTIME_DIR").filter(|_| !geteuid().is_root()).map(PathBuf::from),
        Some("/tmp".into()),
    ];
    for place in places.into_iter().flatten() {
        let dir = place.join(format!("{SHORT_PREFIX}{:016x}", rand::random::<u64>()));
        if suits(&dir) && make_private_dir(&dir, user).is_ok() {
            return Ok(dir);
        }
        tried.push(place.display().to_string());
    }
    Err(EmbeddedError::NoSocketFolder { data_dir: data_dir.to_path_buf(), tried: tried.join(", ") })
}

/// Removes a folder that [`make_dir`] made outside the data folder; anything else is left alone.
pub(super) fn remove_short_dir(dir: &Path) {
    let named_by_us = dir.file_name().is_some_and(|name| name.as_bytes().starts_with(SHORT_PREFIX.as_bytes()));
    let private =
        std::fs::symlink_metadata(dir).is_ok_and(|metadata| metadata.is_dir() && metadata.mode() & 0o077 == 0);
    if named_by_us && private {
        // At worst an empty folder stays behind.
        let _ = std::fs::remove_dir_all(dir);
    }
}

pub(super) fn url(socket_dir: &Path, user: &str, database: &str) -> String {
    format!(
        "postgres:///{}?host={}&port={PORT}&user={}&sslmode=disable",
        percent_encode(database.as_bytes()),
        percent_encode(socket_dir.as_os_str().as_bytes()),
        percent_encode(user.as_bytes())
    )
}

fn percent_encode(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, &byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::str::FromStr as _;

    #[test]
    fn the_url_means_the_same_to_both_drivers() {
        let url = url(Path::new("/var/lib/a b/run"), "fair ledger", "d&b");
        let sqlx = sqlx::postgres::PgConnectOptions::from_str(&url).unwrap();
        assert_eq!(sqlx.get_socket().map(PathBuf::as_path), Some(Path::new("/var/lib/a b/run")));
        assert_eq!((sqlx.get_port(), sqlx.get_username(), sqlx.get_database()), (PORT, "fair ledger", Some("d&b")));
        let other = tokio_postgres::Config::from_str(&url).unwrap();
        assert_eq!(other.get_hosts(), [tokio_postgres::config::Host::Unix("/var/lib/a b/run".into())]);
        assert_eq!(
            (other.get_ports(), other.get_user(), other.get_dbname()),
            (&[PORT][..], Some("fair ledger"), Some("d&b"))
        );
    }

    #[test]
    fn a_folder_suits_up_to_the_last_byte_and_without_separators() {
        let longest = SOCKET_PATH_MAX - 1 - "/.s.PGSQL.5432".len();
        assert!(suits(Path::new(&format!("/{}", "x".repeat(longest - 1)))));
        assert!(!suits(Path::new(&format!("/{}", "x".repeat(longest)))));
        assert!(!suits(Path::new("/a,b")));
        assert!(!suits(Path::new("/a b")));
    }
}
