//! Unpacks the committed query metadata for sqlx's macros and ties the build to the migrations compiled into it.
//!
//! sqlx 0.9 wants one file for each checked query. The repository keeps one file for all, `sqlx-data.json`, because it reviews and
//! merges better; `scripts/sqlx-data` makes it. A build therefore needs no database.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{env, fs};

const METADATA: &str = "sqlx-data.json";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={METADATA}");
    // refinery embeds the folder; without this a new file would not be noticed.
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-env-changed=SQLX_OFFLINE_DIR");

    // A variable set by `cargo:rustc-env` beats the caller's, so whoever names a folder (scripts/sqlx-data) must be left alone.
    if env::var_os("SQLX_OFFLINE_DIR").is_some() || !Path::new(METADATA).exists() {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR for build scripts")?).join("sqlx");
    unpack(Path::new(METADATA), &out)
        .map_err(|error| format!("{METADATA}: {error}; make it again with scripts/sqlx-data"))?;
    println!("cargo:rustc-env=SQLX_OFFLINE=true");
    println!("cargo:rustc-env=SQLX_OFFLINE_DIR={}", out.display());
    Ok(())
}

/// Writes `query-<hash>.json` for every query into a folder made anew, so that a query that is gone leaves nothing behind.
fn unpack(metadata: &Path, out: &Path) -> Result<(), Box<dyn Error>> {
    let serde_json::Value::Object(mut entries) = serde_json::from_slice(&fs::read(metadata)?)? else {
        return Err("not a JSON object".into());
    };
    let database = entries.remove("db").ok_or("no \"db\"")?;
    if out.exists() {
        fs::remove_dir_all(out)?;
    }
    fs::create_dir_all(out)?;
    for (hash, mut entry) in entries {
        let file = out.join(format!("query-{hash}.json"));
        let fields = entry.as_object_mut().ok_or("an entry is not an object")?;
        fields.insert("db_name".into(), database.clone());
        fields.insert("hash".into(), hash.into());
        fs::write(file, serde_json::to_vec(&entry)?)?;
    }
    Ok(())
}
