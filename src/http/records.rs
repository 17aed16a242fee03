//! The whole history, for dispute teams: queries by any filter, single bets, exports.
//!
//! Keeps I12: a page looks at so many rows at the most, and says where to go on. An export is read no faster than its client takes it, and
//! is cut off when that takes nothing.

use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::Stream;
use serde::Deserialize;
use tokio::sync::mpsc;
use tracing::Instrument as _;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, Dispute};
use super::input::{Nothing, Path, Query};
use super::openapi::problems;
use super::problem::Problem;
use super::serve::Cut;
use super::sessions::{Limit, limit};
use super::wire::{Digits, GivenTime, NonceDigits, SessionId};
use super::{App, ok};
use crate::gfs::seed::Commitment;
use crate::history::export::{ExportError, ExportRequest, ExportSink, SinkClosed};
use crate::history::format::Format;
use crate::history::model::{RecordFound, RecordPage};
use crate::history::{Filters, PageRequest};
use crate::seeds::model::BetStatus;
use crate::seeds::values::{BetRef, GameName, PlayerRef, Timestamp};

pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(export)).routes(routes!(record))
}

/// A query with all filters and some parameters of its own; serde cannot flatten one struct into another and refuse what is unknown.
macro_rules! filtered_query {
    ($name:ident { $($own:tt)* }) => {
        #[derive(Deserialize, IntoParams)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        #[into_params(parameter_in = Query)]
        struct $name {
            /// Bets of this session.
            #[param(value_type = Option<SessionId>, inline)]
            session_id: Option<SessionId>,
            /// Bets under this seed.
            #[param(value_type = Option<Commitment>, inline)]
            commitment: Option<Commitment>,
            /// The bet with this nonce; only with `commitment`.
            #[param(value_type = Option<NonceDigits>, inline)]
            nonce: Option<NonceDigits>,
            /// Bets on this game.
            #[param(value_type = Option<GameName>, inline)]
            game: Option<GameName>,
            /// Bets of all sessions of this player.
            #[param(value_type = Option<PlayerRef>, inline)]
            player_ref: Option<PlayerRef>,
            /// Bets of this reference, in any session.
            #[param(value_type = Option<BetRef>, inline)]
            bet_ref: Option<BetRef>,
            /// Bets taken at this time or later.
            #[param(value_type = Option<GivenTime>, inline)]
            from: Option<GivenTime>,
            /// Bets taken before this time.
            #[param(value_type = Option<GivenTime>, inline)]
            to: Option<GivenTime>,
            /// Bets in this state when they are read. A reservation past its time is void.
            #[param(value_type = Option<BetStatus>, inline)]
            status: Option<BetStatus>,
            $($own)*
        }

        impl $name {
            fn filters(&self) -> Filters {
                let time = |time: &Option<GivenTime>| time.map(|GivenTime(time)| Timestamp(time));
                Filters {
                    session_id: self.session_id.map(|SessionId(id)| id),
                    player_ref: self.player_ref.clone(),
                    commitment: self.commitment,
                    nonce: self.nonce.map(|Digits(nonce)| nonce),
                    bet_ref: self.bet_ref.clone(),
                    game: self.game.clone(),
                    status: self.status,
                    from: time(&self.from),
                    to: time(&self.to),
                }
            }
        }
    };
}

filtered_query!(ListQuery {
    /// `nextAfter` of the page before, with the same filters.
    after: Option<String>,
    /// Bets on the page at the most; 50 when absent.
    #[param(value_type = Option<Limit>, inline)]
    limit: Option<Limit>,
});

problems!(ListProblems: ANY TOKEN);

/// Bets by any filters
///
/// In one of two orders. With `sessionId`, `playerRef`, `commitment` or `betRef`: by session id, then seed, then nonce, the highest
/// first. Otherwise: by the time they were taken, then by place, the newest first. A page has every bet that fits and was taken before
/// `asOf`, which is the same for all pages of a query: nothing is missed or repeated however many bets arrive meanwhile. States
/// and settlements are shown as of each page's own snapshot.
///
/// For one page only about 20,000 rows are looked at. Where the filters leave few of them, a page may have fewer bets than `limit`, even
/// none, and yet have `nextAfter`: go on until it is absent.
#[utoipa::path(get, path = "/v1/records", tag = "history", operation_id = "listRecords", security(("bearer" = ["dispute"])),
    params(ListQuery), responses((status = 200, description = "A page", body = RecordPage), ListProblems))]
async fn list(access: Access<Dispute>, Query(query): Query<ListQuery>) -> Result<Response, Problem> {
    let request = PageRequest { filters: query.filters(), limit: limit(query.limit), after: query.after };
    let page = access.read(|app| async move { app.history().page(request).await }).await?;
    Ok(ok(&page))
}

filtered_query!(ExportQuery {
    /// `ndjson` or `csv`.
    #[param(value_type = Format, inline)]
    format: Format,
});

problems!(ExportProblems: ANY TOKEN);

/// Everything that fits, in one stream
///
/// The same filters and the same two orders as `/v1/records`, ascending. One snapshot. The first line is a header, the last one a
/// trailer with the number of records and the SHA-256 of all bytes before it. What ends otherwise is not whole: where the service can
/// still say so, in a line of type `failed`, and the transfer is broken off besides.
#[utoipa::path(get, path = "/v1/records/export", tag = "history", operation_id = "exportRecords", security(("bearer" = ["dispute"])),
    params(ExportQuery),
    responses((status = 200, description = "The stream", content(
        (String = "application/x-ndjson"), (String = "text/csv; charset=utf-8; header=present"))), ExportProblems))]
async fn export(
    access: Access<Dispute>,
    cut: Option<Extension<Cut>>,
    Query(query): Query<ExportQuery>,
) -> Result<Response, Problem> {
    let request = ExportRequest { filters: query.filters(), format: query.format, resume: None };
    let export = access.read(|app| async move { app.history().export(request).await }).await?;
    let (format, stall) = (export.format(), access.app().history().settings().export_stall);
    let (sender, receiver) = mpsc::channel(PIECES);
    let mut sink = ClientSink { sender, stall, cut: cut.map(|Extension(cut)| cut) };
    let task = async move {
        match export.write_to(&mut sink).await {
            Ok(records) => {
                tracing::info!(records, "exported");
                let _ = tokio::time::timeout(stall, sink.sender.send(Piece::End)).await;
            }
            Err(ExportError::Sink(error)) => tracing::info!(%error, "an export was given up"),
            Err(error) => tracing::warn!(%error, "an export broke off"),
        }
        // Its place among the requests under way is kept until here.
        drop(access);
    };
    tokio::spawn(task.instrument(tracing::Span::current()));
    let name = format!("attachment; filename=\"fairledger-export.{}\"", format.extension());
    let headers = [(CONTENT_TYPE, format.media_type()), (CONTENT_DISPOSITION, name.as_str())];
    Ok((headers, Body::from_stream(pieces(receiver))).into_response())
}

/// Pieces under way to the client.
const PIECES: usize = 2;

/// The longest piece, in bytes: what a client must take within the time that it may stall.
const PIECE_BYTES: usize = 64 * 1024;

/// What an export hands to its connection.
enum Piece {
    Bytes(Bytes),
    /// All that belongs to it was handed on.
    End,
}

/// Hands an export to the connection, piece by piece.
struct ClientSink {
    sender: mpsc::Sender<Piece>,
    stall: Duration,
    cut: Option<Cut>,
}

impl ExportSink for ClientSink {
    async fn take(&mut self, bytes: Vec<u8>, _records: u64) -> Result<(), SinkClosed> {
        let mut bytes = Bytes::from(bytes);
        while !bytes.is_empty() {
            let piece = bytes.split_to(bytes.len().min(PIECE_BYTES));
            match tokio::time::timeout(self.stall, self.sender.send(Piece::Bytes(piece))).await {
                Ok(sent) => sent.map_err(|_| SinkClosed)?,
                Err(_) => {
                    // The connection waits for its client, and would for ever.
                    if let Some(cut) = &self.cut {
                        cut.now();
                    }
                    return Err(SinkClosed);
                }
            }
        }
        Ok(())
    }
}

/// The body: whole only where the export says so. However else it ends, by a panic too, the transfer is broken off, since without that a
/// client could take it for whole.
fn pieces(receiver: mpsc::Receiver<Piece>) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    futures_util::stream::unfold(Some(receiver), |receiver| async {
        let mut receiver = receiver?;
        match receiver.recv().await {
            Some(Piece::Bytes(bytes)) => Some((Ok(bytes), Some(receiver))),
            Some(Piece::End) => None,
            None => {
                // Lets the connection send what it has: the line that says why.
                tokio::task::yield_now().await;
                Some((Err(std::io::Error::other("the export broke off")), None))
            }
        }
    })
}

/// The bet of a path.
#[derive(Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[into_params(parameter_in = Path)]
pub(super) struct RecordPath {
    /// Its seed's commitment.
    #[param(value_type = Commitment, inline)]
    pub(super) commitment: Commitment,
    /// Its nonce.
    #[param(value_type = NonceDigits, inline)]
    pub(super) nonce: NonceDigits,
}

problems!(RecordProblems: ANY TOKEN; BetNotFound);

/// One bet
///
/// By its seed's commitment and its nonce, in whatever session.
#[utoipa::path(get, path = "/v1/records/{commitment}/{nonce}", tag = "history", operation_id = "getRecord",
    security(("bearer" = ["dispute"])), params(RecordPath),
    responses((status = 200, description = "The bet", body = RecordFound), RecordProblems))]
async fn record(
    access: Access<Dispute>,
    Path(path): Path<RecordPath>,
    Query(Nothing {}): Query<Nothing>,
) -> Result<Response, Problem> {
    let Digits(nonce) = path.nonce;
    let found = access.read(|app| async move { app.history().bet(&path.commitment, nonce).await }).await?;
    Ok(ok(&found))
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    async fn body(pieces_sent: Vec<Piece>) -> Vec<Result<Bytes, std::io::Error>> {
        let (sender, receiver) = mpsc::channel(PIECES);
        let sending = async move {
            for piece in pieces_sent {
                sender.send(piece).await.unwrap();
            }
        };
        tokio::join!(sending, pieces(receiver).collect()).1
    }

    #[tokio::test]
    async fn a_body_is_whole_only_where_its_export_says_so() {
        let bytes = || Piece::Bytes(Bytes::from_static(b"line\n"));
        let whole = body(vec![bytes(), bytes(), Piece::End]).await;
        assert!(whole.len() == 2 && whole.iter().all(Result::is_ok), "{whole:?}");
        for sent in [vec![], vec![bytes(), bytes(), bytes()]] {
            let count = sent.len();
            let cut = body(sent).await;
            assert_eq!((cut.len(), cut.last().is_some_and(Result::is_err)), (count + 1, true), "{cut:?}");
        }
    }
}
