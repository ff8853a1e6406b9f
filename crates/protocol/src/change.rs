//! Changes of messages that stand: recall, edit, reactions.
//!
//! A change is a record of the conversation's own log. Its single writer judges it against the message as it
//! stands, and gives it a place of its own, *rev*: dense, and apart from the positions of messages. So all
//! devices see the same changes in the same order, also those that come later.
//!
//! ```text
//! head.place_change(record)
//!     New(rev)     => judge(asked, subject, …)   Change: write it there · Nothing, refusal: no place is used
//!     Redelivery   => the change row that this record wrote, if it wrote one
//! ```
//!
//! The order of effects is change row and message row → head → conversation rows → commit. A crash between
//! any two brings the record back. What it had half done must not look like somebody else's work (*recalled
//! already: nothing to do*), or the change would never get its place: so every register bears the version of
//! the record that wrote it, and a record does not see its own, nor those of records behind it.
//!
//! A register has one version: where a record finds its own or a later one there, nothing is left of what stood
//! before, and the record is a change. A reaction that was on already, and was taken back by a later record of the
//! batch, then has a place and an event that changes nothing; judged the other way a change would be lost.

mod ruling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::ruling::{Asker, Known, Ruling, rule};

use crate::conversation::Head;
use crate::group::{Role, Wish};
use crate::history::Version;
use crate::message::Content;
use crate::{
    Code, ConversationId, Message, MessageId, Placed, Refusal, SendId, Seq, Timestamp, UserId,
};

/// Bytes of one reaction: an emoji with all its joiners has less.
pub const REACTION_BYTES_MAX: usize = 64;

/// What people put below a message: an emoji, or a short name of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reaction(String);

impl Reaction {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Reaction {
    type Err = String;

    fn from_str(text: &str) -> Result<Reaction, String> {
        match text.len() {
            1..=REACTION_BYTES_MAX if !text.chars().any(char::is_control) => {
                Ok(Reaction(text.to_owned()))
            }
            length => Err(format!(
                "{length} bytes are no reaction: 1 to {REACTION_BYTES_MAX}, without control characters"
            )),
        }
    }
}

impl TryFrom<String> for Reaction {
    type Error = String;

    fn try_from(text: String) -> Result<Reaction, String> {
        text.parse()
    }
}

impl From<Reaction> for String {
    fn from(reaction: Reaction) -> String {
        reaction.0
    }
}

impl fmt::Display for Reaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a send does to another message, instead of standing for itself. The content beside it is what an edited
/// message says then; with the other kinds it is at rest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOf {
    /// The message that is changed, or up to which something is done; only a wish about a group has none.
    pub subject: Option<MessageId>,
    pub kind: ChangeKind,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChangeKind {
    Recall,
    Edit,
    React {
        reaction: Reaction,
        on: bool,
    },
    /// The conversation goes from the asker's list, unless something came after the subject, which is the newest
    /// message that the asker's device has.
    Clear,
    /// How the conversation stands in the asker's list.
    Arrange(Arranged),
    /// The asker wants to see the subject no more, on none of their devices; nobody else notices.
    Hide,
    /// What is to become of the group that it is sent to.
    Wish(Wish),
}

impl ChangeKind {
    /// The content beside it says something.
    pub const fn has_text(&self) -> bool {
        matches!(self, ChangeKind::Edit)
    }
}

/// How somebody wants a conversation in their list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arranged {
    /// On top.
    pub pinned: bool,
    /// Until then nobody is to be disturbed by it.
    pub muted_until: Option<Timestamp>,
}

impl Arranged {
    pub fn is_muted(&self, now: Timestamp) -> bool {
        self.muted_until.is_some_and(|until| now < until)
    }
}

/// What is to become of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    /// It is taken back, for everybody and for good.
    Recall,
    /// It says this instead.
    Edit(Content),
    /// Somebody reacts to it, or takes that back.
    React { reaction: Reaction, on: bool },
}

/// A change as somebody asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Its own: a change is accepted as a message is.
    pub id: MessageId,
    pub send_id: SendId,
    /// The message that is changed.
    pub subject: MessageId,
    pub by: UserId,
    /// When the server accepted it.
    pub at: Timestamp,
    pub change: Change,
}

impl Asked {
    /// What an accepted message asks to become of another; `None` where it stands for itself, or is about a list.
    pub fn of(message: &Message) -> Option<Asked> {
        let ChangeOf { subject, kind } = message.content.change.as_deref()?;
        let change = match kind {
            ChangeKind::Recall => Change::Recall,
            ChangeKind::Edit => Change::Edit(Content {
                change: None,
                ..message.content.clone()
            }),
            ChangeKind::React { reaction, on } => Change::React {
                reaction: reaction.clone(),
                on: *on,
            },
            ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Hide | ChangeKind::Wish(_) => {
                return None;
            }
        };
        Some(Asked {
            id: message.id,
            send_id: message.send_id,
            subject: (*subject)?,
            by: message.from,
            at: message.accepted_at,
            change,
        })
    }
}

/// A change that has its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub rev: u64,
    /// Where the message stands that is changed.
    pub seq: Seq,
    pub asked: Asked,
}

/// A change as it is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRow {
    pub conversation: ConversationId,
    /// Of the record that asked for it.
    pub version: Version,
    /// Who wrote the message that is changed.
    pub author: UserId,
    pub changed: Changed,
}

/// A value and the record that wrote it; a later record's replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written<T> {
    pub version: Version,
    pub value: T,
}

/// Who did it, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub by: UserId,
    pub at: Timestamp,
}

/// What has become of a message since it was placed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Altered {
    pub recalled: Option<Written<Done>>,
    pub edited: Option<Written<(Content, Done)>>,
    /// Who reacts with what; `false` where that was taken back.
    pub reactions: BTreeMap<(Reaction, UserId), Written<bool>>,
}

impl Altered {
    /// Takes up a change. In whatever order and however often they come, the same is left.
    /// `version`: of the record that asked for it.
    pub fn apply(&mut self, version: Version, changed: &Changed) {
        let asked = &changed.asked;
        let done = Done {
            by: asked.by,
            at: asked.at,
        };
        match &asked.change {
            Change::Recall => write(&mut self.recalled, version, done),
            Change::Edit(content) => write(&mut self.edited, version, (content.clone(), done)),
            Change::React { reaction, on } => {
                let key = (reaction.clone(), asked.by);
                let mut now = self.reactions.remove(&key);
                write(&mut now, version, *on);
                self.reactions.extend(now.map(|now| (key, now)));
            }
        }
    }

    /// What it says now; `None` where it was recalled.
    pub fn content<'a>(&'a self, original: &'a Content) -> Option<&'a Content> {
        match (&self.recalled, &self.edited) {
            (Some(_), _) => None,
            (None, Some(edited)) => Some(&edited.value.0),
            (None, None) => Some(original),
        }
    }

    /// What a reader gets: of a recalled one nothing but its kind.
    pub fn shown(&self, original: &Content) -> Content {
        match self.content(original) {
            Some(content) => content.clone(),
            None => original.emptied(),
        }
    }

    /// Makes of the message what it is now, and says what became of it.
    pub fn show(&self, placed: &mut Placed) -> Option<Marks> {
        placed.message.content = self.shown(&placed.message.content);
        self.marks()
    }

    /// What there is to be told beside the content; `None` where it stands as it was sent.
    pub fn marks(&self) -> Option<Marks> {
        let mut reactions: Vec<(Reaction, Vec<UserId>)> = Vec::new();
        let on = self.reactions.iter().filter(|(_, written)| written.value);
        for ((reaction, user), _) in on.filter(|_| self.recalled.is_none()) {
            match reactions.last_mut() {
                Some((last, users)) if last == reaction => users.push(*user),
                _ => reactions.push((reaction.clone(), vec![*user])),
            }
        }
        let marks = Marks {
            recalled: self.recalled.as_ref().map(|recalled| recalled.value),
            edited: self.edited.as_ref().map(|edited| edited.value.1),
            reactions,
            hidden: false,
        };
        (marks != Marks::default()).then_some(marks)
    }

    /// Different reactions that somebody has now.
    fn reactions_before(&self, record: Version) -> impl Iterator<Item = &Reaction> {
        let mut kinds: Vec<&Reaction> = (self.reactions.iter())
            .filter(|(_, written)| written.value && written.version < record)
            .map(|((reaction, _), _)| reaction)
            .collect();
        kinds.dedup();
        kinds.into_iter()
    }
}

/// What a reader is told of a message beside what it says now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    pub recalled: Option<Done>,
    pub edited: Option<Done>,
    /// In order, each with those who have it, in order.
    pub reactions: Vec<(Reaction, Vec<UserId>)>,
    /// The reader hid it. Only their own devices know: the server keeps that apart, and never says so here.
    pub hidden: bool,
}

impl Marks {
    /// Takes up the next change of the message that these belong to.
    pub fn apply(&mut self, asked: &Asked) {
        let done = Done {
            by: asked.by,
            at: asked.at,
        };
        match &asked.change {
            Change::Recall => {
                self.recalled = Some(done);
                self.reactions.clear();
            }
            Change::Edit(_) => self.edited = Some(done),
            Change::React { reaction, on } => {
                let mut all: BTreeMap<Reaction, BTreeSet<UserId>> = BTreeMap::new();
                for (reaction, users) in std::mem::take(&mut self.reactions) {
                    all.entry(reaction).or_default().extend(users);
                }
                let users = all.entry(reaction.clone()).or_default();
                match on {
                    true => users.insert(asked.by),
                    false => users.remove(&asked.by),
                };
                let some = all.into_iter().filter(|(_, users)| !users.is_empty());
                self.reactions = some
                    .map(|(r, users)| (r, users.into_iter().collect()))
                    .collect();
            }
        }
    }

    /// Bytes on the wire, or a little more.
    pub fn weight(&self) -> usize {
        let reactions = self.reactions.iter();
        let reactions = reactions.map(|(reaction, users)| 4 + reaction.0.len() + 10 * users.len());
        40 + reactions.sum::<usize>()
    }
}

fn write<T>(register: &mut Option<Written<T>>, version: Version, value: T) {
    if register.as_ref().is_none_or(|now| now.version <= version) {
        *register = Some(Written { version, value });
    }
}

/// The message that a change is about.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    pub from: UserId,
    pub accepted_at: Timestamp,
    pub content: &'a Content,
    pub altered: &'a Altered,
}

/// Bounds of changes.
#[derive(Clone, Debug)]
pub struct Rules {
    /// How long after it was accepted its sender may recall or edit a message.
    pub sender_within: Duration,
    /// Different reactions of one message.
    pub reactions_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Rules {
            sender_within: Duration::from_secs(24 * 3600),
            reactions_max: 32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Give it its place.
    Change,
    /// It is so already: no place is used.
    Nothing,
}

/// May this be done, and is there anything to do? `role`: of who asks, where the conversation is a group.
/// Who has no part in a conversation never comes so far.
///
/// # Errors
/// `NotFound` where there is no such message, or no longer; `Forbidden`, also at the bound of reactions.
pub fn judge(
    record: Version,
    asked: &Asked,
    subject: Option<Subject<'_>>,
    role: Option<Role>,
    rules: &Rules,
) -> Result<Verdict, Refusal> {
    let refuse = |code, text: &str| Err(Refusal::new(code, text));
    let Some(subject) = subject else {
        return refuse(Code::NotFound, "no such message in this conversation");
    };
    let altered = subject.altered;
    let is_recalled = is_before(record, altered.recalled.as_ref());
    match &asked.change {
        Change::Recall | Change::Edit(_) => may_alter(asked, &subject, role, rules)?,
        Change::React { .. } => {}
    }
    match &asked.change {
        Change::Recall if is_recalled => Ok(Verdict::Nothing),
        Change::Recall => Ok(Verdict::Change),
        Change::Edit(_) | Change::React { .. } if is_recalled => {
            refuse(Code::NotFound, "the message was recalled")
        }
        Change::Edit(content) => {
            let now = match &altered.edited {
                Some(edited) if edited.version < record => Some(&edited.value.0),
                // A half-done write, its own or a later record's, hides what was there before.
                Some(_) => None,
                None => Some(subject.content),
            };
            Ok(verdict(now != Some(content)))
        }
        Change::React { reaction, on } => {
            let key = (reaction.clone(), asked.by);
            let written = altered.reactions.get(&key);
            let is_hidden = written.is_some_and(|written| written.version >= record);
            let is_on = written.is_some_and(|written| written.value);
            if is_hidden || is_on != *on {
                may_react(record, asked, reaction, *on, altered, rules)?;
                return Ok(Verdict::Change);
            }
            Ok(Verdict::Nothing)
        }
    }
}

fn is_before<T>(record: Version, written: Option<&Written<T>>) -> bool {
    written.is_some_and(|written| written.version < record)
}

const fn verdict(is_news: bool) -> Verdict {
    match is_news {
        true => Verdict::Change,
        false => Verdict::Nothing,
    }
}

/// Its sender for some time, the owner and the administrators of its group at any (S0-61h).
fn may_alter(
    asked: &Asked,
    subject: &Subject<'_>,
    role: Option<Role>,
    rules: &Rules,
) -> Result<(), Refusal> {
    if role.is_some_and(Role::administers) {
        return Ok(());
    }
    if asked.by != subject.from {
        let text = "only its sender, and the owner and the administrators of its group may do that";
        return Err(Refusal::new(Code::Forbidden, text));
    }
    if asked.at.since(subject.accepted_at) > rules.sender_within {
        let limit = humantime::format_duration(rules.sender_within);
        let text = format!("it was sent more than {limit} ago");
        return Err(Refusal::new(Code::Forbidden, text));
    }
    Ok(())
}

/// What was ever put there stays, on or off: so both what is on and what one user has tried have a bound.
fn may_react(
    record: Version,
    asked: &Asked,
    reaction: &Reaction,
    on: bool,
    altered: &Altered,
    rules: &Rules,
) -> Result<(), Refusal> {
    let tried = (altered.reactions.iter())
        .filter(|((_, user), written)| *user == asked.by && written.version < record);
    let is_known = |((known, _), _): (&(Reaction, UserId), _)| known == reaction;
    if tried.clone().count() >= rules.reactions_max && !tried.into_iter().any(is_known) {
        let text = "you have tried too many different reactions on it";
        return Err(Refusal::new(Code::Forbidden, text));
    }
    let mut kinds = 0;
    for known in altered.reactions_before(record) {
        if known == reaction {
            return Ok(());
        }
        kinds += 1;
    }
    if on && kinds >= rules.reactions_max {
        let text = format!("it has {kinds} different reactions already: take one of those");
        return Err(Refusal::new(Code::Forbidden, text));
    }
    Ok(())
}

/// What the head alone can say of the record of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangePlacement {
    /// Never seen: if it is judged a change, this is its place. Write it, then the head that
    /// [`Head::moved_by_change`] makes.
    New(u64),
    /// Not after the record that moved the head last: it was handled before. The change row of its version
    /// has its place; where there is none, it was nothing or refused.
    Redelivery,
}

impl Head {
    /// Where the change of this record belongs.
    pub fn place_change(&self, record: Version) -> ChangePlacement {
        if self.seq != Seq::ZERO && record <= self.version {
            ChangePlacement::Redelivery
        } else {
            ChangePlacement::New(self.rev + 1)
        }
    }

    /// May a change of this id be a first try that reached the log after its resend? Not where no id is larger.
    pub fn may_be_late(&self, id: MessageId) -> bool {
        self.max_id.is_some_and(|max| id <= max)
    }

    /// The head after `record` has changed a message; `id` is the change's own.
    #[must_use]
    pub fn moved_by_change(&self, record: Version, id: MessageId) -> Head {
        Head {
            rev: self.rev + 1,
            max_id: self.max_id.max(Some(id)),
            version: record,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests;
