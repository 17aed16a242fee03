//! Whether the steps of a round lead to its end.
//!
//! Nothing that is signed counts the steps, so not every step that is gone can be missed. What can: a round of Mines goes no further than
//! the first mine and ends as lost. And only the ledger knows a concealed result, so a round that was lost by nothing that a step disclosed
//! is to be asked about; an engine may have closed it so for a reason of its own (I8, I11).

use serde::Deserialize;
use serde_json::Value;

use crate::gfs::games::Game;
use crate::seeds::Disclose;
use crate::seeds::model::StepView;

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End<'a> {
    /// Not yet.
    Open,
    /// With a result: `cashout`, `lost`, `forfeit` or `abandoned`.
    Recorded(&'a str),
    /// Without one.
    Void {
        /// By a recovery, whatever it had shown.
        by_recovery: bool,
    },
}

/// A tile that was shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShownTile {
    /// Which.
    pub tile: u8,
    /// What is under it.
    pub mine: bool,
}

/// What a step showed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shown {
    /// Tiles of a Mines board.
    Tiles(Vec<ShownTile>),
    /// Further cards of a deck, by their labels.
    Cards(Vec<String>),
}

impl Shown {
    fn has_mine(&self) -> bool {
        matches!(self, Self::Tiles(tiles) if tiles.iter().any(|tile| tile.mine))
    }

    fn answers(&self, asked: &Disclose) -> bool {
        match (asked, self) {
            (Disclose::Tiles(asked), Self::Tiles(shown)) => {
                asked.len() == shown.len() && asked.iter().zip(shown).all(|(asked, shown)| *asked == shown.tile)
            }
            (Disclose::Cards(asked), Self::Cards(shown)) => *asked as usize == shown.len(),
            _ => false,
        }
    }

    fn of_game(&self, game: &str) -> bool {
        match self {
            Self::Tiles(_) => game == Game::Mines.name(),
            Self::Cards(_) => is_of_cards(game),
        }
    }
}

fn is_of_cards(game: &str) -> bool {
    game == Game::Blackjack.name() || game == Game::Hilo.name()
}

/// What speaks against these being all steps of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// The service takes no such round.
    Impossible(&'static str),
    /// It does, and there may be a reason.
    Odd(&'static str),
}

/// What speaks against these being all steps of a round of this game that ended so.
pub fn doubt(game: &str, end: End<'_>, steps: &[StepView]) -> Option<Doubt> {
    let impossible = |words| Some(Doubt::Impossible(words));
    let mut shown_any = false;
    let mut mine = false;
    for step in steps {
        if mine {
            return impossible("A step follows the one that disclosed a mine.");
        }
        let (asked, shown) = match (&step.disclose, &step.disclosed) {
            (None, None) => continue,
            (Some(asked), Some(shown)) => (Disclose::parse(asked).ok(), Shown::deserialize(shown).ok()),
            _ => return impossible("A step disclosed something else than was asked for."),
        };
        let (Some(asked), Some(shown)) = (asked, shown) else {
            return impossible("What a step asked for or disclosed is not of its form.");
        };
        if !shown.answers(&asked) {
            return impossible("A step disclosed something else than was asked for.");
        }
        if !shown.of_game(game) {
            return impossible("A step disclosed what the game does not have.");
        }
        shown_any = true;
        mine = shown.has_mine();
    }
    match end {
        End::Recorded("lost") if game == Game::Mines.name() && !mine => Some(Doubt::Odd(
            "The round ended as lost, and its last step disclosed no mine: steps are missing, or the engine had another reason. Ask for it.",
        )),
        End::Recorded("lost") if is_of_cards(game) && !shown_any => Some(Doubt::Odd(
            "The round ended as lost, and no step disclosed a card: steps are missing, or the engine had another reason. Ask for it.",
        )),
        End::Open | End::Recorded("lost") | End::Void { by_recovery: true } => None,
        End::Recorded(_) | End::Void { .. } => {
            mine.then_some(Doubt::Impossible("A mine was disclosed and the round did not end as lost."))
        }
    }
}

/// What is wrong where [`is_of_result`] says no.
pub const NOT_OF_RESULT: &str = "What was disclosed is not part of the result.";

/// Whether all that steps showed is of the result: tiles are mines where it has them, and cards follow one another as it deals them.
pub fn is_of_result<'s>(shown: impl IntoIterator<Item = &'s Value>, result: &[Value]) -> bool {
    let mut cards = result.iter();
    shown.into_iter().all(|shown| {
        if let Some(tiles) = shown.get("tiles").and_then(Value::as_array) {
            tiles.iter().all(|tile| {
                let mine = tile.get("tile").is_some_and(|tile| result.contains(tile));
                tile.get("mine").and_then(Value::as_bool) == Some(mine)
            })
        } else {
            let dealt = shown.get("cards").and_then(Value::as_array);
            dealt.is_some_and(|dealt| dealt.iter().all(|card| cards.next() == Some(card)))
        }
    })
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;

    use super::*;
    use crate::seeds::values::Timestamp;

    fn told(game: &str, end: End<'_>, steps: &[(Value, Value)]) -> Option<&'static str> {
        doubted(game, end, steps).map(|(Doubt::Impossible(words) | Doubt::Odd(words))| words)
    }

    fn doubted(game: &str, end: End<'_>, steps: &[(Value, Value)]) -> Option<Doubt> {
        let some = |value: &Value| Some(value.clone()).filter(|value| !value.is_null());
        let steps: Vec<_> = steps
            .iter()
            .zip(0..)
            .map(|((asked, shown), index)| StepView {
                index,
                step: json!("step"),
                disclose: some(asked),
                disclosed: some(shown),
                at: Timestamp(DateTime::UNIX_EPOCH),
            })
            .collect();
        doubt(game, end, &steps)
    }

    fn tile(tile: u8, mine: bool) -> (Value, Value) {
        (json!({ "tiles": [tile] }), json!({ "tiles": [{ "tile": tile, "mine": mine }] }))
    }

    #[test]
    fn a_lost_round_of_mines_ends_with_the_mine() {
        let (safe, hit, quiet) = (tile(3, false), tile(4, true), (Value::Null, Value::Null));
        let lost = End::Recorded("lost");
        assert_eq!(told("mines", lost, &[safe.clone(), hit.clone()]), None);
        for short in [vec![], vec![safe.clone()], vec![quiet.clone()]] {
            let Some(Doubt::Odd(words)) = doubted("mines", lost, &short) else { panic!("{short:?}") };
            assert!(words.starts_with("The round ended as lost, and its last step"));
        }
        for after in [quiet, safe.clone()] {
            let steps = [hit.clone(), after];
            assert_eq!(told("mines", lost, &steps), Some("A step follows the one that disclosed a mine."));
        }
        for end in [End::Recorded("cashout"), End::Recorded("abandoned"), End::Void { by_recovery: false }] {
            assert_eq!(told("mines", end, &[]), None);
            assert_eq!(told("mines", end, std::slice::from_ref(&safe)), None);
            let fault = told("mines", end, std::slice::from_ref(&hit));
            assert_eq!(fault, Some("A mine was disclosed and the round did not end as lost."));
        }
        // Its engine had no time to close it.
        assert_eq!(told("mines", End::Open, std::slice::from_ref(&hit)), None);
        assert_eq!(told("mines", End::Void { by_recovery: true }, &[hit]), None);
    }

    #[test]
    fn cards_are_lost_by_cards_and_other_games_by_what_is_not_here() {
        let cards = (json!({ "cards": 2 }), json!({ "cards": ["AC", "2D"] }));
        for game in ["blackjack", "hilo"] {
            assert_eq!(told(game, End::Recorded("lost"), std::slice::from_ref(&cards)), None);
            assert!(told(game, End::Recorded("lost"), &[]).unwrap().contains("no step disclosed a card"));
            assert_eq!(told(game, End::Recorded("cashout"), &[]), None);
        }
        assert_eq!(told("keno", End::Recorded("lost"), &[]), None);
        for (game, step) in [("keno", cards.clone()), ("mines", cards), ("hilo", tile(1, false))] {
            assert_eq!(told(game, End::Open, &[step]), Some("A step disclosed what the game does not have."));
        }
    }

    #[test]
    fn what_is_shown_is_what_was_asked_for_and_nothing_else() {
        let asked = json!({ "tiles": [3] });
        for shown in [
            json!({ "tiles": [{ "tile": 3, "mine": false, "prize": 2 }] }),
            json!({ "tiles": [{ "tile": 3, "mine": false }], "more": 1 }),
            json!({ "tiles": [{ "tile": 3, "mine": 0 }] }),
            json!({ "tiles": [] }),
            json!({ "tiles": [{ "tile": 4, "mine": false }] }),
            json!({ "cards": ["AC"] }),
            Value::Null,
        ] {
            assert!(told("mines", End::Open, &[(asked.clone(), shown.clone())]).is_some(), "{shown}");
        }
        for asked in [json!({ "tiles": [3], "more": 1 }), json!({ "tiles": [3, 3] }), json!(3), Value::Null] {
            let step = (asked.clone(), tile(3, false).1);
            assert!(told("mines", End::Open, &[step]).is_some(), "{asked}");
        }
    }
}
