//! The OpenAPI description, made from the endpoints themselves: a route cannot be mounted without being described.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use utoipa::openapi::schema::{AllOfBuilder, ObjectBuilder, SchemaType, Type};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, HeaderBuilder, Ref, RefOr, Response as ApiResponse, ResponseBuilder};
use utoipa::{Modify, OpenApi};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::problem::{Code, PROBLEM_JSON};
use super::schema::ProblemSchema;
use super::{App, bets, evidence, health, public, records, rounds, seeds, sessions, tokens, verify};

/// What any endpoint that does something may answer.
pub(super) const ANY: &[Code] =
    &[Code::Overloaded, Code::InvalidRequest, Code::Unavailable, Code::CorruptData, Code::Internal];

/// And when it wants a token.
pub(super) const TOKEN: &[Code] = &[Code::TooManyUnknownTokens, Code::Unauthenticated, Code::Forbidden];

/// And when it takes a body.
pub(super) const BODY: &[Code] = &[Code::UnsupportedMediaType, Code::TooLarge, Code::RequestTimeout];

/// And when it changes something.
pub(super) const CHANGE: &[Code] = &[Code::Quarantined, Code::OutcomeUnknown];

/// Describes the problems of an endpoint: groups of codes, and codes of its own.
macro_rules! problems {
    ($name:ident: $($group:ident)* $(; $($code:ident),+)?) => {
        struct $name;

        impl utoipa::IntoResponses for $name {
            fn responses() -> std::collections::BTreeMap<String, utoipa::openapi::RefOr<utoipa::openapi::Response>> {
                let groups: &[&[$crate::http::problem::Code]] = &[
                    $($crate::http::openapi::$group,)*
                    $(&[$($crate::http::problem::Code::$code),+])?
                ];
                $crate::http::openapi::problem_responses(groups)
            }
        }
    };
}
pub(super) use problems;

/// One response for each status, with the codes that come with it in order of precedence.
pub(super) fn problem_responses(groups: &[&[Code]]) -> BTreeMap<String, RefOr<ApiResponse>> {
    let mut codes: Vec<Code> = groups.concat();
    codes.sort_unstable();
    codes.dedup();
    let mut by_status = BTreeMap::<u16, Vec<Code>>::new();
    for code in codes {
        by_status.entry(code.status().as_u16()).or_default().push(code);
    }
    by_status.into_iter().map(|(status, codes)| (status.to_string(), problem_response(&codes).into())).collect()
}

fn problem_response(codes: &[Code]) -> ApiResponse {
    let words = || codes.iter().map(|code| code.as_str());
    let schema = AllOfBuilder::new().item(Ref::from_schema_name("Problem")).item(
        ObjectBuilder::new().schema_type(SchemaType::Type(Type::Object)).property(
            "code",
            ObjectBuilder::new().schema_type(SchemaType::Type(Type::String)).enum_values(Some(words())),
        ),
    );
    let described = words().map(|code| format!("`{code}`")).collect::<Vec<_>>().join(", ");
    let mut response = ResponseBuilder::new()
        .description(described)
        .content(PROBLEM_JSON, Content::new(Some(RefOr::T(schema.build().into()))));
    let text = || ObjectBuilder::new().schema_type(SchemaType::Type(Type::String));
    if codes.iter().any(|code| matches!(code.status().as_u16(), 429 | 503)) {
        let header = HeaderBuilder::new()
            .schema(Some(ObjectBuilder::new().schema_type(SchemaType::Type(Type::Integer))))
            .description(Some("Seconds after which to try again"))
            .build();
        response = response.header("Retry-After", header);
    }
    if codes.iter().any(|code| matches!(code, Code::Unauthenticated | Code::Forbidden)) {
        let header = HeaderBuilder::new().schema(Some(text())).description(Some("What is needed (RFC 6750)")).build();
        response = response.header("WWW-Authenticate", header);
    }
    response.build()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "fairledger",
        description = "Durable memory for two promises: a single-use token is accepted once, and a provably fair bet can still be \
                       checked years later.\n\nEvery change is repeatable by an id that its caller chose: the same request again gets \
                       the stored answer with `replayed: true` and status 200. Unknown fields, duplicate keys, lone surrogates, NUL and \
                       numbers out of range are refused, never ignored; an optional field that is null counts as absent. Every answer \
                       carries the header `X-Request-Id`: the caller's own, when it sent 1 to 128 characters of `A-Za-z0-9._-`.",
    ),
    components(schemas(ProblemSchema)),
    modifiers(&Bearer),
    tags(
        (name = "tokens", description = "Single-use tokens, accepted once"),
        (name = "sessions", description = "A player's run of play, and its seeds"),
        (name = "bets", description = "Bets, reservations for outside games, and what they came to"),
        (name = "rounds", description = "Bets whose result is concealed while the player decides"),
        (name = "history", description = "The whole history, for dispute teams"),
        (name = "public", description = "What anyone may look up and check"),
        (name = "health", description = "Whether the service lives and will serve"),
    ),
)]
struct Description;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some(
            "A token of `fairledger token create`: `flt_` and 43 characters. Its scopes say what it may do; `admin` includes the \
             others. A revoked token may work for a few seconds more.",
        ));
        let components = openapi.components.get_or_insert_default();
        components.add_security_scheme("bearer", SecurityScheme::Http(scheme.build()));
    }
}

/// Every endpoint with its description.
pub(super) fn endpoints() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(Description::openapi())
        .merge(tokens::endpoints())
        .merge(sessions::endpoints())
        .merge(seeds::endpoints())
        .merge(bets::endpoints())
        .merge(rounds::endpoints())
        .merge(records::endpoints())
        .merge(evidence::endpoints())
        .merge(public::endpoints())
        .merge(verify::endpoints())
        .merge(health::endpoints())
        .routes(routes!(description))
}

/// The OpenAPI 3.1 description of every endpoint, as served at `/openapi.json`.
#[must_use]
pub fn openapi() -> Value {
    let (_, openapi) = endpoints().split_for_parts();
    // A description that serde cannot write would be a fault of the code alone, and the tests would see it.
    let mut openapi = serde_json::to_value(openapi).unwrap_or_else(|error| json!({ "error": error.to_string() }));
    free_bodies_that_may_be_left_out(&mut openapi);
    openapi
}

/// An empty body counts as `{}`: where that will do, no body need be sent.
fn free_bodies_that_may_be_left_out(openapi: &mut Value) {
    let needed: BTreeMap<String, bool> = openapi["components"]["schemas"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, schema)| (format!("#/components/schemas/{name}"), schema["required"].is_array()))
        .collect();
    let operations = openapi["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in operations.filter_map(Value::as_object_mut).flat_map(|methods| methods.values_mut()) {
        let Some(body) = operation.get_mut("requestBody") else { continue };
        let schema = body["content"]["application/json"]["schema"]["$ref"].as_str();
        if schema.and_then(|schema| needed.get(schema)) == Some(&false) {
            body["required"] = json!(false);
        }
    }
}

problems!(DescriptionProblems:);

/// This description
#[utoipa::path(get, path = "/openapi.json", tag = "health",
    responses((status = 200, description = "OpenAPI 3.1", body = Value), DescriptionProblems))]
async fn description() -> Response {
    static TEXT: OnceLock<Bytes> = OnceLock::new();
    let text = TEXT.get_or_init(|| Bytes::from(openapi().to_string()));
    ([(CONTENT_TYPE, "application/json")], text.clone()).into_response()
}
