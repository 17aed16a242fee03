//! Tokens that are spent.
//!
//! Keeps I1 (the primary key, and ON CONFLICT DO NOTHING with a second look), I2 (the window is judged by `clock_timestamp()` and the
//! key's state by the very statement that inserts) and I13: no statement here fails in a way that makes PostgreSQL log its values. A
//! bare INSERT that met a unique violation would, unless a function catches it.
//!
//! How a spend is inserted is decided in [`insert`], [`insert_if_all_fresh`] and [`insert_many`] alone. On Citus they become: take a transaction
//! id, read the keys, then INSERT ... VALUES ... ON CONFLICT DO NOTHING in the same transaction.

use sqlx::PgConnection;
use uuid::Uuid;

use super::keys::KeyState;
use super::{DbError, Tx, corrupt};

/// A token and who wants to spend it. Has no `Debug`, so that it cannot be logged.
#[derive(Clone, Copy)]
pub struct SpendRow<'a> {
    /// The key's name.
    pub key_id: &'a str,
    /// The token's nonce, 16 to 64 bytes.
    pub nonce: &'a [u8],
    /// The spender's name for this admission.
    pub spend_id: Uuid,
}

/// What is known of a token at one instant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// The key; none when there is no such key.
    pub key: Option<KeyStanding>,
    /// The spend that stands.
    pub spend_id: Option<Uuid>,
    /// The spend that stands was inserted by this very transaction.
    pub inserted_here: bool,
}

/// Where a key is: in its states and in its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyStanding {
    /// How far along it is.
    pub state: KeyState,
    /// Its window has not begun.
    pub early: bool,
    /// Its window has ended.
    pub late: bool,
}

/// Spends a token if it is not spent and its key accepts it this instant; gives whether it did. Does nothing unless the transaction is
/// READ COMMITTED: in any other it could miss that the key was closed or swept since the transaction began.
///
/// # Errors
/// Those of the database.
pub async fn insert(connection: &mut PgConnection, spend: &SpendRow<'_>) -> Result<bool, DbError> {
    let inserted = sqlx::query!(
        "INSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce)
         SELECT k.redeem_until, k.key_no, $3, $2 FROM fairledger.token_keys k
         WHERE k.key_id = $1 AND k.state = 'open' AND clock_timestamp() >= k.redeem_from AND clock_timestamp() < k.redeem_until
           AND current_setting('transaction_isolation') = 'read committed'
         ON CONFLICT DO NOTHING",
        spend.key_id,
        spend.nonce,
        spend.spend_id,
    )
    .execute(connection)
    .await
    .map_err(insert_error)?
    .rows_affected();
    Ok(inserted == 1)
}

/// Looks at tokens, each in the order given. One statement that reads the clock once: what it tells of them all is of one instant.
///
/// # Errors
/// Those of the database, and corruption.
pub async fn look(connection: &mut PgConnection, spends: &[SpendRow<'_>]) -> Result<Vec<Standing>, DbError> {
    let (key_ids, nonces, _) = columns(spends);
    let rows = sqlx::query!(
        r#"WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
           SELECT k.state AS "state?", coalesce(clock.now < k.redeem_from, false) AS "early!",
                  coalesce(clock.now >= k.redeem_until, false) AS "late!", s.spend_id AS "spend_id?",
                  coalesce(s.xmin = pg_current_xact_id_if_assigned()::xid, false) AS "inserted_here!"
           FROM clock, unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS t (key_id, nonce, place)
           LEFT JOIN fairledger.token_keys k ON k.key_id = t.key_id
           LEFT JOIN fairledger.spends s ON s.key_no = k.key_no AND s.nonce = t.nonce
           ORDER BY t.place"#,
        &key_ids as &[&str],
        &nonces as &[&[u8]],
    )
    .fetch_all(connection)
    .await?;
    if rows.len() != spends.len() {
        return Err(corrupt("spend", format!("{} rows for {} tokens", rows.len(), spends.len())));
    }
    rows.into_iter()
        .map(|row| {
            let state = row.state.as_deref().map(KeyState::parse).transpose()?;
            Ok(Standing {
                key: state.map(|state| KeyStanding { state, early: row.early, late: row.late }),
                spend_id: row.spend_id,
                inserted_here: row.inserted_here,
            })
        })
        .collect()
}

/// The isolation level of the transaction, in PostgreSQL's words.
///
/// # Errors
/// Those of the database.
pub async fn isolation(connection: &mut PgConnection) -> Result<String, DbError> {
    Ok(sqlx::query_scalar!(r#"SELECT current_setting('transaction_isolation') AS "level!""#)
        .fetch_one(connection)
        .await?)
}

/// Spends many tokens if none of them is spent and their keys accept all of them this instant; gives whether it did, and did nothing
/// otherwise. Takes a third less time than [`insert_many`], and wants the tokens as that does.
///
/// # Errors
/// Those of the database.
pub async fn insert_if_all_fresh(connection: &mut PgConnection, spends: &[SpendRow<'_>]) -> Result<bool, DbError> {
    debug_assert!(is_in_order(spends));
    let (key_ids, nonces, spend_ids) = columns(spends);
    sqlx::query_scalar!(
        r#"SELECT fairledger.spend_if_all_fresh($1, $2, $3) AS "inserted!""#,
        &key_ids as &[&str],
        &nonces as &[&[u8]],
        &spend_ids,
    )
    .fetch_one(connection)
    .await
    .map_err(insert_error)
}

/// Spends those of many tokens that are not spent and whose keys accept them this instant; gives how many. Every token at most
/// once, and in the order of all callers: sorted by key and nonce, or two batches would wait for each other.
///
/// # Errors
/// Those of the database.
pub async fn insert_many(connection: &mut PgConnection, spends: &[SpendRow<'_>]) -> Result<usize, DbError> {
    debug_assert!(is_in_order(spends));
    let (key_ids, nonces, spend_ids) = columns(spends);
    // No RETURNING: it costs a third of the throughput, and most batches are fresh throughout.
    let inserted = sqlx::query!(
        "INSERT INTO fairledger.spends (expires_at, key_no, spend_id, nonce)
         SELECT k.redeem_until, k.key_no, t.spend_id, t.nonce
         FROM unnest($1::text[], $2::bytea[], $3::uuid[]) WITH ORDINALITY AS t (key_id, nonce, spend_id, place)
         JOIN fairledger.token_keys k ON k.key_id = t.key_id
         WHERE k.state = 'open' AND clock_timestamp() >= k.redeem_from AND clock_timestamp() < k.redeem_until
         ORDER BY t.place
         ON CONFLICT DO NOTHING",
        &key_ids as &[&str],
        &nonces as &[&[u8]],
        &spend_ids,
    )
    .execute(connection)
    .await
    .map_err(insert_error)?
    .rows_affected();
    usize::try_from(inserted).map_err(|_| corrupt("spend", "more rows inserted than sent"))
}

impl Tx {
    /// Takes back a spend that stands under this very spend id, unless its key is swept; gives whether it did.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn delete_spend(&mut self, spend: &SpendRow<'_>) -> Result<bool, DbError> {
        let deleted = sqlx::query!(
            "DELETE FROM fairledger.spends s USING fairledger.token_keys k
             WHERE k.key_id = $1 AND k.state <> 'swept' AND s.key_no = k.key_no AND s.nonce = $2 AND s.spend_id = $3",
            spend.key_id,
            spend.nonce,
            spend.spend_id,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        match deleted {
            0 => Ok(false),
            1 => Ok(true),
            rows => Err(corrupt("spend", format!("{rows} rows of one token"))),
        }
    }
}

fn is_in_order(spends: &[SpendRow<'_>]) -> bool {
    spends.is_sorted_by(|a, b| (a.key_id, a.nonce) < (b.key_id, b.nonce))
}

fn columns<'a>(spends: &[SpendRow<'a>]) -> (Vec<&'a str>, Vec<&'a [u8]>, Vec<Uuid>) {
    let mut columns =
        (Vec::with_capacity(spends.len()), Vec::with_capacity(spends.len()), Vec::with_capacity(spends.len()));
    for spend in spends {
        columns.0.push(spend.key_id);
        columns.1.push(spend.nonce);
        columns.2.push(spend.spend_id);
    }
    columns
}

/// A statement that planned before a key's partition was attached, and took its snapshot after the key was there, finds no place for
/// the row. PostgreSQL reports (and logs) the key's number only. Tried again, it does.
fn insert_error(error: sqlx::Error) -> DbError {
    if let sqlx::Error::Database(error) = &error
        && error.code().as_deref() == Some("23514")
        && error.constraint().is_none()
    {
        return DbError::Conflict("the key's partition was attached this moment".into());
    }
    error.into()
}
