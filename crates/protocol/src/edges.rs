//! Edges: addresses at which clients reach boats.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::drain::{BoatState, Load};

/// Maximum number of edges in a list; of more, it names those with the most room.
pub const EDGES_MAX: usize = 256;

/// Interval between a station's reads of discovery, and age that readers may give to a list.
pub const LIST_REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// Age beyond which a station gives no list: its boats may all have gone.
pub const LIST_AGE_MAX: Duration = Duration::from_secs(60);

/// Bytes of the longest address that a client takes.
pub const URL_BYTES_MAX: usize = 1024;

/// One address, of one boat or of several behind a balancer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Edge {
    pub url: String,
    /// Zone of the boats, if they name one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Free seats.
    pub weight: u64,
}

/// Edges of the boats that take clients and publish an address for them, in order of address. Boats
/// of one zone that share an address are one edge. A full boat stays in the list with weight 0: its
/// client then learns when to come again, which an empty list could not say.
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
            let mut closed_boat = boat(6 + n, Some("wss://c"), None, 50);
            closed_boat.load.state = state;
            loads.push(closed_boat);
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
        let loads: Vec<Load> = (0..EDGES_MAX + 3)
            .map(|n| boat(n, Some(&format!("wss://{n:03}")), None, n))
            .collect();
        let list = edges(&loads);
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
        let parsed: Vec<Edge> = serde_json::from_str(&text).expect("read");
        assert_eq!(parsed, list);
    }
}
