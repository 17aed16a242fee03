//! Whether results are spread as their game says: observed against expected, by chi-square.
//!
//! Every record may follow from its seed and the whole still be a selection: a house that voids what it would have to pay shows in
//! nothing but the spread of what was left, and of what was taken away. So both are counted here.

use serde::Serialize;
use serde_json::{Map, Value};
use statrs::distribution::{ChiSquared, ContinuousCDF as _};

use crate::gfs::games::{Game, GameResult, KENO_NUMBERS, MINES_TILES, Play};
use crate::gfs::shuffle::DECK;

/// The least that a bin must be expected to hold for the approximation to be good (Cochran's rule).
const EXPECTED_MIN: f64 = 5.0;
/// A spread less likely than this is called unlikely. With one test for each game and its parameters, chance alone gives one in
/// hundreds of runs.
const UNLIKELY: f64 = 1e-4;

const DICE_VALUES: u64 = 10_001;
const DICE_BINS: usize = 100;
/// Where limbo's bins begin, in multiples; the first holds what is exactly 1.
const LIMBO_BINS: [f64; 14] = [1.0, 1.01, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0, 100.0, 1_000.0, 10_000.0];
/// Bins of the first float, where a game is not ours.
const FLOAT_BINS: usize = 20;

/// What is counted: the results of a game with its parameters, or the first floats of nonces whose games are not ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Subject {
    /// Results of a game.
    Play(Play),
    /// First floats.
    Floats,
}

impl Subject {
    fn bins(&self) -> usize {
        match self {
            Self::Floats => FLOAT_BINS,
            Self::Play(play) => match play.game() {
                Game::Dice => DICE_BINS,
                Game::Limbo => LIMBO_BINS.len(),
                Game::Roulette => 37,
                Game::Wheel => play.whole_param(),
                Game::Plinko => play.whole_param() + 1,
                Game::Mines => MINES_TILES,
                Game::Keno => KENO_NUMBERS,
                Game::Blackjack | Game::Hilo => DECK,
            },
        }
    }

    /// How likely each bin is, for one result. Those of mines and keno add up to more than one: a result is in several.
    fn probabilities(&self) -> Vec<f64> {
        let bins = self.bins();
        let uniform = |share: f64| vec![share / bins as f64; bins];
        let Self::Play(play) = self else { return uniform(1.0) };
        match play.game() {
            Game::Dice => {
                let mut shares = vec![0.0; bins];
                (0..DICE_VALUES).for_each(|value| shares[dice_bin(value)] += 1.0 / DICE_VALUES as f64);
                shares
            }
            Game::Limbo => {
                let edge = play.param();
                // At least x means f * 10^8 + 1 <= 10^8 * (1 - edge) / x.
                let at_least = |x: f64| if x <= 1.0 { 1.0 } else { ((1.0 - edge) / x - 1e-8).max(0.0) };
                let ends = LIMBO_BINS[1..].iter().map(|&x| at_least(x)).chain([0.0]);
                LIMBO_BINS.iter().zip(ends).map(|(&begin, end)| at_least(begin) - end).collect()
            }
            Game::Plinko => {
                let rows = play.whole_param();
                let mut ways = 1.0;
                (0..=rows)
                    .map(|right| {
                        let share = ways / 2f64.powi(i32::try_from(rows).unwrap_or(i32::MAX));
                        ways = ways * (rows - right) as f64 / (right + 1) as f64;
                        share
                    })
                    .collect()
            }
            Game::Mines | Game::Keno => uniform(play.whole_param() as f64),
            Game::Roulette | Game::Wheel | Game::Blackjack | Game::Hilo => uniform(1.0),
        }
    }

    /// How many bins one result is in, where it is in several, drawn without putting back.
    fn drawn(&self) -> Option<usize> {
        match self {
            Self::Play(play) if matches!(play.game(), Game::Mines | Game::Keno) => Some(play.whole_param()),
            Self::Play(_) | Self::Floats => None,
        }
    }
}

fn dice_bin(value: u64) -> usize {
    // At most 10,000 * 100 / 10,001.
    (value * DICE_BINS as u64 / DICE_VALUES) as usize
}

/// Results counted by bin.
#[derive(Clone, Debug)]
pub struct Tally {
    subject: Subject,
    bins: Vec<u64>,
    sample: u64,
}

impl Tally {
    /// An empty one.
    #[must_use]
    pub fn new(subject: Subject) -> Self {
        Self { bins: vec![0; subject.bins()], subject, sample: 0 }
    }

    /// Counts a result of the tally's own game.
    pub fn count(&mut self, result: &GameResult) {
        self.sample += 1;
        match result {
            GameResult::Number(number) => {
                let bin = match self.subject {
                    Subject::Play(play) if play.game() == Game::Dice => dice_bin((number * 100.0).round() as u64),
                    Subject::Play(play) if play.game() == Game::Limbo => {
                        LIMBO_BINS.iter().rposition(|begin| number >= begin).unwrap_or(0)
                    }
                    _ => *number as usize,
                };
                self.bins[bin] += 1;
            }
            GameResult::Plinko { bucket, .. } => self.bins[*bucket as usize] += 1,
            GameResult::Positions(positions) => {
                let base = usize::from(matches!(self.subject, Subject::Play(play) if play.game() == Game::Keno));
                positions.iter().for_each(|&position| self.bins[usize::from(position) - base] += 1);
            }
            // The order of the rest is a matter of the same shuffle.
            GameResult::Cards(cards) => {
                if let Some(first) = cards.first() {
                    self.bins[first.index()] += 1;
                }
            }
        }
    }

    /// Counts a first float, 0 to below 1.
    pub fn count_float(&mut self, float: f64) {
        self.sample += 1;
        self.bins[(float * FLOAT_BINS as f64) as usize] += 1;
    }

    /// Adds what another one of the same subject counted.
    pub fn add(&mut self, other: &Self) {
        debug_assert_eq!(self.subject, other.subject);
        self.sample += other.sample;
        self.bins.iter_mut().zip(&other.bins).for_each(|(bin, more)| *bin += more);
    }

    /// Results counted.
    #[must_use]
    pub fn sample(&self) -> u64 {
        self.sample
    }

    /// What is counted.
    #[must_use]
    pub fn subject(&self) -> Subject {
        self.subject
    }

    /// The test.
    #[must_use]
    pub fn distribution(&self) -> Distribution {
        let (game, params) = match &self.subject {
            Subject::Play(play) => (play.game().name(), play.params()),
            Subject::Floats => ("floats", Map::new()),
        };
        let test = match self.subject.drawn() {
            Some(drawn) => self.test_drawn(drawn),
            None => self.test_pooled(),
        };
        Distribution {
            game,
            params,
            sample: self.sample,
            unlikely: test.as_ref().is_some_and(|test| test.p_value < UNLIKELY),
            test,
        }
    }

    /// Pearson's test, neighbouring bins pooled until each is expected to hold enough.
    fn test_pooled(&self) -> Option<ChiSquare> {
        let mut pooled: Vec<(f64, f64)> = Vec::new();
        let (mut observed, mut expected) = (0.0, 0.0);
        for (&count, share) in self.bins.iter().zip(self.subject.probabilities()) {
            observed += count as f64;
            expected += share * self.sample as f64;
            if expected >= EXPECTED_MIN {
                pooled.push((observed, expected));
                (observed, expected) = (0.0, 0.0);
            }
        }
        if let Some(last) = pooled.last_mut() {
            last.0 += observed;
            last.1 += expected;
        }
        let statistic = pooled.iter().map(|(observed, expected)| (observed - expected).powi(2) / expected).sum();
        ChiSquare::new(statistic, pooled.len())
    }

    /// The same where each result takes `drawn` of the bins without putting back: counts of different bins then hang together more
    /// than Pearson's test expects, by (N - 1) / (N - drawn), N being the number of bins.
    fn test_drawn(&self, drawn: usize) -> Option<ChiSquare> {
        let bins = self.bins.len();
        let expected = self.sample as f64 * drawn as f64 / bins as f64;
        if drawn >= bins || expected < EXPECTED_MIN {
            return None;
        }
        let pearson: f64 = self.bins.iter().map(|&count| (count as f64 - expected).powi(2) / expected).sum();
        ChiSquare::new(pearson * (bins - 1) as f64 / (bins - drawn) as f64, bins)
    }
}

/// How the results of a game are spread.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Distribution {
    /// The game, or `floats` for the first floats of nonces whose games are not ours.
    pub game: &'static str,
    /// Its parameters.
    pub params: Map<String, Value>,
    /// Results counted.
    pub sample: u64,
    /// The test; none when there are too few results for one.
    pub test: Option<ChiSquare>,
    /// Chance alone gives such a spread less than once in ten thousand times.
    pub unlikely: bool,
}

/// A chi-square test.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ChiSquare {
    /// The sum of squared differences, each over what was expected.
    pub statistic: f64,
    /// Bins after pooling.
    pub bins: usize,
    /// How likely chance alone gives a statistic as large as this.
    pub p_value: f64,
}

impl ChiSquare {
    fn new(statistic: f64, bins: usize) -> Option<Self> {
        let degrees = bins.checked_sub(1).filter(|&degrees| degrees > 0)?;
        let distribution = ChiSquared::new(degrees as f64).ok()?;
        Some(Self { statistic, bins, p_value: distribution.sf(statistic) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gfs::floats::SeedPair;
    use crate::gfs::seed::{ClientSeed, ServerSeed};
    use serde_json::json;

    fn plays() -> Vec<Play> {
        [
            ("dice", json!({})),
            ("limbo", json!({})),
            ("limbo", json!({"houseEdge": 0})),
            ("limbo", json!({"houseEdge": 0.5})),
            ("roulette", json!({})),
            ("wheel", json!({"segments": 2})),
            ("wheel", json!({"segments": 100})),
            ("plinko", json!({"rows": 8})),
            ("plinko", json!({})),
            ("mines", json!({"mines": 1})),
            ("mines", json!({"mines": 24})),
            ("keno", json!({})),
            ("keno", json!({"draws": 39})),
            ("blackjack", json!({})),
            ("hilo", json!({"decks": 2})),
        ]
        .map(|(game, params)| Play::new(game, Some(&params)).unwrap())
        .to_vec()
    }

    fn pair() -> SeedPair {
        let seed = "5c1f7d3e8a2b4c6d9e0f1a2b3c4d5e6f7a8b9c0d1e2f3a4b5c6d7e8f9a0b1c2d";
        SeedPair::new(&ServerSeed::parse(seed).unwrap(), &ClientSeed::parse("spread").unwrap())
    }

    #[test]
    fn probabilities_add_up() {
        for play in plays() {
            let subject = Subject::Play(play);
            let shares = subject.probabilities();
            let sum: f64 = shares.iter().sum();
            assert!((sum - subject.drawn().unwrap_or(1) as f64).abs() < 1e-9, "{play:?}: {sum}");
            assert!(shares.iter().all(|share| *share >= 0.0), "{play:?}: {shares:?}");
        }
    }

    /// Of 20 disjoint samples of every game the p-values must be spread too: neither all small (a wrong expectation) nor all large.
    #[test]
    fn honest_results_are_likely() {
        let pair = pair();
        for play in plays() {
            let p_values: Vec<f64> = (0..20)
                .map(|sample| {
                    let mut tally = Tally::new(Subject::Play(play));
                    (0..2_000).for_each(|nonce| tally.count(&play.result(&pair, sample * 2_000 + nonce)));
                    let found = tally.distribution();
                    assert!(!found.unlikely, "{found:?}");
                    found.test.unwrap().p_value
                })
                .collect();
            let mean = p_values.iter().sum::<f64>() / p_values.len() as f64;
            assert!((0.25..0.75).contains(&mean), "{play:?}: {p_values:?}");
        }
    }

    #[test]
    fn a_selection_of_honest_results_is_unlikely() {
        let pair = pair();
        for play in plays() {
            let mut tally = Tally::new(Subject::Play(play));
            for nonce in 0..6_000 {
                let result = play.result(&pair, nonce);
                let kept = match &result {
                    GameResult::Number(number) => (*number as u64).is_multiple_of(2) || nonce % 2 > 0,
                    GameResult::Plinko { bucket, .. } => *bucket < 6 || nonce % 2 > 0,
                    GameResult::Positions(positions) => !positions.contains(&1) || nonce % 2 > 0,
                    GameResult::Cards(cards) => cards[0].index() != 0,
                };
                if kept {
                    tally.count(&result);
                }
            }
            let found = tally.distribution();
            assert!(found.unlikely, "{found:?}");
        }
    }

    #[test]
    fn too_few_results_are_not_judged() {
        let play = Play::new("roulette", None).unwrap();
        let mut tally = Tally::new(Subject::Play(play));
        assert_eq!(tally.distribution().test, None);
        (0..9).for_each(|nonce| tally.count(&play.result(&pair(), nonce)));
        assert_eq!(tally.distribution().test, None);
        // Every number is drawn: nothing to test.
        let all = Play::new("keno", Some(&json!({"draws": 40}))).unwrap();
        let mut tally = Tally::new(Subject::Play(all));
        (0..100).for_each(|nonce| tally.count(&all.result(&pair(), nonce)));
        assert_eq!(tally.distribution().test, None);
    }

    #[test]
    fn floats_are_counted_and_tallies_add() {
        let (mut one, mut two) = (Tally::new(Subject::Floats), Tally::new(Subject::Floats));
        for number in 0..10_000_u32 {
            let float = f64::from(number) / 10_000.0;
            if number % 2 == 0 { one.count_float(float) } else { two.count_float(float) }
        }
        one.add(&two);
        let found = one.distribution();
        assert_eq!((found.sample, found.game), (10_000, "floats"));
        assert!(found.test.unwrap().statistic < 1e-9);
    }
}
