//! Parts of a station, put together.

use std::sync::Arc;
use std::time::Duration;

use api::trace::Spans;
use api::transport::Connector;
use backend::Backends;
use backend::clock::TimerClock;
use backend::discovery::Role;
use backend::queue::Producer;
use protocol::admission::SendLimits;
use protocol::reading::ReadRules;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::accept::ChangeCheck;
use crate::accept::MessageIds;
use crate::accept::SendAcceptor;
use crate::accept::{Publisher, Records};
use crate::auth::Authenticator;
use crate::boat_clients::BoatClients;
use crate::config::Config;
use crate::grpc::Station;
use crate::installation::Installation;
use crate::limits::Limits;
use crate::membership::Membership;
use crate::metrics::{AcceptMetrics, AdmissionMetrics, ReceiptMetrics};
use crate::part_spawner::PartSpawner;
use crate::read::mail::{self, MailReader};
use crate::read::{GroupTimeline, ListCache, PageCache, Reader};
use crate::receipts::LastReceivedWriter;
use crate::receipts::ReceiptNotifier;
use crate::receipts::Receipts;
use crate::receipts::write_read_markers;
use crate::session::Admissions;
use crate::session::RevocationDoor;
use crate::session::TicketDoor;
use crate::session::{KickoutQueue, KickoutRequest};
use crate::start::StartError;
use crate::stores::answered_within;
use crate::workers::Workers;

/// Handles and settings that the parts of a station share.
struct StationParts<'a> {
    config: &'a Config,
    backends: &'a Backends,
    workers: Workers<'a>,
    deadline: Duration,
    producer: Arc<dyn Producer>,
    records: Records,
    boats: Arc<BoatClients>,
    limits: Arc<Limits>,
    list_cache: ListCache,
    membership: Arc<Membership>,
}

/// Puts a station together, and starts what keeps it up to date.
pub(crate) async fn assemble(
    config: &Config,
    (backends, connector): (&Backends, &Connector),
    (authenticator, tickets): (Arc<dyn Authenticator>, Arc<TicketDoor>),
    (spawner, calls): (&PartSpawner, &TaskTracker),
) -> Result<Arc<Station>, StartError> {
    let (clock, deadline) = (backends.clock.clone(), config.store_deadline);
    let installation = Installation {
        registry: backends.registry.clone(),
        store: backends.installation.clone(),
        clock: clock.clone(),
        deadline,
    };
    let cluster = installation.agree(backends.entropy.next().max(1)).await?;
    let ids = MessageIds::lease(
        backends.registry.clone(),
        backends.installation.clone(),
        clock.clone(),
        config.reserve_ahead,
        deadline,
    );
    let ids = ids.await?;
    let boats = Arc::new(BoatClients::new(
        connector.clone(),
        // A monotonic clock: lives are probed again in seconds, even if the time of day is set.
        Arc::new(TimerClock::starting_at(clock.now())),
        config.notice_deadline,
    ));
    let directory = answered_within(deadline, backends.registry.watch(Role::Boat)).await?;
    boats.adopt(&directory.borrow());
    let stations = answered_within(deadline, backends.registry.watch(Role::Station)).await?;
    let revocations = RevocationDoor::new(
        backends.revocations.clone(),
        clock.clone(),
        backends.entropy.clone(),
        deadline,
        &config.auth,
    );
    revocations.load().await?;
    let revocations = Arc::new(revocations);
    let last_received = LastReceivedWriter::new(backends.mailbox.clone(), clock.clone(), deadline);
    let last_received = Arc::new(last_received);

    let workers = Workers {
        parts: spawner,
        waiting_max: config.background_max,
    };
    let limits = Arc::new(Limits::new(config, stations));
    let parts = StationParts::new(config, backends, workers, boats.clone(), limits);
    let reader = Arc::new(parts.reader());
    let admissions = parts.admissions(authenticator, &tickets, &revocations, cluster);
    let station = Arc::new(Station {
        admissions,
        accept: parts.acceptor(ids),
        receipts: parts.receipts(&last_received),
        mail: parts.mail(&reader),
        reader,
        tickets,
        batch_items_max: config.batch_items_max,
        calls: calls.clone(),
    });

    spawner.spawn_endless("installation", async move {
        installation.keep(cluster).await;
    });
    spawner.spawn_endless("revocations", async move { revocations.follow().await });
    let keeper = station.clone();
    spawner.spawn_endless("ids", async move {
        keeper.accept.ids.keep_reserved().await;
    });
    let stop = spawner.stop.clone();
    spawner.spawn("received", stop.clone(), async move {
        last_received.keep_written(stop).await;
    });
    spawner.spawn_endless("boats", async move { boats.follow(directory).await });
    Ok(station)
}

impl<'a> StationParts<'a> {
    fn new(
        config: &'a Config,
        backends: &'a Backends,
        workers: Workers<'a>,
        boats: Arc<BoatClients>,
        limits: Arc<Limits>,
    ) -> StationParts<'a> {
        let deadline = config.store_deadline;
        let cache = ListCache::new(
            backends.cache.clone(),
            backends.conversations.clone(),
            backends.clock.clone(),
            deadline,
        );
        let groups = backends.groups.clone();
        let membership = Membership::new(groups, config.members_deadline, deadline);
        StationParts {
            config,
            backends,
            workers,
            deadline,
            producer: backends.queue.producer(),
            records: Records::new(backends.queue.as_ref()),
            boats,
            limits,
            list_cache: cache,
            membership: Arc::new(membership),
        }
    }

    fn reader(&self) -> Reader {
        let config = self.config;
        Reader {
            backends: self.backends.clone(),
            limits: self.limits.clone(),
            list_cache: self.list_cache.clone(),
            pages: PageCache::new(&config.pages, config.page_bytes_max),
            timeline: GroupTimeline {
                timeline: self.backends.timeline.clone(),
                deadline: config.timeline_deadline,
                bytes_max: config.page_bytes_max,
            },
            rules: ReadRules {
                page_max: config.page_max,
                page_bytes_max: config.page_bytes_max,
                list_margin: config.list_margin,
            },
            deadline: self.deadline,
            door_deadline: config.members_deadline,
        }
    }

    fn admissions(
        &self,
        authenticator: Arc<dyn Authenticator>,
        tickets: &Arc<TicketDoor>,
        revocations: &Arc<RevocationDoor>,
        cluster: u64,
    ) -> Admissions {
        let (config, backends) = (self.config, self.backends);
        let metrics = AdmissionMetrics::new();
        let queue = KickoutQueue {
            producer: self.producer.clone(),
            records: self.records,
            clock: backends.clock.clone(),
            deadline: config.publish_deadline,
            attempts: config.kickout_attempts,
            published_total: metrics.kickouts_published.clone(),
        };
        let publisher = queue.clone();
        let work_queue = self
            .workers
            .spawn("kickout", move |batch: Vec<KickoutRequest>| {
                publisher.clone().publish_all(batch)
            });
        Admissions {
            authenticator,
            limits: self.limits.clone(),
            mailbox: backends.mailbox.clone(),
            capacity: config.sessions.capacity(),
            devices: backends.devices.clone(),
            groups: backends.groups.clone(),
            boats: self.boats.clone(),
            kickout_queue: queue,
            kickouts: work_queue,
            revocations: revocations.clone(),
            tickets: tickets.clone(),
            clock: backends.clock.clone(),
            cluster,
            deadline: self.deadline,
            metrics,
        }
    }

    fn acceptor(&self, ids: MessageIds) -> SendAcceptor {
        let (config, backends, deadline) = (self.config, self.backends, self.deadline);
        let mailbox = backends.mailbox.clone();
        let resolution_queue = self.workers.spawn("dedupe", move |batch: Vec<_>| {
            let mailbox = mailbox.clone();
            // Unresolved keys stay pending, which a resend can live with.
            async move {
                let sends = batch.into_iter().flatten().collect();
                let outcome = timeout(deadline, mailbox.dedupe_done(sends)).await;
                if !matches!(outcome, Ok(Ok(()))) {
                    ::metrics::counter!("station_dedupe_unresolved_total").increment(1);
                }
            }
        });
        let (conversations, heads) = (backends.conversations.clone(), backends.heads.clone());
        let list_cache = self.list_cache.clone();
        let marker_queue = self.workers.spawn("seen", move |batch| {
            let (conversations, heads) = (conversations.clone(), heads.clone());
            write_read_markers(conversations, heads, list_cache.clone(), deadline, batch)
        });
        SendAcceptor {
            limits: SendLimits {
                body_bytes_max: config.body_bytes_max,
            },
            dedupe_deadline: config.dedupe_deadline,
            rates: self.limits.clone(),
            ids,
            room: Semaphore::new(send_permit_count(config)),
            mailbox: backends.mailbox.clone(),
            log: Publisher::new(self.producer.clone(), config.publish_deadline),
            records: self.records,
            bounds: config.bounds(),
            clock: backends.clock.clone(),
            resolutions: resolution_queue,
            read_markers: marker_queue,
            change_deadline: config.members_deadline,
            changes: ChangeCheck {
                messages: backends.messages.clone(),
                membership: self.membership.clone(),
                changes: backends.changes.clone(),
                clock: backends.clock.clone(),
                deadline,
                rules: config.bounds().rules(),
            },
            membership: self.membership.clone(),
            metrics: AcceptMetrics::new(),
            spans: Spans::here(),
        }
    }

    fn receipts(&self, last_received: &Arc<LastReceivedWriter>) -> Receipts {
        let (backends, deadline) = (self.backends, self.deadline);
        let PartSpawner { tasks, stop, .. } = self.workers.parts;
        let metrics = ReceiptMetrics::new();
        let notifier = ReceiptNotifier::new(
            (backends.mailbox.clone(), backends.messages.clone()),
            self.boats.clone(),
            deadline,
            (tasks.clone(), stop.clone()),
            metrics.clone(),
        );
        let work = move |batch| notifier.clone().notify_all(batch);
        let notices = (self.config.push_receipts).then(|| self.workers.spawn("receipts", work));
        Receipts {
            messages: backends.messages.clone(),
            membership: self.membership.clone(),
            conversations: backends.conversations.clone(),
            list_cache: self.list_cache.clone(),
            clock: backends.clock.clone(),
            deadline,
            notices,
            tasks: tasks.clone(),
            last_received: last_received.clone(),
            metrics,
        }
    }

    fn mail(&self, reader: &Arc<Reader>) -> MailReader {
        let (config, backends, deadline) = (self.config, self.backends, self.deadline);
        let (mailbox, timer) = (backends.mailbox.clone(), backends.clock.clone());
        let trims = self.workers.spawn("mail", move |targets| {
            mail::trim_all(mailbox.clone(), timer.clone(), deadline, targets)
        });
        MailReader {
            mailbox: backends.mailbox.clone(),
            messages: backends.messages.clone(),
            reader: reader.clone(),
            ledger: backends.ledger.clone(),
            clock: backends.clock.clone(),
            deadline,
            page_max: config.page_max,
            page_bytes_max: config.page_bytes_max,
            trims,
            left_out: parking_lot::Mutex::default(),
        }
    }
}

/// Room for the sends of at least one full batch, or no full batch would ever be taken.
fn send_permit_count(config: &Config) -> usize {
    let room = config.sends_in_flight_max.max(config.batch_items_max);
    room.min(Semaphore::MAX_PERMITS)
}
