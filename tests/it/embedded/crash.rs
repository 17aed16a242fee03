//! Kill -9 of the server, of its parent, of both; and what such deaths leave behind.

use super::*;

/// An orphan takes half a second; the bound is for a machine that is busy with other tests.
const GONE_MAX: Duration = Duration::from_secs(10);

#[tokio::test]
async fn the_death_of_the_server_is_seen_and_the_folder_can_be_started_again() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    let exited = server.exited();
    remember(&mut connect(&server).await, 1).await;
    kill9(server.pid());
    let status = tokio::time::timeout(GONE_MAX, exited).await.expect("seen in time").expect("its status is known");
    assert!(!status.success());

    // At once, while processes of the dead server may still be attached to its memory.
    let again = start(folder.path()).await.unwrap();
    assert_eq!(remembered(&mut connect(&again).await).await, [1]);
    again.stop().await.unwrap();
    assert!(matches!(server.stop().await, Err(EmbeddedError::Died { .. })), "a crash is not taken for a stop");
}

#[tokio::test]
async fn the_server_of_a_killed_parent_ends_and_its_commits_stay() {
    let folder = folder();
    let parent = Parent::start(folder.path());
    let server_pid = parent.server_pid;
    let url = running_url(folder.path(), "fairledger_owner", "fairledger").await.unwrap().unwrap();
    let mut connection = connect_url(&url).await;
    remember(&mut connection, 1).await;
    // Not committed when its parent dies.
    let mut open = connection.begin().await.unwrap();
    sqlx::query("INSERT INTO memory VALUES (2)").execute(&mut *open).await.unwrap();
    parent.kill9();
    await_gone(server_pid, GONE_MAX).await;

    let server = start(folder.path()).await.unwrap();
    assert_eq!(remembered(&mut connect(&server).await).await, [1]);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_start_right_after_the_parent_was_killed_waits_for_the_old_server() {
    let folder = folder();
    let parent = Parent::start(folder.path());
    let old_pid = parent.server_pid;
    parent.kill9();
    let server = start(folder.path()).await.unwrap();
    assert!(!is_alive(old_pid));
    assert_ne!(server.pid(), old_pid);
    remember(&mut connect(&server).await, 1).await;
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_start_right_after_both_were_killed_recovers() {
    let folder = folder();
    for round in 0..3 {
        let parent = Parent::start(folder.path());
        let url = running_url(folder.path(), "fairledger_owner", "fairledger").await.unwrap().unwrap();
        remember(&mut connect_url(&url).await, round).await;
        // The server first, so that it cannot hear of its parent's death.
        kill9(parent.server_pid);
        parent.kill9();
    }
    let server = start(folder.path()).await.unwrap();
    assert_eq!(remembered(&mut connect(&server).await).await, [0, 1, 2]);
    server.stop().await.unwrap();
}

/// A process of the dead server that does not notice its end yet is still attached to the shared memory, and may write.
#[tokio::test]
async fn a_start_waits_for_the_last_process_of_a_killed_server() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    remember(&mut connect(&server).await, 1).await;
    let straggler = child_of(server.pid());
    signal(straggler, Signal::SIGSTOP);
    kill9(server.pid());
    server.exited().await;

    let log = folder.path().join("pg.log");
    let refusal_seen = async {
        while !std::fs::read_to_string(&log).unwrap().contains("pre-existing shared memory block") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        signal(straggler, Signal::SIGCONT);
    };
    let (again, ()) = tokio::join!(start(folder.path()), refusal_seen);
    let again = again.unwrap();
    assert!(!is_alive(straggler));
    assert_eq!(remembered(&mut connect(&again).await).await, [1]);
    again.stop().await.unwrap();
}

/// Any child of a process.
fn child_of(pid: u32) -> u32 {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().next().unwrap().parse().unwrap()
}

/// After a reboot, or in a container, the pid in the file may be that of any process.
#[tokio::test]
async fn a_pid_file_that_names_a_strangers_process_does_not_keep_the_server_from_starting() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    remember(&mut connect(&server).await, 1).await;
    let pid_file = folder.path().join("pg/postmaster.pid");
    let socket_lock = folder.path().join("run/.s.PGSQL.5432.lock");
    let (pid_text, lock_text) =
        (std::fs::read_to_string(&pid_file).unwrap(), std::fs::read_to_string(&socket_lock).unwrap());
    let old_pid = server.pid().to_string();
    kill9(server.pid());
    server.exited().await;

    // A process of the server's own user: PostgreSQL would take it for the postmaster.
    let owner = folder.path().join("pg").metadata().unwrap();
    let mut stranger = Command::new("sleep");
    std::os::unix::process::CommandExt::uid(&mut stranger, owner.uid());
    let mut stranger = stranger.arg("600").current_dir("/").spawn().unwrap();
    let new_pid = stranger.id().to_string();
    std::fs::write(&pid_file, pid_text.replacen(&old_pid, &new_pid, 1)).unwrap();
    std::fs::write(&socket_lock, lock_text.replacen(&old_pid, &new_pid, 1)).unwrap();

    let again = start(folder.path()).await;
    let untouched = stranger.try_wait().unwrap().is_none();
    stranger.kill().unwrap();
    stranger.wait().unwrap();
    let again = again.unwrap();
    assert!(untouched, "a stranger's process was signalled");
    assert_eq!(remembered(&mut connect(&again).await).await, [1]);
    again.stop().await.unwrap();
}

#[tokio::test]
async fn a_pid_file_of_a_dead_server_does_not_keep_the_next_from_starting() {
    let folder = folder();
    let server = start(folder.path()).await.unwrap();
    let pid_file = folder.path().join("pg/postmaster.pid");
    let text = std::fs::read_to_string(&pid_file).unwrap();
    server.stop().await.unwrap();
    std::fs::write(&pid_file, text).unwrap();
    std::os::unix::fs::chown(&pid_file, Some(folder.path().join("pg").metadata().unwrap().uid()), None).unwrap();
    start(folder.path()).await.unwrap().stop().await.unwrap();
}

#[tokio::test]
async fn an_unfinished_initdb_is_thrown_away() {
    let folder = folder();
    let unfinished = folder.path().join("pg.init");
    std::fs::create_dir_all(unfinished.join("base/1")).unwrap();
    std::fs::write(unfinished.join("PG_VERSION"), "15\n").unwrap();
    let server = start(folder.path()).await.unwrap();
    assert!(!unfinished.exists());
    server.stop().await.unwrap();
}
