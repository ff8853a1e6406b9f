//! What was received: each message shown once, in the order of its conversation.
//!
//! A conversation has three places that only move forward: *kept* (stored here, so it survives),
//! *shown* (the application is being told) and *known* (the server has it). What is the next after
//! *shown* is shown; what is not after it is a repeat; what lies further on is held until the gap before
//! it is filled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::change::Marks;
use protocol::frame::{AckItem, PlacedEcho};
use protocol::{ConversationId, MessageId, Placed, SendId, Seq, Timestamp, UserId};

use super::changes::Revs;
use super::hidden::Hidden;
use super::questions::Questions;
use super::saved::{Change, Cursor, Kept};
use super::{Action, CatchUp, Core, Origin, Reset, Shown};

/// How many sends are remembered to recognise one that was placed twice.
const REPEATS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Timeline {
    tracks: BTreeMap<ConversationId, Track>,
    /// Shown, not taken; oldest first.
    untaken: VecDeque<Untaken>,
    /// Counts what was shown, and how much of it was taken.
    shown: u64,
    taken: u64,
    /// Messages in all `held`.
    held: usize,
    /// Their next message is here, but the application must take some first.
    stalled: BTreeSet<ConversationId>,
    repeats: Repeats,
}

/// One conversation.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) kept: Kept,
    pub(super) shown: Cursor,
    pub(super) held: BTreeMap<Seq, Held>,
    /// A fresh device that does not show everything: the list decides where it begins.
    pub(super) undecided: bool,
    /// Only the newest are to be fetched.
    pub(super) newest_only: bool,
    /// The server's end seems to lie before *shown*: ask.
    pub(super) suspect: bool,
    /// A question about it is open.
    pub(super) asked: bool,
    /// Questions that were not answered, in a row.
    pub(super) failures: u32,
    pub(super) revs: Revs,
    pub(super) hidden: Hidden,
    /// No list had it: it is new, or was taken from the list before this device had one. It is asked for by name.
    pub(super) is_unnamed: bool,
    /// A word told that the user did something with its row, and the server was not asked since what is so now.
    pub(super) is_row_moved: bool,
    pub(super) is_row_asked: bool,
    /// A question was refused, and comes again later.
    pub(super) waits: bool,
    /// Nothing of it was here when it was listed as far as this, and its changes count as known since. What is pushed
    /// of that, or told the place of, may be older than they are: it is fetched.
    pub(super) fresh_to: Seq,
    /// What was pushed and is not held as pushed. Once it was fetched, it is acknowledged as pushed.
    pushed: BTreeSet<Seq>,
}

#[derive(Debug)]
pub(super) struct Held {
    placed: Placed,
    marks: Option<Marks>,
    source: Source,
}

#[derive(Debug)]
struct Untaken {
    number: u64,
    conversation: ConversationId,
    what: What,
}

#[derive(Clone, Debug)]
pub(super) enum What {
    Message {
        cursor: Cursor,
        ack: Option<AckItem>,
    },
    /// Up to here nothing is shown.
    Gap {
        cursor: Cursor,
    },
    Change {
        rev: u64,
    },
    Hidden {
        seqs: Vec<Seq>,
        /// All up to here, where it is known.
        to: Option<u64>,
    },
}

/// From where a message comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The server sent it by itself and expects an acknowledgement.
    Pushed,
    /// We asked for it.
    Fetched,
    /// It is our own; the server told its place.
    Echo,
}

impl Timeline {
    /// `is_named`: the server's list had it. `listed_rev`: the last change of it that the list told of, which may not
    /// have been shown when the client ended.
    pub(super) fn new(
        conversations: BTreeMap<ConversationId, Kept>,
        mut hidden: BTreeMap<ConversationId, BTreeSet<Seq>>,
        is_named: impl Fn(ConversationId) -> bool,
        listed_rev: impl Fn(ConversationId) -> u64,
    ) -> Timeline {
        let tracks = conversations.into_iter().map(|(conversation, kept)| {
            let hidden = hidden.remove(&conversation).unwrap_or_default();
            let track = Track {
                hidden: Hidden::new(hidden, kept.hidden),
                is_unnamed: !is_named(conversation),
                shown: kept.cursor,
                revs: Revs::behind(kept.rev, listed_rev(conversation)),
                // Pages have not told of it all: what is pushed may be older than the changes that count as known.
                fresh_to: if kept.rev > 0 { kept.known } else { Seq::ZERO },
                kept,
                ..Track::default()
            };
            (conversation, track)
        });
        Timeline {
            tracks: tracks.collect(),
            untaken: VecDeque::new(),
            shown: 0,
            taken: 0,
            held: 0,
            stalled: BTreeSet::new(),
            repeats: Repeats::default(),
        }
    }

    /// Whatever is known to be missing is to be fetched.
    pub(super) fn connected(&self, questions: &mut Questions) {
        for (&conversation, track) in &self.tracks {
            let is_missing = track.is_missing_something() || track.revs.are_missing();
            if is_missing || track.is_missing_hidden() {
                questions.look_at(conversation);
            }
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.ask_rows_again();
        for track in self.tracks.values_mut() {
            track.asked = false;
            track.revs.disconnected();
            track.hidden.disconnected();
            track.pushed.clear();
            track.is_row_asked = false;
            track.waits = false;
            track.suspect = false;
            track.failures = 0;
        }
    }

    pub(super) fn get(&self, conversation: ConversationId) -> Option<&Track> {
        self.tracks.get(&conversation)
    }

    pub(super) fn track_mut(&mut self, conversation: ConversationId) -> Option<&mut Track> {
        self.tracks.get_mut(&conversation)
    }

    pub(super) fn read(
        &mut self,
        conversation: ConversationId,
        seq: Seq,
        id: MessageId,
    ) -> Option<Kept> {
        let kept = &mut self.tracks.get_mut(&conversation)?.kept;
        if seq <= kept.read_acked || kept.read.is_some_and(|(read, _)| seq <= read) {
            return None;
        }
        kept.read = Some((seq, id));
        Some(*kept)
    }

    pub(super) fn read_acked(&mut self, conversation: ConversationId, seq: Seq) -> Option<Kept> {
        let kept = &mut self.tracks.get_mut(&conversation)?.kept;
        kept.read_acked = kept.read_acked.max(seq);
        Some(*kept)
    }

    /// What we have read, where the server knows of less than it confirmed: it lost that.
    pub(super) fn read_lost(
        &mut self,
        conversation: ConversationId,
        theirs: Seq,
    ) -> Option<(Seq, MessageId, Kept)> {
        let kept = &mut self.tracks.get_mut(&conversation)?.kept;
        let (seq, id) = kept.read?;
        if seq <= theirs || seq > kept.read_acked {
            return None;
        }
        kept.read_acked = theirs;
        Some((seq, id, *kept))
    }

    pub(super) fn untaken_len(&self) -> usize {
        self.untaken.len()
    }

    /// The application is being told, under the number that `shown` has now.
    pub(super) fn untaken(&mut self, conversation: ConversationId, what: What) {
        self.untaken.push_back(Untaken {
            number: self.shown,
            conversation,
            what,
        });
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.shown += 1;
        self.shown
    }

    /// Something waits for the application to take what was shown.
    pub(super) fn stall(&mut self, conversation: ConversationId) {
        self.stalled.insert(conversation);
    }

    /// How many more messages may be shown.
    pub(super) fn room(&self, untaken_max: usize) -> usize {
        untaken_max.saturating_sub(self.untaken.len())
    }

    /// The list begins anew: it will not name what was taken from it.
    pub(super) fn forget_names(&mut self) {
        let tracks = self.tracks.values_mut();
        tracks.for_each(|track| track.is_unnamed = true);
    }

    /// Rows that are asked for are asked for once more: no answer will come, or one that is older than the list which is
    /// asked for now.
    pub(super) fn ask_rows_again(&mut self) {
        for track in self.tracks.values_mut() {
            track.is_row_moved |= track.is_row_asked;
        }
    }

    /// Conversations whose row is to be asked for: no list named them, or a word moved it.
    pub(super) fn missing_rows(&self) -> Vec<ConversationId> {
        let missing = (self.tracks.iter()).filter(|(_, track)| track.is_row_missing());
        missing.map(|(conversation, _)| *conversation).collect()
    }

    /// Conversations that the list did not name begin with their first message.
    pub(super) fn decide_all(&mut self) -> Vec<ConversationId> {
        let undecided = (self.tracks.iter_mut()).filter(|(_, track)| track.undecided);
        undecided
            .map(|(&conversation, track)| {
                track.undecided = false;
                conversation
            })
            .collect()
    }

    fn is_untaken(&self, conversation: ConversationId) -> bool {
        (self.untaken.iter()).any(|untaken| untaken.conversation == conversation)
    }
}

impl Track {
    pub(super) fn is_missing_something(&self) -> bool {
        !self.undecided
            && self.shown.seq < self.kept.known
            && !self.held.contains_key(&self.shown.seq.next())
    }

    pub(super) fn is_row_missing(&self) -> bool {
        (self.is_unnamed || self.is_row_moved) && !self.is_row_asked
    }

    /// What is next is to be told now.
    pub(super) fn may_show(&self) -> bool {
        !self.undecided && !self.newest_only && !self.is_missing_hidden()
    }

    pub(super) fn first_held(&self) -> Option<Seq> {
        self.held.first_key_value().map(|(seq, _)| *seq)
    }
}

impl Core {
    /// The conversation, where need be begun.
    pub(super) fn track(&mut self, conversation: ConversationId) -> &mut Track {
        let undecided = self.settings.catch_up != CatchUp::Everything
            && self.questions.list.version == Timestamp::ZERO;
        let tracks = &mut self.timeline.tracks;
        tracks.entry(conversation).or_insert_with(|| Track {
            undecided,
            is_unnamed: true,
            ..Track::default()
        })
    }

    /// A message and its place came, from wherever.
    pub(super) fn place(&mut self, placed: Placed, source: Source) {
        self.place_marked(placed, None, source);
    }

    /// The same, with what has become of it.
    pub(super) fn place_marked(&mut self, placed: Placed, marks: Option<Marks>, source: Source) {
        let Some(me) = self.account.map(|account| account.user) else {
            return;
        };
        let Placed {
            ref message,
            conversation,
            position,
        } = placed;
        if position.seq == Seq::ZERO {
            return;
        }
        if message.from == me && source != Source::Echo {
            let limits = &self.settings.limits;
            let (send_id, id) = (message.send_id, message.id);
            (self.outbox).placed(send_id, id, conversation, position, limits, &mut self.out);
        }
        let track = self.track(conversation);
        track.kept.known = track.kept.known.max(position.seq);
        if position.seq <= track.shown.seq {
            self.repeated(&placed, source, me);
            return;
        }
        match source {
            Source::Pushed | Source::Echo if position.seq <= track.fresh_to => {
                if source == Source::Pushed {
                    track.pushed.insert(position.seq);
                }
            }
            _ => self.hold(placed, marks, source),
        }
        self.show_held(conversation);
        self.fetch_if_missing(conversation);
    }

    /// How its row stands now is for the server to say.
    pub(super) fn row_moved(&mut self, conversation: ConversationId) {
        self.track(conversation).is_row_moved = true;
        self.questions.look_at(conversation);
    }

    /// The server told the place of an own message.
    pub(super) fn echoed(&mut self, echo: &PlacedEcho) {
        let limits = &self.settings.limits;
        let placed = self.outbox.placed(
            echo.send_id,
            echo.id,
            echo.conversation,
            echo.position,
            limits,
            &mut self.out,
        );
        match placed {
            Some(placed) => self.place(placed, Source::Echo),
            None => {
                let track = self.track(echo.conversation);
                track.kept.known = track.kept.known.max(echo.position.seq);
                self.fetch_if_missing(echo.conversation);
            }
        }
    }

    pub(super) fn fetch_if_missing(&mut self, conversation: ConversationId) {
        let is_listing = !self.questions.list_is_done();
        let is_missing = |track: &Track| {
            let is_row_missing = !is_listing && track.is_row_missing();
            !track.waits && (is_row_missing || track.is_missing_something() && !track.asked)
        };
        if (self.timeline.tracks.get(&conversation)).is_some_and(is_missing) {
            self.questions.look_at(conversation);
        }
    }

    /// Shown already: the server may not know.
    fn repeated(&mut self, placed: &Placed, source: Source, me: UserId) {
        let Placed {
            message,
            conversation,
            position,
        } = placed;
        let shown = self.track(*conversation).shown;
        if shown.seq == position.seq && shown.id.is_some_and(|id| id != message.id) {
            self.out.push(Action::Reset(Reset::OtherChain {
                conversation: *conversation,
                seq: position.seq,
            }));
        }
        let Some(ack) = self.ack_for(placed, source, me) else {
            return;
        };
        let untaken = (self.timeline.untaken.iter_mut())
            .filter(|untaken| untaken.conversation == *conversation)
            .find_map(|untaken| match &mut untaken.what {
                What::Message { cursor, ack } if cursor.seq == position.seq => Some(ack),
                _ => None,
            });
        match untaken {
            Some(untaken) => *untaken = Some(ack),
            None => self.acks.received(ack, self.out.durable_with()),
        }
    }

    /// Own messages are acknowledged only where the server waits for it.
    fn ack_for(&self, placed: &Placed, source: Source, me: UserId) -> Option<AckItem> {
        let wanted = source == Source::Pushed || placed.message.from != me;
        (wanted && self.settings.acks).then_some(AckItem {
            conversation: placed.conversation,
            id: placed.message.id,
            seq: placed.position.seq,
        })
    }

    /// Keeps a message until it can be shown. Without room it is fetched again later.
    fn hold(&mut self, placed: Placed, marks: Option<Marks>, source: Source) {
        let held_max = self.settings.limits.held_max;
        let timeline = &mut self.timeline;
        let Some(track) = timeline.tracks.get_mut(&placed.conversation) else {
            return;
        };
        let seq = placed.position.seq;
        // The next one always fits: it leaves at once, or waits alone for the application.
        if timeline.held >= held_max && seq != track.shown.seq.next() {
            if source == Source::Pushed {
                track.pushed.insert(seq);
            }
            return;
        }
        match track.held.get_mut(&seq) {
            Some(held) if source == Source::Pushed => held.source = source,
            Some(_) => {}
            None => {
                let held = Held {
                    placed,
                    marks,
                    source,
                };
                track.held.insert(seq, held);
                timeline.held += 1;
            }
        }
    }

    /// Shows what is next, and what is next after that; then what has become of it.
    pub(super) fn show_held(&mut self, conversation: ConversationId) {
        self.show_messages(conversation);
        self.show_changes(conversation);
    }

    fn show_messages(&mut self, conversation: ConversationId) {
        let untaken_max = self.settings.limits.untaken_max;
        loop {
            let has_room = self.timeline.room(untaken_max) > 0;
            let Some(track) = self.timeline.tracks.get_mut(&conversation) else {
                return;
            };
            if !track.may_show() {
                return;
            }
            let next = track.shown.seq.next();
            if !track.held.contains_key(&next) {
                return;
            }
            if !has_room {
                self.timeline.stalled.insert(conversation);
                return;
            }
            if let Some(held) = track.held.remove(&next) {
                self.timeline.held -= 1;
                self.show(held);
            }
        }
    }

    pub(super) fn show_stalled(&mut self) {
        if self.timeline.stalled.is_empty()
            || self.timeline.room(self.settings.limits.untaken_max) == 0
        {
            return;
        }
        for conversation in std::mem::take(&mut self.timeline.stalled) {
            self.show_held(conversation);
            self.fetch_if_missing(conversation);
        }
    }

    fn show(&mut self, held: Held) {
        let Some(me) = self.account.map(|account| account.user) else {
            return;
        };
        let Held {
            mut placed,
            mut marks,
            source,
        } = held;
        let conversation = placed.conversation;
        let message = &placed.message;
        let seq = placed.position.seq;
        let is_pushed = self.track(conversation).pushed.remove(&seq);
        let source = if is_pushed { Source::Pushed } else { source };
        let ack = self.ack_for(&placed, source, me);
        let before = self.track(conversation).shown.id;
        if before.is_some() && placed.position.prev != before {
            self.out
                .push(Action::Reset(Reset::OtherChain { conversation, seq }));
        }
        let cursor = Cursor {
            seq,
            id: Some(message.id),
            at: message.accepted_at,
        };
        self.track(conversation).shown = cursor;
        let is_new = self.timeline.repeats.is_new(message.from, message.send_id);
        self.timeline.shown += u64::from(is_new);
        self.timeline
            .untaken(conversation, What::Message { cursor, ack });
        let origin = match (message.from == me, message.device == self.settings.device) {
            (false, _) => Origin::Other,
            (true, false) => Origin::OwnElsewhere,
            (true, true) => Origin::OwnHere,
        };
        self.note_shown(&placed, me);
        if is_new {
            self.veil(&mut placed, &mut marks);
            self.out.push(Action::Show(Shown {
                number: self.timeline.shown,
                placed,
                marks,
                origin,
            }));
        } else {
            self.taken(self.timeline.taken);
        }
    }

    /// The application has what was shown up to `number`: keep that, then acknowledge it.
    pub(super) fn taken(&mut self, number: u64) {
        let timeline = &mut self.timeline;
        timeline.taken = timeline.taken.max(number.min(timeline.shown));
        let mut acks = Vec::new();
        let mut hidden = Vec::new();
        let mut moved = BTreeMap::new();
        let mut had: BTreeMap<ConversationId, Vec<Seq>> = BTreeMap::new();
        while let Some(untaken) = timeline.untaken.front()
            && untaken.number <= timeline.taken
        {
            if let Some(track) = timeline.tracks.get_mut(&untaken.conversation) {
                match &untaken.what {
                    &What::Message { cursor, ack } => {
                        let had = had.entry(untaken.conversation).or_default();
                        had.push(cursor.seq);
                        track.kept.cursor = cursor;
                        acks.extend(ack);
                    }
                    &What::Gap { cursor } => track.kept.cursor = cursor,
                    What::Change { rev } => track.kept.rev = *rev,
                    What::Hidden { seqs, to } => {
                        track.kept.hidden = to.unwrap_or(track.kept.hidden);
                        hidden.push((untaken.conversation, seqs.clone()));
                    }
                }
                moved.insert(untaken.conversation, track.kept);
            }
            timeline.untaken.pop_front();
        }
        for (conversation, kept) in moved {
            self.keep(conversation, kept);
        }
        if self.settings.acks {
            for (conversation, seqs) in hidden {
                self.out.change(Change::Hidden(conversation, seqs));
            }
        }
        for (conversation, seqs) in had {
            self.has(conversation, seqs.into_iter());
        }
        let batch = self.out.durable_with();
        for ack in acks {
            self.acks.received(ack, batch);
        }
    }

    /// Goes on after `cursor` without showing what lies before it.
    pub(super) fn skip_to(&mut self, conversation: ConversationId, cursor: Cursor) {
        let is_untaken = self.timeline.is_untaken(conversation);
        let Some(track) = self.timeline.tracks.get_mut(&conversation) else {
            return;
        };
        track.shown = cursor;
        let after = track.held.split_off(&cursor.seq.next());
        self.timeline.held -= std::mem::replace(&mut track.held, after).len();
        track.pushed = track.pushed.split_off(&cursor.seq.next());
        if !is_untaken {
            track.kept.cursor = cursor;
            let kept = track.kept;
            self.keep(conversation, kept);
        }
        self.show_held(conversation);
    }
}

/// The last sends that were shown.
#[derive(Debug, Default)]
struct Repeats {
    known: BTreeSet<(UserId, SendId)>,
    order: VecDeque<(UserId, SendId)>,
}

impl Repeats {
    fn is_new(&mut self, from: UserId, send_id: SendId) -> bool {
        if !self.known.insert((from, send_id)) {
            return false;
        }
        self.order.push_back((from, send_id));
        if self.order.len() > REPEATS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        true
    }
}
