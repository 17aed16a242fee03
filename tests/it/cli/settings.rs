//! Settings as an operator gives them; their rules are tested beside the code.

use super::*;

#[tokio::test]
async fn a_wrong_setting_stops_every_command_with_its_name_source_and_reason() {
    for args in [&["serve"][..], &["migrate"], &["verify"], &["token", "list"], &["seed-keys", "rotate"], &["openapi"]]
    {
        let mut command = program(args);
        command.env("FAIRLEDGER_POOL_SIZE", "none");
        let words =
            ["setting pool-size (variable FAIRLEDGER_POOL_SIZE): must be a whole number from 1 to 1000, not \"none\""];
        done(command).await.refused(&words);
    }
}

#[tokio::test]
async fn a_flag_beats_a_variable_and_a_variable_beats_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("fairledger.toml");
    std::fs::write(&config, "pool-size = 0\nlock-timeout = '1ms'\n").unwrap();
    let with = |flags: &[&str], pool_size: &str| {
        let mut command = program(&["openapi"]);
        command.args(flags).env("FAIRLEDGER_CONFIG", &config).env("FAIRLEDGER_POOL_SIZE", pool_size);
        done(command)
    };
    with(&["--pool-size", "x"], "y").await.refused(&["(flag --pool-size)", "not \"x\""]);
    with(&[], "y").await.refused(&["(variable FAIRLEDGER_POOL_SIZE)", "not \"y\""]);
    with(&[], "").await.refused(&["(key pool-size of ", "not \"0\""]);
    with(&["--pool-size", "1"], "").await.refused(&["setting lock-timeout (key lock-timeout of "]);
    with(&["--pool-size", "1", "--lock-timeout", "1s"], "").await.succeeded();
    std::fs::write(&config, "pool_size = 3\n").unwrap();
    with(&[], "").await.refused(&["setting pool_size", "is not a setting"]);
}

#[tokio::test]
async fn a_secret_is_never_printed_i6() {
    const PASSWORD: &str = "hunter2hunter2";
    let entry = "k1:c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0cw==";
    // Nothing listens on port 1.
    let url = format!("postgres://someone:{PASSWORD}@127.0.0.1:1/x");
    let wrong_url = format!("mysql://someone:{PASSWORD}@127.0.0.1/x");
    for (url, args) in [
        (&url, &["--help"][..]),
        (&url, &["serve", "--help"]),
        (&url, &["serve", "--listen", "127.0.0.1:0", "--log", "trace"]),
        (&url, &["serve", "--listen", "127.0.0.1:0", "--migrate"]),
        (&url, &["migrate", "--log", "trace"]),
        (&url, &["seed-keys", "rotate"]),
        (&wrong_url, &["migrate"]),
        (&url, &["migrate", "--secret", "c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0cw=="]),
    ] {
        let mut command = program(args);
        command.env("DATABASE_URL", url).env("FAIRLEDGER_SEED_KEYS", entry).env("FAIRLEDGER_ACQUIRE_TIMEOUT", "1s");
        if !args.contains(&"--secret") {
            command.env("FAIRLEDGER_SECRET", &entry[3..]);
        }
        let done = done(command).await;
        let printed = format!("{}{}", done.out, done.err);
        assert!(!printed.is_empty());
        assert!(!printed.contains(PASSWORD) && !printed.contains(&entry[3..20]), "{args:?}: {printed}");
    }
}

#[tokio::test]
async fn the_description_of_the_api_is_printed() {
    let text = done(program(&["openapi"])).await.succeeded().out;
    let description: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(description, fairledger::http::openapi());
    assert!(description["paths"]["/v1/sessions"].is_object());
}
