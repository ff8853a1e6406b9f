//! Judges of a whole system at rest, in either ring: stores, ledger and devices against the model
//! of the log.

use std::collections::{BTreeMap, BTreeSet};

use client::core::{ConnectionState, SendStatus};
use protocol::history::Direction;
use protocol::ledger::LedgerEntry;
use protocol::ledger::audit::{Audit, InFlight};
use protocol::ledger::trace::MessageLife;
use protocol::message_row::{MessageRow, Owner};
use protocol::{ConversationId, MessageId, SendId, Seq, UserId};

use crate::core_device::CoreDevice;
use crate::model::Model;

/// Stores and devices of a system left in peace for a long time.
pub struct Evidence<'a> {
    /// Rows by owner.
    pub rows: &'a BTreeMap<(Owner, MessageId), MessageRow>,
    pub ledger: &'a BTreeMap<MessageId, Vec<LedgerEntry>>,
    pub devices: Vec<&'a CoreDevice>,
    /// Devices that must end up complete.
    pub complete_devices: Vec<&'a CoreDevice>,
    /// Id that each accepted send was first answered with.
    pub accepted_ids: &'a BTreeMap<SendId, MessageId>,
    /// Ids of accepted sends whose fate is judged: those that the writer may refuse, or all.
    pub judged_ids: &'a BTreeSet<MessageId>,
    /// Repeats that were dropped, each with the earlier message.
    pub repeats: &'a BTreeMap<MessageId, MessageId>,
    /// Messages that died once: an operator may place them later than what follows them.
    pub late_ids: &'a BTreeSet<MessageId>,
    /// Messages whose dead letters nobody has redriven: that accounts for them.
    pub open_letters: &'a BTreeSet<MessageId>,
}

impl Evidence<'_> {
    /// I5, S0-01: dense positions of private conversations, each once; two rows a message.
    ///
    /// # Errors
    /// The first finding, as of every judge here.
    pub fn judge_history(&self) -> Result<(), String> {
        let mut per_owner: BTreeMap<(ConversationId, UserId), BTreeMap<Seq, &MessageRow>> =
            BTreeMap::new();
        for ((owner, id), row) in self.rows {
            let Owner::User(owner) = *owner else {
                continue;
            };
            let conversation = row.placed.conversation;
            let peer = row.peer().ok_or("a row of nobody")?;
            let other = self.rows.get(&(Owner::User(peer), *id));
            if other.is_none_or(|other| other.seq() != row.seq()) {
                return Err(format!("{id} has not the same two rows"));
            }
            let rows_by_seq = per_owner.entry((conversation, owner)).or_default();
            if let Some(first) = rows_by_seq.insert(row.seq(), row) {
                let (first, seq) = (first.id(), row.seq());
                return Err(format!("{conversation} has {first} and {id} at {seq}"));
            }
        }
        for ((conversation, _), rows_by_seq) in &per_owner {
            let mut prev = None;
            for (expected_seq, (seq, row)) in (1..).zip(rows_by_seq) {
                if seq.0 != expected_seq {
                    return Err(format!("{conversation} has a hole before {seq}"));
                }
                if row.placed.position.prev != prev {
                    let id = row.id();
                    return Err(format!("{id} does not follow the message before it"));
                }
                prev = Some(row.id());
            }
        }
        Ok(())
    }

    /// Checks that every standing device is ready. Whether it shows everything, once and in order
    /// (I1, I3, I4), is judged with the changes.
    pub fn judge_devices(&self) -> Result<(), String> {
        for device in &self.complete_devices {
            if !matches!(device.state(), Some(ConnectionState::Ready)) {
                return Err(format!("{} ends as {:?}", device.name, device.state()));
            }
        }
        Ok(())
    }

    fn first(&self, id: MessageId) -> MessageId {
        self.repeats.get(&id).copied().unwrap_or(id)
    }

    /// I1, I2: accepted sends exist under the id of the answer, in the order of each sender.
    pub fn judge_senders(&self) -> Result<(), String> {
        let mut by_send: BTreeMap<SendId, Vec<(Seq, MessageId)>> = BTreeMap::new();
        for row in self.rows.values() {
            if row.direction() == Some(Direction::Out) {
                by_send
                    .entry(row.placed.message.send_id)
                    .or_default()
                    .push((row.seq(), row.id()));
            }
        }
        if let Some((send_id, copies)) = by_send.iter().find(|(_, copies)| copies.len() > 1) {
            return Err(format!("{send_id} became several messages: {copies:?}"));
        }
        let accepted = self.accepted_ids.iter();
        for (send_id, id) in accepted.filter(|(_, id)| !self.open_letters.contains(*id)) {
            let stored_message = by_send.get(send_id).and_then(|copies| copies.first());
            if stored_message.map(|(_, id)| *id) != Some(self.first(*id)) {
                let entries = self.ledger.get(id).map_or(&[][..], Vec::as_slice);
                return Err(format!(
                    "{send_id} was accepted as {id}, history has {stored_message:?}, the ledger {entries:?}"
                ));
            }
        }
        for device in &self.devices {
            let mut last: BTreeMap<UserId, Seq> = BTreeMap::new();
            for (to, send_id) in &device.order {
                let is_accepted = device
                    .send_statuses
                    .get(send_id)
                    .is_some_and(|s| s.rank() >= 2);
                let stored_message = by_send.get(send_id).and_then(|copies| copies.first());
                let id = device.accepted_ids.get(send_id);
                let is_dead = id.is_some_and(|id| self.open_letters.contains(id));
                if is_accepted && !is_dead && stored_message.is_none() {
                    return Err(format!("{send_id} was accepted and is gone"));
                }
                let Some((seq, id)) = stored_message else {
                    continue;
                };
                if self.late_ids.contains(id) {
                    continue;
                }
                if last
                    .insert(*to, *seq)
                    .is_some_and(|previous| previous > *seq)
                {
                    return Err(format!(
                        "{} sent {send_id} later than what follows it",
                        device.name
                    ));
                }
            }
        }
        for device in &self.complete_devices {
            for (send_id, status) in &device.send_statuses {
                let is_refused = device.change_sends.contains(send_id)
                    && matches!(status, SendStatus::Failed(refusal) if !refusal.code.retryable());
                if matches!(status, SendStatus::Pending | SendStatus::Failed(_)) && !is_refused {
                    return Err(format!("{send_id} of {} ends as {status:?}", device.name));
                }
            }
        }
        Ok(())
    }

    /// The ledger as judge: accepted = settled, nothing in flight, nothing missing, no dead letter.
    pub fn judge_ledger(&self) -> Result<(), String> {
        let mut audit = Audit::default();
        let in_flight = InFlight::default();
        for id in self.accepted_ids.values().chain(self.judged_ids) {
            let entries = self.ledger.get(id).map_or(&[][..], Vec::as_slice);
            let life = MessageLife::of(*id, entries);
            if life.dead.is_some() && !self.open_letters.contains(id) {
                return Err(format!("{id} is a dead letter: {life:?}"));
            }
            audit.add(&life, &in_flight);
        }
        if !audit.is_even() {
            let contradictions: Vec<_> = audit.contradictions().collect();
            let missing_counts = audit.total().missing_ids;
            return Err(format!(
                "the audit misses {missing_counts:?}, contradictions {contradictions:?}"
            ));
        }
        Ok(())
    }

    /// Checks that every standing device shows the model of the log. Messages that its user cleared
    /// before the device knew them are not fetched.
    pub fn judge_views(&self, model: &Model) -> Result<(), String> {
        for device in &self.complete_devices {
            for (conversation, talk) in &model.talks {
                device.screen().check(*conversation, talk)?;
            }
        }
        Ok(())
    }

    /// Checks that each standing device's list agrees with a count of messages. `read`: read
    /// positions of users, from the server; `None` for rows that nobody judges.
    pub fn judge_lists(
        &self,
        model: &Model,
        read: impl Fn(&CoreDevice, ConversationId) -> Option<Seq>,
    ) -> Result<(), String> {
        for device in &self.complete_devices {
            for (conversation, talk) in &model.talks {
                let crowd = talk.group.as_ref();
                let is_in = crowd.is_some_and(|crowd| crowd.is_in(device.user));
                if is_in || conversation.peer_of(device.user).is_some() {
                    let row = device.snapshot.list.get(conversation);
                    let Some(read) = read(device, *conversation) else {
                        continue;
                    };
                    device.screen().check_row(*conversation, talk, row, read)?;
                }
            }
        }
        Ok(())
    }
}
