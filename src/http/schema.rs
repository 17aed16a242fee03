//! Schemas of what is not described by a type of its own: problems and records.

use serde_json::json;
use utoipa::openapi::schema::{ArrayBuilder, ObjectBuilder, Schema, SchemaType, Type};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::problem::Code;
use super::tokens::SpendResult;
use crate::gfs::inspect::Inspection;
use crate::gfs::record::Record;
use crate::gfs::seed::{ClientSeed, Commitment};
use crate::seeds::model::View;

fn of_type(kind: Type, description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::Type(kind)).description(Some(description))
}

fn any(description: &str) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(SchemaType::AnyValue).description(Some(description))
}

type Schemas = Vec<(String, RefOr<Schema>)>;

fn add<T: ToSchema>(schemas: &mut Schemas) {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
}

/// A problem's body; [`super::problem::Problem`] writes it.
pub(super) struct ProblemSchema;

impl PartialSchema for ProblemSchema {
    fn schema() -> RefOr<Schema> {
        let codes = Code::ALL.iter().map(|code| code.as_str());
        ObjectBuilder::new()
            .description(Some(
                "RFC 9457. The codes stand in order of precedence: where several apply, the first is answered.",
            ))
            .property("type", of_type(Type::String, "A URN that ends in the code"))
            .required("type")
            .property("title", of_type(Type::String, "The same for every occurrence of the code"))
            .required("title")
            .property("status", of_type(Type::Integer, "The status of the answer"))
            .required("status")
            .property("code", of_type(Type::String, "What went wrong, stable for ever").enum_values(Some(codes)))
            .required("code")
            .property("detail", of_type(Type::String, "What went wrong, in words; not stable"))
            .required("detail")
            .property("requestId", of_type(Type::String, "The answer's X-Request-Id; the service's log has it too"))
            .required("requestId")
            .property("field", of_type(Type::String, "The field or parameter at fault, such as params.rows"))
            .property("scope", of_type(Type::String, "forbidden: the scope that the token lacks"))
            .property("session", Ref::from_schema_name(View::name()))
            .property(
                "results",
                ArrayBuilder::new()
                    .items(Ref::from_schema_name(SpendResult::name()))
                    .description(Some("batch_refused: what each token came to, in order")),
            )
            .property("nextIndex", of_type(Type::Integer, "step_conflict: index of the round's next step"))
            .into()
    }
}

impl ToSchema for ProblemSchema {
    fn name() -> std::borrow::Cow<'static, str> {
        "Problem".into()
    }

    fn schemas(schemas: &mut Schemas) {
        add::<View>(schemas);
        add::<SpendResult>(schemas);
    }
}

impl PartialSchema for Record {
    fn schema() -> RefOr<Schema> {
        let rules = ObjectBuilder::new()
            .description(Some("The rules of an outside game, bound before its floats were shown"))
            .property("id", of_type(Type::String, "Their name"))
            .required("id")
            .property("sha256", of_type(Type::String, "SHA-256 of their text").pattern(Some("^[0-9a-f]{64}$")))
            .required("sha256");
        ObjectBuilder::new()
            .description(Some(
                "A record of GFS/1.0: its canonical JSON without signature and signer is what is hashed and signed, and never changes. \
                 While the bet is pending it has no cursor, result or signature.",
            ))
            .property("spec", of_type(Type::String, "The specification").enum_values(Some(["GFS/1.0"])))
            .required("spec")
            .property(
                "profile",
                of_type(Type::String, "custom for an outside game").enum_values(Some(["single-player", "custom"])),
            )
            .required("profile")
            .property("game", of_type(Type::String, "The game"))
            .required("game")
            .property("params", of_type(Type::Object, "Its parameters, defaults filled in"))
            .required("params")
            .property("commitment", Ref::from_schema_name(Commitment::name()))
            .required("commitment")
            .property("clientSeed", Ref::from_schema_name(ClientSeed::name()))
            .required("clientSeed")
            .property("nonce", of_type(Type::Integer, "The nonce").minimum(Some(0)))
            .required("nonce")
            .property("at", of_type(Type::Integer, "When the bet was taken, in Unix milliseconds").minimum(Some(0)))
            .required("at")
            .property("cursor", of_type(Type::Integer, "The highest digest index used").minimum(Some(0)))
            .property("result", any("What it came to"))
            .property("rules", rules)
            .property("floats", of_type(Type::Integer, "How many floats an outside game was bound to"))
            .property("signature", of_type(Type::String, "Ed25519").pattern(Some("^[0-9a-f]{128}$")))
            .property("signer", of_type(Type::String, "The public key").pattern(Some("^[0-9a-f]{64}$")))
            .examples([json!({
                "spec": "GFS/1.0", "profile": "single-player", "game": "dice", "params": {},
                "commitment": "ab37723062965715c5e6eeb54816f909a8e787bd3bfaee67a3cc0a3b90707de7",
                "clientSeed": "7d1c0e5a9b3f2d4c6e8f0a1b2c3d4e5f", "nonce": 0, "at": 1_767_225_600_000_u64, "cursor": 0,
                "result": 42.17,
            })])
            .into()
    }
}

impl ToSchema for Record {
    fn name() -> std::borrow::Cow<'static, str> {
        "Record".into()
    }

    fn schemas(schemas: &mut Schemas) {
        add::<Commitment>(schemas);
        add::<ClientSeed>(schemas);
    }
}

impl PartialSchema for Inspection {
    fn schema() -> RefOr<Schema> {
        let states = ["matches", "mismatch", "not-provided", "unsupported"];
        let check = ObjectBuilder::new()
            .property("name", of_type(Type::String, "Commitment, Cursor, Chain link, Signature, Beacon or Outcome"))
            .required("name")
            .property("state", of_type(Type::String, "What it came to").enum_values(Some(states)))
            .required("state")
            .property("detail", of_type(Type::String, "What was compared"))
            .required("detail");
        let text_or_null = |description: &str| {
            let types = SchemaType::Array(vec![Type::String, Type::Null]);
            ObjectBuilder::new().schema_type(types).description(Some(description))
        };
        ObjectBuilder::new()
            .description(Some("What an inspection found"))
            .property("kind", of_type(Type::String, "The game, Crash, or Galabet Flight"))
            .required("kind")
            .property(
                "status",
                of_type(Type::String, "All checks together").enum_values(Some(["matches", "mismatch", "incomplete"])),
            )
            .required("status")
            .property("computed", any("The recalculated result; null where it cannot be"))
            .required("computed")
            .property("claimed", any("The recorded result; null where there is none"))
            .required("claimed")
            .property("checks", ArrayBuilder::new().items(check).description(Some("In order")))
            .required("checks")
            .property("difference", text_or_null("The first place where the recorded result differs"))
            .required("difference")
            .property("recordHash", text_or_null("SHA-256 of the canonical record"))
            .required("recordHash")
            .property("note", of_type(Type::String, "What all this does not prove"))
            .required("note")
            .into()
    }
}

impl ToSchema for Inspection {
    fn name() -> std::borrow::Cow<'static, str> {
        "Inspection".into()
    }
}
