//! The single writer of all conversations: what becomes of each record of a batch, by the real rules, and how
//! that takes effect, step by step, with room for a crash between any two.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use api::task::{MessageTask, Task};
use api::told::frame_of;
use protocol::change::{Altered, Asked, ChangeKind, ChangeRow};
use protocol::conversation::{ConversationRow, Head, Placement, Ruling, Standing};
use protocol::delivery::{self, Owed, Source};
use protocol::frame::ServerFrame;
use protocol::group::{self, GroupRow};
use protocol::history::{PrivateRow, Version};
use protocol::ledger::{Event as LedgerEvent, LedgerEntry};
use protocol::{
    ConversationId, Message, MessageId, Placed, Recipient, Refusal, Seq, Timestamp, UserId,
};
use rand::Rng;

use crate::boat::Notice;
use crate::cached::Permits;
use crate::carrier::CarrierEvent;
use crate::effects::Effect;
use crate::groups::Granted;
use crate::lists::Deed;
use crate::plan::Sabotage;
use crate::world::{Event, World};

/// Something that has its place, or needs none.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) source: Source,
    pub(crate) task: delivery::Task,
}

/// What a polled batch comes to.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) rows: Vec<PrivateRow>,
    pub(crate) group_rows: Vec<GroupRow>,
    /// The wish, where the batch is one.
    pub(crate) granted: Option<Granted>,
    pub(crate) is_wish: bool,
    pub(crate) changes: Vec<ChangeRow>,
    /// What has become of messages that records of this batch change.
    pub(crate) altered: BTreeMap<(ConversationId, Seq), Altered>,
    pub(crate) heads: BTreeMap<ConversationId, Head>,
    pub(crate) listed: BTreeMap<(UserId, ConversationId), ConversationRow>,
    pub(crate) deeds: Vec<Deed>,
    pub(crate) deliveries: Vec<Written>,
    /// Settled without a delivery.
    pub(crate) dropped: Vec<(Source, Vec<LedgerEntry>)>,
    /// To renew copies of groups.
    permits: Permits,
    steps: VecDeque<Step>,
}

/// One effect of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Part of a wish.
    Grant,
    Permits,
    Rows,
    /// What is left of the changes …
    Altered,
    /// … and the changes themselves: separate writes, either first.
    Changes,
    Heads,
    Renew,
    Lists,
    /// What somebody hid, before the register that says so.
    Hidden,
    Deeds,
    Deliver,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliveries.is_empty() && self.dropped.is_empty()
    }

    /// The rows of both users, where the conversation stands after a record.
    pub(crate) fn list(&mut self, conversation: ConversationId, head: &Head) {
        let ConversationId::Private { low, high } = conversation else {
            // No other row says when something was said: the head is stamped anew.
            self.heads.insert(conversation, *head);
            return;
        };
        let row = |owner| ConversationRow::of(owner, conversation, head, Timestamp::ZERO);
        for row in [low, high].into_iter().filter_map(row) {
            let newest = self.listed.entry((row.owner, conversation)).or_insert(row);
            if newest.source < row.source {
                *newest = row;
            }
        }
    }

    fn plan_steps(&mut self, altered_first: bool) {
        if self.granted.is_some() {
            self.steps.push_back(Step::Grant);
        }
        self.steps.extend([Step::Permits, Step::Rows]);
        match (self.changes.is_empty(), altered_first) {
            (true, _) => {}
            (false, true) => self.steps.extend([Step::Altered, Step::Changes]),
            (false, false) => self.steps.extend([Step::Changes, Step::Altered]),
        }
        self.steps.extend([Step::Heads, Step::Renew, Step::Lists]);
        if !self.deeds.is_empty() {
            if self.deeds.iter().any(|deed| deed.hidden().is_some()) {
                self.steps.push_back(Step::Hidden);
            }
            self.steps.push_back(Step::Deeds);
        }
        self.steps.push_back(Step::Deliver);
    }
}

pub(crate) fn version_of(source: Source) -> Version {
    Version {
        epoch: 1,
        offset: source.offset,
    }
}

impl World {
    /// Gives the record of a message, or of what is done to one, its place.
    pub(crate) fn decide(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        batch: &mut Batch,
    ) {
        let change = work.message.content.change.as_deref();
        match (Asked::of(&work.message), change) {
            (Some(asked), _) => self.change(source, task, work, asked, batch),
            (None, Some(change)) if let ChangeKind::Wish(wish) = &change.kind => {
                self.wish(source, task, work, wish, batch);
            }
            (None, Some(change)) => self.list_deed(source, task, work, change, batch),
            (None, None) => self.place(source, task, work, batch),
        }
    }

    pub(crate) fn head(&self, conversation: ConversationId, batch: &Batch) -> Head {
        let pending = batch.heads.get(&conversation);
        let known = pending.or_else(|| self.carrier.heads.get(&conversation));
        let known = known.or_else(|| self.disk.heads.get(&conversation));
        known.copied().unwrap_or_default()
    }

    /// Gives a message its place, by the rule, from the head and the rows of earlier records.
    fn place(&mut self, source: Source, task: &Task, work: &MessageTask, batch: &mut Batch) {
        let message = &work.message;
        let conversation = message.conversation().expect("two users");
        let version = version_of(source);
        let head = self.head(conversation, batch);
        if work.unsure
            && let Some(first) = self.find_send(work, version, batch)
            && first != message.id
        {
            return self.drop_copy(source, work, first, batch);
        }
        let group = self.group_of(conversation);
        let is_behind = group.as_ref().is_some_and(|group| group.newest() > version);
        let mut row = None;
        let ruling = match head.place_in_group(version, message.id, is_behind) {
            Placement::New(position) => Ruling::Place(position),
            Placement::Redelivery | Placement::CheckRow => {
                row = self.standing(message, batch);
                // An old id without a row may be a first try that reached the log after its resend, now or
                // before this redelivery.
                if row.is_none()
                    && let Some(first) = self.find_send(work, version, batch)
                {
                    return self.drop_copy(source, work, first, batch);
                }
                head.compare_in_group(version, row, is_behind)
            }
        };
        let is_overtaken = row.is_some_and(|row| row.version > version);
        if is_overtaken && self.sabotage == Some(Sabotage::PlacedLaterOvertaken) {
            let what = format!("record {source} finds another writer ahead of it");
            return self.judge.found(what);
        }
        if (row.is_none() || ruling == Ruling::PlacedLater)
            && let ConversationId::Group(_) = conversation
            && self.sabotage != Some(Sabotage::AnybodySays)
            && let Some(refusal) = group::refusal(group.as_ref(), version, message.from)
        {
            return self.refused(source, work, refusal, batch);
        }
        let side = conversation.side_of(message.from);
        let (position, after) = match ruling {
            Ruling::Place(position) => {
                let moved = head.moved_by(version, message.id, side);
                batch.heads.insert(conversation, moved);
                (position, moved)
            }
            Ruling::Keep(position) => (position, head),
            Ruling::Repeat(_) => return batch.dropped.push((source, Vec::new())),
            Ruling::Unplaced | Ruling::PlacedLater => {
                return batch.dropped.push((source, Vec::new()));
            }
            Ruling::Overtaken => {
                let what = format!("record {source} finds another writer ahead of it");
                return self.judge.found(what);
            }
        };
        batch.list(conversation, &after);
        let placed = Placed {
            message: message.clone(),
            conversation,
            position,
        };
        self.write_down(source, task, work, placed, version, batch);
    }

    fn write_down(
        &mut self,
        source: Source,
        task: &Task,
        work: &MessageTask,
        placed: Placed,
        version: Version,
        batch: &mut Batch,
    ) {
        let owed = match GroupRow::of(&placed, version) {
            Some(row) => {
                batch.group_rows.push(row);
                self.owed_in_group(&placed, version)
            }
            None => self.write_pair(&placed, version, batch),
        };
        let origin = work.origin.as_ref().map(|o| delivery::Origin {
            session: o.session,
            life: o.life.clone(),
        });
        let event = LedgerEvent::Placed {
            conversation: placed.conversation,
            seq: placed.position.seq,
            from: placed.message.from,
            send_id: placed.message.send_id,
            partition: source.partition,
            offset: source.offset,
        };
        let task = delivery::Task {
            origin,
            ..self.told_task(task, placed, 0, owed, event)
        };
        batch.deliveries.push(Written { source, task });
    }

    fn write_pair(&mut self, placed: &Placed, version: Version, batch: &mut Batch) -> Vec<Owed> {
        let sent = self.sent(placed, batch);
        let rows = PrivateRow::pair_of(placed, sent, version).expect("private");
        let known = self.disk.platforms.get(&rows[1].owner);
        let known = known.cloned().unwrap_or_default();
        batch.rows.extend(rows);
        let owed = delivery::owed(placed, known);
        let targets = owed.iter().flat_map(Owed::targets);
        self.witness.owed(placed.message.id, targets);
        owed
    }

    /// What sessions are told of a record, for its first delivery.
    pub(crate) fn told_task(
        &self,
        task: &Task,
        placed: Placed,
        rev: u64,
        owed: Vec<Owed>,
        event: LedgerEvent,
    ) -> delivery::Task {
        let noted = LedgerEntry {
            message: placed.message.id,
            at: self.now,
            target: None,
            event,
        };
        delivery::Task {
            frame: frame_of(&placed, rev, None),
            audience: None,
            own_frames: BTreeMap::new(),
            placed,
            rev,
            owed,
            retry_count: task.retry_count,
            first_at: task.first_at,
            origin: None,
            letter: None,
            trace: None,
            noted: vec![noted],
        }
    }

    /// The row of a message as its owner has it, also where an earlier record of the batch made it.
    pub(crate) fn row<'a>(
        &'a self,
        owner: UserId,
        id: MessageId,
        batch: &'a Batch,
    ) -> Option<&'a PrivateRow> {
        let mut pending = batch.rows.iter();
        let pending = pending.find(|row| row.owner == owner && row.id == id);
        pending.or_else(|| self.disk.rows.get(&(owner, id)))
    }

    fn standing(&self, message: &Message, batch: &Batch) -> Option<Standing> {
        match message.to {
            Recipient::Group(group) => {
                let row = self.group_row(group, message.id, batch);
                row.map(Standing::from)
            }
            Recipient::User(_) => {
                let row = self.row(message.from, message.id, batch);
                row.map(Standing::from)
            }
        }
    }

    /// The how manieth of its sender a message is: as its row says, or as the head counts that it moved.
    fn sent(&self, placed: &Placed, batch: &Batch) -> u64 {
        let message = &placed.message;
        if let Some(standing) = self.standing(message, batch) {
            return standing.sent;
        }
        let side = placed.conversation.side_of(message.from);
        let head = batch.heads.get(&placed.conversation);
        head.zip(side).map_or(0, |(head, side)| head.sent_by(side))
    }

    /// The first message of the sender under this send_id.
    fn find_send(&self, work: &MessageTask, version: Version, batch: &Batch) -> Option<MessageId> {
        let message = &work.message;
        let since = MessageId::floor_of(message.accepted_at - work.age - Duration::from_secs(2));
        if let Recipient::Group(group) = message.to {
            return self.first_in_group(message, group, since, version, batch);
        }
        let fits = |row: &&PrivateRow| {
            row.owner == message.from
                && row.send_id == message.send_id
                && row.id >= since
                && row.version < version
        };
        let written = self
            .disk
            .rows
            .range((message.from, since)..)
            .map(|(_, row)| row)
            .find(fits);
        written
            .or_else(|| batch.rows.iter().find(fits))
            .map(|row| row.id)
    }

    fn drop_copy(
        &mut self,
        source: Source,
        work: &MessageTask,
        first: MessageId,
        batch: &mut Batch,
    ) {
        let told = self.ends_with(work, LedgerEvent::Repeat { of: first });
        self.judge.repeat(work.message.id, first);
        self.echo(work, first, batch);
        batch.dropped.push((source, told));
    }

    /// The record ends here.
    pub(crate) fn ends_with(&self, work: &MessageTask, event: LedgerEvent) -> Vec<LedgerEntry> {
        let (message, at) = (work.message.id, self.now);
        let entry = |event| LedgerEntry {
            message,
            at,
            target: None,
            event,
        };
        vec![entry(event), entry(LedgerEvent::Settled)]
    }

    /// Nothing is changed, or not once more; whoever asked hears why, where the rules say no.
    pub(crate) fn unchanged(
        &mut self,
        source: Source,
        work: &MessageTask,
        refusal: Option<Refusal>,
        batch: &mut Batch,
    ) {
        let message = &work.message;
        let change = message.content.change.as_deref();
        let told = self.ends_with(
            work,
            LedgerEvent::Unchanged {
                conversation: message.conversation().expect("two users"),
                subject: change
                    .and_then(|change| change.subject)
                    .expect("of a message"),
                refused: refusal.as_ref().map(|refusal| refusal.text.clone()),
            },
        );
        if let Some(refusal) = refusal {
            self.tell_why(work, refusal);
        }
        batch.dropped.push((source, told));
    }

    /// Tells the sender of a dropped copy where the first one stands.
    fn echo(&mut self, work: &MessageTask, first: MessageId, batch: &Batch) {
        let placed = match work.message.to {
            Recipient::Group(group) => {
                let row = self.group_row(group, first, batch);
                row.map(GroupRow::placed)
            }
            Recipient::User(_) => {
                let row = self.row(work.message.from, first, batch);
                row.and_then(PrivateRow::placed)
            }
        };
        let (Some(placed), Some(origin)) = (placed, work.origin.clone()) else {
            return;
        };
        let frame = ServerFrame::Placed(protocol::frame::PlacedEcho {
            send_id: work.message.send_id,
            id: first,
            conversation: placed.conversation,
            position: placed.position,
        });
        let frame = api::codec::encode_server(&frame);
        self.notify(origin.life, origin.session, Notice::Frame(frame));
    }

    /// Lets a batch take effect.
    pub(crate) fn write(&mut self, mut batch: Box<Batch>) {
        let altered_first = !batch.changes.is_empty() && self.rng.random();
        batch.plan_steps(altered_first);
        if self.sabotage == Some(Sabotage::ToldBeforeSaved) {
            let is_change = |written: &Written| written.task.rev > 0;
            let deliveries = std::mem::take(&mut batch.deliveries);
            let (early, rest): (Vec<_>, _) = deliveries.into_iter().partition(is_change);
            batch.deliveries = rest;
            if !early.is_empty() {
                self.deliver(early);
                let (life, late) = (self.carrier.life, self.up_to(Duration::from_secs(1)));
                return self.after(late, Event::Carrier(CarrierEvent::Write { life, batch }));
            }
        }
        self.write_later(batch);
    }

    fn write_later(&mut self, batch: Box<Batch>) {
        let (life, hop) = (self.carrier.life, self.hop());
        self.after(hop, Event::Carrier(CarrierEvent::Write { life, batch }));
    }

    /// Rows, then heads, then what lists show, then delivery.
    pub(crate) fn write_step(&mut self, mut batch: Box<Batch>) {
        let Some(step) = batch.steps.pop_front() else {
            return;
        };
        let now = self.now;
        match step {
            Step::Grant => {
                if let Some(mut granted) = batch.granted.take()
                    && self.grant_step(&mut granted)
                {
                    batch.granted = Some(granted);
                    batch.steps.push_front(Step::Grant);
                }
            }
            Step::Permits => batch.permits = self.ask_permits(batch.heads.keys()),
            Step::Renew => {
                let permits = std::mem::take(&mut batch.permits);
                self.renew_copies(permits, &batch.changes);
            }
            Step::Rows => {
                self.apply(Effect::Rows(std::mem::take(&mut batch.rows)));
                let rows = std::mem::take(&mut batch.group_rows);
                if !rows.is_empty() {
                    self.apply(Effect::GroupRows(rows));
                }
            }
            Step::Altered => _ = self.apply(Effect::Altered(batch.changes.clone())),
            Step::Changes => _ = self.apply(Effect::Changes(batch.changes.clone())),
            Step::Heads => {
                for (conversation, head) in &batch.heads {
                    let (conversation, mut head) = (*conversation, *head);
                    head.stamp = now;
                    self.apply(Effect::Head { conversation, head });
                    self.carrier.heads.insert(conversation, head);
                }
            }
            Step::Lists => {
                let rows = std::mem::take(&mut batch.listed).into_values();
                let stamped = rows.map(|row| ConversationRow {
                    version: now,
                    ..row
                });
                self.apply(Effect::ConversationRows(stamped.collect()));
            }
            Step::Hidden => {
                for hidden in batch.deeds.iter().filter_map(|deed| deed.hidden()) {
                    self.apply(hidden);
                }
            }
            Step::Deeds => {
                for deed in std::mem::take(&mut batch.deeds) {
                    let is_unlisted = self.sabotage == Some(Sabotage::HiddenUnlisted);
                    if !is_unlisted || deed.hidden().is_none() {
                        self.apply(deed.effect(now));
                    }
                }
            }
            Step::Deliver => return self.finish(*batch),
        }
        self.write_later(batch);
    }

    fn finish(&mut self, batch: Batch) {
        self.deliver(batch.deliveries);
        for (source, told) in batch.dropped {
            self.apply(Effect::Ledger(told));
            self.carrier.offsets.settle(source);
            self.commit_later();
        }
        self.carrier.writing = false;
        self.wake_carrier();
    }

    fn deliver(&mut self, deliveries: Vec<Written>) {
        for Written { source, task } in deliveries {
            let now = self.now;
            let taken = self.carrier.delivery.handle_task(now, source, task);
            assert!(taken.is_ok(), "there was room");
            self.drive_carrier();
        }
    }
}
