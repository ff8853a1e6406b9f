//! Step 4 of a message's way: the single writer of the conversations whose partitions this carrier owns.
//!
//! A batch is decided in order, record by record, against the heads and what is already decided; then it
//! takes effect in the ruled order: rows, changes → heads → timelines, copies, conversation rows. Only what was
//! written is delivered. A crash anywhere brings the records back, and they are decided the same way. A wish about a
//! group is a batch of its own: what is before it in the log takes effect before it is judged.
//!
//! What the store refuses, or has kept of a conversation and cannot read, is the fault of single records:
//! they are found and given up, and the others pass.

mod changing;
mod copies;
mod decide;
mod groups;
mod heads;
mod listing;
mod stamping;
mod subject;
mod timeline;
mod wishing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::task::Work;
use api::told::{Roles, is_wish, task_of};
use api::trace::{self, Spans};
use backend::Backends;
use backend::cache::Cache;
use backend::changes::ChangeStore;
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use backend::group_history::GroupHistoryStore;
use backend::groups::GroupStore;
use backend::history::HistoryStore;
use backend::queue::Partition;
use backend::timeline::Timeline;
use backend::{Error, Kind};
use protocol::change::{Change, ChangeKind, ChangeRow};
use protocol::conversation::{ConversationRow, Head};
use protocol::delivery::{self, Owed, Source};
use protocol::group::{Audience, GroupRow};
use protocol::history::PrivateRow;
use protocol::ledger::{DeadReason, Event, LedgerEntry};
use protocol::trace::{Span, Step};
use protocol::{ConversationId, MessageId, Platform, Recipient, Seq, Timestamp, UserId};
use tokio::time::Instant;

use self::decide::{After, Decided, Placing, Readers, Rows};
use self::groups::Groups;
use self::heads::Heads;
use self::stamping::Stamping;
use crate::Config;
use crate::batch::{Batch, Effects};
use crate::platforms::Platforms;
use crate::records::Records;
use crate::standings::standings;
use crate::stores::Timed;
use crate::work::{Read, Spoilt, conversation_of, message_of};

pub(crate) struct Writer {
    epoch: u32,
    history: Arc<dyn HistoryStore>,
    heads: Heads,
    conversations: Arc<dyn ConversationStore>,
    changes: Arc<dyn ChangeStore>,
    groups: Groups,
    group_store: Arc<dyn GroupStore>,
    group_history: Arc<dyn GroupHistoryStore>,
    timeline: Arc<dyn Timeline>,
    cache: Arc<dyn Cache>,
    platforms: Platforms,
    records: Records,
    clock: Arc<dyn Clock>,
    stores: Timed,
    list_margin: Duration,
    unsure_margin: Duration,
    write_time: Duration,
    group_push_max: usize,
    spans: Spans,
}

/// What became of the records of a write.
#[derive(Default)]
pub(crate) struct Written {
    /// Took effect, and is to be done.
    pub(crate) batch: Batch,
    /// Records that come later, in order. Nothing of them may be settled.
    pub(crate) rest: Vec<Arc<Read>>,
    /// Why the first of these did not take effect; `None`: there was no time.
    pub(crate) halt: Option<Halt>,
}

/// Why records did not take effect; they are to be repeated, later.
#[derive(Debug)]
pub(crate) enum Halt {
    Store(Error),
    /// A later writer is ahead of this one in this conversation.
    Overtaken(ConversationId),
}

impl std::fmt::Display for Halt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Halt::Store(error) => write!(f, "{error}: {}", error.source),
            Halt::Overtaken(conversation) => write!(f, "another writer is ahead in {conversation}"),
        }
    }
}

/// What a batch wants written, in the order of the records.
#[derive(Default)]
struct Pending {
    /// The wish, where the batch is one.
    granted: Option<wishing::Granted>,
    rows: Vec<PrivateRow>,
    group_rows: Vec<GroupRow>,
    changes: Vec<ChangeRow>,
    /// The last of each conversation.
    heads: BTreeMap<ConversationId, (u32, Head)>,
    listed: BTreeMap<(UserId, ConversationId), ConversationRow>,
    timelines: timeline::Entries,
    deeds: Vec<listing::Deed>,
}

/// What was read of other users for a batch.
#[derive(Default)]
struct Others {
    platforms: BTreeMap<UserId, Vec<Platform>>,
    /// How those stand who are to be told of a wish, where that is queued as a delivery.
    roles: BTreeMap<Source, Roles>,
}

impl Others {
    fn platforms_of(&self, user: UserId) -> Vec<Platform> {
        self.platforms.get(&user).cloned().unwrap_or_default()
    }
}

enum WriteFailure {
    /// The store refuses a row of this batch, or cannot read what it has of one of its conversations.
    Refused(Error),
    Halt(Halt),
}

impl From<Halt> for WriteFailure {
    fn from(halt: Halt) -> Self {
        WriteFailure::Halt(halt)
    }
}

impl From<Error> for WriteFailure {
    fn from(error: Error) -> Self {
        match error.kind {
            Kind::Corrupt => WriteFailure::Refused(error),
            Kind::Unavailable | Kind::Conflict => WriteFailure::Halt(Halt::Store(error)),
        }
    }
}

impl Writer {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        records: Records,
        spans: Spans,
    ) -> Writer {
        Writer {
            epoch: backends.queue.epoch(),
            history: backends.history.clone(),
            heads: Heads::new(backends.heads.clone(), config),
            conversations: backends.conversations.clone(),
            changes: backends.changes.clone(),
            groups: Groups::new(backends.groups.clone(), config),
            group_store: backends.groups.clone(),
            group_history: backends.group_history.clone(),
            timeline: backends.timeline.clone(),
            cache: backends.cache.clone(),
            platforms: Platforms::new(backends.devices.clone(), config),
            records,
            clock: backends.clock.clone(),
            stores: Timed::new(config),
            list_margin: config.list_margin,
            unsure_margin: config.unsure_margin,
            write_time: config.write_time,
            group_push_max: config.group_push_max,
            spans,
        }
    }

    /// The heads and groups of these partitions are somebody else's now.
    pub(crate) fn forget(&mut self, partitions: &[Partition]) {
        self.groups.forget(partitions);
        self.heads.forget(partitions);
    }

    /// Places and writes records in order, and says what is to be done with each, for `write_time` and
    /// no longer than one part of them takes beyond it.
    pub(crate) async fn write(&mut self, reads: &[Arc<Read>]) -> Written {
        let mut written = Written::default();
        let until = Instant::now() + self.write_time;
        // What is refused together is tried again in halves, in order, until it is one record.
        let mut parts = around_wishes(reads);
        while let Some(part) = parts.pop() {
            match (self.write_together(part, until).await, part) {
                (Ok((batch, count)), _) => {
                    written.batch.append(batch);
                    let rest = &part[count..];
                    parts.extend((!rest.is_empty()).then_some(rest));
                }
                (Err(WriteFailure::Halt(halt)), _) => {
                    written.halt = Some(halt);
                    parts.push(part);
                    break;
                }
                (Err(WriteFailure::Refused(error)), [read]) => {
                    let error = format!("{error}: {}", error.source);
                    let given_up = self.give_up(read, DeadReason::StoreRejected, &error);
                    written.batch.effects.push(given_up);
                }
                (Err(WriteFailure::Refused(_)), _) => {
                    let (first, second) = part.split_at(part.len() / 2);
                    parts.extend([second, first]);
                }
            }
            if Instant::now() >= until {
                break;
            }
        }
        written.rest = parts.into_iter().rev().flatten().cloned().collect();
        written
    }

    /// Writes a part, or as many of its first records as are decided in time: one at least, once their groups are read.
    async fn write_together(
        &mut self,
        reads: &[Arc<Read>],
        until: Instant,
    ) -> Result<(Batch, usize), WriteFailure> {
        let (now, began) = (self.clock.now(), Instant::now());
        let decided = self.decide_all(reads, until).await?;
        if decided.is_empty() {
            return Ok((Batch::default(), 0));
        }
        let reads = &reads[..decided.len()];
        let others = self.others(reads, &decided, now).await?;

        let mut batch = Batch::default();
        let mut pending = Pending::default();
        let mut traced = Vec::new();
        for (read, decided) in reads.iter().zip(decided) {
            traced.extend(self.begin_span(read, &decided));
            self.lay_out(read, decided, &others, now, &mut batch, &mut pending);
        }
        self.take_effect(pending, until).await?;
        for span in traced {
            let began = began.elapsed();
            self.spans.record(Span { began, ..span });
        }
        Ok((batch, reads.len()))
    }

    async fn others(
        &mut self,
        reads: &[Arc<Read>],
        decided: &[Decided],
        now: Timestamp,
    ) -> Result<Others, Error> {
        let placed = decided.iter().filter_map(|decided| match decided {
            Decided::Placed { placement, .. } => Some(placement.as_ref()),
            _ => None,
        });
        let receivers = placed.flat_map(Writer::receivers);
        let receivers: BTreeSet<UserId> = receivers.copied().collect();
        let platforms = self.platforms.load(receivers, now).await?;
        let mut roles = BTreeMap::new();
        for read in reads {
            if let Work::Deliver(deliver) = &read.task.work
                && is_wish(&deliver.placed.message)
            {
                let standings = standings(&*self.group_store, self.stores, deliver).await?;
                roles.insert(read.source, standings);
            }
        }
        Ok(Others { platforms, roles })
    }

    /// Who gets it stored where nobody is there.
    fn receivers(placing: &Placing) -> &[UserId] {
        match (&placing.placed.message.to, &placing.readers) {
            (Recipient::User(to), _) => std::slice::from_ref(to),
            (Recipient::Group(_), Readers::Few(readers)) => readers,
            (Recipient::Group(_), Readers::Many(_)) => &[],
        }
    }

    fn owed(placing: &Placing, others: &Others) -> (Vec<Owed>, Option<Audience>) {
        let placed = &placing.placed;
        match placed.message.to {
            Recipient::User(to) => (delivery::owed(placed, others.platforms_of(to)), None),
            Recipient::Group(_) => {
                let known = |user| others.platforms_of(user);
                placing.readers.owed(placed, known)
            }
        }
    }

    /// What is to be recorded of a decision once it has taken effect.
    fn begin_span(&self, read: &Read, decided: &Decided) -> Option<Span> {
        let parent = self.spans.sampled(read.task.trace)?;
        let outcome = match decided {
            Decided::Placed { .. } => "placed",
            Decided::Changed { .. } => "changed",
            Decided::Unchanged { .. } => "unchanged",
            Decided::Listed(_) => "listed",
            Decided::Granted(_) => "granted",
            Decided::Refused { .. } => "refused",
            Decided::Repeat { .. } => "repeat",
            Decided::Dead(reason, _) => reason.name(),
            Decided::NoMessage => return None,
        };
        let context = read.placing()?;
        let parent = Some(parent.span);
        let source = read.source;
        Some(Span {
            failed: matches!(decided, Decided::Dead(..)),
            message: message_of(&read.task.work),
            conversation: conversation_of(&read.task.work).map(ConversationId::kind),
            record: Some((source.partition, source.offset)),
            attempt: Some(read.task.retry_count),
            ..Span::new(Step::Place, context, parent, Duration::ZERO, outcome)
        })
    }

    /// What a decision wants written, and what it wants done.
    fn lay_out(
        &self,
        read: &Arc<Read>,
        decided: Decided,
        others: &Others,
        now: Timestamp,
        batch: &mut Batch,
        pending: &mut Pending,
    ) {
        match decided {
            Decided::Placed { placement, head } => {
                let owed = Writer::owed(&placement, others);
                let Placing {
                    placed,
                    rows,
                    shown,
                    ..
                } = *placement;
                pending.move_head(read, placed.conversation, head, now);
                match rows {
                    Rows::Private(rows) => pending.rows.extend(*rows),
                    Rows::Group(row) => pending.group_rows.push(*row),
                }
                let task = decide::first_task(read, placed, owed, now);
                let frame = task.trace.is_none().then_some(&task.frame);
                timeline::add(&mut pending.timelines, &task.placed, shown, frame);
                batch.deliver.push((read.source, task));
            }
            Decided::Changed { change, head } => {
                pending.move_head(read, change.row.conversation, head, now);
                let task = changing::first_task(read, &change, now);
                if let Change::Recall | Change::Edit(_) = change.row.changed.asked.change {
                    let shown = Some(change.shown);
                    timeline::add(&mut pending.timelines, &change.subject, shown, None);
                }
                pending.changes.push(change.row);
                batch.deliver.push((read.source, task));
            }
            Decided::Listed(deed) => {
                batch
                    .deliver
                    .push((read.source, listing::first_task(read, &deed, now)));
                pending.deeds.push(*deed);
            }
            Decided::Granted(granted) => {
                let task = wishing::first_task(read, &granted, now);
                batch.deliver.push((read.source, task));
                pending.granted = Some(*granted);
            }
            Decided::Repeat { ledger, notice }
            | Decided::Refused { ledger, notice }
            | Decided::Unchanged { ledger, notice } => {
                batch.notices.extend(notice);
                batch.effects.push(Effects {
                    ledger,
                    ..Effects::none(read.source)
                });
            }
            Decided::Dead(reason, error) => {
                batch.effects.push(self.give_up(read, reason, &error));
            }
            Decided::NoMessage => match &read.task.work {
                Work::Deliver(deliver) => {
                    let roles = others.roles.get(&read.source);
                    let roles = roles.cloned().unwrap_or_default();
                    let task = task_of(read.task.clone(), deliver.clone(), &roles);
                    batch.deliver.push((read.source, task));
                }
                Work::Kickout(_) | Work::Message(_) => batch.kickouts.push(Read {
                    source: read.source,
                    task: read.task.clone(),
                    record: read.record.clone(),
                }),
            },
        }
    }

    async fn take_effect(&mut self, pending: Pending, until: Instant) -> Result<(), WriteFailure> {
        if let Some(granted) = pending.granted {
            self.grant(granted, until).await?;
        }
        let changed = copies::changed(&pending.changes);
        let permits = self.ask_permits(pending.heads.keys());
        let saved = self.save_rows(pending.rows, pending.group_rows, pending.changes);
        let (permits, saved) = tokio::join!(permits, saved);
        saved?;
        let heads = self.save_heads(pending.heads, until).await?;
        tokio::join!(
            self.renew(permits, &heads, &changed),
            self.push(pending.timelines)
        );
        let listed: Vec<_> = pending.listed.into_values().collect();
        if !listed.is_empty() {
            self.list(listed, until).await?;
        }
        match pending.deeds.is_empty() {
            true => Ok(()),
            false => Ok(self.do_deeds(&pending.deeds, until).await?),
        }
    }

    async fn save_rows(
        &self,
        rows: Vec<PrivateRow>,
        group_rows: Vec<GroupRow>,
        changes: Vec<ChangeRow>,
    ) -> Result<(), WriteFailure> {
        if !rows.is_empty() {
            let saved = self.history.save_private(rows);
            self.stores.within(saved).await.map_err(refused)?;
        }
        if !group_rows.is_empty() {
            let saved = self.group_history.save(group_rows);
            self.stores.within(saved).await.map_err(refused)?;
        }
        if !changes.is_empty() {
            let recalled = changing::recalled(&changes);
            let saved = self.changes.save(changes);
            self.stores.within(saved).await.map_err(refused)?;
            self.delete(recalled).await?;
        }
        Ok(())
    }

    /// The list difference of groups compares their heads: they are stamped as the rows of lists are. Answers them as
    /// they were stamped.
    async fn save_heads(
        &mut self,
        mut heads: BTreeMap<ConversationId, (u32, Head)>,
        until: Instant,
    ) -> Result<BTreeMap<ConversationId, (u32, Head)>, Error> {
        let mut stamping = self.stamping(until);
        while let Some(stamp) = stamping.next()? {
            heads.values_mut().for_each(|(_, head)| head.stamp = stamp);
            self.heads.save(heads.clone()).await?;
        }
        Ok(heads)
    }

    async fn list(&self, mut rows: Vec<ConversationRow>, until: Instant) -> Result<(), Error> {
        let mut stamping = self.stamping(until);
        while let Some(stamp) = stamping.next()? {
            rows.iter_mut().for_each(|row| row.version = stamp);
            let saved = self.conversations.save(rows.clone());
            self.stores.within(saved).await?;
        }
        Ok(())
    }

    fn stamping(&self, until: Instant) -> Stamping {
        Stamping::new(self.clock.clone(), self.list_margin, until)
    }

    fn give_up(&self, read: &Arc<Read>, reason: DeadReason, error: &str) -> Effects {
        let read = Read {
            source: read.source,
            task: read.task.clone(),
            record: read.record.clone(),
        };
        give_up(
            &self.records,
            &Spoilt::of(read, reason, error),
            self.clock.now(),
        )
    }
}

/// What the store refuses is the fault of a record.
fn refused(error: Error) -> WriteFailure {
    match error.kind {
        Kind::Conflict => WriteFailure::Refused(error),
        Kind::Unavailable | Kind::Corrupt => error.into(),
    }
}

impl Pending {
    /// Where the conversation stands after a record: its head, and the rows of its users.
    fn move_head(
        &mut self,
        read: &Read,
        conversation: ConversationId,
        after: After,
        now: Timestamp,
    ) {
        let head = after.head();
        let is_group = matches!(conversation, ConversationId::Group(_));
        // A group has no other row that says when: its head is stamped anew.
        let is_stamped = is_group && head.seq != Seq::ZERO;
        if is_stamped || matches!(after, After::Moved(_)) {
            self.heads
                .insert(conversation, (read.source.partition, head));
        }
        let ConversationId::Private { low, high } = conversation else {
            return;
        };
        let rows = [low, high].map(|owner| ConversationRow::of(owner, conversation, &head, now));
        for row in rows.into_iter().flatten() {
            let newest = self.listed.entry((row.owner, conversation)).or_insert(row);
            if newest.source < row.source {
                *newest = row;
            }
        }
    }
}

/// A record becomes a dead letter.
pub(crate) fn give_up(records: &Records, spoilt: &Spoilt, now: Timestamp) -> Effects {
    tracing::warn!(
        source = %spoilt.source,
        reason = spoilt.reason.name(),
        error = spoilt.error,
        message = spoilt.message.map(MessageId::get),
        trace_id = trace::id(spoilt.trace),
        "dead letter"
    );
    metrics::counter!("carrier_dead_letters_total", "reason" => spoilt.reason.name()).increment(1);
    let dead = Event::Dead {
        reason: spoilt.reason,
        letter: spoilt.source.letter(&spoilt.targets),
    };
    let mut events: Vec<_> = (spoilt.targets.iter())
        .map(|target| (Some(*target), dead.clone()))
        .collect();
    if events.is_empty() {
        events.push((None, dead));
    }
    events.push((None, Event::Settled));
    let entries = spoilt.message.map(|message| {
        events.into_iter().map(move |(target, event)| LedgerEntry {
            message,
            at: now,
            target,
            event,
        })
    });
    Effects {
        source: spoilt.source,
        records: vec![records.spoilt(spoilt, now)],
        ledger: entries.into_iter().flatten().collect(),
    }
}

/// The parts of a batch, the last first: each wish alone, and what is between.
fn around_wishes(reads: &[Arc<Read>]) -> Vec<&[Arc<Read>]> {
    let mut parts: Vec<&[Arc<Read>]> = reads
        .chunk_by(|one, next| !wishes(one) && !wishes(next))
        .collect();
    parts.reverse();
    parts
}

fn wishes(read: &Read) -> bool {
    let Work::Message(task) = &read.task.work else {
        return false;
    };
    let change = task.message.content.change.as_deref();
    change.is_some_and(|change| matches!(change.kind, ChangeKind::Wish(_)))
}
