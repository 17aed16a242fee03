//! TLS to PostgreSQL: `sslmode=verify-full` for the service, for commands and for the migrator, on a server with a certificate of this
//! test's own.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::time::Duration;

use fairledger::db::bootstrap::{DATABASE, OWNER, SERVICE, SUPERUSER};
use fairledger::embedded::{Embedded, find_binaries};
use rcgen::{CertificateParams, KeyPair};
use sqlx::{Connection as _, Executor as _};

use super::serve::SERVE;
use super::*;

/// Where the server listens, and what its certificate is for.
const NAMED: &str = "127.0.0.77";
/// Where it listens too.
const UNNAMED: &str = "127.0.0.78";

/// A certificate that is its own root, for one name or address.
fn certificate(name: &str) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec![name.to_owned()]).unwrap().self_signed(&key).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn url(role: &str, host: &str, root: &Path) -> String {
    let root = root.to_str().unwrap().replace('/', "%2F");
    format!("postgres://{role}@{host}:5432/{DATABASE}?sslmode=verify-full&sslrootcert={root}")
}

/// Gives the server a certificate and lets it speak TLS; false when it was built without.
async fn speak_tls(server: &Embedded, cluster: PathBuf, (certificate, key): (String, String)) -> bool {
    let mut admin = sqlx::PgConnection::connect(&server.url(SUPERUSER, "postgres")).await.unwrap();
    let owner = std::fs::metadata(&cluster).unwrap();
    for (name, text) in [("server.crt", certificate), ("server.key", key)] {
        let path = cluster.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    if let Err(error) = admin.execute("ALTER SYSTEM SET ssl = on").await {
        eprintln!("not tested, since this PostgreSQL knows no TLS: {error}");
        return false;
    }
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    while sqlx::query_scalar::<_, String>("SELECT current_setting('ssl')").fetch_one(&mut admin).await.unwrap() != "on"
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    true
}

#[tokio::test(flavor = "multi_thread")]
async fn with_verify_full_only_the_right_server_is_talked_to() {
    let db = TestDb::unmigrated().await;
    let (folder, data) = data_folder();
    let (certificate_text, key) = certificate(NAMED);
    let (right, wrong) = (folder.path().join("root.pem"), folder.path().join("other-root.pem"));
    std::fs::write(&right, &certificate_text).unwrap();
    std::fs::write(&wrong, certificate(NAMED).0).unwrap();

    let listens = format!("{NAMED},{UNNAMED}");
    let settings = [("fsync", "off"), ("listen_addresses", listens.as_str())];
    let server = Embedded::start(&data, &find_binaries(None).unwrap(), &settings).await.unwrap();
    let cluster = data.join("pg");
    let hba = cluster.join("pg_hba.conf");
    // The first rule that fits counts, and the private server's own refuse the network.
    let rules = "host all all 127.0.0.0/8 trust\n".to_owned() + &std::fs::read_to_string(&hba).unwrap();
    std::fs::write(&hba, rules).unwrap();
    let mut admin = sqlx::PgConnection::connect(&server.url(SUPERUSER, "postgres")).await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();

    let run = |args: &[&str], host: &str, root: &Path| {
        let mut command = on(&db, args);
        command.env("DATABASE_URL", url(SERVICE, host, root)).env("MIGRATE_DATABASE_URL", url(OWNER, host, root));
        done(command)
    };
    let all: [&[&str]; 3] = [&["migrate"], &["token", "list"], SERVE];
    for args in all {
        run(args, NAMED, &right).await.refused(&["TLS"]);
    }
    if !speak_tls(&server, cluster, (certificate_text, key)).await {
        return server.stop().await.unwrap();
    }
    for args in all {
        run(args, NAMED, &wrong).await.refused(&["invalid peer certificate"]);
        run(args, UNNAMED, &right).await.refused(&["not valid for name"]);
        run(args, NAMED, &folder.path().join("no-such-root.pem")).await.refused(&["no-such-root.pem"]);
    }
    run(&["migrate"], NAMED, &right).await.succeeded();
    run(&["migrate", "--check"], NAMED, &right).await.succeeded();
    run(&["token", "create", "--scope", "engine"], NAMED, &right).await.succeeded();
    let service = Service::spawn_at(&url(SERVICE, NAMED, &right), &db, &[], &[]);
    assert_eq!(http_client().get(service.url("/readyz")).send().await.unwrap().status().as_u16(), 200);
    let encrypted =
        "SELECT count(*) > 0 AND bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = $1";
    assert!(sqlx::query_scalar::<_, bool>(encrypted).bind(SERVICE).fetch_one(&mut admin).await.unwrap());
    drop(service);
    admin.close().await.unwrap();
    server.stop().await.unwrap();
}
