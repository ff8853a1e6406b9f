//! The judge: invariants of every world, while it runs and at its end.

mod conversations;
mod pins;

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::ChangeRequest;
use protocol::frame::ServerFrame;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::message_row::Owner;
use protocol::record::Work;
use protocol::{Code, ConversationId, MessageId, Platform, Refusal, SendId};
use tests::core_device::CoreDevice;
use tests::evidence::Evidence;
use tests::model::Model;

use crate::effects::Record;
use crate::oracle::Tally;
use crate::plan::Plan;
use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Judge {
    finding: Option<String>,
    /// Id in the first acceptance of each send.
    accepted_ids: BTreeMap<SendId, MessageId>,
    /// Ids in all acceptances of sends that the writer may still refuse.
    judged_ids: BTreeSet<MessageId>,
    /// Duplicates that were dropped, each with the message that it repeats.
    repeats: BTreeMap<MessageId, MessageId>,
    dead: BTreeMap<MessageId, DeadReason>,
    /// Messages whose records died as a whole.
    late_ids: BTreeSet<MessageId>,
    /// None: an operator has dealt with all.
    open_letters: BTreeSet<MessageId>,
    /// First conversation in which the carrier found a later writer ahead.
    overtaken: Option<ConversationId>,
}

impl Judge {
    /// Records a finding; the first one stays.
    pub(crate) fn record_finding(&mut self, finding: String) {
        self.finding.get_or_insert(finding);
    }

    pub(crate) fn finding(&mut self) -> Option<String> {
        self.finding.take()
    }

    pub(crate) fn record_acceptance(&mut self, send_id: SendId, id: MessageId, is_change: bool) {
        if is_change {
            _ = self.judged_ids.insert(id)
        } else {
            _ = self.accepted_ids.entry(send_id).or_insert(id)
        }
    }

    pub(crate) fn record_repeat(&mut self, copy: MessageId, first: MessageId) {
        self.repeats.insert(copy, first);
    }

    pub(crate) fn record_death(&mut self, id: MessageId, reason: DeadReason) {
        self.dead.insert(id, reason);
        self.late_ids.insert(id);
    }

    /// Reason of a message's last death.
    pub(crate) fn reason(&self, id: MessageId) -> Option<DeadReason> {
        self.dead.get(&id).copied()
    }

    pub(crate) fn record_overtaking(&mut self, conversation: ConversationId) {
        self.overtaken.get_or_insert(conversation);
    }

    /// Checks that a quiet world without rivals needs no retry.
    pub(crate) fn check_retry(&mut self, plan: &Plan, id: MessageId) {
        if plan.is_quiet() && !plan.has_rivals() {
            self.record_finding(format!("{id} was retried in a quiet world"));
        }
    }

    /// Checks that a quiet world asks no device to reconnect: all acknowledge at once (pitfall C of
    /// S1).
    pub(crate) fn check_session_close(&mut self, plan: &Plan, refusal: &Refusal) {
        if plan.is_quiet() && refusal.code == Code::Reconnect {
            self.record_finding(format!("a session was closed in a quiet world: {refusal}"));
        }
    }

    /// Each accepted id, and the message that counts for it.
    pub(crate) fn accepted_messages(&self) -> impl Iterator<Item = (MessageId, MessageId)> {
        self.accepted_ids.values().map(|&id| (id, self.first(id)))
    }

    fn first(&self, id: MessageId) -> MessageId {
        self.repeats.get(&id).copied().unwrap_or(id)
    }
}

impl World {
    /// I8: *received* reaches a sender only after a device of the receiver has stored the message.
    pub(crate) fn judge_receipts(&mut self, frame: &ServerFrame) {
        let ServerFrame::Receipts(receipts) = frame else {
            return;
        };
        for receipt in receipts {
            let is_stored = self
                .devices
                .iter()
                .filter(|device| device.user == receipt.by)
                .any(|device| device.has(receipt));
            if !is_stored {
                let finding = format!(
                    "{} is said to be received, but no device has it",
                    receipt.id
                );
                self.judge.record_finding(finding);
            }
        }
    }

    /// Judges the end of a world, after a long time without faults.
    pub(crate) fn judge_all(&mut self) -> Result<Tally, String> {
        let evidence = self.evidence();
        evidence.judge_history()?;
        evidence.judge_devices()?;
        evidence.judge_senders()?;
        self.judge_mailboxes()?;
        self.judge_presence()?;
        self.judge_ledger()?;
        let tally = self.judge_traces()?;
        let model = self.model();
        self.judge_pins(&model)?;
        let (conversations, evidence) = (self.stored_conversations(&model), self.evidence());
        evidence.judge_changes(&model, &conversations)?;
        evidence.judge_overlays(&model, &conversations)?;
        evidence.judge_fates(&model, &conversations, |id| {
            self.carrier.life > 1 || self.witness.failed_messages.contains(&id)
        })?;
        evidence.judge_groups(&model, &conversations)?;
        evidence.judge_views(&model)?;
        evidence.judge_registers(&model, &conversations)?;
        // A crash of the whole machine may lose the last reads.
        if !self.reads_lost {
            evidence.judge_reads(&conversations)?;
        }
        self.judge_writer()?;
        Ok(tally)
    }

    /// Checks that no other writer was ahead, where there is none. Judged last: a writer that stops
    /// at one is found by what it leaves undone.
    fn judge_writer(&self) -> Result<(), String> {
        match self.judge.overtaken {
            Some(_) if self.plan.has_two_carriers() => Ok(()),
            Some(conversation) => Err(format!("another writer was ahead in {conversation}")),
            None => Ok(()),
        }
    }

    /// Judges again, once all devices reconnected and new ones synced from nothing.
    pub(crate) fn judge_return(&self) -> Result<(), String> {
        let model = self.model();
        let (conversations, evidence) = (self.stored_conversations(&model), self.evidence());
        evidence.judge_views(&model)?;
        evidence.judge_registers(&model, &conversations)?;
        if self.plan.lists_miss_rows() {
            Ok(())
        } else {
            self.judge_lists(&model)
        }
    }

    /// Model of the whole log.
    fn model(&self) -> Model {
        let log = self.disk.log.iter();
        let log = log.filter(|((topic, _), _)| *topic == Topic::Message);
        let records = log.flat_map(|(_, records)| records.iter());
        let records = records.filter(|record| self.is_counted(record));
        let mut model = Model::of(records.map(|record| &record.task.work));
        let dead_changes = self.disk.changes.iter();
        for ((conversation, rev), _) in dead_changes.filter(|(_, row)| row.changed.has_died()) {
            model
                .talks
                .entry(*conversation)
                .or_default()
                .died
                .insert(*rev);
        }
        model
    }

    /// Whether the model counts the record. If a record of the message died, those before the one
    /// that placed it do not count. The row says which that is: the first one, read again, or one
    /// that redrives a letter.
    fn is_counted(&self, record: &Record) -> bool {
        let Work::Message(work) = &record.task.work else {
            return true;
        };
        let (from, id) = (work.message.from, work.message.id);
        if !self.judge.late_ids.contains(&id) {
            return true;
        }
        if ChangeRequest::of(&work.message).is_some() {
            return self.counts_change(id, record.offset);
        }
        let row = self.disk.rows.get(&(Owner::User(from), id));
        row.is_some_and(|row| row.version.offset <= record.offset)
    }

    /// The same for a change: the record of its row counts, or the last record if it has no row.
    fn counts_change(&self, id: MessageId, offset: u64) -> bool {
        let mut rows = self.disk.changes.values();
        let live_row = rows.find(|row| row.changed.asked.id == id && !row.changed.has_died());
        if let Some(row) = live_row {
            return row.version.offset <= offset;
        }
        let log = self.disk.log.values().flatten();
        let message_records = log.filter(|record| match &record.task.work {
            Work::Message(work) => work.message.id == id,
            Work::Deliver(_) | Work::Kickout(_) => false,
        });
        message_records.map(|record| record.offset).max() == Some(offset)
    }

    /// Checks that a change that is said to have died has a letter.
    fn judge_dead_changes(&self) -> Result<(), String> {
        for ((conversation, rev), row) in &self.disk.changes {
            let id = row.changed.asked.id;
            if row.changed.has_died() && !self.has_letter(id) {
                return Err(format!(
                    "{id} died as change {rev} of {conversation}, without a letter"
                ));
            }
        }
        Ok(())
    }

    pub(crate) fn evidence(&self) -> Evidence<'_> {
        let device = |index: usize| -> &CoreDevice { &self.devices[index] };
        Evidence {
            rows: &self.disk.rows,
            ledger: &self.disk.ledger,
            devices: (0..self.devices.len()).map(device).collect(),
            complete_devices: self.standing_devices().into_iter().map(device).collect(),
            accepted_ids: &self.judge.accepted_ids,
            judged_ids: &self.judge.judged_ids,
            repeats: &self.judge.repeats,
            late_ids: &self.judge.late_ids,
            open_letters: &self.judge.open_letters,
        }
    }

    /// I9, I10: no mail waits for a platform whose device is connected; bodies are counted right.
    fn judge_mailboxes(&self) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let mailbox = self.disk.mailboxes.get(&device.user);
            let waiting_count = mailbox.map_or(0, |mailbox| mailbox.waiting(device.platform));
            if waiting_count > 0 {
                return Err(format!(
                    "{waiting_count} wait for {}, which is there",
                    device.name
                ));
            }
        }
        let all_empty = self.disk.mailboxes.values().all(|mailbox| {
            Platform::ALL
                .iter()
                .all(|platform| mailbox.waiting(*platform) == 0)
        });
        if all_empty && !self.disk.bodies.is_empty() {
            return Err("bodies are left that nobody waits for".into());
        }
        Ok(())
    }

    /// I11, I12: the registered sessions are those on boats, one for each (user, platform).
    fn judge_presence(&self) -> Result<(), String> {
        let sessions: BTreeSet<_> = self
            .boats
            .iter()
            .flat_map(|boat| boat.sessions().filter(|s| s.is_open()).map(|s| s.id()))
            .collect();
        for (user, mailbox) in &self.disk.mailboxes {
            let mut platforms = BTreeSet::new();
            for entry in mailbox.live(&self.carrier.denied_boats) {
                if !platforms.insert(entry.platform) {
                    return Err(format!("{user} has two sessions on {}", entry.platform));
                }
            }
        }
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let is_registered = self
                .disk
                .mailboxes
                .get(&device.user)
                .is_some_and(|mailbox| {
                    mailbox.live(&self.carrier.denied_boats).any(|entry| {
                        entry.platform == device.platform && sessions.contains(&entry.session)
                    })
                });
            if !is_registered {
                return Err(format!("{} is connected and nobody knows", device.name));
            }
        }
        Ok(())
    }

    /// Judges by the ledger: accepted = settled, nothing in flight, nothing missing. I14 with it.
    fn judge_ledger(&self) -> Result<(), String> {
        if !self.carrier.is_idle() {
            return Err("the carrier is not done".into());
        }
        self.evidence().judge_ledger()?;
        self.judge_dead_changes()?;
        if self.plan.letters.has_operator() {
            self.judge_panics()?;
            return self.judge_letters();
        }
        if let Some((id, reason)) = self.judge.dead.iter().next() {
            return Err(format!("{id} is a dead letter: {}", reason.name()));
        }
        Ok(())
    }

    /// Checks that an operator has dealt with each letter, the last time after all faults.
    fn judge_letters(&self) -> Result<(), String> {
        match self.open_letters().first() {
            Some(letter) => Err(format!("letter {letter} is left")),
            None => Ok(()),
        }
    }
}
