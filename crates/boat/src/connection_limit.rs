//! How many connections a boat holds, in all and from one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use protocol::{Code, Refusal};

use crate::Config;

/// The limits and what is taken of them.
#[derive(Debug)]
pub(crate) struct ConnectionLimit {
    max: usize,
    per_address_max: usize,
    refusals_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    connections: usize,
    refusals: usize,
    by_address: HashMap<IpAddr, usize>,
}

/// A place of one connection, as long as its socket lives.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    limit: Arc<ConnectionLimit>,
    /// `None`: only to be told why not.
    address: Option<IpAddr>,
}

impl ConnectionLimit {
    pub(crate) fn new(config: &Config) -> Arc<ConnectionLimit> {
        Arc::new(ConnectionLimit {
            max: config.connections_max,
            per_address_max: config.connections_per_address_max,
            refusals_max: config.refusals_max,
            taken: Mutex::default(),
        })
    }

    /// A permit, or a refusal and the place to tell it; nothing where even those are taken.
    pub(crate) fn take(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> Option<(ConnectionPermit, Option<Refusal>)> {
        let mut taken = self.taken.lock();
        let refusal = if taken.connections >= self.max {
            Some(Refusal::new(
                Code::Full,
                format!(
                    "this boat holds {} connections, as many as it may",
                    self.max
                ),
            ))
        } else if taken.by_address.get(&address).copied().unwrap_or(0) >= self.per_address_max {
            Some(Refusal::new(
                Code::RateLimited,
                format!("{} connections from your address", self.per_address_max),
            ))
        } else {
            None
        };
        let Some(refusal) = refusal else {
            taken.connections += 1;
            *taken.by_address.entry(address).or_default() += 1;
            return Some((self.permit(Some(address)), None));
        };
        if taken.refusals >= self.refusals_max {
            return None;
        }
        taken.refusals += 1;
        Some((
            self.permit(None),
            Some(refusal.retry_after(Duration::from_secs(1))),
        ))
    }

    fn permit(self: &Arc<Self>, address: Option<IpAddr>) -> ConnectionPermit {
        ConnectionPermit {
            limit: Arc::clone(self),
            address,
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.limit.taken.lock();
        let Some(address) = self.address else {
            taken.refusals -= 1;
            return;
        };
        taken.connections -= 1;
        if let Some(count) = taken.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                taken.by_address.remove(&address);
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
            connections_per_address_max: 2,
            refusals_max: 1,
            ..Config::default()
        });
        let take = |last| {
            limit
                .take(address(last))
                .map(|(permit, refusal)| (permit, refusal.map(|r| r.code)))
        };
        let first = take(1).expect("room");
        let second = take(1).expect("room");
        let (told, code) = take(1).expect("room to tell it");
        assert_eq!(code, Some(Code::RateLimited));
        assert!(take(1).is_none());
        drop(told);
        let third = take(2).expect("room");
        assert_eq!(third.1, None);
        assert_eq!(take(3).expect("room to tell it").1, Some(Code::Full));
        drop((first, second, third));
        assert_eq!(take(1).expect("room").1, None);
        let taken = limit.taken.lock();
        assert_eq!(
            (taken.connections, taken.refusals, taken.by_address.len()),
            (0, 0, 0)
        );
    }
}
