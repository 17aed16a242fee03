//! What happens around every request: its id, its log line, and the end of panics.
//!
//! Keeps I6 and I13: a log line has the method, the route's template, the status, the time it took, the request's id and the caller's
//! trace; never a path, a query, a body or another header.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{CACHE_CONTROL, CONNECTION};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use futures_util::FutureExt as _;
use tracing::Instrument as _;
use uuid::Uuid;

use crate::telemetry::{self, Caller};

use super::message::{Lent, Malformed};
use super::metrics::{Metrics, route_word};
use super::problem::{self, Problem};

/// Carries a request's id both ways.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The caller's place in a trace of its own.
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// The longest id that is taken from a caller.
const REQUEST_ID_CHARS_MAX: usize = 128;

/// The caller's id when it is well formed, else one of ours.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).filter(|id| {
        (1..=REQUEST_ID_CHARS_MAX).contains(&id.len())
            && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    });
    given.map_or_else(|| Uuid::new_v4().to_string(), str::to_owned)
}

/// What a well-formed `traceparent` (W3C Trace Context) says, which ties our log lines and spans to the caller's own.
fn caller(headers: &HeaderMap) -> Option<Caller<'_>> {
    let text = headers.get(TRACEPARENT)?.to_str().ok()?;
    let mut parts = text.split('-');
    let (version, trace_id, parent_id, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let hex = |part: &str, length: usize| {
        part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    };
    let some = |part: &str| part.bytes().any(|byte| byte != b'0');
    let well_formed = hex(version, 2) && hex(trace_id, 32) && hex(parent_id, 16) && hex(flags, 2);
    // Later versions may have more parts; this one has not, and ff is none.
    let version_fits = version != "ff" && (version != "00" || parts.next().is_none());
    let placed = well_formed && version_fits && some(trace_id) && some(parent_id);
    let sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
    placed.then_some(Caller { trace_id, parent_id, sampled })
}

/// The method as a word from a short list: a caller can make others up.
fn method_word(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        _ => "other",
    }
}

pub(super) async fn observe(State(metrics): State<Arc<Metrics>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    let request_id = request_id(request.headers());
    let _under_way = metrics.request_under_way();
    let method = method_word(request.method());
    let route = route_word(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str));
    let caller = caller(request.headers());
    let (trace_id, parent_id) = (caller.map(|caller| caller.trace_id), caller.map(|caller| caller.parent_id));
    let span = tracing::info_span!("request", method, route, request_id, trace_id, parent_id);
    telemetry::place(&span, caller);
    async {
        let lent = Lent::out_of(&mut request);
        // What a panic leaves behind is dropped with the request: transactions roll back, places are given back.
        let mut response = match request.extensions().get::<Malformed>() {
            Some(Malformed(detail)) => Problem::invalid("", detail).into_response(),
            None => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
                tracing::error!("a request panicked");
                Problem::internal().into_response()
            }),
        };
        let code = problem::fill_in(&mut response, &request_id).map(|code| code.as_str());
        let took = started.elapsed();
        let ends = match lent {
            Some(lent) => !lent.read_rest().await,
            None => false,
        };
        let headers = response.headers_mut();
        if ends {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Ok(id) = HeaderValue::from_str(&request_id) {
            headers.insert(REQUEST_ID, id);
        }
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
        metrics.answered(method, route, response.status(), code, took);
        let status = response.status().as_u16();
        let latency_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(status, code, latency_us, "answered");
        telemetry::answered(status, code);
        response
    }
    .instrument(span)
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_callers_id_is_taken_only_when_it_is_well_formed() {
        let id_of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(text.as_bytes()).unwrap());
            request_id(&headers)
        };
        for good in ["a", "Req-1_2.3", &"x".repeat(128)] {
            assert_eq!(id_of(good), good);
        }
        for bad in ["", "a b", "a\"b", "ä", "a/b", &"x".repeat(129)] {
            assert!(Uuid::parse_str(&id_of(bad)).is_ok(), "{bad:?}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }

    #[test]
    fn a_callers_trace_is_taken_only_when_it_is_well_formed() {
        let trace_of = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, HeaderValue::from_str(text).unwrap());
            caller(&headers).map(|of| (of.trace_id.to_owned(), of.parent_id.to_owned(), of.sampled))
        };
        let (trace, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        for (good, sampled) in [
            (format!("00-{trace}-{parent}-01"), true),
            (format!("00-{trace}-{parent}-02"), false),
            (format!("cc-{trace}-{parent}-0b-more"), true),
        ] {
            assert_eq!(trace_of(&good), Some((trace.to_owned(), parent.to_owned(), sampled)), "{good}");
        }
        for bad in [
            String::new(),
            format!("ff-{trace}-{parent}-01"),
            format!("00-{trace}-{parent}"),
            format!("00-{trace}-{parent}-01-more"),
            format!("00-{}-{parent}-01", trace.to_uppercase()),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{trace}x-{parent}-01"),
        ] {
            assert_eq!(trace_of(&bad), None, "{bad}");
        }
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_problem_that_says_nothing_of_it() {
        async fn broken() -> &'static str {
            panic!("s3cret")
        }
        let metrics = Arc::new(Metrics::new());
        let router = axum::Router::new()
            .route("/broken", axum::routing::get(broken))
            .layer(axum::middleware::from_fn_with_state(metrics, observe));
        let request = axum::http::Request::get("/broken").header(REQUEST_ID, "r-1").body(axum::body::Body::empty());
        let response = tower::ServiceExt::oneshot(router, request.unwrap()).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[REQUEST_ID]),
            (500, &HeaderValue::from_static("r-1"))
        );
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((&body["code"], &body["requestId"]), (&"internal".into(), &"r-1".into()));
        assert!(!body.to_string().contains("s3cret"));
    }
}
