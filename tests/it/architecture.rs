//! The layout that `docs/ARCHITECTURE.md` states, held against the source.

use std::fs;
use std::path::{Path, PathBuf};

/// Every Rust file below a folder, with its text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    assert!(!found.is_empty(), "{} has no source", folder.display());
    found
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Names the lines that are code and that a condition holds for, outside the given folders of `src`.
fn lines_outside(allowed: &[&str], offends: impl Fn(&str) -> bool) -> Vec<String> {
    let mut offending = Vec::new();
    for (path, text) in sources(&src()) {
        let name = path.strip_prefix(src()).unwrap().display().to_string();
        if allowed.iter().any(|allowed| name.starts_with(allowed)) {
            continue;
        }
        for (line, number) in text.lines().zip(1..) {
            if !line.trim_start().starts_with("//") && offends(line) {
                offending.push(format!("{name}:{number}: {}", line.trim()));
            }
        }
    }
    offending
}

#[test]
fn sql_stands_only_in_src_db() {
    let statement = |line: &str| {
        let verbs = [
            "SELECT ",
            "INSERT INTO ",
            "UPDATE fairledger",
            "DELETE FROM ",
            "CREATE TABLE",
            "CREATE ROLE",
            "GRANT ",
            "sqlx::query",
        ];
        verbs.iter().any(|verb| line.contains(verb))
    };
    // A message may quote a statement for an operator to run; a statement that runs has a driver beside it.
    let offending = lines_outside(&["db/"], statement);
    assert!(offending.is_empty(), "{offending:#?}");
    assert!(!lines_outside(&["http/"], statement).is_empty(), "the scan finds none at all");
}

#[test]
fn axum_stands_only_in_src_http() {
    let offending = lines_outside(&["http/"], |line| line.contains("axum"));
    assert!(offending.is_empty(), "{offending:#?}");
    assert!(!lines_outside(&["db/"], |line| line.contains("axum")).is_empty(), "the scan finds none at all");
}

#[test]
fn unsafe_code_stands_only_in_the_supervisor() {
    let offending =
        lines_outside(&["embedded/"], |line| line.contains("unsafe ") || line.contains("allow(unsafe_code)"));
    assert!(offending.is_empty(), "{offending:#?}");
}

/// Each folder with the modules of ours that it may not use: those below it in the table.
#[test]
fn arrows_point_down() {
    let forbidden = [
        ("gfs/", ["db", "seeds", "ledger", "history", "http", "cli", "config", "embedded", "telemetry"].as_slice()),
        ("db/", &["seeds", "ledger", "history", "http", "cli", "config", "embedded", "telemetry"]),
        ("seeds/", &["ledger", "history", "http", "cli", "config", "embedded", "telemetry"]),
        ("ledger/", &["seeds", "history", "http", "cli", "config", "embedded", "telemetry"]),
        ("history/", &["ledger", "http", "cli", "config", "embedded", "telemetry"]),
        ("http/", &["cli", "config", "embedded"]),
    ];
    let mut offending = Vec::new();
    for (folder, modules) in forbidden {
        for (path, text) in sources(&src().join(folder)) {
            for module in modules {
                if text.contains(&format!("crate::{module}::")) || text.contains(&format!("use crate::{module};")) {
                    offending.push(format!("{}: crate::{module}", path.display()));
                }
            }
        }
    }
    assert!(offending.is_empty(), "{offending:#?}");
}

/// A token's text is compared with nothing, so that no comparison can tell how much of it was right: it is hashed, and the hash looked up.
#[test]
fn a_token_is_known_by_its_hash_alone_i6() {
    let compares = |line: &str| ["==", "!=", ".eq(", ".cmp("].iter().any(|word| line.contains(word));
    let offending = lines_outside(&[], |line| line.contains("expose()") && compares(line) && !line.contains("assert"));
    assert!(offending.is_empty(), "{offending:#?}");
    let auth = fs::read_to_string(src().join("http/auth.rs")).unwrap();
    let (before, _) = auth.split_once("pub struct ApiToken(").unwrap();
    assert!(!before.lines().next_back().unwrap_or_default().contains("derive"), "ApiToken can be compared");
    assert!(!auth.contains("PartialEq for ApiToken"), "ApiToken can be compared");
    let statements = fs::read_to_string(src().join("db/tokens.rs")).unwrap();
    assert!(
        !statements.contains("token_hash LIKE") && statements.contains("token_hash = $"),
        "not looked up by its hash"
    );
}
