//! All four services in one process, on one directory or in memory: a cluster of one.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use api::task::{MessageTask, Task, Work};
use api::transport::{self, Connector};
use backend::clock::{Clock, Entropy, SystemClock, SystemEntropy};
use backend::conversations::ConversationStore;
use backend::conversations::EmbeddedConversations;
use backend::devices::DeviceStore;
use backend::devices::EmbeddedDevices;
use backend::discovery::EmbeddedRegistry;
use backend::discovery::Registry;
use backend::embedded::{Engine, EngineOptions};
use backend::heads::EmbeddedHeads;
use backend::heads::HeadStore;
use backend::history::EmbeddedHistory;
use backend::history::HistoryStore;
use backend::ledger::EmbeddedLedger;
use backend::ledger::LedgerStore;
use backend::mailbox::MailboxStore;
use backend::mailbox::{EmbeddedMailbox, MailboxConfig};
use backend::queue::{EmbeddedQueue, Partition, Queue, QueueConfig, Record};
use protocol::keys::Topic;
use protocol::mailbox::{DedupeKey, FirstSend};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::upkeep::Upkeep;
use crate::settings::Settings;

/// Section `embedded` of the settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Where everything is kept; made when it is not there.
    pub data: PathBuf,
    /// Age of a message at which the ledger forgets what became of it. The log must have forgotten it
    /// before, or the audit would miss it: a dead letter waits for `queue.retention_unread` at most, and,
    /// sent on its way again, is in the log for `queue.retention`.
    #[serde(with = "humantime_serde")]
    pub ledger_retention: Duration,
    pub engine: EngineOptions,
    pub queue: QueueConfig,
    pub mailbox: MailboxConfig,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            data: PathBuf::from("data"),
            ledger_retention: Duration::from_secs(60 * 86_400),
            engine: EngineOptions::default(),
            queue: QueueConfig::default(),
            mailbox: MailboxConfig::default(),
        }
    }
}

/// Every seam of a system. Tests may wrap one before it is started.
#[derive(Clone)]
pub struct Seams {
    /// What nobody else cleans up.
    upkeep: Upkeep,
    pub queue: Arc<dyn Queue>,
    pub mailbox: Arc<dyn MailboxStore>,
    pub history: Arc<dyn HistoryStore>,
    pub heads: Arc<dyn HeadStore>,
    pub conversations: Arc<dyn ConversationStore>,
    pub devices: Arc<dyn DeviceStore>,
    pub ledger: Arc<dyn LedgerStore>,
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Seams {
    /// On a directory that no other process uses.
    pub fn on_disk(dir: &Path, config: &Config) -> Result<Seams> {
        let engine = Engine::open(dir, config.engine.clone())
            .with_context(|| format!("opening the data in {}", dir.display()))?;
        Seams::over(
            engine,
            config,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    /// Gone with the process.
    pub fn in_memory(config: &Config) -> Result<Seams> {
        Seams::over(
            Engine::memory(),
            config,
            Arc::new(SystemClock),
            Arc::new(SystemEntropy),
        )
    }

    pub fn over(
        engine: Engine,
        config: &Config,
        clock: Arc<dyn Clock>,
        entropy: Arc<dyn Entropy>,
    ) -> Result<Seams> {
        let queue = EmbeddedQueue::open(engine.clone(), config.queue.clone(), clock.clone())?;
        let mailbox = EmbeddedMailbox::open(engine.clone(), &config.mailbox, entropy.as_ref())?;
        let (queue, mailbox) = (Arc::new(queue), Arc::new(mailbox));
        let ledger = Arc::new(EmbeddedLedger::open(engine.clone())?);
        Ok(Seams {
            upkeep: Upkeep {
                queue: queue.clone(),
                mailbox: mailbox.clone(),
                ledger: ledger.clone(),
                ledger_retention: config.ledger_retention,
                clock: clock.clone(),
            },
            queue,
            mailbox,
            history: Arc::new(EmbeddedHistory::new(engine.clone())),
            heads: Arc::new(EmbeddedHeads::new(engine.clone())),
            conversations: Arc::new(EmbeddedConversations::new(engine.clone())),
            devices: Arc::new(EmbeddedDevices::new(engine.clone())),
            ledger,
            registry: Arc::new(EmbeddedRegistry::new(engine, entropy.clone())),
            clock,
            entropy,
        })
    }
}

/// Sends of the log that are remembered at start: what a client resends after a crash was sent lately.
const REMEMBERED: u64 = 200_000;
/// Records read at a time.
const PAGE: usize = 1000;

/// Dedupe keys of the embedded mailbox die with the process; the newest part of the log tells them again,
/// so that a resend after a crash is answered with the first id.
async fn remember_sends(seams: &Seams) -> Result<()> {
    let partitions = seams.queue.partitions(Topic::Message);
    for number in 0..partitions {
        let partition = Partition {
            topic: Topic::Message,
            number,
        };
        let (first, end) = seams.queue.bounds(partition).await?;
        let mut next = first.max(end.saturating_sub(REMEMBERED / u64::from(partitions.max(1))));
        while next < end {
            let records = seams.queue.read(partition, next, PAGE).await?;
            let Some(last) = records.last() else { break };
            next = last.offset + 1;
            remember(seams, &records).await?;
        }
    }
    Ok(())
}

async fn remember(seams: &Seams, records: &[Record]) -> Result<()> {
    let sends: Vec<(DedupeKey, FirstSend)> = records
        .iter()
        .filter_map(
            |record| match Task::decode(record.value.clone()).ok()?.work {
                Work::Message(MessageTask { message, .. }) => {
                    let key = DedupeKey {
                        from: message.from,
                        send_id: message.send_id,
                    };
                    let sent = FirstSend {
                        id: message.id,
                        conversation: message.conversation()?,
                    };
                    Some((key, sent))
                }
                Work::Deliver(_) | Work::Kickout(_) => None,
            },
        )
        .collect();
    for begun in seams
        .mailbox
        .dedupe_begin(sends.clone(), seams.clock.now())
        .await
    {
        begun?;
    }
    Ok(seams.mailbox.dedupe_done(sends).await?)
}

/// How long clients are kept waiting for the carrier after a start.
const CATCH_UP: Duration = Duration::from_secs(10);

/// Where each partition of topic `message` ends now.
async fn ends(seams: &Seams) -> Result<Vec<(Partition, u64)>> {
    let mut ends = Vec::new();
    for number in 0..seams.queue.partitions(Topic::Message) {
        let partition = Partition {
            topic: Topic::Message,
            number,
        };
        ends.push((partition, seams.queue.bounds(partition).await?.1));
    }
    Ok(ends)
}

/// Waits until the carrier has gone over what the log had. After the loss of power the stores may be a
/// little behind the log, and a client that came in before would find less than it was shown.
async fn caught_up(seams: &Seams, ends: &[(Partition, u64)]) -> Result<()> {
    let wait = async {
        for (partition, end) in ends {
            while seams
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
                "the carrier is not done with the log of the last run; clients come in now"
            );
            Ok(())
        }
    }
}

/// A running system of one.
pub struct System {
    pub seams: Seams,
    pub boat: boat::Running,
    station: JoinHandle<()>,
    carrier: JoinHandle<()>,
    horn: JoinHandle<()>,
    stop_boat: CancellationToken,
    stop_station: CancellationToken,
    stop_consumers: CancellationToken,
}

impl System {
    /// Starts station and carrier before the boat, so that the first client finds them. Clients are served
    /// on the runtime `connections`, everything else on this one.
    pub async fn start(settings: &Settings, seams: Seams, connections: Handle) -> Result<System> {
        remember_sends(&seams)
            .await
            .context("reading the newest sends from the log")?;
        let transport = transport::Config::default();
        let connector = Connector::new(transport.clone());
        let stop_consumers = CancellationToken::new();
        let stop_station = CancellationToken::new();
        let stop_boat = CancellationToken::new();

        tokio::spawn(seams.upkeep.clone().run(stop_consumers.clone()));
        let ends = ends(&seams).await?;
        let horn_parts = horn::Parts {
            queue: seams.queue.clone(),
            ledger: seams.ledger.clone(),
            clock: seams.clock.clone(),
            entropy: seams.entropy.clone(),
        };
        let horn = horn::start(settings.horn.clone(), horn_parts, stop_consumers.clone())
            .await
            .context("starting horn")?;
        let carrier_parts = carrier::Parts {
            queue: seams.queue.clone(),
            mailbox: seams.mailbox.clone(),
            history: seams.history.clone(),
            heads: seams.heads.clone(),
            conversations: seams.conversations.clone(),
            devices: seams.devices.clone(),
            ledger: seams.ledger.clone(),
            registry: seams.registry.clone(),
            connector: connector.clone(),
            clock: seams.clock.clone(),
            entropy: seams.entropy.clone(),
        };
        let carrier = carrier::start(
            settings.carrier.clone(),
            carrier_parts,
            stop_consumers.clone(),
        )
        .await
        .context("starting carrier")?;
        caught_up(&seams, &ends).await?;
        let station_parts = station::Parts {
            queue: seams.queue.clone(),
            mailbox: seams.mailbox.clone(),
            history: seams.history.clone(),
            heads: seams.heads.clone(),
            conversations: seams.conversations.clone(),
            devices: seams.devices.clone(),
            ledger: seams.ledger.clone(),
            registry: seams.registry.clone(),
            connector: connector.clone(),
            clock: seams.clock.clone(),
            entropy: seams.entropy.clone(),
        };
        let station = station::start(
            settings.station.clone(),
            station_parts,
            stop_station.clone(),
        )
        .await
        .context("starting station")?;
        let boat_parts = boat::Parts {
            registry: seams.registry.clone(),
            connector,
            clock: seams.clock.clone(),
            entropy: seams.entropy.clone(),
            transport,
            connections,
        };
        let boat = boat::start(settings.boat.clone(), boat_parts, stop_boat.clone())
            .await
            .context("starting boat")?;
        Ok(System {
            seams,
            boat,
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

    /// Waits until a part ends that nobody asked to end, and names it: the others go on, but what was
    /// accepted is no longer carried, so the process should end and be started again.
    pub async fn failed(&mut self) -> &'static str {
        tokio::select! {
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
        ended("station", self.station).await;
        self.stop_consumers.cancel();
        ended("carrier", self.carrier).await;
        ended("horn", self.horn).await;
    }
}

async fn ended(part: &str, running: JoinHandle<()>) {
    if let Err(error) = running.await {
        tracing::error!(part, %error, "a part did not end in order");
    }
}
