//! Receipts of devices: checked against the user's own rows, recorded, and pushed to the senders.
//!
//! A call costs one read of private messages, one of groups', one of members and one write of each
//! kind of register, however many receipts it holds; if one of these fails, it is done again for
//! each user, group or member alone, and refuses the receipts of those that fail. The answer (ack:A)
//! follows the writes; the notice to the sender (ack:N) follows the answer and may be lost, since
//! the register can be asked (S3-18).
//!
//! Messages of groups keep no receipts (S0-61b): a member's receipt moves that member's own
//! registers, and only the member's other devices are notified.

mod last_received;
mod notifier;
mod read_markers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::station::ReceiptItem;
use backend::Backends;
use futures_util::future::join_all;
use protocol::frame::Acked;
use protocol::history::Direction;
use protocol::message_row::{Owner, StoredPlace};
use protocol::receipt::{ReceiptFacts, ReceiptKind, ReceiptMoves, ReceiptNeeds, ReceiptNotices};
use protocol::{Code, ConversationId, GroupId, MessageId, Refusal, Seq, UserId};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

pub(crate) use self::last_received::LastReceivedWriter;
use self::notifier::ReceiptNotifier;
pub(crate) use self::read_markers::{ReadMarker, write_read_markers};
use crate::boat_clients::BoatClients;
use crate::config::Config;
use crate::membership::Membership;
use crate::metrics::ReceiptMetrics;
use crate::part_spawner::PartSpawner;
use crate::read::ListCache;
use crate::stores::{MAX_CONCURRENT_OWNERS, Unreadable, by_owner, too_late};
use crate::work_queue::{WAITING_MAX, WorkQueue};

/// Records receipts.
pub(crate) struct Receipts {
    backends: Backends,
    deadline: Duration,
    membership: Arc<Membership>,
    list_cache: ListCache,
    /// Notices for the senders; `None` if they ask for themselves.
    notices: Option<WorkQueue<ReceiptNotices>>,
    last_received: Arc<LastReceivedWriter>,
    tasks: TaskTracker,
    metrics: ReceiptMetrics,
}

impl Receipts {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        boats: Arc<BoatClients>,
        membership: Arc<Membership>,
        list_cache: ListCache,
        last_received: Arc<LastReceivedWriter>,
        spawner: &PartSpawner,
    ) -> Receipts {
        let notifier = ReceiptNotifier::new(backends, config, boats, spawner);
        let notify = move |batch| notifier.clone().notify_all(batch);
        let notices = (config.push_receipts)
            .then(|| WorkQueue::spawn(spawner, "receipts", WAITING_MAX, notify));
        Receipts {
            backends: backends.clone(),
            deadline: config.store_deadline,
            membership,
            list_cache,
            notices,
            last_received,
            tasks: spawner.tasks.clone(),
            metrics: ReceiptMetrics::new(),
        }
    }

    /// Records receipts; returns one answer per item, in order.
    pub(crate) async fn record(self: &Arc<Self>, items: Vec<ReceiptItem>) -> Vec<Acked> {
        let facts = self.facts(&items, self.step_timeout()).await;
        let now = self.backends.clock.now();
        let mut moves = ReceiptMoves::default();
        let verdicts = items
            .iter()
            .map(|item| moves.judge(item.user, &item.ack, &facts, now));
        let mut answers: Vec<Acked> = verdicts.collect();
        let count = |answers: &[Acked], of: fn(&Acked) -> usize| {
            answers.iter().map(of).sum::<usize>() as u64
        };
        let refused_count = count(&answers, |answer| answer.refusals.len());
        self.metrics.refused_total.increment(refused_count);
        // Not broken off by a caller that hangs up: a status that was set but not pushed would not
        // be new again, and a cache entry that was not renewed would say less than its register.
        let this = self.clone();
        let writes = self.tasks.spawn(async move { this.write(moves).await });
        let Ok(writes) = writes.await else {
            return refuse_all(&items, &broken_off());
        };
        for (item, answer) in items.iter().zip(&mut answers) {
            writes.apply(item, answer, &facts);
        }
        let recorded_count = count(&answers, |answer| answer.ids.len());
        self.metrics.recorded_total.increment(recorded_count);
        self.note_last_received(&items, &answers, &facts);
        answers
    }

    /// Deadline of the facts, and again of the writes: a boat waits for both.
    fn step_timeout(&self) -> Duration {
        self.deadline * 3 / 4
    }

    /// Notes the newest private message from another user that each item acknowledges.
    fn note_last_received(&self, items: &[ReceiptItem], answers: &[Acked], facts: &ReceiptFacts) {
        for (item, answer) in items.iter().zip(answers) {
            let is_incoming = |id: &&MessageId| {
                let place = facts.places.get(&(item.user, **id));
                place.is_some_and(|place| place.direction == Direction::In)
            };
            if let Some(last) = answer.ids.iter().filter(is_incoming).max() {
                self.last_received.note(item.user, *last);
            }
        }
    }

    /// Facts about the receipts: a read of private messages, one of groups' and one of members;
    /// receipts of many members for one message share them. After a failure each user's and each
    /// group's facts are read by themselves.
    async fn facts(&self, items: &[ReceiptItem], deadline: Duration) -> ReceiptFacts {
        let mut needs = ReceiptNeeds::default();
        items
            .iter()
            .for_each(|item| needs.add(item.user, &item.ack));
        let members: Vec<_> = needs.members.into_iter().collect();
        let mut facts = ReceiptFacts::default();
        let (places, messages, refusals) = tokio::join!(
            self.places(needs.places, deadline),
            self.messages_at(needs.messages, deadline),
            self.membership.refused_receivers(&members, deadline),
        );
        facts.refusals = refusals;
        for (key, place) in places {
            match place {
                Ok(place) => facts.places.extend(place.map(|place| (key, place))),
                Err(refusal) => _ = facts.unread_places.insert(key, refusal),
            }
        }
        for (key, message) in messages {
            match message {
                Ok(message) => facts.messages.extend(message.map(|id| (key, id))),
                Err(refusal) => _ = facts.unread_messages.insert(key, refusal),
            }
        }
        facts
    }

    async fn places(
        &self,
        keys: Vec<(UserId, MessageId)>,
        deadline: Duration,
    ) -> Facts<(UserId, MessageId), StoredPlace> {
        let messages = &self.backends.messages;
        let ask = move |keys: Vec<(UserId, MessageId)>| async move { messages.places(&keys).await };
        let places = by_owner(
            deadline,
            Unreadable::Absent,
            keys.clone(),
            |(user, _)| *user,
            ask,
        );
        let places = places.await;
        keys.into_iter().zip(places.each).collect()
    }

    /// Messages of groups at these positions.
    async fn messages_at(
        &self,
        seqs: BTreeMap<GroupId, BTreeSet<Seq>>,
        deadline: Duration,
    ) -> Facts<(GroupId, Seq), MessageId> {
        let positions = seqs.into_iter();
        let positions =
            positions.flat_map(|(group, seqs)| seqs.into_iter().map(move |seq| (group, seq)));
        let positions: Vec<(GroupId, Seq)> = positions.collect();
        let place = |&(group, seq): &(GroupId, Seq)| {
            (Owner::Group(group), ConversationId::Group(group), seq)
        };
        let places: Vec<_> = positions.iter().map(place).collect();
        let messages = &self.backends.messages;
        let ask = move |places: Vec<(Owner, ConversationId, Seq)>| async move {
            messages.at(&places).await
        };
        let rows = by_owner(
            deadline,
            Unreadable::Absent,
            places,
            |(owner, ..)| *owner,
            ask,
        );
        let rows = rows.await;
        let ids = rows.each.into_iter();
        let ids = ids.map(|rows| rows.map(|row| row.map(|(id, _)| id)));
        positions.into_iter().zip(ids).collect()
    }

    /// Writes all registers. After a failure each user's are written by themselves.
    async fn write(&self, mut moves: ReceiptMoves) -> RegisterWrites {
        let statuses = std::mem::take(&mut moves.statuses);
        let registers = by_key(std::mem::take(&mut moves.received));
        let read = by_key(std::mem::take(&mut moves.read));
        let owners: Vec<UserId> = statuses.iter().map(|status| status.owner).collect();
        let receivers: Vec<UserId> = registers.iter().map(|(user, ..)| *user).collect();
        let (messages, conversations) = (&self.backends.messages, &self.backends.conversations);
        let deadline = self.step_timeout();
        let (status_writes, received_writes, read) = tokio::join!(
            by_owner(
                deadline,
                Unreadable::Refused,
                statuses,
                |status| status.owner,
                move |statuses| async move { messages.set_status(statuses).await },
            ),
            by_owner(
                deadline,
                Unreadable::Refused,
                registers,
                |(user, ..)| *user,
                move |registers: Vec<_>| async move {
                    let count = registers.len();
                    let outcome = conversations.set_received(registers).await;
                    outcome.map(|()| vec![(); count])
                },
            ),
            self.set_read(read, deadline),
        );
        let is_new = |is_new: &Result<bool, Refusal>| match is_new {
            // An earlier try that was not answered may have set it.
            Ok(false) if status_writes.is_repeat => None,
            Ok(is_new) => Some(*is_new),
            Err(_) => None,
        };
        let new: Vec<Option<bool>> = status_writes.each.iter().map(is_new).collect();
        let is_unrecorded =
            |user| read.refusals.contains_key(&user) || read.unheard.contains(&user);
        let news = moves.notices(&new, is_unrecorded);
        if let Some(notices) = &self.notices
            && !news.is_empty()
        {
            notices.offer(news);
        }
        RegisterWrites {
            statuses: refusals(owners, status_writes.each),
            receipts: refusals(receivers, received_writes.each),
            read,
        }
    }

    /// Moves the read registers of all users together, or of each alone if that failed.
    async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
        mut timeout: Duration,
    ) -> ReadWrites {
        let deadline = Instant::now() + timeout;
        let mut writes = ReadWrites::default();
        let mut reads_by_user: BTreeMap<UserId, Vec<_>> = BTreeMap::new();
        for read in &reads {
            reads_by_user.entry(read.0).or_default().push(*read);
        }
        if reads_by_user.len() > 1 {
            timeout /= 2;
            if let Ok(unheard) = self.list_cache.set_read_within(timeout, reads).await {
                writes.unheard = unheard;
                return writes;
            }
        }
        // Never broken off: a register that moved moves its cache entry, too.
        let reads_by_user: Vec<_> = reads_by_user.into_iter().collect();
        let mut failure: Option<Refusal> = None;
        for chunk in reads_by_user.chunks(MAX_CONCURRENT_OWNERS) {
            let timeout = timeout.min(deadline.saturating_duration_since(Instant::now()));
            if timeout.is_zero() {
                failure.get_or_insert_with(too_late);
            }
            if let Some(refusal) = &failure {
                let refusals = chunk.iter().map(|(user, _)| (*user, refusal.clone()));
                writes.refusals.extend(refusals);
                continue;
            }
            let attempts = chunk.iter().map(|(user, reads)| async move {
                let outcome = self
                    .list_cache
                    .set_read_within(timeout, reads.clone())
                    .await;
                (*user, outcome)
            });
            for (user, outcome) in join_all(attempts).await {
                match outcome {
                    Ok(unheard) => writes.unheard.extend(unheard),
                    Err(refusal) => _ = writes.refusals.insert(user, refusal),
                }
            }
            let is_silent = chunk
                .iter()
                .all(|(user, _)| writes.refusals.contains_key(user));
            let refusal = writes.refusals.last_key_value().filter(|_| is_silent);
            failure = refusal.map(|(_, refusal)| refusal.clone());
        }
        writes
    }
}

/// Facts by key, or the refusals of those that no store could read.
type Facts<K, T> = Vec<(K, Result<Option<T>, Refusal>)>;

/// Users whose registers could not be written.
struct RegisterWrites {
    /// Senders, of whom statuses are.
    statuses: BTreeMap<UserId, Refusal>,
    receipts: BTreeMap<UserId, Refusal>,
    read: ReadWrites,
}

#[derive(Default)]
struct ReadWrites {
    refusals: BTreeMap<UserId, Refusal>,
    /// Users who must repeat their reads, as their other devices may not hear of them yet.
    unheard: BTreeSet<UserId>,
}

impl RegisterWrites {
    /// Refuses what was not written for this item.
    fn apply(&self, item: &ReceiptItem, answer: &mut Acked, facts: &ReceiptFacts) {
        let (user, kind) = (item.user, item.ack.kind);
        let refusal = match kind {
            ReceiptKind::Received => self.receipts.get(&user).cloned(),
            ReceiptKind::Read => {
                let unheard = || self.read.unheard.contains(&user).then(unheard_refusal);
                self.read.refusals.get(&user).cloned().or_else(unheard)
            }
        };
        if let Some(refusal) = refusal {
            *answer = refuse_item(item, &refusal);
            return;
        }
        if self.statuses.is_empty() {
            return;
        }
        let refusals = &mut answer.refusals;
        answer.ids.retain(|id| {
            let place = facts.places.get(&(user, *id));
            let sender = place.filter(|place| place.direction == Direction::In);
            match sender.and_then(|place| self.statuses.get(&place.peer)) {
                Some(refusal) => {
                    refusals.push((*id, refusal.clone()));
                    false
                }
                None => true,
            }
        });
    }
}

fn refusals<T>(users: Vec<UserId>, results: Vec<Result<T, Refusal>>) -> BTreeMap<UserId, Refusal> {
    let pairs = users.into_iter().zip(results);
    pairs
        .filter_map(|(user, result)| Some((user, result.err()?)))
        .collect()
}

fn broken_off() -> Refusal {
    Refusal::new(Code::Unavailable, "interrupted: send the receipt again")
}

fn refuse_all(items: &[ReceiptItem], refusal: &Refusal) -> Vec<Acked> {
    items
        .iter()
        .map(|item| refuse_item(item, refusal))
        .collect()
}

fn refuse_item(item: &ReceiptItem, refusal: &Refusal) -> Acked {
    let acks = item.ack.items.iter();
    Acked {
        kind: item.ack.kind,
        ids: Vec::new(),
        refusals: acks.map(|ack| (ack.id, refusal.clone())).collect(),
    }
}

fn unheard_refusal() -> Refusal {
    Refusal::new(
        Code::Unavailable,
        "your other devices may not know it yet: send the receipt again",
    )
}

fn by_key(
    registers: BTreeMap<(UserId, ConversationId), Seq>,
) -> Vec<(UserId, ConversationId, Seq)> {
    registers
        .into_iter()
        .map(|((user, conversation), seq)| (user, conversation, seq))
        .collect()
}
