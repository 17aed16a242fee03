//! The nine mappings from floats to results (GFS/1.0 section 4).
//!
//! All arithmetic is binary64 in the order that the specification writes it: rearranging an expression changes results.
//! Parameters are strict for input from outside (section 7): one that the game does not know, one out of bounds, or one
//! that is null is an error, never a default.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use super::floats::{self, SeedPair};
use super::json;
use super::shuffle::{Card, DECK, DECKS_MAX, shuffled};

/// Tiles of a Mines board, numbered from 0.
pub const MINES_TILES: usize = 25;

/// Numbers of a Keno board, numbered from 1.
pub const KENO_NUMBERS: usize = 40;

/// The most of an unknown parameter's name that an error repeats, in characters.
const KEY_CHARS_MAX: usize = 100;

/// The games of GFS/1.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Game {
    /// A number from 0 to 100 in hundredths.
    Dice,
    /// A multiplier of at least 1 in hundredths.
    Limbo,
    /// A European pocket, 0 to 36.
    Roulette,
    /// A segment, from 0.
    Wheel,
    /// A path of left and right, and the bucket at its end.
    Plinko,
    /// Tiles that hold a mine.
    Mines,
    /// Numbers drawn.
    Keno,
    /// A shuffled shoe.
    Blackjack,
    /// A shuffled shoe.
    Hilo,
}

impl Game {
    /// Every game, in the order of the specification.
    pub const ALL: [Self; 9] = [
        Self::Dice,
        Self::Limbo,
        Self::Roulette,
        Self::Wheel,
        Self::Plinko,
        Self::Mines,
        Self::Keno,
        Self::Blackjack,
        Self::Hilo,
    ];

    /// The name in a record.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dice => "dice",
            Self::Limbo => "limbo",
            Self::Roulette => "roulette",
            Self::Wheel => "wheel",
            Self::Plinko => "plinko",
            Self::Mines => "mines",
            Self::Keno => "keno",
            Self::Blackjack => "blackjack",
            Self::Hilo => "hilo",
        }
    }

    /// The one parameter that the game takes, if it takes one.
    const fn param(self) -> Option<Param> {
        match self {
            Self::Dice | Self::Roulette => None,
            Self::Limbo => Some(Param { name: "houseEdge", default: 0.01, min: 0.0, max: 0.5, integral: false }),
            Self::Wheel => Some(Param { name: "segments", default: 10.0, min: 2.0, max: 100.0, integral: true }),
            Self::Plinko => Some(Param { name: "rows", default: 16.0, min: 8.0, max: 16.0, integral: true }),
            Self::Mines => Some(Param { name: "mines", default: 3.0, min: 1.0, max: 24.0, integral: true }),
            Self::Keno => Some(Param { name: "draws", default: 10.0, min: 1.0, max: 40.0, integral: true }),
            Self::Blackjack | Self::Hilo => {
                Some(Param { name: "decks", default: 1.0, min: 1.0, max: DECKS_MAX as f64, integral: true })
            }
        }
    }
}

impl fmt::Display for Game {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Game {
    type Err = PlayError;

    /// # Errors
    /// [`PlayError`] on `game` for any other text.
    fn from_str(name: &str) -> Result<Self, PlayError> {
        Self::ALL.into_iter().find(|game| game.name() == name).ok_or_else(|| PlayError {
            field: "game".into(),
            detail: "is none of dice, limbo, roulette, wheel, plinko, mines, keno, blackjack, hilo".into(),
        })
    }
}

impl Serialize for Game {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A parameter, its default and its bounds, both included.
struct Param {
    name: &'static str,
    default: f64,
    min: f64,
    max: f64,
    integral: bool,
}

impl Param {
    fn read(&self, value: &Value) -> Option<f64> {
        let n = json::binary64(value.as_number()?);
        // A comparison with NaN is false, so nothing but a number within the bounds passes.
        let good = n >= self.min && n <= self.max && (!self.integral || n.fract() == 0.0);
        good.then_some(n)
    }
}

/// Why a game cannot be played as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {detail}")]
pub struct PlayError {
    /// `game`, `params`, or a parameter such as `params.rows`.
    pub field: String,
    /// What is wrong with it. Never repeats a value.
    pub detail: String,
}

/// A game with its parameters, checked: every `Play` can be played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Play {
    game: Game,
    /// The game's one parameter, within its bounds; 0 for a game without.
    param: f64,
}

impl Play {
    /// Checks a game and its parameters. An absent parameter, or no parameters at all, takes the default. (A *record*
    /// must have `params`; that rule is the inspector's.)
    ///
    /// # Errors
    /// [`PlayError`] for an unknown game, `params` that is no object, and a parameter that the game does not know, that
    /// is null or no number, out of bounds, or fractional where a whole number is needed.
    pub fn new(game: &str, params: Option<&Value>) -> Result<Self, PlayError> {
        let game: Game = game.parse()?;
        let rule = game.param();
        let mut param = rule.as_ref().map_or(0.0, |rule| rule.default);
        let given = match params {
            None => return Ok(Self { game, param }),
            Some(Value::Object(given)) => given,
            Some(_) => return Err(PlayError { field: "params".into(), detail: "is not an object".into() }),
        };
        for (key, value) in given {
            let fault = |detail: String| PlayError { field: format!("params.{key:.KEY_CHARS_MAX$}"), detail };
            let Some(rule) = rule.as_ref().filter(|rule| rule.name == key) else {
                return Err(fault(format!("is no parameter of {game}")));
            };
            param = rule.read(value).ok_or_else(|| {
                let kind = if rule.integral { "whole number" } else { "number" };
                fault(format!("is not a {kind} from {} to {}", rule.min, rule.max))
            })?;
        }
        Ok(Self { game, param })
    }

    /// The game.
    #[must_use]
    pub const fn game(&self) -> Game {
        self.game
    }

    /// The parameters with their defaults filled in, as a record has them.
    #[must_use]
    pub fn params(&self) -> Map<String, Value> {
        self.game.param().into_iter().map(|rule| (rule.name.to_owned(), json::number(self.param))).collect()
    }

    /// The game's one parameter, within its bounds; 0 for a game without.
    #[must_use]
    pub const fn param(&self) -> f64 {
        self.param
    }

    /// The same where it is a whole number, checked to be at most 100.
    #[must_use]
    pub const fn whole_param(&self) -> usize {
        self.param as usize
    }

    /// How many floats the result takes.
    #[must_use]
    pub fn float_count(&self) -> usize {
        match self.game {
            Game::Dice | Game::Limbo | Game::Roulette | Game::Wheel => 1,
            Game::Plinko => self.whole_param(),
            Game::Mines => MINES_TILES - 1,
            Game::Keno => KENO_NUMBERS - 1,
            Game::Blackjack | Game::Hilo => DECK * self.whole_param() - 1,
        }
    }

    /// The highest digest index that the result takes: the record's `cursor`.
    #[must_use]
    pub fn cursor(&self) -> u32 {
        floats::cursor(self.float_count() as u32) // at most 415
    }

    /// The result of one bet. The same inputs give the same bits, for ever.
    #[must_use]
    pub fn result(&self, seeds: &SeedPair, nonce: u64) -> GameResult {
        self.map(seeds.floats(nonce))
    }

    fn map(&self, mut floats: impl Iterator<Item = f64>) -> GameResult {
        // A float stream yields 2^35 numbers.
        let mut next = || floats.next().expect("a float stream outlasts every game");
        match self.game {
            Game::Dice => GameResult::Number((next() * 10001.0).floor() / 100.0),
            Game::Limbo => {
                let raw = 100_000_000.0 / (next() * 100_000_000.0 + 1.0);
                GameResult::Number(((raw * (1.0 - self.param) * 100.0).floor() / 100.0).max(1.0))
            }
            Game::Roulette => GameResult::Number((next() * 37.0).floor()),
            Game::Wheel => GameResult::Number((next() * self.param).floor()),
            Game::Plinko => {
                let path: Vec<u8> = (0..self.whole_param()).map(|_| u8::from(next() >= 0.5)).collect();
                let bucket = path.iter().copied().map(u32::from).sum();
                GameResult::Plinko { path, bucket }
            }
            Game::Mines => GameResult::Positions(first_ascending(MINES_TILES, floats, self.whole_param(), 0)),
            Game::Keno => GameResult::Positions(first_ascending(KENO_NUMBERS, floats, self.whole_param(), 1)),
            Game::Blackjack | Game::Hilo => GameResult::Cards(shuffled(DECK * self.whole_param(), floats, |items| {
                items.iter().copied().map(Card::at).collect()
            })),
        }
    }
}

/// Shuffles `size` (at most 40), takes the first `count`, adds `base`, and sorts.
fn first_ascending(size: usize, floats: impl Iterator<Item = f64>, count: usize, base: u8) -> Vec<u8> {
    shuffled(size, floats, |items| {
        let first = &mut items[..count];
        first.sort_unstable();
        first.iter().map(|&item| item as u8 + base).collect()
    })
}

/// What a game came to.
#[derive(Debug, Clone, PartialEq)]
pub enum GameResult {
    /// Dice, limbo, roulette, wheel.
    Number(f64),
    /// Plinko: 0 for left and 1 for right, and their sum.
    Plinko {
        /// One step a row.
        path: Vec<u8>,
        /// The sum of the path.
        bucket: u32,
    },
    /// Mines (tiles from 0) and keno (numbers from 1), ascending.
    Positions(Vec<u8>),
    /// Blackjack and hilo, in the order of dealing.
    Cards(Vec<Card>),
}

impl GameResult {
    /// The result as a record has it; whole numbers are JSON integers.
    #[must_use]
    pub fn to_json(&self) -> Value {
        match self {
            Self::Number(n) => json::number(*n),
            Self::Plinko { path, bucket } => serde_json::json!({ "path": path, "bucket": bucket }),
            Self::Positions(positions) => positions.iter().copied().map(Value::from).collect(),
            Self::Cards(cards) => cards.iter().map(|card| card.label()).map(Value::from).collect(),
        }
    }

    /// Whether a text is the result as canonical JSON.
    #[must_use]
    pub fn is_canonical(&self, text: &[u8]) -> bool {
        match self {
            // The commonest by far, without building anything.
            Self::Number(number) => json::number_is(*number, text),
            Self::Plinko { .. } | Self::Positions(_) | Self::Cards(_) => self.canonical().as_bytes() == text,
        }
    }

    /// The result as canonical JSON, the form in which results are compared.
    #[must_use]
    pub fn canonical(&self) -> String {
        json::canonical(&self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The highest float there is.
    const TOP: f64 = 4_294_967_295.0 / 4_294_967_296.0;

    fn play(game: &str, params: Value) -> Play {
        Play::new(game, Some(&params)).unwrap()
    }

    fn all(game: &str, params: Value, float: f64) -> Value {
        play(game, params).map(std::iter::repeat(float)).to_json()
    }

    #[track_caller]
    fn refused(game: &str, params: Value, field: &str) {
        let error = Play::new(game, Some(&params)).expect_err(field);
        assert_eq!(error.field, field, "{error}");
    }

    #[test]
    fn a_text_is_canonical_exactly_if_it_is_the_canonical_text() {
        let results = [
            GameResult::Number(0.0),
            GameResult::Number(-0.0),
            GameResult::Number(100.0),
            GameResult::Number(31.11),
            GameResult::Number(85_740_000.0),
            GameResult::Plinko { path: vec![0, 1], bucket: 1 },
            GameResult::Positions(vec![3, 24]),
            GameResult::Cards(vec![Card::at(0), Card::at(51)]),
        ];
        for result in results {
            let text = result.canonical();
            assert!(result.is_canonical(text.as_bytes()), "{text}");
            for other in [format!("{text} "), format!("{text}0"), text[1..].to_owned(), String::new()] {
                assert!(!result.is_canonical(other.as_bytes()), "{other}");
            }
        }
    }

    #[test]
    fn name_round_trips_and_nothing_else_is_a_game() {
        for game in Game::ALL {
            assert_eq!(game.name().parse(), Ok(game));
        }
        for name in ["", "Dice", "dice ", "crash", "toString", "x-dice"] {
            assert_eq!(name.parse::<Game>().unwrap_err().field, "game");
        }
    }

    #[test]
    fn defaults_are_filled_in() {
        for (game, params) in [
            ("dice", json!({})),
            ("limbo", json!({"houseEdge": 0.01})),
            ("roulette", json!({})),
            ("wheel", json!({"segments": 10})),
            ("plinko", json!({"rows": 16})),
            ("mines", json!({"mines": 3})),
            ("keno", json!({"draws": 10})),
            ("blackjack", json!({"decks": 1})),
            ("hilo", json!({"decks": 1})),
        ] {
            assert_eq!(Value::Object(Play::new(game, None).unwrap().params()), params);
            assert_eq!(Value::Object(play(game, json!({})).params()), params);
            assert_eq!(Value::Object(play(game, params.clone()).params()), params);
        }
    }

    #[test]
    fn params_are_bounded_at_just_below_and_above() {
        for (game, name, min, max) in [
            ("wheel", "segments", 2, 100),
            ("plinko", "rows", 8, 16),
            ("mines", "mines", 1, 24),
            ("keno", "draws", 1, 40),
            ("blackjack", "decks", 1, 8),
            ("hilo", "decks", 1, 8),
        ] {
            let field = format!("params.{name}");
            play(game, json!({ name: min }));
            play(game, json!({ name: max }));
            play(game, json!({ name: f64::from(min) }));
            for bad in [json!(min - 1), json!(max + 1), json!(f64::from(min) + 0.5), json!(-min), json!(1e300)] {
                refused(game, json!({ name: bad }), &field);
            }
        }
        play("limbo", json!({"houseEdge": 0}));
        play("limbo", json!({"houseEdge": -0.0}));
        play("limbo", json!({"houseEdge": 0.5}));
        refused("limbo", json!({"houseEdge": -5e-324}), "params.houseEdge");
        refused("limbo", json!({"houseEdge": 0.5 + f64::EPSILON}), "params.houseEdge");
    }

    #[test]
    fn params_out_of_form_are_refused() {
        for bad in [json!(null), json!("16"), json!([16]), json!({}), json!(true)] {
            refused("plinko", json!({ "rows": bad }), "params.rows");
        }
        refused("plinko", json!({"rows": 8, "decks": 1}), "params.decks");
        refused("dice", json!({"rows": 8}), "params.rows");
        refused("dice", json!({"houseEdge": null}), "params.houseEdge");
        for bad in [json!(null), json!([]), json!("x"), json!(1)] {
            refused("dice", bad, "params");
        }
        refused("poker", json!(null), "game");
    }

    #[test]
    fn single_float_games_at_both_ends_of_the_range() {
        assert_eq!(all("dice", json!({}), 0.0), json!(0));
        assert_eq!(all("dice", json!({}), TOP), json!(100));
        assert_eq!(all("roulette", json!({}), 0.0), json!(0));
        assert_eq!(all("roulette", json!({}), TOP), json!(36));
        for segments in [2, 10, 100] {
            assert_eq!(all("wheel", json!({ "segments": segments }), 0.0), json!(0));
            assert_eq!(all("wheel", json!({ "segments": segments }), TOP), json!(segments - 1));
        }
    }

    #[test]
    fn limbo_is_at_least_one() {
        assert_eq!(all("limbo", json!({"houseEdge": 0}), 0.0), json!(100_000_000));
        assert_eq!(all("limbo", json!({"houseEdge": 0.5}), 0.0), json!(50_000_000));
        assert_eq!(all("limbo", json!({"houseEdge": 0.5}), TOP), json!(1));
        assert_eq!(all("limbo", json!({"houseEdge": 0}), 0.5), json!(1.99));
    }

    #[test]
    fn limbo_multiplies_in_the_order_of_the_specification() {
        // Multiplying by 100 before the edge would give 83472986.18 and 85739999.99. No published vector shows it.
        assert_eq!(all("limbo", json!({"houseEdge": 0.1264}), 2.0 / 4_294_967_296.0), json!(83_472_986.17));
        assert_eq!(all("limbo", json!({"houseEdge": 0.1426}), 0.0), json!(85_740_000));
    }

    #[test]
    fn plinko_goes_right_from_one_half() {
        let below = 2_147_483_647.0 / 4_294_967_296.0;
        assert_eq!(all("plinko", json!({"rows": 8}), below), json!({"path": vec![0; 8], "bucket": 0}));
        assert_eq!(all("plinko", json!({"rows": 16}), 0.5), json!({"path": vec![1; 16], "bucket": 16}));
    }

    #[test]
    fn mines_and_keno_are_ascending() {
        // With the highest float nothing moves; with zeros each item moves one place down and 0 goes last.
        assert_eq!(all("mines", json!({"mines": 3}), TOP), json!([0, 1, 2]));
        assert_eq!(all("mines", json!({"mines": 24}), 0.0), json!((1..25).collect::<Vec<_>>()));
        assert_eq!(all("keno", json!({"draws": 40}), 0.0), json!((1..=40).collect::<Vec<_>>()));
        assert_eq!(all("keno", json!({"draws": 1}), 0.0), json!([2]));
    }

    #[test]
    fn cards_are_dealt_in_order_from_every_deck() {
        let cards = all("hilo", json!({"decks": 8}), TOP);
        assert_eq!(cards.as_array().unwrap().len(), 416);
        assert_eq!((&cards[0], &cards[51], &cards[52]), (&json!("AC"), &json!("KS"), &json!("AC")));
        assert_eq!(all("blackjack", json!({"decks": 8}), 0.25), all("hilo", json!({"decks": 8}), 0.25));
    }

    #[test]
    fn exactly_the_stated_floats_are_taken() {
        for game in Game::ALL {
            let limits = match game.param() {
                Some(p) => vec![json!({ p.name: p.min }), json!({ p.name: p.max })],
                None => vec![json!({})],
            };
            for params in limits {
                let play = play(game.name(), params);
                let mut taken = 0;
                let _ = play.map(std::iter::repeat_with(|| {
                    taken += 1;
                    0.25
                }));
                assert_eq!(taken, play.float_count(), "{play:?}");
            }
        }
        assert_eq!(play("blackjack", json!({"decks": 8})).cursor(), 51);
        assert_eq!(play("plinko", json!({"rows": 8})).cursor(), 0);
        assert_eq!(play("plinko", json!({"rows": 9})).cursor(), 1);
    }
}
