//! From stored values to typed ones. A value that does not fit is corruption, never a default (I7).

use bigdecimal::BigDecimal;
use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::postgres::{PgHasArrayType, PgTypeInfo, PgValueFormat, PgValueRef};
use sqlx::{Decode, Postgres, Type};

use super::DbError;
use crate::gfs::json;
use crate::gfs::seed::{ClientSeed, Commitment, ServerSeed};

/// More than any request may send, so that nothing stored is refused.
const STORED: json::Limits = json::Limits { bytes: 1 << 20, depth: 24 };

/// The error for a stored row that does not fit.
pub(crate) fn corrupt(what: &'static str, detail: impl Into<String>) -> DbError {
    let detail = detail.into();
    tracing::error!(what, detail, "corrupt data");
    DbError::Corrupt { what, detail }
}

pub(super) fn commitment(what: &'static str, bytes: &[u8]) -> Result<Commitment, DbError> {
    let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| corrupt(what, "a commitment is not 32 bytes"))?;
    Ok(Commitment::from_bytes(bytes))
}

pub(super) fn client_seed(what: &'static str, text: &str) -> Result<ClientSeed, DbError> {
    ClientSeed::parse(text).map_err(|error| corrupt(what, format!("client seed: {error}")))
}

/// A revealed seed, checked against its commitment at every read.
pub(super) fn revealed_seed(what: &'static str, bytes: &[u8], commitment: &Commitment) -> Result<ServerSeed, DbError> {
    let bytes = <[u8; 32]>::try_from(bytes).map_err(|_| corrupt(what, "a server seed is not 32 bytes"))?;
    let seed = ServerSeed::from_bytes(&bytes);
    if seed.commitment() != *commitment {
        return Err(corrupt(what, format!("the revealed seed does not hash to its commitment {commitment}")));
    }
    Ok(seed)
}

pub(super) fn json(what: &'static str, text: &str) -> Result<Value, DbError> {
    json::parse(text.as_bytes(), STORED).map_err(|error| corrupt(what, format!("JSON: {error}")))
}

pub(super) fn json_opt(what: &'static str, text: Option<&str>) -> Result<Option<Value>, DbError> {
    text.map(|text| json(what, text)).transpose()
}

/// A time as PostgreSQL has it, which may be infinite or beyond every calendar: the driver's own decoding panics at those, and a row that
/// somebody forged must not end the look at all the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StoredTime {
    /// Microseconds since 2000-01-01T00:00:00Z.
    us: i64,
}

/// 2000-01-01T00:00:00Z in microseconds since 1970.
pub(super) const POSTGRES_EPOCH_US: i64 = 946_684_800_000_000;

/// 10000-01-01T00:00:00Z in microseconds since 1970: the end of what RFC 3339 can say.
const TIME_END_US: i64 = 253_402_300_800_000_000;

impl StoredTime {
    /// The time, where it is within the range that the schema's constraints allow: 1970 to 9999.
    pub(super) fn time(self, what: &'static str) -> Result<DateTime<Utc>, DbError> {
        let us = self.us.checked_add(POSTGRES_EPOCH_US).filter(|us| (0..TIME_END_US).contains(us));
        us.and_then(DateTime::from_timestamp_micros)
            .ok_or_else(|| corrupt(what, "a time outside the years 1970 to 9999"))
    }
}

impl Type<Postgres> for StoredTime {
    fn type_info() -> PgTypeInfo {
        <DateTime<Utc> as Type<Postgres>>::type_info()
    }
}

impl PgHasArrayType for StoredTime {
    fn array_type_info() -> PgTypeInfo {
        <DateTime<Utc> as PgHasArrayType>::array_type_info()
    }
}

impl<'r> Decode<'r, Postgres> for StoredTime {
    fn decode(value: PgValueRef<'r>) -> Result<Self, sqlx::error::BoxDynError> {
        match value.format() {
            PgValueFormat::Binary => Ok(Self { us: i64::from_be_bytes(value.as_bytes()?.try_into()?) }),
            PgValueFormat::Text => Err("a time in text form, which no statement here asks for".into()),
        }
    }
}

/// A time that may be absent.
pub(super) fn time_opt(what: &'static str, time: Option<StoredTime>) -> Result<Option<DateTime<Utc>>, DbError> {
    time.map(|time| time.time(what)).transpose()
}

/// An amount of money, never negative, with as many digits after the point as it was sent with: the driver's own form of a numeric loses them.
pub(super) fn money(what: &'static str, text: &str) -> Result<BigDecimal, DbError> {
    let amount: BigDecimal = text.parse().map_err(|_| corrupt(what, "an amount that is no decimal number"))?;
    if amount.sign() == bigdecimal::num_bigint::Sign::Minus {
        return Err(corrupt(what, "a negative amount"));
    }
    Ok(amount)
}

/// A count or nonce that the schema keeps from being negative.
pub(super) fn unsigned(what: &'static str, number: i64) -> Result<u64, DbError> {
    u64::try_from(number).map_err(|_| corrupt(what, "a negative number"))
}

/// The same for 32 bits.
pub(super) fn unsigned32(what: &'static str, number: i32) -> Result<u32, DbError> {
    u32::try_from(number).map_err(|_| corrupt(what, "a negative number"))
}

pub(super) fn array<const N: usize>(what: &'static str, bytes: &[u8]) -> Result<[u8; N], DbError> {
    bytes.try_into().map_err(|_| corrupt(what, format!("not {N} bytes")))
}

/// Exactly one row must have been touched by a statement whose row was locked or made in the same transaction.
pub(super) fn exactly_one(what: &'static str, rows: u64) -> Result<(), DbError> {
    if rows == 1 { Ok(()) } else { Err(corrupt(what, format!("{rows} rows where there must be one"))) }
}
