//! Two services through a PgBouncer that pools by transaction, which is killed and started again.

use std::process::{Child, Command, Stdio};
use std::str::FromStr as _;
use std::sync::Arc;

use sqlx::Connection as _;
use sqlx::postgres::PgConnectOptions;

use super::*;
use crate::harness::Service;

/// Killed when dropped.
struct Bouncer {
    process: Child,
    folder: tempfile::TempDir,
    port: u16,
    /// The private server's socket is in a folder that no other user may enter.
    _proxy: Proxy,
}

impl Bouncer {
    /// In front of the server of a URL, with fewer connections than its clients have.
    async fn start(url: &str) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("flb")
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777))
            .tempdir()
            .unwrap();
        let proxy = Proxy::start(url).await;
        let server = PgConnectOptions::from_str(&proxy.url_as("any", "any")).unwrap();
        let port = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            listener.local_addr().unwrap().port()
        };
        let settings = format!(
            "[databases]\n* = user=fairledger_service host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\nserver_tls_sslmode = disable\npool_mode = transaction\ndefault_pool_size = 6\nmax_client_conn = 200\nignore_startup_parameters = \
             extra_float_digits\n",
            server.get_host(),
            server.get_port()
        );
        std::fs::write(folder.path().join("pgbouncer.ini"), settings).unwrap();
        let mut bouncer = Self { process: Self::spawn(&folder), folder, port, _proxy: proxy };
        bouncer.await_ready().await;
        bouncer
    }

    fn spawn(folder: &tempfile::TempDir) -> Child {
        let program = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "/usr/local/bin/pgbouncer"];
        let program = program.into_iter().find(|path| std::path::Path::new(path).exists());
        let mut command = Command::new(program.expect("pgbouncer must be installed for this test"));
        if nix::unistd::geteuid().is_root() {
            command.args(["-u", "nobody"]);
        }
        command.arg(folder.path().join("pgbouncer.ini")).stdin(Stdio::null());
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap()
    }

    async fn await_ready(&mut self) {
        while let Err(error) = PgConnection::connect(&format!("{}?sslmode=disable", self.url("template1"))).await {
            let log = std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(self.process.try_wait().unwrap().is_none(), "it ended: {error} {log}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://fairledger_service@127.0.0.1:{}/{database}", self.port)
    }

    async fn kill_and_start(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::spawn(&self.folder);
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_services_through_a_pooler_that_is_killed_lose_and_double_nothing_i1_i3_i9() {
    let db = TestDb::new().await;
    let token = db.admin_token().await;
    let mut bouncer = Bouncer::start(&db.service_url).await;
    let url = format!("{}?sslmode=disable", bouncer.url(&db.name));
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |witness: &tempfile::TempDir, join: &[&str]| {
        let env = [("FAIRLEDGER_WITNESS_DIR", witness.path().to_str().unwrap())];
        Service::spawn_at(&url, &db, &env, &[&["--transaction-pooler"], join].concat())
    };
    let services = [start(&first, &[]), start(&second, &["--witness-join"])];
    let callers: Vec<_> = services.iter().map(|service| Caller::new(service, &token)).collect();
    assert_eq!(callers[0].call("PUT", "/v1/keys/k", Some(json!({}))).await.0, 201);
    let session = callers[0].session().await;
    let told = Arc::new(Told::default());
    for _ in 0..3 {
        let players = (0..16).map(|player| {
            let (session, told, callers) = (session.clone(), Arc::clone(&told), callers.clone());
            async move {
                for _ in 0..12 {
                    let body = json!({ "commitment": session["commitment"], "betRef": Uuid::new_v4(), "game": "dice" });
                    let path = format!("/v1/sessions/{}/bets", id(&session));
                    let bet = Change { name: "bet", method: "POST", path, body };
                    let spent = Change { name: "spend", method: "POST", path: "/v1/spends".into(), body: spend() };
                    for change in [bet, spent] {
                        // The same to both: they agree.
                        for caller in [&callers[player % 2], &callers[(player + 1) % 2]] {
                            told.note(&change, &change.resolve(caller).await);
                        }
                    }
                }
            }
        });
        let killing = async {
            tokio::time::sleep(std::time::Duration::from_millis(60)).await;
            bouncer.kill_and_start().await;
        };
        tokio::join!(futures_util::future::join_all(players), killing);
    }
    told.prove(&mut db.owner().await).await;
    for service in &services {
        assert!(!service.logs().contains("QUARANTINE"), "{}", service.logs());
    }
}
