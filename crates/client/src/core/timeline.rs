//! Received messages: each shown once, in the order of its conversation.
//!
//! A conversation has three positions that only move forward: *stored* (on this device, so that it
//! survives a restart), *shown* (handed to the application) and *known* (the server has it). The
//! message right after *shown* is shown next; one at or before it is a repeat; one further on is
//! held until the gap before it is filled.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use protocol::change::MessageMarks;
use protocol::frame::{AckItem, PlacedEcho};
use protocol::{
    ConversationId, Message, MessageId, Options, Placed, SendId, Seq, Timestamp, UserId,
};

use super::changes::ChangeCursors;
use super::hidden_messages::HiddenMessages;
use super::queries::QueryQueue;
use super::snapshot::{Change, ConversationProgress, Cursor};
use super::{CatchUp, Core, Event, Origin, Reset, ShownMessage};

/// Upper bound of sends remembered to recognise one that was placed twice.
const REPEATS_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Timeline {
    tracks: BTreeMap<ConversationId, Track>,
    /// Items shown and not taken, oldest first.
    untaken: VecDeque<UntakenItem>,
    /// Number of the last item shown, and of the last one taken.
    last_shown: u64,
    last_taken: u64,
    /// Number of messages held in all tracks.
    held_count: usize,
    /// Conversations whose next item is here, but the application must take some first.
    stalled_conversations: BTreeSet<ConversationId>,
    repeats: Repeats,
}

/// End of a server's conversation that lies before the last message shown here.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyEnd {
    /// Lowest end that the server named.
    pub(super) end: Cursor,
    /// Time that it has lasted: between answers on one connection, since a server that loses its
    /// power also loses its connections.
    pub(super) duration: Duration,
    /// Time of the last answer on this connection.
    answered_at: Option<Timestamp>,
}

impl EarlyEnd {
    pub(super) const fn new(end: Cursor) -> EarlyEnd {
        EarlyEnd {
            end,
            duration: Duration::ZERO,
            answered_at: None,
        }
    }

    /// Takes another answer that ends too early.
    pub(super) fn answered(&mut self, end: Cursor, now: Timestamp) {
        if end.seq < self.end.seq {
            self.end = end;
        }
        let previous_answer = self.answered_at.replace(now);
        self.duration += now.since(previous_answer.unwrap_or(now));
    }
}

/// One conversation.
#[derive(Debug, Default)]
pub(super) struct Track {
    pub(super) progress: ConversationProgress,
    pub(super) shown_cursor: Cursor,
    pub(super) held_messages: BTreeMap<Seq, HeldMessage>,
    /// Fresh device that does not show everything: the list decides where the conversation begins.
    pub(super) is_undecided: bool,
    /// Only the newest messages are to be fetched.
    pub(super) newest_only: bool,
    /// The server's end seems to lie before *shown*, so the core must ask until it has an answer.
    pub(super) suspect: bool,
    /// Set while all ends that the server names lie before *shown*.
    pub(super) early_end: Option<EarlyEnd>,
    /// A query for its messages is under way.
    pub(super) is_querying: bool,
    /// Consecutive queries without an answer.
    pub(super) failures: u32,
    pub(super) revs: ChangeCursors,
    pub(super) hidden_messages: HiddenMessages,
    /// No list named the conversation: it is new, or was taken from the list before this device had
    /// one. Its row is queried by name.
    pub(super) is_unnamed: bool,
    /// An event said that the user changed the row, and the server was not asked for its state
    /// since.
    pub(super) is_row_moved: bool,
    pub(super) is_row_asked: bool,
    /// A query was refused, and comes again later.
    pub(super) waits: bool,
    /// End of the conversation when this device, which had none of it, first saw it listed; its
    /// changes count as known since. A message up to here that is pushed or echoed may be older
    /// than those changes: it is fetched.
    pub(super) fresh_to: Seq,
    /// A large group: nothing of it is read unless the group is open, or much later.
    pub(super) is_large: bool,
    /// The newest page before this position is to be read.
    pub(super) pull_before: Option<Seq>,
    /// Changes of a large group are to be read.
    pub(super) pulls_changes: bool,
    /// Positions pushed but not held as pushed. Once fetched, they are acknowledged as pushed.
    pushed_seqs: BTreeSet<Seq>,
}

#[derive(Debug)]
pub(super) struct HeldMessage {
    message: Placed,
    marks: Option<MessageMarks>,
    source: ArrivalPath,
}

#[derive(Debug)]
struct UntakenItem {
    number: u64,
    conversation: ConversationId,
    kind: ShownKind,
}

#[derive(Clone, Debug)]
pub(super) enum ShownKind {
    Message {
        cursor: Cursor,
        ack: Option<AckItem>,
    },
    /// Positions up to `cursor`, which are not shown.
    Gap {
        cursor: Cursor,
    },
    Change {
        rev: u64,
    },
    Hidden {
        seqs: Vec<Seq>,
        /// Number of the last hiding that these complete, if known.
        to: Option<u64>,
    },
}

/// Path on which a message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArrivalPath {
    /// Pushed by the server, which expects an acknowledgement.
    Pushed,
    /// Requested by this device.
    Fetched,
    /// Own message whose position the server reported.
    Echo,
}

impl Timeline {
    /// `is_named`: the server's list named the conversation. `listed_rev`: its last change
    /// according to the list, which may not have been shown when the client ended. `is_large`: it is a
    /// large group.
    pub(super) fn new(
        conversations: BTreeMap<ConversationId, ConversationProgress>,
        mut hidden_seqs: BTreeMap<ConversationId, BTreeSet<Seq>>,
        is_named: impl Fn(ConversationId) -> bool,
        listed_rev: impl Fn(ConversationId) -> u64,
        is_large: impl Fn(ConversationId) -> bool,
    ) -> Timeline {
        let tracks = conversations.into_iter().map(|(conversation, progress)| {
            let hidden_seqs = hidden_seqs.remove(&conversation).unwrap_or_default();
            let track = Track {
                hidden_messages: HiddenMessages::new(hidden_seqs, progress.hide_number),
                is_unnamed: !is_named(conversation),
                is_large: is_large(conversation),
                shown_cursor: progress.cursor,
                revs: ChangeCursors::behind(progress.rev, listed_rev(conversation)),
                // Pages did not cover all of it: a pushed message may be older than the changes
                // that count as known.
                fresh_to: if progress.rev > 0 {
                    progress.known_seq
                } else {
                    Seq::ZERO
                },
                progress,
                ..Track::default()
            };
            (conversation, track)
        });
        Timeline {
            tracks: tracks.collect(),
            untaken: VecDeque::new(),
            last_shown: 0,
            last_taken: 0,
            held_count: 0,
            stalled_conversations: BTreeSet::new(),
            repeats: Repeats::default(),
        }
    }

    /// Queues the conversations that are known to miss something.
    pub(super) fn connected(&self, questions: &mut QueryQueue) {
        for (&conversation, track) in &self.tracks {
            let is_missing = track.is_missing_something() || track.wants_changes();
            if is_missing || track.suspect || track.is_missing_hidden() {
                questions.look_at(conversation);
            }
        }
    }

    pub(super) fn disconnected(&mut self) {
        self.ask_rows_again();
        for track in self.tracks.values_mut() {
            track.is_querying = false;
            track.revs.disconnected();
            track.hidden_messages.disconnected();
            track.pushed_seqs.clear();
            track.is_row_asked = false;
            (track.pull_before, track.pulls_changes) = (None, false);
            track.waits = false;
            if let Some(early) = &mut track.early_end {
                early.answered_at = None;
            }
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
    ) -> Option<ConversationProgress> {
        let progress = &mut self.tracks.get_mut(&conversation)?.progress;
        if seq <= progress.read_acked || progress.read.is_some_and(|(read, _)| seq <= read) {
            return None;
        }
        progress.read = Some((seq, id));
        Some(*progress)
    }

    pub(super) fn read_acked(
        &mut self,
        conversation: ConversationId,
        seq: Seq,
    ) -> Option<ConversationProgress> {
        let progress = &mut self.tracks.get_mut(&conversation)?.progress;
        progress.read_acked = progress.read_acked.max(seq);
        Some(*progress)
    }

    /// True while a read of this device waits for the server.
    pub(super) fn is_reading(&self, conversation: ConversationId) -> bool {
        let track = self.tracks.get(&conversation);
        track.is_some_and(|track| track.progress.unconfirmed_read().is_some())
    }

    /// Read position that the server confirmed and then lost.
    pub(super) fn read_lost(
        &mut self,
        conversation: ConversationId,
        theirs: Seq,
    ) -> Option<(Seq, MessageId, ConversationProgress)> {
        let progress = &mut self.tracks.get_mut(&conversation)?.progress;
        let (seq, id) = progress.read?;
        if seq <= theirs || seq > progress.read_acked {
            return None;
        }
        progress.read_acked = theirs;
        Some((seq, id, *progress))
    }

    pub(super) fn untaken_len(&self) -> usize {
        self.untaken.len()
    }

    /// Adds an item shown under the current number.
    pub(super) fn untaken(&mut self, conversation: ConversationId, kind: ShownKind) {
        self.untaken.push_back(UntakenItem {
            number: self.last_shown,
            conversation,
            kind,
        });
    }

    pub(super) fn next_number(&mut self) -> u64 {
        self.last_shown += 1;
        self.last_shown
    }

    /// Records that an item of the conversation waits until the application has taken others.
    pub(super) fn stall(&mut self, conversation: ConversationId) {
        self.stalled_conversations.insert(conversation);
    }

    /// Number of further items that may be shown.
    pub(super) fn room(&self, untaken_max: usize) -> usize {
        untaken_max.saturating_sub(self.untaken.len())
    }

    /// Treats no conversation as named: the list starts over, and will not name those taken from
    /// it.
    pub(super) fn forget_names(&mut self) {
        let tracks = self.tracks.values_mut();
        tracks.for_each(|track| track.is_unnamed = true);
    }

    /// Marks the rows that are being queried to be queried again: either no answer will come, or
    /// it will be older than the list that is requested now.
    pub(super) fn ask_rows_again(&mut self) {
        for track in self.tracks.values_mut() {
            track.is_row_moved |= track.is_row_asked;
        }
    }

    /// Conversations whose row must be requested: no list named them, or an event moved it.
    pub(super) fn missing_rows(&self) -> Vec<ConversationId> {
        let tracks = (self.tracks.iter()).filter(|(_, track)| track.is_row_missing());
        tracks.map(|(conversation, _)| *conversation).collect()
    }

    /// Lets conversations that the list did not name begin with their first message. Returns them.
    pub(super) fn decide_all(&mut self) -> Vec<ConversationId> {
        let tracks = (self.tracks.iter_mut()).filter(|(_, track)| track.is_undecided);
        tracks
            .map(|(&conversation, track)| {
                track.is_undecided = false;
                conversation
            })
            .collect()
    }

    fn is_untaken(&self, conversation: ConversationId) -> bool {
        (self.untaken.iter()).any(|untaken| untaken.conversation == conversation)
    }
}

impl Track {
    /// Records that the server has every message shown here.
    pub(super) fn trust(&mut self) {
        self.suspect = false;
        self.early_end = None;
    }

    /// Whether messages are to be read now.
    pub(super) fn is_missing_something(&self) -> bool {
        let is_wanted = !self.is_large || self.pull_before.is_some();
        is_wanted && self.has_hole()
    }

    /// Whether changes are to be read now.
    pub(super) fn wants_changes(&self) -> bool {
        (!self.is_large || self.pulls_changes) && self.revs.are_missing()
    }

    /// Whether the next message is not here.
    pub(super) fn has_hole(&self) -> bool {
        !self.is_undecided
            && self.shown_cursor.seq < self.progress.known_seq
            && !self
                .held_messages
                .contains_key(&self.shown_cursor.seq.next())
    }

    pub(super) fn is_row_missing(&self) -> bool {
        (self.is_unnamed || self.is_row_moved) && !self.is_row_asked
    }

    /// Whether the next item may be shown now.
    pub(super) fn may_show(&self) -> bool {
        !self.is_undecided && !self.newest_only && !self.is_missing_hidden()
    }

    pub(super) fn first_held(&self) -> Option<Seq> {
        self.held_messages.first_key_value().map(|(seq, _)| *seq)
    }

    /// Position of the first held message, and the message before it.
    pub(super) fn first_held_message(&self) -> Option<(Seq, Option<MessageId>)> {
        let (seq, held_message) = self.held_messages.first_key_value()?;
        Some((*seq, held_message.message.position.prev))
    }
}

impl Core {
    /// Track of the conversation, created on first use.
    pub(super) fn track(&mut self, conversation: ConversationId) -> &mut Track {
        let is_undecided = self.settings.catch_up != CatchUp::Everything
            && self.questions.list.version == Timestamp::ZERO;
        let tracks = &mut self.timeline.tracks;
        tracks.entry(conversation).or_insert_with(|| Track {
            is_undecided,
            is_unnamed: true,
            ..Track::default()
        })
    }

    /// Takes a message and its position, on whichever path it came.
    pub(super) fn accept_message(&mut self, message: Placed, source: ArrivalPath) {
        self.place_marked(message, None, source);
    }

    /// As `accept_message`, with the marks of earlier changes.
    pub(super) fn place_marked(
        &mut self,
        placed_message: Placed,
        marks: Option<MessageMarks>,
        source: ArrivalPath,
    ) {
        let Some(me) = self.account.map(|account| account.user) else {
            return;
        };
        let Placed {
            ref message,
            conversation,
            position,
        } = placed_message;
        if position.seq == Seq::ZERO {
            return;
        }
        if message.from == me && source != ArrivalPath::Echo {
            let limits = &self.settings.limits;
            let (send_id, id) = (message.send_id, message.id);
            (self.outbox).placed(send_id, id, conversation, position, limits, &mut self.out);
        }
        let track = self.track(conversation);
        track.progress.known_seq = track.progress.known_seq.max(position.seq);
        if position.seq <= track.shown_cursor.seq {
            self.ack_repeat(&placed_message, source, me);
            return;
        }
        match source {
            ArrivalPath::Pushed | ArrivalPath::Echo if position.seq <= track.fresh_to => {
                if source == ArrivalPath::Pushed {
                    track.pushed_seqs.insert(position.seq);
                }
            }
            _ => self.hold_message(placed_message, marks, source),
        }
        self.show_held(conversation);
        self.fetch_if_missing(conversation);
    }

    /// Has the row requested: only the server knows its state now.
    pub(super) fn row_moved(&mut self, conversation: ConversationId) {
        self.track(conversation).is_row_moved = true;
        self.questions.look_at(conversation);
    }

    /// Takes the position of an own message.
    pub(super) fn echoed(&mut self, echo: &PlacedEcho) {
        let limits = &self.settings.limits;
        let known_message = self.outbox.placed(
            echo.send_id,
            echo.id,
            echo.conversation,
            echo.position,
            limits,
            &mut self.out,
        );
        match known_message {
            Some(known_message) => self.accept_message(known_message, ArrivalPath::Echo),
            None => {
                let track = self.track(echo.conversation);
                track.progress.known_seq = track.progress.known_seq.max(echo.position.seq);
                self.fetch_if_missing(echo.conversation);
            }
        }
    }

    pub(super) fn fetch_if_missing(&mut self, conversation: ConversationId) {
        let is_listing = !self.questions.list_is_done();
        let is_missing = |track: &Track| {
            let is_row_missing = !is_listing && track.is_row_missing();
            !track.waits && (is_row_missing || track.is_missing_something() && !track.is_querying)
        };
        if (self.timeline.tracks.get(&conversation)).is_some_and(is_missing) {
            self.questions.look_at(conversation);
        }
    }

    /// Acknowledges a message shown already: the server may not know.
    fn ack_repeat(&mut self, placed_message: &Placed, source: ArrivalPath, me: UserId) {
        let Placed {
            message,
            conversation,
            position,
        } = placed_message;
        let shown_cursor = self.track(*conversation).shown_cursor;
        if shown_cursor.seq == position.seq && shown_cursor.id.is_some_and(|id| id != message.id) {
            self.out.emit_event(Event::Reset(Reset::OtherChain {
                conversation: *conversation,
                seq: position.seq,
            }));
        }
        let Some(ack) = self.ack_for(placed_message, source, me) else {
            return;
        };
        let untaken = (self.timeline.untaken.iter_mut())
            .filter(|untaken| untaken.conversation == *conversation)
            .find_map(|untaken| match &mut untaken.kind {
                ShownKind::Message { cursor, ack } if cursor.seq == position.seq => Some(ack),
                _ => None,
            });
        match untaken {
            Some(untaken) => *untaken = Some(ack),
            None => self.acks.received(ack, self.out.durable_with()),
        }
    }

    /// Acknowledgement of a message. An own one, or one of a large group, gets it only if the server
    /// waits for it.
    fn ack_for(&self, placed_message: &Placed, source: ArrivalPath, me: UserId) -> Option<AckItem> {
        let Message { from, options, .. } = placed_message.message;
        let is_pushed = source == ArrivalPath::Pushed;
        let needs_ack = if self.list.is_large(placed_message.conversation) {
            is_pushed && options.has(Options::NEEDS_ACK)
        } else {
            is_pushed || from != me
        };
        (needs_ack && self.settings.acks).then_some(AckItem {
            conversation: placed_message.conversation,
            id: placed_message.message.id,
            seq: placed_message.position.seq,
        })
    }

    /// Keeps a message until it can be shown. Without room, it is fetched again later.
    fn hold_message(
        &mut self,
        placed_message: Placed,
        marks: Option<MessageMarks>,
        source: ArrivalPath,
    ) {
        let held_max = self.settings.limits.held_max;
        let timeline = &mut self.timeline;
        let Some(track) = timeline.tracks.get_mut(&placed_message.conversation) else {
            return;
        };
        let seq = placed_message.position.seq;
        // The next message always fits: it leaves at once, or waits alone for the application.
        if timeline.held_count >= held_max && seq != track.shown_cursor.seq.next() {
            if source == ArrivalPath::Pushed {
                track.pushed_seqs.insert(seq);
            }
            return;
        }
        match track.held_messages.get_mut(&seq) {
            Some(held_message) if source == ArrivalPath::Pushed => held_message.source = source,
            Some(_) => {}
            None => {
                let held_message = HeldMessage {
                    message: placed_message,
                    marks,
                    source,
                };
                track.held_messages.insert(seq, held_message);
                timeline.held_count += 1;
            }
        }
    }

    /// Drops the messages of a group that its user has left: those before them cannot be fetched any
    /// more. The server waits for the acknowledgements of pushed ones, and would end the session.
    pub(super) fn drop_held(&mut self, conversation: ConversationId) {
        let Some(me) = self.account.map(|account| account.user) else {
            return;
        };
        let held_messages = std::mem::take(&mut self.track(conversation).held_messages);
        self.timeline.held_count -= held_messages.len();
        let pushed_messages = held_messages
            .into_values()
            .filter(|held_message| held_message.source == ArrivalPath::Pushed);
        for HeldMessage {
            message, source, ..
        } in pushed_messages
        {
            if let Some(ack) = self.ack_for(&message, source, me) {
                self.acks.received(ack, None);
            }
        }
    }

    /// Shows the messages that are next, then their changes.
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
            let next = track.shown_cursor.seq.next();
            if !track.held_messages.contains_key(&next) {
                return;
            }
            if !has_room {
                self.timeline.stalled_conversations.insert(conversation);
                return;
            }
            if let Some(held_message) = track.held_messages.remove(&next) {
                self.timeline.held_count -= 1;
                self.show(held_message);
            }
        }
    }

    pub(super) fn show_stalled(&mut self) {
        if self.timeline.stalled_conversations.is_empty()
            || self.timeline.room(self.settings.limits.untaken_max) == 0
        {
            return;
        }
        for conversation in std::mem::take(&mut self.timeline.stalled_conversations) {
            self.show_held(conversation);
            self.fetch_if_missing(conversation);
        }
    }

    fn show(&mut self, held_message: HeldMessage) {
        let Some(me) = self.account.map(|account| account.user) else {
            return;
        };
        let HeldMessage {
            message: mut placed_message,
            mut marks,
            source,
        } = held_message;
        let conversation = placed_message.conversation;
        let message = &placed_message.message;
        let seq = placed_message.position.seq;
        let is_pushed = self.track(conversation).pushed_seqs.remove(&seq);
        let source = if is_pushed {
            ArrivalPath::Pushed
        } else {
            source
        };
        let ack = self.ack_for(&placed_message, source, me);
        let previous_id = self.track(conversation).shown_cursor.id;
        if previous_id.is_some() && placed_message.position.prev != previous_id {
            self.out
                .emit_event(Event::Reset(Reset::OtherChain { conversation, seq }));
        }
        let cursor = Cursor {
            seq,
            id: Some(message.id),
            at: message.accepted_at,
        };
        self.track(conversation).shown_cursor = cursor;
        let send = (message.from, conversation, message.send_id);
        let is_new = self.timeline.repeats.is_new(send);
        self.timeline.last_shown += u64::from(is_new);
        self.timeline
            .untaken(conversation, ShownKind::Message { cursor, ack });
        let origin = match (message.from == me, message.device == self.settings.device) {
            (false, _) => Origin::Other,
            (true, false) => Origin::OwnElsewhere,
            (true, true) => Origin::OwnHere,
        };
        self.note_shown(&placed_message, me);
        if is_new {
            self.hide_content(&mut placed_message, &mut marks);
            self.out.emit_event(Event::Message(ShownMessage {
                number: self.timeline.last_shown,
                placed: placed_message,
                marks,
                origin,
            }));
        } else {
            self.mark_taken(self.timeline.last_taken);
        }
    }

    /// Records that the application has everything shown up to `number`, then acknowledges it.
    pub(super) fn mark_taken(&mut self, number: u64) {
        let timeline = &mut self.timeline;
        timeline.last_taken = timeline.last_taken.max(number.min(timeline.last_shown));
        let mut acks = Vec::new();
        let mut hidden_seqs = Vec::new();
        let mut changed_progress = BTreeMap::new();
        let mut taken_seqs: BTreeMap<ConversationId, Vec<Seq>> = BTreeMap::new();
        while let Some(untaken) = timeline.untaken.front()
            && untaken.number <= timeline.last_taken
        {
            if let Some(track) = timeline.tracks.get_mut(&untaken.conversation) {
                match &untaken.kind {
                    &ShownKind::Message { cursor, ack } => {
                        let taken_seqs = taken_seqs.entry(untaken.conversation).or_default();
                        taken_seqs.push(cursor.seq);
                        track.progress.cursor = cursor;
                        acks.extend(ack);
                    }
                    &ShownKind::Gap { cursor } => track.progress.cursor = cursor,
                    ShownKind::Change { rev } => track.progress.rev = *rev,
                    ShownKind::Hidden { seqs, to } => {
                        track.progress.hide_number = to.unwrap_or(track.progress.hide_number);
                        hidden_seqs.push((untaken.conversation, seqs.clone()));
                    }
                }
                changed_progress.insert(untaken.conversation, track.progress);
            }
            timeline.untaken.pop_front();
        }
        for (conversation, kept) in changed_progress {
            self.store_progress(conversation, kept);
        }
        if self.settings.acks {
            for (conversation, seqs) in hidden_seqs {
                self.out.change(Change::Hidden(conversation, seqs));
            }
        }
        for (conversation, seqs) in taken_seqs {
            self.has(conversation, seqs.into_iter());
        }
        let batch = self.out.durable_with();
        for ack in acks {
            self.acks.received(ack, batch);
        }
    }

    /// Goes on after `cursor` without showing messages before it.
    pub(super) fn skip_to(&mut self, conversation: ConversationId, cursor: Cursor) {
        let is_untaken = self.timeline.is_untaken(conversation);
        let Some(track) = self.timeline.tracks.get_mut(&conversation) else {
            return;
        };
        track.shown_cursor = cursor;
        let later_messages = track.held_messages.split_off(&cursor.seq.next());
        self.timeline.held_count -=
            std::mem::replace(&mut track.held_messages, later_messages).len();
        track.pushed_seqs = track.pushed_seqs.split_off(&cursor.seq.next());
        if !is_untaken {
            track.progress.cursor = cursor;
            let progress = track.progress;
            self.store_progress(conversation, progress);
        }
        self.show_held(conversation);
    }
}

/// Last sends shown.
#[derive(Debug, Default)]
struct Repeats {
    known_sends: BTreeSet<SendKey>,
    order: VecDeque<SendKey>,
}

/// A sender may use one send_id for several receivers: those are several messages.
type SendKey = (UserId, ConversationId, SendId);

impl Repeats {
    fn is_new(&mut self, send: SendKey) -> bool {
        if !self.known_sends.insert(send) {
            return false;
        }
        self.order.push_back(send);
        if self.order.len() > REPEATS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known_sends.remove(&oldest);
        }
        true
    }
}
