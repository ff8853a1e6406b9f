//! Messages: their position, by the rule of [`crate::conversation`].

use std::sync::Arc;

use super::draft::{Draft, DraftStep, HeadAfter, MessageDraft, Readers};
use super::facts::MissingFact;
use crate::conversation::{PlaceRuling, Placement};
use crate::group::{self, Audience, Group};
use crate::history::Version;
use crate::ledger::DeadReason;
use crate::record::{MessageTask, TaskRecord};
use crate::{ConversationId, Recipient, Seq};

impl<'a> Draft<'a> {
    pub(super) fn place(
        &mut self,
        record: &TaskRecord<'a>,
        task: &'a MessageTask,
        conversation: ConversationId,
    ) -> Result<DraftStep<'a>, MissingFact> {
        let message = &task.message;
        let (id, version) = (message.id, self.version(record));
        // All keys that can be named at once.
        let group = self.group(record, conversation);
        let head = self.head(conversation);
        let recipient = self.recipient(message.to);
        let first = if task.unsure {
            self.first_send(record, task, conversation)
        } else {
            Ok(None)
        };
        let (group, mut head) = (group?, head?);
        if let Some((first, position)) = first? {
            return Ok(DraftStep::Repeat { first, position });
        }
        let is_behind = group.is_some_and(|group| group.newest() > version);
        let mut row = None;
        let mut ruling = match head.place_in_group(version, id, is_behind) {
            Placement::New(position) => PlaceRuling::Place(position),
            Placement::Redelivery | Placement::CheckRow => {
                row = self.stored(conversation, message)?;
                // An old id without a row may be a first try that reached the log after its resend, now or
                // before this redelivery.
                if row.is_none()
                    && let Some((first, position)) = self.first_send(record, task, conversation)?
                {
                    return Ok(DraftStep::Repeat { first, position });
                }
                head.compare_in_group(version, row, is_behind)
            }
        };
        if ruling == PlaceRuling::PlacedLater {
            // Behind a writer that has gone on, the head of this one is old.
            let stored_head = self.stored_head(conversation)?;
            if stored_head.version > head.version {
                head = stored_head;
            }
            ruling = head.compare_in_group(version, row, is_behind);
        }
        if (row.is_none() || ruling == PlaceRuling::PlacedLater)
            && let ConversationId::Group(_) = conversation
            && let Some(refusal) = group::refusal(
                group.map(AsRef::as_ref),
                version,
                message.from,
                message.accepted_at,
            )
        {
            return Ok(DraftStep::Refused(refusal));
        }
        let kept_head = HeadAfter { head, moves: false };
        let (position, head, (version, sent_count)) = match (ruling, row) {
            (PlaceRuling::Place(position), _) => {
                let side = conversation.side_of(message.from);
                let moved_head = head.moved_by(version, id, side);
                let sent_count = side.map_or(0, |side| moved_head.sent_by(side));
                let head = HeadAfter {
                    head: moved_head,
                    moves: true,
                };
                (position, head, (version, sent_count))
            }
            (PlaceRuling::Keep(position), Some(row)) => (position, kept_head, (version, row.sent)),
            // A redriven letter that has its position: what follows was not done.
            (PlaceRuling::Repeat(position), Some(row)) if task.letter.is_some() => {
                (position, kept_head, (row.version, row.sent))
            }
            (PlaceRuling::Repeat(position), _) => {
                return Ok(DraftStep::Repeat {
                    first: id,
                    position,
                });
            }
            // An unsure copy whose first one was found is not here any more: it is another's row now.
            (PlaceRuling::Unplaced | PlaceRuling::PlacedLater | PlaceRuling::Keep(_), _) => {
                let error = "handled before, and refused a place".to_owned();
                return Ok(DraftStep::Dead(DeadReason::StoreRejected, error));
            }
            (PlaceRuling::Overtaken, _) => return Ok(DraftStep::Overtaken(conversation)),
        };
        let (readers, are_known) = self.readers(group, version, position.seq);
        // Handled before: a resend has no text that was taken back meanwhile.
        let (changed_content, is_recalled) = if head.moves {
            (None, false)
        } else {
            let overlay = self.overlay(conversation, position.seq, false)?;
            let changed_content = overlay.shown(&message.content);
            (Some(changed_content), overlay.recalled.is_some())
        };
        recipient.and(are_known)?;
        Ok(DraftStep::Placed(MessageDraft {
            position,
            version,
            sent_count,
            head,
            readers,
            changed_content,
            is_recalled,
        }))
    }

    /// Asks for the platforms of a receiver.
    fn recipient(&mut self, to: Recipient) -> Result<(), MissingFact> {
        match to {
            Recipient::User(to) => self.platforms(to).map(drop),
            Recipient::Group(_) => Ok(()),
        }
    }

    /// Readers of a message in a group, and whether the platforms of each are known.
    fn readers(
        &mut self,
        group: Option<&'a Arc<Group>>,
        version: Version,
        seq: Seq,
    ) -> (Readers, Result<(), MissingFact>) {
        let Some(group) = group else {
            return (Readers::NONE, Ok(()));
        };
        let audience = Audience::for_message(group.clone(), version, seq);
        let readers = Readers::of(audience, self.push_max);
        let mut are_known = Ok(());
        if let Readers::Few(readers) = &readers {
            for reader in readers {
                are_known = self.platforms(*reader).map(drop).and(are_known);
            }
        }
        (readers, are_known)
    }
}
