//! Refused sign-ins at the desk, by address: an address that guesses tokens is delayed, and then
//! ignored for a minute. A valid token is accepted all the same: operators behind one proxy share
//! its address.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use moka::future::Cache;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

/// Window in which refusals of one address count together.
const MINUTE: Duration = Duration::from_secs(60);
/// Refusals answered at once; the next ones take `DELAY`.
const PROMPT_MAX: u32 = 5;
const DELAY: Duration = Duration::from_secs(1);
/// Refusals after which an address is not heard.
const REFUSALS_MAX: u32 = 20;
/// Answers that wait `DELAY` at a time, over all addresses; further ones go out at once.
const DELAYED_MAX: usize = 256;
/// Addresses remembered: half a megabyte.
const ADDRESSES_MAX: u64 = 4096;

#[derive(Clone)]
pub(super) struct SignIns {
    refusals: Cache<IpAddr, Refusals>,
    delay_slots: Arc<Semaphore>,
}

/// Refusals of an address in the minute that began with the first of them.
#[derive(Clone, Copy, Debug)]
struct Refusals {
    first_at: Instant,
    count: u32,
}

impl Default for SignIns {
    fn default() -> Self {
        let refusals = Cache::builder().max_capacity(ADDRESSES_MAX);
        SignIns {
            refusals: refusals.time_to_live(2 * MINUTE).build(),
            delay_slots: Arc::new(Semaphore::new(DELAYED_MAX)),
        }
    }
}

impl SignIns {
    /// Whether sign-ins from this address are heard now.
    pub(super) async fn hears(&self, peer: IpAddr) -> bool {
        let refusals = self.refusals.get(&network(peer)).await;
        refusals.is_none_or(|refusals| refusals.is_over() || refusals.count < REFUSALS_MAX)
    }

    pub(super) fn accept() {
        metrics::counter!("admin_sign_ins_total", "result" => "accepted").increment(1);
    }

    /// Counts a proved assertion of somebody who may do nothing here.
    pub(super) fn forbid() {
        metrics::counter!("admin_sign_ins_total", "result" => "forbidden").increment(1);
    }

    /// Counts an assertion for which there are no keys now.
    pub(super) fn leave_unanswered() {
        metrics::counter!("admin_sign_ins_total", "result" => "unanswered").increment(1);
    }

    /// Counts a token of no operator, or an assertion that proves nothing. Takes `DELAY` after the
    /// first `PROMPT_MAX` refusals.
    pub(super) async fn refuse(&self, peer: IpAddr, reason: &str) {
        metrics::counter!("admin_sign_ins_total", "result" => "refused").increment(1);
        let count = self.count(peer).await;
        if count <= REFUSALS_MAX {
            let is_heard = count < REFUSALS_MAX;
            tracing::warn!(%peer, count, heard = is_heard, reason, "operator sign-in refused");
        }
        if count > PROMPT_MAX {
            self.delay().await;
        }
    }

    /// Counts a token of no operator from an address that is not heard, and takes `DELAY`.
    pub(super) async fn ignore(&self) {
        metrics::counter!("admin_sign_ins_total", "result" => "ignored").increment(1);
        self.delay().await;
    }

    async fn delay(&self) {
        if let Ok(_permit) = self.delay_slots.try_acquire() {
            sleep(DELAY).await;
        }
    }

    /// Adds one refusal, and returns the new count.
    async fn count(&self, peer: IpAddr) -> u32 {
        let first = Refusals {
            first_at: Instant::now(),
            count: 0,
        };
        let entry = self.refusals.entry(network(peer));
        let update = entry.and_upsert_with(async |previous| {
            let previous = previous.map(|entry| entry.into_value());
            let mut refusals = previous.filter(|it| !it.is_over()).unwrap_or(first);
            refusals.count = refusals.count.saturating_add(1);
            refusals
        });
        update.await.into_value().count
    }
}

impl Refusals {
    fn is_over(&self) -> bool {
        self.first_at.elapsed() >= MINUTE
    }
}

/// Addresses that count as one: for IPv6 the whole /64, all of which one client has.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !u128::from(u64::MAX)).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// Duration of `count` refusals, one after another.
    async fn refuse(sign_ins: &SignIns, peer: IpAddr, count: u32) -> Duration {
        let start = Instant::now();
        for _ in 0..count {
            sign_ins.refuse(peer, "a guess").await;
        }
        start.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn twenty_refusals_are_heard_and_then_the_address_is_ignored() {
        let (sign_ins, guesser) = (SignIns::default(), ip("192.0.2.7"));
        assert_eq!(refuse(&sign_ins, guesser, 5).await, Duration::ZERO);
        assert_eq!(refuse(&sign_ins, guesser, 14).await, DELAY * 14);
        assert!(sign_ins.hears(guesser).await, "the twentieth is heard");
        assert_eq!(refuse(&sign_ins, guesser, 1).await, DELAY);
        assert!(!sign_ins.hears(guesser).await);
        assert!(sign_ins.hears(ip("192.0.2.8")).await, "another address");
        advance(MINUTE - DELAY * 15 - Duration::from_millis(10)).await;
        assert!(!sign_ins.hears(guesser).await);
        advance(Duration::from_millis(20)).await;
        assert!(sign_ins.hears(guesser).await, "a minute is over");
        assert_eq!(refuse(&sign_ins, guesser, 5).await, Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn ignored_guesses_wait_in_a_bounded_number_of_slots() {
        let sign_ins = SignIns::default();
        let ignore = async |together: usize| {
            let start = Instant::now();
            let prompt = (0..together).map(async |_| {
                sign_ins.ignore().await;
                start.elapsed() < DELAY
            });
            let prompt = futures_util::future::join_all(prompt).await;
            prompt.into_iter().filter(|prompt| *prompt).count()
        };
        assert_eq!(ignore(DELAYED_MAX).await, 0);
        assert_eq!(ignore(DELAYED_MAX + 3).await, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_network_of_ipv6_is_one_address() {
        let sign_ins = SignIns::default();
        for host in 1..=20 {
            refuse(&sign_ins, ip(&format!("2001:db8:0:7::{host}")), 1).await;
        }
        assert!(!sign_ins.hears(ip("2001:db8:0:7:ffff::1")).await);
        assert!(sign_ins.hears(ip("2001:db8:0:8::1")).await);
        refuse(&sign_ins, ip("::ffff:192.0.2.7"), 20).await;
        assert!(!sign_ins.hears(ip("192.0.2.7")).await);
    }

    #[tokio::test(start_paused = true)]
    async fn more_addresses_take_no_more_memory() {
        let sign_ins = SignIns::default();
        for number in 0..3 * ADDRESSES_MAX as u32 {
            sign_ins
                .count(std::net::Ipv4Addr::from_bits(number).into())
                .await;
        }
        sign_ins.refusals.run_pending_tasks().await;
        assert!(sign_ins.refusals.entry_count() <= ADDRESSES_MAX);
    }
}
