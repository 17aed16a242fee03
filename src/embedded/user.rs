//! Who the server runs as: PostgreSQL refuses root, so root's service runs it as another user, who must be able to get to the folder.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Uid, User, geteuid};

use super::error::{EmbeddedError, IoContext as _};
use super::{Binaries, Job};

/// The user that the server runs as when we are root.
#[derive(Debug, Clone)]
pub(super) struct ServerUser {
    pub uid: Uid,
    pub gid: Gid,
    pub name: String,
}

/// The owner of the cluster, of the data folder, else `postgres`, else `nobody`. `None`: we are not root, and the server runs as we do.
pub(super) fn server_user(data_dir: &Path) -> Result<Option<ServerUser>, EmbeddedError> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    for folder in [&data_dir.join("pg"), data_dir] {
        let Ok(metadata) = folder.metadata() else { continue };
        if metadata.uid() != 0 {
            let uid = Uid::from_raw(metadata.uid());
            let known = User::from_uid(uid).ok().flatten();
            let name = known.as_ref().map_or_else(|| uid.to_string(), |user| user.name.clone());
            let gid = known.map_or(Gid::from_raw(metadata.gid()), |user| user.gid);
            return Ok(Some(ServerUser { uid, gid, name }));
        }
    }
    for name in ["postgres", "nobody"] {
        if let Ok(Some(user)) = User::from_name(name)
            && !user.uid.is_root()
        {
            return Ok(Some(ServerUser { uid: user.uid, gid: user.gid, name: user.name }));
        }
    }
    Err(EmbeddedError::NoServerUser { data_dir: data_dir.to_path_buf() })
}

/// Lets the server's user try to stand in the folder and to run the binary: the kernel knows best whether it may.
pub(super) async fn check_reach(
    data_dir: &Path,
    binaries: &Binaries,
    user: Option<&ServerUser>,
) -> Result<(), EmbeddedError> {
    let Some(user) = user else { return Ok(()) };
    let postgres = binaries.dir.join("postgres");
    for (path, folder) in [(&postgres, Path::new("/")), (&data_dir.to_path_buf(), data_dir)] {
        let mut job = Job::new(&postgres, Some(user));
        job.arg("-V").current_dir(folder);
        match job.output().await {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(EmbeddedError::Unreachable {
                    path: path.clone(),
                    blocked_at: blocking_ancestor(path, user),
                    user: user.name.clone(),
                });
            }
            result => result.during(format!("running {} as {}", postgres.display(), user.name))?,
        };
    }
    Ok(())
}

/// The outermost folder on the way to `path` that its mode closes to the user.
fn blocking_ancestor(path: &Path, user: &ServerUser) -> Option<PathBuf> {
    let ancestors: Vec<&Path> = path.ancestors().collect();
    ancestors.into_iter().rev().find_map(|folder| {
        let metadata = folder.metadata().ok()?;
        let bit = if metadata.uid() == user.uid.as_raw() {
            0o100
        } else if metadata.gid() == user.gid.as_raw() {
            0o010
        } else {
            0o001
        };
        (metadata.mode() & bit == 0).then(|| folder.to_path_buf())
    })
}

/// Makes a folder that only the server's user can enter. It must not be there yet.
pub(super) fn make_private_dir(path: &Path, user: Option<&ServerUser>) -> io::Result<()> {
    std::fs::DirBuilder::new().mode(0o700).create(path)?;
    own_private_dir(path, user)
}

/// Gives an existing folder to the server's user alone.
pub(super) fn own_private_dir(path: &Path, user: Option<&ServerUser>) -> io::Result<()> {
    if let Some(user) = user {
        std::os::unix::fs::lchown(path, Some(user.uid.as_raw()), Some(user.gid.as_raw()))?;
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
}
