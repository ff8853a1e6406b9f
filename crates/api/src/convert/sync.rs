//! Sync: questions of a client about data on the server, and their pages.

use std::collections::BTreeMap;

use protocol::change::MessageMarks;
use protocol::frame::{
    ChangePage, CountSince, HiddenPage, HistoryPage, HistoryRange, ListPage, MessageStatus,
    MissedPage, PinPage, Summary, SyncAnswer, SyncPage, SyncQuery, SyncRequest, UnreadPage,
};
use protocol::history::RowStatus;
use protocol::{ConversationId, GroupId, MessageId, Placed, Refusal, Seq, Timestamp, UserId};

use super::group::{role, role_number};
use super::{
    STATUS_IDS_MAX, by_value, conversation, field, list, message_ids, optional_time, optional_user,
};
use super::{present, time_or_zero, within};
use crate::v1;
use crate::v1::history_query::Range;
use crate::v1::sync_page::Answer;
use crate::v1::sync_request::Query;

impl TryFrom<v1::SyncRequest> for SyncRequest {
    type Error = Refusal;

    fn try_from(wire: v1::SyncRequest) -> Result<Self, Refusal> {
        let query = match present(
            "sync.query (list, history, status, changes, members, readers, missed, unread, count, hidden, row, pins)",
            wire.query,
        )? {
            Query::List(list) => SyncQuery::List {
                since: Timestamp::from_millis(list.since),
                cursor: list.after.map(ConversationId::try_from).transpose()?,
            },
            Query::Row(row) => SyncQuery::Row {
                conversation: conversation(row.conversation)?,
            },
            Query::History(history) => SyncQuery::History {
                conversation: conversation(history.conversation)?,
                range: present("history.range (after, before)", history.range)?.into(),
                limit: history.limit,
            },
            Query::Status(status) => {
                within("status.msg_ids", status.msg_ids.len(), STATUS_IDS_MAX)?;
                SyncQuery::Status {
                    ids: message_ids("status.msg_ids", status.msg_ids)?,
                }
            }
            Query::Members(members) => SyncQuery::Members {
                group: field("members.group", GroupId::new(members.group))?,
                after: optional_user("members.after", members.after)?,
                limit: members.limit,
            },
            Query::Readers(readers) => SyncQuery::Readers {
                group: field("readers.group", GroupId::new(readers.group))?,
                seq: Seq(readers.seq),
            },
            Query::Changes(changes) => SyncQuery::Changes {
                conversation: conversation(changes.conversation)?,
                after: changes.after,
                limit: changes.limit,
            },
            Query::Missed(missed) => SyncQuery::Missed {
                after: match missed.after {
                    0 => None,
                    id => Some(field("missed.after", MessageId::new(id))?),
                },
                limit: missed.limit,
            },
            Query::Unread(unread) => SyncQuery::Unread {
                after: unread.after.map(ConversationId::try_from).transpose()?,
            },
            Query::Count(count) => SyncQuery::CountSince {
                group: field("count.group", GroupId::new(count.group))?,
                since: Timestamp::from_millis(count.since),
            },
            Query::Hidden(hidden) => SyncQuery::Hidden {
                conversation: conversation(hidden.conversation)?,
                after: hidden.after,
                limit: hidden.limit,
            },
            Query::Pins(pins) => SyncQuery::Pins {
                conversation: conversation(pins.conversation)?,
                before: (pins.before != 0).then_some(Seq(pins.before)),
                limit: pins.limit,
            },
        };
        Ok(SyncRequest {
            request: wire.request,
            query,
        })
    }
}

impl From<&SyncRequest> for v1::SyncRequest {
    fn from(request: &SyncRequest) -> Self {
        let query = match &request.query {
            SyncQuery::List {
                since,
                cursor: after,
            } => Query::List(v1::ListQuery {
                since: since.millis(),
                after: after.map(v1::Conversation::from),
            }),
            SyncQuery::Row { conversation } => Query::Row(v1::RowQuery {
                conversation: Some((*conversation).into()),
            }),
            SyncQuery::History {
                conversation,
                range,
                limit,
            } => Query::History(v1::HistoryQuery {
                conversation: Some((*conversation).into()),
                range: Some((*range).into()),
                limit: *limit,
            }),
            SyncQuery::Status { ids } => Query::Status(v1::StatusQuery {
                msg_ids: ids.iter().map(|id| id.get()).collect(),
            }),
            SyncQuery::Members {
                group,
                after,
                limit,
            } => Query::Members(v1::MemberQuery {
                group: group.get(),
                after: after.map_or(0, UserId::get),
                limit: *limit,
            }),
            SyncQuery::Readers { group, seq } => Query::Readers(v1::ReaderQuery {
                group: group.get(),
                seq: seq.0,
            }),
            SyncQuery::Changes {
                conversation,
                after,
                limit,
            } => Query::Changes(v1::ChangeQuery {
                conversation: Some((*conversation).into()),
                after: *after,
                limit: *limit,
            }),
            SyncQuery::Missed { after, limit } => Query::Missed(v1::MissedQuery {
                after: after.map_or(0, MessageId::get),
                limit: *limit,
            }),
            SyncQuery::Unread { after } => Query::Unread(v1::UnreadQuery {
                after: after.map(v1::Conversation::from),
            }),
            SyncQuery::CountSince { group, since } => Query::Count(v1::CountQuery {
                group: group.get(),
                since: since.millis(),
            }),
            SyncQuery::Hidden {
                conversation,
                after,
                limit,
            } => Query::Hidden(v1::HiddenQuery {
                conversation: Some((*conversation).into()),
                after: *after,
                limit: *limit,
            }),
            SyncQuery::Pins {
                conversation,
                before,
                limit,
            } => Query::Pins(v1::PinQuery {
                conversation: Some((*conversation).into()),
                // Nothing stands before 1, as nothing stands before 0, which is taken for "the newest".
                before: before.map_or(0, |before| before.0.max(1)),
                limit: *limit,
            }),
        };
        v1::SyncRequest {
            request: request.request,
            query: Some(query),
        }
    }
}

impl From<Range> for HistoryRange {
    fn from(wire: Range) -> Self {
        match wire {
            Range::After(after) => HistoryRange::Forward { after: Seq(after) },
            Range::Before(before) => HistoryRange::Backward {
                before: (before != 0).then_some(Seq(before)),
            },
        }
    }
}

impl From<HistoryRange> for Range {
    fn from(range: HistoryRange) -> Self {
        match range {
            HistoryRange::Forward { after } => Range::After(after.0),
            HistoryRange::Backward { before: None } => Range::Before(0),
            // Nothing stands before 1, as nothing stands before 0, which is taken for "the newest".
            HistoryRange::Backward { before: Some(seq) } => Range::Before(seq.0.max(1)),
        }
    }
}

impl TryFrom<v1::SyncPage> for SyncPage {
    type Error = Refusal;

    fn try_from(wire: v1::SyncPage) -> Result<Self, Refusal> {
        let answer = match present("page.answer", wire.answer)? {
            Answer::List(list) => SyncAnswer::List(list.try_into()?),
            Answer::Row(page) => {
                let row = page.row.map(Summary::try_from).transpose()?;
                SyncAnswer::Row(row.map(Box::new))
            }
            Answer::History(history) => SyncAnswer::History(history.try_into()?),
            Answer::Status(status) => {
                SyncAnswer::Status(list("page.statuses", status.statuses, usize::MAX)?)
            }
            Answer::Changes(changes) => SyncAnswer::Changes(changes.try_into()?),
            Answer::Members(members) => SyncAnswer::Members(members.try_into()?),
            Answer::Readers(readers) => {
                let users = readers.users.into_iter();
                let users = users.map(|user| field("readers.users", UserId::new(user)));
                SyncAnswer::Readers(users.collect::<Result<_, Refusal>>()?)
            }
            Answer::Missed(missed) => SyncAnswer::Missed(MissedPage {
                messages: list("page.messages", missed.messages, usize::MAX)?,
                more: missed.more,
            }),
            Answer::Unread(unread) => SyncAnswer::Unread(unread.try_into()?),
            Answer::Count(count) => SyncAnswer::CountSince(CountSince {
                count: count.count,
                more: count.more,
            }),
            Answer::Hidden(hidden) => SyncAnswer::Hidden(HiddenPage {
                seqs: hidden.seqs.into_iter().map(Seq).collect(),
                last: hidden.last,
                more: hidden.more,
            }),
            Answer::Pins(pins) => SyncAnswer::Pins(PinPage {
                messages: list("page.messages", pins.messages, usize::MAX)?,
                marks: parse_marks(pins.marked)?,
                next: (pins.next != 0).then_some(Seq(pins.next)),
                rev: pins.rev,
            }),
        };
        Ok(SyncPage {
            request: wire.request,
            answer,
        })
    }
}

impl From<&SyncPage> for v1::SyncPage {
    fn from(page: &SyncPage) -> Self {
        let answer = match &page.answer {
            SyncAnswer::List(list) => Answer::List(list.into()),
            SyncAnswer::Row(row) => Answer::Row(v1::RowPage {
                row: row.as_deref().map(v1::Summary::from),
            }),
            SyncAnswer::History(history) => Answer::History(history.into()),
            SyncAnswer::Status(statuses) => Answer::Status(v1::StatusPage {
                statuses: statuses.iter().map(|&status| status.into()).collect(),
            }),
            SyncAnswer::Changes(changes) => Answer::Changes(changes.into()),
            SyncAnswer::Members(members) => Answer::Members(members.into()),
            SyncAnswer::Readers(users) => Answer::Readers(v1::ReaderPage {
                users: users.iter().map(|user| user.get()).collect(),
            }),
            SyncAnswer::Missed(missed) => Answer::Missed(v1::MissedPage {
                messages: missed.messages.iter().map(v1::MsgChat::from).collect(),
                more: missed.more,
            }),
            SyncAnswer::Unread(unread) => Answer::Unread(unread.into()),
            SyncAnswer::CountSince(count) => Answer::Count(v1::CountPage {
                count: count.count,
                more: count.more,
            }),
            SyncAnswer::Hidden(hidden) => Answer::Hidden(v1::HiddenPage {
                seqs: hidden.seqs.iter().map(|seq| seq.0).collect(),
                last: hidden.last,
                more: hidden.more,
            }),
            SyncAnswer::Pins(pins) => Answer::Pins(v1::PinPage {
                messages: pins.messages.iter().map(v1::MsgChat::from).collect(),
                marked: wire_marks(&pins.marks),
                next: pins.next.map_or(0, |next| next.0),
                rev: pins.rev,
            }),
        };
        v1::SyncPage {
            request: page.request,
            answer: Some(answer),
        }
    }
}

impl TryFrom<v1::ListPage> for ListPage {
    type Error = Refusal;

    fn try_from(wire: v1::ListPage) -> Result<Self, Refusal> {
        Ok(ListPage {
            conversations: list("page.conversations", wire.conversations, usize::MAX)?,
            version: Timestamp::from_millis(wire.version),
            more: wire.more,
        })
    }
}

impl From<&ListPage> for v1::ListPage {
    fn from(page: &ListPage) -> Self {
        v1::ListPage {
            conversations: page.conversations.iter().map(v1::Summary::from).collect(),
            version: page.version.millis(),
            more: page.more,
        }
    }
}

impl TryFrom<v1::Summary> for Summary {
    type Error = Refusal;

    fn try_from(wire: v1::Summary) -> Result<Self, Refusal> {
        Ok(Summary {
            conversation: conversation(wire.conversation)?,
            seq: Seq(wire.seq),
            read_seq: Seq(wire.read_seq),
            version: Timestamp::from_millis(wire.version),
            newest: wire.newest.map(Placed::try_from).transpose()?,
            unread: wire.unread,
            arranged: wire.arranged.unwrap_or_default().into(),
            role: role(wire.role)?,
            incoming: wire.incoming,
            cleared_seq: Seq(wire.cleared_seq),
            rev: wire.rev,
            marks: wire.marks.map(MessageMarks::try_from).transpose()?,
            hidden: wire.hidden,
            is_large: wire.large,
        })
    }
}

impl From<&Summary> for v1::Summary {
    fn from(summary: &Summary) -> Self {
        v1::Summary {
            conversation: Some(summary.conversation.into()),
            seq: summary.seq.0,
            read_seq: summary.read_seq.0,
            version: summary.version.millis(),
            newest: summary.newest.as_ref().map(v1::MsgChat::from),
            unread: summary.unread,
            arranged: Some(summary.arranged.into()),
            role: role_number(summary.role),
            incoming: summary.incoming,
            cleared_seq: summary.cleared_seq.0,
            rev: summary.rev,
            marks: summary.marks.as_ref().map(v1::Marks::from),
            hidden: summary.hidden,
            large: summary.is_large,
        }
    }
}

impl v1::SyncPage {
    /// Private messages in an answer are the asker's copies (S0-34).
    #[must_use]
    pub fn owned_by(mut self, owner: UserId) -> v1::SyncPage {
        let messages: &mut dyn Iterator<Item = &mut v1::MsgChat> = match &mut self.answer {
            Some(Answer::History(page)) => &mut page.messages.iter_mut(),
            Some(Answer::Missed(page)) => &mut page.messages.iter_mut(),
            Some(Answer::Pins(page)) => &mut page.messages.iter_mut(),
            Some(Answer::List(page)) => {
                let rows = page.conversations.iter_mut();
                &mut rows.filter_map(|row| row.newest.as_mut())
            }
            Some(Answer::Row(page)) => {
                let rows = page.row.iter_mut();
                &mut rows.filter_map(|row| row.newest.as_mut())
            }
            _ => return self,
        };
        for message in messages.filter(|message| message.chat_type() == v1::ChatType::P2p) {
            message.user_id = owner.get();
        }
        self
    }
}

/// Message of a page with its status in fields 12, 14 and 15.
fn with_status(placed_message: &Placed, status: Option<&RowStatus>) -> v1::MsgChat {
    let message = v1::MsgChat::from(placed_message);
    let Some(status) = status else {
        return message;
    };
    let stage = match status {
        RowStatus { deleted: true, .. } => v1::ChatMsgStatus::Deleted,
        RowStatus {
            read_at: Some(_), ..
        } => v1::ChatMsgStatus::Read,
        RowStatus {
            delivered_at: Some(_),
            ..
        } => v1::ChatMsgStatus::Delivered,
        RowStatus { .. } => v1::ChatMsgStatus::Sent,
    };
    v1::MsgChat {
        status: stage.into(),
        recv_reply: time_or_zero(status.delivered_at),
        read_reply: time_or_zero(status.read_at),
        ..message
    }
}

fn status(wire: &v1::MsgChat) -> Option<(Seq, RowStatus)> {
    let status = RowStatus {
        delivered_at: optional_time(wire.recv_reply),
        read_at: optional_time(wire.read_reply),
        deleted: wire.status() == v1::ChatMsgStatus::Deleted,
    };
    (status != RowStatus::default()).then_some((Seq(wire.seq), status))
}

fn parse_marks(wire: Vec<v1::Marked>) -> Result<BTreeMap<Seq, MessageMarks>, Refusal> {
    let marks = wire.into_iter().map(|entry| {
        let marks = present("page.marked.marks", entry.marks)?;
        Ok((Seq(entry.seq), marks.try_into()?))
    });
    marks.collect()
}

fn wire_marks(marks: &BTreeMap<Seq, MessageMarks>) -> Vec<v1::Marked> {
    let wire_marks = marks.iter().map(|(seq, marks)| v1::Marked {
        seq: seq.0,
        marks: Some(marks.into()),
    });
    wire_marks.collect()
}

impl TryFrom<v1::HistoryPage> for HistoryPage {
    type Error = Refusal;

    fn try_from(wire: v1::HistoryPage) -> Result<Self, Refusal> {
        Ok(HistoryPage {
            statuses: wire.messages.iter().filter_map(status).collect(),
            conversation: conversation(wire.conversation)?,
            messages: list("page.messages", wire.messages, usize::MAX)?,
            last_seq: Seq(wire.last_seq),
            more: wire.more,
            marks: parse_marks(wire.marked)?,
            rev: wire.rev,
        })
    }
}

impl From<&HistoryPage> for v1::HistoryPage {
    fn from(page: &HistoryPage) -> Self {
        v1::HistoryPage {
            conversation: Some(page.conversation.into()),
            messages: (page.messages.iter())
                .map(|message| with_status(message, page.statuses.get(&message.position.seq)))
                .collect(),
            last_seq: page.last_seq.0,
            more: page.more,
            marked: wire_marks(&page.marks),
            rev: page.rev,
        }
    }
}

impl TryFrom<v1::UnreadPage> for UnreadPage {
    type Error = Refusal;

    fn try_from(wire: v1::UnreadPage) -> Result<Self, Refusal> {
        let counts = wire.counts.into_iter();
        Ok(UnreadPage {
            counts: counts
                .map(|count| Ok((conversation(count.conversation)?, count.unread)))
                .collect::<Result<_, Refusal>>()?,
            next: wire.next.map(ConversationId::try_from).transpose()?,
        })
    }
}

impl From<&UnreadPage> for v1::UnreadPage {
    fn from(page: &UnreadPage) -> Self {
        let counts = page.counts.iter();
        v1::UnreadPage {
            counts: counts
                .map(|(conversation, unread)| v1::UnreadCount {
                    conversation: Some((*conversation).into()),
                    unread: *unread,
                })
                .collect(),
            next: page.next.map(v1::Conversation::from),
        }
    }
}

impl TryFrom<v1::ChangePage> for ChangePage {
    type Error = Refusal;

    fn try_from(wire: v1::ChangePage) -> Result<Self, Refusal> {
        Ok(ChangePage {
            conversation: conversation(wire.conversation)?,
            changes: list("page.changes", wire.changes, usize::MAX)?,
            last_rev: wire.last_rev,
            more: wire.more,
        })
    }
}

impl From<&ChangePage> for v1::ChangePage {
    fn from(page: &ChangePage) -> Self {
        v1::ChangePage {
            conversation: Some(page.conversation.into()),
            changes: page.changes.iter().map(v1::Change::from).collect(),
            last_rev: page.last_rev,
            more: page.more,
        }
    }
}

impl TryFrom<v1::MessageStatus> for MessageStatus {
    type Error = Refusal;

    fn try_from(wire: v1::MessageStatus) -> Result<Self, Refusal> {
        Ok(MessageStatus {
            id: field("status.msg_id", MessageId::new(wire.msg_id))?,
            delivered_at: optional_time(wire.delivered_at),
            read_at: optional_time(wire.read_at),
            is_finished: wire.finished,
        })
    }
}

impl From<MessageStatus> for v1::MessageStatus {
    fn from(status: MessageStatus) -> Self {
        v1::MessageStatus {
            msg_id: status.id.get(),
            delivered_at: time_or_zero(status.delivered_at),
            read_at: time_or_zero(status.read_at),
            finished: status.is_finished,
        }
    }
}

by_value! {
    SyncRequest => v1::SyncRequest,
    SyncPage => v1::SyncPage,
}
