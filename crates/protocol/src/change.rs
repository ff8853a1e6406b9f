//! Changes of placed messages: recall, edit, reactions, pins.
//!
//! A change is a record of the conversation's own log. The conversation's single writer judges it
//! against the present state of the message and gives it a place of its own, *rev*: dense, and
//! separate from the positions of messages. So all devices, however late they come, see the same
//! changes in the same order.
//!
//! ```text
//! head.place_change(record, overlay)
//!     New(rev)      => judge(request, subject, …) Change: write it there · Nothing, refusal: no place is used
//!     Interrupted   => the change row that this record wrote, if it wrote one; the head moves
//!     Redelivery    => the change row that this record wrote, if it wrote one
//! ```
//!
//! A record that becomes a dead letter by chance (a store refuses its row for a while, a bug panics
//! once) has a place, too: its row says *died*, and is written like other rows, before the head and
//! the dead letter. When the record is read again, it finds that row and stays dead; its dead
//! letter may still have to be written. If only the row was written, and not the head, the record
//! is judged anew and keeps its place.
//!
//! The order of effects is change rows → overlays → head → conversation rows → commit. A crash
//! between any two causes a redelivery of the records, and each must have the same result: if a rev
//! were given to another change, devices that are past it would never read that change. A change is
//! judged against an overlay, which may by then have the effects of this record or of later ones.
//! Every register has the version of its record, so this can be detected; and as no overlay is
//! written before all change rows of its part, these rows then tell the result of each record.

mod ruling;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::ruling::{ChangeRuling, Requester, RulingFacts, rule};

use crate::conversation::Head;
use crate::frame::SMALL;
use crate::group::{GroupCommand, Role};
use crate::history::Version;
use crate::message::Content;
use crate::{
    Code, ConversationId, Message, MessageId, Placed, Refusal, SendId, Seq, Timestamp, UserId,
};

/// Maximum bytes of one reaction; an emoji with all its joiners has fewer.
pub const REACTION_BYTES_MAX: usize = 64;

/// Emoji below a message, or a short name of one.
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
                "a reaction of {length} bytes: 1 to {REACTION_BYTES_MAX} are allowed, without control characters"
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

/// Effect of a send that changes another message, instead of being a message itself. For an edit,
/// the content beside it is the new text; the other kinds leave it empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeOf {
    /// The changed message, or for a list operation the last one it covers; only a group command
    /// has none.
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
    /// Removes the conversation from the asker's list, unless something came after the subject,
    /// which is the newest message that the asker's device has.
    Clear,
    /// Arranges the conversation in the asker's list.
    Arrange(ListArrangement),
    /// Hides the subject from the asker, on all of their devices; nobody else notices.
    Hide,
    /// Command for the group that the send is addressed to.
    GroupCommand(GroupCommand),
    /// Pins the subject in its conversation, for everybody, or takes the pin off.
    Pin {
        on: bool,
    },
}

impl ChangeKind {
    /// As [`MessageChange::is_written`].
    pub const fn is_written(&self) -> bool {
        matches!(self, ChangeKind::Edit | ChangeKind::React { on: true, .. })
    }

    /// Thing that it changes.
    pub const fn scope(&self) -> ChangeScope {
        match self {
            ChangeKind::Recall
            | ChangeKind::Edit
            | ChangeKind::React { .. }
            | ChangeKind::Pin { .. } => ChangeScope::Message,
            ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Hide => ChangeScope::List,
            ChangeKind::GroupCommand(_) => ChangeScope::Group,
        }
    }

    /// The change of a message that it asks for, with `content` where it carries a text; `None` for
    /// one of another scope.
    pub fn message_change(&self, content: &Content) -> Option<MessageChange> {
        match self {
            ChangeKind::Recall => Some(MessageChange::Recall),
            ChangeKind::Edit => Some(MessageChange::Edit(Content {
                change: None,
                ..content.clone()
            })),
            ChangeKind::React { reaction, on } => Some(MessageChange::React {
                reaction: reaction.clone(),
                on: *on,
            }),
            ChangeKind::Pin { on } => Some(MessageChange::Pin { on: *on }),
            ChangeKind::Clear
            | ChangeKind::Arrange(_)
            | ChangeKind::Hide
            | ChangeKind::GroupCommand(_) => None,
        }
    }

    /// Whether the content beside it carries a text.
    pub const fn has_text(&self) -> bool {
        matches!(self, ChangeKind::Edit)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeScope {
    /// A message, for everybody: it has a place among the changes of its conversation.
    Message,
    /// The asker's own list.
    List,
    Group,
}

/// A user's arrangement of one conversation in their list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListArrangement {
    /// Pinned to the top.
    pub pinned: bool,
    /// Muted until this time: no notifications before it.
    pub muted_until: Option<Timestamp>,
}

impl ListArrangement {
    pub fn is_muted(&self, now: Timestamp) -> bool {
        self.muted_until.is_some_and(|end| now < end)
    }
}

/// Change of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MessageChange {
    /// Takes the message back, for everybody and for good.
    Recall,
    /// Replaces the content.
    Edit(Content),
    /// Adds a reaction, or takes it back.
    React { reaction: Reaction, on: bool },
    /// Pins the message, or takes the pin off. A recall takes it off, too.
    Pin { on: bool },
    /// Kind of a later version, for a client or a station that does not know it: uses its rev and
    /// changes nothing. No record asks for one.
    Unknown,
    /// Its record died: uses its rev and changes nothing. Only stored rows tell it from an unknown
    /// kind.
    Died,
}

impl MessageChange {
    /// Whether it shows others something new of its author: what a mute forbids.
    pub const fn is_written(&self) -> bool {
        matches!(
            self,
            MessageChange::Edit(_) | MessageChange::React { on: true, .. }
        )
    }

    /// Changes `content` to what it is after this change.
    pub fn apply_to(&self, content: &mut Content) {
        match self {
            MessageChange::Recall => *content = content.emptied(),
            MessageChange::Edit(new_content) => content.clone_from(new_content),
            MessageChange::React { .. }
            | MessageChange::Pin { .. }
            | MessageChange::Unknown
            | MessageChange::Died => {}
        }
    }

    /// Name in outputs for programs.
    pub const fn name(&self) -> &'static str {
        match self {
            MessageChange::Recall => "recall",
            MessageChange::Edit(_) => "edit",
            MessageChange::React { .. } => "reaction",
            MessageChange::Pin { .. } => "pin",
            MessageChange::Unknown => "unknown",
            MessageChange::Died => "died",
        }
    }

    /// False for one that takes something back.
    pub const fn is_on(&self) -> bool {
        match self {
            MessageChange::Recall
            | MessageChange::Edit(_)
            | MessageChange::Unknown
            | MessageChange::Died => true,
            MessageChange::React { on, .. } | MessageChange::Pin { on } => *on,
        }
    }

    /// Size on the wire in bytes, estimated slightly high.
    pub fn weight(&self) -> usize {
        match self {
            MessageChange::Recall
            | MessageChange::Pin { .. }
            | MessageChange::Unknown
            | MessageChange::Died => 0,
            MessageChange::Edit(content) => SMALL + content.data.len(),
            MessageChange::React { .. } => REACTION_BYTES_MAX,
        }
    }

    /// Size of its content in bytes.
    pub fn content_size(&self) -> usize {
        match self {
            MessageChange::Edit(content) => content.data.len(),
            MessageChange::Recall
            | MessageChange::React { .. }
            | MessageChange::Pin { .. }
            | MessageChange::Unknown
            | MessageChange::Died => 0,
        }
    }

    /// False for one that leaves every message as it is.
    pub const fn has_effect(&self) -> bool {
        !matches!(self, MessageChange::Unknown | MessageChange::Died)
    }
}

/// A change as requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRequest {
    /// The change's own id: a change is accepted as a message is.
    pub id: MessageId,
    pub send_id: SendId,
    /// The message to change.
    pub subject: MessageId,
    pub by: UserId,
    /// Time of acceptance by the server.
    pub at: Timestamp,
    pub change: MessageChange,
}

impl ChangeRequest {
    /// The change that an accepted message requests; `None` for an ordinary message, a list
    /// operation or a group command.
    pub fn of(message: &Message) -> Option<ChangeRequest> {
        let ChangeOf { subject, kind } = message.content.change.as_deref()?;
        let change = kind.message_change(&message.content)?;
        Some(ChangeRequest {
            id: message.id,
            send_id: message.send_id,
            subject: (*subject)?,
            by: message.from,
            at: message.accepted_at,
            change,
        })
    }
}

/// A change with its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderedChange {
    pub rev: u64,
    /// Position of the changed message.
    pub seq: Seq,
    pub asked: ChangeRequest,
}

impl OrderedChange {
    /// Place of a change that died. It names no message and no send, so nobody takes it for the
    /// requested change, not even when that is made later, from its dead letter.
    pub fn died(rev: u64, request: &ChangeRequest) -> OrderedChange {
        OrderedChange {
            rev,
            seq: Seq::ZERO,
            asked: ChangeRequest {
                send_id: SendId::from_bytes([0; 16]),
                subject: MessageId::floor_of(Timestamp::ZERO),
                change: MessageChange::Died,
                ..request.clone()
            },
        }
    }

    pub fn has_died(&self) -> bool {
        self.asked.change == MessageChange::Died
    }

    pub fn is_edit(&self) -> bool {
        matches!(self.asked.change, MessageChange::Edit(_))
    }

    /// Takes the content out of an edit. Changes are dense, so none can be left out.
    pub fn blank(&mut self) {
        if let MessageChange::Edit(content) = &mut self.asked.change {
            *content = content.emptied();
        }
    }
}

/// A stored change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangeRow {
    pub conversation: ConversationId,
    /// Version of the record that requested it.
    pub version: Version,
    /// Author of the changed message; of a change that died, its own.
    pub author: UserId,
    pub changed: OrderedChange,
}

/// A value and the version of the record that wrote it; a later record replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Register<T> {
    pub version: Version,
    pub value: T,
}

/// Author and time of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Authorship {
    pub by: UserId,
    pub at: Timestamp,
}

/// Everything that changed about a message since it was placed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overlay {
    pub recalled: Option<Register<Authorship>>,
    pub edited: Option<Register<(Content, Authorship)>>,
    /// Reactions by user; `false` once taken back.
    pub reactions: BTreeMap<(Reaction, UserId), Register<bool>>,
    /// Author of the pin; `None` once it was taken off.
    pub pinned: Option<Register<Option<Authorship>>>,
}

impl Overlay {
    /// Newest record with an effect here.
    pub fn newest(&self) -> Option<Version> {
        let reactions = self.reactions.values().map(|register| register.version);
        let recall = self.recalled.as_ref().map(|register| register.version);
        let edit = self.edited.as_ref().map(|register| register.version);
        let pin = self.pinned.as_ref().map(|register| register.version);
        reactions.max().max(recall).max(edit).max(pin)
    }

    /// Applies a change. Any order and any repetition of changes leads to the same state. `version`
    /// is the version of the requesting record.
    pub fn apply(&mut self, version: Version, change: &OrderedChange) {
        let request = &change.asked;
        let authorship = Authorship {
            by: request.by,
            at: request.at,
        };
        match &request.change {
            MessageChange::Recall => write(&mut self.recalled, version, authorship),
            MessageChange::Edit(content) => {
                write(&mut self.edited, version, (content.clone(), authorship))
            }
            MessageChange::React { reaction, on } => {
                let key = (reaction.clone(), request.by);
                let mut register = self.reactions.remove(&key);
                write(&mut register, version, *on);
                self.reactions
                    .extend(register.map(|register| (key, register)));
            }
            MessageChange::Pin { on } => write(&mut self.pinned, version, on.then_some(authorship)),
            MessageChange::Unknown | MessageChange::Died => {}
        }
    }

    /// Current content; `None` if recalled.
    pub fn content<'a>(&'a self, original: &'a Content) -> Option<&'a Content> {
        match (&self.recalled, &self.edited) {
            (Some(_), _) => None,
            (None, Some(edit)) => Some(&edit.value.0),
            (None, None) => Some(original),
        }
    }

    /// Content as shown to readers: a recalled message keeps only its kind.
    pub fn shown(&self, original: &Content) -> Content {
        match self.content(original) {
            Some(content) => content.clone(),
            None => original.emptied(),
        }
    }

    /// Puts the current content into the message, and returns its marks.
    pub fn show(&self, placed: &mut Placed) -> Option<MessageMarks> {
        placed.message.content = self.shown(&placed.message.content);
        self.marks()
    }

    /// The same for a reader who may not read the edit.
    #[must_use]
    pub fn without_edit(&self) -> Overlay {
        Overlay {
            edited: None,
            ..self.clone()
        }
    }

    /// Marks beside the content; `None` for a message that never changed.
    pub fn marks(&self) -> Option<MessageMarks> {
        let mut reactions: Vec<(Reaction, Vec<UserId>)> = Vec::new();
        let active = self.reactions.iter().filter(|(_, register)| register.value);
        for ((reaction, user), _) in active.filter(|_| self.recalled.is_none()) {
            match reactions.last_mut() {
                Some((last, users)) if last == reaction => users.push(*user),
                _ => reactions.push((reaction.clone(), vec![*user])),
            }
        }
        let marks = MessageMarks {
            recalled: self.recalled.as_ref().map(|recall| recall.value),
            edited: self.edited.as_ref().map(|edit| edit.value.1),
            reactions,
            pinned: self.pin(),
            hidden: false,
        };
        (marks != MessageMarks::default()).then_some(marks)
    }

    /// Author of the pin that is on; a recalled message has none.
    pub fn pin(&self) -> Option<Authorship> {
        let pin = self.pinned.as_ref().and_then(|pin| pin.value);
        pin.filter(|_| self.recalled.is_none())
    }

    /// Distinct reactions in effect.
    fn reactions_on(&self) -> impl Iterator<Item = &Reaction> {
        let mut kinds: Vec<&Reaction> = (self.reactions.iter())
            .filter(|(_, register)| register.value)
            .map(|((reaction, _), _)| reaction)
            .collect();
        kinds.dedup();
        kinds.into_iter()
    }
}

/// Marks that a reader gets beside the current content of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MessageMarks {
    pub recalled: Option<Authorship>,
    pub edited: Option<Authorship>,
    /// Reactions in order, each with its users in order.
    pub reactions: Vec<(Reaction, Vec<UserId>)>,
    pub pinned: Option<Authorship>,
    /// Whether the reader hid the message. Only the reader's own devices set this: the server
    /// stores hidden messages apart, and always sends false.
    pub hidden: bool,
}

impl MessageMarks {
    /// Applies the message's next change.
    pub fn apply(&mut self, request: &ChangeRequest) {
        let authorship = Authorship {
            by: request.by,
            at: request.at,
        };
        match &request.change {
            MessageChange::Recall => {
                self.recalled = Some(authorship);
                self.reactions.clear();
                self.pinned = None;
            }
            MessageChange::Edit(_) => self.edited = Some(authorship),
            MessageChange::React { reaction, on } => {
                let mut users_by_reaction: BTreeMap<Reaction, BTreeSet<UserId>> = BTreeMap::new();
                for (reaction, users) in std::mem::take(&mut self.reactions) {
                    users_by_reaction.entry(reaction).or_default().extend(users);
                }
                let users = users_by_reaction.entry(reaction.clone()).or_default();
                if *on {
                    users.insert(request.by)
                } else {
                    users.remove(&request.by)
                };
                let nonempty = users_by_reaction
                    .into_iter()
                    .filter(|(_, users)| !users.is_empty());
                self.reactions = nonempty
                    .map(|(r, users)| (r, users.into_iter().collect()))
                    .collect();
            }
            MessageChange::Pin { on } => self.pinned = on.then_some(authorship),
            MessageChange::Unknown | MessageChange::Died => {}
        }
    }

    /// Size on the wire in bytes, estimated slightly high.
    pub fn weight(&self) -> usize {
        let reactions = self.reactions.iter();
        let reactions = reactions.map(|(reaction, users)| 4 + reaction.0.len() + 10 * users.len());
        60 + reactions.sum::<usize>()
    }
}

fn write<T>(register: &mut Option<Register<T>>, version: Version, value: T) {
    if register
        .as_ref()
        .is_none_or(|current| current.version <= version)
    {
        *register = Some(Register { version, value });
    }
}

/// Message that a change is about.
#[derive(Clone, Copy, Debug)]
pub struct ChangeSubject<'a> {
    pub seq: Seq,
    pub from: UserId,
    pub accepted_at: Timestamp,
    pub content: &'a Content,
    pub overlay: &'a Overlay,
}

/// Bounds of changes.
#[derive(Clone, Debug)]
pub struct ChangeRules {
    /// Time after acceptance in which a message's sender may recall or edit it.
    pub sender_window: Duration,
    /// Maximum number of distinct reactions to one message.
    pub reactions_max: usize,
}

impl Default for ChangeRules {
    fn default() -> Self {
        ChangeRules {
            sender_window: Duration::from_secs(24 * 3600),
            reactions_max: 32,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeVerdict {
    /// Give the change its place.
    Change,
    /// Already in effect: no place is used.
    Nothing,
}

/// Judges a change: is it allowed, and does it change anything? `role` is the asker's in a group.
/// Users without a part in the conversation are refused before this. The overlay of the subject has
/// effects of earlier records alone: see [`ChangePlacement::Interrupted`].
///
/// # Errors
/// `NotFound` if the message does not exist or was recalled; `Forbidden`, also at the bound of
/// reactions; `Unsupported` for an unknown change.
pub fn judge(
    request: &ChangeRequest,
    subject: Option<ChangeSubject<'_>>,
    role: Option<Role>,
    rules: &ChangeRules,
) -> Result<ChangeVerdict, Refusal> {
    let refuse = |code, text: &str| Err(Refusal::new(code, text));
    let Some(subject) = subject else {
        return refuse(Code::NotFound, "no such message in this conversation");
    };
    let overlay = subject.overlay;
    let is_recalled = overlay.recalled.is_some();
    match &request.change {
        MessageChange::Recall | MessageChange::Edit(_) => {
            may_alter(request, &subject, role, rules)?
        }
        MessageChange::Pin { .. } => may_pin(role)?,
        MessageChange::React { .. } | MessageChange::Unknown | MessageChange::Died => {}
    }
    match &request.change {
        MessageChange::Unknown | MessageChange::Died => {
            refuse(Code::Unsupported, "unknown kind of change")
        }
        MessageChange::Recall if is_recalled => Ok(ChangeVerdict::Nothing),
        MessageChange::Recall => Ok(ChangeVerdict::Change),
        MessageChange::Edit(_) | MessageChange::React { .. } | MessageChange::Pin { .. }
            if is_recalled =>
        {
            refuse(Code::NotFound, "the message was recalled")
        }
        MessageChange::Edit(content) => {
            let current = overlay.content(subject.content);
            Ok(verdict(current != Some(content)))
        }
        MessageChange::React { reaction, on } => {
            let key = (reaction.clone(), request.by);
            let is_on = (overlay.reactions.get(&key)).is_some_and(|register| register.value);
            if is_on != *on {
                may_react(request, reaction, *on, overlay, rules)?;
            }
            Ok(verdict(is_on != *on))
        }
        MessageChange::Pin { on } => Ok(verdict(overlay.pin().is_some() != *on)),
    }
}

const fn verdict(is_news: bool) -> ChangeVerdict {
    if is_news {
        ChangeVerdict::Change
    } else {
        ChangeVerdict::Nothing
    }
}

/// Recall and edit are open to the sender for some time, and to the group's owner and
/// administrators at any time (S0-61h).
fn may_alter(
    request: &ChangeRequest,
    subject: &ChangeSubject<'_>,
    role: Option<Role>,
    rules: &ChangeRules,
) -> Result<(), Refusal> {
    if role.is_some_and(Role::administers) {
        return Ok(());
    }
    if request.by != subject.from {
        let text = "only its sender and the owner and administrators of its group may do that";
        return Err(Refusal::new(Code::Forbidden, text));
    }
    if request.at.since(subject.accepted_at) > rules.sender_window {
        let limit = humantime::format_duration(rules.sender_window);
        let text = format!("it was sent more than {limit} ago");
        return Err(Refusal::new(Code::Forbidden, text));
    }
    Ok(())
}

/// Either user of a private conversation may pin; in a group its owner and administrators.
fn may_pin(role: Option<Role>) -> Result<(), Refusal> {
    if role.is_none_or(Role::administers) {
        Ok(())
    } else {
        let text = "only the owner and the administrators of the group may pin messages in it";
        Err(Refusal::new(Code::Forbidden, text))
    }
}

/// Reactions stay stored once taken back, so both the reactions in effect and those that one user
/// has ever tried are bounded.
fn may_react(
    request: &ChangeRequest,
    reaction: &Reaction,
    on: bool,
    overlay: &Overlay,
    rules: &ChangeRules,
) -> Result<(), Refusal> {
    let user_reactions = (overlay.reactions.keys()).filter(|(_, user)| *user == request.by);
    let is_known = |(existing, _): &(Reaction, UserId)| existing == reaction;
    if user_reactions.clone().count() >= rules.reactions_max
        && !user_reactions.into_iter().any(is_known)
    {
        let text = "you have tried too many different reactions on it";
        return Err(Refusal::new(Code::Forbidden, text));
    }
    let mut kinds = 0;
    for existing in overlay.reactions_on() {
        if existing == reaction {
            return Ok(());
        }
        kinds += 1;
    }
    if on && kinds >= rules.reactions_max {
        let text = format!("it has {kinds} different reactions already: use one of those");
        return Err(Refusal::new(Code::Forbidden, text));
    }
    Ok(())
}

/// Search for the change that a record made. Revs are in the order of their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeSearch {
    /// At this rev or before it, downward.
    UpTo(u64),
    /// Behind this rev, upward: the head does not know of it.
    Behind(u64),
}

impl ChangeSearch {
    /// Revs among which the change lies, if there is one.
    pub const fn revs(self) -> RangeInclusive<u64> {
        match self {
            ChangeSearch::UpTo(last) => 0..=last,
            ChangeSearch::Behind(rev) => rev.saturating_add(1)..=u64::MAX,
        }
    }
}

/// Placement of a change's record, as far as head and overlay tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangePlacement {
    /// Never seen before: the place, should it be judged a change. Write the change, then the head
    /// that [`Head::moved_by_change`] makes.
    New(u64),
    /// An effect of this record or of a later one is stored, and the head does not know of it: a
    /// crash or a failure came between them, or another writer is ahead. All change rows of that
    /// part are stored, so the row of this version has its place, or says that it died. Without such
    /// a row, it changed nothing or was refused. The head moves.
    Interrupted,
    /// Not after the record that moved the head last, so handled before. The change row of its
    /// version has its place, or says that it died; without such a row, it changed nothing or was
    /// refused.
    Redelivery,
}

impl Head {
    /// Placement of the change in this record, to a message with this overlay. `is_behind`: a later
    /// record has changed the group, so this one was handled.
    pub fn place_change(
        &self,
        record: Version,
        overlay: &Overlay,
        is_behind: bool,
    ) -> ChangePlacement {
        if self.has_handled(record) {
            ChangePlacement::Redelivery
        } else if is_behind || overlay.newest() >= Some(record) {
            ChangePlacement::Interrupted
        } else {
            ChangePlacement::New(self.rev + 1)
        }
    }

    /// Whether a change with this id may be a first try that reached the log after its resend. With
    /// the largest id so far, it cannot be.
    pub fn may_be_late(&self, id: MessageId) -> bool {
        self.max_id.is_some_and(|max| id <= max)
    }

    /// The head after `record` changed a message, as number `rev`, or died there; `id` is the id of
    /// the change itself.
    #[must_use]
    pub fn moved_by_change(&self, record: Version, id: MessageId, rev: u64) -> Head {
        Head {
            rev: self.rev.max(rev),
            max_id: self.max_id.max(Some(id)),
            version: record,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests;
