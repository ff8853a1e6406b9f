//! The life of one message, read from its entries: its targets, and the end of each obligation.
//!
//! Entries come from several processes with several clocks, and may be duplicated after a crash. So
//! the reading does not depend on their order: an end once reached stays, and the better end wins
//! (delivered before stored, stored before dead).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use super::{DeadReason, FailureCause, LedgerEntry, LedgerEvent};
use crate::delivery::Source;
use crate::mailbox::MailLocation;
use crate::message::Target;
use crate::{ConversationId, MessageId, SendId, Seq, SessionId, Timestamp, UserId};

/// Fate of one message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageLife {
    pub message: MessageId,
    pub place: Option<TracePlace>,
    /// Further positions of the message: any entry breaks a guarantee.
    pub further_places: Vec<TracePlace>,
    /// Fate of the requested change, for a message that asks for one instead of being delivered.
    pub change: Option<ChangeOutcome>,
    /// Conversation changed in a list, for a message that asks for that instead of being delivered.
    pub changed_list: Option<ConversationId>,
    /// Reason why the message was refused at its place in the log.
    pub refusal: Option<String>,
    /// Earlier message that this one repeats and that carries the obligation; this one was dropped.
    pub repeat_of: Option<MessageId>,
    /// Time at which the record first needed no more work.
    pub settled_at: Option<Timestamp>,
    /// Dead letter of the whole message, not redriven.
    pub dead: Option<TraceLetter>,
    /// Whether a dead letter of the whole message was redriven and has not settled since.
    pub is_redriven: bool,
    pub obligations: BTreeMap<Target, Obligation>,
}

/// Position assigned by the writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePlace {
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
pub struct TraceLetter {
    pub at: Timestamp,
    pub reason: DeadReason,
    pub letter: String,
}

/// Obligation towards one target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obligation {
    /// False for the sender's own other sessions, which catch up by sync at the latest.
    pub is_owed: bool,
    pub end: Option<TraceEnd>,
    /// Number of pushes.
    pub pushes: u32,
    /// Last step that ended nothing.
    pub last: Option<TraceStep>,
    /// Providers that were called, and whether each accepted the notification.
    pub notifications: Vec<(String, bool)>,
}

/// End of an obligation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEnd {
    /// A device has the message; `offline` is its time in the mailbox.
    Delivered {
        at: Timestamp,
        session: SessionId,
        offline: Option<Duration>,
    },
    /// Waiting in the mailbox.
    Stored { at: Timestamp },
    /// In history, where sync finds it.
    Reachable { at: Timestamp },
    /// Dropped, as the options ask.
    Dropped { at: Timestamp },
    /// A dead letter that was not redriven.
    Dead(TraceLetter),
}

/// A step that ends no obligation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceStep {
    Pushed { attempt: u32 },
    Failed { cause: FailureCause, attempt: u32 },
    Retried { attempt: u32, tier: u8 },
    Redriven { letter: String },
    Notified,
}

/// An open part of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OpenObligation {
    /// The record itself, not placed or not settled.
    Message,
    Target(Target),
}

/// Outcome of a requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeOutcome {
    /// The changed message.
    pub subject: MessageId,
    /// Rev of the change; `None` if it changed nothing, `Err` with the reason if a rule refused it.
    pub rev: Result<Option<u64>, String>,
}

impl ChangeOutcome {
    fn sentence(&self) -> String {
        let subject = self.subject;
        match &self.rev {
            Ok(Some(rev)) => format!("a change of {subject}, revision {rev} of its conversation"),
            Ok(None) => format!("a change of {subject} that changed nothing"),
            Err(why) => format!("a change of {subject}, refused: {why}"),
        }
    }
}

impl MessageLife {
    /// Reads the entries of `message`, and skips those of others.
    pub fn of(message: MessageId, entries: &[LedgerEntry]) -> MessageLife {
        let mut entries: Vec<&LedgerEntry> =
            entries.iter().filter(|e| e.message == message).collect();
        entries.sort_by_key(|entry| entry.at);
        let letters = MessageLetters::among(&entries);

        let mut life = MessageLife {
            message,
            place: None,
            further_places: Vec::new(),
            change: None,
            changed_list: None,
            refusal: None,
            repeat_of: None,
            settled_at: None,
            dead: None,
            is_redriven: false,
            obligations: BTreeMap::new(),
        };
        let mut stored_at = BTreeMap::new();
        for entry in &entries {
            life.read(entry, &letters, &mut stored_at);
        }
        life.is_redriven = letters.are_under_way(&entries, life.place.as_ref());
        let from = life.place.map(|place| place.from);
        for (target, obligation) in &mut life.obligations {
            // Changes are pushed to live sessions only; others find them by sync.
            obligation.is_owed =
                from != Some(target.user) && life.change.is_none() && life.changed_list.is_none();
            if let (None, Some(letter)) = (&obligation.end, &life.dead) {
                obligation.end = Some(TraceEnd::Dead(letter.clone()));
            }
        }
        life
    }

    fn read(
        &mut self,
        entry: &LedgerEntry,
        letters: &MessageLetters<'_>,
        stored_at: &mut BTreeMap<Target, Timestamp>,
    ) {
        let at = entry.at;
        match (&entry.event, entry.target) {
            (
                &LedgerEvent::Placed {
                    conversation,
                    seq,
                    from,
                    send_id,
                    partition,
                    offset,
                },
                _,
            ) => self.read_place(TracePlace {
                at,
                conversation,
                seq,
                from,
                send_id,
                partition,
                offset,
            }),
            (LedgerEvent::Changed { subject, rev, .. }, _) => {
                self.change = Some(ChangeOutcome {
                    subject: *subject,
                    rev: Ok(Some(*rev)),
                });
            }
            (LedgerEvent::Refused { why, .. }, _) => {
                _ = self.refusal.get_or_insert_with(|| why.clone())
            }
            (LedgerEvent::Listed { conversation }, _) => self.changed_list = Some(*conversation),
            (
                LedgerEvent::Unchanged {
                    subject, refused, ..
                },
                _,
            ) => {
                let rev = refused.clone().map_or(Ok(None), Err);
                self.change.get_or_insert(ChangeOutcome {
                    subject: *subject,
                    rev,
                });
            }
            // A second record of the same id was dropped, without effect on the first.
            (&LedgerEvent::Repeat { of }, _) if of == self.message => {}
            (&LedgerEvent::Repeat { of }, _) => self.repeat_of = Some(of),
            (LedgerEvent::Settled, _) => _ = self.settled_at.get_or_insert(at),
            (LedgerEvent::Dead { reason, letter }, None) if letters.ends_all(letter) => {
                self.dead = Some(TraceLetter {
                    at,
                    reason: *reason,
                    letter: letter.clone(),
                });
            }
            (_, None) => {}
            (event, Some(target)) => {
                if matches!(event, LedgerEvent::StoredOffline) {
                    stored_at.entry(target).or_insert(at);
                }
                let stored_at = stored_at.get(&target).copied();
                self.obligation(target)
                    .read((at, target), event, letters, stored_at);
            }
        }
    }

    fn obligation(&mut self, target: Target) -> &mut Obligation {
        self.obligations.entry(target).or_insert(Obligation {
            is_owed: true,
            end: None,
            pushes: 0,
            last: None,
            notifications: Vec::new(),
        })
    }

    fn read_place(&mut self, place: TracePlace) {
        let is_same_place = |other: &TracePlace| {
            other.conversation == place.conversation
                && other.seq == place.seq
                && other.send_id == place.send_id
        };
        match &self.place {
            None => self.place = Some(place),
            Some(first)
                if is_same_place(first) || self.further_places.iter().any(is_same_place) => {}
            Some(_) => self.further_places.push(place),
        }
    }

    /// Whether the writer has handled the message at its place in the log.
    pub fn has_its_place(&self) -> bool {
        self.place.is_some()
            || self.change.is_some()
            || self.changed_list.is_some()
            || self.refusal.is_some()
    }

    /// Open parts of the message; none if it is settled.
    ///
    /// A message whose record went to the retry topics is settled as a record; its targets in retry
    /// topics stay open.
    pub fn open(&self) -> Vec<OpenObligation> {
        if self.repeat_of.is_some() {
            return Vec::new();
        }
        let is_unplaced = !self.has_its_place() && self.dead.is_none();
        let message = (self.settled_at.is_none() || is_unplaced || self.is_redriven)
            .then_some(OpenObligation::Message)
            .into_iter();
        let targets = self.obligations.iter().filter_map(|(&target, obligation)| {
            (obligation.is_owed && obligation.end.is_none())
                .then_some(OpenObligation::Target(target))
        });
        message.chain(targets).collect()
    }

    pub fn is_settled(&self) -> bool {
        self.open().is_empty()
    }

    /// Targets whose mailbox holds the message, according to the ledger. The ledger learns of a
    /// fetch late, or never: the mailboxes know better.
    pub fn stored_for(&self) -> impl Iterator<Item = Target> {
        let is_stored =
            |obligation: &Obligation| matches!(obligation.end, Some(TraceEnd::Stored { .. }));
        let obligations = self.obligations.iter();
        obligations.filter_map(move |(&target, obligation)| is_stored(obligation).then_some(target))
    }

    /// The verdict in words: one sentence for the message, and one for each target. `mailboxes`
    /// holds the answers for [`stored_for`](MessageLife::stored_for); a target missing there did
    /// not answer.
    pub fn verdict(&self, mailboxes: &BTreeMap<Target, MailLocation>) -> Vec<String> {
        let accepted_at = self.message.timestamp();
        let mut sentences = vec![self.sentence(accepted_at)];
        for (target, obligation) in &self.obligations {
            let location = mailboxes.get(target).copied();
            sentences.push(obligation.sentence(*target, accepted_at, location));
        }
        sentences
    }

    /// Sentence for a message that is a change, a list change, or refused.
    fn outcome_sentence(&self) -> Option<String> {
        // An applied list change comes first: a repeat of it finds nothing left to do.
        let list_sentence = (self.changed_list)
            .map(|conversation| format!("its sender's list was changed: {conversation}"));
        let change = self.change.as_ref().map(ChangeOutcome::sentence);
        let refusal = self.refusal.as_ref();
        let refusal = refusal.map(|why| format!("refused at its place in the log: {why}"));
        list_sentence.or(change).or(refusal)
    }

    fn sentence(&self, accepted_at: Timestamp) -> String {
        if let Some(original) = self.repeat_of {
            return format!("a duplicate of {original}, dropped");
        }
        if let Some(first) = self.place {
            if !self.further_places.is_empty() {
                return format!(
                    "BROKEN: placed at {} in {} and a second time elsewhere",
                    first.seq, first.conversation
                );
            }
            let delay = ShortDuration(first.at.since(accepted_at));
            let place = format!(
                "placed at {} in {} after {delay}",
                first.seq, first.conversation
            );
            return match self.settled_at {
                Some(_) => place,
                None => format!("{place}, not settled yet"),
            };
        }
        if let (None, Some(sentence)) = (&self.dead, self.outcome_sentence()) {
            return match self.settled_at {
                Some(_) => sentence,
                None => format!("{sentence}, not settled yet"),
            };
        }
        match &self.dead {
            Some(letter) => format!("dead letter {}: {}", letter.letter, letter.reason.name()),
            None if self.is_redriven => "a dead letter, redriven".to_owned(),
            None => "accepted, not placed yet".to_owned(),
        }
    }
}

/// Dead letters of one message, by name.
struct MessageLetters<'a> {
    /// Letters, each with a target that was redriven. A target left out keeps its end.
    redriven: BTreeSet<(&'a str, Option<Target>)>,
    /// Letters of the whole message, redriven or not.
    whole: BTreeSet<&'a str>,
}

impl<'a> MessageLetters<'a> {
    fn among(entries: &[&'a LedgerEntry]) -> MessageLetters<'a> {
        let mut redriven = BTreeSet::new();
        let (mut whole, mut partial) = (BTreeSet::new(), BTreeSet::new());
        for entry in entries {
            match (&entry.event, entry.target) {
                (LedgerEvent::Redriven { letter }, target) => {
                    _ = redriven.insert((letter.as_str(), target))
                }
                (LedgerEvent::Dead { letter, .. }, None) => _ = whole.insert(letter.as_str()),
                (LedgerEvent::Dead { letter, .. }, Some(_)) => _ = partial.insert(letter.as_str()),
                _ => {}
            }
        }
        // Live sessions are no target, so their death looks like that of the whole message. Their
        // letter has targets besides, or is of a retry. A message without a place has no retries:
        // it died as a whole, on a topic where it does not belong. Live sessions alone in a letter
        // of topic `message` are not recognised (`retry_max` of 0, or a retry that was too large).
        let has_place = entries.iter().any(|entry| is_placement_event(&entry.event));
        let is_live_letter = |letter: &str| has_place && Source::is_retry_letter(letter);
        whole.retain(|&letter| !partial.contains(letter) && !is_live_letter(letter));
        MessageLetters { redriven, whole }
    }

    fn is_redriven(&self, letter: &str, target: Option<Target>) -> bool {
        self.redriven.contains(&(letter, target))
    }

    /// Whether this letter ends every open part of the message.
    fn ends_all(&self, letter: &str) -> bool {
        self.whole.contains(letter) && !self.is_redriven(letter, None)
    }

    /// Whether a redriven letter of the whole message is still under way: the record has not
    /// settled since the message was placed or, if it was placed before it died (or not yet), since
    /// the redrive. The redrive's time is the last resort: the desk logs it after the fact, by
    /// another clock.
    fn are_under_way(&self, entries: &[&LedgerEntry], first_place: Option<&TracePlace>) -> bool {
        let latest = |pick: &dyn Fn(&LedgerEvent) -> bool| {
            let matches = entries.iter().filter(|entry| pick(&entry.event));
            matches.map(|entry| entry.at).max()
        };
        let whole = |letter: &String| {
            self.whole.contains(letter.as_str()) && self.is_redriven(letter, None)
        };
        let died = latest(&|e| matches!(e, LedgerEvent::Dead { letter, .. } if whole(letter)));
        let Some(redriven) =
            latest(&|e| matches!(e, LedgerEvent::Redriven { letter } if whole(letter)))
        else {
            return false;
        };
        let placed_at = first_place
            .map(|place| place.at)
            .filter(|at| Some(*at) > died);
        latest(&|e| matches!(e, LedgerEvent::Settled)) < Some(placed_at.unwrap_or(redriven))
    }
}

/// True for an event by which the writer handled the message at its place in the log.
fn is_placement_event(event: &LedgerEvent) -> bool {
    matches!(
        event,
        LedgerEvent::Placed { .. }
            | LedgerEvent::Changed { .. }
            | LedgerEvent::Unchanged { .. }
            | LedgerEvent::Listed { .. }
            | LedgerEvent::Refused { .. }
    )
}

impl Obligation {
    fn read(
        &mut self,
        (at, target): (Timestamp, Target),
        event: &LedgerEvent,
        letters: &MessageLetters<'_>,
        stored_at: Option<Timestamp>,
    ) {
        match event {
            &LedgerEvent::Acked { session } | &LedgerEvent::Written { session } => {
                self.end_with(TraceEnd::Delivered {
                    at,
                    session,
                    offline: None,
                })
            }
            &LedgerEvent::Fetched { session } => self.end_with(TraceEnd::Delivered {
                at,
                session,
                offline: stored_at.map(|stored_at| at.since(stored_at)),
            }),
            LedgerEvent::StoredOffline => self.end_with(TraceEnd::Stored { at }),
            LedgerEvent::ReachableBySync => self.end_with(TraceEnd::Reachable { at }),
            LedgerEvent::Dropped => self.end_with(TraceEnd::Dropped { at }),
            LedgerEvent::Dead { letter, .. } if letters.is_redriven(letter, Some(target)) => {}
            LedgerEvent::Dead { reason, letter } => self.end_with(TraceEnd::Dead(TraceLetter {
                at,
                reason: *reason,
                letter: letter.clone(),
            })),
            &LedgerEvent::Pushed { attempt, .. } => {
                self.pushes += 1;
                self.last = Some(TraceStep::Pushed { attempt });
            }
            &LedgerEvent::Failed { cause, attempt } => {
                self.last = Some(TraceStep::Failed { cause, attempt })
            }
            &LedgerEvent::Retried { attempt, tier } => {
                self.last = Some(TraceStep::Retried { attempt, tier })
            }
            LedgerEvent::Redriven { letter } => {
                let letter = letter.clone();
                self.last = Some(TraceStep::Redriven { letter });
            }
            LedgerEvent::Notified => self.last = Some(TraceStep::Notified),
            LedgerEvent::NotificationSent { provider, ok } => {
                self.notifications.push((provider.clone(), *ok));
            }
            LedgerEvent::Placed { .. }
            | LedgerEvent::Changed { .. }
            | LedgerEvent::Unchanged { .. }
            | LedgerEvent::Listed { .. }
            | LedgerEvent::Refused { .. }
            | LedgerEvent::Repeat { .. }
            | LedgerEvent::Settled => {}
        }
    }

    /// Keeps the better end; of two alike, the first.
    fn end_with(&mut self, end: TraceEnd) {
        if self.end.as_ref().is_none_or(|old| end.rank() < old.rank()) {
            self.end = Some(end);
        }
    }

    fn sentence(
        &self,
        target: Target,
        accepted_at: Timestamp,
        location: Option<MailLocation>,
    ) -> String {
        let recipient = format!("{}/{}", target.user, target.platform);
        let delay = |at: Timestamp| ShortDuration(at.since(accepted_at));
        let Some(end) = &self.end else {
            return match (&self.last, self.is_owed) {
                (Some(step), true) => format!("in flight to {recipient}: {step}"),
                (None, true) => format!("in flight to {recipient}"),
                (_, false) => {
                    format!("{recipient} is the sender's own device, which gets it by sync")
                }
            };
        };
        let notice = match self.notifications.iter().find(|(_, ok)| *ok) {
            Some((provider, _)) => format!(", notified by {provider}"),
            None => String::new(),
        };
        match end {
            TraceEnd::Delivered { at, offline, .. } => {
                let offline = match offline {
                    Some(waited) => format!(", of which {} offline", ShortDuration(*waited)),
                    None => String::new(),
                };
                let pushes = match self.pushes {
                    0 | 1 => String::new(),
                    pushes => format!(", in {pushes} pushes"),
                };
                format!(
                    "delivered to {recipient} after {}{offline}{pushes}",
                    delay(*at)
                )
            }
            TraceEnd::Stored { at } => {
                let now = mailbox_phrase(location);
                format!(
                    "stored offline for {recipient} after {}{notice}, {now}",
                    delay(*at)
                )
            }
            TraceEnd::Reachable { .. } => format!("{recipient} gets it by sync{notice}"),
            TraceEnd::Dropped { .. } => {
                format!(
                    "dropped for {recipient}: absent, and the options ask neither to store nor to confirm"
                )
            }
            TraceEnd::Dead(letter) => {
                let reason = letter.reason.name();
                format!("dead letter {} for {recipient}: {reason}", letter.letter)
            }
        }
    }
}

/// Phrase for the mailbox's answer about a message that the ledger says is stored. Absence stays
/// unexplained: the ledger does not record the mailbox marker that the message was stored under.
fn mailbox_phrase(location: Option<MailLocation>) -> &'static str {
    match location {
        Some(MailLocation::Waits) => "not fetched yet",
        Some(MailLocation::Acknowledged) => "acknowledged by a device since, not yet in the ledger",
        Some(MailLocation::Absent) => {
            "no longer in the mailbox: fetched without a ledger entry, lost, or expired; history \
             should have it for the next sync"
        }
        None => "the mailbox does not answer, so it is unknown whether it still waits",
    }
}

impl TraceEnd {
    /// Quality of the end; smaller is better.
    fn rank(&self) -> u8 {
        match self {
            TraceEnd::Delivered { .. } => 0,
            TraceEnd::Stored { .. } => 1,
            TraceEnd::Reachable { .. } => 2,
            TraceEnd::Dropped { .. } => 3,
            TraceEnd::Dead(_) => 4,
        }
    }
}

impl fmt::Display for TraceStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TraceStep::Pushed { attempt } => write!(f, "pushed in attempt {attempt}, no outcome"),
            TraceStep::Failed { cause, attempt } => {
                write!(f, "attempt {attempt} failed, {}", cause.text())
            }
            TraceStep::Retried { attempt, tier } => {
                write!(f, "waits in retry-{tier} for attempt {attempt}")
            }
            TraceStep::Redriven { letter } => write!(f, "dead letter {letter}, redriven"),
            TraceStep::Notified => f.write_str("a notification was requested"),
        }
    }
}

/// `3.1 s`, `12 ms`.
struct ShortDuration(Duration);

impl fmt::Display for ShortDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_millis() {
            millis @ ..1000 => write!(f, "{millis} ms"),
            _ => write!(f, "{:.1} s", self.0.as_secs_f64()),
        }
    }
}

#[cfg(test)]
mod tests;
