//! Cache of users and groups beside the stores, so that a returning client costs the stores nothing
//! (S0-10).
//!
//! A cache entry is valid until something newer than it has been delivered to anyone. So a record's
//! entries are renewed or invalidated after the stores have the record, and **before** the carrier
//! looks for sessions to deliver it to: a client that connects after that look also asks after it,
//! and finds the record in its list. A reader that fills an entry from the stores presents the
//! token it got before it read; any invalidation in between voids the token.
//!
//! An entry carries the time of its read. An answer from several entries is as old as the oldest of
//! them, and never moves a client's list version beyond that: should an entry be stale, the next
//! list makes up for it.

mod entries;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::entries::Entries;
use crate::change::ChangeScope;
use crate::conversation::{Head, ListEntry, ListRegisters};
use crate::group::{GroupSettings, Member};
use crate::reading::{GroupListEntry, readable_after};
use crate::{ConversationId, GroupId, Placed, Seq, Timestamp, UserId};

/// Owner of a cache entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CacheKey {
    User(UserId),
    Group(GroupId),
}

/// Extent of a group's cache entry: its last position and last change. A user's entry has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Coverage {
    pub seq: Seq,
    pub rev: u64,
}

impl Coverage {
    /// Whether `self` reaches at least as far as `other`.
    pub fn covers(self, other: Coverage) -> bool {
        self.seq >= other.seq && self.rev >= other.rev
    }
}

/// A cache entry that a record may have made stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Invalidation {
    pub owner: CacheKey,
    /// An entry that covers this is still valid. `None`: no entry is.
    pub unless: Option<Coverage>,
}

impl Invalidation {
    /// Invalidates the owner's entry, whatever it covers.
    pub fn of(owner: CacheKey) -> Invalidation {
        Invalidation {
            owner,
            unless: None,
        }
    }
}

/// A group, as all its members see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupEntry {
    /// Time before the read.
    pub at: Timestamp,
    pub head: Head,
    /// No message behind this position was ever changed.
    pub changed_to: Seq,
    /// `None` if unknown.
    pub settings: Option<GroupSettings>,
    /// Not stored: entries of dissolved groups are not cached.
    #[serde(skip)]
    pub is_dissolved: bool,
}

impl GroupEntry {
    /// Entry from the stores, which tell how many changes there are, but not of which messages.
    pub fn read(at: Timestamp, head: Head, settings: Option<GroupSettings>) -> GroupEntry {
        GroupEntry {
            at,
            head,
            changed_to: changed_to(head.rev, head.seq),
            settings,
            is_dissolved: false,
        }
    }

    /// Entry after the group's writer moved the head from this one; `changes` are the changes of
    /// this batch, each with the position of its message. `None` for a late writer: another one has
    /// written since, and invalidated the entry.
    pub fn moved(&self, head: Head, changes: &BTreeMap<u64, Seq>) -> Option<GroupEntry> {
        if self.head.version > head.version {
            return None;
        }
        let mut entry = GroupEntry::read(head.stamp, head, self.settings);
        let mut new_revs = self.head.rev + 1..=head.rev;
        if new_revs.all(|rev| changes.contains_key(&rev)) {
            let last_changed = changes.values().copied().max();
            entry.changed_to = self.changed_to.max(last_changed.unwrap_or_default());
        }
        Some(entry)
    }

    pub fn reach(&self) -> Coverage {
        Coverage {
            seq: self.head.seq,
            rev: self.head.rev,
        }
    }
}

/// Membership of a user in a group, and the user's registers of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberEntry {
    pub member: Member,
    pub registers: ListRegisters,
}

impl MemberEntry {
    /// Entry for the user's list.
    pub fn listed(&self, group: GroupId, group_entry: &GroupEntry) -> GroupListEntry {
        let MemberEntry {
            mut member,
            registers,
        } = *self;
        let mut touched_at = registers.touched;
        // A large group was dissolved without a write for each member.
        if group_entry.is_dissolved {
            member.role = None;
            touched_at = touched_at.max(group_entry.head.stamp);
        }
        GroupListEntry {
            group,
            member,
            head: group_entry.head,
            changed_to: group_entry.changed_to,
            read_seq: registers.read_seq,
            cleared_tally: registers.cleared,
            touched_at,
            arrangement: registers.arranged,
            hide_mark: registers.hidden,
        }
    }
}

/// Everything in a user's list but the groups' own entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserEntry {
    /// Time before the read.
    pub at: Timestamp,
    /// No private conversation changed at this time or later.
    pub private_before: Timestamp,
    /// All groups of the user.
    pub groups: BTreeMap<GroupId, MemberEntry>,
}

impl UserEntry {
    /// Whether no private conversation is in a list difference from `from` on.
    pub fn is_private_quiet(&self, from: Timestamp) -> bool {
        self.private_before <= from
    }

    /// Position behind which the user may read a group; `None` if only the stores can tell.
    pub fn readable_after(&self, group: GroupId, entry: &GroupEntry) -> Option<Seq> {
        let member = self.groups.get(&group)?.member;
        readable_after(entry.settings?, Some(&member)).ok()
    }

    /// Takes up a read marker written at `at`. As the registers do, it only moves forward.
    pub fn read(&mut self, conversation: ConversationId, seq: Seq, at: Timestamp) {
        match conversation {
            ConversationId::Group(group) => {
                if let Some(MemberEntry { registers, .. }) = self.groups.get_mut(&group) {
                    registers.read_seq = registers.read_seq.max(seq);
                    registers.received_seq = registers.received_seq.max(seq);
                    registers.touched = registers.touched.max(at);
                }
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                let upper_bound = at + Duration::from_millis(1);
                self.private_before = self.private_before.max(upper_bound);
            }
        }
    }
}

/// Whether an entry read at `at` is believed. An entry may be found for longer than it is valid, and
/// nobody knows the age of one that is of a clock far ahead.
pub fn is_valid(at: Timestamp, keep_for: Duration, now: Timestamp) -> bool {
    at + keep_for > now && at <= now + keep_for
}

/// Time from which on no private conversation has changed, given that `changed_entries`
/// are all that did from `from` on.
pub fn private_before(changed_entries: &[ListEntry], from: Timestamp) -> Timestamp {
    let newest = changed_entries.iter().map(ListEntry::version).max();
    newest.map_or(from, |newest| newest + Duration::from_millis(1))
}

/// Position behind which no message was changed, as far as the conversation's end and its number of
/// changes tell.
pub fn changed_to(rev: u64, end: Seq) -> Seq {
    match rev {
        0 => Seq::ZERO,
        _ => end,
    }
}

/// Cache entries that a record makes stale, before it is delivered to `user`; `rev` is the change's
/// rev, if it is one. The writer may have renewed the group's entry already; a member's role and
/// registers are in the user's entry.
pub fn outdated(placed: &Placed, rev: u64, user: UserId) -> Vec<Invalidation> {
    let user_invalidation = Invalidation::of(CacheKey::User(user));
    let ConversationId::Group(group) = placed.conversation else {
        return vec![user_invalidation];
    };
    let group_invalidation = |unless| Invalidation {
        owner: CacheKey::Group(group),
        unless,
    };
    let change = placed.message.content.change.as_deref();
    match change.map(|change| change.kind.scope()) {
        Some(ChangeScope::Group) => vec![group_invalidation(None), user_invalidation],
        Some(ChangeScope::List) => vec![user_invalidation],
        Some(ChangeScope::Message) | None => {
            let seq = placed.position.seq;
            vec![group_invalidation(Some(Coverage { seq, rev }))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{ChangeKind, ChangeOf, ListArrangement};
    use crate::group::{GroupCommand, Role};
    use crate::history::Version;
    use crate::message::Content;
    use crate::{DeviceId, Message, MessageId, Options, Position, Recipient, SendId};

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn group() -> GroupId {
        GroupId::new(7).expect("positive")
    }

    fn placed(to: Recipient, kind: Option<ChangeKind>) -> Placed {
        let subject = MessageId::new(1).ok();
        let change = kind.map(|kind| Box::new(ChangeOf { subject, kind }));
        let message = Message {
            id: MessageId::new(9).expect("positive"),
            from: user(1),
            to,
            accepted_at: Timestamp::ZERO,
            device: DeviceId::new("d").expect("short"),
            send_id: SendId::from_bytes([1; 16]),
            options: Options::CHAT,
            content: Content {
                change,
                ..Content::text("x")
            },
        };
        Placed {
            conversation: message.conversation().expect("it belongs to one"),
            position: Position {
                seq: Seq(5),
                prev: None,
            },
            message,
        }
    }

    #[test]
    fn a_record_makes_old_what_speaks_of_it() {
        let user_invalidation = Invalidation {
            owner: CacheKey::User(user(2)),
            unless: None,
        };
        let group_invalidation = |unless| Invalidation {
            owner: CacheKey::Group(group()),
            unless,
        };
        let coverage = |rev| Some(Coverage { seq: Seq(5), rev });
        let private = Recipient::User(user(2));
        let recall = || Some(ChangeKind::Recall);
        let arrange = || Some(ChangeKind::Arrange(ListArrangement::default()));
        for kind in [None, recall(), arrange(), Some(ChangeKind::Hide)] {
            assert_eq!(
                outdated(&placed(private, kind), 3, user(2)),
                [user_invalidation]
            );
        }
        let group_invalidations =
            |kind, rev| outdated(&placed(Recipient::Group(group()), kind), rev, user(2));
        assert_eq!(
            group_invalidations(None, 0),
            [group_invalidation(coverage(0))]
        );
        assert_eq!(
            group_invalidations(recall(), 3),
            [group_invalidation(coverage(3))]
        );
        for kind in [ChangeKind::Clear, ChangeKind::Hide] {
            assert_eq!(group_invalidations(Some(kind), 0), [user_invalidation]);
        }
        assert_eq!(group_invalidations(arrange(), 0), [user_invalidation]);
        let command = Some(ChangeKind::GroupCommand(GroupCommand::Leave));
        assert_eq!(
            group_invalidations(command, 0),
            [group_invalidation(None), user_invalidation]
        );
    }

    #[test]
    fn a_copy_covers_what_it_has() {
        let reach = |seq, rev| Coverage { seq: Seq(seq), rev };
        assert!(reach(5, 3).covers(reach(5, 0)));
        assert!(reach(5, 3).covers(reach(2, 3)));
        assert!(!reach(5, 3).covers(reach(6, 0)));
        assert!(!reach(5, 3).covers(reach(2, 4)));
    }

    #[test]
    fn a_writer_renews_what_is_not_later_than_its_own() {
        let head = |seq, rev, offset| Head {
            seq: Seq(seq),
            rev,
            stamp: Timestamp::from_millis(offset as i64),
            version: Version { epoch: 1, offset },
            ..Head::default()
        };
        let settings = Some(GroupSettings {
            open_history: true,
            ..GroupSettings::CLOSED
        });
        let changes = |revs: &[(u64, u64)]| {
            let revs = revs.iter().map(|(rev, seq)| (*rev, Seq(*seq)));
            revs.collect::<BTreeMap<_, _>>()
        };
        let read = |head| GroupEntry::read(Timestamp::ZERO, head, settings);
        assert_eq!(read(head(5, 0, 10)).changed_to, Seq::ZERO);
        let entry = read(head(5, 2, 10));
        assert_eq!(entry.changed_to, Seq(5));
        let next_entry = entry.moved(head(9, 2, 14), &changes(&[]));
        let next_entry = next_entry.expect("a later one");
        assert_eq!(
            (next_entry.changed_to, next_entry.at.millis()),
            (Seq(5), 14)
        );
        assert_eq!(
            (next_entry.settings, next_entry.head),
            (settings, head(9, 2, 14))
        );
        let changed_entry = next_entry.moved(head(9, 4, 16), &changes(&[(3, 2), (4, 7)]));
        assert_eq!(changed_entry.expect("a later one").changed_to, Seq(7));
        // Rev 3 is missing: any message may have changed.
        let partial_entry = next_entry.moved(head(9, 4, 16), &changes(&[(4, 7)]));
        assert_eq!(partial_entry.expect("a later one").changed_to, Seq(9));
        assert_eq!(next_entry.moved(head(8, 2, 13), &changes(&[])), None);
        assert!(next_entry.moved(head(9, 2, 14), &changes(&[])).is_some());
    }

    #[test]
    fn read_marker_only_moves_forward() {
        let at = Timestamp::from_millis;
        let member = Member::new(Some(Role::Member), Seq::ZERO, Version::LATEST);
        let registers = ListRegisters {
            read_seq: Seq(5),
            received_seq: Seq(9),
            touched: at(50),
            ..ListRegisters::default()
        };
        let mut entry = UserEntry {
            at: at(10),
            private_before: at(40),
            groups: BTreeMap::from([(group(), MemberEntry { member, registers })]),
        };
        assert!(entry.is_private_quiet(at(40)) && !entry.is_private_quiet(at(39)));
        let conversation = ConversationId::Group(group());
        entry.read(conversation, Seq(3), at(40));
        assert_eq!(entry.groups[&group()].registers, registers);
        entry.read(conversation, Seq(7), at(60));
        let expected = ListRegisters {
            read_seq: Seq(7),
            touched: at(60),
            ..registers
        };
        assert_eq!(entry.groups[&group()].registers, expected);
        let other_conversation = ConversationId::Group(GroupId::new(8).expect("positive"));
        entry.read(other_conversation, Seq(1), at(70));
        assert_eq!(entry.groups.len(), 1);
        // A list from that time on has the row.
        let private = ConversationId::private(user(1), user(2)).expect("two users");
        entry.read(private, Seq(1), at(80));
        assert!(!entry.is_private_quiet(at(80)) && entry.is_private_quiet(at(81)));
        assert_eq!(entry.at, at(10));
    }

    #[test]
    fn an_entry_of_a_clock_that_was_ahead_is_not_believed() {
        let (at, keep_for) = (Timestamp::from_millis, Duration::from_millis(30));
        let is_valid = |entry| is_valid(at(entry), keep_for, at(1000));
        assert!(!is_valid(970) && is_valid(971));
        assert!(is_valid(1030) && !is_valid(1031));
    }
}
