//! All four services in one process: a cluster of one.

use std::future::pending;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use api::task::Value;
use backend::Backends;
use backend::queue::{Partition, Record};
use operator::lifecycle::Condition;
use protocol::access::{Caller, Role};
use protocol::keys::Topic;
use protocol::mailbox::{DedupeKey, FirstSend};
use protocol::record::{MessageTask, Task, Work};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::environment::Environment;
use super::readiness::{log_answers, registration_condition, store_takes_writes};
use crate::edges::{self, EdgePort};
use crate::settings::Settings;

/// Sends of the log remembered at start: a client resends after a crash only its latest sends.
const REMEMBERED: u64 = 200_000;
/// Records read at a time.
const PAGE: usize = 1000;

/// Restores dedupe keys from the newest part of the log, so that a resend after a crash is answered
/// with the first id: those of the embedded mailbox die with the process.
async fn remember_sends(backends: &Backends) -> Result<()> {
    let partitions = backends.queue.partitions(Topic::Message);
    for number in 0..partitions {
        let partition = Partition {
            topic: Topic::Message,
            number,
        };
        let (first, end) = backends.queue.bounds(partition).await?;
        let mut next = first.max(end.saturating_sub(REMEMBERED / u64::from(partitions.max(1))));
        while next < end {
            let records = backends.queue.read(partition, next, PAGE).await?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            remember(backends, &records).await?;
        }
    }
    Ok(())
}

async fn remember(backends: &Backends, records: &[Record]) -> Result<()> {
    let sends: Vec<(DedupeKey, FirstSend)> = records
        .iter()
        .filter_map(
            |record| match Task::decode(record.value.clone()).ok()?.work {
                Work::Message(MessageTask { message, .. }) => {
                    let key = DedupeKey {
                        from: message.from,
                        send_id: message.send_id,
                    };
                    let first_send = FirstSend {
                        id: message.id,
                        conversation: message.conversation()?,
                    };
                    Some((key, first_send))
                }
                Work::Deliver(_) | Work::Kickout(_) => None,
            },
        )
        .collect();
    for result in backends
        .mailbox
        .dedupe_begin(sends.clone(), backends.clock.now())
        .await
    {
        result?;
    }
    Ok(backends.mailbox.dedupe_done(sends).await?)
}

/// Longest wait of clients for the carrier after a start.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Present end of each partition of topic `message`.
async fn ends(backends: &Backends) -> Result<Vec<(Partition, u64)>> {
    let mut ends = Vec::new();
    for number in 0..backends.queue.partitions(Topic::Message) {
        let partition = Partition {
            topic: Topic::Message,
            number,
        };
        ends.push((partition, backends.queue.bounds(partition).await?.1));
    }
    Ok(ends)
}

/// Waits until the carrier has processed the log up to `ends`. After a power loss the stores may be
/// a little behind the log, and a client that came in earlier would find less than it was shown.
async fn wait_until_caught_up(backends: &Backends, ends: &[(Partition, u64)]) -> Result<()> {
    let wait = async {
        for (partition, end) in ends {
            while backends
                .queue
                .committed(carrier::GROUP, *partition)
                .await?
                .unwrap_or(0)
                < *end
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        anyhow::Ok(())
    };
    match tokio::time::timeout(CATCH_UP, wait).await {
        Ok(result) => result,
        Err(_) => {
            tracing::warn!(
                "the carrier is still working through the log of the last run; accepting clients now"
            );
            Ok(())
        }
    }
}

/// A running system of one process.
pub struct System {
    pub environment: Environment,
    pub boat: boat::BoatHandle,
    /// Ends after the station: balancers send requests until they see that it leaves.
    edges: Option<EdgePort>,
    conditions: Vec<Condition>,
    upkeep: Option<JoinHandle<()>>,
    station: JoinHandle<()>,
    carrier: JoinHandle<()>,
    horn: JoinHandle<()>,
    stop_boat: CancellationToken,
    stop_station: CancellationToken,
    stop_consumers: CancellationToken,
}

impl System {
    /// Starts station and carrier before the boat, so that the first client finds them. Serves
    /// clients on the runtime `connections`, everything else on this one.
    pub async fn start(
        settings: &Settings,
        environment: Environment,
        connections: Handle,
    ) -> Result<System> {
        let (backends, connector) = (&environment.backends, &environment.connector);
        remember_sends(backends)
            .await
            .context("reading the newest sends from the log")?;
        let calling_as = |role, name: &str| connector.clone().with_caller(Caller::new(role, name));
        let stop_consumers = CancellationToken::new();
        let stop_station = CancellationToken::new();
        let stop_boat = CancellationToken::new();

        let upkeep = environment.clean(stop_consumers.clone());
        let ends = ends(backends).await?;
        let horn_parts = horn::Parts {
            queue: backends.queue.clone(),
            ledger: backends.ledger.clone(),
            conversations: backends.conversations.clone(),
            clock: backends.clock.clone(),
            entropy: backends.entropy.clone(),
        };
        let horn = horn::start(settings.horn.clone(), horn_parts, stop_consumers.clone())
            .await
            .context("starting horn")?;
        let carrier = carrier::start(
            settings.carrier.clone(),
            backends.clone(),
            calling_as(Role::Carrier, &settings.carrier.name),
            stop_consumers.clone(),
        )
        .await
        .context("starting carrier")?;
        wait_until_caught_up(backends, &ends).await?;
        let station = station::start(
            settings.station.clone(),
            backends.clone(),
            calling_as(Role::Station, &settings.station.name),
            stop_station.clone(),
        )
        .await
        .context("starting station")?;
        let edges = edges::start(&settings.station.http, backends.registry.clone()).await?;
        let boat_parts = boat::BoatParts {
            registry: backends.registry.clone(),
            connector: calling_as(Role::Boat, &settings.boat.name),
            clock: backends.clock.clone(),
            entropy: backends.entropy.clone(),
            connections,
        };
        let boat = boat::start(settings.boat.clone(), boat_parts, stop_boat.clone())
            .await
            .context("starting boat")?;
        let mut conditions = vec![
            registration_condition("boat", boat.ready()),
            registration_condition("station", station.ready()),
        ];
        let parts = ["station", "carrier", "horn"];
        conditions.extend(log_answers(&parts, &backends.queue, Topic::Message));
        let takes_writes = environment.takes_writes.as_ref();
        conditions.extend(store_takes_writes(&parts, takes_writes));
        Ok(System {
            environment,
            boat,
            edges,
            conditions,
            upkeep,
            station: tokio::spawn(async move { station.drained().await }),
            carrier: tokio::spawn(async move { carrier.drained().await }),
            horn: tokio::spawn(async move { horn.drained().await }),
            stop_boat,
            stop_station,
            stop_consumers,
        })
    }

    pub fn websocket(&self) -> SocketAddr {
        self.boat.websocket()
    }

    pub fn tcp(&self) -> SocketAddr {
        self.boat.tcp()
    }

    /// Port at which clients learn the addresses of boats.
    pub fn edges(&self) -> Option<SocketAddr> {
        self.edges.as_ref().map(|port| port.address)
    }

    /// Conditions that must hold for the system to take new work.
    pub fn conditions(&self) -> Vec<Condition> {
        self.conditions.clone()
    }

    /// Waits until a part ends unasked, and names it: the others go on, but accepted messages are
    /// no longer carried, or nothing is accepted, so the process should end and be started again.
    pub async fn failed(&mut self) -> &'static str {
        tokio::select! {
            biased;
            () = wait_for_write_failure(self.environment.takes_writes.clone()) => "the embedded store",
            () = wait_for_upkeep_end(self.upkeep.as_mut()) => "upkeep",
            _ = &mut self.station => "station",
            _ = &mut self.carrier => "carrier",
            _ = &mut self.horn => "horn",
            () = self.boat.left() => "boat",
        }
    }

    /// Leaves in order: clients first, then sends in flight, then deliveries.
    pub async fn drain(self) {
        self.stop_boat.cancel();
        self.boat.drained().await;
        self.stop_station.cancel();
        join_part("station", self.station).await;
        drop(self.edges);
        self.stop_consumers.cancel();
        join_part("carrier", self.carrier).await;
        join_part("horn", self.horn).await;
    }
}

/// Waits until the embedded store takes no more writes.
async fn wait_for_write_failure(takes_writes: Option<watch::Receiver<bool>>) {
    let Some(mut takes_writes) = takes_writes else {
        return pending().await;
    };
    if takes_writes.wait_for(|takes| !takes).await.is_err() {
        // It was closed in order.
        pending().await
    }
}

/// Waits until the upkeep ends by itself: nothing that is too old would be removed any more.
async fn wait_for_upkeep_end(upkeep: Option<&mut JoinHandle<()>>) {
    match upkeep {
        Some(upkeep) => _ = upkeep.await,
        None => pending().await,
    }
}

async fn join_part(part: &str, task: JoinHandle<()>) {
    if let Err(error) = task.await {
        tracing::error!(part, %error, "a part did not shut down cleanly");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use backend::clock::{SeededEntropy, TimerClock};
    use backend::embedded::{Engine, WriteBatch};
    use operator::lifecycle::{Phase, Phases};
    use protocol::Timestamp;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_store_that_takes_no_writes_ends_the_system() {
        let mut settings = Settings::default();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        (settings.boat.websocket, settings.boat.tcp) = (any, any);
        let engine = Engine::memory();
        let clock = TimerClock::starting_at(Timestamp::from_millis(1_800_000_000_000));
        let environment = Environment::over(
            engine.clone(),
            &settings.embedded,
            settings.station.sessions.capacity(),
            Arc::new(clock),
            Arc::new(SeededEntropy::new(1)),
        );
        let environment = environment.expect("stores in memory");
        let system = System::start(&settings, environment, Handle::current()).await;
        let mut system = system.expect("it starts");
        let phases = Phases::default();
        phases.follow(system.conditions());
        phases.enter(Phase::Ready);
        let failure = tokio::time::timeout(Duration::from_secs(3600), system.failed()).await;
        assert_eq!((failure.ok(), phases.is_ready()), (None, true));

        engine.fail_syncs();
        let commit = engine.commit(WriteBatch::new(), None).expect("taken");
        commit.await.expect_err("the disk failed");
        assert!(!phases.is_ready());
        let failing_services = phases.standings().into_iter();
        let failing_services: Vec<_> = failing_services
            .filter(|it| !it.troubles.is_empty())
            .collect();
        assert_eq!(failing_services.len(), 3, "{failing_services:?}");
        for service in failing_services {
            assert!(service.troubles[0].starts_with("a write to the store failed"));
        }
        assert_eq!(system.failed().await, "the embedded store");
    }
}
