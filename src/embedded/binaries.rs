//! Finding PostgreSQL's server binaries, and telling which version made a cluster.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::error::{EmbeddedError, IoContext as _};

/// The major versions that the SQL is tested on.
const SUPPORTED: std::ops::RangeInclusive<u32> = 14..=18;
const ENV: &str = "FAIRLEDGER_PG_BIN";

/// A folder with `initdb` and `postgres` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// The folder.
    pub dir: PathBuf,
    /// What the server calls itself, such as `15.13` or `18beta1`; it begins with the major version.
    pub version: String,
}

impl Binaries {
    /// The major version; two majors cannot read each other's clusters.
    pub fn major(&self) -> u32 {
        leading_number(&self.version).unwrap_or(0)
    }

    /// Looks at one folder. `Ok(None)`: it holds no server binaries.
    fn inspect(dir: &Path) -> Result<Option<Self>, String> {
        // Through the link that a package manager put on PATH: the server finds its libraries beside the real file.
        let Ok(postgres) = dir.join("postgres").canonicalize() else { return Ok(None) };
        let Some(dir) = postgres.parent() else { return Ok(None) };
        if !dir.join("initdb").exists() {
            return Ok(None);
        }
        let output = Command::new(&postgres)
            .arg("-V")
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{} cannot be run: {error}", postgres.display()))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version =
            text.trim().strip_prefix("postgres (PostgreSQL) ").and_then(|rest| rest.split_whitespace().next());
        match version {
            Some(version) if leading_number(version).is_some() => {
                Ok(Some(Self { dir: dir.to_path_buf(), version: version.to_owned() }))
            }
            _ => Err(format!(
                "{} -V does not tell a version: {} {}",
                postgres.display(),
                text.trim(),
                String::from_utf8_lossy(&output.stderr).trim()
            )),
        }
    }
}

/// Finds server binaries: in `explicit` or the folder that `FAIRLEDGER_PG_BIN` names and then nowhere else; otherwise on `PATH`, then in
/// the usual places, the newest version first. What does not run or is not of a supported version (14 to 18) is passed over, unless it was
/// named.
///
/// # Errors
/// [`EmbeddedError::NoBinaries`], or for a folder that was named [`EmbeddedError::UnusableBinaries`] or [`EmbeddedError::UnsupportedVersion`].
pub fn find_binaries(explicit: Option<&Path>) -> Result<Binaries, EmbeddedError> {
    find(explicit, None)
}

/// As [`find_binaries`], but prefers the major version that made the cluster in `data_dir`, so that installing a newer PostgreSQL beside the
/// old one does not stop the next start.
///
/// # Errors
/// As [`find_binaries`]; [`EmbeddedError::Io`] and [`EmbeddedError::NotACluster`] when the folder cannot be read.
pub fn find_binaries_for(data_dir: &Path, explicit: Option<&Path>) -> Result<Binaries, EmbeddedError> {
    find(explicit, cluster_major(&data_dir.join("pg"))?)
}

fn find(explicit: Option<&Path>, preferred_major: Option<u32>) -> Result<Binaries, EmbeddedError> {
    let from_env = std::env::var_os(ENV).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(dir) = explicit.map(Path::to_path_buf).or(from_env) {
        let found = Binaries::inspect(&dir)
            .and_then(|found| found.ok_or_else(|| "initdb or postgres is missing".to_owned()))
            .map_err(|reason| EmbeddedError::UnusableBinaries { dir, reason })?;
        return if SUPPORTED.contains(&found.major()) {
            Ok(found)
        } else {
            Err(EmbeddedError::UnsupportedVersion { dir: found.dir, version: found.version })
        };
    }
    choose(&candidates(), preferred_major)
}

/// The first usable folder, or the first of the preferred version if there is one.
fn choose(dirs: &[PathBuf], preferred_major: Option<u32>) -> Result<Binaries, EmbeddedError> {
    let mut first = None;
    for dir in dirs {
        let Ok(Some(found)) = Binaries::inspect(dir) else { continue };
        if !SUPPORTED.contains(&found.major()) {
            continue;
        }
        if preferred_major.is_none_or(|major| major == found.major()) {
            return Ok(found);
        }
        first.get_or_insert(found);
    }
    first.ok_or(EmbeddedError::NoBinaries)
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    for major in SUPPORTED.rev() {
        dirs.extend([
            format!("/usr/lib/postgresql/{major}/bin").into(), // Debian
            format!("/usr/pgsql-{major}/bin").into(),          // PostgreSQL's own RPM packages
            format!("/usr/libexec/postgresql{major}").into(),  // Alpine
            format!("/opt/homebrew/opt/postgresql@{major}/bin").into(),
            format!("/usr/local/opt/postgresql@{major}/bin").into(),
        ]);
    }
    dirs.extend(["/usr/local/pgsql/bin".into(), "/usr/local/bin".into(), "/usr/bin".into()]);
    dirs
}

/// The major version that made the cluster, `None` where there is none yet.
pub(super) fn cluster_major(cluster: &Path) -> Result<Option<u32>, EmbeddedError> {
    let not_a_cluster = || EmbeddedError::NotACluster { cluster: cluster.to_path_buf() };
    match std::fs::read_to_string(cluster.join("PG_VERSION")) {
        Ok(text) => leading_number(&text).map(Some).ok_or_else(not_a_cluster),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            match std::fs::read_dir(cluster).map(|mut entries| entries.next().is_none()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Ok(true) => Ok(None),
                _ => Err(not_a_cluster()),
            }
        }
        Err(error) => Err(error).during(format!("reading {}", cluster.join("PG_VERSION").display())),
    }
}

fn leading_number(text: &str) -> Option<u32> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).map_or(text, |end| &text[..end]);
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn fake(root: &Path, name: &str, version_line: &str) -> PathBuf {
        let dir = root.join(name);
        std::fs::create_dir(&dir).unwrap();
        for file in ["initdb", "postgres"] {
            std::fs::write(dir.join(file), format!("#!/bin/sh\necho '{version_line}'\n")).unwrap();
            std::fs::set_permissions(dir.join(file), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        dir.canonicalize().unwrap()
    }

    #[test]
    fn the_first_supported_version_is_chosen_unless_the_cluster_prefers_another() {
        let root = tempfile::tempdir().unwrap();
        let dirs = [
            root.path().join("missing"),
            fake(root.path(), "old", "postgres (PostgreSQL) 9.6.24"),
            fake(root.path(), "broken", "no version here"),
            fake(root.path(), "new", "postgres (PostgreSQL) 18beta1"),
            fake(root.path(), "debian", "postgres (PostgreSQL) 15.13 (Debian 15.13-0+deb12u1)"),
        ];
        let found = choose(&dirs, None).unwrap();
        assert_eq!((found.dir, found.version.as_str()), (dirs[3].clone(), "18beta1"));
        let found = choose(&dirs, Some(15)).unwrap();
        assert_eq!((found.major(), found.version.as_str()), (15, "15.13"));
        // Better another version, whose refusal explains itself, than "nothing found".
        assert_eq!(choose(&dirs, Some(16)).unwrap().major(), 18);
        assert!(matches!(choose(&dirs[..3], None), Err(EmbeddedError::NoBinaries)));
    }

    #[test]
    fn a_folder_that_was_named_is_used_or_refused_but_never_passed_over() {
        let root = tempfile::tempdir().unwrap();
        let good = fake(root.path(), "good", "postgres (PostgreSQL) 17.2");
        assert_eq!(find_binaries(Some(&good)).unwrap().major(), 17);
        let old = fake(root.path(), "old", "postgres (PostgreSQL) 13.1");
        assert!(
            matches!(find_binaries(Some(&old)), Err(EmbeddedError::UnsupportedVersion { version, .. }) if version == "13.1")
        );
        let error = find_binaries(Some(&root.path().join("none"))).unwrap_err();
        assert!(matches!(error, EmbeddedError::UnusableBinaries { .. }));
        assert!(error.to_string().contains("FAIRLEDGER_PG_BIN"), "{error}");
    }

    #[test]
    fn an_empty_folder_is_no_cluster_yet_and_a_foreign_one_is_refused() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(cluster_major(&root.path().join("pg")).unwrap(), None);
        assert_eq!(cluster_major(root.path()).unwrap(), None);
        std::fs::write(root.path().join("notes"), "x").unwrap();
        assert!(matches!(cluster_major(root.path()), Err(EmbeddedError::NotACluster { .. })));
        std::fs::write(root.path().join("PG_VERSION"), "16\n").unwrap();
        assert_eq!(cluster_major(root.path()).unwrap(), Some(16));
    }
}
