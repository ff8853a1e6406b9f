//! Edges: addresses at which clients reach boats, and the choice of one.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::drain::{BoatState, Load};

/// Most edges of a list; of more, those with the most room are named.
pub const EDGES_MAX: usize = 256;

/// One address, of one boat or of several behind a balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    pub url: String,
    /// Zone of the boats, where they name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Free seats.
    pub weight: u64,
}

/// Edges of the boats that take clients and have an address for them, in order of address. Boats of one zone that share an
/// address are one edge. A boat that is full stays in the list with the weight 0: its client is told when to come again,
/// which an empty list could not say.
pub fn edges(loads: &[Load]) -> Vec<Edge> {
    let mut weights: BTreeMap<(&str, Option<&str>), u64> = BTreeMap::new();
    for Load { load, .. } in loads {
        let (BoatState::Open, Some(url)) = (load.state, load.url.as_deref()) else {
            continue;
        };
        let weight = weights.entry((url, load.zone.as_deref())).or_default();
        *weight = weight.saturating_add(load.free() as u64);
    }
    let mut edges: Vec<Edge> = (weights.into_iter())
        .map(|((url, zone), weight)| Edge {
            url: url.to_owned(),
            zone: zone.map(str::to_owned),
            weight,
        })
        .collect();
    if edges.len() > EDGES_MAX {
        edges.sort_by(|one, other| other.weight.cmp(&one.weight).then_with(|| one.cmp(other)));
        edges.truncate(EDGES_MAX);
        edges.sort_unstable();
    }
    edges
}

/// The edge to connect to: one that has not failed before one that has, then one of the client's own zone before others, and
/// of those by weight. Evenly where none has room. `at_random` is even over all numbers. `None`: there are no edges.
pub fn choose<'a>(
    edges: &'a [Edge],
    zone: Option<&str>,
    failed: &BTreeSet<String>,
    at_random: u64,
) -> Option<&'a Edge> {
    let rank = |edge: &Edge| {
        let is_near = zone.is_some() && edge.zone.as_deref() == zone;
        // Room elsewhere is worth more than a near edge that is full.
        (failed.contains(&edge.url), edge.weight == 0, !is_near)
    };
    let best = edges.iter().map(rank).min()?;
    let nearest = || edges.iter().filter(|edge| rank(edge) == best);
    let weight = |edge: &Edge| u128::from(edge.weight.max(1));
    let total: u128 = nearest().map(weight).sum();
    // Below `total`, as the number is below 2^64; the sum of 64-bit weights is far from overflowing with it.
    let mut place = scaled(at_random, total);
    nearest().find(|edge| match place.checked_sub(weight(edge)) {
        Some(rest) => {
            place = rest;
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
    use crate::drain::BoatLoad;
    use crate::presence::BoatLife;
    use crate::{BoatId, Incarnation};

    fn boat(n: usize, url: Option<&str>, zone: Option<&str>, free: usize) -> Load {
        Load {
            life: BoatLife {
                boat: BoatId::new(&format!("boat-{n}")).expect("short"),
                incarnation: Incarnation(1),
            },
            load: BoatLoad {
                state: BoatState::Open,
                connections: 10,
                seats: 10 + free,
                zone: zone.map(str::to_owned),
                url: url.map(str::to_owned),
                ..BoatLoad::default()
            },
        }
    }

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
    fn boats_that_take_clients_are_edges() {
        let mut loads = vec![
            boat(1, Some("wss://b"), Some("west"), 5),
            boat(2, Some("wss://a"), None, 7),
            boat(3, None, Some("west"), 9),
            boat(4, Some("wss://b"), Some("west"), 2),
            boat(5, Some("wss://full"), None, 0),
        ];
        for (n, state) in [BoatState::Tight, BoatState::Draining, BoatState::Unknown]
            .into_iter()
            .enumerate()
        {
            let mut leaving = boat(6 + n, Some("wss://c"), None, 50);
            leaving.load.state = state;
            loads.push(leaving);
        }
        let expected = [
            edge("wss://a", None, 7),
            edge("wss://b", Some("west"), 7),
            edge("wss://full", None, 0),
        ];
        assert_eq!(edges(&loads), expected);
        assert_eq!(edges(&[]), []);
    }

    #[test]
    fn a_list_has_an_end_and_names_those_with_room() {
        let many: Vec<Load> = (0..EDGES_MAX + 3)
            .map(|n| boat(n, Some(&format!("wss://{n:03}")), None, n))
            .collect();
        let list = edges(&many);
        assert_eq!(list.len(), EDGES_MAX);
        assert_eq!(EDGES_MAX, 256);
        assert_eq!(list[0], edge("wss://003", None, 3));
        assert!(list.is_sorted());
    }

    #[test]
    fn a_list_is_written_as_clients_read_it() {
        let list = [edge("wss://a", Some("west"), 7), edge("wss://b", None, 0)];
        let text = serde_json::to_string(&list).expect("written");
        let expected =
            r#"[{"url":"wss://a","zone":"west","weight":7},{"url":"wss://b","weight":0}]"#;
        assert_eq!(text, expected);
        let read: Vec<Edge> = serde_json::from_str(&text).expect("read");
        assert_eq!(read, list);
    }

    #[test]
    fn room_decides_among_equals() {
        let list = [edge("a", None, 1), edge("b", None, 0), edge("c", None, 3)];
        let mut chosen = BTreeMap::<&str, u32>::new();
        for n in 0..1_000 {
            let at_random = u64::MAX / 2_000 * (2 * n + 1);
            let edge = choose(&list, None, &none(), at_random).expect("an edge");
            *chosen.entry(&edge.url).or_default() += 1;
        }
        assert_eq!(chosen, BTreeMap::from([("a", 250), ("c", 750)]));
        let ends = [0, u64::MAX].map(|n| choose(&list, None, &none(), n).map(|edge| &*edge.url));
        assert_eq!(ends, [Some("a"), Some("c")]);
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
        let full = [list[0].clone(), edge("near", Some("west"), 0)];
        assert_eq!(choose(&full, Some("west"), &none(), 9), Some(&full[0]));
        // A client without a zone is near to none, not to boats without one.
        assert_eq!(choose(&list, None, &none(), 0), Some(&list[0]));
    }

    #[test]
    fn an_edge_that_failed_is_left_while_there_is_another() {
        let list = [edge("near", Some("west"), 100), edge("far", None, 0)];
        let mut failed = BTreeSet::from(["near".to_owned()]);
        assert_eq!(choose(&list, Some("west"), &failed, 0), Some(&list[1]));
        failed.insert("far".to_owned());
        assert_eq!(choose(&list, Some("west"), &failed, 0), Some(&list[0]));
        assert_eq!(choose(&[], Some("west"), &failed, 0), None);
    }

    #[test]
    fn where_none_has_room_each_is_tried() {
        let list = [edge("a", None, 0), edge("b", None, 0)];
        let chosen = [0, u64::MAX].map(|n| choose(&list, None, &none(), n));
        assert_eq!(chosen, [Some(&list[0]), Some(&list[1])]);
    }

    #[test]
    fn weights_do_not_overflow() {
        let list = vec![edge("a", None, u64::MAX); EDGES_MAX];
        for at_random in [0, 1, u64::MAX] {
            assert!(choose(&list, None, &none(), at_random).is_some());
        }
    }
}
