//! The service as processes: what several of them, killed ones and lost callers leave in the database.

mod hang_ups;
mod kills;
mod metrics;
mod processes;
mod secrecy;
mod spends;

use std::collections::{BTreeMap, BTreeSet};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::Sha256;

use crate::harness::Caller;

/// A roll of dice by the text of GFS/1.0, written a second time so that it shares nothing with the program.
fn dice(server_seed: &str, client_seed: &str, nonce: u64) -> f64 {
    let mut mac = Hmac::<Sha256>::new_from_slice(server_seed.as_bytes()).unwrap();
    mac.update(format!("{client_seed}:{nonce}:0").as_bytes());
    let digest = mac.finalize().into_bytes();
    let float = f64::from(u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])) / 4_294_967_296.0;
    (float * 10001.0).floor() / 100.0
}

/// Every bet of a session.
async fn records(caller: &Caller, session_id: &str) -> Vec<Value> {
    let (mut records, mut after) = (Vec::new(), String::new());
    loop {
        let path = format!("/v1/sessions/{session_id}/records?limit=500{after}");
        let (status, page) = caller.call("GET", &path, None).await;
        assert_eq!(status, 200, "{page}");
        records.extend(page["records"].as_array().unwrap().iter().cloned());
        match page["nextAfter"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => return records,
        }
    }
}

/// Proves for a session that every acknowledged bet is stored as it was acknowledged, that no reference and no nonce is there twice, that
/// every nonce handed out has its bet (I3, I4, I9), and that every roll follows from its revealed seed.
pub async fn check(caller: &Caller, session_id: &str, acknowledged: &BTreeMap<String, Value>) {
    let mut nonces: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    let mut stored = BTreeMap::new();
    for bet in records(caller, session_id).await {
        let record = &bet["record"];
        let (commitment, nonce) = (record["commitment"].as_str().unwrap(), record["nonce"].as_u64().unwrap());
        assert!(
            nonces.entry(commitment.to_owned()).or_default().insert(nonce),
            "nonce {nonce} twice under {commitment}"
        );
        if let Some(seed) = bet["serverSeed"].as_str() {
            let expected = dice(seed, record["clientSeed"].as_str().unwrap(), nonce);
            assert_eq!(record["result"].as_f64(), Some(expected), "{record}");
        }
        let name = bet["meta"]["betRef"].as_str().unwrap().to_owned();
        assert!(stored.insert(name, record.clone()).is_none(), "a reference twice");
    }
    for (name, record) in acknowledged {
        assert_eq!(stored.get(name), Some(record), "the acknowledged bet {name}");
    }
    let (_, list) = caller.call("GET", &format!("/v1/sessions/{session_id}/seeds"), None).await;
    for seed in list["seeds"].as_array().unwrap() {
        let handed_out = seed["bets"].as_u64().unwrap();
        let nonces = nonces.remove(seed["commitment"].as_str().unwrap()).unwrap_or_default();
        assert!(nonces.iter().copied().eq(0..handed_out), "{handed_out} handed out, stored: {nonces:?}");
        assert_eq!(seed["status"] == "revealed", seed["serverSeed"].is_string(), "{seed}");
    }
    assert!(nonces.is_empty(), "bets under other seeds");
}
