//! Message ids of this station: never beyond the reservation that discovery has recorded for it.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use backend::Kind;
use backend::clock::Clock;
use backend::discovery::{NodeLease, Registry};
use backend::installation::InstallationStore;
use parking_lot::Mutex;
use protocol::id::installation::{node_is_still_ours, node_rests_until};
use protocol::id::lead::{LeadReport, LeadReporter};
use protocol::id::snowflake::Snowflake;
use protocol::{Code, MessageId, Refusal, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::deadline::answered_within as within;

/// Node numbers that a start may look at to find one that has rested.
const NODES_TRIED: usize = 8;

/// Pause after a failed reservation, or while ids are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest time for which the loss of the number may stay unknown.
const RESERVE_EVERY_MAX: Duration = Duration::from_secs(10);

/// Makes ids under a leased node number. A reservation is made ahead, durably: a successor begins
/// after it, so that no id is ever made twice, whatever the clocks do (reliability R10). A clock that
/// was set back stops nobody: ids go on from the last one, and the reservation is ahead of that. A
/// station that loses its lease can still use up the reservation, and leases another number
/// meanwhile. Each reservation is copied to the store, as discovery may lose its data.
pub(crate) struct MessageIds {
    node: Mutex<Node>,
    /// Wakes the reservation for an id beyond it.
    wanted: Notify,
    ahead: Duration,
    /// Time for discovery to record a reservation, or to lease a number; then it is asked anew.
    deadline: Duration,
    registry: Arc<dyn Registry>,
    store: Arc<dyn InstallationStore>,
    clock: Arc<dyn Clock>,
}

/// A number, and the progress of its ids.
struct Node {
    snowflake: Snowflake,
    lease: Arc<dyn NodeLease>,
    /// Last millisecond that ids may bear.
    reserved: Timestamp,
    /// Part of the reservation that the store has a copy of.
    copied: Timestamp,
}

/// A leased number, and the end of its rest.
struct RestedLease {
    lease: Arc<dyn NodeLease>,
    not_before: Timestamp,
}

impl MessageIds {
    /// Leases a number, and reserves ids under it.
    pub(crate) async fn lease(
        registry: Arc<dyn Registry>,
        store: Arc<dyn InstallationStore>,
        clock: Arc<dyn Clock>,
        ahead: Duration,
        deadline: Duration,
    ) -> backend::Result<MessageIds> {
        let numbers = Numbers {
            registry: &*registry,
            store: &*store,
            now: clock.now(),
            ahead,
            deadline,
        };
        let RestedLease { lease, not_before } = numbers.lease_rested().await?;
        let ids = MessageIds {
            node: Mutex::new(Node {
                snowflake: Snowflake::new(lease.number(), not_before),
                reserved: not_before,
                copied: Timestamp::ZERO,
                lease,
            }),
            wanted: Notify::new(),
            ahead,
            deadline,
            registry,
            store,
            clock,
        };
        ids.reserve().await?;
        Ok(ids)
    }

    /// Draws `count` ascending ids; all or none. A refusal may be tried again.
    pub(crate) fn draw(&self, count: usize) -> Result<Vec<MessageId>, Refusal> {
        let now = self.clock.now();
        let mut node = self.node.lock();
        // From a copy: a refusal uses no ids up, and leaves no trace of a clock that was wrong for a moment.
        let mut snowflake = node.snowflake.clone();
        let ids = (0..count).map(|_| snowflake.next(now));
        let ids = ids.collect::<Result<Vec<_>, _>>();
        let ids = ids.map_err(|error| unmade(error.to_string()))?;
        if snowflake.last() > node.reserved {
            self.wanted.notify_one();
            return Err(unmade(
                "no message ids are left while discovery does not answer: resend under the same send_id",
            ));
        }
        node.snowflake = snowflake;
        Ok(ids)
    }

    /// Keeps the reservation ahead of the clock and of the ids, for ever, and reports ids that are
    /// ahead of the clock.
    pub(crate) async fn keep_reserved(&self) {
        let mut failing = false;
        let (mut reporter, began) = (LeadReporter::default(), Instant::now());
        loop {
            self.report_lead(&mut reporter, began.elapsed());
            let pause = if failing {
                RETRY_AFTER
            } else {
                self.reserve_every()
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = self.wanted.notified(), if !failing => {}
            }
            match self.reserve().await {
                Ok(()) => failing = false,
                Err(error) => {
                    if !failing {
                        tracing::warn!(%error, until = %self.reserved_until(), "message ids cannot be reserved");
                    }
                    metrics::counter!("station_id_reservations_failed_total").increment(1);
                    failing = true;
                }
            }
        }
    }

    fn report_lead(&self, reporter: &mut LeadReporter, elapsed: Duration) {
        let lead = self.node.lock().snowflake.last().since(self.clock.now());
        metrics::gauge!("station_ids_ahead_seconds").set(lead.as_secs_f64());
        match reporter.observe(lead, elapsed) {
            Some(LeadReport::Ahead(lead)) => tracing::warn!(
                ?lead,
                "message ids and accept times are ahead of this station's clock, which was set back (or no node number \
                 had rested at the start): sends go on, and no id is made twice. If the clock is right now, nothing needs \
                 to be done; a restart of the station brings ids back to its clock. If it is wrong, set it (chrony, ntpd)"
            ),
            Some(LeadReport::CaughtUp) => {
                tracing::info!("the clock has caught up with the message ids");
            }
            None => {}
        }
    }

    fn reserve_every(&self) -> Duration {
        (self.ahead / 4).min(RESERVE_EVERY_MAX)
    }

    /// Reserves ahead. A reservation that was given up may be recorded all the same: no earlier one
    /// takes a later one back.
    async fn reserve(&self) -> backend::Result<()> {
        let (lease, last, reserved, mut copied) = {
            let node = self.node.lock();
            let last = node.snowflake.last();
            (node.lease.clone(), last, node.reserved, node.copied)
        };
        let reserving = self.reserve_under(&*lease, last, reserved, &mut copied);
        let answer = reserving.await;
        self.node.lock().copied = copied;
        match answer {
            Ok(until) => {
                self.node.lock().reserved = until;
                Ok(())
            }
            Err(error) if error.kind == Kind::Conflict => {
                tracing::warn!(%error, source = %error.source, "the node number is lost; leasing another");
                self.take_another().await
            }
            Err(error) => Err(error),
        }
    }

    /// Leases another number. Ids go on upwards under it.
    async fn take_another(&self) -> backend::Result<()> {
        let (number, reserved, last) = {
            let node = self.node.lock();
            (node.lease.number(), node.reserved, node.snowflake.last())
        };
        let numbers = Numbers {
            registry: &*self.registry,
            store: &*self.store,
            // A number has rested if its past is behind our own ids, which may be ahead of the clock.
            now: self.clock.now().max(last),
            ahead: self.ahead,
            deadline: self.deadline,
        };
        let RestedLease { lease, not_before } = match numbers.lease_again(number, reserved).await {
            Some(lease) => RestedLease {
                lease,
                not_before: last,
            },
            None => numbers.lease_rested().await?,
        };
        if not_before > numbers.now && reserved > numbers.now {
            let text = "no node number has rested yet; what is reserved is used up meanwhile";
            return Err(backend::Error::unavailable("discovery", text));
        }
        let (last, from) = (not_before.max(last), not_before.max(reserved));
        let mut copied = Timestamp::ZERO;
        let reserving = self.reserve_under(&*lease, last, from, &mut copied);
        let reserved = reserving.await?;
        let mut node = self.node.lock();
        let not_before = not_before.max(node.snowflake.last());
        *node = Node {
            snowflake: Snowflake::new(lease.number(), not_before),
            lease,
            reserved,
            copied,
        };
        metrics::counter!("station_node_numbers_lost_total").increment(1);
        Ok(())
    }

    /// Reserves ahead of now and of the last id, and up to `at_least` at the least. The copy comes
    /// first: unless the store is away, it knows every reservation that discovery takes.
    async fn reserve_under(
        &self,
        lease: &dyn NodeLease,
        last: Timestamp,
        at_least: Timestamp,
        copied: &mut Timestamp,
    ) -> backend::Result<Timestamp> {
        let ahead = self.clock.now().max(last) + self.ahead;
        // A try soon after a failed one needs no copy of its own.
        let is_copied = *copied + self.reserve_every() > ahead && *copied >= at_least;
        let until = if is_copied {
            *copied
        } else {
            ahead.max(at_least)
        };
        if !is_copied {
            let copying = self.store.reserve_node(lease.number(), until);
            match within(self.deadline, copying).await {
                Ok(()) => *copied = until,
                Err(error) => {
                    tracing::debug!(%error, source = %error.source, "a reservation is not copied");
                    metrics::counter!("station_id_reservations_uncopied_total").increment(1);
                }
            }
        }
        within(self.deadline, lease.reserve(until)).await?;
        Ok(until)
    }

    fn reserved_until(&self) -> Timestamp {
        self.node.lock().reserved
    }
}

/// Leases node numbers, and asks the store for earlier reservations of theirs.
struct Numbers<'a> {
    registry: &'a dyn Registry,
    store: &'a dyn InstallationStore,
    now: Timestamp,
    ahead: Duration,
    deadline: Duration,
}

impl Numbers<'_> {
    /// Leases a number that has rested. A number that was held a moment ago is reserved into the
    /// future; instead of waiting, another one is taken if there is one.
    async fn lease_rested(&self) -> backend::Result<RestedLease> {
        let mut best = self.lease().await?;
        let mut passed_over = Vec::new();
        while best.not_before > self.now && passed_over.len() < NODES_TRIED {
            // Held until the search ends: a number given back at once would be handed out again.
            let Ok(next) = self.lease().await else {
                break;
            };
            if next.not_before < best.not_before {
                passed_over.push(std::mem::replace(&mut best, next));
            } else {
                passed_over.push(next);
            }
        }
        Ok(best)
    }

    async fn lease(&self) -> backend::Result<RestedLease> {
        let lease = within(self.deadline, self.registry.lease_node()).await?;
        let copied = self.copied(lease.number()).await;
        Ok(RestedLease {
            not_before: node_rests_until(lease.not_before(), copied, self.now, self.ahead),
            lease: lease.into(),
        })
    }

    /// Leases the same number again. A discovery that lost its data knows nothing of it: it is
    /// still ours if nobody reserved more.
    async fn lease_again(&self, number: u16, reserved: Timestamp) -> Option<Arc<dyn NodeLease>> {
        let leasing = self.registry.lease_node_again(number);
        let lease = within(self.deadline, leasing).await.ok().flatten()?;
        let copied = self.copied(number).await;
        node_is_still_ours(reserved, copied).then(|| lease.into())
    }

    /// Asked after the lease: an earlier holder of the number reserves nothing more.
    async fn copied(&self, number: u16) -> Option<Timestamp> {
        within(self.deadline, self.store.reserved(number))
            .await
            .ok()
    }
}

fn unmade(text: impl Into<String>) -> Refusal {
    metrics::counter!("station_ids_refused_total").increment(1);
    Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER)
}
