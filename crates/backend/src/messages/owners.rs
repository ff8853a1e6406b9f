//! Requests by the kind of owner: users and groups have tables of their own.

use protocol::message_row::{CopySide, MessageRow, Owner};
use protocol::writer::SendKey;
use protocol::{ConversationId, GroupId, MessageId, Seq, UserId};

use super::SEAM;
use crate::{Error, Result};

/// Part of a request.
enum Item<U, G> {
    User(U),
    Group(G),
    /// Without an owner, and so without an answer.
    Nobody,
}

#[derive(Clone, Copy)]
enum Kind {
    User,
    Group,
    Nobody,
}

/// A request in two halves.
pub(super) struct Halves<U, G> {
    pub(super) user_items: Vec<U>,
    pub(super) group_items: Vec<G>,
    /// Order of the request.
    kinds: Vec<Kind>,
}

impl<U, G> FromIterator<Item<U, G>> for Halves<U, G> {
    fn from_iter<I: IntoIterator<Item = Item<U, G>>>(items: I) -> Halves<U, G> {
        let mut halves = Halves {
            user_items: Vec::new(),
            group_items: Vec::new(),
            kinds: Vec::new(),
        };
        for item in items {
            let kind = match item {
                Item::User(item) => {
                    halves.user_items.push(item);
                    Kind::User
                }
                Item::Group(item) => {
                    halves.group_items.push(item);
                    Kind::Group
                }
                Item::Nobody => Kind::Nobody,
            };
            halves.kinds.push(kind);
        }
        halves
    }
}

impl<U, G> Halves<U, G> {
    /// Merges the answers to both halves into the order of the request.
    pub(super) fn merge<A: Default>(&self, user_answers: Vec<A>, group_answers: Vec<A>) -> Vec<A> {
        let (mut user_answers, mut group_answers) =
            (user_answers.into_iter(), group_answers.into_iter());
        let answers = self.kinds.iter().map(|kind| match kind {
            Kind::User => user_answers.next().unwrap_or_default(),
            Kind::Group => group_answers.next().unwrap_or_default(),
            Kind::Nobody => A::default(),
        });
        answers.collect()
    }
}

pub(super) fn keys(
    keys: &[(Owner, MessageId)],
) -> Halves<(UserId, MessageId), (GroupId, MessageId)> {
    let item = |&(owner, id): &(Owner, MessageId)| match owner {
        Owner::User(user) => Item::User((user, id)),
        Owner::Group(group) => Item::Group((group, id)),
    };
    keys.iter().map(item).collect()
}

/// Positions, without those of conversations that are not the owner's.
pub(super) fn places(
    places: &[(Owner, ConversationId, Seq)],
) -> Halves<(UserId, ConversationId, Seq), (GroupId, Seq)> {
    let item = |&(owner, conversation, seq): &(Owner, ConversationId, Seq)| match owner {
        Owner::User(user) if conversation.peer_of(user).is_some() => {
            Item::User((user, conversation, seq))
        }
        Owner::Group(group) if conversation == ConversationId::Group(group) => {
            Item::Group((group, seq))
        }
        Owner::User(_) | Owner::Group(_) => Item::Nobody,
    };
    places.iter().map(item).collect()
}

/// Sends with their receivers, without those of senders who have no part in the conversation.
pub(super) fn sends(keys: &[SendKey]) -> Halves<(SendKey, UserId), (SendKey, GroupId)> {
    let item = |key: &SendKey| match key.conversation {
        ConversationId::Group(group) => Item::Group((*key, group)),
        ConversationId::Private { .. } | ConversationId::System(_) => {
            let peer = key.conversation.peer_of(key.from);
            peer.map_or(Item::Nobody, |peer| Item::User((*key, peer)))
        }
    };
    keys.iter().map(item).collect()
}

/// A user's copy of a private message.
pub(super) struct UserCopy {
    pub(super) owner: UserId,
    pub(super) peer: UserId,
    pub(super) side: CopySide,
    pub(super) row: MessageRow,
}

/// The row of a group's message.
pub(super) struct GroupMessage {
    pub(super) group: GroupId,
    pub(super) row: MessageRow,
}

/// Rows of users and of groups; `Conflict` if one is not of its owner's conversation.
pub(super) fn rows(rows: Vec<MessageRow>) -> Result<(Vec<UserCopy>, Vec<GroupMessage>)> {
    let (mut copies, mut messages) = (Vec::new(), Vec::new());
    for row in rows {
        match (row.owner, row.peer(), row.side) {
            (Owner::User(owner), Some(peer), Some(side)) => copies.push(UserCopy {
                owner,
                peer,
                side,
                row,
            }),
            (Owner::Group(group), _, None)
                if row.placed.conversation == ConversationId::Group(group) =>
            {
                messages.push(GroupMessage { group, row });
            }
            _ => return Err(Error::conflict(SEAM, "a row of another owner")),
        }
    }
    Ok((copies, messages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_come_in_the_order_of_the_request() {
        let user = |number| UserId::new(number).expect("positive");
        let group = GroupId::new(7).expect("positive");
        let (ours, theirs) = (
            ConversationId::private(user(1), user(2)).expect("two users"),
            ConversationId::private(user(2), user(3)).expect("two users"),
        );
        let group_conversation = ConversationId::Group(group);
        let request = [
            (Owner::Group(group), group_conversation, Seq(1)),
            (Owner::User(user(1)), ours, Seq(2)),
            (Owner::User(user(1)), theirs, Seq(3)),
            (Owner::Group(group), ours, Seq(4)),
            (Owner::User(user(1)), group_conversation, Seq(5)),
            (Owner::User(user(2)), ours, Seq(6)),
            (Owner::Group(group), group_conversation, Seq(7)),
        ];
        let halves = places(&request);
        assert_eq!(halves.group_items, [(group, Seq(1)), (group, Seq(7))]);
        let user_items = [(user(1), ours, Seq(2)), (user(2), ours, Seq(6))];
        assert_eq!(halves.user_items, user_items);
        let answers = halves.merge(vec![Some(2), Some(6)], vec![Some(1), Some(7)]);
        let expected = [Some(1), Some(2), None, None, None, Some(6), Some(7)];
        assert_eq!(answers, expected);
    }
}
