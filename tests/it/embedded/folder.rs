//! Whose the data folder is, where it stands, and what is in it already.

use super::*;

fn uid_of(pid: u32) -> u32 {
    std::fs::metadata(format!("/proc/{pid}")).unwrap().uid()
}

/// Where a running server's socket is, by its fifth line.
fn socket_dir(data_dir: &Path) -> PathBuf {
    std::fs::read_to_string(data_dir.join("pg/postmaster.pid")).unwrap().lines().nth(4).unwrap().into()
}

#[tokio::test]
async fn the_server_runs_as_us_or_for_root_as_the_owner_of_the_folder() {
    let plain = folder();
    let server = start(plain.path()).await.unwrap();
    let expected = if geteuid().is_root() {
        let user = |name| User::from_name(name).unwrap();
        user("postgres").or_else(|| user("nobody")).unwrap().uid
    } else {
        geteuid()
    };
    assert_eq!(uid_of(server.pid()), expected.as_raw());
    server.stop().await.unwrap();

    if geteuid().is_root() {
        let owned = folder();
        let nobody = User::from_name("nobody").unwrap().unwrap();
        std::os::unix::fs::chown(owned.path(), Some(nobody.uid.as_raw()), Some(nobody.gid.as_raw())).unwrap();
        for _ in 0..2 {
            let server = start(owned.path()).await.unwrap();
            assert_eq!(uid_of(server.pid()), nobody.uid.as_raw());
            let groups = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
            let groups = groups.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap().trim().to_owned();
            assert_eq!(groups, "", "root's groups were kept");
            server.stop().await.unwrap();
        }
        // The folder changed hands: the cluster's owner counts.
        std::os::unix::fs::chown(owned.path(), Some(0), Some(0)).unwrap();
        let server = start(owned.path()).await.unwrap();
        assert_eq!(uid_of(server.pid()), nobody.uid.as_raw());
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_private_data_folder_of_root_is_opened_for_passing_but_a_closed_one_above_it_is_reported() {
    let outer = folder();
    std::fs::set_permissions(outer.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    if geteuid().is_root() {
        let error = start(&outer.path().join("data")).await.unwrap_err();
        match &error {
            EmbeddedError::Unreachable { blocked_at, .. } => assert_eq!(blocked_at.as_deref(), Some(outer.path())),
            other => panic!("{other}"),
        }
        std::fs::remove_dir_all(outer.path().join("data")).unwrap();
    }
    start(outer.path()).await.unwrap().stop().await.unwrap();
    assert_eq!(outer.path().metadata().unwrap().mode() & 0o066, 0, "nobody else may list the folder or write to it");
}

#[tokio::test]
async fn a_folder_that_does_not_suit_a_socket_gets_one_elsewhere_and_it_is_cleared_away() {
    let outer = folder();
    for name in ["long".repeat(30), "comma, and space".to_owned()] {
        let data_dir = outer.path().join(name);
        let server = start(&data_dir).await.unwrap();
        let mut connection = connect(&server).await;
        remember(&mut connection, 1).await;
        let socket_dir = self::socket_dir(&data_dir);
        assert!(!socket_dir.starts_with(outer.path()), "{socket_dir:?}");
        let metadata = socket_dir.metadata().unwrap();
        assert_eq!((metadata.mode() & 0o777, metadata.uid()), (0o700, uid_of(server.pid())));
        let url = running_url(&data_dir, "fairledger_owner", "fairledger").await.unwrap().unwrap();
        assert_eq!(remembered(&mut connect_url(&url).await).await, [1]);
        server.stop().await.unwrap();
        assert!(!socket_dir.exists());

        // After a crash of everything the next start clears up.
        let parent = Parent::start(&data_dir);
        let left = self::socket_dir(&data_dir);
        kill9(parent.server_pid);
        parent.kill9();
        assert!(left.exists());
        let server = start(&data_dir).await.unwrap();
        assert!(!left.exists());
        server.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_folder_of_another_major_version_is_refused_untouched() {
    let folder = folder();
    start(folder.path()).await.unwrap().stop().await.unwrap();
    let version_file = folder.path().join("pg/PG_VERSION");
    let version = std::fs::read_to_string(&version_file).unwrap();
    std::fs::write(&version_file, "12\n").unwrap();
    let log = std::fs::read(folder.path().join("pg.log")).unwrap();
    let error =
        Embedded::start(folder.path(), &find_binaries_for(folder.path(), None).unwrap(), QUICK).await.unwrap_err();
    match &error {
        EmbeddedError::WrongMajor { cluster_major, binaries_major, .. } => {
            assert_eq!((*cluster_major, *binaries_major), (12, binaries().major()));
        }
        other => panic!("{other}"),
    }
    assert!(error.to_string().contains("FAIRLEDGER_PG_BIN"), "{error}");
    assert_eq!(std::fs::read(folder.path().join("pg.log")).unwrap(), log, "the server was not even tried");
    std::fs::write(&version_file, version).unwrap();
    start(folder.path()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn something_else_in_the_clusters_place_is_refused_untouched() {
    let folder = folder();
    std::fs::create_dir(folder.path().join("pg")).unwrap();
    start(folder.path()).await.unwrap().stop().await.unwrap();

    let other = super::folder();
    std::fs::create_dir(other.path().join("pg")).unwrap();
    std::fs::write(other.path().join("pg/photo"), "x").unwrap();
    assert!(matches!(start(other.path()).await.unwrap_err(), EmbeddedError::NotACluster { .. }));
    assert!(other.path().join("pg/photo").exists());
}
