//! Changes of messages, as they are asked for, as they are told, and what they leave on a message.

use protocol::change::{
    Arranged, Asked, Change, ChangeKind, ChangeOf, Changed, Done, Marks, Reaction,
};
use protocol::frame::{ListDeed, ListWord};
use protocol::message::Content;
use protocol::{MessageId, Refusal, Seq, Timestamp, UserId};

use super::group::{role, role_number};
use super::message::{content, saying};
use super::{conversation, field, id_or_zero, invalid, optional_message, optional_time};
use super::{present, time_or_zero};
use crate::v1;
use crate::v1::change_of::Kind;
use crate::v1::list_word::Deed;

pub(super) fn change(wire: Option<v1::ChangeOf>) -> Result<Option<Box<ChangeOf>>, Refusal> {
    wire.map(|wire| Ok(Box::new(wire.try_into()?))).transpose()
}

fn reaction_of(text: &str) -> Result<Reaction, Refusal> {
    text.parse()
        .map_err(|error| invalid(format!("reaction: {error}")))
}

impl TryFrom<v1::ChangeOf> for ChangeOf {
    type Error = Refusal;

    fn try_from(wire: v1::ChangeOf) -> Result<Self, Refusal> {
        let kind = match present(
            "change.kind (recall, edit, reaction, clear, arrange, hide, wish)",
            wire.kind,
        )? {
            Kind::Recall(v1::Recall {}) => ChangeKind::Recall,
            Kind::Edit(v1::Edit {}) => ChangeKind::Edit,
            Kind::Reaction(reaction) => ChangeKind::React {
                reaction: reaction_of(&reaction.text)?,
                on: !reaction.off,
            },
            Kind::Clear(v1::Clear {}) => ChangeKind::Clear,
            Kind::Arrange(arrange) => ChangeKind::Arrange(arrange.into()),
            Kind::Hide(v1::Hide {}) => ChangeKind::Hide,
            Kind::Wish(wish) => ChangeKind::Wish(wish.try_into()?),
        };
        let subject = optional_message("change.msg_id", wire.msg_id)?;
        if subject.is_none() && !matches!(kind, ChangeKind::Wish(_)) {
            return Err(invalid("change.msg_id is 0: say which message is meant"));
        }
        Ok(ChangeOf { subject, kind })
    }
}

impl From<&ChangeOf> for v1::ChangeOf {
    fn from(change: &ChangeOf) -> Self {
        let kind = match &change.kind {
            ChangeKind::Recall => Kind::Recall(v1::Recall {}),
            ChangeKind::Edit => Kind::Edit(v1::Edit {}),
            ChangeKind::React { reaction, on } => Kind::Reaction(v1::Reaction {
                text: reaction.to_string(),
                off: !on,
            }),
            ChangeKind::Clear => Kind::Clear(v1::Clear {}),
            ChangeKind::Arrange(arranged) => Kind::Arrange((*arranged).into()),
            ChangeKind::Hide => Kind::Hide(v1::Hide {}),
            ChangeKind::Wish(wish) => Kind::Wish(wish.into()),
        };
        v1::ChangeOf {
            msg_id: id_or_zero(change.subject),
            kind: Some(kind),
        }
    }
}

impl From<v1::Arrange> for Arranged {
    fn from(wire: v1::Arrange) -> Self {
        Arranged {
            pinned: wire.pinned,
            muted_until: optional_time(wire.muted_until),
        }
    }
}

impl From<Arranged> for v1::Arrange {
    fn from(arranged: Arranged) -> Self {
        v1::Arrange {
            pinned: arranged.pinned,
            muted_until: time_or_zero(arranged.muted_until),
        }
    }
}

impl TryFrom<v1::ListWord> for ListWord {
    type Error = Refusal;

    fn try_from(wire: v1::ListWord) -> Result<Self, Refusal> {
        let deed = match present(
            "listed.deed (cleared_seq, arranged, member, hidden_seq)",
            wire.deed,
        )? {
            Deed::ClearedSeq(seq) => ListDeed::Cleared(Seq(seq)),
            Deed::Arranged(arranged) => ListDeed::Arranged(arranged.into()),
            Deed::Member(number) => ListDeed::Member(role(number)?),
            Deed::HiddenSeq(seq) => ListDeed::Hidden(Seq(seq)),
        };
        Ok(ListWord {
            id: field("listed.msg_id", MessageId::new(wire.msg_id))?,
            send_id: field("listed.send_id", wire.send_id.parse())?,
            conversation: conversation(wire.conversation)?,
            deed,
        })
    }
}

impl From<&ListWord> for v1::ListWord {
    fn from(word: &ListWord) -> Self {
        let deed = match word.deed {
            ListDeed::Cleared(seq) => Deed::ClearedSeq(seq.0),
            ListDeed::Arranged(arranged) => Deed::Arranged(arranged.into()),
            ListDeed::Member(role) => Deed::Member(role_number(role)),
            ListDeed::Hidden(seq) => Deed::HiddenSeq(seq.0),
        };
        v1::ListWord {
            msg_id: word.id.get(),
            send_id: word.send_id.to_string(),
            conversation: Some(word.conversation.into()),
            deed: Some(deed),
        }
    }
}

impl TryFrom<v1::Change> for Changed {
    type Error = Refusal;

    fn try_from(wire: v1::Change) -> Result<Self, Refusal> {
        let ChangeOf { subject, kind } = present("change.change", wire.change)?.try_into()?;
        let subject = present("change.change.msg_id", subject)?;
        let change = match kind {
            ChangeKind::Recall => Change::Recall,
            ChangeKind::Edit => Change::Edit(Content {
                change: None,
                ..content(present("change.content", wire.content)?)?
            }),
            ChangeKind::React { reaction, on } => Change::React { reaction, on },
            ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Hide | ChangeKind::Wish(_) => {
                return Err(invalid("a list is no message: it has no changes"));
            }
        };
        Ok(Changed {
            rev: wire.rev,
            seq: Seq(wire.seq),
            asked: Asked {
                id: field("change.change_id", MessageId::new(wire.change_id))?,
                send_id: field("change.send_id", wire.send_id.parse())?,
                subject,
                by: field("change.by", UserId::new(wire.by))?,
                at: Timestamp::from_millis(wire.at),
                change,
            },
        })
    }
}

impl From<&Changed> for v1::Change {
    fn from(changed: &Changed) -> Self {
        let asked = &changed.asked;
        let (kind, content) = match &asked.change {
            Change::Recall => (ChangeKind::Recall, None),
            Change::Edit(content) => (ChangeKind::Edit, Some(saying(content))),
            Change::React { reaction, on } => {
                let (reaction, on) = (reaction.clone(), *on);
                (ChangeKind::React { reaction, on }, None)
            }
        };
        let change = ChangeOf {
            subject: Some(asked.subject),
            kind,
        };
        v1::Change {
            rev: changed.rev,
            seq: changed.seq.0,
            change_id: asked.id.get(),
            send_id: asked.send_id.to_string(),
            by: asked.by.get(),
            at: asked.at.millis(),
            change: Some((&change).into()),
            content,
        }
    }
}

impl TryFrom<v1::Done> for Done {
    type Error = Refusal;

    fn try_from(wire: v1::Done) -> Result<Self, Refusal> {
        Ok(Done {
            by: field("done.by", UserId::new(wire.by))?,
            at: Timestamp::from_millis(wire.at),
        })
    }
}

impl From<Done> for v1::Done {
    fn from(done: Done) -> Self {
        v1::Done {
            by: done.by.get(),
            at: done.at.millis(),
        }
    }
}

impl TryFrom<v1::Marks> for Marks {
    type Error = Refusal;

    fn try_from(wire: v1::Marks) -> Result<Self, Refusal> {
        let reactions = wire.reactions.into_iter().map(|reactions| {
            let users = reactions.users.into_iter();
            let users = users.map(|user| field("reactions.users", UserId::new(user)));
            Ok((
                reaction_of(&reactions.text)?,
                users.collect::<Result<_, Refusal>>()?,
            ))
        });
        Ok(Marks {
            recalled: wire.recalled.map(Done::try_from).transpose()?,
            edited: wire.edited.map(Done::try_from).transpose()?,
            reactions: reactions.collect::<Result<_, Refusal>>()?,
            hidden: false,
        })
    }
}

impl From<&Marks> for v1::Marks {
    fn from(marks: &Marks) -> Self {
        let reactions = marks.reactions.iter().map(|(text, users)| v1::Reactions {
            text: text.to_string(),
            users: users.iter().map(|user| user.get()).collect(),
        });
        v1::Marks {
            recalled: marks.recalled.map(v1::Done::from),
            edited: marks.edited.map(v1::Done::from),
            reactions: reactions.collect(),
        }
    }
}
