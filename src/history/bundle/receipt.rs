//! What the receipt that a player kept adds to a bundle: it was shown to somebody else than the operator, and before the bet. Untrusted
//! input like the bundle (I12).

use serde_json::Value;

use super::Bundle;
use super::offline::{BundleError, Facts, fault};
use crate::gfs::json::{self, Limits};
use crate::gfs::signature;
use crate::history::check::{Check, State};

/// The longest receipt, or view of a session with its receipt.
const RECEIPT_LIMITS: Limits = Limits { bytes: 1 << 20, depth: 32 };

impl Facts<'_> {
    /// What the receipt that a player kept adds: that the commitment was shown, and when it had been made.
    pub(super) fn receipt(&self, text: &[u8]) -> Result<(Vec<Check>, &'static [&'static str]), BundleError> {
        let refused = |field: &str, detail: String| BundleError { what: "receipt", field: field.to_owned(), detail };
        let value = json::parse(text, RECEIPT_LIMITS).map_err(|error| refused(&error.field, error.detail))?;
        // A session's view has it as a member.
        let receipt = value.get("receipt").unwrap_or(&value);
        let member = |name: &str| {
            receipt.get(name).and_then(Value::as_str).ok_or_else(|| refused(name, "is missing or no text".to_owned()))
        };
        let (payload, signer) = (member("payload")?, member("signer")?);
        let bytes = |name: &str, text: &str, length: usize| {
            let bytes = hex::decode(text).ok().filter(|bytes| bytes.len() == length);
            bytes.ok_or_else(|| refused(name, format!("is not {length} bytes in hexadecimal characters")))
        };
        let signature = bytes("signature", member("signature")?, 64)?;
        let key = bytes("signer", signer, 32)?;
        let signed = match (<&[u8; 64]>::try_from(signature.as_slice()), <&[u8; 32]>::try_from(key.as_slice())) {
            (Ok(signature), Ok(key)) => signature::verify(payload.as_bytes(), signature, key),
            _ => false,
        };
        let told =
            json::parse(payload.as_bytes(), RECEIPT_LIMITS).map_err(|error| refused("payload", error.to_string()))?;
        Ok(self.compare_receipt(signed, signer, &told))
    }

    /// The checks, and the fields that they prove.
    fn compare_receipt(&self, signed: bool, signer: &str, told: &Value) -> (Vec<Check>, &'static [&'static str]) {
        let Bundle { meta, seed, next_seed, signing_key, .. } = self.bundle;
        let field = |name: &str| told.get(name).and_then(Value::as_str);
        let commitment = seed.commitment.to_string();
        let next = next_seed.as_ref().map(|next| next.commitment.to_string());
        let next_told = field("nextCommitment");
        // A view of a closed session shows its last seed, and that none will come.
        let closed = ["closing", "idle", "expiry"];
        let has_no_next = self.is_of_application() || seed.retired_by.as_deref().is_some_and(|by| closed.contains(&by));
        let signature = Check::unless(
            "Receipt signature",
            (!signed).then(|| "The receipt is not signed by the signer that it names.".to_owned()),
            "The receipt is signed by the signer that it names.",
        );
        let key = match signing_key {
            Some(key) if key.signer == signer => {
                Check::new("Receipt key", State::Matches, "The receipt is signed with the key of the record.")
            }
            Some(_) => Check::new(
                "Receipt key",
                State::NotProvable,
                "The receipt is signed with another key than the record: compare it with those that the operator published.",
            ),
            None => Check::new(
                "Receipt key",
                State::NotProvable,
                "The record is not signed: compare the key with a published one.",
            ),
        };
        let session = field("sessionId") == Some(&meta.session_id.to_string());
        let (shown, detail, proven): (_, _, &[&str]) = if field("commitment") == Some(&commitment) {
            let claims = [
                (
                    field("committedAt") == Some(&seed.committed_at.to_string()),
                    "The receipt has another time of the commitment.",
                ),
                (next_told.is_none() || next.is_some(), "The receipt has a next commitment, and the bundle has none."),
                (
                    next.is_none() || next_told == next.as_deref() || (next_told.is_none() && has_no_next),
                    "The receipt has another next commitment.",
                ),
            ];
            let detail = "The player was shown this commitment and its time while the seed was in use.";
            let proven: &[&str] = match next_told {
                Some(_) => &["meta.sessionId", "seed.committedAt", "nextSeed.commitment"],
                None => &["meta.sessionId", "seed.committedAt"],
            };
            (fault(&claims), detail, proven)
        } else if field("nextCommitment") == Some(&commitment) {
            (None, "The player was shown this commitment while the seed before it was in use.", &["meta.sessionId"])
        } else {
            (Some("The receipt is of other commitments.".to_owned()), "", &[])
        };
        let session = (!session).then(|| "The receipt is of another session.".to_owned());
        let checks = vec![signature, key, Check::unless("Receipt", session.or(shown), detail)];
        // By another key it proves as much as that key does, which nobody here knows.
        let sound = checks.iter().all(|check| check.state == State::Matches);
        (checks, if sound { proven } else { &[] })
    }
}
