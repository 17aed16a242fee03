//! What the history costs at size.
use fairledger::db::rights::Roles;
use fairledger::db::{Datastore, PoolSettings, bootstrap, migrate};
use fairledger::embedded::{Embedded, find_binaries};
use fairledger::seeds::{KeyRing, Seeds, SeedsSettings, ServiceSecret};
use std::error::Error;
mod fill;
type Done<T> = Result<T, Box<dyn Error + Send + Sync>>;
fn setting<T: std::str::FromStr>(name: &str, default: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}
fn main() -> Done<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let server = Embedded::start(std::path::Path::new("/tmp/fillpg"), &find_binaries(None)?, &[]).await?;
        bootstrap::private_server(&server.url(bootstrap::SUPERUSER, "postgres")).await?;
        let owner_url = server.url(bootstrap::OWNER, bootstrap::DATABASE);
        migrate::run(&owner_url, &Roles::default()).await?;
        let entry = KeyRing::generate_entry("k1");
        std::fs::write("/tmp/fillpg-keys", entry.as_bytes())?;
        let ring = KeyRing::parse(&entry)?;
        let store =
            Datastore::connect(&server.url(bootstrap::SERVICE, bootstrap::DATABASE), &PoolSettings::default()).await?;
        Seeds::start(store, KeyRing::parse(&entry)?, ServiceSecret::new([0; 32]), None, SeedsSettings::default())
            .await?;
        let started = std::time::Instant::now();
        fill::fill(
            &owner_url,
            ring,
            fill::Filling {
                records: setting("RECORDS", 1_000_000),
                bets_per_seed: setting("PER_SEED", 500),
                dice_only: true,
            },
        )
        .await?;
        println!("{:?}", started.elapsed());
        println!("{}", server.url(bootstrap::SUPERUSER, bootstrap::DATABASE));
        tokio::time::sleep(std::time::Duration::from_secs(setting("SLEEP", 0))).await;
        server.stop().await?;
        Ok(())
    })
}
