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
    messages: Vec<ChatMessage>,
    changes: Vec<OrderedChange>,
    hidden_seqs: BTreeSet<Seq>,
    /// Position up to which nothing more comes.
    last_seq: Seq,
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

    fn change(&mut self, change: &OrderedChange) {
        change.asked.change.apply_to(&mut self.content);
        self.marks.apply(&change.asked);
    }

    /// Hides everything of the message but its position.
    pub fn hide(&mut self) {
        self.content = empty_content(self.content.kind);
        self.marks.hidden = true;
    }
}

/// Remains of a recalled message.
pub fn empty_content(kind: i32) -> Content {
    Content {
        kind,
        ..Content::text("")
    }
}

impl App {
    /// Shows a message. Returns a finding if that is wrong.
    pub fn show(&mut self, message: ShownMessage) -> Option<String> {
        let talk = self.talks.entry(message.placed.conversation).or_default();
        let expected = talk.last_seq.next();
        let chat_message = ChatMessage::of(&message.placed, message.marks);
        let seq = chat_message.seq;
        let is_leak = talk.hidden_seqs.contains(&seq) && !chat_message.content.data.is_empty();
        talk.messages.push(chat_message);
        talk.last_seq = seq;
        if seq == expected {
            is_leak.then(|| format!("shows what {seq} says, which is hidden"))
        } else {
            Some(format!("shows {seq} where {expected} is next"))
        }
    }

    /// Skips messages that will not be shown, since they are not for this user.
    pub fn skip(&mut self, conversation: ConversationId, from: Seq, to: Seq) -> Option<String> {
        let talk = self.talks.entry(conversation).or_default();
        let expected = talk.last_seq.next();
        talk.last_seq = to;
        let is_group = matches!(conversation, ConversationId::Group(_));
        (!is_group || from != expected)
            .then(|| format!("has a gap from {from} to {to}, where {expected} is next"))
    }

    /// Whether the message was shown, or left out.
    pub fn has(&self, conversation: ConversationId, seq: Seq) -> bool {
        let talk = self.talks.get(&conversation);
        talk.is_some_and(|talk| seq <= talk.last_seq)
    }

    /// Changes a shown message. Returns a finding if that is wrong.
    pub fn change(
        &mut self,
        conversation: ConversationId,
        ordered_change: OrderedChange,
    ) -> Option<String> {
        let talk = self.talks.entry(conversation).or_default();
        let (rev, seq) = (ordered_change.rev, ordered_change.seq);
        let last = talk.changes.last().map(|last| last.rev);
        // A member hears of changes to messages from before they joined.
        let is_group = matches!(conversation, ConversationId::Group(_));
        let is_known = talk.messages.iter().any(|message| message.seq == seq);
        let has_text = |change: &MessageChange| matches!(change, MessageChange::Edit(content) if !content.data.is_empty());
        let is_leak = talk.hidden_seqs.contains(&seq) && has_text(&ordered_change.asked.change);
        let has_effect = ordered_change.asked.change.has_effect();
        talk.changes.push(ordered_change);
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
        talk.hidden_seqs.extend(seqs);
    }

    /// Restarts the application with the state of the store.
    pub fn restart(&mut self, snapshot: &Snapshot) {
        for (conversation, talk) in &mut self.talks {
            let saved_row = snapshot.conversations.get(conversation);
            let saved_row = saved_row.copied().unwrap_or_default();
            talk.messages
                .retain(|message| message.seq <= saved_row.cursor.seq);
            talk.last_seq = saved_row.cursor.seq;
            talk.changes.retain(|change| change.rev <= saved_row.rev);
            talk.hidden_seqs = snapshot
                .hidden_seqs
                .get(conversation)
                .cloned()
                .unwrap_or_default();
        }
    }

    pub fn conversations(&self) -> impl Iterator<Item = ConversationId> {
        let talks = self.talks.iter();
        talks
            .filter_map(|(conversation, talk)| (!talk.messages.is_empty()).then_some(*conversation))
    }

    /// Messages as sent.
    pub fn said(&self, conversation: ConversationId) -> &[ChatMessage] {
        self.talks
            .get(&conversation)
            .map_or(&[], |talk| &talk.messages)
    }

    /// Messages as shown now.
    pub fn view(&self, conversation: ConversationId) -> Vec<ChatMessage> {
        let Some(talk) = self.talks.get(&conversation) else {
            return Vec::new();
        };
        let mut view = talk.messages.clone();
        for change in &talk.changes {
            let changed_messages = view.iter_mut().filter(|message| message.seq == change.seq);
            changed_messages.for_each(|message| message.change(change));
        }
        let hidden_messages = view
            .iter_mut()
            .filter(|message| talk.hidden_seqs.contains(&message.seq));
        hidden_messages.for_each(ChatMessage::hide);
        view
    }
}
