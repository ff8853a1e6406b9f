//! What becomes of each record of a batch, before anything is written.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use api::task::{MessageTask, Work};
use api::told::{Roles, frame_of, frames_of};
use futures_util::{StreamExt, TryStreamExt, stream};
use protocol::change::{Altered, Asked, ChangeKind, ChangeRow};
use protocol::conversation::{Head, Placement, Ruling, Standing};
use protocol::delivery::{self, Notice, Origin, Owed, Source, Task, Word};
use protocol::frame::PlacedEcho;
use protocol::group::{self, Audience, Group, GroupRow};
use protocol::history::{PrivateRow, Version};
use protocol::ledger::{DeadReason, Event, LedgerEntry};
use protocol::message::Content;
use protocol::{
    ConversationId, GroupId, MessageId, Placed, Platform, Position, SendId, Seq, Timestamp, UserId,
};
use tokio::time::Instant;

use super::changing::Changing;
use super::listing::Deed;
use super::subject::Subjects;
use super::wishing::Granted;
use super::{Halt, WriteFailure, Writer};
use crate::work::Read;

/// Questions about sends that are asked at once.
const TOGETHER: usize = 64;

/// A record's place, and what it looks like there.
pub(super) struct Placing {
    pub(super) placed: Placed,
    pub(super) rows: Rows,
    /// The members of its group then.
    pub(super) readers: Readers,
    /// What it says by now, where that was handled before.
    pub(super) shown: Option<Content>,
}

/// Those of a group who are told.
pub(super) enum Readers {
    /// Each of them is owed it.
    Few(Vec<UserId>),
    /// Only what lives is told, a few members at a time.
    Many(Audience),
}

impl Default for Readers {
    fn default() -> Readers {
        Readers::Few(Vec::new())
    }
}

impl Readers {
    pub(super) fn of(audience: Audience, few: usize) -> Readers {
        let readers: Vec<UserId> = audience.behind(None).take(few.saturating_add(1)).collect();
        if readers.len() > few {
            Readers::Many(audience)
        } else {
            Readers::Few(readers)
        }
    }

    /// What each is owed, and who is told beside that.
    pub(super) fn owed(
        &self,
        placed: &Placed,
        known: impl Fn(UserId) -> Vec<Platform>,
    ) -> (Vec<Owed>, Option<Audience>) {
        match self {
            Readers::Few(readers) => {
                let readers = readers.iter().copied();
                (delivery::owed_to(readers, placed, known), None)
            }
            Readers::Many(audience) => {
                let from = placed.message.from;
                (vec![delivery::told(from)], Some(audience.clone()))
            }
        }
    }
}

/// A message as it is kept.
pub(super) enum Rows {
    Private(Box<[PrivateRow; 2]>),
    Group(Box<GroupRow>),
}

impl Rows {
    fn of(placed: &Placed, sent: u64, version: Version) -> Option<Rows> {
        match placed.conversation {
            ConversationId::Group(_) => Some(Rows::Group(Box::new(GroupRow::of(placed, version)?))),
            ConversationId::Private { .. } | ConversationId::System(_) => {
                let rows = PrivateRow::pair_of(placed, sent, version)?;
                Some(Rows::Private(Box::new(rows)))
            }
        }
    }

    pub(super) fn version(&self) -> Version {
        match self {
            Rows::Private(rows) => rows[0].version,
            Rows::Group(row) => row.version,
        }
    }
}

pub(super) enum Decided {
    Placed {
        placement: Box<Placing>,
        head: After,
    },
    Changed {
        change: Box<Changing>,
        head: After,
    },
    /// The asker's list is changed.
    Listed(Box<Deed>),
    /// A wish about a group that its rules allow.
    Granted(Box<Granted>),
    /// Its place in the log, or its group, has no room for it.
    Refused {
        ledger: Vec<LedgerEntry>,
        /// Tells the sender why.
        notice: Option<Notice>,
    },
    /// A change that is none: it is so already, or its rules say no.
    Unchanged {
        ledger: Vec<LedgerEntry>,
        /// Tells the asker why.
        notice: Option<Notice>,
    },
    /// The message stands already: this record adds nothing.
    Repeat {
        ledger: Vec<LedgerEntry>,
        /// Tells the sender where.
        notice: Option<Notice>,
    },
    Dead(DeadReason, String),
    /// No message to be placed.
    NoMessage,
}

/// The head of a conversation after a record.
#[derive(Clone, Copy, Debug)]
pub(super) enum After {
    Moved(Head),
    /// It stays: the record was handled before.
    Kept(Head),
}

impl After {
    pub(super) fn head(self) -> Head {
        match self {
            After::Moved(head) | After::Kept(head) => head,
        }
    }
}

/// What the records before this one, in the same batch, have come to.
#[derive(Default)]
pub(super) struct Before {
    pub(super) heads: BTreeMap<ConversationId, Head>,
    /// What has become of messages that records of this batch change.
    pub(super) altered: BTreeMap<(ConversationId, Seq), Altered>,
    /// The changes of this batch.
    pub(super) changed: Vec<ChangeRow>,
    /// The same for all of the batch: a wish has one of its own.
    pub(super) groups: BTreeMap<GroupId, Arc<Group>>,
    /// Of the store; `None`: it has none.
    rows: BTreeMap<(ConversationId, UserId, MessageId), Option<Standing>>,
    /// What records of this batch are about, of the store.
    pub(super) subjects: Subjects,
    /// What the store has under the send_ids of sends that may be repeats, by their records.
    first_sends: BTreeMap<Source, FirstSend>,
    placed: Vec<Pending>,
}

/// The message that stands under a send_id.
type FirstSend = Option<(MessageId, Standing)>;

impl Before {
    pub(super) fn group(&self, conversation: ConversationId) -> Option<&Arc<Group>> {
        match conversation {
            ConversationId::Group(group) => self.groups.get(&group),
            ConversationId::Private { .. } | ConversationId::System(_) => None,
        }
    }

    /// What its group is by now, a record behind this one made: this one was handled, whole.
    pub(super) fn is_behind(&self, conversation: ConversationId, record: Version) -> bool {
        let group = self.group(conversation);
        group.is_some_and(|group| group.newest() > record)
    }
}

struct Pending {
    from: UserId,
    send_id: SendId,
    id: MessageId,
    standing: Standing,
}

impl Writer {
    /// In order, as many of the first records as there is time for: one at least, once their groups are read.
    pub(super) async fn decide_all(
        &mut self,
        reads: &[Arc<Read>],
        until: Instant,
    ) -> Result<Vec<Decided>, WriteFailure> {
        // The groups first: what stands before a wish that shows is in the heads that are read after it.
        let Some(groups) = self.groups.load(groups(reads), until).await? else {
            return Ok(Vec::new());
        };
        let mut before = Before {
            heads: self.heads.load(conversations(reads)).await?,
            groups,
            ..Before::default()
        };
        self.prefetch(reads, &mut before).await?;
        self.prefetch_first_sends(reads, &mut before).await?;
        self.prefetch_subjects(reads, &mut before).await?;
        let mut decided = Vec::with_capacity(reads.len());
        for read in reads {
            if !decided.is_empty() && Instant::now() >= until {
                break;
            }
            let Work::Message(task) = &read.task.work else {
                decided.push(Decided::NoMessage);
                continue;
            };
            let change = task.message.content.change.as_deref();
            let next = match (Asked::of(&task.message), change) {
                (Some(asked), _) => {
                    self.change(read, task, asked, &decided, &mut before)
                        .await?
                }
                (None, Some(change)) => match &change.kind {
                    ChangeKind::Wish(wish) => self.wish(read, task, wish, &before),
                    _ => {
                        self.list_deed(read, task, change, &decided, &before)
                            .await?
                    }
                },
                (None, None) => self.decide(read, task, &mut before).await?,
            };
            decided.push(next);
        }
        Ok(decided)
    }

    /// Reads together the rows that the heads cannot do without.
    async fn prefetch(&self, reads: &[Arc<Read>], before: &mut Before) -> Result<(), WriteFailure> {
        let mut keys = Vec::new();
        for read in reads {
            let Some((task, conversation)) = message(read) else {
                continue;
            };
            if task.message.content.change.is_some() {
                continue;
            }
            let head = before.heads.get(&conversation).copied().unwrap_or_default();
            let version = self.version(read);
            let placement = head.place(version, task.message.id);
            let is_new = matches!(placement, Placement::New(_));
            if !is_new || before.is_behind(conversation, version) {
                keys.push((conversation, task.message.from, task.message.id));
            }
        }
        let rows = self.standings(&keys).await?;
        before.rows.extend(keys.into_iter().zip(rows));
        Ok(())
    }

    /// Looks together for the first ones of sends that may be repeats: where a part of the mailbox is away, that is
    /// each send whose key lies there.
    async fn prefetch_first_sends(
        &self,
        reads: &[Arc<Read>],
        before: &mut Before,
    ) -> Result<(), WriteFailure> {
        let asked = reads.iter().filter_map(|read| {
            let (task, conversation) = message(read).filter(|(task, _)| task.unsure)?;
            let source = read.source;
            let stored = self.stored_send(task, conversation);
            Some(async move { stored.await.map(|stored| (source, stored)) })
        });
        let asked: Vec<_> = asked.collect();
        let asked = stream::iter(asked).buffer_unordered(TOGETHER);
        before.first_sends = asked.try_collect::<BTreeMap<_, _>>().await?;
        Ok(())
    }

    /// What stands in the store under these ids, in order of the question.
    async fn standings(
        &self,
        keys: &[(ConversationId, UserId, MessageId)],
    ) -> Result<Vec<Option<Standing>>, WriteFailure> {
        let (mut private, mut of_groups) = (Vec::new(), Vec::new());
        for (conversation, from, id) in keys {
            match conversation {
                ConversationId::Group(group) => of_groups.push((*group, *id)),
                _ => private.push((*from, *id)),
            }
        }
        let private = match private.is_empty() {
            true => Vec::new(),
            false => self.stores.within(self.history.private(&private)).await?,
        };
        let of_groups = match of_groups.is_empty() {
            true => Vec::new(),
            false => {
                let rows = self.group_history.rows(&of_groups);
                self.stores.within(rows).await?
            }
        };
        let mut private = private.iter().map(|row| row.as_ref().map(Standing::from));
        let mut of_groups = of_groups.iter().map(|row| row.as_ref().map(Standing::from));
        let standings = keys.iter().map(|(conversation, ..)| match conversation {
            ConversationId::Group(_) => of_groups.next().flatten(),
            _ => private.next().flatten(),
        });
        Ok(standings.collect())
    }

    pub(super) fn version(&self, read: &Read) -> Version {
        Version {
            epoch: self.epoch,
            offset: read.source.offset,
        }
    }

    async fn decide(
        &mut self,
        read: &Read,
        task: &MessageTask,
        before: &mut Before,
    ) -> Result<Decided, WriteFailure> {
        let Some(conversation) = task.message.conversation() else {
            return Ok(Decided::Dead(
                DeadReason::Misplaced,
                "it belongs to no conversation".to_owned(),
            ));
        };
        let version = self.version(read);
        if task.unsure
            && let Some((first, position)) =
                self.first_send(read, task, conversation, before).await?
        {
            return Ok(repeat(
                read,
                task,
                conversation,
                first,
                position,
                self.clock.now(),
            ));
        }
        let id = task.message.id;
        let mut head = before.heads.get(&conversation).copied().unwrap_or_default();
        let is_behind = before.is_behind(conversation, version);
        let (mut ruling, row) = match head.place_in_group(version, id, is_behind) {
            Placement::New(position) => (Ruling::Place(position), None),
            Placement::Redelivery | Placement::CheckRow => {
                let key = (conversation, task.message.from, id);
                let row = self.standing(key, before).await?;
                // An old id without a row may be a first try that reached the log after its resend, now or
                // before this redelivery.
                if row.is_none()
                    && let Some((first, position)) =
                        self.first_send(read, task, conversation, before).await?
                {
                    let now = self.clock.now();
                    return Ok(repeat(read, task, conversation, first, position, now));
                }
                (head.compare_in_group(version, row, is_behind), row)
            }
        };
        if ruling == Ruling::PlacedLater {
            // Behind a writer that has gone on, the head of this one is old.
            let stored = self.heads.reload(conversation).await?;
            if stored.version > head.version {
                head = stored;
            }
            ruling = head.compare_in_group(version, row, is_behind);
        }
        if (row.is_none() || ruling == Ruling::PlacedLater)
            && let ConversationId::Group(_) = conversation
            && let Some(refusal) = group::refusal(
                before.group(conversation).map(Arc::as_ref),
                version,
                task.message.from,
            )
        {
            return Ok(self.refused(read, task, conversation, refusal));
        }
        let side = conversation.side_of(task.message.from);
        let (position, after, standing) = match (ruling, row) {
            (Ruling::Place(position), _) => {
                let moved = head.moved_by(version, id, side);
                let sent = side.map_or(0, |side| moved.sent_by(side));
                (position, After::Moved(moved), (version, sent))
            }
            (Ruling::Keep(position), Some(row)) => {
                (position, After::Kept(head), (version, row.sent))
            }
            // A letter sent on its way again: it has its place, and what follows was not done.
            (Ruling::Repeat(position), Some(row)) if task.letter.is_some() => {
                (position, After::Kept(head), (row.version, row.sent))
            }
            (Ruling::Repeat(position), _) => {
                return Ok(repeat(
                    read,
                    task,
                    conversation,
                    id,
                    position,
                    self.clock.now(),
                ));
            }
            // An unsure copy whose first one was found is not here any more: it is another's row now.
            (Ruling::Unplaced | Ruling::PlacedLater | Ruling::Keep(_), _) => {
                let error = "handled before, and refused a place".to_owned();
                return Ok(Decided::Dead(DeadReason::StoreRejected, error));
            }
            (Ruling::Overtaken, _) => {
                self.heads.forget_one(conversation);
                if let ConversationId::Group(group) = conversation {
                    self.groups.forget_one(group);
                }
                return Err(Halt::Overtaken(conversation).into());
            }
        };
        let (version, sent) = standing;
        let laid_out = catch_unwind(AssertUnwindSafe(|| {
            let placed = Placed {
                message: task.message.clone(),
                conversation,
                position,
            };
            let rows = Rows::of(&placed, sent, version)?;
            let group = before.group(conversation);
            let readers = group.map(|group| {
                let audience = Audience::of_message(group.clone(), version, position.seq);
                Readers::of(audience, self.group_push_max)
            });
            Some(Box::new(Placing {
                placed,
                rows,
                readers: readers.unwrap_or_default(),
                shown: None,
            }))
        }));
        let mut placement = match laid_out {
            Ok(Some(placement)) => placement,
            Ok(None) => {
                let error = "a message of this kind of conversation is not kept".to_owned();
                return Ok(Decided::Dead(DeadReason::StoreRejected, error));
            }
            Err(_) => {
                let error = "placing it panicked".to_owned();
                return Ok(Decided::Dead(DeadReason::HandlerPanic, error));
            }
        };
        if let (After::Kept(_), ConversationId::Group(_)) = (after, conversation) {
            let altered = self.altered(conversation, position.seq, before).await?;
            placement.shown = Some(altered.shown(&task.message.content));
        }
        before.heads.insert(conversation, after.head());
        before.placed.push(Pending {
            from: task.message.from,
            send_id: task.message.send_id,
            id,
            standing: Standing {
                version,
                position,
                sent,
            },
        });
        Ok(Decided::Placed {
            placement,
            head: after,
        })
    }

    /// What stands under this id: decided in this batch, known, or read now.
    async fn standing(
        &self,
        key: (ConversationId, UserId, MessageId),
        before: &Before,
    ) -> Result<Option<Standing>, WriteFailure> {
        if let Some(pending) = before.placed.iter().find(|pending| pending.id == key.2) {
            return Ok(Some(pending.standing));
        }
        if let Some(known) = before.rows.get(&key) {
            return Ok(*known);
        }
        let rows = self.standings(&[key]).await?;
        Ok(rows.into_iter().next().flatten())
    }

    /// The message that an earlier record placed under the same send_id.
    async fn first_send(
        &self,
        read: &Read,
        task: &MessageTask,
        conversation: ConversationId,
        before: &Before,
    ) -> Result<Option<(MessageId, Position)>, WriteFailure> {
        let (message, version) = (&task.message, self.version(read));
        let stored = match before.first_sends.get(&read.source) {
            Some(stored) => *stored,
            None => self.stored_send(task, conversation).await?,
        };
        let same =
            |pending: &&Pending| pending.from == message.from && pending.send_id == message.send_id;
        let pending = before.placed.iter().find(same);
        let pending = pending.map(|pending| (pending.id, pending.standing));
        let first = stored.or(pending);
        Ok(first
            .filter(|(id, standing)| *id != message.id && standing.version < version)
            .map(|(id, standing)| (id, standing.position)))
    }

    async fn stored_send(
        &self,
        task: &MessageTask,
        conversation: ConversationId,
    ) -> Result<FirstSend, WriteFailure> {
        let message = &task.message;
        let since = message.accepted_at - task.age - self.unsure_margin;
        let since = MessageId::floor_of(since);
        let (from, send_id) = (message.from, message.send_id);
        Ok(match conversation {
            ConversationId::Group(group) => {
                let found = (self.group_history).find_send(from, group, send_id, since);
                let found = self.stores.within(found).await?;
                found.map(|row| (row.id, Standing::from(&row)))
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                let found = (self.history).find_send(from, conversation, send_id, since);
                let found = self.stores.within(found).await?;
                found.map(|row| (row.id, Standing::from(&row)))
            }
        })
    }
}

/// The letter that a record sends on its way again.
pub(super) fn letter_of(read: &Read) -> Option<Arc<str>> {
    match &read.task.work {
        Work::Message(task) => task.letter.as_deref().map(Arc::from),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

fn conversations(reads: &[Arc<Read>]) -> BTreeSet<ConversationId> {
    let messages = reads.iter().filter_map(|read| message(read));
    messages.map(|(_, conversation)| conversation).collect()
}

/// The groups that a batch is about, with their partitions.
fn groups(reads: &[Arc<Read>]) -> BTreeMap<GroupId, u32> {
    let of_groups = reads.iter().filter_map(|read| match message(read)? {
        (_, ConversationId::Group(group)) => Some((group, read.source.partition)),
        _ => None,
    });
    of_groups.collect()
}

fn message(read: &Read) -> Option<(&MessageTask, ConversationId)> {
    match &read.task.work {
        Work::Message(task) => Some((task, task.message.conversation()?)),
        Work::Deliver(_) | Work::Kickout(_) => None,
    }
}

/// The message stands as `first`: the copy is dropped, and its sender told where the first one is.
fn repeat(
    read: &Read,
    task: &MessageTask,
    conversation: ConversationId,
    first: MessageId,
    position: Position,
    now: Timestamp,
) -> Decided {
    let id = task.message.id;
    let entry = |event| LedgerEntry {
        message: id,
        at: now,
        target: None,
        event,
    };
    let mut ledger = vec![entry(Event::Repeat { of: first })];
    if first != id {
        // The copy has a life of its own, which ends here; the same id lives on as the first one.
        ledger.push(entry(Event::Settled));
    }
    tracing::debug!(source = %read.source, %id, %first, "a repeat");
    Decided::Repeat {
        ledger,
        notice: task.origin.as_ref().map(|origin| Notice {
            life: origin.life.clone(),
            session: origin.session,
            word: Word::Placed(PlacedEcho {
                send_id: task.message.send_id,
                id: first,
                conversation,
                position,
            }),
        }),
    }
}

/// What sessions are told of a record that is no message, for its first delivery.
pub(super) fn told_task(
    read: &Read,
    placed: &Placed,
    rev: u64,
    owed: Vec<Owed>,
    event: Event,
    now: Timestamp,
) -> Task {
    let trace = read.placing();
    Task {
        owed,
        audience: None,
        frame: frame_of(placed, rev, trace),
        own_frames: BTreeMap::new(),
        placed: placed.clone(),
        rev,
        retry_count: read.task.retry_count,
        first_at: read.task.first_at,
        origin: None,
        letter: letter_of(read),
        trace,
        noted: vec![LedgerEntry {
            message: placed.message.id,
            at: now,
            target: None,
            event,
        }],
    }
}

/// A message that was placed, for its first delivery.
pub(super) fn first_task(
    read: &Read,
    placed: Placed,
    (owed, audience): (Vec<Owed>, Option<Audience>),
    now: Timestamp,
) -> Task {
    let origin = match &read.task.work {
        Work::Message(task) => task.origin.as_ref().map(|origin| Origin {
            session: origin.session,
            life: origin.life.clone(),
        }),
        Work::Deliver(_) | Work::Kickout(_) => None,
    };
    let noted = vec![LedgerEntry {
        message: placed.message.id,
        at: now,
        target: None,
        event: Event::Placed {
            conversation: placed.conversation,
            seq: placed.position.seq,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: read.source.partition,
            offset: read.source.offset,
        },
    }];
    let trace = read.placing();
    Task {
        owed,
        audience,
        frame: api::codec::encode_traced(&placed, trace),
        own_frames: frames_of(&placed, &Roles::new(), trace),
        placed,
        rev: 0,
        retry_count: read.task.retry_count,
        first_at: read.task.first_at,
        origin,
        letter: letter_of(read),
        trace,
        noted,
    }
}
