//! View of a device, compared with the model of the log.

use protocol::frame::Summary;
use protocol::{ConversationId, Seq, UserId};

use crate::app::{App, ChatMessage};
use crate::crowd::Crowd;
use crate::model::Talk;

/// Device of a user, and its view.
#[derive(Clone, Copy, Debug)]
pub struct Screen<'a> {
    pub name: &'a str,
    pub user: UserId,
    pub app: &'a App,
    /// Whether its rows are from a list it requested when all was quiet. A member does not hear of
    /// changes to messages they may not read.
    pub is_listed: bool,
}

impl Screen<'_> {
    /// Checks that the device shows every message its user may read, with its changes. Messages
    /// that the user cleared before the device knew them are not fetched.
    pub fn check(&self, conversation: ConversationId, talk: &Talk) -> Result<(), String> {
        if let ConversationId::Group(_) = conversation {
            return self.check_group(conversation, talk);
        }
        if conversation.peer_of(self.user).is_none() {
            return Ok(());
        }
        let (view, expected) = (self.app.view(conversation), talk.user_view(self.user));
        let is_cleared = talk.cleared(self.user) >= talk.end();
        let is_part = is_cleared && ids(&expected).starts_with(&ids(&view));
        self.compare(conversation, &view, &expected, is_part)
    }

    fn check_group(&self, conversation: ConversationId, talk: &Talk) -> Result<(), String> {
        let view = self.app.view(conversation);
        let Some(crowd) = &talk.group else {
            return if view.is_empty() {
                Ok(())
            } else {
                Err(format!("{} shows {view:?} of no group", self.name))
            };
        };
        self.check_readable(conversation, crowd, &view)?;
        if !crowd.is_in(self.user) {
            return Ok(());
        }
        let joined_seq = crowd.since(self.user);
        let is_readable = |message: &ChatMessage| message.seq > joined_seq;
        let readable_view: Vec<ChatMessage> = view.into_iter().filter(is_readable).collect();
        let expected = talk.user_view(self.user);
        let expected: Vec<ChatMessage> = expected.into_iter().filter(is_readable).collect();
        let is_cleared = talk.cleared(self.user) >= talk.end();
        let is_part = is_cleared && readable_view.len() < expected.len();
        self.compare(conversation, &readable_view, &expected, is_part)
    }

    fn check_readable(
        &self,
        conversation: ConversationId,
        crowd: &Crowd,
        view: &[ChatMessage],
    ) -> Result<(), String> {
        let name = self.name;
        let mut last = Seq::ZERO;
        for message in view {
            if !crowd.may_have_heard(self.user, message.seq) {
                return Err(format!(
                    "{name} shows {message:?} of {conversation}, not theirs to read"
                ));
            }
            if message.seq <= last {
                return Err(format!("{name} shows {} after {last}", message.seq));
            }
            last = message.seq;
        }
        Ok(())
    }

    /// Checks that the list's row agrees with a count, given the server's `read`.
    pub fn check_row(
        &self,
        conversation: ConversationId,
        talk: &Talk,
        row: Option<&Summary>,
        read: Seq,
    ) -> Result<(), String> {
        let (user, name) = (self.user, self.name);
        let (end, cleared_seq) = (talk.end(), talk.cleared(user));
        let is_group = matches!(conversation, ConversationId::Group(_));
        let is_listed = end > cleared_seq || is_group && end == Seq::ZERO;
        if is_listed != row.is_some_and(Summary::is_on_list) {
            return Err(format!(
                "{name} lists {conversation}: {row:?}, cleared to {cleared_seq}"
            ));
        }
        let Some(row) = row.filter(|_| is_listed) else {
            return Ok(());
        };
        let crowd = talk.group.as_ref();
        // Messages from before they joined are not theirs to read.
        let read = read.max(crowd.map_or(Seq::ZERO, |crowd| crowd.since(user)));
        let is_pinned = talk.pins.get(&user).copied().unwrap_or_default();
        let floor = crowd.and_then(|crowd| crowd.readable_after(user));
        let last_message = talk.user_view(user).pop();
        let newest = (last_message.clone()).filter(|_| floor.is_none_or(|floor| end > floor));
        let shown_message = row.newest.as_ref().map(|newest| {
            let mut shown_message = ChatMessage::of(newest, row.marks.clone());
            // The row is stored as it came, and shown with hidden content removed.
            if talk.hidden(user).contains(&shown_message.seq) {
                shown_message.hide();
            }
            shown_message
        });
        let may_be_stale = crowd.is_some_and(|crowd| crowd.may_be_stale(user, end));
        let is_newest = shown_message == newest
            || may_be_stale && (shown_message.is_none() || shown_message == last_message);
        let last = (talk.changes.len() + talk.died.len()) as u64;
        // The death of a change moves no row of a list.
        let last_live = (0..=last).rev().find(|rev| !talk.died.contains(rev));
        let is_rev = match crowd {
            Some(_) if !self.is_listed => row.rev <= last,
            _ => (last_live.unwrap_or_default()..=last).contains(&row.rev),
        };
        let actual = (
            row.seq,
            is_rev,
            row.read_seq,
            row.unread,
            row.arranged.pinned,
        );
        let expected = (end, true, read, talk.unread(user, read), is_pinned);
        if actual != expected || !is_newest {
            return Err(format!(
                "{name} lists {conversation} as {actual:?} with {shown_message:?}, a count says {expected:?} with {newest:?}"
            ));
        }
        Ok(())
    }

    fn compare(
        &self,
        conversation: ConversationId,
        actual: &[ChatMessage],
        expected: &[ChatMessage],
        is_part: bool,
    ) -> Result<(), String> {
        let name = self.name;
        if actual == expected || is_part {
            Ok(())
        } else {
            Err(format!(
                "{name} shows {actual:?} of {conversation}, the log says {expected:?}"
            ))
        }
    }
}

fn ids(messages: &[ChatMessage]) -> Vec<(Seq, protocol::MessageId)> {
    messages
        .iter()
        .map(|messages| (messages.seq, messages.id))
        .collect()
}
