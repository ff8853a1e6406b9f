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

use crate::stores::answered_within as within;

/// Node numbers that a start may look at to find one that has rested.
const MAX_NODES_TRIED: usize = 8;

/// Pause after a failed reservation, or while ids are refused.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Longest time for which the loss of the number may stay unknown.
const MAX_RESERVE_INTERVAL: Duration = Duration::from_secs(10);

/// Makes ids under a leased node number. A reservation is made ahead, durably: a successor begins
/// after it, so that no id is ever made twice, whatever the clocks do (reliability R10). A clock that
/// was set back stops nobody: ids go on from the last one, and the reservation is ahead of that. A
/// station that loses its lease can still use up the reservation, and leases another number
/// meanwhile. Each reservation is copied to the store, as discovery may lose its data.
pub(crate) struct MessageIds {
    node: Mutex<Node>,
    /// Wakes the reservation for an id beyond it.
    refill_signal: Notify,
    reserve_ahead: Duration,
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
    reserved_until: Timestamp,
    /// Part of the reservation that the store has a copy of.
    copied_until: Timestamp,
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
        reserve_ahead: Duration,
        deadline: Duration,
    ) -> backend::Result<MessageIds> {
        let numbers = Numbers {
            registry: &*registry,
            store: &*store,
            now: clock.now(),
            reserve_ahead,
            deadline,
        };
        let RestedLease { lease, not_before } = numbers.lease_rested().await?;
        let ids = MessageIds {
            node: Mutex::new(Node {
                snowflake: Snowflake::new(lease.number(), not_before),
                reserved_until: not_before,
                copied_until: Timestamp::ZERO,
                lease,
            }),
            refill_signal: Notify::new(),
            reserve_ahead,
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
        let ids = ids.map_err(|error| id_refusal(error.to_string()))?;
        if snowflake.last() > node.reserved_until {
            self.refill_signal.notify_one();
            return Err(id_refusal(
                "out of message ids while discovery is unavailable: resend under the same send_id",
            ));
        }
        node.snowflake = snowflake;
        Ok(ids)
    }

    /// Keeps the reservation ahead of the clock and of the ids, for ever, and reports ids that are
    /// ahead of the clock.
    pub(crate) async fn keep_reserved(&self) {
        let mut is_failing = false;
        let (mut reporter, started_at) = (LeadReporter::default(), Instant::now());
        loop {
            self.report_lead(&mut reporter, started_at.elapsed());
            let pause = if is_failing {
                RETRY_AFTER
            } else {
                self.reserve_interval()
            };
            tokio::select! {
                biased;
                () = tokio::time::sleep(pause) => {}
                () = self.refill_signal.notified(), if !is_failing => {}
            }
            match self.reserve().await {
                Ok(()) => is_failing = false,
                Err(error) => {
                    if !is_failing {
                        tracing::warn!(%error, until = %self.reserved_until(), "cannot reserve message ids");
                    }
                    metrics::counter!("station_id_reservations_failed_total").increment(1);
                    is_failing = true;
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
                "message ids and accept times are ahead of this station's clock: it was set back, \
                 or all node numbers were still cooling down at the start. Sends continue and ids \
                 stay unique. If the clock is right now, nothing to do; restarting the station \
                 realigns its ids. If it is wrong, fix it (chrony, ntpd)"
            ),
            Some(LeadReport::CaughtUp) => {
                tracing::info!("the clock has caught up with the message ids");
            }
            None => {}
        }
    }

    fn reserve_interval(&self) -> Duration {
        (self.reserve_ahead / 4).min(MAX_RESERVE_INTERVAL)
    }

    /// Reserves ahead. A reservation that was given up may be recorded all the same: no earlier one
    /// takes a later one back.
    async fn reserve(&self) -> backend::Result<()> {
        let (lease, last, reserved_until, mut copied_until) = {
            let node = self.node.lock();
            let last = node.snowflake.last();
            (
                node.lease.clone(),
                last,
                node.reserved_until,
                node.copied_until,
            )
        };
        let reservation = self.reserve_under(&*lease, last, reserved_until, &mut copied_until);
        let answer = reservation.await;
        self.node.lock().copied_until = copied_until;
        match answer {
            Ok(new_end) => {
                self.node.lock().reserved_until = new_end;
                Ok(())
            }
            Err(error) if error.kind == Kind::Conflict => {
                tracing::warn!(%error, source = %error.source, "node number lost; leasing another one");
                self.lease_another().await
            }
            Err(error) => Err(error),
        }
    }

    /// Leases another number. Ids go on upwards under it.
    async fn lease_another(&self) -> backend::Result<()> {
        let (number, reserved_until, last) = {
            let node = self.node.lock();
            (
                node.lease.number(),
                node.reserved_until,
                node.snowflake.last(),
            )
        };
        let numbers = Numbers {
            registry: &*self.registry,
            store: &*self.store,
            // A number has rested if its past is behind our own ids, which may be ahead of the clock.
            now: self.clock.now().max(last),
            reserve_ahead: self.reserve_ahead,
            deadline: self.deadline,
        };
        let RestedLease { lease, not_before } =
            match numbers.lease_again(number, reserved_until).await {
                Some(lease) => RestedLease {
                    lease,
                    not_before: last,
                },
                None => numbers.lease_rested().await?,
            };
        if not_before > numbers.now && reserved_until > numbers.now {
            let text = "no node number has cooled down yet; using up the reserved ids meanwhile";
            return Err(backend::Error::unavailable("discovery", text));
        }
        let (last, at_least) = (not_before.max(last), not_before.max(reserved_until));
        let mut copied_until = Timestamp::ZERO;
        let reservation = self.reserve_under(&*lease, last, at_least, &mut copied_until);
        let reserved_until = reservation.await?;
        let mut node = self.node.lock();
        let not_before = not_before.max(node.snowflake.last());
        *node = Node {
            snowflake: Snowflake::new(lease.number(), not_before),
            lease,
            reserved_until,
            copied_until,
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
        copied_until: &mut Timestamp,
    ) -> backend::Result<Timestamp> {
        let target = self.clock.now().max(last) + self.reserve_ahead;
        // A try soon after a failed one needs no copy of its own.
        let is_copied =
            *copied_until + self.reserve_interval() > target && *copied_until >= at_least;
        let end = if is_copied {
            *copied_until
        } else {
            target.max(at_least)
        };
        if !is_copied {
            let copy = self.store.reserve_node(lease.number(), end);
            match within(self.deadline, copy).await {
                Ok(()) => *copied_until = end,
                Err(error) => {
                    tracing::debug!(%error, source = %error.source, "cannot copy an id reservation");
                    metrics::counter!("station_id_reservations_uncopied_total").increment(1);
                }
            }
        }
        within(self.deadline, lease.reserve(end)).await?;
        Ok(end)
    }

    fn reserved_until(&self) -> Timestamp {
        self.node.lock().reserved_until
    }
}

/// Leases node numbers, and asks the store for earlier reservations of theirs.
struct Numbers<'a> {
    registry: &'a dyn Registry,
    store: &'a dyn InstallationStore,
    now: Timestamp,
    reserve_ahead: Duration,
    deadline: Duration,
}

impl Numbers<'_> {
    /// Leases a number that has rested. A number that was held a moment ago is reserved into the
    /// future; instead of waiting, another one is taken if there is one.
    async fn lease_rested(&self) -> backend::Result<RestedLease> {
        let mut best = self.lease().await?;
        let mut passed_over = Vec::new();
        while best.not_before > self.now && passed_over.len() < MAX_NODES_TRIED {
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
        let copied_until = self.stored_reservation(lease.number()).await;
        Ok(RestedLease {
            not_before: node_rests_until(
                lease.not_before(),
                copied_until,
                self.now,
                self.reserve_ahead,
            ),
            lease: lease.into(),
        })
    }

    /// Leases the same number again. A discovery that lost its data knows nothing of it: it is
    /// still ours if nobody reserved more.
    async fn lease_again(
        &self,
        number: u16,
        reserved_until: Timestamp,
    ) -> Option<Arc<dyn NodeLease>> {
        let request = self.registry.lease_node_again(number);
        let lease = within(self.deadline, request).await.ok().flatten()?;
        let copied_until = self.stored_reservation(number).await;
        node_is_still_ours(reserved_until, copied_until).then(|| lease.into())
    }

    /// Reservation of a number in the store. Asked after the lease: from then on an earlier holder
    /// of the number reserves nothing more.
    async fn stored_reservation(&self, number: u16) -> Option<Timestamp> {
        within(self.deadline, self.store.reserved(number))
            .await
            .ok()
    }
}

fn id_refusal(text: impl Into<String>) -> Refusal {
    metrics::counter!("station_ids_refused_total").increment(1);
    Refusal::new(Code::Unavailable, text).retry_after(RETRY_AFTER)
}
