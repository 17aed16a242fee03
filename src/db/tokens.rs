//! Bearer tokens of the HTTP API, by their hashes.

use chrono::{DateTime, Utc};

use super::{Access, DbError, Tx, corrupt};

/// What a token may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// Spend tokens.
    Relay,
    /// Run sessions and take bets.
    Engine,
    /// Read history.
    Dispute,
    /// Everything.
    Admin,
}

impl Scope {
    /// The word stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Engine => "engine",
            Self::Dispute => "dispute",
            Self::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "relay" => Ok(Self::Relay),
            "engine" => Ok(Self::Engine),
            "dispute" => Ok(Self::Dispute),
            "admin" => Ok(Self::Admin),
            other => Err(format!("no scope is named {other:?}: relay, engine, dispute or admin")),
        }
    }
}

/// A token's row, for listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Its public name.
    pub token_id: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// The operator's note.
    pub label: Option<String>,
    /// When it was made.
    pub created_at: DateTime<Utc>,
    /// From when it is refused.
    pub expires_at: Option<DateTime<Utc>>,
    /// When it was revoked.
    pub revoked_at: Option<DateTime<Utc>>,
}

fn scopes(words: &[String]) -> Result<Vec<Scope>, DbError> {
    words.iter().map(|word| word.parse().map_err(|error: String| corrupt("token", error))).collect()
}

impl<A: Access> Tx<A> {
    /// What the token of a hash may do, when it is valid now.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn token_scopes(&mut self, token_hash: &[u8; 32]) -> Result<Option<Vec<Scope>>, DbError> {
        sqlx::query_scalar!(
            "SELECT scopes FROM fairledger.api_tokens
             WHERE token_hash = $1 AND revoked_at IS NULL AND coalesce(expires_at > clock_timestamp(), true)",
            token_hash.as_slice(),
        )
        .fetch_optional(&mut *self.inner)
        .await?
        .map(|words| scopes(&words))
        .transpose()
    }

    /// Every token, oldest first.
    ///
    /// # Errors
    /// Those of the database, and corruption.
    pub async fn tokens(&mut self) -> Result<Vec<TokenRow>, DbError> {
        sqlx::query!(
            "SELECT token_id, scopes, label, created_at, expires_at, revoked_at FROM fairledger.api_tokens ORDER BY created_at, token_id"
        )
        .fetch_all(&mut *self.inner)
        .await?
        .into_iter()
        .map(|row| {
            Ok(TokenRow {
                scopes: scopes(&row.scopes)?,
                token_id: row.token_id,
                label: row.label,
                created_at: row.created_at,
                expires_at: row.expires_at,
                revoked_at: row.revoked_at,
            })
        })
        .collect()
    }
}

impl Tx {
    /// Stores a token's hash.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn insert_token(
        &mut self,
        token_id: &str,
        token_hash: &[u8; 32],
        scopes: &[Scope],
        label: Option<&str>,
        expires_at: Option<DateTime<Utc>>,
    ) -> Result<(), DbError> {
        let words: Vec<String> = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
        let inserted = sqlx::query!(
            "INSERT INTO fairledger.api_tokens (token_id, token_hash, scopes, label, expires_at) VALUES ($1, $2, $3, $4, $5)",
            token_id,
            token_hash.as_slice(),
            &words,
            label,
            expires_at,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        super::decode::exactly_one("token", inserted)
    }

    /// Stores a token's hash, unless it is there already, revoked or not.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn ensure_token(
        &mut self,
        token_id: &str,
        token_hash: &[u8; 32],
        scopes: &[Scope],
        label: Option<&str>,
    ) -> Result<(), DbError> {
        let words: Vec<String> = scopes.iter().map(|scope| scope.as_str().to_owned()).collect();
        sqlx::query!(
            "INSERT INTO fairledger.api_tokens (token_id, token_hash, scopes, label) VALUES ($1, $2, $3, $4)
             ON CONFLICT (token_hash) DO NOTHING",
            token_id,
            token_hash.as_slice(),
            &words,
            label,
        )
        .execute(&mut *self.inner)
        .await?;
        Ok(())
    }

    /// Revokes a token; false when there is none of that name. Revoking again changes nothing.
    ///
    /// # Errors
    /// Those of the database.
    pub async fn revoke_token(&mut self, token_id: &str) -> Result<bool, DbError> {
        let revoked = sqlx::query!(
            "UPDATE fairledger.api_tokens SET revoked_at = coalesce(revoked_at, clock_timestamp()) WHERE token_id = $1",
            token_id,
        )
        .execute(&mut *self.inner)
        .await?
        .rows_affected();
        Ok(revoked == 1)
    }
}
