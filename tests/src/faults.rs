//! Single seams that fail when a test wants them to, around the real ones.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::task::{Task, Work};
use async_trait::async_trait;
use backend::history::{HistoryStore, StatusWrite};
use backend::mailbox::{MailboxStore, ServerId};
use backend::queue::{Consumer, NewRecord, Partition, Polled, Producer, Queue, Record};
use backend::{Error, Result};
use protocol::frame::HistoryRange;
use protocol::history::{IdRange, Order, Place, PrivateRow, RowStatus};
use protocol::keys::Topic;
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, MailCursor, MailPage,
    MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer, RouteRequest, TooManySessions,
    Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionEntry, SessionKey};
use protocol::unread::Tally;
use protocol::{ConversationId, MessageId, Platform, SendId, Seq, Timestamp, UserId};

/// On or off; clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Switch(Arc<AtomicBool>);

impl Switch {
    pub fn on(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub fn off(&self) {
        self.0.store(false, Ordering::SeqCst);
    }

    pub fn is_on(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    fn check(&self, seam: &'static str) -> Result<()> {
        if self.is_on() {
            return Err(Error::unavailable(seam, "away, as the test wants it"));
        }
        Ok(())
    }
}

/// A mailbox that will have nothing to do with some users, and forgets sends when told to.
pub struct FaultyMailbox {
    inner: Arc<dyn MailboxStore>,
    pub refused: Mutex<BTreeSet<UserId>>,
    /// Whether a send is a repeat cannot be asked.
    pub dedupe_away: Switch,
    /// Where a message is cannot be asked.
    pub find_away: Switch,
    /// Who asks for sessions waits for ever.
    pub sessions_hang: Switch,
    /// Whose part does not answer.
    pub silent: Mutex<BTreeSet<UserId>>,
}

impl FaultyMailbox {
    pub fn around(inner: Arc<dyn MailboxStore>) -> Arc<FaultyMailbox> {
        Arc::new(FaultyMailbox {
            inner,
            refused: Mutex::default(),
            dedupe_away: Switch::default(),
            find_away: Switch::default(),
            sessions_hang: Switch::default(),
            silent: Mutex::default(),
        })
    }

    /// From now on this user's part is away, as a shard is.
    pub fn silence(&self, user: UserId) {
        self.silent.lock().expect("no panic").insert(user);
    }

    pub fn answer_all(&self) {
        self.silent.lock().expect("no panic").clear();
    }

    fn check(&self, user: UserId) -> Result<()> {
        match self.silent.lock().expect("no panic").contains(&user) {
            true => Err(Error::unavailable("mailbox", "away, as the test wants it")),
            false => Ok(()),
        }
    }

    pub fn refuse(&self, user: UserId) {
        self.refused.lock().expect("no panic").insert(user);
    }

    pub fn accept_all(&self) {
        self.refused.lock().expect("no panic").clear();
    }
}

#[async_trait]
impl MailboxStore for FaultyMailbox {
    fn server(&self, user: UserId) -> ServerId {
        self.inner.server(user)
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let mut answers = Vec::with_capacity(requests.len());
        for request in requests {
            let refused = self
                .refused
                .lock()
                .expect("no panic")
                .contains(&request.user);
            if refused {
                answers.push(Err(Error::conflict(
                    "mailbox",
                    "refused, as the test wants it",
                )));
            } else if let Err(away) = self.check(request.user) {
                answers.push(Err(away));
            } else {
                answers.extend(self.inner.route_or_store(vec![request]).await);
            }
        }
        answers
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        self.check(request.user)?;
        self.inner.connect(request).await
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, NewSession)>,
        denied: Denied,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        let mut answers = Vec::with_capacity(sessions.len());
        for session in sessions {
            answers.push(match self.check(session.0) {
                Ok(()) => {
                    let answered = self
                        .inner
                        .reassert(vec![session], denied.clone(), now)
                        .await;
                    let answer = answered.into_iter().next();
                    answer.unwrap_or_else(|| Err(Error::unavailable("mailbox", "no answer")))
                }
                Err(away) => Err(away),
            });
        }
        answers
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        self.inner.disconnect(sessions).await
    }

    async fn sessions(&self, users: &[UserId], denied: Denied) -> Vec<Result<Vec<SessionEntry>>> {
        if self.sessions_hang.is_on() {
            std::future::pending::<()>().await;
        }
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
        let mut answers = Vec::with_capacity(acked.len());
        for acked in acked {
            match self.check(acked.0.user) {
                Ok(()) => answers.extend(self.inner.acknowledge(vec![acked], now).await),
                Err(away) => answers.push(Err(away)),
            }
        }
        answers
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
        if self.find_away.is_on() {
            let away = || Error::unavailable("mailbox", "away, as the test wants it");
            return asked.iter().map(|_| Err(away())).collect();
        }
        self.inner.find(asked, now).await
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        if self.dedupe_away.is_on() {
            let away = || {
                self.dedupe_away
                    .check("mailbox")
                    .map(|()| DedupeAnswer::Fresh)
            };
            return sends.iter().map(|_| away()).collect();
        }
        self.inner.dedupe_begin(sends, now).await
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        self.dedupe_away.check("mailbox")?;
        self.inner.dedupe_done(sends).await
    }

    async fn set_received(&self, received: Vec<(UserId, MessageId)>) -> Result<()> {
        self.inner.set_received(received).await
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        self.inner.received(user).await
    }
}

/// A history that is away for a while.
pub struct FaultyHistory {
    inner: Arc<dyn HistoryStore>,
    pub away: Switch,
    /// A conversation is read in a second.
    pub slow: Switch,
}

impl FaultyHistory {
    pub fn around(inner: Arc<dyn HistoryStore>) -> Arc<FaultyHistory> {
        Arc::new(FaultyHistory {
            inner,
            away: Switch::default(),
            slow: Switch::default(),
        })
    }

    fn here(&self) -> Result<&Arc<dyn HistoryStore>> {
        self.away.check("history")?;
        Ok(&self.inner)
    }
}

#[async_trait]
impl HistoryStore for FaultyHistory {
    async fn save_private(&self, rows: Vec<PrivateRow>) -> Result<()> {
        self.here()?.save_private(rows).await
    }

    async fn private(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<PrivateRow>>> {
        self.here()?.private(keys).await
    }

    async fn places(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<Option<Place>>> {
        self.here()?.places(keys).await
    }

    async fn find_private(
        &self,
        owner: UserId,
        range: IdRange,
        order: Order,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        self.here()?.find_private(owner, range, order, limit).await
    }

    async fn conversation(
        &self,
        owner: UserId,
        conversation: ConversationId,
        range: HistoryRange,
        limit: usize,
    ) -> Result<Vec<PrivateRow>> {
        let inner = self.here()?;
        if self.slow.is_on() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        inner.conversation(owner, conversation, range, limit).await
    }

    async fn tallies(
        &self,
        places: &[(UserId, ConversationId, Seq)],
    ) -> Result<Vec<Option<Tally>>> {
        self.here()?.tallies(places).await
    }

    async fn find_send(
        &self,
        from: UserId,
        conversation: ConversationId,
        send_id: SendId,
        since: MessageId,
    ) -> Result<Option<PrivateRow>> {
        let inner = self.here()?;
        inner.find_send(from, conversation, send_id, since).await
    }

    async fn sent_as(&self, send_id: SendId) -> Result<Vec<(UserId, MessageId)>> {
        self.here()?.sent_as(send_id).await
    }

    async fn set_status(&self, writes: Vec<StatusWrite>) -> Result<Vec<bool>> {
        self.here()?.set_status(writes).await
    }

    async fn status(&self, keys: &[(UserId, MessageId)]) -> Result<Vec<RowStatus>> {
        self.here()?.status(keys).await
    }

    async fn delete(&self, keys: &[(UserId, MessageId)]) -> Result<()> {
        self.here()?.delete(keys).await
    }
}

/// A log that takes no messages while it is told so, and loses accepted ones on their way to the carrier.
/// Everything else goes on.
pub struct FaultyQueue {
    inner: Arc<dyn Queue>,
    pub full: Switch,
    loss: Arc<Mutex<Loss>>,
}

/// Messages that a consumer is never shown.
#[derive(Debug, Default)]
struct Loss {
    left: usize,
    lost: BTreeSet<MessageId>,
}

struct FaultyProducer {
    inner: Arc<dyn Producer>,
    full: Switch,
}

struct FaultyConsumer {
    inner: Box<dyn Consumer>,
    loss: Arc<Mutex<Loss>>,
}

impl FaultyQueue {
    pub fn around(inner: Arc<dyn Queue>) -> Arc<FaultyQueue> {
        Arc::new(FaultyQueue {
            inner,
            full: Switch::default(),
            loss: Arc::default(),
        })
    }

    /// The next so many messages that a consumer would be shown are passed over, as if they had never been
    /// there; what comes after them is consumed and committed.
    pub fn lose(&self, count: usize) {
        self.loss.lock().expect("no panic").left = count;
    }

    /// Those that were lost so far.
    pub fn lost(&self) -> BTreeSet<MessageId> {
        self.loss.lock().expect("no panic").lost.clone()
    }
}

impl Loss {
    fn takes(&mut self, record: &Record) -> bool {
        if self.left == 0 {
            return false;
        }
        match Task::decode(record.value.clone()).map(|task| task.work) {
            Ok(Work::Message(task)) => {
                self.left -= 1;
                self.lost.insert(task.message.id)
            }
            _ => false,
        }
    }
}

#[async_trait]
impl Consumer for FaultyConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        loop {
            match self.inner.poll(max).await? {
                Polled::Records(mut records) => {
                    let mut loss = self.loss.lock().expect("no panic");
                    records.retain(|record| !loss.takes(record));
                    if !records.is_empty() {
                        return Ok(Polled::Records(records));
                    }
                }
                other => return Ok(other),
            }
        }
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.inner.pause(partitions);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.inner.resume(partitions);
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        self.inner.commit(next).await
    }
}

#[async_trait]
impl Producer for FaultyProducer {
    async fn publish(&self, records: Vec<NewRecord>) -> Vec<Result<u64>> {
        let messages = records.iter().any(|r| r.partition.topic == Topic::Message);
        if messages && self.full.is_on() {
            let full = || Err(Error::unavailable("log", "full, as the test wants it"));
            return records.iter().map(|_| full()).collect();
        }
        self.inner.publish(records).await
    }
}

#[async_trait]
impl Queue for FaultyQueue {
    fn producer(&self) -> Arc<dyn Producer> {
        Arc::new(FaultyProducer {
            inner: self.inner.producer(),
            full: self.full.clone(),
        })
    }

    async fn subscribe(&self, group: &str, topic: Topic) -> Result<Box<dyn Consumer>> {
        let inner = self.inner.subscribe(group, topic).await?;
        if topic != Topic::Message {
            return Ok(inner);
        }
        let loss = self.loss.clone();
        Ok(Box::new(FaultyConsumer { inner, loss }))
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
