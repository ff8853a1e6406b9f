//! A client's list of edges, and the choice of one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::edges::{EDGES_MAX, Edge, URL_BYTES_MAX};
use protocol::{Code, Timestamp};
use serde::{Deserialize, Serialize};

/// Age of a list at which a client asks for a new one before it connects.
const LIST_RENEWAL_AGE: Duration = Duration::from_secs(60 * 60);

/// Age up to which a client uses a list if it gets no other.
const LIST_USABLE_AGE: Duration = Duration::from_secs(24 * 60 * 60);

/// Time for which a client avoids an edge after a connection to it failed, or after its boat sent
/// the client away.
const FAILURE_TTL: Duration = Duration::from_secs(60);

/// Interval between requests for a list, while an edge is known.
const LIST_REQUEST_INTERVAL: Duration = Duration::from_secs(60);

/// A client's list of edges, which outlasts its process, and its recently failed edges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct EdgeBook {
    list: Vec<Edge>,
    listed_at: Timestamp,
    /// Time of the last connection to each edge that failed, or whose boat sent the client away.
    #[serde(skip)]
    failed: BTreeMap<String, Timestamp>,
    #[serde(skip)]
    asked_at: Option<Timestamp>,
}

impl EdgeBook {
    /// Whether the client should ask for a new list, which then counts as asked for now: no usable
    /// list; or an hour old, dated in the future or with every edge failed, and the last request a
    /// minute ago.
    pub(super) fn asks(&mut self, now: Timestamp) -> bool {
        let is_old = self.listed_at > now || now.since(self.listed_at) >= LIST_RENEWAL_AGE;
        let has_asked = |at: Timestamp| at <= now && now.since(at) < LIST_REQUEST_INTERVAL;
        let should_ask = match self.choose(None, now, 0) {
            None => true,
            Some(_) if self.asked_at.is_some_and(has_asked) => false,
            Some(_) => is_old || self.all_failed(now),
        };
        if should_ask {
            self.asked_at = Some(now);
        }
        should_ask
    }

    /// Whether every edge has failed.
    pub(super) fn all_failed(&self, now: Timestamp) -> bool {
        self.list.iter().all(|edge| self.has_failed(&edge.url, now))
    }

    /// Takes a list. An empty list means that discovery is new, not that clients must stay away:
    /// the previous list stays. False if there is nothing new to store.
    pub(super) fn learn(&mut self, mut list: Vec<Edge>, now: Timestamp) -> bool {
        list.retain(|edge| edge.url.len() <= URL_BYTES_MAX);
        list.truncate(EDGES_MAX);
        if list.is_empty() {
            return false;
        }
        (self.list, self.listed_at) = (list, now);
        true
    }

    /// Edge for the next connection; see [`choose`]. `None` without a list younger than a day.
    pub(super) fn choose(
        &self,
        zone: Option<&str>,
        now: Timestamp,
        at_random: u64,
    ) -> Option<&Edge> {
        if now.since(self.listed_at) > LIST_USABLE_AGE {
            return None;
        }
        let failed_urls = self.failed.keys().filter(|url| self.has_failed(url, now));
        choose(&self.list, zone, &failed_urls.cloned().collect(), at_random)
    }

    /// Records that a connection to this edge failed, or that its boat sent the client away: see
    /// [`blames_edge`].
    pub(super) fn fail(&mut self, url: &str, now: Timestamp) {
        self.failed
            .retain(|_, at| now.since(*at) < FAILURE_TTL && *at <= now);
        self.failed.insert(url.to_owned(), now);
    }

    fn has_failed(&self, url: &str, now: Timestamp) -> bool {
        let at = self.failed.get(url);
        at.is_some_and(|at| now.since(*at) < FAILURE_TTL)
    }
}

/// True for a close code that counts against the edge: the boat leaves or has no room. Other codes
/// concern the client or its network, and the same edge may do.
pub(super) const fn blames_edge(code: Code) -> bool {
    matches!(code, Code::Draining | Code::Full | Code::Reconnect)
}

/// Chooses an edge: not failed before failed, then with room before full, then of the client's own
/// zone before others, and among those by weight; evenly if none has room. `at_random` is uniform
/// over all numbers. `None` if there are no edges.
fn choose<'a>(
    edges: &'a [Edge],
    zone: Option<&str>,
    failed_urls: &BTreeSet<String>,
    at_random: u64,
) -> Option<&'a Edge> {
    let rank = |edge: &Edge| {
        let is_near = zone.is_some() && edge.zone.as_deref() == zone;
        // Room elsewhere is worth more than a near edge that is full.
        (failed_urls.contains(&edge.url), edge.weight == 0, !is_near)
    };
    let best = edges.iter().map(rank).min()?;
    let nearest = || edges.iter().filter(|edge| rank(edge) == best);
    let weight = |edge: &Edge| u128::from(edge.weight.max(1));
    let total: u128 = nearest().map(weight).sum();
    // Below `total`, as the number is below 2^64; the sum of 64-bit weights is far from overflowing
    // with it.
    let mut place = scaled(at_random, total);
    nearest().find(|edge| match place.checked_sub(weight(edge)) {
        Some(remaining) => {
            place = remaining;
            false
        }
        None => true,
    })
}

/// `at_random` of 2^64 parts of `total`, without leaving 128 bits.
const fn scaled(at_random: u64, total: u128) -> u128 {
    let (high, low) = (total >> 64, total & u64::MAX as u128);
    high * at_random as u128 + ((low * at_random as u128) >> 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edge(url: &str, zone: Option<&str>, weight: u64) -> Edge {
        Edge {
            url: url.to_owned(),
            zone: zone.map(str::to_owned),
            weight,
        }
    }

    fn none() -> BTreeSet<String> {
        BTreeSet::new()
    }

    #[test]
    fn room_decides_among_equals() {
        let list = [edge("a", None, 1), edge("b", None, 0), edge("c", None, 3)];
        let mut choices = BTreeMap::<&str, u32>::new();
        for n in 0..1_000 {
            let at_random = u64::MAX / 2_000 * (2 * n + 1);
            let edge = choose(&list, None, &none(), at_random).expect("an edge");
            *choices.entry(&edge.url).or_default() += 1;
        }
        assert_eq!(choices, BTreeMap::from([("a", 250), ("c", 750)]));
        let extremes =
            [0, u64::MAX].map(|n| choose(&list, None, &none(), n).map(|edge| &*edge.url));
        assert_eq!(extremes, [Some("a"), Some("c")]);
    }

    #[test]
    fn the_own_zone_comes_first_while_it_has_room() {
        let list = [
            edge("far", Some("east"), 1_000_000),
            edge("near", Some("west"), 1),
            edge("nowhere", None, 1_000_000),
        ];
        for at_random in [0, u64::MAX / 2, u64::MAX] {
            let near = choose(&list, Some("west"), &none(), at_random);
            assert_eq!(near, Some(&list[1]));
        }
        let full_near = [list[0].clone(), edge("near", Some("west"), 0)];
        assert_eq!(
            choose(&full_near, Some("west"), &none(), 9),
            Some(&full_near[0])
        );
        // A client without a zone is near no boat, not even one without a zone.
        assert_eq!(choose(&list, None, &none(), 0), Some(&list[0]));
    }

    #[test]
    fn an_edge_that_failed_is_left_while_there_is_another() {
        let list = [edge("near", Some("west"), 100), edge("far", None, 0)];
        let mut failed_urls = BTreeSet::from(["near".to_owned()]);
        assert_eq!(choose(&list, Some("west"), &failed_urls, 0), Some(&list[1]));
        failed_urls.insert("far".to_owned());
        assert_eq!(choose(&list, Some("west"), &failed_urls, 0), Some(&list[0]));
        assert_eq!(choose(&[], Some("west"), &failed_urls, 0), None);
    }

    const NOW: Timestamp = Timestamp::from_millis(1_700_000_000_000);

    fn book(list: &[Edge]) -> EdgeBook {
        let mut book = EdgeBook::default();
        assert!(book.learn(list.to_vec(), NOW));
        book
    }

    #[test]
    fn a_list_is_renewed_after_an_hour_and_good_for_a_day() {
        let minutes = |n: u64| NOW + Duration::from_secs(n * 60);
        let list = [edge("a", None, 1)];
        let book = book(&list);
        assert!(EdgeBook::default().asks(NOW));
        assert_eq!(EdgeBook::default().choose(None, NOW, 0), None);
        for (at, asks, is_good) in [
            (NOW, false, true),
            (minutes(59), false, true),
            (minutes(60), true, true),
            (minutes(24 * 60), true, true),
            (minutes(24 * 60 + 1), true, false),
        ] {
            assert_eq!(book.clone().asks(at), asks, "{at:?}");
            assert_eq!(book.choose(None, at, 0).is_some(), is_good, "{at:?}");
        }
        // A clock that was set back tells nothing about the age, and the list may do.
        let earlier = Timestamp::from_millis(NOW.millis() - 1);
        assert!(book.clone().asks(earlier));
        assert_eq!(book.choose(None, earlier, 0), Some(&list[0]));
    }

    #[test]
    fn an_edge_that_failed_is_left_for_a_minute() {
        let list = [edge("a", None, 1), edge("b", None, 1)];
        let mut book = book(&list);
        book.fail("a", NOW);
        let at = |seconds: u64| NOW + Duration::from_secs(seconds);
        assert_eq!(book.choose(None, at(59), 0), Some(&list[1]));
        assert!(!book.asks(at(59)), "there is another");
        assert_eq!(book.choose(None, at(60), 0), Some(&list[0]));
        book.fail("a", at(1));
        book.fail("b", at(2));
        assert!(book.asks(at(60)), "each has failed");
        assert_eq!(book.choose(None, at(60), 0), Some(&list[0]));
        // Expired failures take no memory.
        book.fail("c", at(1000));
        assert_eq!(book.failed.len(), 1);
    }

    // Clients of a station that does not answer used to wait for it before each connection.
    #[test]
    fn a_list_is_asked_for_once_a_minute_while_an_edge_is_known() {
        let mut book = book(&[edge("a", None, 1)]);
        let at = |seconds: u64| NOW + LIST_RENEWAL_AGE + Duration::from_secs(seconds);
        let requests = [0, 1, 59, 60, 61].map(|seconds| book.asks(at(seconds)));
        assert_eq!(requests, [true, false, false, true, false]);
        let mut empty_book = EdgeBook::default();
        assert!(
            empty_book.asks(NOW) && empty_book.asks(NOW),
            "nothing else is known"
        );
    }

    #[test]
    fn boats_that_leave_or_are_full_are_to_blame() {
        let blamed_codes: Vec<Code> = (Code::ALL.into_iter())
            .filter(|code| blames_edge(*code))
            .collect();
        assert_eq!(blamed_codes, [Code::Draining, Code::Reconnect, Code::Full]);
    }

    #[test]
    fn a_list_of_nobody_or_of_monsters_is_none() {
        let list = [edge("a", None, 1)];
        let mut book = book(&list);
        let later = NOW + Duration::from_secs(1);
        let monster = edge(&"x".repeat(URL_BYTES_MAX + 1), None, 1);
        for rejected in [vec![], vec![monster]] {
            assert!(!book.learn(rejected, later));
            assert_eq!(book.list, list);
        }
        let long_list = vec![list[0].clone(); EDGES_MAX + 1];
        assert!(book.learn(long_list, later));
        assert_eq!(book.list.len(), EDGES_MAX);
        let text = serde_json::to_string(&book).expect("written");
        let parsed: EdgeBook = serde_json::from_str(&text).expect("read");
        assert_eq!(parsed, book);
    }

    #[test]
    fn where_none_has_room_each_is_tried() {
        let list = [edge("a", None, 0), edge("b", None, 0)];
        let choices = [0, u64::MAX].map(|n| choose(&list, None, &none(), n));
        assert_eq!(choices, [Some(&list[0]), Some(&list[1])]);
    }

    #[test]
    fn weights_do_not_overflow() {
        let list = vec![edge("a", None, u64::MAX); EDGES_MAX];
        for at_random in [0, 1, u64::MAX] {
            assert!(choose(&list, None, &none(), at_random).is_some());
        }
    }
}
