//! Limits on the connections of a port, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use backend::rate_limit::{AddressKey, AddressLimit, AddressWarnings, Rate};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use protocol::proxy::TrustedNetworks;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limits of a port, and its places taken.
pub struct Places {
    all: Arc<Semaphore>,
    /// `None`: one address may take all places.
    per_address: Option<PerAddress>,
}

struct PerAddress {
    max: usize,
    /// Networks of balancers, each address of which stands for all clients.
    balancers: TrustedNetworks,
    counts: Arc<Mutex<HashMap<AddressKey, usize>>>,
    arrivals: AddressLimit,
    refusals: Counter,
    warnings: AddressWarnings,
}

/// Place of one connection, held until it ends.
pub(super) struct Place {
    _of_all: OwnedSemaphorePermit,
    _of_address: Option<OfAddress>,
}

struct OfAddress {
    address: AddressKey,
    counts: Arc<Mutex<HashMap<AddressKey, usize>>>,
}

impl Places {
    /// At most `max` connections, from any addresses.
    pub fn new(max: usize) -> Places {
        Places {
            all: Arc::new(Semaphore::new(max)),
            per_address: None,
        }
    }

    /// Limits connections and arrivals from one address, unless it is in `balancers`; refusals
    /// count as `limits_total{limit}`. `settings`: the paths of the settings that limit its
    /// connections and its arrivals.
    pub fn per_address(
        self,
        (max, arrivals): (usize, Rate),
        balancers: TrustedNetworks,
        limit: &'static str,
        settings: [&'static str; 2],
    ) -> Places {
        let per_address = PerAddress {
            max,
            balancers,
            counts: Arc::default(),
            arrivals: AddressLimit::new(limit, settings[1], arrivals),
            refusals: counter!("limits_total", "limit" => limit),
            warnings: AddressWarnings::new(settings[0]),
        };
        Places {
            per_address: Some(per_address),
            ..self
        }
    }

    /// Waits for a place of all; connections without one wait in the kernel. `None` if the port is
    /// closed.
    pub(super) async fn free(&self) -> Option<OwnedSemaphorePermit> {
        self.all.clone().acquire_owned().await.ok()
    }

    /// Takes a place for this address; `None` if the address is at its limit.
    pub(super) fn take(&self, of_all: OwnedSemaphorePermit, address: IpAddr) -> Option<Place> {
        let of_address = match &self.per_address {
            Some(bound) if !bound.balancers.contains(address) => Some(bound.take(address)?),
            _ => None,
        };
        Some(Place {
            _of_all: of_all,
            _of_address: of_address,
        })
    }
}

impl PerAddress {
    fn take(&self, address: IpAddr) -> Option<OfAddress> {
        let address = AddressKey::from(address);
        self.arrivals.check(address).ok()?;
        let mut counts = self.counts.lock();
        let count = counts.entry(address).or_default();
        // A count of zero is never refused: every bound is at least one.
        if *count >= self.max {
            drop(counts);
            self.refusals.increment(1);
            self.warnings.warn(address);
            return None;
        }
        *count += 1;
        Some(OfAddress {
            address,
            counts: Arc::clone(&self.counts),
        })
    }
}

impl Drop for OfAddress {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use futures_util::FutureExt;

    use super::*;

    fn take(places: &Places, address: &str) -> Option<Place> {
        let free = places.free().now_or_never().expect("room").expect("open");
        places.take(free, address.parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn one_address_has_its_share_and_a_balancer_has_all() {
        let balancers = TrustedNetworks::new(vec!["10.0.0.0/8".parse().expect("a network")]);
        let arrivals = Rate::per_second(NonZeroU32::MIN, NonZeroU32::new(5).expect("positive"));
        let places = Places::new(6).per_address((2, arrivals), balancers, "test", ["test"; 2]);
        let first = take(&places, "192.0.2.1").expect("room");
        let second = take(&places, "192.0.2.1").expect("room");
        assert!(take(&places, "192.0.2.1").is_none());
        let other = take(&places, "192.0.2.2").expect("room");
        drop(first);
        let third = take(&places, "192.0.2.1").expect("room again");
        // A customer's network counts as one.
        let network = ["2001:db8::1", "2001:db8::2:2"].map(|ip| take(&places, ip).expect("room"));
        drop(network);
        let balancer_places = [0; 3].map(|_| take(&places, "10.0.0.1").expect("room"));
        assert!(places.free().now_or_never().is_none(), "all are taken");
        drop((second, third, other, balancer_places));
        // Two more arrivals, and no more: a handshake costs as much as a place.
        assert!(take(&places, "192.0.2.1").is_some());
        assert!(take(&places, "192.0.2.1").is_none());
        let per_address = places.per_address.as_ref().expect("bounded");
        assert!(per_address.counts.lock().is_empty());
        assert_eq!(places.all.available_permits(), 6);
    }
}
