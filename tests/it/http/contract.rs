//! Holds what is served against what is described: every answer of every test, and every described endpoint.

use std::collections::HashSet;
use std::sync::LazyLock;

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::{Answer, Api};
use fairledger::db::tokens::Scope;

static OPENAPI: LazyLock<Value> = LazyLock::new(fairledger::http::openapi);

/// Every operation: its method in upper case, its path, its description.
fn operations() -> impl Iterator<Item = (String, &'static str, &'static Value)> {
    OPENAPI["paths"].as_object().unwrap().iter().flat_map(|(path, item)| {
        let item = item.as_object().unwrap().iter();
        item.map(move |(method, operation)| (method.to_uppercase(), path.as_str(), operation))
    })
}

fn is_of(template: &str, path: &str) -> bool {
    let (template, path) = (template.split('/'), path.split('/'));
    template.clone().count() == path.clone().count()
        && template
            .zip(path)
            .all(|(template, part)| if template.starts_with('{') { !part.is_empty() } else { template == part })
}

/// Panics unless the description allows a body that was taken.
#[track_caller]
pub fn hold_request(method: &str, path: &str, body: &Value) {
    let (_, _, operation) =
        operations().find(|(described, template, _)| described == method && is_of(template, path)).unwrap();
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    if let Err(fault) = fits(schema, body) {
        panic!("{method} {path} takes what its description does not: {fault}: {body:#}");
    }
}

/// Panics unless the description foresees the answer.
#[track_caller]
pub fn hold(method: &str, path: &str, answer: &Answer) {
    let of_path: Vec<_> = operations().filter(|(_, template, _)| is_of(template, path)).collect();
    let Some((_, _, operation)) = of_path.iter().find(|(described, _, _)| described == method) else {
        let expected = if of_path.is_empty() { "not_found" } else { "method_not_allowed" };
        assert_eq!(answer.body["code"], expected, "{method} {path} is not described");
        return;
    };
    if answer.status == 304 {
        assert!(operation["responses"]["304"].is_object() && answer.body.is_null(), "{method} {path}");
        return;
    }
    let media_type = answer.headers["content-type"].to_str().unwrap();
    let response = &operation["responses"][answer.status.to_string()];
    let schema = &response["content"][media_type]["schema"];
    assert!(schema.is_object(), "{method} {path}: {} {media_type} is not described: {:#}", answer.status, answer.body);
    if let Err(fault) = fits(schema, &answer.body) {
        panic!("{method} {path}: {} does not fit its description: {fault}: {:#}", answer.status, answer.body);
    }
}

fn resolved(schema: &Value) -> &Value {
    match schema["$ref"].as_str() {
        Some(reference) => OPENAPI.pointer(reference.trim_start_matches('#')).unwrap_or_else(|| panic!("{reference}")),
        None => schema,
    }
}

/// Whether a value is of a schema, as far as our description uses JSON Schema; and whether the schema knows each member of it.
fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    check(schema, value)?;
    unknown_members(schema, value)
}

fn check(schema: &Value, value: &Value) -> Result<(), String> {
    let schema = resolved(schema);
    let fault = |what: &str| Err(format!("{value} {what} of {schema}"));
    let is = |kind: &str| match kind {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("no type {other}"),
    };
    let typed = match &schema["type"] {
        Value::String(kind) => is(kind),
        Value::Array(kinds) => kinds.iter().any(|kind| is(kind.as_str().unwrap())),
        _ => true,
    };
    if !typed {
        return fault("is not of the type");
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        return fault("is none of the words");
    }
    if let (Some(minimum), Some(number)) = (schema["minimum"].as_f64(), value.as_f64())
        && number < minimum
    {
        return fault("is below the minimum");
    }
    if let (Some(maximum), Some(number)) = (schema["maximum"].as_f64(), value.as_f64())
        && number > maximum
    {
        return fault("is above the maximum");
    }
    for part in schema["allOf"].as_array().into_iter().flatten() {
        check(part, value)?;
    }
    if let Some(choices) = schema["oneOf"].as_array()
        && choices.iter().filter(|choice| check(choice, value).is_ok()).count() != 1
    {
        return fault("is not one of the choices");
    }
    if let Some(object) = value.as_object() {
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !object.contains_key(name) {
                return fault(&format!("lacks {name}"));
            }
        }
        for (name, member) in schema["properties"].as_object().into_iter().flatten() {
            if let Some(value) = object.get(name) {
                fits(member, value)?;
            }
        }
    }
    for item in value.as_array().into_iter().flatten() {
        fits(&schema["items"], item)?;
    }
    Ok(())
}

/// A schema that names members must name them all.
fn unknown_members(schema: &Value, value: &Value) -> Result<(), String> {
    let mut known = HashSet::new();
    names(schema, &mut known);
    let Some(object) = value.as_object().filter(|_| !known.is_empty()) else { return Ok(()) };
    match object.keys().find(|name| !known.contains(name.as_str())) {
        Some(name) => Err(format!("{name} is not described")),
        None => Ok(()),
    }
}

fn names(schema: &Value, known: &mut HashSet<String>) {
    let schema = resolved(schema);
    known.extend(schema["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()));
    for part in ["allOf", "oneOf"].iter().filter_map(|key| schema[*key].as_array()).flatten() {
        names(part, known);
    }
}

#[test]
fn the_description_is_openapi_3_1_and_complete() {
    assert!(OPENAPI["openapi"].as_str().unwrap().starts_with("3.1"));
    assert_eq!(OPENAPI["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let mut operation_ids = HashSet::new();
    for (method, path, operation) in operations() {
        let name = format!("{method} {path}");
        assert!(operation_ids.insert(operation["operationId"].as_str().unwrap()), "{name}: operationId");
        assert!(!operation["summary"].as_str().unwrap_or_default().is_empty(), "{name}: summary");
        let responses = operation["responses"].as_object().unwrap();
        assert!(responses.keys().any(|status| status.starts_with('2')), "{name}: no success");
        for (status, response) in responses {
            assert!(status == "304" || response["content"].is_object(), "{name}: {status} has no body");
        }
        let described: Vec<&str> = operation["parameters"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|parameter| parameter["in"] == "path")
            .map(|parameter| parameter["name"].as_str().unwrap())
            .collect();
        let in_path: Vec<&str> = path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect();
        assert_eq!(described, in_path, "{name}");
        if operation["security"].is_array() {
            assert!(responses.contains_key("401") && responses.contains_key("403"), "{name}: 401 and 403");
        }
        if operation["requestBody"].is_object() {
            // An empty body counts as {}.
            let body = &operation["requestBody"];
            let needed = check(&body["content"]["application/json"]["schema"], &json!({})).is_err();
            assert!(body["required"] == needed || path.starts_with("/v1/verify"), "{name}");
            assert!(["400", "413", "415"].iter().all(|status| responses.contains_key(*status)), "{name}");
        }
    }
}

#[test]
fn the_committed_description_is_that_of_the_code() {
    let committed: Value = serde_json::from_str(include_str!("../../../docs/openapi.json")).unwrap();
    assert!(committed == *OPENAPI, "docs/openapi.json is old: cargo run -- openapi > docs/openapi.json");
}

#[test]
fn every_request_has_an_example_for_each_text_with_a_form() {
    for (name, schema) in OPENAPI["components"]["schemas"].as_object().unwrap() {
        if schema["pattern"].is_string() {
            assert!(schema["examples"].as_array().is_some_and(|examples| !examples.is_empty()), "{name}");
        }
    }
}

#[test]
fn every_reference_of_the_description_leads_somewhere() {
    fn walk(value: &Value) {
        if value["$ref"].is_string() {
            resolved(value);
        }
        for value in value.as_object().into_iter().flatten().map(|(_, value)| value) {
            walk(value);
        }
        for value in value.as_array().into_iter().flatten() {
            walk(value);
        }
    }
    walk(&OPENAPI);
}

#[test]
fn the_contract_notices_what_does_not_fit() {
    let view = json!({"$ref": "#/components/schemas/SigningKeyList"});
    let good = json!({"keys": [{"signer": "00", "from": "2026-01-02T03:04:05.000006Z"}]});
    assert_eq!(fits(&view, &good), Ok(()));
    for bad in [
        json!({}),
        json!({"keys": [{"signer": 5, "from": ""}]}),
        json!({"keys": [{"signer": ""}]}),
        json!({"keys": [], "more": 1}),
        json!({"keys": [{"signer": "", "from": "", "more": 1}]}),
    ] {
        assert!(fits(&view, &bad).is_err(), "{bad}");
    }
}

/// A path with something in each parameter that is in no form.
fn spoiled(template: &str) -> String {
    template.split('/').map(|part| if part.starts_with('{') { "~" } else { part }).collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn every_described_endpoint_is_served_and_asks_for_its_token_before_it_looks_at_anything_else() {
    let api = Api::new().await;
    let dispute = super::new_token(&api.app, &[Scope::Dispute]).await;
    let relay = super::new_token(&api.app, &[Scope::Relay]).await;
    for (method, path, operation) in operations() {
        let path = spoiled(path) + "?unknown=1";
        let request = || Request::builder().method(method.as_str()).uri(&path).header("content-type", "text/plain");
        let spoiled = || Body::from("{\"a\":1,".repeat(20_000));
        let secured = operation["security"].is_array();
        let stranger = api.send(request().body(spoiled()).unwrap()).await;
        if secured {
            stranger.problem(401, "unauthenticated");
            let scope = &operation["security"][0]["bearer"][0];
            let other = if scope == "dispute" { &relay } else { &dispute };
            let other = request().header("authorization", format!("Bearer {}", other.expose()));
            let body = api.send(other.body(spoiled()).unwrap()).await.problem(403, "forbidden");
            assert_eq!(&body["scope"], scope, "{method} {path}");
            assert!(body["detail"].as_str().unwrap().contains(scope.as_str().unwrap()), "{method} {path}");
        } else if path.starts_with("/v1/") {
            stranger.problem(400, "invalid_request");
        } else {
            stranger.expect(200);
        }
    }
}
