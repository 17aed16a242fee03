//! What is installed beside the program, and what containers ask it.

use sqlx::Executor as _;

use super::*;

#[tokio::test]
async fn the_version_names_the_commit_and_the_schema() {
    let printed = done(program(&["--version"])).await.succeeded().out;
    let schema = fairledger::db::migrate::version_needed();
    assert!(printed.starts_with(&format!("fairledger {} (commit ", env!("CARGO_PKG_VERSION"))), "{printed}");
    assert!(printed.trim_end().ends_with(&format!(", schema {schema})")), "{printed}");
}

#[tokio::test]
async fn completions_are_made_for_each_shell_whatever_the_settings_are() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let mut command = program(&["completions", shell]);
        command.env("FAIRLEDGER_POOL_SIZE", "none");
        let printed = done(command).await.succeeded().out;
        for word in ["forget-player", "witness-dir", "seed-keys"] {
            assert!(printed.contains(word), "{shell} lacks {word}");
        }
    }
}

#[tokio::test]
async fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    done(program(&["man", "--out", folder.path().to_str().unwrap()])).await.succeeded();
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert_eq!(done(program(&["man"])).await.succeeded().out, page("fairledger.1"));
    assert!(page("fairledger.1").contains("Address and port of the HTTP API"));
    let help = done(program(&["-h"])).await.succeeded().out;
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let mut pages = 0;
    for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|command| *command != "help") {
        if folder.path().join(format!("fairledger-{command}.1")).exists() {
            assert!(page(&format!("fairledger-{command}.1")).contains(".SH SYNOPSIS"), "{command}");
            pages += 1;
        }
    }
    assert!(pages >= 15, "{help}");
    assert!(page("fairledger-token-create.1").contains("scope"));
}

#[tokio::test]
async fn health_tells_by_its_exit_code_whether_the_service_will_serve() {
    let db = TestDb::new().await;
    let service = Service::spawn(&db, &[], &[]);
    let address = service.base_url.trim_start_matches("http://").to_owned();
    let health = |args: &'static [&str]| {
        let mut command = program(args);
        command.env("FAIRLEDGER_LISTEN", &address);
        done(command)
    };
    assert!(health(&["health"]).await.succeeded().out.contains("ready"));
    assert!(health(&["health", "--alive"]).await.succeeded().out.contains("alive"));
    // Its rights are gone: it lives, and will not serve.
    db.connect_admin()
        .await
        .execute("REVOKE ALL ON ALL TABLES IN SCHEMA fairledger FROM fairledger_service")
        .await
        .unwrap();
    let mut asked = health(&["health"]).await;
    while asked.code == Some(0) {
        asked = health(&["health"]).await;
    }
    assert!(asked.out.contains("the database does not answer"), "{asked:#?}");
    health(&["health", "--alive"]).await.succeeded();
    drop(service);
    health(&["health"]).await.refused(&["does not answer"]);
}

fn write_pair(folder: &std::path::Path) {
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["ledger.example".to_owned()];
    let certificate = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    std::fs::write(folder.join("certificate.pem"), certificate.pem()).unwrap();
    std::fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
}

#[tokio::test]
async fn health_asks_over_tls_and_a_hang_up_makes_the_service_take_a_new_certificate() {
    let (db, folder) = (TestDb::new().await, tempfile::tempdir().unwrap());
    write_pair(folder.path());
    let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
    let env =
        [("FAIRLEDGER_TLS_CERTIFICATE", certificate.to_str().unwrap()), ("FAIRLEDGER_TLS_KEY", key.to_str().unwrap())];
    let service = Service::spawn(&db, &env, &[]);
    let address = service.base_url.split("//").nth(1).unwrap().to_owned();
    let health = || {
        let mut command = program(&["health"]);
        command.env("FAIRLEDGER_LISTEN", &address).envs(env);
        done(command)
    };
    assert!(health().await.succeeded().out.contains("ready"));

    // The service still shows the one that it has: it is not the one in the file.
    write_pair(folder.path());
    health().await.refused(&["does not answer", "certificate"]);
    let pid = nix::unistd::Pid::from_raw(service.pid().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGHUP).unwrap();
    while health().await.code != Some(0) {}

    // A client that does not speak TLS is not answered.
    let mut plain = program(&["health"]);
    plain.env("FAIRLEDGER_LISTEN", &address);
    done(plain).await.refused(&[]);
}
