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
const MAX_ROWS: usize = 100_000;

/// Stored state of a conversation, beside its messages.
#[derive(Debug, Default)]
pub struct StoredConversation {
    /// Rev of each change, and its record, in order.
    pub changes: Vec<(u64, MessageId)>,
    /// Rev of each change that died, and its record.
    pub died: BTreeMap<u64, MessageId>,
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
    pub read_seq: Seq,
    pub cleared_seq: Seq,
    pub is_pinned: bool,
    /// In the order of hiding: a message that is there twice was hidden twice.
    pub hidden_seqs: Vec<Seq>,
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
        for id in conversations {
            let head = backends.heads.load(&[id]).await?[0].unwrap_or_default();
            let changes = backends.changes.since(id, 0, MAX_ROWS).await?.into_iter();
            let (dead_changes, changes): (Vec<_>, Vec<_>) =
                changes.partition(OrderedChange::has_died);
            let key = |change: &OrderedChange| (change.rev, change.asked.id);
            let mut conversation = StoredConversation {
                changes: changes.iter().map(key).collect(),
                died: dead_changes.iter().map(key).collect(),
                rev: head.rev,
                overlays: backends.changes.altered(id, Seq(1), head.seq).await?,
                ..StoredConversation::default()
            };
            if let ConversationId::Group(group) = id
                && backends.groups.infos(&[group]).await?[0].is_some()
            {
                let members = backends
                    .groups
                    .members(group, None, MAX_ROWS)
                    .await?
                    .into_iter();
                let members = members.map(|(user, member)| (user, (member.role, member.since)));
                conversation.members = members.collect();
            }
            let users: Vec<UserId> = match id {
                ConversationId::Private { low, high } => vec![low, high],
                _ => conversation.members.keys().copied().collect(),
            };
            for user in users {
                let registers = StoredRegisters::read(backends, user, id).await?;
                conversation.registers.insert(user, registers);
            }
            stored.insert(id, conversation);
        }
        Ok(stored)
    }
}

impl StoredRegisters {
    async fn read(
        backends: &Backends,
        user: UserId,
        conversation: ConversationId,
    ) -> backend::Result<StoredRegisters> {
        let lists = &backends.conversations;
        let registers = lists.registers(&[(user, conversation)]).await?[0];
        let hidden_rows = lists.hidden(user, conversation, 0, MAX_ROWS).await?;
        Ok(StoredRegisters {
            read_seq: registers.read_seq,
            cleared_seq: registers.cleared.seq,
            is_pinned: registers.arranged.pinned,
            hidden_seqs: hidden_rows.into_iter().map(|(_, seq)| seq).collect(),
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
            let (expected, no_conversation) = (&talk.changes, StoredConversation::default());
            let stored = stored.get(conversation).unwrap_or(&no_conversation);
            let (changes, rev) = (&stored.changes, stored.rev);
            let (revs, ids): (Vec<u64>, Vec<MessageId>) = changes.iter().copied().unzip();
            let dead_revs = &stored.died;
            let revs: BTreeSet<u64> = revs.into_iter().chain(dead_revs.keys().copied()).collect();
            let is_dense = revs.into_iter().eq(1..=rev) && changes.is_sorted();
            if !is_dense || ids != *expected {
                return Err(format!(
                    "{conversation} has changes {changes:?} up to {rev}, dead ones at {dead_revs:?}, the log asks for {expected:?}"
                ));
            }
        }
        let mut unexpected = stored
            .iter()
            .filter(|(id, stored)| !model.talks.contains_key(id) && !stored.changes.is_empty());
        match unexpected.next() {
            Some(id) => Err(format!("{id:?} are changes that nobody asked for")),
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
                let overlay = overlays.and_then(|by_seq| by_seq.get(&placed.position.seq));
                let marks = overlay.and_then(|overlay| Overlay::show(overlay, &mut placed));
                let chat_message = ChatMessage::of(&placed, marks);
                if chat_message != expected {
                    return Err(format!(
                        "history says {chat_message:?}, the log {expected:?}"
                    ));
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
            for (_, id, prev_id) in &rows {
                if *prev_id != prev {
                    return Err(format!("{id} does not follow the message before it"));
                }
                prev = Some(*id);
            }
            let rows: Vec<_> = rows.iter().map(|(seq, id, _)| (*seq, *id)).collect();
            let view = talk.view();
            let view: Vec<_> = view.iter().map(|view| (view.seq, view.id)).collect();
            if rows != view {
                return Err(format!(
                    "{conversation} has {rows:?}, the log says {view:?}"
                ));
            }
            let members = stored.get(conversation).map(|stored| &stored.members);
            let members = members.cloned().unwrap_or_default();
            let expected = talk.group.as_ref().map(Crowd::members).unwrap_or_default();
            if members != expected {
                return Err(format!(
                    "{number} has members {members:?}, the log says {expected:?}"
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
                let not_read = || format!("registers of {user} were not read");
                judge_user_registers(user, *conversation, talk, registers.ok_or_else(not_read)?)?;
            }
        }
        Ok(())
    }

    /// Checks that each read position on a device is registered, in private conversations.
    pub fn judge_reads(&self, stored: &StoredConversations) -> Result<(), String> {
        for device in &self.complete_devices {
            let private_conversations = device.snapshot.conversations.iter();
            let private_conversations =
                private_conversations.filter(|(id, _)| id.peer_of(device.user).is_some());
            for (conversation, saved) in private_conversations {
                let read_seq = saved.read.map_or(Seq::ZERO, |(seq, _)| seq);
                let stored = stored.get(conversation).and_then(|stored_conversation| {
                    stored_conversation.registers.get(&device.user)
                });
                if stored.map_or(Seq::ZERO, |registers| registers.read_seq) < read_seq {
                    return Err(format!(
                        "{} has read {read_seq}, and nobody knows",
                        device.name
                    ));
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
        for &id in self.judged_ids.difference(self.open_letters) {
            let fates = model.fates.get(&id);
            let fates = fates.ok_or_else(|| format!("{id} was accepted and is not in the log"))?;
            let entries = self.ledger.get(&id).map_or(&[][..], Vec::as_slice);
            let life = MessageLife::of(id, entries);
            let recorded_fate = match (
                &life.changed_list,
                life.change.as_ref().map(|change| &change.rev),
            ) {
                _ if life.place.is_some() => Fate::Done,
                _ if life.repeat_of.is_some() => Fate::Nothing,
                (Some(_), _) | (None, Some(Ok(Some(_)))) => Fate::Done,
                (None, Some(Ok(None))) => Fate::Nothing,
                (None, Some(Err(_))) => Fate::Refused,
                (None, None) if life.refusal.is_some() => Fate::Refused,
                (None, None) => return Err(format!("{id}: nobody knows what became of it")),
            };
            // A later clear may have gone further before this one was written down.
            let is_clear =
                || life.change.is_some() && life.changed_list.is_none() && !is_change(stored, id);
            let is_right = if fates.contains(&Fate::Done) {
                recorded_fate == Fate::Done || recorded_fate == Fate::Nothing && is_clear()
            } else {
                // A carrier may have died before it wrote the refusal to the ledger, or a store failed
                // it behind the head: whoever handles the record again does not judge again.
                fates.contains(&recorded_fate) || recorded_fate != Fate::Refused && may_repeat(id)
            };
            if !is_right {
                return Err(format!(
                    "{id} is told as {recorded_fate:?}, and it was {fates:?}"
                ));
            }
        }
        Ok(())
    }
}

fn judge_user_registers(
    user: UserId,
    conversation: ConversationId,
    talk: &Talk,
    registers: &StoredRegisters,
) -> Result<(), String> {
    let (cleared_seq, expected_cleared) = (registers.cleared_seq, talk.cleared(user));
    if cleared_seq != expected_cleared {
        return Err(format!(
            "{user} has {conversation} cleared up to {cleared_seq}, the log says {expected_cleared}"
        ));
    }
    let (mut hidden_seqs, expected_hidden) = (registers.hidden_seqs.clone(), talk.hidden(user));
    hidden_seqs.sort_unstable();
    if !hidden_seqs.iter().eq(&expected_hidden) {
        return Err(format!(
            "{user} has {hidden_seqs:?} hidden in {conversation}, the log says {expected_hidden:?}"
        ));
    }
    let is_pinned = registers.is_pinned;
    if is_pinned == talk.pins.get(&user).copied().unwrap_or_default() {
        Ok(())
    } else {
        Err(format!("{user} has {conversation} pinned: {is_pinned}"))
    }
}

/// True for the record of a change of a message.
fn is_change(conversations: &StoredConversations, id: MessageId) -> bool {
    let mut changes = conversations
        .values()
        .flat_map(|conversations| &conversations.changes);
    changes.any(|(_, change_id)| *change_id == id)
}
