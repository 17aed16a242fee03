//! What a page reads: PostgreSQL's own counts, on many rows, with statistics and without.

use fairledger::db::{Datastore, PoolSettings, Reader};
use fairledger::history::{Filters, History, HistorySettings};
use fairledger::seeds::ServiceSecret;
use fairledger::seeds::model::BetStatus;
use fairledger::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};
use sqlx::{Connection as _, Executor as _, Row as _};
use uuid::Uuid;

use super::page;
use crate::harness::TestDb;

/// 10,000 sessions of 10 bets, 1,000 of them of one player; games and states of which some are rare.
pub const FILL: &str = "
    INSERT INTO fairledger.seed_keys (key_id, check_value) VALUES ('k0', decode(repeat('00', 57), 'hex'));
    INSERT INTO fairledger.sessions (session_id, player_ref, origin, epoch, created_at, active_at)
        SELECT md5('s' || s)::uuid, CASE WHEN s % 10 = 0 THEN 'whale' ELSE 'p' || s % 500 END, 'service', 0, t, t
        FROM generate_series(0, 9999) s, LATERAL (SELECT timestamptz '2026-01-01' + s * interval '1 minute') AS t (t);
    INSERT INTO fairledger.commitments (commitment, session_id, seed_no)
        SELECT sha256(session_id::text::bytea), session_id, 0 FROM fairledger.sessions;
    INSERT INTO fairledger.seeds (session_id, seed_no, commitment, sealed_seed, seal_key_id, client_seed, client_seed_source, client_seed_at,
            epoch, committed_at, live_at, status, next_nonce, pending)
        SELECT session_id, 0, sha256(session_id::text::bytea), decode(repeat('00', 73), 'hex'), 'k0', 'c', 'generated', created_at,
               0, created_at, created_at, 'live', 10, 0 FROM fairledger.sessions;
    INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, taken_at, result, cursor, expires_at)
        SELECT session_id, 0, n, 'ref-' || n, CASE WHEN late OR void THEN 'reservation' ELSE 'played' END,
               CASE WHEN extract(epoch FROM created_at)::bigint / 60 % 5000 = 7 THEN 'keno' ELSE 'dice' END, '{}',
               created_at + (n + 1) * interval '1 second',
               CASE WHEN late OR void THEN NULL ELSE '42.5'::json END, CASE WHEN late OR void THEN NULL ELSE 0 END,
               CASE WHEN late OR void THEN timestamptz '2099-01-01' END
        FROM fairledger.sessions, generate_series(0, 9) n,
             LATERAL (SELECT n = 9 AND extract(epoch FROM created_at)::bigint / 60 % 100 = 1,
                             n = 9 AND extract(epoch FROM created_at)::bigint / 60 % 100 = 2) AS odd (late, void);
    INSERT INTO fairledger.pending (session_id, seed_no, nonce, kind, taken_at, expires_at)
        SELECT session_id, seed_no, nonce, 'reservation', taken_at, expires_at FROM fairledger.bets
        WHERE kind = 'reservation' AND extract(epoch FROM taken_at)::bigint / 60 % 100 = 1;
    INSERT INTO fairledger.voids (session_id, seed_no, nonce, reason, taken_at, voided_at)
        SELECT session_id, seed_no, nonce, 'closed', taken_at, taken_at FROM fairledger.bets
        WHERE kind = 'reservation' AND extract(epoch FROM taken_at)::bigint / 60 % 100 = 2;
    UPDATE fairledger.seeds s SET pending = 1 FROM fairledger.pending p WHERE p.session_id = s.session_id;";

fn time(text: &str) -> Option<Timestamp> {
    Some(Timestamp(text.parse().unwrap()))
}

/// Filters by name.
fn queries(session_id: Uuid, commitment: &str) -> Vec<(&'static str, Filters)> {
    let none = Filters::default;
    let whale = || Some(PlayerRef::parse("whale").unwrap());
    let game = |name| Some(GameName::parse(name).unwrap());
    let (from, to) = (time("2026-01-03T00:00:00Z"), time("2026-01-04T00:00:00Z"));
    vec![
        ("nothing", none()),
        ("from and to", Filters { from, to, ..none() }),
        ("session", Filters { session_id: Some(session_id), ..none() }),
        ("commitment", Filters { commitment: Some(commitment.parse().unwrap()), ..none() }),
        ("nonce", Filters { commitment: Some(commitment.parse().unwrap()), nonce: Some(3), ..none() }),
        ("player", Filters { player_ref: whale(), ..none() }),
        ("reference", Filters { bet_ref: Some(BetRef::parse("ref-1").unwrap()), ..none() }),
        ("game", Filters { game: game("dice"), ..none() }),
        ("rare game", Filters { game: game("keno"), ..none() }),
        ("no game", Filters { game: game("x-none"), ..none() }),
        ("game and time", Filters { game: game("keno"), from, to, ..none() }),
        ("void", Filters { status: Some(BetStatus::Void), ..none() }),
        ("pending", Filters { status: Some(BetStatus::Pending), ..none() }),
        ("recorded", Filters { status: Some(BetStatus::Recorded), ..none() }),
        ("pending of a player", Filters { status: Some(BetStatus::Pending), player_ref: whale(), ..none() }),
        ("player and time", Filters { player_ref: whale(), from, to, ..none() }),
        (
            "session and reference",
            Filters { session_id: Some(session_id), bet_ref: Some(BetRef::parse("ref-1").unwrap()), ..none() },
        ),
    ]
}

async fn history(db: &TestDb) -> (Datastore, History) {
    let settings = PoolSettings { connections_max: 1, ..PoolSettings::default() };
    let store = Datastore::connect(&db.service_url, &settings).await.unwrap();
    let history = History::new(Reader::from(&store), ServiceSecret::new([7; 32]), HistorySettings::default());
    (store, history)
}

/// Scans of whole tables, and rows read by index, since the last reset. A connection tells what it did when it ends; before that whenever
/// it likes, so nobody else's may be open.
async fn counts(db: &TestDb) -> (i64, i64) {
    db.wait_until(
        "SELECT count(*) = 0 FROM pg_stat_activity
         WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'",
    )
    .await;
    let row = sqlx::query(
        "SELECT sum(t.seq_scan)::bigint, (SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'fairledger')
         FROM pg_stat_user_tables t WHERE t.schemaname = 'fairledger' AND t.relname NOT IN ('horizon', 'signing_keys')",
    )
    .fetch_one(&mut db.connect_admin().await)
    .await
    .unwrap();
    (row.get(0), row.get(1))
}

#[tokio::test]
async fn no_filter_reads_much_more_than_it_returns_at_any_depth_i12() {
    let db = TestDb::new().await;
    let mut owner = db.owner().await;
    owner.execute(FILL).await.unwrap();
    let (session_id, commitment): (Uuid, String) = sqlx::query_as(
        "SELECT session_id, encode(commitment, 'hex') FROM fairledger.seeds ORDER BY session_id OFFSET 5000 LIMIT 1",
    )
    .fetch_one(&mut owner)
    .await
    .unwrap();
    owner.close().await.unwrap();
    for analyzed in [false, true] {
        if analyzed {
            let mut owner = db.owner().await;
            owner.execute("ANALYZE").await.unwrap();
            owner.close().await.unwrap();
        }
        for (name, filters) in queries(session_id, &commitment) {
            let before = counts(&db).await;
            let (store, history) = history(&db).await;
            let (mut after, mut pages, mut records) = (None, 0, 0);
            // Often enough for plans to be kept, and deep.
            while pages < 12 {
                let page = page(&history, &filters, after, 50).await;
                records += page.records.len();
                pages += 1;
                after = page.next_after;
                if after.is_none() {
                    break;
                }
            }
            store.close().await;
            let now = counts(&db).await;
            let (scans, rows) = (now.0 - before.0, now.1 - before.1);
            let told = format!(
                "{name}, analyzed {analyzed}: {pages} pages of {records} records read {rows} rows, {scans} whole tables"
            );
            assert_eq!(scans, 0, "{told}");
            // A bet, its seed, its session and its end; and a few to find out where to look. A player's seeds are looked at one by one.
            let looked_at = if name.ends_with("player") || name.starts_with("player and") { 2_500 } else { 150 };
            assert!(rows <= i64::try_from(records).unwrap() * 6 + pages * looked_at, "{told}");
        }
    }
}
