//! The life of one message, read from its entries: who was owed it, and how each of them ended up.
//!
//! Entries come from several processes with several clocks, and may stand twice after a crash. So the
//! reading does not depend on their order: an end that was reached once stays reached, and the better
//! end wins (delivered before stored, stored before dead).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::{DeadReason, Event, FailureCause, LedgerEntry};
use crate::mailbox::Whereabouts;
use crate::message::Target;
use crate::{ConversationId, MessageId, SendId, Seq, SessionId, Timestamp, UserId};

/// What became of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    pub message: MessageId,
    pub placed: Option<Place>,
    /// Other positions that the message was given: a broken promise where there is any.
    pub placed_again: Vec<Place>,
    /// It stands for nothing itself: it was to change a message.
    pub change: Option<Fate>,
    /// It was to change somebody's list, and did.
    pub listed: Option<ConversationId>,
    /// Refused at its place in the log, in these words.
    pub refused: Option<String>,
    /// It was dropped for this earlier one, which carries the obligation.
    pub repeat_of: Option<MessageId>,
    /// When its record first needed no more work.
    pub settled_at: Option<Timestamp>,
    /// The whole message is a dead letter that nobody sent on its way again.
    pub dead: Option<Letter>,
    /// A dead letter of the whole message was sent on its way again and is not settled since.
    pub redriven: bool,
    pub obligations: BTreeMap<Target, Obligation>,
}

/// Where the writer put a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub at: Timestamp,
    pub conversation: ConversationId,
    pub seq: Seq,
    pub from: UserId,
    pub send_id: SendId,
    pub partition: u32,
    pub offset: u64,
}

/// A dead letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Letter {
    pub at: Timestamp,
    pub reason: DeadReason,
    pub letter: String,
}

/// What is owed to one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obligation {
    /// False for the sender's own other sessions: they learn of it by sync at the latest.
    pub owed: bool,
    pub end: Option<End>,
    /// How often it was pushed.
    pub pushes: u32,
    /// The last thing that is no end.
    pub last: Option<Step>,
    /// Providers that were asked to tell the user, and whether they took it.
    pub notifications: Vec<(String, bool)>,
}

/// How an obligation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// A device has it; `offline` is how long it waited in the mailbox.
    Delivered {
        at: Timestamp,
        session: SessionId,
        offline: Option<Duration>,
    },
    /// It waits in the mailbox.
    Stored { at: Timestamp },
    /// History has it, and sync finds it.
    Reachable { at: Timestamp },
    /// Dropped, as the options ask.
    Dropped { at: Timestamp },
    /// A dead letter that nobody sent on its way again.
    Dead(Letter),
}

/// Something that happened on the way and ended nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Pushed { attempt: u32 },
    Failed { cause: FailureCause, attempt: u32 },
    Retried { attempt: u32, tier: u8 },
    Redriven { letter: String },
    Notified,
}

/// A part of a message that has no end yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Open {
    /// The record itself: it was not placed, or not settled.
    Message,
    Target(Target),
}

/// What became of a change that was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fate {
    /// The message that it is about.
    pub subject: MessageId,
    /// Its place among the changes; `None` where it was so already, `Err` where the rules say no, in these words.
    pub rev: Result<Option<u64>, String>,
}

impl Fate {
    fn sentence(&self) -> String {
        let subject = self.subject;
        match &self.rev {
            Ok(Some(rev)) => format!("a change of {subject}, the {rev}. of its conversation"),
            Ok(None) => format!("a change of {subject} that was so already"),
            Err(why) => format!("a change of {subject}, refused: {why}"),
        }
    }
}

impl Life {
    /// Reads the entries of `message`; those of other messages are passed over.
    pub fn of(message: MessageId, entries: &[LedgerEntry]) -> Life {
        let mut entries: Vec<&LedgerEntry> =
            entries.iter().filter(|e| e.message == message).collect();
        entries.sort_by_key(|entry| entry.at);
        let letters = Redriven::among(&entries);

        let mut life = Life {
            message,
            placed: None,
            placed_again: Vec::new(),
            change: None,
            listed: None,
            refused: None,
            repeat_of: None,
            settled_at: None,
            dead: None,
            redriven: false,
            obligations: BTreeMap::new(),
        };
        let mut stored = BTreeMap::new();
        for entry in &entries {
            life.read(entry, &letters, &mut stored);
        }
        life.redriven = letters.are_under_way(&entries, life.placed.as_ref());
        let from = life.placed.map(|place| place.from);
        for (target, obligation) in &mut life.obligations {
            // A change is told to who is there; the others find it by sync.
            obligation.owed =
                from != Some(target.user) && life.change.is_none() && life.listed.is_none();
            if let (None, Some(letter)) = (&obligation.end, &life.dead) {
                obligation.end = Some(End::Dead(letter.clone()));
            }
        }
        life
    }

    fn read(
        &mut self,
        entry: &LedgerEntry,
        redriven: &Redriven<'_>,
        stored: &mut BTreeMap<Target, Timestamp>,
    ) {
        let at = entry.at;
        match (&entry.event, entry.target) {
            (
                &Event::Placed {
                    conversation,
                    seq,
                    from,
                    send_id,
                    partition,
                    offset,
                },
                _,
            ) => self.read_place(Place {
                at,
                conversation,
                seq,
                from,
                send_id,
                partition,
                offset,
            }),
            (Event::Changed { subject, rev, .. }, _) => {
                self.change = Some(Fate {
                    subject: *subject,
                    rev: Ok(Some(*rev)),
                });
            }
            (Event::Refused { why, .. }, _) => _ = self.refused.get_or_insert_with(|| why.clone()),
            (Event::Listed { conversation }, _) => self.listed = Some(*conversation),
            (
                Event::Unchanged {
                    subject, refused, ..
                },
                _,
            ) => {
                let rev = refused.clone().map_or(Ok(None), Err);
                self.change.get_or_insert(Fate {
                    subject: *subject,
                    rev,
                });
            }
            // A second record of the same id was dropped: that says nothing of the first.
            (&Event::Repeat { of }, _) if of == self.message => {}
            (&Event::Repeat { of }, _) => self.repeat_of = Some(of),
            (Event::Settled, _) => _ = self.settled_at.get_or_insert(at),
            (Event::Dead { letter, .. }, None) if redriven.is(letter, None) => {}
            (Event::Dead { reason, letter }, None) => {
                self.dead = Some(Letter {
                    at,
                    reason: *reason,
                    letter: letter.clone(),
                });
            }
            (_, None) => {}
            (event, Some(target)) => {
                if matches!(event, Event::StoredOffline) {
                    stored.entry(target).or_insert(at);
                }
                let stored = stored.get(&target).copied();
                self.obligation(target)
                    .read((at, target), event, redriven, stored);
            }
        }
    }

    fn obligation(&mut self, target: Target) -> &mut Obligation {
        self.obligations.entry(target).or_insert(Obligation {
            owed: true,
            end: None,
            pushes: 0,
            last: None,
            notifications: Vec::new(),
        })
    }

    fn read_place(&mut self, place: Place) {
        let same = |other: &Place| {
            other.conversation == place.conversation
                && other.seq == place.seq
                && other.send_id == place.send_id
        };
        match &self.placed {
            None => self.placed = Some(place),
            Some(first) if same(first) || self.placed_again.iter().any(same) => {}
            Some(_) => self.placed_again.push(place),
        }
    }

    /// What has no end yet. Empty: the message is settled.
    ///
    /// A message whose record went to the retry topics is settled as a record; the targets that wait
    /// there are open.
    pub fn open(&self) -> Vec<Open> {
        if self.repeat_of.is_some() {
            return Vec::new();
        }
        let has_no_end = self.placed.is_none() && self.change.is_none() && self.listed.is_none();
        let unplaced = has_no_end && self.refused.is_none() && self.dead.is_none();
        let message = (self.settled_at.is_none() || unplaced || self.redriven)
            .then_some(Open::Message)
            .into_iter();
        let targets = self.obligations.iter().filter_map(|(&target, obligation)| {
            (obligation.owed && obligation.end.is_none()).then_some(Open::Target(target))
        });
        message.chain(targets).collect()
    }

    pub fn is_settled(&self) -> bool {
        self.open().is_empty()
    }

    /// For whom it is said to wait. The ledger hears of what was fetched later, or never: their mailboxes
    /// know.
    pub fn stored_for(&self) -> impl Iterator<Item = Target> {
        let stored = |obligation: &Obligation| matches!(obligation.end, Some(End::Stored { .. }));
        let obligations = self.obligations.iter();
        obligations.filter_map(move |(&target, obligation)| stored(obligation).then_some(target))
    }

    /// The verdict in words: one sentence for the message, and one for each target. `mailboxes` is what they
    /// answered for [`stored_for`](Life::stored_for); who is missing there got no answer.
    pub fn verdict(&self, mailboxes: &BTreeMap<Target, Whereabouts>) -> Vec<String> {
        let accepted = self.message.timestamp();
        let mut sentences = vec![self.sentence(accepted)];
        for (target, obligation) in &self.obligations {
            let found = mailboxes.get(target).copied();
            sentences.push(obligation.sentence(*target, accepted, found));
        }
        sentences
    }

    fn sentence(&self, accepted: Timestamp) -> String {
        if let Some(of) = self.repeat_of {
            return format!("a repeat of {of}, dropped: the first one counts");
        }
        if let Some(first) = self.placed {
            if !self.placed_again.is_empty() {
                return format!(
                    "BROKEN: placed at {} in {}, and again elsewhere",
                    first.seq, first.conversation
                );
            }
            let after = Span(first.at.since(accepted));
            let place = format!(
                "placed at {} in {} after {after}",
                first.seq, first.conversation
            );
            return match self.settled_at {
                Some(_) => place,
                None => format!("{place}, not settled yet"),
            };
        }
        if let Some(change) = &self.change {
            return change.sentence();
        }
        if let Some(why) = &self.refused {
            return format!("refused at its place in the log: {why}");
        }
        if let Some(conversation) = self.listed {
            return format!("its sender's list was changed: {conversation}");
        }
        match &self.dead {
            Some(letter) => format!("dead letter {}: {}", letter.letter, letter.reason.name()),
            None if self.redriven => "a dead letter, on its way again".to_owned(),
            None => "accepted, not placed yet".to_owned(),
        }
    }
}

/// The dead letters that were sent on their way again; `whole` are those of the whole message.
struct Redriven<'a> {
    /// Each with the target for which it was sent again: one that was left out keeps its end.
    all: BTreeSet<(&'a str, Option<Target>)>,
    whole: BTreeSet<&'a str>,
}

impl<'a> Redriven<'a> {
    fn among(entries: &[&'a LedgerEntry]) -> Redriven<'a> {
        let mut all = BTreeSet::new();
        let mut whole = BTreeSet::new();
        for entry in entries {
            match (&entry.event, entry.target) {
                (Event::Redriven { letter }, target) => _ = all.insert((letter.as_str(), target)),
                (Event::Dead { letter, .. }, None) => _ = whole.insert(letter.as_str()),
                _ => {}
            }
        }
        whole.retain(|letter| all.contains(&(letter, None)));
        Redriven { all, whole }
    }

    fn is(&self, letter: &str, target: Option<Target>) -> bool {
        self.all.contains(&(letter, target))
    }

    /// A letter of the whole message has come to its end when the record settled after it got its place;
    /// where it had that before it died, when the record settled after the letter was redriven. The desk's
    /// word for when that was is the last resort: it is written down after the fact, by another clock.
    fn are_under_way(&self, entries: &[&LedgerEntry], placed: Option<&Place>) -> bool {
        let latest = |pick: &dyn Fn(&Event) -> bool| {
            let picked = entries.iter().filter(|entry| pick(&entry.event));
            picked.map(|entry| entry.at).max()
        };
        let whole = |letter: &String| self.whole.contains(letter.as_str());
        let died = latest(&|e| matches!(e, Event::Dead { letter, .. } if whole(letter)));
        let Some(redriven) = latest(&|e| matches!(e, Event::Redriven { letter } if whole(letter)))
        else {
            return false;
        };
        let since = placed.map(|place| place.at).filter(|at| Some(*at) > died);
        latest(&|e| matches!(e, Event::Settled)) < Some(since.unwrap_or(redriven))
    }
}

impl Obligation {
    fn read(
        &mut self,
        (at, target): (Timestamp, Target),
        event: &Event,
        redriven: &Redriven<'_>,
        stored: Option<Timestamp>,
    ) {
        match event {
            &Event::Acked { session } | &Event::Written { session } => {
                self.end_with(End::Delivered {
                    at,
                    session,
                    offline: None,
                })
            }
            &Event::Fetched { session } => self.end_with(End::Delivered {
                at,
                session,
                offline: stored.map(|stored| at.since(stored)),
            }),
            Event::StoredOffline => self.end_with(End::Stored { at }),
            Event::ReachableBySync => self.end_with(End::Reachable { at }),
            Event::Dropped => self.end_with(End::Dropped { at }),
            Event::Dead { letter, .. } if redriven.is(letter, Some(target)) => {}
            Event::Dead { reason, letter } => self.end_with(End::Dead(Letter {
                at,
                reason: *reason,
                letter: letter.clone(),
            })),
            &Event::Pushed { attempt, .. } => {
                self.pushes += 1;
                self.last = Some(Step::Pushed { attempt });
            }
            &Event::Failed { cause, attempt } => self.last = Some(Step::Failed { cause, attempt }),
            &Event::Retried { attempt, tier } => self.last = Some(Step::Retried { attempt, tier }),
            Event::Redriven { letter } => {
                let letter = letter.clone();
                self.last = Some(Step::Redriven { letter });
            }
            Event::Notified => self.last = Some(Step::Notified),
            Event::NotificationSent { provider, ok } => {
                self.notifications.push((provider.clone(), *ok));
            }
            Event::Placed { .. }
            | Event::Changed { .. }
            | Event::Unchanged { .. }
            | Event::Listed { .. }
            | Event::Refused { .. }
            | Event::Repeat { .. }
            | Event::Settled => {}
        }
    }

    /// The better end stands; of two alike the first.
    fn end_with(&mut self, end: End) {
        if self.end.as_ref().is_none_or(|old| end.rank() < old.rank()) {
            self.end = Some(end);
        }
    }

    fn sentence(&self, target: Target, accepted: Timestamp, found: Option<Whereabouts>) -> String {
        let who = format!("{}/{}", target.user, target.platform);
        let after = |at: Timestamp| Span(at.since(accepted));
        let Some(end) = &self.end else {
            return match (&self.last, self.owed) {
                (Some(step), true) => format!("open for {who}: {step}"),
                (None, true) => format!("open for {who}"),
                (_, false) => format!("{who} is the sender's own and learns of it by sync"),
            };
        };
        let told = match self.notifications.iter().find(|(_, ok)| *ok) {
            Some((provider, _)) => format!(", told by {provider}"),
            None => String::new(),
        };
        match end {
            End::Delivered { at, offline, .. } => {
                let offline = match offline {
                    Some(waited) => format!(", of which {} offline", Span(*waited)),
                    None => String::new(),
                };
                let pushes = match self.pushes {
                    0 | 1 => String::new(),
                    pushes => format!(", in {pushes} pushes"),
                };
                format!("delivered to {who} after {}{offline}{pushes}", after(*at))
            }
            End::Stored { at } => {
                let now = still_there(found);
                format!("stored offline for {who} after {}{told}, {now}", after(*at))
            }
            End::Reachable { .. } => format!("{who} finds it by sync{told}"),
            End::Dropped { .. } => {
                format!(
                    "dropped for {who}: absent, and the options ask neither to store nor to confirm"
                )
            }
            End::Dead(letter) => {
                let reason = letter.reason.name();
                format!("dead letter {} for {who}: {reason}", letter.letter)
            }
        }
    }
}

/// What a mailbox knows of a message that the ledger says it has. It does not tell why it no longer has one:
/// the ledger knows no mark of the mailbox that it was stored under.
fn still_there(found: Option<Whereabouts>) -> &'static str {
    match found {
        Some(Whereabouts::Waits) => "not fetched yet",
        Some(Whereabouts::Acknowledged) => {
            "and a device acknowledged it since, of which the ledger has not heard yet"
        }
        Some(Whereabouts::Absent) => {
            "and waits no longer: it was fetched and the ledger was not told, or the mailbox lost it or \
             keeps it no longer; history should have it for the next sync"
        }
        None => "and whether it still waits is not known: the mailbox does not answer",
    }
}

impl End {
    /// The smaller the better.
    fn rank(&self) -> u8 {
        match self {
            End::Delivered { .. } => 0,
            End::Stored { .. } => 1,
            End::Reachable { .. } => 2,
            End::Dropped { .. } => 3,
            End::Dead(_) => 4,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Pushed { attempt } => write!(f, "pushed in attempt {attempt}, no outcome"),
            Step::Failed { cause, attempt } => {
                write!(f, "attempt {attempt} failed, {}", cause.text())
            }
            Step::Retried { attempt, tier } => {
                write!(f, "waits in retry-{tier} for attempt {attempt}")
            }
            Step::Redriven { letter } => write!(f, "dead letter {letter}, on its way again"),
            Step::Notified => f.write_str("a notification was asked for"),
        }
    }
}

/// `3.1 s`, `12 ms`.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            millis @ ..1000 => write!(f, "{millis} ms"),
            _ => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests;
