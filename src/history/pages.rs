//! Pages of a query, their tokens, and single bets.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::filters::Filters;
use super::model::{RecordFound, RecordPage};
use super::walk::Walk;
use super::{History, HistoryError, Looking};
use crate::db::bets::BetKey;
use crate::db::history::{Direction, Position};
use crate::gfs::seed::Commitment;
use crate::seeds::model::BetAnswer;
use crate::seeds::values::Timestamp;
use crate::seeds::{PAGE_MAX, bet_answer};

/// What page tokens are sealed for.
const PURPOSE: &str = "page of the history";

/// `asOf`, the position's time, session, seed and nonce.
const TOKEN_BYTES: usize = 8 + 8 + 16 + 4 + 8;

/// A page of a query.
#[derive(Clone, Debug)]
pub struct PageRequest {
    /// What is asked for.
    pub filters: Filters,
    /// The token of the page before.
    pub after: Option<String>,
    /// Bets at the most.
    pub limit: u32,
}

/// What a page token holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Token {
    as_of: DateTime<Utc>,
    position: Position,
}

impl Token {
    fn to_bytes(self) -> Vec<u8> {
        let Self { as_of, position: Position { key, taken_at } } = self;
        [
            as_of.timestamp_micros().to_be_bytes().as_slice(),
            &taken_at.timestamp_micros().to_be_bytes(),
            key.session_id.as_bytes(),
            &key.seed_no.to_be_bytes(),
            &key.nonce.to_be_bytes(),
        ]
        .concat()
    }

    fn from_bytes(bytes: &[u8; TOKEN_BYTES]) -> Option<Self> {
        let (as_of, rest) = bytes.split_first_chunk::<8>()?;
        let (taken_at, rest) = rest.split_first_chunk::<8>()?;
        let (session_id, rest) = rest.split_first_chunk::<16>()?;
        let (seed_no, rest) = rest.split_first_chunk::<4>()?;
        let (nonce, _) = rest.split_first_chunk::<8>()?;
        let time = |bytes: &[u8; 8]| DateTime::from_timestamp_micros(i64::from_be_bytes(*bytes));
        let key = BetKey {
            session_id: Uuid::from_bytes(*session_id),
            seed_no: i32::from_be_bytes(*seed_no),
            nonce: u64::from_be_bytes(*nonce),
        };
        Some(Self { as_of: time(as_of)?, position: Position { key, taken_at: time(taken_at)? } })
    }
}

impl History {
    /// A page of bets, newest or highest first: see [`Filters::order`].
    ///
    /// # Errors
    /// [`HistoryError::Invalid`] for filters that do not fit together, or a token that is not of this query; [`HistoryError::Behind`]; and
    /// the database's.
    pub async fn page(&self, request: PageRequest) -> Result<RecordPage, HistoryError> {
        let filters = request.filters.checked()?;
        let context = filters.canonical();
        let token = request.after.as_deref().map(|text| self.read_token(&context, text)).transpose()?;
        let limit = request.limit.clamp(1, PAGE_MAX) as usize;
        let mut looking = self.look("history.page").await?;
        let as_of = match token {
            Some(token) if self.reader().is_replica() && looking.as_of < token.as_of => {
                looking.tx.rollback().await;
                return Err(HistoryError::Behind);
            }
            Some(token) => token.as_of,
            None => looking.as_of,
        };
        let beyond = token.map(|token| token.position);
        let tx = &mut looking.tx;
        let mut walk = Walk::begin(tx, &filters, Direction::Descending, as_of, beyond).await?;
        let found = walk.find(tx, limit, self.settings().examined_max).await?;
        let keys: Vec<BetKey> = found.positions.iter().map(|position| position.key).collect();
        let records = answers(&mut looking, &keys).await?;
        let behind_ms = looking.behind_ms(as_of);
        looking.tx.rollback().await;
        let next_after = found.next.map(|position| {
            self.inner.secret.seal_token(PURPOSE, context.as_bytes(), &Token { as_of, position }.to_bytes())
        });
        Ok(RecordPage { records, next_after, as_of: Timestamp(as_of), behind_ms })
    }

    fn read_token(&self, context: &str, text: &str) -> Result<Token, HistoryError> {
        let bytes = self.inner.secret.open_token::<TOKEN_BYTES>(PURPOSE, context.as_bytes(), text);
        bytes
            .and_then(|bytes| Token::from_bytes(&bytes))
            .ok_or_else(|| HistoryError::invalid("after", "is not a page token of a query with these filters"))
    }

    /// One bet by its seed's commitment and its nonce.
    ///
    /// # Errors
    /// [`HistoryError::BetNotFound`]; and the database's.
    pub async fn bet(&self, commitment: &Commitment, nonce: u64) -> Result<RecordFound, HistoryError> {
        let mut looking = self.look("history.bet").await?;
        let bet = match looking.tx.find_commitment(commitment).await? {
            Some((session_id, seed_no)) => looking.tx.bet(&BetKey { session_id, seed_no, nonce }).await?,
            None => None,
        };
        let bet = bet.ok_or(HistoryError::BetNotFound)?;
        let bet = bet_answer(&looking.as_it_was(bet), false);
        let (as_of, behind_ms) = (Timestamp(looking.as_of), looking.behind_ms(looking.as_of));
        looking.tx.rollback().await;
        Ok(RecordFound { bet, as_of, behind_ms })
    }
}

async fn answers(looking: &mut Looking, keys: &[BetKey]) -> Result<Vec<BetAnswer>, HistoryError> {
    let mut answers = Vec::with_capacity(keys.len());
    for (_, bet) in looking.tx.bets_at(keys).await? {
        answers.push(bet_answer(&looking.as_it_was(bet?), false));
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_its_bytes() {
        let time = |micros| DateTime::from_timestamp_micros(micros).unwrap();
        let key = BetKey { session_id: Uuid::from_u128(7), seed_no: 3, nonce: (1 << 53) - 1 };
        let token = Token {
            as_of: time(1_767_225_600_000_001),
            position: Position { key, taken_at: time(1_767_225_600_000_000) },
        };
        let bytes: [u8; TOKEN_BYTES] = token.to_bytes().try_into().unwrap();
        assert_eq!(Token::from_bytes(&bytes), Some(token));
    }
}
