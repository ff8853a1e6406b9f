//! Embedded parts that can be told to fail.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use backend::cache::{Cache, Copy, EmbeddedCache, Found};
use backend::conversations::{ConversationStore, EmbeddedConversations, Registers};
use backend::groups::{EmbeddedGroups, GroupStore};
use backend::history::{EmbeddedHistory, HistoryStore, StatusWrite};
use backend::mailbox::{EmbeddedMailbox, MailboxStore, ServerId};
use backend::queue::{Consumer, EmbeddedQueue, NewRecord, Partition, Producer, Queue, Record};
use backend::timeline::{EmbeddedTimeline, Entry, Timeline};
use backend::{Error, Kind, Result};
use parking_lot::Mutex;
use protocol::cached::{Outdated, Owner};
use protocol::change::Arranged;
use protocol::conversation::{ConversationRow, Listed};
use protocol::frame::HistoryRange;
use protocol::group::{Member, Settings};
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus, Version};
use protocol::keys::Topic;
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, MailCursor, MailPage,
    MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer, RouteRequest, TooManySessions,
    Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionEntry, SessionKey};
use protocol::unread::Tally;
use protocol::{ConversationId, GroupId, MessageId, Platform, SendId, Seq, Timestamp, UserId};

pub(super) struct FaultyHistory {
    pub(super) store: EmbeddedHistory,
    pub(super) away: AtomicBool,
    pub(super) refused: Mutex<BTreeSet<MessageId>>,
    /// How long a look for rows takes.
    pub(super) latency: Mutex<Duration>,
    /// How often rows were looked for.
    pub(super) reads: AtomicUsize,
}

#[async_trait]
impl HistoryStore for FaultyHistory {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()> {
        if self.away.load(Ordering::SeqCst) {
            return Err(Error::unavailable("history", "away"));
        }
        if rows.iter().any(|row| self.refused.lock().contains(&row.id)) {
            return Err(Error::conflict("history", "this row cannot be"));
        }
        self.store.save_private(rows).await
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let latency = *self.latency.lock();
        tokio::time::sleep(latency).await;
        self.store.private(keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>> {
        self.store.places(keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.store.find_private(owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.store
            .conversation(owner, conversation, range, limit)
            .await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<Tally>>> {
        self.store.tallies(places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>> {
        self.store
            .find_send(from, conversation, send_id, since)
            .await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.store.sent_as(send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.store.set_status(writes).await
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.store.status(keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        self.store.delete(keys).await
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    Well,
    Away,
    Refusing,
}

pub(super) struct FaultyMailbox {
    pub(super) store: EmbeddedMailbox,
    pub(super) mood: Mutex<Mood>,
    /// How long its servers take for a call, by number; users go to them by theirs.
    pub(super) servers: Mutex<Vec<Duration>>,
}

impl FaultyMailbox {
    fn number(&self, user: UserId, servers: usize) -> usize {
        user.get().unsigned_abs() as usize % servers.max(1)
    }
}

#[async_trait]
impl MailboxStore for FaultyMailbox {
    fn server(&self, user: UserId) -> ServerId {
        ServerId(self.number(user, self.servers.lock().len()) as u64)
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let slowest = {
            let servers = self.servers.lock();
            let of = |request: &RouteRequest| {
                let server = self.number(request.user, servers.len());
                servers.get(server).copied()
            };
            requests.iter().filter_map(of).max()
        };
        if let Some(slowest) = slowest {
            tokio::time::sleep(slowest).await;
        }
        let mood = *self.mood.lock();
        match mood {
            Mood::Well => self.store.route_or_store(requests).await,
            Mood::Away => (requests.iter())
                .map(|_| Err(Error::unavailable("mailbox", "away")))
                .collect(),
            Mood::Refusing => (requests.iter())
                .map(|_| Err(Error::conflict("mailbox", "no more memory")))
                .collect(),
        }
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        self.store.connect(request).await
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, NewSession)>,
        denied: Denied,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        self.store.reassert(sessions, denied, now).await
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        self.store.disconnect(sessions).await
    }

    async fn sessions(&self, users: &[UserId], denied: Denied) -> Vec<Result<Vec<SessionEntry>>> {
        self.store.sessions(users, denied).await
    }

    async fn page(
        &self,
        target: Target,
        after: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        self.store.page(target, after, limit, now).await
    }

    async fn acknowledge(
        &self,
        acked: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>> {
        self.store.acknowledge(acked, now).await
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.store.policy(platform)
    }

    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        self.store.trim(target, policy, now).await
    }

    async fn waiting(&self, target: Target) -> Result<u64> {
        self.store.waiting(target).await
    }

    async fn find(
        &self,
        asked: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<Whereabouts>> {
        self.store.find(asked, now).await
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        self.store.dedupe_begin(sends, now).await
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        self.store.dedupe_done(sends).await
    }

    async fn set_received(&self, received: Vec<(UserId, MessageId)>) -> Result<()> {
        self.store.set_received(received).await
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        self.store.received(user).await
    }
}

/// A log that takes what it is told to take.
#[derive(Clone)]
pub(super) struct FaultyQueue {
    pub(super) log: EmbeddedQueue,
    pub(super) faults: Arc<LogFaults>,
}

#[derive(Default)]
pub(super) struct LogFaults {
    refuse: Mutex<Option<Refuse>>,
    /// Records are taken, and nobody is told.
    pub(super) silent: AtomicBool,
    /// A call with a record for this partition never answers; its other records are taken.
    pub(super) leaderless: Mutex<Option<Partition>>,
    /// Reading this topic answers nothing.
    pub(super) mute: Mutex<Option<Topic>>,
}

/// Why a record is not taken.
type Refuse = Box<dyn Fn(&NewRecord) -> Option<Kind> + Send>;

impl LogFaults {
    pub(super) fn refuse(&self, why: impl Fn(&NewRecord) -> Option<Kind> + Send + 'static) {
        *self.refuse.lock() = Some(Box::new(why));
    }

    pub(super) fn take_all(&self) {
        *self.refuse.lock() = None;
    }

    fn refused(&self, record: &NewRecord) -> Option<Error> {
        let refuse = self.refuse.lock();
        let kind = refuse.as_ref()?(record)?;
        Some(Error::new("queue", kind, "not this one"))
    }
}

struct FaultyProducer {
    producer: Arc<dyn Producer>,
    faults: Arc<LogFaults>,
}

#[async_trait]
impl Producer for FaultyProducer {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let mut answers = Vec::new();
        let leaderless = *self.faults.leaderless.lock();
        let mut hangs = self.faults.silent.load(Ordering::SeqCst);
        for record in records {
            if leaderless == Some(record.partition) {
                hangs = true;
                continue;
            }
            match self.faults.refused(&record) {
                Some(error) => answers.push(Err(error)),
                None => answers.extend(self.producer.publish(vec![record]).await),
            }
        }
        if hangs {
            std::future::pending::<()>().await;
        }
        answers
    }
}

#[async_trait]
impl Queue for FaultyQueue {
    fn producer(&self) -> Arc<dyn Producer> {
        Arc::new(FaultyProducer {
            producer: self.log.producer(),
            faults: self.faults.clone(),
        })
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        self.log.subscribe(group, topic).await
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.log.partitions(topic)
    }

    fn epoch(&self) -> u32 {
        self.log.epoch()
    }

    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>> {
        if *self.faults.mute.lock() == Some(partition.topic) {
            return Ok(Vec::new());
        }
        self.log.read(partition, from, max).await
    }

    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        self.log.bounds(partition).await
    }

    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        self.log.committed(group, partition).await
    }
}

pub(super) struct FaultyConversations {
    pub(super) store: EmbeddedConversations,
    /// How long a write takes.
    pub(super) latency: Mutex<Duration>,
    /// Writes, each time again.
    pub(super) writes: AtomicUsize,
}

impl FaultyConversations {
    async fn slowly(&self) -> &EmbeddedConversations {
        self.writes.fetch_add(1, Ordering::SeqCst);
        let latency = *self.latency.lock();
        tokio::time::sleep(latency).await;
        &self.store
    }
}

#[async_trait]
impl ConversationStore for FaultyConversations {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        self.slowly().await.save(rows).await
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<Listed>>> {
        self.store.get(keys).await
    }

    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Registers>> {
        self.store.registers(keys).await
    }

    async fn changed(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.store.changed(owner, since, after, limit).await
    }

    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.store.set_read(reads, at).await
    }

    async fn set_received(&self, received: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        self.store.set_received(received).await
    }

    async fn arrange(
        &self,
        arranged: Vec<(UserId, ConversationId, Version, Arranged)>,
        at: Timestamp,
    ) -> Result<()> {
        self.slowly().await.arrange(arranged, at).await
    }

    async fn set_cleared(
        &self,
        cleared: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()> {
        self.slowly().await.set_cleared(cleared, at).await
    }

    async fn hide(
        &self,
        hidden: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.slowly().await.hide(hidden, at).await
    }

    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>> {
        self.store.hidden(owner, conversation, after, limit).await
    }

    async fn touch(&self, touched: Vec<(UserId, ConversationId)>, at: Timestamp) -> Result<()> {
        self.slowly().await.touch(touched, at).await
    }
}

/// Says nothing of groups while it is away, and takes nothing.
pub(super) struct FaultyGroups {
    pub(super) store: EmbeddedGroups,
    pub(super) away: AtomicBool,
    /// Saves, each time again.
    pub(super) saved: AtomicUsize,
    /// Pages of members that were read.
    pub(super) pages: AtomicUsize,
    /// How long a save takes.
    pub(super) latency: Mutex<Duration>,
    /// How long a page of members takes; every seventh is broken off.
    pub(super) page_latency: Mutex<Option<Duration>>,
}

impl FaultyGroups {
    fn here(&self) -> Result<&EmbeddedGroups> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(Error::unavailable("groups", "away")),
            false => Ok(&self.store),
        }
    }
}

#[async_trait]
impl GroupStore for FaultyGroups {
    async fn save(
        &self,
        group: GroupId,
        settings: Option<(Settings, Version)>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()> {
        let latency = *self.latency.lock();
        tokio::time::sleep(latency).await;
        self.saved.fetch_add(1, Ordering::SeqCst);
        self.here()?.save(group, settings, members).await
    }

    async fn settings(&self, group: GroupId) -> Result<Option<(Settings, Version)>> {
        self.here()?.settings(group).await
    }

    async fn members(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        let count = self.pages.fetch_add(1, Ordering::SeqCst);
        let latency = *self.page_latency.lock();
        if let Some(latency) = latency {
            tokio::time::sleep(latency).await;
            if count % 7 == 6 {
                return Err(Error::unavailable("groups", "broken off"));
            }
        }
        self.here()?.members(group, after, limit).await
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(Settings, Member)>>> {
        self.here()?.members_of(keys).await
    }

    async fn present(
        &self,
        group: GroupId,
        after: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.here()?.present(group, after, limit).await
    }

    async fn groups_of(
        &self,
        user: UserId,
        after: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>> {
        self.here()?.groups_of(user, after, limit).await
    }
}

pub(super) struct FaultyTimeline {
    pub(super) store: EmbeddedTimeline,
    pub(super) away: AtomicBool,
    /// Messages that were put there, each time again.
    pub(super) pushed: AtomicUsize,
    /// How long a push takes.
    pub(super) latency: Mutex<Duration>,
}

#[async_trait]
impl Timeline for FaultyTimeline {
    async fn push(&self, group: GroupId, entries: Vec<Entry>) -> Result<()> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(Error::unavailable("timeline", "away")),
            false => {
                let latency = *self.latency.lock();
                tokio::time::sleep(latency).await;
                self.pushed.fetch_add(entries.len(), Ordering::SeqCst);
                self.store.push(group, entries).await
            }
        }
    }

    async fn latest(&self, group: GroupId, offset: usize, count: usize) -> Result<Vec<Entry>> {
        self.store.latest(group, offset, count).await
    }

    async fn count(&self, group: GroupId, most: usize) -> Result<usize> {
        self.store.count(group, most).await
    }

    async fn forget(&self, group: GroupId) -> Result<()> {
        self.store.forget(group).await
    }
}

/// [`EmbeddedCache`] that does not answer when it is told not to.
pub(super) struct FaultyCache {
    pub(super) store: EmbeddedCache,
    pub(super) away: AtomicBool,
}

impl FaultyCache {
    fn check(&self) -> Result<()> {
        match self.away.load(Ordering::SeqCst) {
            true => Err(away()),
            false => Ok(()),
        }
    }
}

fn away() -> Error {
    Error::unavailable("cache", "away")
}

#[async_trait]
impl Cache for FaultyCache {
    fn keep_for(&self) -> Duration {
        self.store.keep_for()
    }

    async fn find(&self, owners: &[Owner]) -> Vec<Result<Found>> {
        match self.check() {
            Ok(()) => self.store.find(owners).await,
            Err(_) => owners.iter().map(|_| Err(away())).collect(),
        }
    }

    async fn keep(&self, copies: Vec<Copy>) -> Vec<Result<bool>> {
        match self.check() {
            Ok(()) => self.store.keep(copies).await,
            Err(_) => copies.iter().map(|_| Err(away())).collect(),
        }
    }

    async fn forget(&self, outdated: &[Outdated]) -> Vec<Result<()>> {
        match self.check() {
            Ok(()) => self.store.forget(outdated).await,
            Err(_) => outdated.iter().map(|_| Err(away())).collect(),
        }
    }
}
