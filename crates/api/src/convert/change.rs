//! Changes of messages, as they are asked for, as they are delivered, and their marks on a message.

use protocol::change::{
    Authorship, ChangeKind, ChangeOf, ChangeRequest, ListArrangement, MessageChange, MessageMarks,
    OrderedChange, Reaction,
};
use protocol::frame::{ListEvent, ListEventKind};
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

fn parse_reaction(text: &str) -> Result<Reaction, Refusal> {
    text.parse()
        .map_err(|error| invalid(format!("reaction: {error}")))
}

impl TryFrom<v1::ChangeOf> for ChangeOf {
    type Error = Refusal;

    fn try_from(wire: v1::ChangeOf) -> Result<Self, Refusal> {
        let kind = match present(
            "change.kind (recall, edit, reaction, clear, arrange, hide, wish, pin)",
            wire.kind,
        )? {
            Kind::Recall(v1::Recall {}) => ChangeKind::Recall,
            Kind::Edit(v1::Edit {}) => ChangeKind::Edit,
            Kind::Reaction(reaction) => ChangeKind::React {
                reaction: parse_reaction(&reaction.text)?,
                on: !reaction.off,
            },
            Kind::Clear(v1::Clear {}) => ChangeKind::Clear,
            Kind::Arrange(arrange) => ChangeKind::Arrange(arrange.into()),
            Kind::Hide(v1::Hide {}) => ChangeKind::Hide,
            Kind::Wish(command) => ChangeKind::GroupCommand(command.try_into()?),
            Kind::Pin(pin) => ChangeKind::Pin { on: !pin.off },
        };
        let subject = optional_message("change.msg_id", wire.msg_id)?;
        if subject.is_none() && !matches!(kind, ChangeKind::GroupCommand(_)) {
            return Err(invalid("change.msg_id is 0: say which message is meant"));
        }
        Ok(ChangeOf { subject, kind })
    }
}

impl From<&ChangeOf> for v1::ChangeOf {
    fn from(change: &ChangeOf) -> Self {
        v1::ChangeOf {
            msg_id: id_or_zero(change.subject),
            kind: Some((&change.kind).into()),
        }
    }
}

impl From<&ChangeKind> for Kind {
    fn from(kind: &ChangeKind) -> Self {
        match kind {
            ChangeKind::Recall => Kind::Recall(v1::Recall {}),
            ChangeKind::Edit => Kind::Edit(v1::Edit {}),
            ChangeKind::React { reaction, on } => Kind::Reaction(v1::Reaction {
                text: reaction.to_string(),
                off: !on,
            }),
            ChangeKind::Clear => Kind::Clear(v1::Clear {}),
            ChangeKind::Arrange(arrangement) => Kind::Arrange((*arrangement).into()),
            ChangeKind::Hide => Kind::Hide(v1::Hide {}),
            ChangeKind::GroupCommand(command) => Kind::Wish(command.into()),
            ChangeKind::Pin { on } => Kind::Pin(v1::Pin { off: !on }),
        }
    }
}

impl From<v1::Arrange> for ListArrangement {
    fn from(wire: v1::Arrange) -> Self {
        ListArrangement {
            pinned: wire.pinned,
            muted_until: optional_time(wire.muted_until),
        }
    }
}

impl From<ListArrangement> for v1::Arrange {
    fn from(arrangement: ListArrangement) -> Self {
        v1::Arrange {
            pinned: arrangement.pinned,
            muted_until: time_or_zero(arrangement.muted_until),
        }
    }
}

impl TryFrom<v1::ListWord> for ListEvent {
    type Error = Refusal;

    fn try_from(wire: v1::ListWord) -> Result<Self, Refusal> {
        let kind = match present(
            "listed.deed (cleared_seq, arranged, member, hidden_seq)",
            wire.deed,
        )? {
            Deed::ClearedSeq(seq) => ListEventKind::Cleared(Seq(seq)),
            Deed::Arranged(arrangement) => ListEventKind::Arranged(arrangement.into()),
            Deed::Member(number) => ListEventKind::Member(role(number)?),
            Deed::HiddenSeq(seq) => ListEventKind::Hidden(Seq(seq)),
        };
        Ok(ListEvent {
            id: field("listed.msg_id", MessageId::new(wire.msg_id))?,
            send_id: field("listed.send_id", wire.send_id.parse())?,
            conversation: conversation(wire.conversation)?,
            kind,
        })
    }
}

impl From<&ListEvent> for v1::ListWord {
    fn from(event: &ListEvent) -> Self {
        let deed = match event.kind {
            ListEventKind::Cleared(seq) => Deed::ClearedSeq(seq.0),
            ListEventKind::Arranged(arrangement) => Deed::Arranged(arrangement.into()),
            ListEventKind::Member(role) => Deed::Member(role_number(role)),
            ListEventKind::Hidden(seq) => Deed::HiddenSeq(seq.0),
        };
        v1::ListWord {
            msg_id: event.id.get(),
            send_id: event.send_id.to_string(),
            conversation: Some(event.conversation.into()),
            deed: Some(deed),
        }
    }
}

fn message_change(
    change_of: &ChangeOf,
    chat: Option<v1::MsgChat>,
) -> Result<MessageChange, Refusal> {
    let text = if change_of.kind.has_text() {
        content(present("change.content", chat)?)?
    } else {
        Content::text("")
    };
    let change = change_of.kind.message_change(&text);
    change.ok_or_else(|| invalid("a list is not a message and has no changes"))
}

impl TryFrom<v1::Change> for OrderedChange {
    type Error = Refusal;

    fn try_from(wire: v1::Change) -> Result<Self, Refusal> {
        let wire_change = present("change.change", wire.change)?;
        let subject = optional_message("change.change.msg_id", wire_change.msg_id)?;
        let subject = present("change.change.msg_id", subject)?;
        let change = if wire_change.kind.is_some() {
            message_change(&ChangeOf::try_from(wire_change)?, wire.content)?
        } else {
            // A kind of a later version. Refused, it would come again on each connection.
            MessageChange::Unknown
        };
        Ok(OrderedChange {
            rev: wire.rev,
            seq: Seq(wire.seq),
            asked: ChangeRequest {
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

impl From<&OrderedChange> for v1::Change {
    fn from(ordered_change: &OrderedChange) -> Self {
        let request = &ordered_change.asked;
        let (kind, content) = match &request.change {
            MessageChange::Recall => (Some(ChangeKind::Recall), None),
            MessageChange::Edit(content) => (Some(ChangeKind::Edit), Some(saying(content))),
            MessageChange::React { reaction, on } => {
                let (reaction, on) = (reaction.clone(), *on);
                (Some(ChangeKind::React { reaction, on }), None)
            }
            MessageChange::Pin { on } => (Some(ChangeKind::Pin { on: *on }), None),
            // Of a later version, or dead: it uses its rev.
            MessageChange::Unknown | MessageChange::Died => (None, None),
        };
        let change = v1::ChangeOf {
            msg_id: request.subject.get(),
            kind: kind.as_ref().map(Kind::from),
        };
        v1::Change {
            rev: ordered_change.rev,
            seq: ordered_change.seq.0,
            change_id: request.id.get(),
            send_id: request.send_id.to_string(),
            by: request.by.get(),
            at: request.at.millis(),
            change: Some(change),
            content,
        }
    }
}

impl TryFrom<v1::Done> for Authorship {
    type Error = Refusal;

    fn try_from(wire: v1::Done) -> Result<Self, Refusal> {
        Ok(Authorship {
            by: field("done.by", UserId::new(wire.by))?,
            at: Timestamp::from_millis(wire.at),
        })
    }
}

impl From<Authorship> for v1::Done {
    fn from(authorship: Authorship) -> Self {
        v1::Done {
            by: authorship.by.get(),
            at: authorship.at.millis(),
        }
    }
}

impl TryFrom<v1::Marks> for MessageMarks {
    type Error = Refusal;

    fn try_from(wire: v1::Marks) -> Result<Self, Refusal> {
        let reactions = wire.reactions.into_iter().map(|reaction| {
            let users = reaction.users.into_iter();
            let users = users.map(|user| field("reactions.users", UserId::new(user)));
            Ok((
                parse_reaction(&reaction.text)?,
                users.collect::<Result<_, Refusal>>()?,
            ))
        });
        Ok(MessageMarks {
            recalled: wire.recalled.map(Authorship::try_from).transpose()?,
            edited: wire.edited.map(Authorship::try_from).transpose()?,
            reactions: reactions.collect::<Result<_, Refusal>>()?,
            pinned: wire.pinned.map(Authorship::try_from).transpose()?,
            hidden: false,
        })
    }
}

impl From<&MessageMarks> for v1::Marks {
    fn from(marks: &MessageMarks) -> Self {
        let reactions = marks.reactions.iter().map(|(text, users)| v1::Reactions {
            text: text.to_string(),
            users: users.iter().map(|user| user.get()).collect(),
        });
        v1::Marks {
            recalled: marks.recalled.map(v1::Done::from),
            edited: marks.edited.map(v1::Done::from),
            reactions: reactions.collect(),
            pinned: marks.pinned.map(v1::Done::from),
        }
    }
}
