//! Receipts of a call: the registers that each of them moves, and the users to notify.

use std::collections::{BTreeMap, BTreeSet};

use super::{Receipt, ReceiptKind};
use crate::frame::{Ack, AckItem, Acked};
use crate::history::Direction;
use crate::message_row::StoredPlace;
use crate::{Code, ConversationId, GroupId, MessageId, Refusal, Seq, Timestamp, UserId};

/// Write to a register of a sender's row; registers only move forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatusWrite {
    /// Owner of the row: the sender.
    pub owner: UserId,
    pub id: MessageId,
    pub kind: ReceiptKind,
    pub at: Timestamp,
}

/// A receipt for the sender of a message, or for the reader's other devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiptNotice {
    pub to: UserId,
    pub receipt: Receipt,
}

/// Notices of one call of receipts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptNotices {
    pub recorded: Vec<ReceiptNotice>,
    /// Notices whose status write failed, or was too late, and may stand all the same: nobody else
    /// would push them, since a repeat of the receipt finds the status set.
    pub doubtful: Vec<ReceiptNotice>,
}

impl ReceiptNotices {
    pub fn recorded(notices: Vec<ReceiptNotice>) -> ReceiptNotices {
        ReceiptNotices {
            recorded: notices,
            doubtful: Vec::new(),
        }
    }

    pub fn doubtful(notices: Vec<ReceiptNotice>) -> ReceiptNotices {
        ReceiptNotices {
            recorded: Vec::new(),
            doubtful: notices,
        }
    }

    pub fn extend(&mut self, other: ReceiptNotices) {
        self.recorded.extend(other.recorded);
        self.doubtful.extend(other.doubtful);
    }

    pub fn len(&self) -> usize {
        self.recorded.len() + self.doubtful.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Messages that receipts are about, as the stores have them.
#[derive(Clone, Debug, Default)]
pub struct ReceiptFacts {
    /// Places of private messages in the rows of those who acknowledge them.
    pub places: BTreeMap<(UserId, MessageId), StoredPlace>,
    /// Messages of groups by their place.
    pub messages: BTreeMap<(GroupId, Seq), MessageId>,
    /// Places that no store could read: whether there is a message is unknown.
    pub unread_places: BTreeMap<(UserId, MessageId), Refusal>,
    pub unread_messages: BTreeMap<(GroupId, Seq), Refusal>,
    /// Users who may not acknowledge anything in a group, or of whom no store says that they may.
    pub refusals: BTreeMap<(GroupId, UserId), Refusal>,
}

/// Keys to be read for the receipts of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptNeeds {
    pub places: Vec<(UserId, MessageId)>,
    pub messages: BTreeMap<GroupId, BTreeSet<Seq>>,
    pub members: BTreeSet<(GroupId, UserId)>,
}

/// Moves of registers, gathered over a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiptMoves {
    pub statuses: Vec<StatusWrite>,
    pub received: BTreeMap<(UserId, ConversationId), Seq>,
    pub read: BTreeMap<(UserId, ConversationId), Seq>,
    /// Notice for the sender of each status, for the case that the status is new.
    notices: Vec<ReceiptNotice>,
    /// Notices to the reader's own devices: a message read on one is read on all.
    mirrors: BTreeMap<(UserId, ConversationId), Receipt>,
}

impl ReceiptNeeds {
    pub fn add(&mut self, user: UserId, ack: &Ack) {
        for item in &ack.items {
            match item.conversation {
                ConversationId::Group(group) => {
                    self.messages.entry(group).or_default().insert(item.seq);
                    self.members.insert((group, user));
                }
                ConversationId::Private { .. } | ConversationId::System(_) => {
                    self.places.push((user, item.id));
                }
            }
        }
    }
}

impl ReceiptFacts {
    /// A receipt counts only for what the user's own row says: this conversation, this place. In a
    /// group, for what stands at this place, if the user is a member; then there is nobody to
    /// notify (S0-61b).
    fn place(&self, user: UserId, ack: &AckItem) -> Result<Option<&StoredPlace>, Refusal> {
        let unknown = || {
            let text = "no such message at this place for this user";
            Refusal::new(Code::NotFound, text)
        };
        match ack.conversation {
            ConversationId::Group(group) => {
                if let Some(refusal) = self.refusals.get(&(group, user)) {
                    return Err(refusal.clone());
                }
                if let Some(refusal) = self.unread_messages.get(&(group, ack.seq)) {
                    return Err(refusal.clone());
                }
                match self.messages.get(&(group, ack.seq)) {
                    Some(id) if *id == ack.id => Ok(None),
                    Some(_) | None => Err(unknown()),
                }
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                if let Some(refusal) = self.unread_places.get(&(user, ack.id)) {
                    return Err(refusal.clone());
                }
                let place = self.places.get(&(user, ack.id)).filter(|place| {
                    let conversation = ConversationId::private(user, place.peer);
                    place.seq == ack.seq && conversation == Some(ack.conversation)
                });
                place.map(Some).ok_or_else(unknown)
            }
        }
    }
}

impl ReceiptMoves {
    /// Checks each receipt of a user against the message that it is about.
    pub fn judge(&mut self, user: UserId, ack: &Ack, facts: &ReceiptFacts, at: Timestamp) -> Acked {
        let kind = ack.kind;
        let mut answer = Acked {
            kind,
            ids: Vec::with_capacity(ack.items.len()),
            refusals: Vec::new(),
        };
        for item in &ack.items {
            let place = match facts.place(user, item) {
                Ok(place) => place,
                Err(refusal) => {
                    answer.refusals.push((item.id, refusal));
                    continue;
                }
            };
            answer.ids.push(item.id);
            let registers = match kind {
                ReceiptKind::Received => &mut self.received,
                ReceiptKind::Read => &mut self.read,
            };
            let key = (user, item.conversation);
            let register = registers.entry(key).or_insert(Seq::ZERO);
            *register = item.seq.max(*register);
            let receipt = Receipt {
                kind,
                conversation: item.conversation,
                id: item.id,
                seq: item.seq,
                by: user,
                at,
            };
            if kind == ReceiptKind::Read {
                let mirror = self.mirrors.entry(key).or_insert(receipt);
                if mirror.seq < receipt.seq {
                    *mirror = receipt;
                }
            }
            // The user's own message, on another device of theirs: there is nobody to notify.
            if let Some(place) = place.filter(|place| place.direction == Direction::In) {
                self.statuses.push(StatusWrite {
                    owner: place.peer,
                    id: item.id,
                    kind,
                    at,
                });
                self.notices.push(ReceiptNotice {
                    to: place.peer,
                    receipt,
                });
            }
        }
        answer
    }

    /// Notices of what was written: `new` says of each status whether it moved, `None` where nobody
    /// knows; `is_unrecorded` tells users whose reads did not get through. A status is new once: a
    /// repeat, after something else failed, does not make it new again.
    pub fn notices(
        self,
        new: &[Option<bool>],
        is_unrecorded: impl Fn(UserId) -> bool,
    ) -> ReceiptNotices {
        let mut notices = ReceiptNotices::default();
        for (notice, is_new) in self.notices.into_iter().zip(new) {
            match is_new {
                Some(true) => notices.recorded.push(notice),
                Some(false) => {}
                None => notices.doubtful.push(notice),
            }
        }
        let mirrors = self.mirrors.into_iter();
        let mirrors = mirrors.filter(|((to, _), _)| !is_unrecorded(*to));
        let mirrors = mirrors.map(|((to, _), receipt)| ReceiptNotice { to, receipt });
        notices.recorded.extend(mirrors);
        notices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn ack(kind: ReceiptKind, seqs: &[u64]) -> Ack {
        let items = seqs.iter().map(|&seq| AckItem {
            conversation: ConversationId::private(user(1), user(2)).expect("two"),
            id: MessageId::new(seq as i64).expect("positive"),
            seq: Seq(seq),
        });
        Ack {
            kind,
            items: items.collect(),
        }
    }

    /// Three messages from user 1, as user 2 has them.
    fn facts() -> ReceiptFacts {
        let places = (1..=3).map(|seq| {
            let place = StoredPlace {
                peer: user(1),
                direction: Direction::In,
                seq: Seq(seq),
                incoming_count: seq,
            };
            let id = MessageId::new(seq as i64).expect("positive");
            ((user(2), id), place)
        });
        ReceiptFacts {
            places: places.collect(),
            ..ReceiptFacts::default()
        }
    }

    #[test]
    fn a_receipt_counts_for_what_the_row_says() {
        let mut moves = ReceiptMoves::default();
        let mut acks = ack(ReceiptKind::Read, &[1, 3, 2, 4]);
        acks.items[2].seq = Seq(9);
        let answer = moves.judge(user(2), &acks, &facts(), Timestamp::ZERO);
        let refused_ids: Vec<_> = answer.refusals.iter().map(|(id, _)| id.get()).collect();
        assert_eq!((answer.ids.len(), refused_ids), (2, vec![2, 4]));
        let read: Vec<Seq> = moves.read.values().copied().collect();
        assert_eq!((read, moves.statuses.len()), (vec![Seq(3)], 2));
        assert!(moves.received.is_empty());
    }

    #[test]
    fn a_place_that_no_store_could_read_is_refused_by_itself() {
        let mut facts = facts();
        let refusal = Refusal::new(Code::Unavailable, "away");
        let id = MessageId::new(9).expect("positive");
        facts.unread_places.insert((user(2), id), refusal);
        let mut moves = ReceiptMoves::default();
        let acks = ack(ReceiptKind::Read, &[1, 9]);
        let answer = moves.judge(user(2), &acks, &facts, Timestamp::ZERO);
        assert_eq!(answer.ids.len(), 1);
        let codes: Vec<_> = answer
            .refusals
            .iter()
            .map(|(_, error)| error.code)
            .collect();
        assert_eq!(codes, [Code::Unavailable], "not: no such message");
    }

    #[test]
    fn only_what_is_new_and_recorded_is_told() {
        let judged_moves = || {
            let mut moves = ReceiptMoves::default();
            moves.judge(
                user(2),
                &ack(ReceiptKind::Read, &[1, 2]),
                &facts(),
                Timestamp::ZERO,
            );
            moves
        };
        let to = |notices: &[ReceiptNotice]| -> Vec<(i64, u64)> {
            let pairs = notices
                .iter()
                .map(|notice| (notice.to.get(), notice.receipt.seq.0));
            pairs.collect()
        };
        let recorded = judged_moves().notices(&[Some(false), Some(true)], |_| false);
        assert_eq!(to(&recorded.recorded), [(1, 2), (2, 2)]);
        assert!(recorded.doubtful.is_empty());
        let notices_of_unrecorded = judged_moves().notices(&[Some(true), Some(true)], |_| true);
        assert_eq!(to(&notices_of_unrecorded.recorded), [(1, 1), (1, 2)]);
        let unknown = judged_moves().notices(&[None, None], |_| true);
        assert_eq!(
            (to(&unknown.doubtful), unknown.recorded.len()),
            (vec![(1, 1), (1, 2)], 0)
        );
    }
}
