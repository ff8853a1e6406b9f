//! Limits the connections of a boat, in all and per address.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use backend::rate_limit::{AddressKey, AddressWarnings};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use protocol::{Code, Refusal};

use crate::Config;

/// Wait advised to a refused client.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The limits, and how much of each is taken.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    max: usize,
    per_address_max: usize,
    refusals_max: usize,
    refusal_counter: Counter,
    address_refusal_counter: Counter,
    warnings: AddressWarnings,
    usage: Mutex<LimitUsage>,
}

/// Counts of connections by client address, which outlive the boat.
#[derive(Clone, Debug)]
pub struct AddressUsage(pub(crate) Arc<ConnectionLimit>);

impl AddressUsage {
    /// Addresses with the most connections, `count` at most, busiest first.
    pub fn busiest(&self, count: usize) -> Vec<(AddressKey, usize)> {
        let usage = self.0.usage.lock();
        let mut addresses: Vec<_> = (usage.by_address.iter())
            .map(|(address, connections)| (*address, *connections))
            .collect();
        drop(usage);
        addresses.sort_unstable_by_key(|(_, connections)| Reverse(*connections));
        addresses.truncate(count);
        addresses
    }

    /// Connections that one address may have.
    pub fn connections_max(&self) -> usize {
        self.0.per_address_max
    }
}

#[derive(Debug, Default)]
struct LimitUsage {
    connections: usize,
    refusals: usize,
    by_address: HashMap<AddressKey, usize>,
}

/// Place of one connection, held while its socket lives.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    place: Place,
}

#[derive(Clone, Copy, Debug)]
enum Place {
    /// A client behind a balancer whose address is not known yet.
    Unnamed,
    Address(AddressKey),
    /// A client that is only there to read its refusal.
    Refusal,
}

impl ConnectionLimit {
    pub(crate) fn new(config: &Config) -> Arc<ConnectionLimit> {
        let limit = |name: &'static str| counter!("limits_total", "limit" => name);
        Arc::new(ConnectionLimit {
            max: config.connections_max,
            per_address_max: config.address_bounds().connections_max,
            refusals_max: config.refusals_max,
            refusal_counter: limit("connections"),
            address_refusal_counter: limit("connections_per_address"),
            warnings: AddressWarnings::new("boat.connections_per_address_max"),
            usage: Mutex::default(),
        })
    }

    /// Takes a permit, or a refusal with a place to deliver it; `None` if even those places are
    /// taken. Without an address only the total is bounded, until `name`.
    pub(crate) fn take(
        self: &Arc<Self>,
        address: Option<IpAddr>,
    ) -> Option<(ConnectionPermit, Option<Refusal>)> {
        let address = address.map(AddressKey::from);
        let mut usage = self.usage.lock();
        let refusal = if usage.connections >= self.max {
            self.refusal_counter.increment(1);
            let text = format!(
                "this boat has reached its limit of {} connections",
                self.max
            );
            Refusal::new(Code::Full, text).retry_after(RETRY_AFTER)
        } else if let Some(refusal) = address.and_then(|address| self.check(&usage, address)) {
            refusal
        } else {
            usage.connections += 1;
            let place = address.map_or(Place::Unnamed, Place::Address);
            usage.add(address);
            return Some((self.permit(place), None));
        };
        let has_room = usage.refusals < self.refusals_max;
        usage.refusals += usize::from(has_room);
        drop(usage);
        if let Some(address) = address.filter(|_| refusal.code == Code::RateLimited) {
            self.warnings.warn(address);
        }
        has_room.then(|| (self.permit(Place::Refusal), Some(refusal)))
    }

    fn check(&self, usage: &LimitUsage, address: AddressKey) -> Option<Refusal> {
        let count = usage.by_address.get(&address).copied().unwrap_or(0);
        (count >= self.per_address_max).then(|| {
            self.address_refusal_counter.increment(1);
            let text = format!(
                "limit of {} connections from your address reached",
                self.per_address_max
            );
            Refusal::new(Code::RateLimited, text).retry_after(RETRY_AFTER)
        })
    }

    fn permit(self: &Arc<Self>, place: Place) -> ConnectionPermit {
        ConnectionPermit {
            limit: Arc::clone(self),
            place,
        }
    }
}

impl LimitUsage {
    fn add(&mut self, address: Option<AddressKey>) {
        if let Some(address) = address {
            *self.by_address.entry(address).or_default() += 1;
        }
    }
}

impl ConnectionPermit {
    /// Sets the client's address. Returns a refusal if the address has too many connections.
    pub(crate) fn name(&mut self, address: IpAddr) -> Option<Refusal> {
        let address = AddressKey::from(address);
        let mut usage = self.limit.usage.lock();
        if !matches!(self.place, Place::Unnamed) {
            return None;
        }
        let refusal = self.limit.check(&usage, address);
        if refusal.is_none() {
            usage.add(Some(address));
            self.place = Place::Address(address);
        }
        drop(usage);
        if refusal.is_some() {
            self.limit.warnings.warn(address);
        }
        refusal
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut usage = self.limit.usage.lock();
        match self.place {
            Place::Refusal => usage.refusals -= 1,
            Place::Unnamed => usage.connections -= 1,
            Place::Address(address) => {
                usage.connections -= 1;
                if let Some(count) = usage.by_address.get_mut(&address) {
                    *count -= 1;
                    if *count == 0 {
                        usage.by_address.remove(&address);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    // proves S1-05 in part
    #[test]
    fn beyond_the_limits_there_is_a_reason_and_then_silence() {
        let limit = ConnectionLimit::new(&Config {
            connections_max: 3,
            connections_per_address_max: Some(2),
            refusals_max: 1,
            ..Config::default()
        });
        let code_of = |refusal: Refusal| {
            assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
            refusal.code
        };
        let take = |last| {
            let (permit, refusal) = limit.take(Some(address(last)))?;
            Some((permit, refusal.map(code_of)))
        };
        let first = take(1).expect("room");
        let second = take(1).expect("room");
        let (refusal_permit, code) = take(1).expect("room to tell it");
        assert_eq!(code, Some(Code::RateLimited));
        assert!(take(1).is_none());
        drop(refusal_permit);
        let third = take(2).expect("room");
        let busiest = AddressUsage(Arc::clone(&limit)).busiest(1);
        assert_eq!(busiest, [(AddressKey::from(address(1)), 2)]);
        assert_eq!(third.1, None);
        assert_eq!(take(3).expect("room to tell it").1, Some(Code::Full));
        drop((first, second, third));
        // A customer's /64 counts as one address.
        let network = ["2001:db8::1", "2001:db8::2:2", "2001:db8::3"].map(|ip| {
            let (permit, refusal) = limit.take(ip.parse().ok()).expect("room");
            (permit, refusal.map(|refusal| refusal.code))
        });
        assert_eq!(network[2].1, Some(Code::RateLimited));
        drop(network);
        // Behind a balancer the total counts at once, the address once it is known.
        let mut unnamed_permits = [0; 3].map(|_| limit.take(None).expect("room").0);
        assert_eq!(
            limit.take(None).expect("room to tell it").1.map(|r| r.code),
            Some(Code::Full)
        );
        let codes = unnamed_permits
            .each_mut()
            .map(|permit| permit.name(address(1)).map(|r| r.code));
        assert_eq!(codes, [None, None, Some(Code::RateLimited)]);
        drop(unnamed_permits);
        assert_eq!(take(1).expect("room").1, None);
        let usage = limit.usage.lock();
        assert_eq!(
            (usage.connections, usage.refusals, usage.by_address.len()),
            (0, 0, 0)
        );
    }
}
