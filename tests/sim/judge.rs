//! The judge: what must hold in every world, and at the end of it.

mod changes;
mod groups;
mod lists;

use std::collections::{BTreeMap, BTreeSet};

use client::core::{SendStatus, State};
use protocol::frame::ServerFrame;
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::ledger::audit::{Audit, Carried};
use protocol::ledger::trace::Life;
use protocol::{Code, ConversationId, MessageId, Platform, Refusal, SendId, Seq, UserId};
use tests::model::Model;

use crate::oracle::Tally;
use crate::plan::Plan;
use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Judge {
    finding: Option<String>,
    /// The id that each accepted send was told, first time.
    accepted: BTreeMap<SendId, MessageId>,
    /// The same of those that change something, every id that was told.
    asked: BTreeSet<MessageId>,
    /// Copies that were dropped for an earlier message.
    repeats: BTreeMap<MessageId, MessageId>,
    dead: BTreeMap<MessageId, DeadReason>,
}

impl Judge {
    /// The first thing that was wrong.
    pub(crate) fn found(&mut self, what: String) {
        self.finding.get_or_insert(what);
    }

    pub(crate) fn finding(&mut self) -> Option<String> {
        self.finding.take()
    }

    pub(crate) fn accepted(&mut self, send_id: SendId, id: MessageId, is_change: bool) {
        match is_change {
            true => _ = self.asked.insert(id),
            false => _ = self.accepted.entry(send_id).or_insert(id),
        }
    }

    /// What was accepted to change something.
    pub(crate) fn asked(&self) -> impl Iterator<Item = MessageId> {
        self.asked.iter().copied()
    }

    pub(crate) fn repeat(&mut self, copy: MessageId, first: MessageId) {
        self.repeats.insert(copy, first);
    }

    pub(crate) fn dead(&mut self, id: MessageId, reason: DeadReason) {
        self.dead.insert(id, reason);
    }

    /// Where nothing goes wrong, nobody needs a retry …
    pub(crate) fn retried(&mut self, plan: &Plan, id: MessageId) {
        if plan.is_quiet() && !plan.has_rivals() {
            self.found(format!("{id} was retried in a quiet world"));
        }
    }

    /// … and a device that acknowledges at once is not told to reconnect (pitfall C of S1).
    pub(crate) fn session_closed(&mut self, plan: &Plan, refusal: &Refusal) {
        if plan.is_quiet() && refusal.code == Code::Reconnect {
            self.found(format!("a session was closed in a quiet world: {refusal}"));
        }
    }

    /// Each id that a sender was told, and the message that counts for it.
    pub(crate) fn accepted_messages(&self) -> impl Iterator<Item = (MessageId, MessageId)> {
        self.accepted.values().map(|&id| (id, self.first(id)))
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
            let stored = self
                .devices
                .iter()
                .filter(|device| device.user == receipt.by)
                .any(|device| device.has(receipt));
            if !stored {
                let what = format!(
                    "{} is said to be received, but no device has it",
                    receipt.id
                );
                self.judge.found(what);
            }
        }
    }

    /// The end of a world that was left in peace for a long time.
    pub(crate) fn judge_all(&mut self) -> Result<Tally, String> {
        self.judge_history()?;
        self.judge_devices()?;
        self.judge_senders()?;
        self.judge_mailboxes()?;
        self.judge_presence()?;
        self.judge_ledger()?;
        let tally = self.judge_traces()?;
        let model = self.model();
        self.judge_changes(&model)?;
        self.judge_groups(&model)?;
        self.judge_views(&model)?;
        self.judge_registers(&model)?;
        if !self.reads_lost {
            self.judge_reads()?;
        }
        Ok(tally)
    }

    /// After every device came back, and others came that were never there.
    pub(crate) fn judge_return(&self) -> Result<(), String> {
        let model = self.model();
        self.judge_views(&model)?;
        self.judge_registers(&model)?;
        self.judge_lists(&model)
    }

    /// What the log comes to.
    fn model(&self) -> Model {
        let log = self.disk.log.iter();
        let log = log.filter(|((topic, _), _)| *topic == Topic::Message);
        Model::of(log.flat_map(|(_, records)| records.iter().map(|record| &record.task.work)))
    }

    /// I5, S0-01: dense positions, each once; two rows a message.
    fn judge_history(&self) -> Result<(), String> {
        let mut per_owner: BTreeMap<(ConversationId, UserId), BTreeMap<Seq, MessageId>> =
            BTreeMap::new();
        for ((owner, id), row) in &self.disk.rows {
            let conversation = row.conversation().ok_or("a row of nobody")?;
            let other = self.disk.rows.get(&(row.peer, *id));
            if other.is_none_or(|other| other.seq != row.seq) {
                return Err(format!("{id} has not the same two rows"));
            }
            let places = per_owner.entry((conversation, *owner)).or_default();
            if let Some(first) = places.insert(row.seq, *id) {
                return Err(format!(
                    "{conversation} has {first} and {id} at {}",
                    row.seq
                ));
            }
        }
        for ((conversation, _), places) in &per_owner {
            for (place, (seq, id)) in (1..).zip(places) {
                if seq.0 != place {
                    return Err(format!("{conversation} has a hole before {seq}"));
                }
                let row = self
                    .disk
                    .rows
                    .iter()
                    .find(|((_, i), _)| i == id)
                    .map(|(_, row)| row);
                let prev = places.get(&Seq(place - 1)).copied();
                if row.is_some_and(|row| row.prev != prev) {
                    return Err(format!("{id} does not follow the message before it"));
                }
            }
        }
        Ok(())
    }

    /// Every standing device is there. That it shows everything, once and in order (I1, I3, I4), is judged with
    /// what became of it.
    fn judge_devices(&self) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            if !matches!(device.state(), Some(State::Ready)) {
                return Err(format!("{} ends as {:?}", device.name, device.state()));
            }
        }
        Ok(())
    }

    /// I1, I2: what was accepted is there under the id that was told; each sender's own order is kept.
    fn judge_senders(&self) -> Result<(), String> {
        let mut by_send: BTreeMap<SendId, Vec<(Seq, MessageId)>> = BTreeMap::new();
        for row in self.disk.rows.values() {
            if row.direction == protocol::history::Direction::Out {
                by_send
                    .entry(row.send_id)
                    .or_default()
                    .push((row.seq, row.id));
            }
        }
        if let Some((send_id, copies)) = by_send.iter().find(|(_, copies)| copies.len() > 1) {
            return Err(format!("{send_id} became several messages: {copies:?}"));
        }
        for (send_id, id) in &self.judge.accepted {
            let stands = by_send.get(send_id).and_then(|copies| copies.first());
            if stands.map(|(_, id)| *id) != Some(self.judge.first(*id)) {
                return Err(format!(
                    "{send_id} was accepted as {id}, history has {stands:?}"
                ));
            }
        }
        for device in &self.devices {
            let mut last: BTreeMap<UserId, Seq> = BTreeMap::new();
            for (to, send_id) in &device.order {
                let accepted = device.sent.get(send_id).is_some_and(|s| s.rank() >= 2);
                let stands = by_send.get(send_id).and_then(|copies| copies.first());
                if accepted && stands.is_none() {
                    return Err(format!("{send_id} was accepted and is gone"));
                }
                let Some((seq, _)) = stands else { continue };
                if last.insert(*to, *seq).is_some_and(|before| before > *seq) {
                    return Err(format!(
                        "{} sent {send_id} later than what follows it",
                        device.name
                    ));
                }
            }
        }
        for index in self.standing_devices() {
            let device = &self.devices[index];
            for (send_id, status) in &device.sent {
                let is_refused = device.asked.contains(send_id)
                    && matches!(status, SendStatus::Failed(why) if !why.code.retryable());
                if matches!(status, SendStatus::Pending | SendStatus::Failed(_)) && !is_refused {
                    return Err(format!("{send_id} of {} ends as {status:?}", device.name));
                }
            }
        }
        Ok(())
    }

    /// I9, I10: nothing waits for a platform whose device is there; bodies are counted right.
    fn judge_mailboxes(&self) -> Result<(), String> {
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let mailbox = self.disk.mailboxes.get(&device.user);
            let waiting = mailbox.map_or(0, |mailbox| mailbox.waiting(device.platform));
            if waiting > 0 {
                return Err(format!(
                    "{waiting} wait for {}, which is there",
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
        let here: BTreeSet<_> = self
            .boats
            .iter()
            .flat_map(|boat| boat.sessions().filter(|s| s.is_open()).map(|s| s.id()))
            .collect();
        for (user, mailbox) in &self.disk.mailboxes {
            let mut platforms = BTreeSet::new();
            for entry in mailbox.live(&self.carrier.denied) {
                if !platforms.insert(entry.platform) {
                    return Err(format!("{user} has two sessions on {}", entry.platform));
                }
            }
            let _ = user;
        }
        for index in self.standing_devices() {
            let device = &self.devices[index];
            let registered = self
                .disk
                .mailboxes
                .get(&device.user)
                .is_some_and(|mailbox| {
                    mailbox.live(&self.carrier.denied).any(|entry| {
                        entry.platform == device.platform && here.contains(&entry.session)
                    })
                });
            if !registered {
                return Err(format!("{} is connected and nobody knows", device.name));
            }
        }
        Ok(())
    }

    /// The ledger as judge: accepted = settled, nothing in flight, nothing missing. I14 with it.
    fn judge_ledger(&self) -> Result<(), String> {
        if !self.carrier.is_idle() {
            return Err("the carrier is not done".into());
        }
        let mut audit = Audit::default();
        let carried = Carried::default();
        for id in self.judge.accepted.values().chain(&self.judge.asked) {
            let entries = self.disk.ledger.get(id).cloned().unwrap_or_default();
            audit.add(&Life::of(*id, &entries), &carried);
        }
        if !audit.is_even() {
            let contradictions: Vec<_> = audit.contradictions().collect();
            let missing = audit.total().missing;
            return Err(format!(
                "the audit misses {missing:?}, contradictions {contradictions:?}"
            ));
        }
        if let Some((id, reason)) = self.judge.dead.iter().next() {
            return Err(format!("{id} is a dead letter: {}", reason.name()));
        }
        Ok(())
    }
}
