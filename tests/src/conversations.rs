//! Conversations at rest: changes, overlays, members and registers, against the model of the log.

use std::collections::{BTreeMap, BTreeSet};

use backend::Backends;
use protocol::change::{OrderedChange, Overlay};
use protocol::group::Role;
use protocol::ledger::trace::MessageLife;
use protocol::message_row::Owner;
use protocol::{ConversationId, MessageId, Seq, UserId};

use crate::app::ChatMessage;
use crate::crowd::Crowd;
use crate::evidence::Evidence;
use crate::model::{Fate, Model, Talk};

/// Upper bound of the changes, members and hidden messages of a conversation.
const ALL: usize = 100_000;

/// Stored state of a conversation, beside its messages.
#[derive(Debug, Default)]
pub struct StoredConversation {
    /// Rev of each change, and its record, in order.
    pub changes: Vec<(u64, MessageId)>,
    /// Revs of changes that died.
    pub died: BTreeSet<u64>,
    /// Rev of the head.
    pub rev: u64,
    pub overlays: BTreeMap<Seq, Overlay>,
    /// Role and first message of members, past and present.
    pub members: BTreeMap<UserId, (Option<Role>, Seq)>,
    pub registers: BTreeMap<UserId, StoredRegisters>,
}

/// Registers of a user.
#[derive(Debug, Default)]
pub struct StoredRegisters {
    pub read: Seq,
    pub cleared: Seq,
    pub is_pinned: bool,
    /// In the order of hiding: a message that is there twice was hidden twice.
    pub hidden: Vec<Seq>,
}

pub type StoredConversations = BTreeMap<ConversationId, StoredConversation>;

impl StoredConversation {
    /// Reads conversations, with the registers of their users.
    ///
    /// # Errors
    /// A store does not answer.
    pub async fn read(
        backends: &Backends,
        conversations: impl IntoIterator<Item = ConversationId>,
    ) -> backend::Result<StoredConversations> {
        let mut stored = StoredConversations::new();
        for of in conversations {
            let head = backends.heads.load(&[of]).await?[0].unwrap_or_default();
            let changes = backends.changes.since(of, 0, ALL).await?.into_iter();
            let (died, changes): (Vec<_>, Vec<_>) = changes.partition(OrderedChange::has_died);
            let changes = changes.iter().map(|change| (change.rev, change.asked.id));
            let mut conversation = StoredConversation {
                changes: changes.collect(),
                died: died.iter().map(|change| change.rev).collect(),
                rev: head.rev,
                overlays: backends.changes.altered(of, Seq(1), head.seq).await?,
                ..StoredConversation::default()
            };
            if let ConversationId::Group(group) = of
                && backends.groups.settings(group).await?.is_some()
            {
                let members = backends.groups.members(group, None, ALL).await?.into_iter();
                let members = members.map(|(user, member)| (user, (member.role, member.since)));
                conversation.members = members.collect();
            }
            let users: Vec<UserId> = match of {
                ConversationId::Private { low, high } => vec![low, high],
                _ => conversation.members.keys().copied().collect(),
            };
            for user in users {
                let registers = StoredRegisters::read(backends, user, of).await?;
                conversation.registers.insert(user, registers);
            }
            stored.insert(of, conversation);
        }
        Ok(stored)
    }
}

impl StoredRegisters {
    async fn read(
        backends: &Backends,
        user: UserId,
        of: ConversationId,
    ) -> backend::Result<StoredRegisters> {
        let lists = &backends.conversations;
        let registers = lists.registers(&[(user, of)]).await?[0];
        let hidden = lists.hidden(user, of, 0, ALL).await?;
        Ok(StoredRegisters {
            read: registers.read_seq,
            cleared: registers.cleared.seq,
            is_pinned: registers.arranged.pinned,
            hidden: hidden.into_iter().map(|(_, seq)| seq).collect(),
        })
    }
}

impl Evidence<'_> {
    /// Checks that the changes of each conversation are those the log asks for, in its order, once
    /// each, and that the head counts them. Only worlds of rules see changes of a conversation that
    /// the log does not have: others read the conversations of the log.
    ///
    /// # Errors
    /// The first finding, as of every judge here.
    pub fn judge_changes(&self, model: &Model, stored: &StoredConversations) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let (expected, nothing) = (&talk.changes, StoredConversation::default());
            let stored = stored.get(conversation).unwrap_or(&nothing);
            let (got, rev) = (&stored.changes, stored.rev);
            let (revs, ids): (Vec<u64>, Vec<MessageId>) = got.iter().copied().unzip();
            let died = &stored.died;
            let revs: BTreeSet<u64> = revs.into_iter().chain(died.iter().copied()).collect();
            let is_dense = revs.into_iter().eq(1..=rev) && got.is_sorted();
            if !is_dense || ids != *expected {
                return Err(format!(
                    "{conversation} has changes {got:?} up to {rev}, dead ones at {died:?}, the log asks for {expected:?}"
                ));
            }
        }
        let mut unknown = stored
            .iter()
            .filter(|(of, stored)| !model.talks.contains_key(of) && !stored.changes.is_empty());
        match unknown.next() {
            Some(of) => Err(format!("{of:?} are changes that nobody asked for")),
            None => Ok(()),
        }
    }

    /// Checks that history, with the overlays of its changes, equals the model of the log.
    pub fn judge_overlays(
        &self,
        model: &Model,
        stored: &StoredConversations,
    ) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let overlays = stored.get(conversation).map(|stored| &stored.overlays);
            for expected in talk.view() {
                let owner = Owner::of(*conversation, expected.from);
                let placed = self.rows.get(&(owner, expected.id)).map(|row| &row.placed);
                let placed = placed.filter(|placed| placed.conversation == *conversation);
                let placed = placed.ok_or_else(|| format!("{} has no row", expected.id))?;
                let mut placed = placed.clone();
                let overlay = overlays.and_then(|all| all.get(&placed.position.seq));
                let marks = overlay.and_then(|overlay| Overlay::show(overlay, &mut placed));
                let got = ChatMessage::of(&placed, marks);
                if got != expected {
                    return Err(format!("history says {got:?}, the log {expected:?}"));
                }
            }
        }
        Ok(())
    }

    /// Checks members, their roles and the rows of groups against the log: one row for each message, which names the one
    /// before it.
    pub fn judge_groups(&self, model: &Model, stored: &StoredConversations) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let ConversationId::Group(number) = conversation else {
                continue;
            };
            let owner = Owner::Group(*number);
            let rows = self.rows.values().filter(|row| row.owner == owner);
            let mut rows: Vec<_> = rows
                .map(|row| (row.seq(), row.id(), row.placed.position.prev))
                .collect();
            rows.sort_unstable();
            let mut prev = None;
            for (_, id, named) in &rows {
                if *named != prev {
                    return Err(format!("{id} does not follow the message before it"));
                }
                prev = Some(*id);
            }
            let rows: Vec<_> = rows.iter().map(|(seq, id, _)| (*seq, *id)).collect();
            let said = talk.view();
            let said: Vec<_> = said.iter().map(|said| (said.seq, said.id)).collect();
            if rows != said {
                return Err(format!(
                    "{conversation} has {rows:?}, the log says {said:?}"
                ));
            }
            let got = stored.get(conversation).map(|stored| &stored.members);
            let got = got.cloned().unwrap_or_default();
            let expected = talk.group.as_ref().map(Crowd::members).unwrap_or_default();
            if got != expected {
                return Err(format!(
                    "{number} has members {got:?}, the log says {expected:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks against the log how far users cleared, what they hid and what they pinned, in private
    /// conversations.
    pub fn judge_registers(
        &self,
        model: &Model,
        stored: &StoredConversations,
    ) -> Result<(), String> {
        for (conversation, talk) in &model.talks {
            let ConversationId::Private { low, high } = *conversation else {
                continue;
            };
            let stored = stored.get(conversation);
            for user in [low, high] {
                let registers = stored.and_then(|stored| stored.registers.get(&user));
                let unread = || format!("registers of {user} were not read");
                judge_registers_of(user, *conversation, talk, registers.ok_or_else(unread)?)?;
            }
        }
        Ok(())
    }

    /// Checks that each read position on a device is registered, in private conversations.
    pub fn judge_reads(&self, stored: &StoredConversations) -> Result<(), String> {
        for device in &self.standing {
            let private = device.saved.conversations.iter();
            let private = private.filter(|(of, _)| of.peer_of(device.user).is_some());
            for (conversation, saved) in private {
                let read = saved.read.map_or(Seq::ZERO, |(seq, _)| seq);
                let stored = stored
                    .get(conversation)
                    .and_then(|it| it.registers.get(&device.user));
                if stored.map_or(Seq::ZERO, |registers| registers.read) < read {
                    return Err(format!("{} has read {read}, and nobody knows", device.name));
                }
            }
        }
        Ok(())
    }

    /// Checks that each send whose fate is judged was done, or that the ledger says why not. `may_repeat`: a record that was handled again, and not judged again.
    pub fn judge_fates(
        &self,
        model: &Model,
        stored: &StoredConversations,
        may_repeat: impl Fn(MessageId) -> bool,
    ) -> Result<(), String> {
        for &id in self.asked {
            let fates = model.fates.get(&id);
            let fates = fates.ok_or_else(|| format!("{id} was accepted and is not in the log"))?;
            let entries = self.ledger.get(&id).map_or(&[][..], Vec::as_slice);
            let life = MessageLife::of(id, entries);
            let told = match (&life.listed, life.change.as_ref().map(|change| &change.rev)) {
                _ if life.placed.is_some() => Fate::Done,
                _ if life.repeat_of.is_some() => Fate::Nothing,
                (Some(_), _) | (None, Some(Ok(Some(_)))) => Fate::Done,
                (None, Some(Ok(None))) => Fate::Nothing,
                (None, Some(Err(_))) => Fate::Refused,
                (None, None) if life.refused.is_some() => Fate::Refused,
                (None, None) => return Err(format!("{id}: nobody knows what became of it")),
            };
            // A later clear may have gone further before this one was written down.
            let is_clear =
                || life.change.is_some() && life.listed.is_none() && !is_change(stored, id);
            let is_right = match fates.contains(&Fate::Done) {
                true => told == Fate::Done || told == Fate::Nothing && is_clear(),
                // A carrier may have died before it wrote the refusal to the ledger, or a store failed
                // it behind the head: whoever handles the record again does not judge again.
                false => fates.contains(&told) || told != Fate::Refused && may_repeat(id),
            };
            if !is_right {
                return Err(format!("{id} is told as {told:?}, and it was {fates:?}"));
            }
        }
        Ok(())
    }
}

fn judge_registers_of(
    user: UserId,
    conversation: ConversationId,
    talk: &Talk,
    registers: &StoredRegisters,
) -> Result<(), String> {
    let (got, expected) = (registers.cleared, talk.cleared(user));
    if got != expected {
        return Err(format!(
            "{user} has {conversation} cleared up to {got}, the log says {expected}"
        ));
    }
    let (mut hidden, expected) = (registers.hidden.clone(), talk.hidden(user));
    hidden.sort_unstable();
    if !hidden.iter().eq(&expected) {
        return Err(format!(
            "{user} has {hidden:?} hidden in {conversation}, the log says {expected:?}"
        ));
    }
    let pinned = registers.is_pinned;
    match pinned == talk.pinned.get(&user).copied().unwrap_or_default() {
        true => Ok(()),
        false => Err(format!("{user} has {conversation} pinned: {pinned}")),
    }
}

/// True for the record of a change of a message.
fn is_change(stored: &StoredConversations, id: MessageId) -> bool {
    let mut changes = stored.values().flat_map(|stored| &stored.changes);
    changes.any(|(_, change)| *change == id)
}
