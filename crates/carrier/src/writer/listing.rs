//! What becomes of a record by which somebody changes what they see, and nobody else: taking a conversation from their
//! list, arranging it there, hiding a message.
//!
//! It takes no place, and moves no head: what decides is where it stands in the log among the messages, which is the
//! same whenever it is handled.

use api::task::MessageTask;
use backend::Error;
use protocol::change::{Arranged, ChangeKind, ChangeOf};
use protocol::conversation::{Around, Clearing, Seen, clear};
use protocol::delivery::{self, Task};
use protocol::frame::HistoryRange;
use protocol::history::Version;
use protocol::ledger::{DeadReason, Event};
use protocol::unread::Tally;
use protocol::{
    Code, ConversationId, MessageId, Placed, Position, Refusal, Seq, Timestamp, UserId,
};

use tokio::time::Instant;

use super::decide::{Before, Decided, told_task};
use super::{WriteFailure, Writer};
use crate::work::Read;

/// What is done to a list.
pub(super) struct Deed {
    owner: UserId,
    conversation: ConversationId,
    version: Version,
    what: What,
    /// The record as its sender's devices are told of it.
    placed: Placed,
}

#[derive(Clone, Copy)]
enum What {
    Clear(Tally),
    Arrange(Arranged),
    Hide(Seq),
}

impl Writer {
    pub(super) async fn list_deed(
        &self,
        read: &Read,
        task: &MessageTask,
        change: &ChangeOf,
        decided: &[Decided],
        before: &Before,
    ) -> Result<Decided, WriteFailure> {
        let Some(conversation) = task.message.conversation() else {
            let error = "it belongs to no conversation".to_owned();
            return Ok(Decided::Dead(DeadReason::Misplaced, error));
        };
        let Some(subject) = change.subject else {
            let error = "it names no message".to_owned();
            return Ok(Decided::Dead(DeadReason::StoreRejected, error));
        };
        let owner = task.message.from;
        if let ConversationId::Group(_) = conversation
            && !(before.group(conversation)).is_some_and(|group| group.members.contains(owner))
        {
            // Who left may still tidy up.
            let refusal = Refusal::new(Code::Forbidden, "you never were in this group");
            let refusal = Some(refusal);
            return Ok(self.unchanged(read, task, conversation, subject, refusal));
        }
        let what = match change.kind {
            ChangeKind::Arrange(arranged) => Some(What::Arrange(arranged)),
            ChangeKind::Hide => {
                let key = (conversation, owner, subject);
                let found = self.subject(key, decided, before).await?;
                let Some(found) = found else {
                    let text = "no such message in this conversation";
                    let refusal = Some(Refusal::new(Code::NotFound, text));
                    return Ok(self.unchanged(read, task, conversation, subject, refusal));
                };
                Some(What::Hide(found.seq()))
            }
            _ => match self
                .clearing(read, (conversation, owner, subject), decided, before)
                .await?
            {
                Clearing::Cleared(up_to) => Some(What::Clear(up_to)),
                Clearing::Nothing => None,
                Clearing::Expired => {
                    let text =
                        "a message came that this device had not seen: the conversation stays";
                    let refusal = Some(Refusal::new(Code::NotFound, text));
                    return Ok(self.unchanged(read, task, conversation, subject, refusal));
                }
            },
        };
        let Some(what) = what else {
            return Ok(self.unchanged(read, task, conversation, subject, None));
        };
        let seq = match what {
            What::Clear(up_to) => up_to.seq,
            What::Arrange(_) => Seq(1),
            What::Hide(seq) => seq,
        };
        let position = Position { seq, prev: None };
        Ok(Decided::Listed(Box::new(Deed {
            owner,
            conversation,
            version: self.version(read),
            what,
            placed: Placed {
                message: task.message.clone(),
                conversation,
                position,
            },
        })))
    }

    async fn clearing(
        &self,
        read: &Read,
        key: (ConversationId, UserId, MessageId),
        decided: &[Decided],
        before: &Before,
    ) -> Result<Clearing, WriteFailure> {
        let (conversation, owner, _) = key;
        let subject = self.subject(key, decided, before).await?;
        let Some(subject) = subject else {
            return Ok(Clearing::Expired);
        };
        let (seq, id) = (subject.seq(), subject.placed.message.id);
        let next = match behind(decided, conversation, seq) {
            Some(version) => Some(version),
            None => self.next(owner, conversation, seq).await?,
        };
        let keys = [(owner, conversation)];
        let listed = self.conversations.get(&keys);
        let listed = self.stores.within(listed).await?;
        let cleared = listed
            .into_iter()
            .next()
            .flatten()
            .map(|listed| listed.cleared);
        let seen = Seen { seq, id };
        let around = Around {
            seen: Some((id, subject.at)),
            next,
        };
        Ok(clear(
            self.version(read),
            seen,
            around,
            cleared.unwrap_or_default(),
        ))
    }

    /// Which record placed the message behind this place, if there is one.
    async fn next(
        &self,
        owner: UserId,
        conversation: ConversationId,
        after: Seq,
    ) -> Result<Option<Version>, WriteFailure> {
        let range = HistoryRange::Forward { after };
        if let ConversationId::Group(group) = conversation {
            let rows = self.group_history.conversation(group, range, 1);
            let rows = self.stores.within(rows).await?;
            return Ok(rows.first().map(|row| row.version));
        }
        let rows = self.history.conversation(owner, conversation, range, 1);
        let rows = self.stores.within(rows).await?;
        Ok(rows.first().map(|row| row.version))
    }

    pub(super) async fn do_deeds(&self, deeds: &[Deed], until: Instant) -> Result<(), Error> {
        let (mut cleared, mut arranged, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        for deed in deeds {
            let (owner, conversation) = (deed.owner, deed.conversation);
            match deed.what {
                What::Clear(up_to) => cleared.push((owner, conversation, up_to)),
                What::Arrange(how) => arranged.push((owner, conversation, deed.version, how)),
                What::Hide(seq) => hidden.push((owner, conversation, deed.version, seq)),
            }
        }
        // Each kind under a stamp of its own: one slow call makes none of the others late.
        let mut stamping = self.stamping(until);
        while !cleared.is_empty()
            && let Some(stamp) = stamping.next()?
        {
            let clears = self.conversations.set_cleared(cleared.clone(), stamp);
            self.stores.within(clears).await?;
        }
        let mut stamping = self.stamping(until);
        while !arranged.is_empty()
            && let Some(stamp) = stamping.next()?
        {
            let arranges = self.conversations.arrange(arranged.clone(), stamp);
            self.stores.within(arranges).await?;
        }
        let mut stamping = self.stamping(until);
        while !hidden.is_empty()
            && let Some(stamp) = stamping.next()?
        {
            let hides = self.conversations.hide(hidden.clone(), stamp);
            self.stores.within(hides).await?;
        }
        Ok(())
    }
}

/// The record of the message behind a position, where this batch placed it.
fn behind(decided: &[Decided], conversation: ConversationId, seq: Seq) -> Option<Version> {
    decided.iter().find_map(|decided| match decided {
        Decided::Placed { placement, .. } => {
            let placed = &placement.placed;
            let is_it = placed.conversation == conversation && placed.position.seq == seq.next();
            is_it.then(|| placement.rows.version())
        }
        _ => None,
    })
}

/// Told to all sessions of whoever did it.
pub(super) fn first_task(read: &Read, deed: &Deed, now: Timestamp) -> Task {
    let owed = vec![delivery::told(deed.owner)];
    let conversation = deed.conversation;
    told_task(
        read,
        &deed.placed,
        0,
        owed,
        Event::Listed { conversation },
        now,
    )
}
