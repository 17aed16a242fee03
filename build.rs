//! Unpacks the committed query metadata for sqlx's macros, ties the build to the migrations compiled into it, and says for `--version` what
//! is built: the commit and the schema's version.
//!
//! sqlx 0.9 wants one file for each checked query. The repository keeps one file for all, `sqlx-data.json`, because it reviews and
//! merges better; `scripts/sqlx-data` makes it. A build therefore needs no database.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const METADATA: &str = "sqlx-data.json";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={METADATA}");
    // refinery embeds the folder; without this a new file would not be noticed.
    println!("cargo:rerun-if-changed=migrations");
    println!("cargo:rerun-if-env-changed=SQLX_OFFLINE_DIR");
    println!("cargo:rustc-env=BUILD_COMMIT={}", commit()?);
    println!("cargo:rustc-env=BUILD_SCHEMA={}", schema_version()?);
    // Tests of full disks say that they are left out for whoever may not mount one.
    println!("cargo:rustc-check-cfg=cfg(may_mount)");
    if is_root() {
        println!("cargo:rustc-cfg=may_mount");
    }

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

#[cfg(target_os = "linux")]
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

#[cfg(not(target_os = "linux"))]
fn is_root() -> bool {
    false
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

/// The commit that is built: what the variable `FAIRLEDGER_COMMIT` says (an image is built without a repository), else what `cargo package`
/// wrote down, else git's. Unoptimised builds name none, so that a commit does not make developers build everything again.
fn commit() -> Result<String, Box<dyn Error>> {
    const OF_A_PACKAGE: &str = ".cargo_vcs_info.json";
    println!("cargo:rerun-if-env-changed=FAIRLEDGER_COMMIT");
    if let Some(commit) = env::var("FAIRLEDGER_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        return short(&commit);
    }
    if Path::new(OF_A_PACKAGE).exists() {
        println!("cargo:rerun-if-changed={OF_A_PACKAGE}");
        let info: serde_json::Value = serde_json::from_slice(&fs::read(OF_A_PACKAGE)?)?;
        return short(info["git"]["sha1"].as_str().unwrap_or("unknown"));
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return Ok("not named in a debug build".to_owned());
    }
    // A repository that this folder merely lies in is not ours.
    let Some(commit) = Path::new(".git").exists().then(|| git(&["rev-parse", "HEAD"])).flatten() else {
        return Ok("unknown".to_owned());
    };
    // Written to by every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    short(&commit)
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}

fn short(commit: &str) -> Result<String, Box<dyn Error>> {
    if !commit.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(format!("{commit:?} is no commit").into());
    }
    Ok(commit.chars().take(12).collect())
}

/// The highest version among the migrations' files, `V<version>__<name>.sql`.
fn schema_version() -> Result<u32, Box<dyn Error>> {
    let mut highest = 0;
    for entry in fs::read_dir("migrations")? {
        let name = entry?.file_name();
        let version = name.to_str().and_then(|name| name.strip_prefix('V')?.split_once("__")?.0.parse().ok());
        highest = highest.max(version.unwrap_or(0));
    }
    Ok(highest)
}
