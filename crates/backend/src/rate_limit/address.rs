//! Limits by client address.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Rate, RateLimit};

/// Minimum time between two warnings of the same address.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);
/// Addresses named in that time; refusals of further ones are only counted.
const WARNED_MAX: usize = 10;

/// Factor of the usual limits where an address may stand for many clients.
const SHARED_ADDRESS_FACTOR: NonZeroU32 = NonZeroU32::new(10).expect("positive");

/// Limits of an address that are unset, by what an address stands for.
#[derive(Clone, Copy, Debug)]
pub struct AddressDefaults {
    factor: NonZeroU32,
}

impl AddressDefaults {
    /// The usual limits hold where addresses are the clients' own: on loopback, or if a proxy names
    /// them. Elsewhere a balancer or a NAT in front may stand for many, and the limits are ten times
    /// as high.
    pub fn new(is_loopback: bool, names_clients: bool) -> AddressDefaults {
        let factor = if is_loopback || names_clients {
            NonZeroU32::MIN
        } else {
            SHARED_ADDRESS_FACTOR
        };
        AddressDefaults { factor }
    }

    /// The limit that is set, or the one for its usual number.
    pub fn count(self, set: Option<NonZeroU32>, usual: NonZeroU32) -> NonZeroU32 {
        set.unwrap_or_else(|| usual.saturating_mul(self.factor))
    }

    /// As [`count`](AddressDefaults::count), of connections.
    pub fn connections(self, set: Option<usize>, usual: usize) -> usize {
        set.unwrap_or_else(|| usual.saturating_mul(self.factor.get() as usize))
    }
}

/// Address as a limit counts it: a /64 of IPv6 belongs to one customer, with 2^64 addresses to
/// choose from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AddressKey {
    V4(u32),
    V6Network(u64),
}

impl From<IpAddr> for AddressKey {
    fn from(address: IpAddr) -> AddressKey {
        match address.to_canonical() {
            IpAddr::V4(address) => AddressKey::V4(address.to_bits()),
            IpAddr::V6(address) => AddressKey::V6Network((address.to_bits() >> 64) as u64),
        }
    }
}

impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddressKey::V4(bits) => Ipv4Addr::from_bits(bits).fmt(f),
            AddressKey::V6Network(bits) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64))
            }
        }
    }
}

/// Warnings of refused addresses: the first refusal of one in each minute, with the limit.
#[derive(Debug)]
pub struct AddressWarnings {
    limit: &'static str,
    state: Mutex<WarnedAddresses>,
}

#[derive(Debug)]
struct WarnedAddresses {
    window_start: Instant,
    addresses: HashSet<AddressKey>,
}

impl AddressWarnings {
    /// `limit`: the setting that bounds an address, or words for a fixed bound.
    pub fn new(limit: &'static str) -> AddressWarnings {
        AddressWarnings {
            limit,
            state: Mutex::new(WarnedAddresses {
                window_start: Instant::now(),
                addresses: HashSet::new(),
            }),
        }
    }

    /// Warns of a refusal, unless one of this address was said within the minute.
    pub fn warn(&self, address: impl Into<AddressKey>) {
        let address = address.into();
        if self.is_due(address) {
            let limit = self.limit;
            tracing::warn!(
                %address,
                "this address has reached the limit {limit}; further requests are refused \
                 (counted in limits_total). If many clients share it, have the load balancer pass \
                 on their addresses, or raise the limit if it is a setting \
                 (docs/operations/limits.md)"
            );
        }
    }

    fn is_due(&self, address: AddressKey) -> bool {
        let mut state = self.state.lock();
        let now = Instant::now();
        if now >= state.window_start + WARNING_INTERVAL {
            state.window_start = now;
            state.addresses.clear();
        }
        state.addresses.len() < WARNED_MAX && state.addresses.insert(address)
    }
}

/// Rate limit of each client address, with warnings of those that reach it.
pub struct AddressLimit {
    rates: RateLimit<AddressKey>,
    warnings: AddressWarnings,
}

impl AddressLimit {
    /// Counts refusals as `limits_total{limit=label}`; warnings name `limit`.
    pub fn new(label: &'static str, limit: &'static str, rate: Rate) -> AddressLimit {
        AddressLimit {
            rates: RateLimit::new(label, rate),
            warnings: AddressWarnings::new(limit),
        }
    }

    /// Takes one token of the address, or returns the wait for one.
    pub fn check(&self, address: impl Into<AddressKey>) -> Result<(), Duration> {
        let address = address.into();
        let outcome = self.rates.check(address);
        outcome.inspect_err(|_| self.warnings.warn(address))
    }

    /// Looks for a token and leaves it: for events that cost one only on failure.
    pub fn look(&self, address: impl Into<AddressKey>) -> Result<(), Duration> {
        let address = address.into();
        let outcome = self.rates.look(address);
        outcome.inspect_err(|_| self.warnings.warn(address))
    }

    /// Takes a token for an event that has happened, if there is one.
    pub fn count(&self, address: impl Into<AddressKey>) {
        let _ = self.rates.check(address.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_is_named_once_a_minute_and_ten_are_at_most() {
        let warnings = AddressWarnings::new("test");
        let address = |last: u32| AddressKey::V4(0xc000_0200 + last);
        assert!(warnings.is_due(address(1)));
        assert!(!warnings.is_due(address(1)));
        let first_warnings = (2..100).filter(|last| warnings.is_due(address(*last)));
        assert_eq!(first_warnings.count(), WARNED_MAX - 1);
        tokio::time::advance(WARNING_INTERVAL).await;
        assert!(warnings.is_due(address(1)));
        assert_eq!(address(1).to_string(), "192.0.2.1");
        let network: IpAddr = "2001:db8::7:1".parse().expect("an address");
        assert_eq!(AddressKey::from(network).to_string(), "2001:db8::/64");
    }

    #[test]
    fn unset_limits_are_tenfold_where_nothing_names_the_clients() {
        let count = |number| NonZeroU32::new(number).expect("positive");
        for (is_loopback, names_clients, factor) in [
            (true, false, 1),
            (false, true, 1),
            (true, true, 1),
            (false, false, 10),
        ] {
            let defaults = AddressDefaults::new(is_loopback, names_clients);
            assert_eq!(defaults.count(None, count(20)), count(20 * factor));
            assert_eq!(defaults.count(Some(count(7)), count(20)), count(7));
            assert_eq!(defaults.connections(None, 64), 64 * factor as usize);
            assert_eq!(defaults.connections(Some(3), 64), 3);
        }
    }

    #[test]
    fn addresses_of_one_customer_are_one_key() {
        let key = |text: &str| AddressKey::from(text.parse::<IpAddr>().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:1:2:3"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("::ffff:192.0.2.1"), key("192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
    }
}
