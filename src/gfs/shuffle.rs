//! The shuffle that four mappings share, and the cards that two of them deal (GFS/1.0 section 4.4).

use std::fmt;

use serde::{Serialize, Serializer};

/// Cards in one deck.
pub const DECK: usize = 52;

/// The most decks in one shuffle.
pub const DECKS_MAX: usize = 8;

/// The longest shuffle.
const SIZE_MAX: usize = DECK * DECKS_MAX;

/// Shuffles `0..size` by the descending Fisher-Yates of the specification, taking exactly `size - 1` floats, and hands
/// the shuffled numbers to `take`. They live on the stack.
///
/// # Panics
/// When `size` is above 416; every caller passes a bound of its game.
pub(super) fn shuffled<T>(size: usize, mut floats: impl Iterator<Item = f64>, take: impl FnOnce(&mut [u16]) -> T) -> T {
    let mut items: [u16; SIZE_MAX] = std::array::from_fn(|i| i as u16);
    let items = &mut items[..size];
    for i in (1..size).rev() {
        // A float stream yields 2^35 numbers, far more than any shuffle takes.
        let float = floats.next().expect("a float stream outlasts every shuffle");
        // Below i + 1, because the float is below 1 and the product is exact (32 + 9 bits).
        let j = (float * (i + 1) as f64).floor() as usize;
        items.swap(i, j);
    }
    take(items)
}

/// One playing card, written rank then suit: `AC`, `TD`, `KS`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Card(u8);

#[rustfmt::skip]
const LABELS: [&str; DECK] = [
    "AC", "2C", "3C", "4C", "5C", "6C", "7C", "8C", "9C", "TC", "JC", "QC", "KC",
    "AD", "2D", "3D", "4D", "5D", "6D", "7D", "8D", "9D", "TD", "JD", "QD", "KD",
    "AH", "2H", "3H", "4H", "5H", "6H", "7H", "8H", "9H", "TH", "JH", "QH", "KH",
    "AS", "2S", "3S", "4S", "5S", "6S", "7S", "8S", "9S", "TS", "JS", "QS", "KS",
];

impl Card {
    /// The card at a shuffled position: `position mod 52` is `suit * 13 + rank`.
    pub(super) const fn at(position: u16) -> Self {
        Self((position % DECK as u16) as u8)
    }

    /// Its place in an unshuffled deck, 0 to 51: suit * 13 + rank.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Rank then suit, such as `TD`.
    #[must_use]
    pub const fn label(self) -> &'static str {
        LABELS[self.0 as usize]
    }
}

impl fmt::Display for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

impl fmt::Debug for Card {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.label())
    }
}

impl Serialize for Card {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.label())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_is_rank_then_suit_in_the_order_of_the_specification() {
        for (suit, s) in "CDHS".chars().enumerate() {
            for (rank, r) in "A23456789TJQK".chars().enumerate() {
                let position = (suit * 13 + rank) as u16;
                assert_eq!(Card::at(position).label(), format!("{r}{s}"));
                assert_eq!(Card::at(position + 7 * 52), Card::at(position));
            }
        }
    }

    #[test]
    fn shuffle_takes_one_float_fewer_than_it_has_items() {
        for size in [1, 2, 25, 40, 52, SIZE_MAX] {
            let mut taken = 0;
            let floats = std::iter::repeat_with(|| {
                taken += 1;
                0.0
            });
            // With zeros every item is swapped with the first, which moves each one place down.
            let order = shuffled(size, floats, |items| items.to_vec());
            assert_eq!(order, (1..size as u16).chain([0]).collect::<Vec<_>>());
            assert_eq!(taken, size - 1);
        }
    }

    #[test]
    fn shuffle_with_the_highest_float_moves_nothing() {
        let highest = f64::from(u32::MAX) / 4_294_967_296.0;
        let order = shuffled(SIZE_MAX, std::iter::repeat(highest), |items| items.to_vec());
        assert_eq!(order, (0..SIZE_MAX as u16).collect::<Vec<_>>());
    }
}
