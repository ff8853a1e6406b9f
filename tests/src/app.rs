//! An application's view: messages as sent, and their changes since. It shares the fate of the
//! device's store.

use std::collections::{BTreeMap, BTreeSet};

use client::core::{ShownMessage, Snapshot};
use protocol::change::{MessageChange, MessageMarks, OrderedChange};
use protocol::message::Content;
use protocol::{ConversationId, MessageId, Placed, SendId, Seq, UserId};

#[derive(Debug, Default)]
pub struct App {
    talks: BTreeMap<ConversationId, Talk>,
}

#[derive(Debug, Default)]
struct Talk {
    /// Messages in the order of arrival.
    said: Vec<ChatMessage>,
    changes: Vec<OrderedChange>,
    hidden: BTreeSet<Seq>,
    /// Position up to which nothing more comes.
    up_to: Seq,
}

/// Message as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChatMessage {
    pub seq: Seq,
    pub id: MessageId,
    pub from: UserId,
    pub send_id: SendId,
    pub content: Content,
    pub marks: MessageMarks,
}

impl ChatMessage {
    pub fn of(placed: &Placed, marks: Option<MessageMarks>) -> ChatMessage {
        let message = &placed.message;
        ChatMessage {
            seq: placed.position.seq,
            id: message.id,
            from: message.from,
            send_id: message.send_id,
            content: message.content.clone(),
            marks: marks.unwrap_or_default(),
        }
    }

    fn change(&mut self, changed: &OrderedChange) {
        changed.asked.change.apply_to(&mut self.content);
        self.marks.apply(&changed.asked);
    }

    /// Hides everything of the message but its position.
    pub fn hide(&mut self) {
        self.content = nothing_of(self.content.kind);
        self.marks.hidden = true;
    }
}

/// Remains of a recalled message.
pub fn nothing_of(kind: i32) -> Content {
    Content {
        kind,
        ..Content::text("")
    }
}

impl App {
    /// Shows a message. Returns a finding if that is wrong.
    pub fn show(&mut self, shown: ShownMessage) -> Option<String> {
        let talk = self.talks.entry(shown.placed.conversation).or_default();
        let expected = talk.up_to.next();
        let said = ChatMessage::of(&shown.placed, shown.marks);
        let seq = said.seq;
        let is_leak = talk.hidden.contains(&seq) && !said.content.data.is_empty();
        talk.said.push(said);
        talk.up_to = seq;
        match seq == expected {
            false => Some(format!("shows {seq} where {expected} is next")),
            true => is_leak.then(|| format!("shows what {seq} says, which is hidden")),
        }
    }

    /// Skips messages that will not be shown, since they are not for this user.
    pub fn skip(&mut self, conversation: ConversationId, from: Seq, to: Seq) -> Option<String> {
        let talk = self.talks.entry(conversation).or_default();
        let expected = talk.up_to.next();
        talk.up_to = to;
        let is_group = matches!(conversation, ConversationId::Group(_));
        (!is_group || from != expected)
            .then(|| format!("has a gap from {from} to {to}, where {expected} is next"))
    }

    /// True if the message was shown, or left out.
    pub fn has(&self, conversation: ConversationId, seq: Seq) -> bool {
        let talk = self.talks.get(&conversation);
        talk.is_some_and(|talk| seq <= talk.up_to)
    }

    /// Changes a shown message. Returns a finding if that is wrong.
    pub fn change(
        &mut self,
        conversation: ConversationId,
        changed: OrderedChange,
    ) -> Option<String> {
        let talk = self.talks.entry(conversation).or_default();
        let (rev, seq) = (changed.rev, changed.seq);
        let last = talk.changes.last().map(|last| last.rev);
        // A member hears of changes to messages from before they joined.
        let is_group = matches!(conversation, ConversationId::Group(_));
        let is_known = talk.said.iter().any(|said| said.seq == seq);
        let says = |change: &MessageChange| matches!(change, MessageChange::Edit(to) if !to.data.is_empty());
        let is_leak = talk.hidden.contains(&seq) && says(&changed.asked.change);
        let has_effect = changed.asked.change.has_effect();
        talk.changes.push(changed);
        match last {
            Some(last) if rev != last + 1 => Some(format!("is told of change {rev} after {last}")),
            _ if !is_known && !is_group && has_effect => {
                Some(format!("is told of change {rev} before message {seq}"))
            }
            _ if is_leak => Some(format!("is told what {seq} says, which is hidden")),
            _ => None,
        }
    }

    pub fn hide(&mut self, conversation: ConversationId, seqs: Vec<Seq>) {
        let talk = self.talks.entry(conversation).or_default();
        talk.hidden.extend(seqs);
    }

    /// Restarts the application with the state of the store.
    pub fn restart(&mut self, saved: &Snapshot) {
        for (conversation, talk) in &mut self.talks {
            let kept = saved.conversations.get(conversation);
            let kept = kept.copied().unwrap_or_default();
            talk.said.retain(|said| said.seq <= kept.cursor.seq);
            talk.up_to = kept.cursor.seq;
            talk.changes.retain(|changed| changed.rev <= kept.rev);
            talk.hidden = saved.hidden.get(conversation).cloned().unwrap_or_default();
        }
    }

    pub fn conversations(&self) -> impl Iterator<Item = ConversationId> {
        let talks = self.talks.iter();
        talks.filter_map(|(conversation, talk)| (!talk.said.is_empty()).then_some(*conversation))
    }

    /// Messages as sent.
    pub fn said(&self, conversation: ConversationId) -> &[ChatMessage] {
        self.talks.get(&conversation).map_or(&[], |talk| &talk.said)
    }

    /// Messages as shown now.
    pub fn view(&self, conversation: ConversationId) -> Vec<ChatMessage> {
        let Some(talk) = self.talks.get(&conversation) else {
            return Vec::new();
        };
        let mut view = talk.said.clone();
        for changed in &talk.changes {
            let of_it = view.iter_mut().filter(|said| said.seq == changed.seq);
            of_it.for_each(|said| said.change(changed));
        }
        let hidden = view
            .iter_mut()
            .filter(|said| talk.hidden.contains(&said.seq));
        hidden.for_each(ChatMessage::hide);
        view
    }
}
