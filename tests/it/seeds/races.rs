//! Bets while seeds end around them (I3, I4, I7, I11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fairledger::gfs::{ClientSeed, Commitment};
use fairledger::seeds::error::SeedsError;
use fairledger::seeds::model::{BetAnswer, BetStatus, SessionStatus};
use fairledger::seeds::{ClientSeedRequest, CloseOutcome, CloseRequest, RotateRequest, Seeds};
use serde_json::json;
use tokio::sync::Barrier;
use uuid::Uuid;

use super::{all_bets, dice, game, in_every_form, inspected, nonce_of, session};

in_every_form!(
    a_thousand_bets_at_once_over_two_services_take_every_nonce_once,
    rotations_client_seed_changes_and_a_closing_lose_no_bet_and_reveal_none_that_is_pending,
);

async fn a_thousand_bets_at_once_over_two_services_take_every_nonce_once(services: [Seeds; 2]) {
    let view = session(&services[0]).await;
    let barrier = Arc::new(Barrier::new(100));
    let callers = (0..100).map(|caller| {
        let (seeds, barrier, view) = (services[caller % 2].clone(), barrier.clone(), view.clone());
        tokio::spawn(async move {
            barrier.wait().await;
            let mut nonces = Vec::new();
            for number in 0..10 {
                let request = dice(view.commitment, format!("{caller}:{number}"));
                nonces.push(nonce_of(&seeds.take_bet(view.session_id, &request).await.unwrap()));
            }
            nonces
        })
    });
    let mut nonces: Vec<u64> =
        futures_util::future::join_all(callers).await.into_iter().flat_map(Result::unwrap).collect();
    nonces.sort_unstable();
    assert_eq!(nonces, (0..1000).collect::<Vec<_>>());
    let rotate = RotateRequest { commitment: view.commitment, client_seed: None };
    services[1].rotate(view.session_id, &rotate).await.unwrap();
    let bets = all_bets(&services[0], view.session_id).await;
    assert_eq!(bets.len(), 1000);
    assert!(bets.iter().all(|bet| inspected(bet) == "matches"));
}

/// What one caller was told about its bets, by reference.
type Told = BTreeMap<String, (Commitment, u64)>;

/// Bets, some of them as rounds that it closes, until the session is closed. Follows the live commitment.
async fn play(seeds: Seeds, session_id: Uuid, caller: u32, finished: Arc<AtomicU32>) -> Told {
    let mut told = Told::new();
    let mut commitment = seeds.view(session_id).await.unwrap().commitment;
    for number in 0.. {
        let name = format!("{caller}:{number}");
        let conceal = number % 4 == 3;
        loop {
            let request = game(commitment, &name, "mines", &json!({}), conceal);
            match seeds.take_bet(session_id, &request).await {
                Ok(bet) => {
                    let nonce = nonce_of(&bet);
                    let under: Commitment = bet.record["commitment"].as_str().unwrap().parse().unwrap();
                    told.insert(name.clone(), (under, nonce));
                    if conceal {
                        let close = CloseRequest { outcome: CloseOutcome::Cashout };
                        match seeds.close_round(session_id, &under, nonce, &close).await {
                            // The session's closing may come first, and then the round is abandoned.
                            Ok(_) | Err(SeedsError::RoundClosed) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                    break;
                }
                Err(SeedsError::CommitmentChanged { session }) => commitment = session.commitment,
                Err(SeedsError::TooManyPending) => tokio::task::yield_now().await,
                Err(SeedsError::SessionClosed) => {
                    finished.fetch_add(1, Ordering::Relaxed);
                    return told;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    unreachable!("the loop ends with the session")
}

async fn rotations_client_seed_changes_and_a_closing_lose_no_bet_and_reveal_none_that_is_pending(services: [Seeds; 2]) {
    let view = session(&services[0]).await;
    let id = view.session_id;
    let finished = Arc::new(AtomicU32::new(0));
    let players: Vec<_> = (0..12)
        .map(|caller| tokio::spawn(play(services[caller as usize % 2].clone(), id, caller, finished.clone())))
        .collect();
    let enders = (0..3).map(|ender| {
        let seeds = services[ender % 2].clone();
        tokio::spawn(async move {
            let mut ended = 0;
            // Most tries meet a pending round; go on until enough did not.
            for number in 0..2_000 {
                if ended == 5 {
                    break;
                }
                let commitment = seeds.view(id).await.unwrap().commitment;
                let client_seed = ClientSeed::parse(&format!("{ender}-{number}")).unwrap();
                let done = match ender {
                    0 => seeds.rotate(id, &RotateRequest { commitment, client_seed: None }).await,
                    1 => seeds.rotate(id, &RotateRequest { commitment, client_seed: Some(client_seed) }).await,
                    _ => seeds.change_client_seed(id, &ClientSeedRequest { commitment, client_seed }).await,
                };
                match done {
                    Ok(answer) => ended += u32::from(!answer.replayed),
                    Err(
                        SeedsError::BetsPending | SeedsError::CommitmentChanged { .. } | SeedsError::NothingToReveal,
                    ) => {}
                    Err(error) => panic!("{error}"),
                }
                tokio::task::yield_now().await;
            }
            ended
        })
    });
    let ended: u32 = futures_util::future::join_all(enders).await.into_iter().map(Result::unwrap).sum();
    assert!(ended >= 10, "only {ended} seeds ended: the race did not happen");
    loop {
        let commitment = services[0].view(id).await.unwrap().commitment;
        match services[0].close(id, &commitment).await {
            Ok(_) => break,
            Err(SeedsError::CommitmentChanged { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
    let told: Vec<Told> = futures_util::future::join_all(players).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(services[0].view(id).await.unwrap().status, SessionStatus::Closed);
    check_history(&services[0], id, &told.into_iter().flatten().collect()).await;
}

/// Proves I3, I4 and I7 for a closed session: every acknowledged bet is there, every counter is as high as its bets, every seed with
/// bets is revealed, and every record follows from it.
async fn check_history(seeds: &Seeds, session_id: Uuid, told: &Told) {
    let bets = all_bets(seeds, session_id).await;
    let mut by_seed: BTreeMap<Commitment, BTreeSet<u64>> = BTreeMap::new();
    let mut by_ref: BTreeMap<&str, &BetAnswer> = BTreeMap::new();
    for bet in &bets {
        let commitment: Commitment = bet.record["commitment"].as_str().unwrap().parse().unwrap();
        assert!(by_seed.entry(commitment).or_default().insert(nonce_of(bet)), "a nonce was used twice");
        assert!(by_ref.insert(&bet.meta.bet_ref, bet).is_none(), "a reference was used twice");
        assert_eq!(bet.meta.status, BetStatus::Recorded, "no bet is pending or void here");
        assert_eq!(inspected(bet), "matches");
    }
    for (name, (commitment, nonce)) in told {
        let bet = by_ref.get(name.as_str()).unwrap_or_else(|| panic!("the acknowledged bet {name} is gone"));
        assert_eq!(
            (bet.record["commitment"].as_str().unwrap(), nonce_of(bet)),
            (commitment.to_string().as_str(), *nonce)
        );
    }
    assert_eq!(bets.len(), told.len(), "every stored bet was acknowledged: nobody was cut off here");
    for seed in seeds.seeds_of_session(session_id).await.unwrap().seeds {
        let nonces = by_seed.remove(&seed.commitment).unwrap_or_default();
        assert_eq!(seed.bets, nonces.len() as u64);
        assert_eq!(nonces.last().copied().map_or(0, |last| last + 1), seed.bets, "a gap under {}", seed.commitment);
        assert_eq!(seed.status, if seed.bets > 0 { "revealed" } else { "discarded" });
        assert_eq!(seed.server_seed.is_some(), seed.bets > 0);
        if let Some(revealed_at) = seed.revealed_at {
            let last = bets
                .iter()
                .filter(|bet| bet.record["commitment"] == json!(seed.commitment))
                .map(|bet| bet.meta.taken_at)
                .max();
            assert!(last.unwrap() <= revealed_at, "a bet under a revealed seed");
        }
    }
    assert!(by_seed.is_empty(), "bets under seeds that are not the session's");
}
