//! Bets: what was bound when a nonce was handed out. Only ever inserted (I8).

use bigdecimal::BigDecimal;
use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use super::writer::BatchTx;
use super::{DbError, Tx, corrupt, decode};

/// How a bet gets its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetKind {
    /// At once.
    Played,
    /// Concealed until its round ends.
    Round,
    /// Owed by an outside game.
    Reservation,
}

impl BetKind {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Played => "played",
            Self::Round => "round",
            Self::Reservation => "reservation",
        }
    }

    pub(super) fn parse(text: &str) -> Result<Self, DbError> {
        match text {
            "played" => Ok(Self::Played),
            "round" => Ok(Self::Round),
            "reservation" => Ok(Self::Reservation),
            other => Err(corrupt("bet", format!("kind {other:?}"))),
        }
    }
}

/// Where a bet is: session, seed and nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BetKey {
    /// The session.
    pub session_id: Uuid,
    /// The seed's number in it.
    pub seed_no: i32,
    /// The nonce under the seed.
    pub nonce: u64,
}

impl BetKey {
    /// The nonce as PostgreSQL has it; nonces end below 2^53.
    pub(super) fn nonce_i64(&self) -> i64 {
        self.nonce.cast_signed()
    }
}

/// A signature and the key it was made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureRow {
    /// Ed25519 over the record's payload.
    pub signature: [u8; 64],
    /// The key's row.
    pub signing_key_no: i32,
}

/// A result as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultRow {
    /// Canonical JSON.
    pub result: String,
    /// The highest digest index used.
    pub cursor: u32,
    /// The record's signature, when a key was set.
    pub signature: Option<SignatureRow>,
}

/// The rules that an outside game bound its bet to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RulesRow {
    /// Name of the rules.
    pub id: String,
    /// Their SHA-256.
    pub sha256: [u8; 32],
    /// How many floats the game is given.
    pub floats: u32,
}

/// A bet to be stored. JSON is canonical text.
#[derive(Clone, Debug)]
pub struct NewBet<'a> {
    /// Where it is.
    pub key: BetKey,
    /// The caller's name for it.
    pub bet_ref: &'a str,
    /// How it gets its result.
    pub kind: BetKind,
    /// The game.
    pub game: &'a str,
    /// Its parameters, defaults filled in.
    pub params: &'a str,
    /// The player's choice.
    pub selection: Option<&'a str>,
    /// Amount staked.
    pub stake: Option<&'a BigDecimal>,
    /// Its currency.
    pub currency: Option<&'a str>,
    /// Whatever else was bound.
    pub context: Option<&'a str>,
    /// The rules of an outside game.
    pub rules: Option<&'a RulesRow>,
    /// When the nonce was handed out.
    pub taken_at: DateTime<Utc>,
    /// Until when a reservation may be recorded.
    pub expires_at: Option<DateTime<Utc>>,
    /// The result, when played at once.
    pub result: Option<&'a ResultRow>,
}

impl Tx {
    /// Stores a bet; false when the session has a bet of that reference already.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_bet(&mut self, bet: &NewBet<'_>) -> Result<bool, DbError> {
        insert_one(&mut self.inner, bet).await
    }
}

async fn insert_one(connection: &mut PgConnection, bet: &NewBet<'_>) -> Result<bool, DbError> {
    let signature = bet.result.and_then(|result| result.signature);
    let inserted = sqlx::query!(
        "INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, selection, stake, currency, context,
                 rules_id, rules_sha256, floats, taken_at, expires_at, result, cursor, signature, signing_key_no)
             VALUES ($1, $2, $3, $4, $5, $6, $7::text::json, $8::text::json, $9::text::numeric, $10, $11::text::json, $12, $13, $14, $15,
                 $16, $17::text::json, $18, $19, $20)
             ON CONFLICT (session_id, bet_ref) DO NOTHING",
        bet.key.session_id,
        bet.key.seed_no,
        bet.key.nonce_i64(),
        bet.bet_ref,
        bet.kind.as_str(),
        bet.game,
        bet.params,
        bet.selection,
        bet.stake.map(BigDecimal::to_plain_string),
        bet.currency,
        bet.context,
        bet.rules.map(|rules| rules.id.as_str()),
        bet.rules.map(|rules| rules.sha256.as_slice()),
        bet.rules.map(|rules| rules.floats.cast_signed()),
        bet.taken_at,
        bet.expires_at,
        bet.result.map(|result| result.result.as_str()),
        bet.result.map(|result| result.cursor.cast_signed()),
        signature.as_ref().map(|signature| signature.signature.as_slice()),
        signature.map(|signature| signature.signing_key_no),
    )
    .execute(connection)
    .await?
    .rows_affected();
    match inserted {
        0 | 1 => Ok(inserted == 1),
        rows => decode::exactly_one("bet", rows).map(|()| true),
    }
}

/// Many bets, column by column.
#[derive(Default)]
struct Columns<'a> {
    session_id: Vec<Uuid>,
    seed_no: Vec<i32>,
    nonce: Vec<i64>,
    bet_ref: Vec<&'a str>,
    kind: Vec<&'static str>,
    game: Vec<&'a str>,
    params: Vec<&'a str>,
    selection: Vec<Option<&'a str>>,
    stake: Vec<Option<String>>,
    currency: Vec<Option<&'a str>>,
    context: Vec<Option<&'a str>>,
    rules_id: Vec<Option<&'a str>>,
    rules_sha256: Vec<Option<&'a [u8]>>,
    floats: Vec<Option<i32>>,
    taken_at: Vec<DateTime<Utc>>,
    expires_at: Vec<Option<DateTime<Utc>>>,
    result: Vec<Option<&'a str>>,
    cursor: Vec<Option<i32>>,
    signature: Vec<Option<&'a [u8]>>,
    signing_key_no: Vec<Option<i32>>,
}

impl<'a> Columns<'a> {
    fn push(&mut self, bet: &NewBet<'a>) {
        let signature = bet.result.and_then(|result| result.signature.as_ref());
        self.session_id.push(bet.key.session_id);
        self.seed_no.push(bet.key.seed_no);
        self.nonce.push(bet.key.nonce_i64());
        self.bet_ref.push(bet.bet_ref);
        self.kind.push(bet.kind.as_str());
        self.game.push(bet.game);
        self.params.push(bet.params);
        self.selection.push(bet.selection);
        self.stake.push(bet.stake.map(BigDecimal::to_plain_string));
        self.currency.push(bet.currency);
        self.context.push(bet.context);
        self.rules_id.push(bet.rules.map(|rules| rules.id.as_str()));
        self.rules_sha256.push(bet.rules.map(|rules| rules.sha256.as_slice()));
        self.floats.push(bet.rules.map(|rules| rules.floats.cast_signed()));
        self.taken_at.push(bet.taken_at);
        self.expires_at.push(bet.expires_at);
        self.result.push(bet.result.map(|result| result.result.as_str()));
        self.cursor.push(bet.result.map(|result| result.cursor.cast_signed()));
        self.signature.push(signature.map(|signature| signature.signature.as_slice()));
        self.signing_key_no.push(signature.map(|signature| signature.signing_key_no));
    }
}

impl BatchTx<'_> {
    /// Stores many bets, by session and nonce; gives how many. Those whose session has a bet of the reference already are left out.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_bets(&mut self, bets: &[NewBet<'_>]) -> Result<usize, DbError> {
        // Twenty arrays of one element take twice the time.
        if let [only] = bets {
            return insert_one(self.connection(), only).await.map(usize::from);
        }
        let mut rows = Columns::default();
        bets.iter().for_each(|bet| rows.push(bet));
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.bets (session_id, seed_no, nonce, bet_ref, kind, game, params, selection, stake, currency, context,
                 rules_id, rules_sha256, floats, taken_at, expires_at, result, cursor, signature, signing_key_no)
             SELECT session_id, seed_no, nonce, bet_ref, kind, game, params::json, selection::json, stake::numeric, currency, context::json,
                 rules_id, rules_sha256, floats, taken_at, expires_at, result::json, cursor, signature, signing_key_no
             FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[],
                 $10::text[], $11::text[], $12::text[], $13::bytea[], $14::integer[], $15::timestamptz[], $16::timestamptz[],
                 $17::text[], $18::integer[], $19::bytea[], $20::integer[])
                 AS t (session_id, seed_no, nonce, bet_ref, kind, game, params, selection, stake, currency, context, rules_id,
                 rules_sha256, floats, taken_at, expires_at, result, cursor, signature, signing_key_no)
             ON CONFLICT (session_id, bet_ref) DO NOTHING",
            &rows.session_id,
            &rows.seed_no,
            &rows.nonce,
            &rows.bet_ref as &[&str],
            &rows.kind as &[&str],
            &rows.game as &[&str],
            &rows.params as &[&str],
            &rows.selection as &[Option<&str>],
            &rows.stake as &[Option<String>],
            &rows.currency as &[Option<&str>],
            &rows.context as &[Option<&str>],
            &rows.rules_id as &[Option<&str>],
            &rows.rules_sha256 as &[Option<&[u8]>],
            &rows.floats as &[Option<i32>],
            &rows.taken_at,
            &rows.expires_at as &[Option<DateTime<Utc>>],
            &rows.result as &[Option<&str>],
            &rows.cursor as &[Option<i32>],
            &rows.signature as &[Option<&[u8]>],
            &rows.signing_key_no as &[Option<i32>],
        )
        .execute(self.connection())
        .await?
        .rows_affected();
        usize::try_from(inserted).map_err(|_| corrupt("bet", "more rows inserted than sent"))
    }

    /// Whether each of many references, by session and in the order given, names a stored bet.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn known_refs(&mut self, refs: &[(Uuid, &str)]) -> Result<Vec<bool>, DbError> {
        let (session_ids, bet_refs): (Vec<Uuid>, Vec<&str>) = refs.iter().copied().unzip();
        let known = sqlx::query_scalar!(
            r#"SELECT b.bet_ref IS NOT NULL AS "known!"
               FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS t (session_id, bet_ref, place)
               LEFT JOIN fairledger.bets b ON b.session_id = t.session_id AND b.bet_ref = t.bet_ref
               ORDER BY t.place"#,
            &session_ids,
            &bet_refs as &[&str],
        )
        .fetch_all(self.connection())
        .await?;
        if known.len() == refs.len() {
            Ok(known)
        } else {
            Err(corrupt("bet", format!("{} rows for {} references", known.len(), refs.len())))
        }
    }
}
