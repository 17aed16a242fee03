use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

/// Places of settings for a test.
#[derive(Default)]
struct Places {
    flags: Vec<(&'static str, &'static str)>,
    env: Vec<(&'static str, String)>,
    file: Option<PathBuf>,
}

impl Places {
    fn load(self) -> Result<Settings, SettingError> {
        let flags = self.flags.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect();
        let env = self.env.into_iter().map(|(name, text)| (OsString::from(name), OsString::from(text)));
        Settings::load(&Sources::new(flags, self.file, env)?)
    }
}

fn env(name: &'static str, text: impl Into<String>) -> Places {
    Places { env: vec![(name, text.into())], ..Places::default() }
}

fn file(folder: &tempfile::TempDir, text: &str) -> PathBuf {
    let path = folder.path().join("fairledger.toml");
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn defaults_are_those_of_the_services() {
    let settings = Places::default().load().unwrap();
    assert_eq!(settings.seeds, SeedsSettings::default());
    assert_eq!(settings.history, HistorySettings::default());
    assert_eq!(settings.http, HttpSettings::default());
    assert_eq!(settings.roles, Roles::default());
    let (pool, default) = (settings.pool, PoolSettings::default());
    assert_eq!(pool.connections_max, default.connections_max);
    assert_eq!(pool.acquire_timeout, default.acquire_timeout);
    assert_eq!(pool.statement_timeout, default.statement_timeout);
    assert_eq!(pool.transaction_timeout, default.transaction_timeout);
    assert_eq!(pool.lock_timeout, default.lock_timeout);
    assert_eq!(pool.transaction_pooler, default.transaction_pooler);
    assert_eq!(settings.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(settings.data_dir, PathBuf::from("./fairledger-data"));
    assert!(settings.database_url.is_none() && settings.seed_keys.is_none() && !settings.require_database);
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "pool-size = 2\npending-max = 2\nidle-after = '2h'\nrequire-database = true\n");
    let places = Places {
        flags: vec![("pool-size", "4")],
        env: vec![("FAIRLEDGER_POOL_SIZE", "3".into()), ("FAIRLEDGER_PENDING_MAX", "3".into())],
        file: Some(path.clone()),
    };
    let settings = places.load().unwrap();
    assert_eq!(settings.pool.connections_max, 4);
    assert_eq!(settings.seeds.pending_max, 3);
    assert_eq!(settings.seeds.idle_after, Duration::from_secs(2 * 60 * 60));
    assert_eq!(settings.seeds.reservation_ttl, Duration::from_secs(60 * 60));
    assert!(settings.require_database);

    let named_by_variable = env("FAIRLEDGER_CONFIG", path.to_str().unwrap()).load().unwrap();
    assert_eq!(named_by_variable.pool.connections_max, 2);
}

#[test]
fn an_empty_variable_is_not_set() {
    assert!(env("DATABASE_URL", "").load().unwrap().database_url.is_none());
}

#[test]
fn a_wrong_setting_is_named_with_its_source_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [
        (
            env("FAIRLEDGER_LISTEN", "8080"),
            "setting listen (variable FAIRLEDGER_LISTEN): must be an IP address and a port",
        ),
        (env("FAIRLEDGER_POOL_SIZE", "0"), "must be a whole number from 1 to 1000, not \"0\""),
        (env("FAIRLEDGER_POOL_SIZE", "1001"), "must be a whole number from 1 to 1000"),
        (env("FAIRLEDGER_LOCK_TIMEOUT", "5"), "must be a whole number with a unit"),
        (env("FAIRLEDGER_LOCK_TIMEOUT", "9ms"), "must be 10ms to 1h"),
        (env("FAIRLEDGER_IDLE_AFTER", "367d"), "must be 100ms to 366d"),
        (env("FAIRLEDGER_REQUIRE_DATABASE", "yes"), "must be true or false"),
        (env("FAIRLEDGER_LOG", "info,fairledger=loud"), "setting log (variable FAIRLEDGER_LOG): must be a filter"),
        (env("FAIRLEDGER_LOG_FORMAT", "xml"), "must be auto, human or json"),
        (env("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"), "must be a URL such as http://localhost:4318"),
        (env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://u:p@c:4318"), "goes into OTEL_EXPORTER_OTLP_HEADERS"),
        (env("FAIRLEDGER_READ_ROLE", "fairledger_service"), "must be another role than service-role"),
        (env("FAIRLEDGER_SERVICE_ROLE", "r".repeat(64)), "at most 63 bytes"),
        (
            Places { flags: vec![("pending-max", "many")], ..Places::default() },
            "setting pending-max (flag --pending-max): must be a whole number from 1 to 1000, not \"many\"",
        ),
        (Places { file: Some(folder.path().join("none.toml")), ..Places::default() }, "none.toml): cannot be read"),
        (
            Places { file: Some(file(&folder, "pool-size = 'x'")), ..Places::default() },
            "setting pool-size (key pool-size of ",
        ),
    ];
    for (places, expected) in cases {
        let error = places.load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_key_of_the_file_that_is_no_setting_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (text, expected) in [
        ("pool_size = 3", "setting pool_size (file "),
        ("listen-file = 'x'", "setting listen-file (file "),
        ("[database]\nurl = 'x'", "setting database (file "),
        ("pool-size = 3.5", "must be a text, a whole number, true or false"),
        ("pool-size = 3\npool-size = 4", "line 2: "),
    ] {
        let error = Places { file: Some(file(&folder, text)), ..Places::default() }.load().unwrap_err().to_string();
        assert!(error.contains(expected), "{error:?} lacks {expected:?}");
    }
}

#[test]
fn a_secret_may_come_from_a_file_but_not_from_two_places_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, format!("{}\n", *KeyRing::generate_entry("k7"))).unwrap();
    let path_text = path.to_str().unwrap();
    let settings = env("FAIRLEDGER_SEED_KEYS_FILE", path_text).load().unwrap();
    assert_eq!(settings.seed_keys.unwrap().sealing_key_id(), "k7");
    let toml = file(&folder, &format!("seed-keys-file = '{path_text}'"));
    let settings = Places { file: Some(toml), ..Places::default() }.load().unwrap();
    assert_eq!(settings.seed_keys.unwrap().sealing_key_id(), "k7");

    let twice = Places {
        env: vec![
            ("FAIRLEDGER_SEED_KEYS_FILE", path_text.to_owned()),
            ("FAIRLEDGER_SEED_KEYS", KeyRing::generate_entry("k8").to_string()),
        ],
        ..Places::default()
    };
    let error = twice.load().unwrap_err();
    assert_eq!(error.origin, "variable FAIRLEDGER_SEED_KEYS");
    assert!(error.reason.contains("FAIRLEDGER_SEED_KEYS_FILE"), "{error}");

    std::fs::write(&path, " \n").unwrap();
    assert!(env("FAIRLEDGER_SECRET_FILE", path_text).load().unwrap_err().reason.ends_with("is empty"));
    std::fs::write(&path, "x".repeat(70_000)).unwrap();
    assert!(env("FAIRLEDGER_SECRET_FILE", path_text).load().unwrap_err().reason.contains("larger than"));
}

#[test]
fn a_secret_stands_in_no_error_and_no_debug_i6() {
    const SECRET: &str = "hunter2hunter2";
    let folder = tempfile::tempdir().unwrap();
    let in_file = |key: &str| {
        // The second one is a syntax error on the secret's own line.
        [format!("{key} = '{SECRET}'"), format!("{key} = '{SECRET}"), format!("{key} = {SECRET}")]
            .map(|text| Places { file: Some(file(&folder, &text)), ..Places::default() }.load().unwrap_err())
    };
    let mut errors = Vec::new();
    for definition in DEFINITIONS.iter().filter(|definition| definition.is_secret()) {
        errors.push(env(definition.env, SECRET).load().unwrap_err());
        errors.push(env(definition.env, format!("postgres://u:{SECRET}@host:port/x")).load().unwrap_err());
        errors.extend(in_file(definition.name));
    }
    assert!(errors.len() >= 25, "every secret was tried");
    for error in errors {
        assert!(!format!("{error} {error:?}").contains(SECRET), "{error}");
    }

    let entry = KeyRing::generate_entry("k1");
    let key = SigningKey::generate().to_hex();
    let secret = entry.strip_prefix("k1:").unwrap();
    let settings = Places {
        env: vec![
            ("DATABASE_URL", format!("postgres://u:{SECRET}@host/x")),
            ("FAIRLEDGER_SEED_KEYS", entry.to_string()),
            ("FAIRLEDGER_SECRET", secret.to_owned()),
            ("FAIRLEDGER_SIGNING_KEY", key.to_string()),
        ],
        ..Places::default()
    };
    let debug = format!("{:?}", settings.load().unwrap());
    for text in [SECRET, secret, &key[..64]] {
        assert!(!debug.contains(text), "{debug}");
    }
    assert!(debug.contains("k1") && debug.contains("DatabaseUrl(redacted)"), "{debug}");
}

#[test]
fn variables_that_no_setting_has_are_told() {
    let env = ["FAIRLEDGER_POOL_SIZ", "FAIRLEDGER_SECRET_FILE", "FAIRLEDGER_LISTEN_FILE", "FAIRLEDGER_CONFIG", "HOME"];
    let folder = tempfile::tempdir().unwrap();
    let path = file(&folder, "");
    let env = env.map(|name| (OsString::from(name), OsString::from(&path)));
    let sources = Sources::new(BTreeMap::new(), None, env).unwrap();
    assert_eq!(sources.unknown_variables().collect::<Vec<_>>(), ["FAIRLEDGER_LISTEN_FILE", "FAIRLEDGER_POOL_SIZ"]);
}

#[test]
fn times_have_one_form() {
    for (text, milliseconds) in [("1ms", 1), ("0s", 0), ("10s", 10_000), ("5m", 300_000), ("24h", 86_400_000)] {
        assert_eq!(parse_duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
    }
    for text in ["", "5", "s", "-1s", "1.5h", "1 s", "1w", "99999999999999999999s", "999999999999999999d"] {
        assert!(parse_duration(text).is_err(), "{text}");
    }
    for text in ["1ms", "1500ms", "10s", "90s", "2h", "366d"] {
        assert_eq!(duration_text(parse_duration(text).unwrap()), text);
    }
}

#[test]
fn the_secret_is_32_bytes_of_base64() {
    assert!(parse_secret("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=").is_ok());
    for text in ["", "AAAA", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", &"g".repeat(64), "k1:AAAA"] {
        assert!(parse_secret(text).is_err(), "{text}");
    }
}

/// Every variable that a document or a file for operators names is one of ours, so that none of them is set in vain.
#[test]
fn documents_name_no_variable_that_is_no_setting() {
    fn files(folder: &std::path::Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { files(&path, found) } else { found.push(path) }
        }
    }
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut documents = ["README.md", "Dockerfile", "docker-compose.yml"].map(|name| root.join(name)).to_vec();
    files(&root.join("docs"), &mut documents);
    files(&root.join("ops"), &mut documents);
    // What the build and the benchmarks read.
    let others = ["FAIRLEDGER_COMMIT", "FAIRLEDGER_BENCH_", CONFIG_ENV];
    let is_known = |name: &str| {
        let mut all = DEFINITIONS.iter();
        others.iter().any(|other| name.starts_with(other))
            || all.any(|one| one.env == name || (one.has_file() && name.strip_suffix("_FILE") == Some(one.env)))
    };
    let (mut named, mut unknown) = (0, Vec::new());
    for document in documents {
        let text = std::fs::read_to_string(&document).unwrap();
        for (at, _) in text.match_indices("FAIRLEDGER_") {
            let rest = &text[at..];
            let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
            let name = &rest[..end.unwrap_or(rest.len())];
            named += 1;
            if !is_known(name) {
                unknown.push(format!("{}: {name}", document.display()));
            }
        }
    }
    assert!(named > 30, "only {named} were found");
    assert!(unknown.is_empty(), "{unknown:#?}");
}
