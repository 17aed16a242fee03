//! Rounds: what they show, and when.

use fairledger::seeds::SeedsSettings;
use serde_json::{Value, json};

use super::{Api, Setup};

async fn step(api: &Api, round: &str, body: Value) -> super::Answer {
    api.post(&format!("{round}/steps"), body).await
}

async fn close(api: &Api, round: &str, body: Value) -> super::Answer {
    api.post(&format!("{round}/close"), body).await
}

#[tokio::test]
async fn a_round_shows_what_its_steps_disclose_and_nothing_else_i11() {
    let api = Api::new().await;
    let session = api.session().await;
    let round = session.mines("m", 1).await;
    let open = api.get(&round).await.expect(200);
    assert_eq!((&open["round"]["status"], &open["round"]["nextIndex"]), (&json!("open"), &json!(0)));
    let record = &open["bet"]["record"];
    assert_eq!((record.get("result"), record.get("cursor"), record.get("signature")), (None, None, None));
    let stepped = step(&api, &round, json!({"index": 0, "step": {"open": 4}})).await.expect(201);
    assert_eq!(stepped["round"]["steps"][0].get("disclosed"), None);
    let shown =
        step(&api, &round, json!({"index": 1, "step": "open", "disclose": {"tiles": [4, 9]}})).await.expect(201);
    let disclosed = &shown["round"]["steps"][1]["disclosed"]["tiles"];
    assert_eq!((&disclosed[0]["tile"], &disclosed[1]["tile"]), (&json!(4), &json!(9)));
    assert!(disclosed[0]["mine"].is_boolean() && shown["bet"]["record"].get("result").is_none());
    let again =
        step(&api, &round, json!({"index": 1, "step": "open", "disclose": {"tiles": [4, 9]}})).await.expect(200);
    assert_eq!((&again["round"], &again["replayed"]), (&shown["round"], &json!(true)));
}

#[tokio::test]
async fn steps_come_in_order() {
    let api = Api::new().await;
    let session = api.session().await;
    let round = session.mines("m", 1).await;
    step(&api, &round, json!({"index": 0, "step": "a"})).await.expect(201);
    for body in [
        json!({"index": 0, "step": "b"}),
        json!({"index": 0, "step": "a", "disclose": {"tiles": [1]}}),
        json!({"index": 2, "step": "a"}),
        json!({"index": u32::MAX, "step": "a"}),
    ] {
        let refused = step(&api, &round, body).await.problem(409, "step_conflict");
        assert_eq!(refused["nextIndex"], 1);
    }
    step(&api, &round, json!({"index": 1, "step": "a", "disclose": {"cards": 1}})).await.invalid("disclose.cards");
}

#[tokio::test]
async fn a_round_may_have_only_so_many_steps() {
    let seeds = SeedsSettings { steps_max: 2, ..SeedsSettings::default() };
    let api = Api::with(Setup { seeds, ..Setup::default() }).await;
    let session = api.session().await;
    let round = session.mines("m", 1).await;
    for index in 0..2 {
        step(&api, &round, json!({"index": index, "step": null})).await.expect(201);
    }
    step(&api, &round, json!({"index": 2, "step": null})).await.problem(409, "too_many_steps");
}

#[tokio::test]
async fn after_a_mine_a_round_can_only_be_lost() {
    let api = Api::new().await;
    let session = api.session().await;
    let round = session.mines("m", 24).await;
    let shown = step(&api, &round, json!({"index": 0, "step": 0, "disclose": {"tiles": [0, 1]}})).await.expect(201);
    assert!(shown.to_string().contains("\"mine\":true"), "two tiles cannot both be the one without a mine");
    step(&api, &round, json!({"index": 1, "step": 0})).await.problem(409, "round_lost");
    for body in
        [json!({"outcome": "cashout"}), json!({"outcome": "forfeit"}), json!({"outcome": "void", "reason": "x"})]
    {
        close(&api, &round, body).await.problem(409, "round_lost");
    }
    session.post("/voids", json!({"nonce": 0, "reason": "x"})).await.problem(409, "round_lost");
    let lost = close(&api, &round, json!({"outcome": "lost"})).await.expect(201);
    assert_eq!(lost["bet"]["meta"]["roundOutcome"], "lost");
}

#[tokio::test]
async fn a_round_closes_once_with_its_record() {
    let api = Api::new().await;
    let session = api.session().await;
    let round = session.mines("m", 3).await;
    let closed = close(&api, &round, json!({"outcome": "cashout"})).await.expect(201);
    assert_eq!((&closed["round"]["status"], &closed["round"]["outcome"]), (&json!("closed"), &json!("cashout")));
    assert_eq!(closed["bet"]["record"]["result"].as_array().unwrap().len(), 3);
    let again = close(&api, &round, json!({"outcome": "cashout"})).await.expect(200);
    assert_eq!((&again["bet"]["record"], &again["replayed"]), (&closed["bet"]["record"], &json!(true)));
    close(&api, &round, json!({"outcome": "lost"})).await.problem(409, "round_closed");
    close(&api, &round, json!({"outcome": "void", "reason": "x"})).await.problem(409, "round_closed");
    step(&api, &round, json!({"index": 0, "step": 0})).await.problem(409, "round_closed");
    let void = session.mines("v", 3).await;
    let voided = close(&api, &void, json!({"outcome": "void", "reason": "x"})).await.expect(201);
    assert_eq!((&voided["round"]["outcome"], &voided["bet"]["meta"]["status"]), (&json!("void"), &json!("void")));
    close(&api, &void, json!({"outcome": "void", "reason": "x"})).await.expect(200);
    close(&api, &void, json!({"outcome": "void", "reason": "y"})).await.problem(409, "round_closed");
    session.rotate().await.expect(200);
    let inspection = api.post("/v1/verify", api.get(&round).await.expect(200)["bet"].clone()).await.expect(200);
    assert_eq!(inspection["status"], "matches");
}

#[tokio::test]
async fn cards_are_dealt_once_in_the_order_of_the_deck() {
    let api = Api::new().await;
    let session = api.session().await;
    let bet = session.post("/bets", json!({"betRef": "b", "game": "blackjack", "conceal": true})).await.expect(201);
    let round = session.at(&format!("/rounds/{}/{}", session.commitment, bet["record"]["nonce"]));
    let mut dealt = Vec::new();
    for (index, count) in [2, 1, 49].into_iter().enumerate() {
        let body = json!({"index": index, "step": "deal", "disclose": {"cards": count}});
        let shown = step(&api, &round, body).await.expect(201);
        dealt.extend(shown["round"]["steps"][index]["disclosed"]["cards"].as_array().unwrap().clone());
    }
    step(&api, &round, json!({"index": 3, "step": "deal", "disclose": {"cards": 1}})).await.invalid("disclose.cards");
    let closed = close(&api, &round, json!({"outcome": "forfeit"})).await.expect(201);
    assert_eq!(closed["bet"]["record"]["result"], json!(dealt));
}

#[tokio::test]
async fn only_a_concealed_bet_is_a_round() {
    let api = Api::new().await;
    let session = api.session().await;
    session.bet("played").await.expect(201);
    session.reserve("reserved").await.expect(201);
    for (commitment, nonce) in
        [(session.commitment.as_str(), 0), (&session.commitment, 1), (&session.commitment, 2), (&"00".repeat(32), 0)]
    {
        let round = session.at(&format!("/rounds/{commitment}/{nonce}"));
        api.get(&round).await.problem(404, "round_not_found");
        step(&api, &round, json!({"index": 0, "step": 0})).await.problem(404, "round_not_found");
        close(&api, &round, json!({"outcome": "lost"})).await.problem(404, "round_not_found");
    }
    let other = api.session().await;
    let round = session.mines("m", 3).await;
    let of_other = round.replace(&session.path, &other.path);
    api.get(&of_other).await.problem(404, "round_not_found");
}
