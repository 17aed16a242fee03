//! What nobody may see yet is in no answer of the history (I6, I11).

use fairledger::history::Filters;
use fairledger::seeds::values::GameName;
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::Value;

use super::all;
use super::world::World;

/// Of every pending bet its result, and every unrevealed seed, as the keys of this test can tell.
#[tokio::test]
async fn pending_results_and_unrevealed_seeds_are_in_no_answer_i6_i11() {
    let mut rng = StdRng::seed_from_u64(5);
    let world = World::random(&mut rng, 6, 200).await;
    let answers = all(&world.history, &Filters::default(), 100).await;
    let (mut pending, mut concealed) = (0, 0);
    for answer in &answers {
        if answer["meta"]["status"] != "recorded" {
            pending += 1;
            for name in ["result", "cursor", "signature", "signer"] {
                assert_eq!(answer["record"].get(name), None, "{answer}");
            }
        }
        let commitment = answer["record"]["commitment"].as_str().unwrap().parse().unwrap();
        let revealed = world.seeds.commitment(&commitment).await.unwrap().server_seed;
        concealed += u32::from(revealed.is_none());
        assert_eq!(answer.get("serverSeed").and_then(Value::as_str), revealed.as_ref().map(|seed| seed.as_str()));
    }
    assert!(pending > 10 && concealed > 10, "the history has both");
    let mines = Filters { game: Some(GameName::parse("mines").unwrap()), ..Filters::default() };
    assert!(all(&world.history, &mines, 100).await.iter().any(|bet| bet["meta"]["status"] == "pending"));
}
