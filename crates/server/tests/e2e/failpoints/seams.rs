//! Every part outside the process, with a failpoint after each of its effects. What only reads has none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use backend::Result;
use backend::audit::AuditStore;
use backend::cache::Cache;
use backend::changes::{ChangeStore, Stretch};
use backend::conversations::{ConversationStore, Registers};
use backend::devices::{DeviceStore, Seen};
use backend::discovery::{NodeLease, Registration, Registry, Role, Roster};
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::heads::HeadStore;
use backend::history::{HistoryStore, StatusWrite};
use backend::ledger::LedgerStore;
use backend::mailbox::{MailboxStore, ServerId};
use backend::queue::{Consumer, NewRecord, Partition, Polled, Producer, Queue, Record};
use backend::timeline::Timeline;
use protocol::change::{Altered, Arranged, ChangeRow, Changed};
use protocol::conversation::{ConversationRow, Head, Listed};
use protocol::drain::Load;
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus, Version};
use protocol::keys::Topic;
use protocol::ledger::chain;
use protocol::ledger::minute::{Amendment, Closed, Row};
use protocol::ledger::{Event, LedgerEntry};
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, MailCursor, MailPage,
    MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer, RouteRequest, TooManySessions,
    Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionEntry, SessionKey};
use protocol::unread::Tally;
use protocol::{ConversationId, Incarnation, MessageId, Platform, SendId, Seq, Timestamp, UserId};
use server::compose::Around;
use tokio::sync::watch;

use super::point::Failpoint;

/// A part whose effects pass a failpoint.
pub(super) struct Watched<T: ?Sized> {
    pub(super) inner: Arc<T>,
    point: Failpoint,
}

impl<T: ?Sized> Watched<T> {
    fn new(inner: Arc<T>, point: &Failpoint) -> Arc<Watched<T>> {
        let point = point.clone();
        Arc::new(Watched { inner, point })
    }

    /// The effect of this name is durable, unless it failed.
    pub(super) fn passed<V>(&self, name: &str, answer: Result<V>) -> Result<V> {
        if answer.is_ok() {
            self.point.passed(name);
        }
        answer
    }
}

impl Around for Failpoint {
    fn queue(&self, inner: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Watched::new(inner, self)
    }

    fn mailbox(&self, inner: Arc<dyn MailboxStore>) -> Arc<dyn MailboxStore> {
        Watched::new(inner, self)
    }

    fn history(&self, inner: Arc<dyn HistoryStore>) -> Arc<dyn HistoryStore> {
        Watched::new(inner, self)
    }

    fn heads(&self, inner: Arc<dyn HeadStore>) -> Arc<dyn HeadStore> {
        Watched::new(inner, self)
    }

    fn conversations(&self, inner: Arc<dyn ConversationStore>) -> Arc<dyn ConversationStore> {
        Watched::new(inner, self)
    }

    fn changes(&self, inner: Arc<dyn ChangeStore>) -> Arc<dyn ChangeStore> {
        Watched::new(inner, self)
    }

    fn groups(&self, inner: Arc<dyn GroupStore>) -> Arc<dyn GroupStore> {
        Watched::new(inner, self)
    }

    fn group_history(&self, inner: Arc<dyn GroupHistoryStore>) -> Arc<dyn GroupHistoryStore> {
        Watched::new(inner, self)
    }

    fn timeline(&self, inner: Arc<dyn Timeline>) -> Arc<dyn Timeline> {
        Watched::new(inner, self)
    }

    fn cache(&self, inner: Arc<dyn Cache>) -> Arc<dyn Cache> {
        Watched::new(inner, self)
    }

    fn devices(&self, inner: Arc<dyn DeviceStore>) -> Arc<dyn DeviceStore> {
        Watched::new(inner, self)
    }

    fn ledger(&self, inner: Arc<dyn LedgerStore>) -> Arc<dyn LedgerStore> {
        Watched::new(inner, self)
    }

    fn audit(&self, inner: Arc<dyn AuditStore>) -> Arc<dyn AuditStore> {
        Watched::new(inner, self)
    }

    fn registry(&self, inner: Arc<dyn Registry>) -> Arc<dyn Registry> {
        Watched::new(inner, self)
    }
}

#[async_trait]
impl MailboxStore for Watched<dyn MailboxStore> {
    fn server(&self, user: UserId) -> ServerId {
        self.inner.server(user)
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let answers = self.inner.route_or_store(requests).await;
        // Each by itself: under load several are stored in one call.
        for _ in answers
            .iter()
            .flatten()
            .filter(|answer| !answer.stored.is_empty())
        {
            self.point.passed("mailbox.store");
        }
        answers
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        self.passed("mailbox.connect", self.inner.connect(request).await)
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, NewSession)>,
        denied: Denied,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        let answers = self.inner.reassert(sessions, denied, now).await;
        let restored = |answer: &ReassertAnswer| matches!(answer, ReassertAnswer::Restored { .. });
        if answers.iter().flatten().any(restored) {
            self.point.passed("mailbox.reassert");
        }
        answers
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        let answers = self.inner.disconnect(sessions).await;
        if answers.iter().any(Result::is_ok) {
            self.point.passed("mailbox.disconnect");
        }
        answers
    }

    async fn sessions(&self, users: &[UserId], denied: Denied) -> Vec<Result<Vec<SessionEntry>>> {
        self.inner.sessions(users, denied).await
    }

    async fn page(
        &self,
        target: Target,
        after: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        self.inner.page(target, after, limit, now).await
    }

    async fn acknowledge(
        &self,
        acked: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>> {
        let removed = self.inner.acknowledge(acked, now).await;
        if removed.iter().flatten().any(|ids| !ids.is_empty()) {
            self.point.passed("mailbox.acknowledge");
        }
        removed
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.inner.policy(platform)
    }

    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        self.inner.trim(target, policy, now).await
    }

    async fn waiting(&self, target: Target) -> Result<u64> {
        self.inner.waiting(target).await
    }

    async fn find(
        &self,
        asked: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<Whereabouts>> {
        self.inner.find(asked, now).await
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        let answers = self.inner.dedupe_begin(sends, now).await;
        if answers.iter().any(Result::is_ok) {
            self.point.passed("mailbox.dedupe-begin");
        }
        answers
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        self.passed("mailbox.dedupe-done", self.inner.dedupe_done(sends).await)
    }

    async fn set_received(&self, received: Vec<(UserId, MessageId)>) -> Result<()> {
        self.passed(
            "mailbox.set-received",
            self.inner.set_received(received).await,
        )
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        self.inner.received(user).await
    }
}

#[async_trait]
impl HistoryStore for Watched<dyn HistoryStore> {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()> {
        self.passed("history.save", self.inner.save_private(rows).await)
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>> {
        self.inner.private(keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>> {
        self.inner.places(keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.inner.find_private(owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        let inner = &self.inner;
        inner.conversation(owner, conversation, range, limit).await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<Tally>>> {
        self.inner.tallies(places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>> {
        let inner = &self.inner;
        inner.find_send(from, conversation, send_id, since).await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.inner.sent_as(send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.passed("history.status", self.inner.set_status(writes).await)
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.inner.status(keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        self.inner.delete(keys).await
    }
}

#[async_trait]
impl HeadStore for Watched<dyn HeadStore> {
    async fn load(&self, conversations: &[ConversationId]) -> Result<Vec<Option<Head>>> {
        self.inner.load(conversations).await
    }

    async fn save(&self, heads: Vec<(ConversationId, Head)>) -> Result<()> {
        self.passed("heads.save", self.inner.save(heads).await)
    }
}

#[async_trait]
impl ConversationStore for Watched<dyn ConversationStore> {
    async fn save(&self, rows: Vec<ConversationRow>) -> Result<()> {
        self.passed("conversations.save", self.inner.save(rows).await)
    }

    async fn get(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Option<Listed>>> {
        self.inner.get(keys).await
    }

    async fn registers(&self, keys: &[(UserId, ConversationId)]) -> Result<Vec<Registers>> {
        self.inner.registers(keys).await
    }

    async fn changed(
        &self,
        owner: UserId,
        since: Timestamp,
        after: Option<ConversationId>,
        limit: usize,
    ) -> Result<Vec<Listed>> {
        self.inner.changed(owner, since, after, limit).await
    }

    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        self.passed("conversations.read", self.inner.set_read(reads, at).await)
    }

    async fn set_received(&self, received: Vec<(UserId, ConversationId, Seq)>) -> Result<()> {
        let set = self.inner.set_received(received).await;
        self.passed("conversations.received", set)
    }

    async fn arrange(
        &self,
        arranged: Vec<(UserId, ConversationId, Version, Arranged)>,
        at: Timestamp,
    ) -> Result<()> {
        let arranged = self.inner.arrange(arranged, at).await;
        self.passed("conversations.arrange", arranged)
    }

    async fn hide(
        &self,
        hidden: Vec<(UserId, ConversationId, Version, Seq)>,
        at: Timestamp,
    ) -> Result<()> {
        let hidden = self.inner.hide(hidden, at).await;
        self.passed("conversations.hide", hidden)
    }

    async fn hidden(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Seq)>> {
        self.inner.hidden(owner, conversation, after, limit).await
    }

    async fn set_cleared(
        &self,
        cleared: Vec<(UserId, ConversationId, Tally)>,
        at: Timestamp,
    ) -> Result<()> {
        let cleared = self.inner.set_cleared(cleared, at).await;
        self.passed("conversations.cleared", cleared)
    }

    async fn touch(&self, touched: Vec<(UserId, ConversationId)>, at: Timestamp) -> Result<()> {
        let touched = self.inner.touch(touched, at).await;
        self.passed("conversations.touch", touched)
    }
}

#[async_trait]
impl ChangeStore for Watched<dyn ChangeStore> {
    async fn save(&self, changes: Vec<ChangeRow>) -> Result<()> {
        self.passed("changes.save", self.inner.save(changes).await)
    }

    async fn since(
        &self,
        conversation: ConversationId,
        after: u64,
        limit: usize,
    ) -> Result<Vec<Changed>> {
        self.inner.since(conversation, after, limit).await
    }

    async fn of_record(
        &self,
        conversation: ConversationId,
        record: Version,
        last: u64,
    ) -> Result<Option<Changed>> {
        self.inner.of_record(conversation, record, last).await
    }

    async fn find_send(
        &self,
        conversation: ConversationId,
        by: UserId,
        send_id: SendId,
        last: u64,
    ) -> Result<Option<(Version, Changed)>> {
        self.inner.find_send(conversation, by, send_id, last).await
    }

    async fn altered(
        &self,
        conversation: ConversationId,
        first: Seq,
        last: Seq,
    ) -> Result<BTreeMap<Seq, Altered>> {
        self.inner.altered(conversation, first, last).await
    }

    async fn altered_each(&self, places: &[(ConversationId, Seq)]) -> Result<Vec<Altered>> {
        self.inner.altered_each(places).await
    }

    async fn recalled(&self, stretches: &[Stretch]) -> Result<Vec<BTreeMap<Seq, UserId>>> {
        self.inner.recalled(stretches).await
    }
}

#[async_trait]
impl DeviceStore for Watched<dyn DeviceStore> {
    async fn seen(&self, seen: Seen) -> Result<()> {
        self.passed("devices.seen", self.inner.seen(seen).await)
    }

    async fn platforms(&self, users: &[UserId], since: Timestamp) -> Result<Vec<Vec<Platform>>> {
        self.inner.platforms(users, since).await
    }
}

/// The services tell of different things: who wrote the entries shows by their first.
fn told(entries: &[LedgerEntry]) -> &'static str {
    match entries.first().map(|entry| &entry.event) {
        Some(Event::Fetched { .. }) => "ledger.fetched",
        Some(Event::NotificationSent { .. }) => "ledger.notified",
        Some(Event::Redriven { .. }) => "ledger.redriven",
        _ => "ledger.delivered",
    }
}

#[async_trait]
impl LedgerStore for Watched<dyn LedgerStore> {
    async fn append(&self, entries: Vec<LedgerEntry>) -> Result<()> {
        let name = told(&entries);
        self.passed(name, self.inner.append(entries).await)
    }

    async fn trace(&self, messages: &[MessageId]) -> Result<Vec<Vec<LedgerEntry>>> {
        self.inner.trace(messages).await
    }

    async fn forget(&self, before: MessageId, limit: usize) -> Result<usize> {
        self.inner.forget(before, limit).await
    }
}

#[async_trait]
impl AuditStore for Watched<dyn AuditStore> {
    async fn head(&self) -> Result<Option<chain::Head>> {
        self.inner.head().await
    }

    async fn advance(&self, head: &chain::Head) -> Result<bool> {
        let advanced = self.inner.advance(head).await;
        if head.last.is_some() && matches!(advanced, Ok(true)) {
            self.point.passed("audit.advance");
        }
        advanced
    }

    async fn save(&self, closed: &Closed) -> Result<()> {
        self.passed("audit.save", self.inner.save(closed).await)
    }

    async fn amend(&self, minute: Timestamp, amendment: &Amendment) -> Result<()> {
        let amended = self.inner.amend(minute, amendment).await;
        self.passed("audit.amend", amended)
    }

    async fn rows(&self, minutes: Range<Timestamp>, limit: usize) -> Result<Vec<Row>> {
        self.inner.rows(minutes, limit).await
    }

    async fn forget(&self, minutes: Range<Timestamp>) -> Result<()> {
        self.inner.forget(minutes).await
    }
}

struct WatchedConsumer {
    inner: Box<dyn Consumer>,
    name: String,
    point: Failpoint,
}

#[async_trait]
impl Producer for Watched<dyn Producer> {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let topics: Vec<Topic> = records
            .iter()
            .map(|record| record.partition.topic)
            .collect();
        let answers = self.inner.publish(records).await;
        for (topic, answer) in topics.into_iter().zip(&answers) {
            if answer.is_ok() {
                self.point.passed(&format!("publish.{}", kind(topic)));
            }
        }
        answers
    }
}

/// Retry topics are one kind.
fn kind(topic: Topic) -> String {
    match topic {
        Topic::Retry(_) => "retry".to_owned(),
        other => other.name().to_string(),
    }
}

#[async_trait]
impl Consumer for WatchedConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        self.inner.poll(max).await
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        let committed = self.inner.commit(next).await;
        if committed.is_ok() {
            self.point.passed(&self.name);
        }
        committed
    }
}

#[async_trait]
impl Queue for Watched<dyn Queue> {
    fn producer(&self) -> Arc<dyn Producer> {
        Watched::new(self.inner.producer(), &self.point)
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        Ok(Box::new(WatchedConsumer {
            inner: self.inner.subscribe(group, topic).await?,
            name: format!("commit.{}", kind(topic)),
            point: self.point.clone(),
        }))
    }

    fn partitions(&self, topic: Topic) -> u32 {
        self.inner.partitions(topic)
    }

    fn epoch(&self) -> u32 {
        self.inner.epoch()
    }

    async fn read(&self, partition: Partition, from: u64, max: usize) -> Result<Vec<Record>> {
        self.inner.read(partition, from, max).await
    }

    async fn bounds(&self, partition: Partition) -> Result<(u64, u64)> {
        self.inner.bounds(partition).await
    }

    async fn committed(&self, group: &str, partition: Partition) -> Result<Option<u64>> {
        self.inner.committed(group, partition).await
    }
}

struct WatchedLease {
    inner: Box<dyn NodeLease>,
    point: Failpoint,
}

#[async_trait]
impl NodeLease for WatchedLease {
    fn number(&self) -> u16 {
        self.inner.number()
    }

    fn not_before(&self) -> Timestamp {
        self.inner.not_before()
    }

    async fn reserve(&self, until: Timestamp) -> Result<()> {
        let reserved = self.inner.reserve(until).await;
        if reserved.is_ok() {
            self.point.passed("node.reserve");
        }
        reserved
    }
}

#[async_trait]
impl Registry for Watched<dyn Registry> {
    async fn register(&self, role: Role, name: &str, address: &str) -> Result<Registration> {
        let registered = self.inner.register(role, name, address).await;
        self.passed("registry.register", registered)
    }

    async fn watch(&self, role: Role) -> Result<watch::Receiver<Roster>> {
        self.inner.watch(role).await
    }

    async fn loads(&self) -> Result<Vec<Load>> {
        self.inner.loads().await
    }

    async fn lease_node(&self) -> Result<Box<dyn NodeLease>> {
        let inner = self.passed("node.lease", self.inner.lease_node().await)?;
        let point = self.point.clone();
        Ok(Box::new(WatchedLease { inner, point }))
    }

    async fn lease_node_again(&self, number: u16) -> Result<Option<Box<dyn NodeLease>>> {
        let leased = self.passed("node.lease", self.inner.lease_node_again(number).await)?;
        let point = self.point.clone();
        Ok(leased.map(|inner| Box::new(WatchedLease { inner, point }) as Box<dyn NodeLease>))
    }

    async fn cluster(&self) -> Result<Option<u64>> {
        self.inner.cluster().await
    }

    async fn claim_cluster(&self, number: u64) -> Result<u64> {
        self.inner.claim_cluster(number).await
    }

    async fn next_incarnation(&self, name: &str) -> Result<Incarnation> {
        self.inner.next_incarnation(name).await
    }
}
