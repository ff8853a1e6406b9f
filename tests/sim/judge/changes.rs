//! Changes: dense and in the order of the log, each accepted one done or refused, every message
//! shown with its changes, and pins listed.

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::Overlay;
use protocol::frame::{SyncAnswer, SyncQuery};
use protocol::ledger::trace::MessageLife;
use protocol::{ConversationId, MessageId, UserId};
use tests::app::Said;
use tests::model::{Fate, Model};

use crate::reading::Asked;
use crate::world::World;

impl World {
    pub(crate) fn judge_changes(&mut self, model: &Model) -> Result<(), String> {
        self.judge_pins(model)?;
        self.judge_order(model)?;
        self.judge_what_is_left(model)?;
        self.judge_fates(model)
    }

    /// Checks that the changes of each conversation are those the log asks for, in its order, once
    /// each, and that the head counts them.
    fn judge_order(&self, model: &Model) -> Result<(), String> {
        let mut standing: BTreeMap<ConversationId, Vec<(u64, MessageId)>> = BTreeMap::new();
        for ((conversation, rev), row) in &self.disk.changes {
            let changes = standing.entry(*conversation).or_default();
            changes.push((*rev, row.changed.asked.id));
        }
        for (conversation, talk) in &model.talks {
            let expected = &talk.changes;
            let got = standing.remove(conversation).unwrap_or_default();
            let head = self.disk.heads.get(conversation);
            let rev = head.map_or(0, |head| head.rev);
            let (revs, ids): (Vec<u64>, Vec<MessageId>) = got.iter().copied().unzip();
            if !revs.into_iter().eq(1..=rev) || ids != *expected {
                return Err(format!(
                    "{conversation} has changes {got:?} up to {rev}, the log asks for {expected:?}"
                ));
            }
        }
        match standing.pop_first() {
            Some(of) => Err(format!("{of:?} are changes that nobody asked for")),
            None => Ok(()),
        }
    }

    /// Checks that history, with the overlays of its changes, equals the model of the log.
    fn judge_what_is_left(&self, model: &Model) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            for expected in talk.view() {
                let placed = self.subject(*conversation, expected.from, expected.id);
                let mut placed = placed.ok_or_else(|| format!("{} has no row", expected.id))?;
                let key = (*conversation, placed.position.seq);
                let altered = self.disk.altered.get(&key);
                let marks = altered.and_then(|altered| Overlay::show(altered, &mut placed));
                let got = Said::of(&placed, marks);
                if got != expected {
                    return Err(format!("history says {got:?}, the log {expected:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that stations list the pins of the log, for each user who may read them.
    fn judge_pins(&mut self, model: &Model) -> Result<(), String> {
        let users: BTreeSet<UserId> = self.devices.iter().map(|device| device.user).collect();
        for (&conversation, talk) in &model.talks {
            for &user in &users {
                let Some(mut expected) = talk.pins_of(conversation, user) else {
                    continue;
                };
                // The server does not hide: devices do.
                let view = talk.view();
                expected
                    .iter_mut()
                    .for_each(|said| said.clone_from(&view[said.seq.0 as usize - 1]));
                let query = SyncQuery::Pins {
                    conversation,
                    before: None,
                    limit: 0,
                };
                let answer = self.read_rest(user, &query, &mut Asked::new(self.now));
                let Ok(SyncAnswer::Pins(page)) = answer else {
                    return Err(format!("{user} is told of pins: {answer:?}"));
                };
                let pins = page.messages.iter().map(|placed| {
                    let marks = page.marks.get(&placed.position.seq).cloned();
                    Said::of(placed, marks)
                });
                let pins: Vec<Said> = pins.collect();
                if pins != expected {
                    return Err(format!(
                        "{user} is told of pins {pins:?} of {conversation}, the log says {expected:?}"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that each accepted send that the writer may refuse was done, or that the ledger says
    /// why not.
    fn judge_fates(&self, model: &Model) -> Result<(), String> {
        for id in self.judge.asked() {
            let fates = model.fates.get(&id);
            let fates = fates.ok_or_else(|| format!("{id} was accepted and is not in the log"))?;
            let entries = self.disk.ledger.get(&id).cloned().unwrap_or_default();
            let life = MessageLife::of(id, &entries);
            let told = match (&life.listed, life.change.as_ref().map(|change| &change.rev)) {
                _ if life.placed.is_some() => Fate::Done,
                _ if life.repeat_of.is_some() => Fate::Nothing,
                (Some(_), _) | (None, Some(Ok(Some(_)))) => Fate::Done,
                (None, Some(Ok(None))) => Fate::Nothing,
                (None, Some(Err(_))) => Fate::Refused,
                (None, None) if life.refused.is_some() => Fate::Refused,
                (None, None) => return Err(format!("{id}: nobody knows what became of it")),
            };
            let is_right = match fates.contains(&Fate::Done) {
                true => told == Fate::Done || self.is_clear(id) && told == Fate::Nothing,
                // A carrier may have died before it wrote the refusal to the ledger, or a store failed
                // it behind the head: whoever handles the record again does not judge again.
                false => {
                    let may_repeat = self.carrier.life > 1 || self.witness.failed.contains(&id);
                    let again = told != Fate::Refused && may_repeat;
                    fates.contains(&told) || again
                }
            };
            if !is_right {
                return Err(format!("{id} is told as {told:?}, and it was {fates:?}"));
            }
        }
        Ok(())
    }

    /// True for a clear, of which the ledger may say that nothing changed: a later clear may have
    /// gone further before this one was written down.
    fn is_clear(&self, id: MessageId) -> bool {
        let entries = self.disk.ledger.get(&id);
        let entries = entries.map(Vec::as_slice).unwrap_or_default();
        let life = MessageLife::of(id, entries);
        life.change.is_some() && life.listed.is_none() && !self.is_among_changes(id)
    }

    fn is_among_changes(&self, id: MessageId) -> bool {
        let mut rows = self.disk.changes.values();
        rows.any(|row| row.changed.asked.id == id)
    }
}
