//! Who guesses tokens: failures counted by client address, within a bound of memory.
//!
//! Keeps I12. An address that sent too many unknown tokens waits before another of its tokens is looked up. Tokens that were valid not long
//! ago are not held up by it, nor is anybody at another address. There are 2^256 tokens, so that this does not keep one from being found: it
//! keeps a guesser from making the database work.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::HeaderMap;
use axum::http::request::Parts;
use ipnet::IpNet;

/// Addresses remembered at the most: in each of two generations.
const ADDRESSES_MAX: usize = 8_192;

/// How long a generation collects. A failure counts for one to two of them.
const GENERATION: Duration = Duration::from_secs(30);

/// The address that a connection came from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Peer(pub(super) IpAddr);

/// Where a request came from: the connection's other end, or what trusted proxies say of whom they forward. `None` without a connection.
pub(super) fn client_address(parts: &Parts, trusted: &[IpNet]) -> Option<IpAddr> {
    let Peer(peer) = parts.extensions.get()?;
    Some(forwarded_for(peer.to_canonical(), &parts.headers, trusted))
}

/// From the right, each address was added by the hop after it: it counts as long as that hop is trusted. What stands left of the first
/// stranger is the stranger's word.
fn forwarded_for(peer: IpAddr, headers: &HeaderMap, trusted: &[IpNet]) -> IpAddr {
    let is_trusted = |address: &IpAddr| trusted.iter().any(|net| net.contains(address));
    let mut client = peer;
    let texts = headers.get_all("x-forwarded-for").iter().rev();
    for hop in texts.flat_map(|text| text.to_str().unwrap_or_default().rsplit(',')) {
        if !is_trusted(&client) {
            break;
        }
        // What is no address says nothing of who is behind it: the proxy itself is held responsible.
        let Some(address) = hop_address(hop.trim()) else { break };
        client = address.to_canonical();
    }
    client
}

/// An address as proxies write it: alone, or with the port that it came from, IPv6 then in brackets.
fn hop_address(text: &str) -> Option<IpAddr> {
    let bracketed = || text.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok().map(IpAddr::V6);
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    text.parse().ok().or_else(with_port).or_else(bracketed)
}

/// Whoever has an IPv6 address has a /64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
    }
}

/// Failures by address.
pub(super) struct Guesses {
    failures_max: u32,
    counted: Mutex<Counted>,
}

struct Counted {
    now: HashMap<IpAddr, u32>,
    before: HashMap<IpAddr, u32>,
    /// When `now` began.
    since: Instant,
}

impl Counted {
    /// Begins another generation when this one is old, or full: then the oldest failures are forgotten, never who fails now.
    fn turn(&mut self, at: Instant) {
        let age = at.saturating_duration_since(self.since);
        if age >= GENERATION || self.now.len() >= ADDRESSES_MAX {
            self.before = std::mem::take(&mut self.now);
            self.since = at;
        }
        if age >= 2 * GENERATION {
            self.before.clear();
        }
    }
}

impl Guesses {
    pub(super) fn new(failures_max: u32) -> Self {
        let counted = Counted { now: HashMap::new(), before: HashMap::new(), since: Instant::now() };
        Self { failures_max, counted: Mutex::new(counted) }
    }

    /// How long an address has to wait before its next token is looked up.
    pub(super) fn held_for(&self, address: IpAddr) -> Option<Duration> {
        self.held_for_at(address, Instant::now())
    }

    fn held_for_at(&self, address: IpAddr, at: Instant) -> Option<Duration> {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.turn(at);
        let of = |generation: &HashMap<IpAddr, u32>| generation.get(&network(address)).copied().unwrap_or_default();
        let (now, before) = (of(&counted.now), of(&counted.before));
        if now.saturating_add(before) < self.failures_max {
            return None;
        }
        // Those of before are forgotten at the next turn, those of now at the one after it.
        let turns = if now < self.failures_max { 1 } else { 2 };
        Some((turns * GENERATION).saturating_sub(at.saturating_duration_since(counted.since)))
    }

    /// Counts a token that is not known.
    pub(super) fn failed(&self, address: IpAddr) {
        self.failed_at(address, Instant::now());
    }

    fn failed_at(&self, address: IpAddr, at: Instant) {
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        counted.turn(at);
        let failures = counted.now.entry(network(address)).or_default();
        *failures = failures.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_held_after_its_failures_and_let_go_when_they_are_old() {
        let guesses = Guesses::new(3);
        let start = Instant::now();
        for _ in 0..3 {
            assert_eq!(guesses.held_for_at(ip("192.0.2.1"), start), None);
            guesses.failed_at(ip("192.0.2.1"), start);
        }
        let held = guesses.held_for_at(ip("192.0.2.1"), start).unwrap();
        assert!(held > GENERATION && held <= 2 * GENERATION, "{held:?}");
        assert_eq!(guesses.held_for_at(ip("192.0.2.2"), start), None, "somebody else");
        // A failure counts on in the generation after it.
        assert!(guesses.held_for_at(ip("192.0.2.1"), start + GENERATION + Duration::from_secs(1)).is_some());
        assert_eq!(guesses.held_for_at(ip("192.0.2.1"), start + 3 * GENERATION), None);
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_together() {
        let guesses = Guesses::new(2);
        guesses.failed(ip("2001:db8::1"));
        guesses.failed(ip("2001:db8::2"));
        assert!(guesses.held_for(ip("2001:db8::3")).is_some());
        assert_eq!(guesses.held_for(ip("2001:db8:0:1::3")), None);
    }

    #[test]
    fn any_number_of_addresses_takes_a_bound_of_memory_and_the_latest_are_known_i12() {
        let guesses = Guesses::new(1);
        let at = Instant::now();
        for number in 0..100_000_u32 {
            guesses.failed_at(IpAddr::from(number.to_be_bytes()), at);
            assert!(guesses.held_for_at(IpAddr::from(number.to_be_bytes()), at).is_some());
        }
        let counted = guesses.counted.lock().unwrap();
        assert!(counted.now.len() <= ADDRESSES_MAX && counted.before.len() <= ADDRESSES_MAX);
    }

    #[test]
    fn forwarded_addresses_count_only_as_far_as_proxies_are_trusted() {
        let trusted: Vec<IpNet> = vec!["10.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()];
        let client = |peer: &str, headers: &[&str]| {
            let mut map = HeaderMap::new();
            for text in headers {
                map.append("x-forwarded-for", HeaderValue::from_str(text).unwrap());
            }
            forwarded_for(ip(peer), &map, &trusted)
        };
        for (peer, headers, expected) in [
            ("192.0.2.9", &["203.0.113.1"][..], "192.0.2.9"),
            ("10.1.1.1", &[], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.1"], "203.0.113.1"),
            ("10.1.1.1", &["203.0.113.7, 203.0.113.1"], "203.0.113.1"),
            ("10.1.1.1", &["203.0.113.7", "203.0.113.1,10.2.2.2"], "203.0.113.1"),
            ("10.1.1.1", &["203.0.113.1", "made up"], "10.1.1.1"),
            ("::1", &["::ffff:203.0.113.1"], "203.0.113.1"),
            ("10.1.1.1", &["203.0.113.1:80"], "203.0.113.1"),
            ("10.1.1.1", &["[2001:db8::1]:443, 10.2.2.2:5678"], "2001:db8::1"),
            ("10.1.1.1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.1.1.1", &["[203.0.113.1]:80"], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.1:65536"], "10.1.1.1"),
            ("10.1.1.1", &["203.0.113.1:"], "10.1.1.1"),
        ] {
            assert_eq!(client(peer, headers), ip(expected), "{peer} {headers:?}");
        }
    }
}
