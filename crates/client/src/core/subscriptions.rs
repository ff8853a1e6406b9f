//! Large groups: their messages come to who subscribes, and nothing of them is owed to this device.
//!
//! The device says what it has of each; the server says how far each is, by a message or by a
//! signal. A signal moves the group's row. Messages are read when the user has the group open, and
//! then the newest page at most: before it lies a gap that the application may load. Devices spread
//! these reads, since all of them get the same signal.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use protocol::frame::{ClientFrame, Summary};
use protocol::pause::{between, mix};
use protocol::subscription::{GROUPS_MAX, GroupEnd, GroupSignal, SubscriptionState, WATCHED_MAX};
use protocol::{ConversationId, GroupId, Seq, SessionId, Timestamp};

use super::{Core, Cursor};

/// Time for messages that come by another path to fill a gap, before anything is done about it.
const GAP_WAIT: Duration = Duration::from_secs(1);

/// Least time between two questions for the row of one group.
const ROW_INTERVAL: Duration = Duration::from_secs(30);

/// Time before a group is subscribed to anew after the server took it from the set.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    /// Set that the server has, in order; `None`: none on this connection.
    sent_groups: Option<Vec<GroupId>>,
    /// Whether rows have changed since the set was made.
    is_stale: bool,
    /// Groups that the user has open, and whether the server knows.
    open_groups: Vec<GroupId>,
    is_watch_sent: bool,
    /// Groups whose rows the user sees.
    visible_groups: BTreeSet<GroupId>,
    /// What signals said.
    news: BTreeMap<GroupId, News>,
    /// Groups to look at, since a message or a change is missing.
    checks: BTreeMap<GroupId, Timestamp>,
    /// Groups whose row is to be asked for.
    rows_due: BTreeMap<GroupId, Timestamp>,
    /// Time of the last question for a row.
    rows_asked: BTreeMap<GroupId, Timestamp>,
    /// Groups for which the server has no seat: their rows are asked for.
    unseated_groups: BTreeSet<GroupId>,
    /// Groups that the server took from the set, until then.
    paused_groups: BTreeMap<GroupId, Timestamp>,
    /// Source of the random parts.
    seed: u64,
}

/// How far a group is, by the last signal.
#[derive(Clone, Copy, Debug, Default)]
struct News {
    end: GroupEnd,
    spread: Duration,
}

impl Subscriptions {
    pub(super) fn connected(&mut self, session: SessionId, now: Timestamp) {
        self.seed = mix(self.seed, session.get() as u64);
        self.is_stale = true;
        for group in self.open_groups.clone() {
            self.check(group, now);
        }
        self.is_watch_sent = self.open_groups.is_empty();
    }

    /// Forgets what the server knew: the next one learns it anew.
    pub(super) fn disconnected(&mut self) {
        self.sent_groups = None;
        self.unseated_groups.clear();
        self.paused_groups.clear();
        self.checks.clear();
        self.rows_due.clear();
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let due_times = (self.checks.values()).chain(self.rows_due.values());
        due_times.chain(self.paused_groups.values()).copied().min()
    }

    fn is_open(&self, group: GroupId) -> bool {
        self.open_groups.contains(&group)
    }

    fn news(&self, group: GroupId) -> News {
        self.news.get(&group).copied().unwrap_or_default()
    }

    /// Has the group looked at, not later than this.
    fn check(&mut self, group: GroupId, at: Timestamp) {
        let due_at = self.checks.entry(group).or_insert(at);
        *due_at = at.min(*due_at);
    }

    /// Has the group's row asked for, not more often than [`ROW_INTERVAL`].
    fn ask_row(&mut self, group: GroupId, at: Timestamp) {
        let asked_at = self.rows_asked.get(&group);
        let at = asked_at.map_or(at, |&asked_at| at.max(asked_at + ROW_INTERVAL));
        self.rows_due.entry(group).or_insert(at);
    }

    /// A random part of the time over which devices spread their reads.
    fn part_of(&self, spread: Duration, group: GroupId, seq: Seq) -> Duration {
        let random = mix(mix(self.seed, group.get() as u64), seq.0);
        between(Duration::ZERO, spread, random)
    }
}

impl Core {
    /// Sets the groups that the user has open: the messages of large ones come in full. Beyond
    /// [`WATCHED_MAX`], the last ones do not count.
    pub fn open_groups(&mut self, groups: &[GroupId], now: Timestamp) {
        let open_groups: Vec<GroupId> = groups.iter().copied().take(WATCHED_MAX).collect();
        if open_groups == self.subscriptions.open_groups {
            return;
        }
        let former_groups = std::mem::replace(&mut self.subscriptions.open_groups, open_groups);
        self.subscriptions.is_watch_sent = false;
        for group in self.subscriptions.open_groups.clone() {
            if !former_groups.contains(&group) {
                self.subscriptions.check(group, now);
            }
        }
        self.check_large_groups(now);
        self.go_on(now);
    }

    /// Sets the groups whose rows the user sees: those of large ones are kept up to date.
    pub fn show_groups(&mut self, groups: &[GroupId]) {
        self.subscriptions.visible_groups = groups.iter().copied().collect();
    }

    /// Takes how far some groups are.
    pub(super) fn signalled(&mut self, signals: Vec<GroupSignal>, now: Timestamp) {
        for signal in signals {
            let group = signal.group;
            match signal.state {
                SubscriptionState::Subscribed => self.note_signal(&signal, now),
                SubscriptionState::Small | SubscriptionState::Gone => {
                    let until = now + RESUBSCRIBE_PAUSE;
                    self.subscriptions.paused_groups.insert(group, until);
                    self.subscriptions.is_stale = true;
                    self.row_moved(ConversationId::Group(group));
                }
                SubscriptionState::Full => {
                    self.subscriptions.unseated_groups.insert(group);
                    self.subscriptions.ask_row(group, now + ROW_INTERVAL);
                }
            }
        }
    }

    fn note_signal(&mut self, signal: &GroupSignal, now: Timestamp) {
        let GroupSignal {
            group, end, spread, ..
        } = *signal;
        self.subscriptions.unseated_groups.remove(&group);
        let news = self.subscriptions.news.entry(group).or_default();
        (news.end, news.spread) = (news.end.max(end), spread);
        let conversation = ConversationId::Group(group);
        let row = self.list.signalled(conversation, end.seq, signal.at);
        let has_moved = row.is_some();
        self.tell_row(row);
        let at = now + self.subscriptions.part_of(spread, group, end.seq);
        if self.subscriptions.is_open(group) {
            self.subscriptions.check(group, at);
        }
        if has_moved && self.subscriptions.visible_groups.contains(&group) {
            self.subscriptions.ask_row(group, at);
        }
    }

    /// Takes a row from the server, whose group is large now.
    pub(super) fn large_group_listed(&mut self, group: GroupId, summary: &Summary, now: Timestamp) {
        let track = self.track(ConversationId::Group(group));
        track.is_undecided = false;
        if track.shown_cursor.seq > summary.seq {
            self.suspect(ConversationId::Group(group));
        }
        let news = self.subscriptions.news.entry(group).or_default();
        news.end = news.end.max(GroupEnd {
            seq: summary.seq,
            rev: summary.rev,
        });
        if self.subscriptions.is_open(group) {
            self.subscriptions.check(group, now);
        }
        if self.subscriptions.unseated_groups.contains(&group) {
            self.subscriptions.ask_row(group, now + ROW_INTERVAL);
        }
        self.check_later(ConversationId::Group(group), now);
    }

    /// Notes that a row says otherwise than before whether the user is in a large group.
    pub(super) fn large_groups_changed(&mut self) {
        self.subscriptions.is_stale = true;
    }

    /// Has a large group looked at after a while, if something before its held messages or changes
    /// is missing.
    pub(super) fn check_later(&mut self, conversation: ConversationId, now: Timestamp) {
        let ConversationId::Group(group) = conversation else {
            return;
        };
        let Some(track) = self.timeline.get(conversation) else {
            return;
        };
        let has_hole = track.has_hole() || track.revs.are_missing();
        if track.is_large && has_hole {
            let spread = self.subscriptions.news(group).spread;
            let seq = track.progress.known_seq;
            let part = self.subscriptions.part_of(spread, group, seq);
            self.subscriptions.check(group, now + GAP_WAIT + part);
        }
    }

    /// Does what is due for large groups. The connection is live.
    pub(super) fn check_large_groups(&mut self, now: Timestamp) {
        if !self.link.is_live() {
            return;
        }
        for group in take_due(&mut self.subscriptions.checks, now) {
            self.check_large_group(group, now);
        }
        for group in take_due(&mut self.subscriptions.rows_due, now) {
            self.subscriptions.rows_asked.insert(group, now);
            self.row_moved(ConversationId::Group(group));
        }
        if !take_due(&mut self.subscriptions.paused_groups, now).is_empty() {
            self.subscriptions.is_stale = true;
        }
    }

    /// Looks whether messages or changes of a large group are missing: of one that is open, the
    /// newest page is read; of another, what is missing is reported.
    fn check_large_group(&mut self, group: GroupId, now: Timestamp) {
        let conversation = ConversationId::Group(group);
        let (known_end, is_open) = (self.known_end(group), self.subscriptions.is_open(group));
        let page = u64::from(self.settings.limits.page);
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        if !track.is_large {
            return;
        }
        if track.is_querying {
            // What is missing may be on its way.
            return self.subscriptions.check(group, now + GAP_WAIT);
        }
        if is_open {
            track.progress.known_seq = track.progress.known_seq.max(known_end.seq);
            track.revs.know(known_end.rev);
        }
        if track.revs.missing_count() > page {
            // Pages of messages show them as they are now.
            track.revs.skip();
            track.progress.rev = track.revs.last_shown;
            let progress = track.progress;
            self.store_progress(conversation, progress);
        }
        let Some(track) = self.timeline.track_mut(conversation) else {
            return;
        };
        track.pulls_changes = track.revs.are_missing();
        let shown_seq = track.shown_cursor.seq;
        let is_behind = track.progress.known_seq > shown_seq
            && !track.held_messages.contains_key(&shown_seq.next());
        if is_open && is_behind {
            track.pull_before = Some(track.progress.known_seq.next());
        }
        let is_pulling = track.pulls_changes || track.pull_before.is_some();
        if !is_open && let Some((first_held, prev)) = track.first_held_message() {
            let cursor = Cursor {
                seq: Seq(first_held.0 - 1),
                id: prev,
                at: track.shown_cursor.at,
            };
            if cursor.seq > shown_seq {
                self.leave_out(conversation, cursor);
            }
        }
        if is_pulling {
            self.questions.look_at(conversation);
        }
        self.show_held(conversation);
    }

    /// Sends the set of large groups, and those that are open, where the server has others.
    pub(super) fn subscribe(&mut self, now: Timestamp) {
        if std::mem::take(&mut self.subscriptions.is_stale) {
            let groups = self.wanted_groups(now);
            let mut sorted_groups = groups.clone();
            sorted_groups.sort_unstable();
            let has_none = self.subscriptions.sent_groups.is_none() && groups.is_empty();
            if self.subscriptions.sent_groups.as_ref() != Some(&sorted_groups) && !has_none {
                let ends = groups.iter().map(|group| (*group, self.known_end(*group)));
                let frame = ClientFrame::Subscribe(ends.collect());
                self.out.transmit(frame);
                self.subscriptions.sent_groups = Some(sorted_groups);
            }
        }
        let has_set = self.subscriptions.sent_groups.is_some();
        if has_set && !std::mem::replace(&mut self.subscriptions.is_watch_sent, true) {
            let frame = ClientFrame::Watch(self.subscriptions.open_groups.clone());
            self.out.transmit(frame);
        }
    }

    /// Large groups of the list: open ones first, then by time. Those for which there is no room
    /// are asked for by row.
    fn wanted_groups(&mut self, now: Timestamp) -> Vec<GroupId> {
        let subscriptions = &self.subscriptions;
        let large_rows = (self.list.rows()).filter(|row| row.is_large && row.role.is_some());
        let mut ranked_groups: Vec<(bool, Timestamp, GroupId)> = large_rows
            .filter_map(|row| match row.conversation {
                ConversationId::Group(group) => {
                    Some((subscriptions.is_open(group), row.version, group))
                }
                ConversationId::Private { .. } | ConversationId::System(_) => None,
            })
            .filter(|(_, _, group)| !subscriptions.paused_groups.contains_key(group))
            .collect();
        ranked_groups.sort_unstable();
        let groups = ranked_groups.into_iter().rev().map(|(_, _, group)| group);
        let mut groups: Vec<GroupId> = groups.collect();
        for group in groups.split_off(groups.len().min(GROUPS_MAX)) {
            self.subscriptions.unseated_groups.insert(group);
            self.subscriptions.ask_row(group, now + ROW_INTERVAL);
        }
        groups
    }

    /// What this device knows of a group: it need not be told again.
    fn known_end(&self, group: GroupId) -> GroupEnd {
        let conversation = ConversationId::Group(group);
        let row = self.list.row(conversation);
        let row_end = row.map_or_else(GroupEnd::default, |row| GroupEnd {
            seq: row.seq,
            rev: row.rev,
        });
        row_end.max(self.subscriptions.news(group).end)
    }
}

/// Takes out what is due.
fn take_due(due_times: &mut BTreeMap<GroupId, Timestamp>, now: Timestamp) -> Vec<GroupId> {
    let due = due_times.iter().filter(|(_, at)| **at <= now);
    let due: Vec<GroupId> = due.map(|(group, _)| *group).collect();
    for group in &due {
        due_times.remove(group);
    }
    due
}
