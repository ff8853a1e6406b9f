//! Model of the log: a plain count, record by record, that shares nothing with the rules it judges.

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::{Authorship, ChangeKind, MessageMarks, Reaction};
use protocol::group::GroupCommand;
use protocol::message::Content;
use protocol::record::Work;
use protocol::{ConversationId, Message, MessageId, SendId, Seq, UserId};

use crate::app::{ChatMessage, empty_content};
use crate::crowd::Crowd;

#[derive(Debug, Default)]
pub struct Model {
    pub talks: BTreeMap<ConversationId, Talk>,
    /// Outcome of every record, once for each time that the log has it.
    pub fates: BTreeMap<MessageId, Vec<Fate>>,
}

/// One conversation.
#[derive(Debug, Default)]
pub struct Talk {
    messages: Vec<ModelMessage>,
    sends: BTreeSet<(UserId, SendId)>,
    /// Changes that had an effect, in order.
    pub changes: Vec<MessageId>,
    /// Places of changes that died. The log does not know them.
    pub died: BTreeSet<u64>,
    pub cleared_seqs: BTreeMap<UserId, Seq>,
    pub pins: BTreeMap<UserId, bool>,
    pub hidden_seqs: BTreeMap<UserId, BTreeSet<Seq>>,
    pub group: Option<Crowd>,
}

#[derive(Debug)]
struct ModelMessage {
    message: ChatMessage,
    reactions: BTreeMap<Reaction, BTreeSet<UserId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    /// No effect: a repeat, or the register had that value already.
    Nothing,
    Refused,
}

impl Model {
    /// Builds the model from the records of topic `message`, partition by partition in order.
    pub fn of<'a>(log: impl IntoIterator<Item = &'a Work>) -> Model {
        let mut model = Model::default();
        for work in log {
            if let Work::Message(work) = work {
                model.count(&work.message);
            }
        }
        model
    }

    fn count(&mut self, message: &Message) {
        let conversation = message.conversation().expect("two users");
        let talk = self.talks.entry(conversation).or_default();
        let Some(change) = message.content.change.as_deref() else {
            let fate = match conversation {
                ConversationId::Group(_) => talk.say_in_group(message),
                _ => talk.say(message),
            };
            self.fates.entry(message.id).or_default().push(fate);
            return;
        };
        let subject = || change.subject.expect("of a message");
        let fate = match &change.kind {
            ChangeKind::GroupCommand(command) => talk.command(message.from, command),
            ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Hide
                if talk.is_strange(conversation, message) =>
            {
                Fate::Refused
            }
            ChangeKind::Clear => talk.clear(message.from, subject()),
            ChangeKind::Hide => talk.hide(message.from, subject()),
            ChangeKind::Arrange(arrangement) => {
                talk.pins.insert(message.from, arrangement.pinned);
                Fate::Done
            }
            kind => {
                if talk.may_change(conversation, message, subject()) {
                    talk.change(message, subject(), kind)
                } else {
                    // A repeat may be recognised as such without being judged.
                    if talk.sends.contains(&(message.from, message.send_id)) {
                        self.fates
                            .entry(message.id)
                            .or_default()
                            .push(Fate::Nothing);
                    }
                    Fate::Refused
                }
            }
        };
        self.fates.entry(message.id).or_default().push(fate);
    }
}

impl Talk {
    fn say(&mut self, message: &Message) -> Fate {
        if !self.sends.insert((message.from, message.send_id)) {
            return Fate::Nothing;
        }
        let chat_message = ChatMessage {
            seq: Seq(self.messages.len() as u64 + 1),
            id: message.id,
            from: message.from,
            send_id: message.send_id,
            content: message.content.clone(),
            marks: MessageMarks::default(),
        };
        self.messages.push(ModelMessage {
            message: chat_message,
            reactions: BTreeMap::new(),
        });
        Fate::Done
    }

    fn change(&mut self, message: &Message, subject: MessageId, kind: &ChangeKind) -> Fate {
        let send_key = (message.from, message.send_id);
        if self.sends.contains(&send_key) {
            return Fate::Nothing;
        }
        let is_admin = self
            .group
            .as_ref()
            .is_some_and(|group| group.administers(message.from));
        let Some(subject_message) = self
            .messages
            .iter_mut()
            .find(|subject_message| subject_message.message.id == subject)
        else {
            return Fate::Refused;
        };
        let may_pin = is_admin || self.group.is_none();
        let is_mute = self
            .group
            .as_ref()
            .is_some_and(|group| !group.may_write(message.from, message.accepted_at));
        let fate = match kind {
            ChangeKind::Pin { .. } if !may_pin => Fate::Refused,
            kind if is_mute && kind.is_written() => Fate::Refused,
            _ => subject_message.change(message, kind, is_admin),
        };
        if fate == Fate::Done {
            self.sends.insert(send_key);
            self.changes.push(message.id);
        }
        fate
    }

    /// Lets a member say something; the members at that place in the log may read it.
    fn say_in_group(&mut self, message: &Message) -> Fate {
        let is_repeat = self.sends.contains(&(message.from, message.send_id));
        let may_write = self
            .group
            .as_ref()
            .is_some_and(|group| group.may_write(message.from, message.accepted_at));
        match (is_repeat, may_write) {
            (true, _) => Fate::Nothing,
            (false, false) => Fate::Refused,
            (false, true) => {
                let fate = self.say(message);
                let end = self.end();
                self.group.iter_mut().for_each(|group| group.extend_to(end));
                fate
            }
        }
    }

    fn command(&mut self, by: UserId, command: &GroupCommand) -> Fate {
        let end = self.end();
        if Crowd::command(&mut self.group, by, command, end) {
            Fate::Done
        } else {
            Fate::Refused
        }
    }

    fn is_strange(&self, conversation: ConversationId, message: &Message) -> bool {
        let is_group = matches!(conversation, ConversationId::Group(_));
        let crowd = self.group.as_ref();
        is_group && !crowd.is_some_and(|group| group.ever_had(message.from))
    }

    /// Whether the user may read the subject, and so may change it.
    fn may_change(
        &self,
        conversation: ConversationId,
        message: &Message,
        subject: MessageId,
    ) -> bool {
        let ConversationId::Group(_) = conversation else {
            return true;
        };
        let subject_message = self
            .messages
            .iter()
            .find(|subject_message| subject_message.message.id == subject);
        let reads_after = self
            .group
            .as_ref()
            .and_then(|group| group.readable_after(message.from));
        subject_message
            .zip(reads_after)
            .is_some_and(|(subject_message, floor)| subject_message.message.seq > floor)
    }

    /// Clears only up to the end: messages behind it were not seen.
    fn clear(&mut self, by: UserId, subject: MessageId) -> Fate {
        let Some(last) = self
            .messages
            .last()
            .filter(|message| message.message.id == subject)
        else {
            return Fate::Refused;
        };
        self.cleared_seqs.insert(by, last.message.seq);
        Fate::Done
    }

    fn hide(&mut self, by: UserId, subject: MessageId) -> Fate {
        let subject_message = self
            .messages
            .iter()
            .find(|subject_message| subject_message.message.id == subject);
        let Some(subject_message) = subject_message else {
            return Fate::Refused;
        };
        if self
            .hidden_seqs
            .entry(by)
            .or_default()
            .insert(subject_message.message.seq)
        {
            Fate::Done
        } else {
            Fate::Nothing
        }
    }

    pub fn hidden(&self, user: UserId) -> BTreeSet<Seq> {
        self.hidden_seqs.get(&user).cloned().unwrap_or_default()
    }

    pub fn end(&self) -> Seq {
        Seq(self.messages.len() as u64)
    }

    pub fn cleared(&self, user: UserId) -> Seq {
        self.cleared_seqs.get(&user).copied().unwrap_or_default()
    }

    /// View of any user who hid nothing.
    pub fn view(&self) -> Vec<ChatMessage> {
        self.messages.iter().map(ModelMessage::now).collect()
    }

    /// View of this user.
    pub fn user_view(&self, user: UserId) -> Vec<ChatMessage> {
        let hidden_seqs = self.hidden(user);
        let mut view = self.view();
        let hidden_messages = view
            .iter_mut()
            .filter(|message| hidden_seqs.contains(&message.seq));
        hidden_messages.for_each(ChatMessage::hide);
        view
    }

    /// Pinned messages that this user may read, newest first; `None` for a user who may read nothing.
    pub fn user_pins(
        &self,
        conversation: ConversationId,
        user: UserId,
    ) -> Option<Vec<ChatMessage>> {
        let floor = match conversation {
            ConversationId::Group(_) => self.group.as_ref()?.readable_after(user)?,
            _ => conversation.peer_of(user).map(|_| Seq::ZERO)?,
        };
        let mut pins = self.user_view(user);
        pins.retain(|message| message.seq > floor && message.marks.pinned.is_some());
        pins.reverse();
        Some(pins)
    }

    /// Counts unread messages one by one: others', behind the read and cleared positions, and not
    /// recalled.
    pub fn unread(&self, user: UserId, read: Seq) -> u64 {
        let joined_seq = self
            .group
            .as_ref()
            .map_or(Seq::ZERO, |group| group.since(user));
        let base = read.max(self.cleared(user)).max(joined_seq);
        let messages = self.messages.iter().map(|message| &message.message);
        let unread = messages.filter(|message| {
            message.from != user && message.seq > base && message.marks.recalled.is_none()
        });
        unread.count() as u64
    }
}

impl ModelMessage {
    fn change(&mut self, change_message: &Message, kind: &ChangeKind, is_admin: bool) -> Fate {
        let ModelMessage { message, reactions } = self;
        let is_recalled = message.marks.recalled.is_some();
        let authorship = Some(Authorship {
            by: change_message.from,
            at: change_message.accepted_at,
        });
        match kind {
            ChangeKind::Recall | ChangeKind::Edit
                if change_message.from != message.from && !is_admin =>
            {
                Fate::Refused
            }
            ChangeKind::Recall if is_recalled => Fate::Nothing,
            ChangeKind::Recall => {
                message.content = empty_content(message.content.kind);
                message.marks.recalled = authorship;
                message.marks.pinned = None;
                reactions.clear();
                Fate::Done
            }
            _ if is_recalled => Fate::Refused,
            ChangeKind::Edit => {
                let content = Content {
                    change: None,
                    ..change_message.content.clone()
                };
                if message.content == content {
                    return Fate::Nothing;
                }
                message.content = content;
                message.marks.edited = authorship;
                Fate::Done
            }
            ChangeKind::React { reaction, on } => {
                let users = reactions.entry(reaction.clone()).or_default();
                let is_new = if *on {
                    users.insert(change_message.from)
                } else {
                    users.remove(&change_message.from)
                };
                if is_new { Fate::Done } else { Fate::Nothing }
            }
            ChangeKind::Pin { on } if message.marks.pinned.is_some() == *on => Fate::Nothing,
            ChangeKind::Pin { on } => {
                message.marks.pinned = authorship.filter(|_| *on);
                Fate::Done
            }
            ChangeKind::Clear
            | ChangeKind::Arrange(_)
            | ChangeKind::Hide
            | ChangeKind::GroupCommand(_) => Fate::Refused,
        }
    }

    fn now(&self) -> ChatMessage {
        let reactions = self.reactions.iter().filter(|(_, users)| !users.is_empty());
        let reactions = reactions.map(|(reaction, users)| {
            let users = users.iter().copied().collect();
            (reaction.clone(), users)
        });
        let mut message = self.message.clone();
        message.marks.reactions = reactions.collect();
        message
    }
}
