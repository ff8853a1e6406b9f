//! What the log comes to: a plain count, record by record, that shares nothing with the rules it judges.

use std::collections::{BTreeMap, BTreeSet};

use api::task::Work;
use protocol::change::{ChangeKind, Done, Marks, Reaction};
use protocol::keys::Topic;
use protocol::message::Content;
use protocol::{ConversationId, Message, MessageId, SendId, Seq, UserId};

use crate::app::{Said, nothing_of};
use crate::world::World;

#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) talks: BTreeMap<ConversationId, Talk>,
    /// What became of everything that stands for nothing itself, each time the log has it.
    pub(crate) fates: BTreeMap<MessageId, Vec<Fate>>,
}

/// One conversation.
#[derive(Debug, Default)]
pub(crate) struct Talk {
    said: Vec<Told>,
    sends: BTreeSet<(UserId, SendId)>,
    /// Those that changed something, in order.
    pub(crate) changes: Vec<MessageId>,
    pub(crate) cleared: BTreeMap<UserId, Seq>,
    pub(crate) pinned: BTreeMap<UserId, bool>,
}

#[derive(Debug)]
struct Told {
    said: Said,
    reactions: BTreeMap<Reaction, BTreeSet<UserId>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Done,
    /// It was so already.
    Nothing,
    Refused,
}

impl Model {
    /// Goes over the whole log.
    pub(crate) fn of(world: &World) -> Model {
        let mut model = Model::default();
        let log = world.disk.log.iter();
        let log = log.filter(|((topic, _), _)| *topic == Topic::Message);
        for record in log.flat_map(|(_, records)| records) {
            if let Work::Message(work) = &record.task.work {
                model.count(&work.message);
            }
        }
        model
    }

    fn count(&mut self, message: &Message) {
        let conversation = message.conversation().expect("two users");
        let talk = self.talks.entry(conversation).or_default();
        let Some(change) = message.content.change.as_deref() else {
            return talk.say(message);
        };
        let subject = change.subject.expect("of a message");
        let fate = match &change.kind {
            ChangeKind::Clear => talk.clear(message.from, subject),
            ChangeKind::Arrange(arranged) => {
                talk.pinned.insert(message.from, arranged.pinned);
                Fate::Done
            }
            kind => talk.change(message, subject, kind),
        };
        self.fates.entry(message.id).or_default().push(fate);
    }
}

impl Talk {
    fn say(&mut self, message: &Message) {
        if !self.sends.insert((message.from, message.send_id)) {
            return;
        }
        let said = Said {
            seq: Seq(self.said.len() as u64 + 1),
            id: message.id,
            from: message.from,
            send_id: message.send_id,
            content: message.content.clone(),
            marks: Marks::default(),
        };
        self.said.push(Told {
            said,
            reactions: BTreeMap::new(),
        });
    }

    fn change(&mut self, message: &Message, subject: MessageId, kind: &ChangeKind) -> Fate {
        let name = (message.from, message.send_id);
        if self.sends.contains(&name) {
            return Fate::Nothing;
        }
        let Some(told) = self.said.iter_mut().find(|told| told.said.id == subject) else {
            return Fate::Refused;
        };
        let fate = told.change(message, kind);
        if fate == Fate::Done {
            self.sends.insert(name);
            self.changes.push(message.id);
        }
        fate
    }

    /// Only up to the end: what came behind it was not seen.
    fn clear(&mut self, by: UserId, subject: MessageId) -> Fate {
        let Some(last) = self.said.last().filter(|told| told.said.id == subject) else {
            return Fate::Refused;
        };
        self.cleared.insert(by, last.said.seq);
        Fate::Done
    }

    pub(crate) fn end(&self) -> Seq {
        Seq(self.said.len() as u64)
    }

    pub(crate) fn cleared(&self, user: UserId) -> Seq {
        self.cleared.get(&user).copied().unwrap_or_default()
    }

    /// As everybody must see it.
    pub(crate) fn view(&self) -> Vec<Said> {
        self.said.iter().map(Told::now).collect()
    }

    /// Every message by itself: somebody else's, behind what was read and cleared, and not recalled.
    pub(crate) fn unread(&self, user: UserId, read: Seq) -> u64 {
        let done = read.max(self.cleared(user));
        let said = self.said.iter().map(|told| &told.said);
        let unread = said
            .filter(|said| said.from != user && said.seq > done && said.marks.recalled.is_none());
        unread.count() as u64
    }
}

impl Told {
    fn change(&mut self, message: &Message, kind: &ChangeKind) -> Fate {
        let Told { said, reactions } = self;
        let is_recalled = said.marks.recalled.is_some();
        let done = Some(Done {
            by: message.from,
            at: message.accepted_at,
        });
        match kind {
            ChangeKind::Recall | ChangeKind::Edit if message.from != said.from => Fate::Refused,
            ChangeKind::Recall if is_recalled => Fate::Nothing,
            ChangeKind::Recall => {
                said.content = nothing_of(said.content.kind);
                said.marks.recalled = done;
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
            ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Wish(_) => Fate::Refused,
        }
    }

    fn now(&self) -> Said {
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
