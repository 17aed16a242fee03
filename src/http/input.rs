//! What a request brings: its body, its path, its query. Read strictly, in the order path, query, body.
//!
//! Keeps I12: a body is bounded in size, depth and the time it takes to arrive.

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use futures_util::StreamExt as _;
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::problem::{Code, Problem};
use super::{App, wire};
use crate::gfs::json::{self, Limits};

/// Nesting of a body at the most: the root is at depth 0, and a scalar in a container counts as a level.
pub(super) const DEPTH_MAX: usize = 12;

/// A JSON body, read strictly into a wire type. An empty body without a media type counts as `{}`.
pub(super) struct Json<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_json(request, app, app.settings().body_bytes_max).await.map(Self)
    }
}

/// The same for a batch, whose body may be longer.
pub(super) struct BatchJson<T>(pub T);

impl<T: DeserializeOwned> FromRequest<App> for BatchJson<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_json(request, app, app.settings().batch_bytes_max).await.map(Self)
    }
}

async fn read_json<T: DeserializeOwned>(request: Request, app: &App, bytes_max: usize) -> Result<T, Problem> {
    let bytes = read_body(request, app, bytes_max).await?;
    if bytes.is_empty() {
        return wire::read(Value::Object(Map::new()));
    }
    let value = json::parse(&bytes, Limits { bytes: bytes_max, depth: DEPTH_MAX })?;
    if let Some(field) = json::inexact_integer(&bytes) {
        return Err(Problem::invalid(
            &field,
            "a number that JSON's numbers, as binary64, would change: send it as a string",
        ));
    }
    if !value.is_object() {
        return Err(Problem::invalid("", "the body must be a JSON object"));
    }
    wire::read(value)
}

/// A JSON body as its bytes, for an endpoint that reads it by rules of its own.
pub(super) struct JsonBytes(pub Bytes);

impl FromRequest<App> for JsonBytes {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        read_body(request, app, app.settings().body_bytes_max).await.map(Self)
    }
}

async fn read_body(request: Request, app: &App, bytes_max: usize) -> Result<Bytes, Problem> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let empty = announced.unwrap_or(0) == 0 && axum::body::HttpBody::is_end_stream(request.body());
    if !empty || request.headers().contains_key(CONTENT_TYPE) {
        check_media_type(request.headers())?;
    }
    let too_large = || Problem::new(Code::TooLarge, format!("the body is longer than {bytes_max} bytes"));
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(too_large());
    }
    let mut body = Vec::new();
    let mut parts = request.into_body().into_data_stream();
    let reading = async {
        while let Some(part) = parts.next().await {
            let part = part.map_err(|_| Problem::invalid("", "the body broke off"))?;
            if body.len() + part.len() > bytes_max {
                return Err(too_large());
            }
            body.extend_from_slice(&part);
        }
        Ok(())
    };
    match tokio::time::timeout(app.settings().body_timeout, reading).await {
        Ok(read) => read?,
        Err(_) => return Err(Problem::new(Code::RequestTimeout, "the body did not arrive in time")),
    }
    Ok(body.into())
}

fn check_media_type(headers: &HeaderMap) -> Result<(), Problem> {
    let refused = |detail| Err(Problem::new(Code::UnsupportedMediaType, detail));
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = media_type.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        return refused("the body must be JSON: send the header Content-Type: application/json");
    }
    let coding = headers.get(CONTENT_ENCODING).map(|value| value.to_str().unwrap_or("?").trim());
    if coding.is_some_and(|coding| !coding.eq_ignore_ascii_case("identity")) {
        return refused("compressed bodies are not taken");
    }
    Ok(())
}

/// The parameters of a path.
pub(super) struct Path<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let params = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::invalid("", "the path is not UTF-8"))?;
        let params = params.iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        wire::read(Value::Object(params)).map(Self)
    }
}

/// The parameters of a query: each at most once, none unknown.
pub(super) struct Query<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        // Read leniently, what is no UTF-8 would be another text, and so another player.
        if !parts.uri.query().is_none_or(decodes) {
            return Err(Problem::invalid("", "the query is not UTF-8"));
        }
        let pairs = axum::extract::Query::<Vec<(String, String)>>::from_request_parts(parts, app)
            .await
            .map_err(|_| Problem::invalid("", "the query is out of form"))?;
        let mut params = Map::new();
        for (name, value) in pairs.0 {
            if params.insert(name.clone(), value.into()).is_some() {
                return Err(Problem::invalid(&name, "stands twice in the query"));
            }
        }
        wire::read(Value::Object(params)).map(Self)
    }
}

/// Whether a text with escapes (`%C3%A4`) stands for UTF-8.
fn decodes(text: &str) -> bool {
    percent_decode_str(text).decode_utf8().is_ok()
}

/// The query of an endpoint that takes none.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_utf_8_or_refused() {
        for good in ["", "a=b+c", "a=%C3%A4", "a=%EF%BF%BD", "a=100%", "a=%zz", "a=%", "a=%f"] {
            assert!(decodes(good), "{good}");
        }
        for bad in ["a=%ff", "a=%FF", "%C3=b", "a=%C3%", "a=%ed%a0%80"] {
            assert!(!decodes(bad), "{bad}");
        }
    }
}
