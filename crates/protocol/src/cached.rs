//! What is kept of users and groups beside the stores, so that who comes back costs the stores nothing (S0-10).
//!
//! A copy is good as long as nobody was told of anything that it does not say. So what a record changed is renewed or
//! forgotten here after the stores have it, and **before** anybody is looked for who is to be told: whoever comes after
//! that look asks after it, and finds the record in the list. Who fills a copy from the stores shows the token that they
//! were given before they read; it ends with whatever changed meanwhile.
//!
//! A copy says when it was read. An answer from copies is an answer of the oldest of them, and never moves a client's
//! list version beyond that: should a copy be behind, what it lacks is told with the next list.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::change::ChangeKind;
use crate::conversation::{Head, Listed, Registers};
use crate::group::{Member, Settings};
use crate::sync::{GroupListed, readable_after};
use crate::{ConversationId, GroupId, Placed, Seq, Timestamp, UserId};

/// Of whom something is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    User(UserId),
    Group(GroupId),
}

/// How far a copy of a group goes, the last position and the last change. That of a user has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reach {
    pub seq: Seq,
    pub rev: u64,
}

impl Reach {
    /// Does it go as far?
    pub fn covers(self, other: Reach) -> bool {
        self.seq >= other.seq && self.rev >= other.rev
    }
}

/// A copy that a record may have made old.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Outdated {
    pub owner: Owner,
    /// One that goes so far is not. `None`: whatever it is.
    pub unless: Option<Reach>,
}

impl Outdated {
    /// Whatever it is.
    pub fn of(owner: Owner) -> Outdated {
        Outdated {
            owner,
            unless: None,
        }
    }
}

/// A group, as all its members see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedGroup {
    /// Before it was read.
    pub at: Timestamp,
    pub head: Head,
    /// No message behind this place was ever changed.
    pub changed_to: Seq,
    /// `None`: not known.
    pub settings: Option<Settings>,
}

impl CachedGroup {
    /// As the store says: of what was ever changed nothing is known but that it is there.
    pub fn read(at: Timestamp, head: Head, settings: Option<Settings>) -> CachedGroup {
        CachedGroup {
            at,
            head,
            changed_to: changed_to(head.rev, head.seq),
            settings,
        }
    }

    /// As its writer left it, who found this before it wrote; `changes`: those of this time, each with the place of its
    /// message. `None` for a writer that is late: somebody else wrote since, and told of it.
    pub fn moved(&self, head: Head, changes: &BTreeMap<u64, Seq>) -> Option<CachedGroup> {
        if self.head.version > head.version {
            return None;
        }
        let mut copy = CachedGroup::read(head.stamp, head, self.settings);
        let mut since = self.head.rev + 1..=head.rev;
        if since.all(|rev| changes.contains_key(&rev)) {
            let changed = changes.values().copied().max();
            copy.changed_to = self.changed_to.max(changed.unwrap_or_default());
        }
        Some(copy)
    }

    pub fn reach(&self) -> Reach {
        Reach {
            seq: self.head.seq,
            rev: self.head.rev,
        }
    }
}

/// What a user is in a group, and what they did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedMember {
    pub member: Member,
    pub registers: Registers,
}

impl CachedMember {
    /// In the user's list.
    pub fn listed(&self, group: GroupId, copy: &CachedGroup) -> GroupListed {
        let CachedMember { member, registers } = *self;
        GroupListed {
            group,
            member,
            head: copy.head,
            changed_to: copy.changed_to,
            read_seq: registers.read_seq,
            cleared: registers.cleared,
            touched: registers.touched,
            arranged: registers.arranged,
            hidden: registers.hidden,
        }
    }
}

/// What a list of a user's is made of, but for the groups themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedUser {
    /// Before it was read.
    pub at: Timestamp,
    /// No conversation with one other user changed at this time or later.
    pub private_before: Timestamp,
    /// All of them.
    pub groups: BTreeMap<GroupId, CachedMember>,
}

impl CachedUser {
    /// Nothing with one other user is in a difference from then on.
    pub fn is_private_quiet(&self, from: Timestamp) -> bool {
        self.private_before <= from
    }

    /// From behind which place on the user may read a group; `None`: only the stores can tell.
    pub fn readable_after(&self, group: GroupId, copy: &CachedGroup) -> Option<Seq> {
        let member = self.groups.get(&group)?.member;
        readable_after(copy.settings?, Some(&member)).ok()
    }

    /// The user has read so far, which was written at `at`: as the registers do, it only moves forward.
    pub fn read(&mut self, conversation: ConversationId, seq: Seq, at: Timestamp) {
        match conversation {
            ConversationId::Group(group) => {
                if let Some(CachedMember { registers, .. }) = self.groups.get_mut(&group) {
                    registers.read_seq = registers.read_seq.max(seq);
                    registers.received_seq = registers.received_seq.max(seq);
                    registers.touched = registers.touched.max(at);
                }
            }
            ConversationId::Private { .. } | ConversationId::System(_) => {
                let behind = at + Duration::from_millis(1);
                self.private_before = self.private_before.max(behind);
            }
        }
    }
}

/// Since when nothing with one other user changed, where these are all that did from `from` on.
pub fn private_before(changed: &[Listed], from: Timestamp) -> Timestamp {
    let newest = changed.iter().map(Listed::version).max();
    newest.map_or(from, |newest| newest + Duration::from_millis(1))
}

/// Behind which place no message was changed, where nothing is known but where a conversation ends and how many changes
/// there are.
pub fn changed_to(rev: u64, end: Seq) -> Seq {
    match rev {
        0 => Seq::ZERO,
        _ => end,
    }
}

/// What a record made old, that is about to be told to `user`; `rev`: where it is a change, which. A group's own copy
/// may have been renewed by its writer; of what somebody did with it, or is in it, their own speaks.
pub fn outdated(placed: &Placed, rev: u64, user: UserId) -> Vec<Outdated> {
    let of_user = Outdated::of(Owner::User(user));
    let ConversationId::Group(group) = placed.conversation else {
        return vec![of_user];
    };
    let of_group = |unless| Outdated {
        owner: Owner::Group(group),
        unless,
    };
    let change = placed.message.content.change.as_deref();
    match change.map(|change| &change.kind) {
        Some(ChangeKind::Wish(_)) => vec![of_group(None), of_user],
        Some(ChangeKind::Clear | ChangeKind::Arrange(_) | ChangeKind::Hide) => vec![of_user],
        Some(ChangeKind::Recall | ChangeKind::Edit | ChangeKind::React { .. }) | None => {
            let seq = placed.position.seq;
            vec![of_group(Some(Reach { seq, rev }))]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::{Arranged, ChangeOf};
    use crate::group::{Role, Wish};
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
        let of_user = Outdated {
            owner: Owner::User(user(2)),
            unless: None,
        };
        let of_group = |unless| Outdated {
            owner: Owner::Group(group()),
            unless,
        };
        let reach = |rev| Some(Reach { seq: Seq(5), rev });
        let private = Recipient::User(user(2));
        let recall = || Some(ChangeKind::Recall);
        let arrange = || Some(ChangeKind::Arrange(Arranged::default()));
        for kind in [None, recall(), arrange(), Some(ChangeKind::Hide)] {
            assert_eq!(outdated(&placed(private, kind), 3, user(2)), [of_user]);
        }
        let here = |kind, rev| outdated(&placed(Recipient::Group(group()), kind), rev, user(2));
        assert_eq!(here(None, 0), [of_group(reach(0))]);
        assert_eq!(here(recall(), 3), [of_group(reach(3))]);
        for kind in [ChangeKind::Clear, ChangeKind::Hide] {
            assert_eq!(here(Some(kind), 0), [of_user]);
        }
        assert_eq!(here(arrange(), 0), [of_user]);
        let wish = Some(ChangeKind::Wish(Wish::Leave));
        assert_eq!(here(wish, 0), [of_group(None), of_user]);
    }

    #[test]
    fn a_copy_covers_what_it_has() {
        let reach = |seq, rev| Reach { seq: Seq(seq), rev };
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
        let settings = Some(Settings {
            open_history: true,
            open_door: false,
        });
        let changes = |revs: &[(u64, u64)]| {
            let revs = revs.iter().map(|(rev, seq)| (*rev, Seq(*seq)));
            revs.collect::<BTreeMap<_, _>>()
        };
        let read = |head| CachedGroup::read(Timestamp::ZERO, head, settings);
        assert_eq!(read(head(5, 0, 10)).changed_to, Seq::ZERO);
        let before = read(head(5, 2, 10));
        assert_eq!(before.changed_to, Seq(5));
        let after = before.moved(head(9, 2, 14), &changes(&[]));
        let after = after.expect("a later one");
        assert_eq!((after.changed_to, after.at.millis()), (Seq(5), 14));
        assert_eq!((after.settings, after.head), (settings, head(9, 2, 14)));
        let changed = after.moved(head(9, 4, 16), &changes(&[(3, 2), (4, 7)]));
        assert_eq!(changed.expect("a later one").changed_to, Seq(7));
        // One that it does not know of: anything may have changed.
        let unknown = after.moved(head(9, 4, 16), &changes(&[(4, 7)]));
        assert_eq!(unknown.expect("a later one").changed_to, Seq(9));
        assert_eq!(after.moved(head(8, 2, 13), &changes(&[])), None);
        assert!(after.moved(head(9, 2, 14), &changes(&[])).is_some());
    }

    #[test]
    fn what_was_read_only_moves_forward() {
        let at = Timestamp::from_millis;
        let member = Member {
            role: Some(Role::Member),
            since: Seq::ZERO,
            version: Version::LATEST,
        };
        let registers = Registers {
            read_seq: Seq(5),
            received_seq: Seq(9),
            touched: at(50),
            ..Registers::default()
        };
        let mut copy = CachedUser {
            at: at(10),
            private_before: at(40),
            groups: BTreeMap::from([(group(), CachedMember { member, registers })]),
        };
        assert!(copy.is_private_quiet(at(40)) && !copy.is_private_quiet(at(39)));
        let here = ConversationId::Group(group());
        copy.read(here, Seq(3), at(40));
        assert_eq!(copy.groups[&group()].registers, registers);
        copy.read(here, Seq(7), at(60));
        let moved = Registers {
            read_seq: Seq(7),
            touched: at(60),
            ..registers
        };
        assert_eq!(copy.groups[&group()].registers, moved);
        let elsewhere = ConversationId::Group(GroupId::new(8).expect("positive"));
        copy.read(elsewhere, Seq(1), at(70));
        assert_eq!(copy.groups.len(), 1);
        // A list from that time on has the row.
        let private = ConversationId::private(user(1), user(2)).expect("two users");
        copy.read(private, Seq(1), at(80));
        assert!(!copy.is_private_quiet(at(80)) && copy.is_private_quiet(at(81)));
        assert_eq!(copy.at, at(10));
    }
}
