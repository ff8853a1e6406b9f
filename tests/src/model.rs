//! Model of the log: a plain count, record by record, that shares nothing with the rules it judges.

use std::collections::{BTreeMap, BTreeSet};

use protocol::change::{Authorship, ChangeKind, MessageMarks, Reaction};
use protocol::group::GroupCommand;
use protocol::message::Content;
use protocol::record::Work;
use protocol::{ConversationId, Message, MessageId, SendId, Seq, UserId};

use crate::app::{ChatMessage, nothing_of};
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
    said: Vec<ModelMessage>,
    sends: BTreeSet<(UserId, SendId)>,
    /// Changes that had an effect, in order.
    pub changes: Vec<MessageId>,
    /// Places of changes that died. The log does not know them.
    pub died: BTreeSet<u64>,
    pub cleared: BTreeMap<UserId, Seq>,
    pub pinned: BTreeMap<UserId, bool>,
    pub hidden: BTreeMap<UserId, BTreeSet<Seq>>,
    pub group: Option<Crowd>,
}

#[derive(Debug)]
struct ModelMessage {
    said: ChatMessage,
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
            ChangeKind::Arrange(arranged) => {
                talk.pinned.insert(message.from, arranged.pinned);
                Fate::Done
            }
            kind => match talk.may_change(conversation, message, subject()) {
                true => talk.change(message, subject(), kind),
                false => {
                    // A repeat may be recognised as such without being judged.
                    if talk.sends.contains(&(message.from, message.send_id)) {
                        self.fates
                            .entry(message.id)
                            .or_default()
                            .push(Fate::Nothing);
                    }
                    Fate::Refused
                }
            },
        };
        self.fates.entry(message.id).or_default().push(fate);
    }
}

impl Talk {
    fn say(&mut self, message: &Message) -> Fate {
        if !self.sends.insert((message.from, message.send_id)) {
            return Fate::Nothing;
        }
        let said = ChatMessage {
            seq: Seq(self.said.len() as u64 + 1),
            id: message.id,
            from: message.from,
            send_id: message.send_id,
            content: message.content.clone(),
            marks: MessageMarks::default(),
        };
        self.said.push(ModelMessage {
            said,
            reactions: BTreeMap::new(),
        });
        Fate::Done
    }

    fn change(&mut self, message: &Message, subject: MessageId, kind: &ChangeKind) -> Fate {
        let name = (message.from, message.send_id);
        if self.sends.contains(&name) {
            return Fate::Nothing;
        }
        let administers = self
            .group
            .as_ref()
            .is_some_and(|it| it.administers(message.from));
        let Some(told) = self.said.iter_mut().find(|told| told.said.id == subject) else {
            return Fate::Refused;
        };
        let may_pin = administers || self.group.is_none();
        let fate = match kind {
            ChangeKind::Pin { .. } if !may_pin => Fate::Refused,
            _ => told.change(message, kind, administers),
        };
        if fate == Fate::Done {
            self.sends.insert(name);
            self.changes.push(message.id);
        }
        fate
    }

    /// Lets a member say something; the members at that place in the log may read it.
    fn say_in_group(&mut self, message: &Message) -> Fate {
        let is_known = self.sends.contains(&(message.from, message.send_id));
        let is_in = self
            .group
            .as_ref()
            .is_some_and(|group| group.is_in(message.from));
        match (is_known, is_in) {
            (true, _) => Fate::Nothing,
            (false, false) => Fate::Refused,
            (false, true) => {
                let fate = self.say(message);
                let end = self.end();
                self.group.iter_mut().for_each(|group| group.hears(end));
                fate
            }
        }
    }

    fn command(&mut self, by: UserId, command: &GroupCommand) -> Fate {
        let end = self.end();
        match Crowd::command(&mut self.group, by, command, end) {
            true => Fate::Done,
            false => Fate::Refused,
        }
    }

    fn is_strange(&self, conversation: ConversationId, message: &Message) -> bool {
        let is_group = matches!(conversation, ConversationId::Group(_));
        let known = self.group.as_ref();
        is_group && !known.is_some_and(|group| group.ever_had(message.from))
    }

    /// True if the user may read the subject, and so may change it.
    fn may_change(
        &self,
        conversation: ConversationId,
        message: &Message,
        subject: MessageId,
    ) -> bool {
        let ConversationId::Group(_) = conversation else {
            return true;
        };
        let told = self.said.iter().find(|told| told.said.id == subject);
        let readable = self
            .group
            .as_ref()
            .and_then(|group| group.readable_after(message.from));
        told.zip(readable)
            .is_some_and(|(told, after)| told.said.seq > after)
    }

    /// Clears only up to the end: messages behind it were not seen.
    fn clear(&mut self, by: UserId, subject: MessageId) -> Fate {
        let Some(last) = self.said.last().filter(|told| told.said.id == subject) else {
            return Fate::Refused;
        };
        self.cleared.insert(by, last.said.seq);
        Fate::Done
    }

    fn hide(&mut self, by: UserId, subject: MessageId) -> Fate {
        let told = self.said.iter().find(|told| told.said.id == subject);
        let Some(told) = told else {
            return Fate::Refused;
        };
        match self.hidden.entry(by).or_default().insert(told.said.seq) {
            true => Fate::Done,
            false => Fate::Nothing,
        }
    }

    pub fn hidden(&self, user: UserId) -> BTreeSet<Seq> {
        self.hidden.get(&user).cloned().unwrap_or_default()
    }

    pub fn end(&self) -> Seq {
        Seq(self.said.len() as u64)
    }

    pub fn cleared(&self, user: UserId) -> Seq {
        self.cleared.get(&user).copied().unwrap_or_default()
    }

    /// View of any user who hid nothing.
    pub fn view(&self) -> Vec<ChatMessage> {
        self.said.iter().map(ModelMessage::now).collect()
    }

    /// View of this user.
    pub fn view_of(&self, user: UserId) -> Vec<ChatMessage> {
        let hidden = self.hidden(user);
        let mut view = self.view();
        let of_it = view.iter_mut().filter(|said| hidden.contains(&said.seq));
        of_it.for_each(ChatMessage::hide);
        view
    }

    /// Pinned messages that this user may read, newest first; `None` for a user who may read nothing.
    pub fn pins_of(&self, conversation: ConversationId, user: UserId) -> Option<Vec<ChatMessage>> {
        let floor = match conversation {
            ConversationId::Group(_) => self.group.as_ref()?.readable_after(user)?,
            _ => conversation.peer_of(user).map(|_| Seq::ZERO)?,
        };
        let mut pins = self.view_of(user);
        pins.retain(|said| said.seq > floor && said.marks.pinned.is_some());
        pins.reverse();
        Some(pins)
    }

    /// Counts unread messages one by one: others', behind the read and cleared positions, and not
    /// recalled.
    pub fn unread(&self, user: UserId, read: Seq) -> u64 {
        let since = self
            .group
            .as_ref()
            .map_or(Seq::ZERO, |group| group.since(user));
        let done = read.max(self.cleared(user)).max(since);
        let said = self.said.iter().map(|told| &told.said);
        let unread = said
            .filter(|said| said.from != user && said.seq > done && said.marks.recalled.is_none());
        unread.count() as u64
    }
}

impl ModelMessage {
    fn change(&mut self, message: &Message, kind: &ChangeKind, administers: bool) -> Fate {
        let ModelMessage { said, reactions } = self;
        let is_recalled = said.marks.recalled.is_some();
        let done = Some(Authorship {
            by: message.from,
            at: message.accepted_at,
        });
        match kind {
            ChangeKind::Recall | ChangeKind::Edit if message.from != said.from && !administers => {
                Fate::Refused
            }
            ChangeKind::Recall if is_recalled => Fate::Nothing,
            ChangeKind::Recall => {
                said.content = nothing_of(said.content.kind);
                said.marks.recalled = done;
                said.marks.pinned = None;
                reactions.clear();
                Fate::Done
            }
            _ if is_recalled => Fate::Refused,
            ChangeKind::Edit => {
                let content = Content {
                    change: None,
                    ..message.content.clone()
                };
                if said.content == content {
                    return Fate::Nothing;
                }
                said.content = content;
                said.marks.edited = done;
                Fate::Done
            }
            ChangeKind::React { reaction, on } => {
                let users = reactions.entry(reaction.clone()).or_default();
                let is_news = match on {
                    true => users.insert(message.from),
                    false => users.remove(&message.from),
                };
                match is_news {
                    true => Fate::Done,
                    false => Fate::Nothing,
                }
            }
            ChangeKind::Pin { on } if said.marks.pinned.is_some() == *on => Fate::Nothing,
            ChangeKind::Pin { on } => {
                said.marks.pinned = done.filter(|_| *on);
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
        let mut said = self.said.clone();
        said.marks.reactions = reactions.collect();
        said
    }
}
