//! The cache beside the stores: entries are filled, renewed and invalidated by the real rules. Its
//! memory is lost with the mailbox.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::cache::{CacheKey, Coverage, Entries, GroupEntry, Invalidation, UserEntry, is_valid};
use protocol::reading::Fill;
use protocol::writer::ChangedPlaces;
use protocol::{ConversationId, GroupId, Seq, Timestamp, UserId};

use crate::plan::Sabotage;
use crate::world::World;

/// Lifetime of an entry with one station, and with several; the latter is shorter than a world.
const ENTRY_TTLS: [Duration; 2] = [Duration::from_secs(30 * 60), Duration::from_secs(20)];

#[derive(Clone, Debug)]
pub(crate) enum Copy {
    User(UserEntry),
    Group(GroupEntry),
}

pub(crate) type Copies = Entries<Copy>;

/// Fill tokens of the entries that were looked up.
pub(crate) type FillTokens = BTreeMap<CacheKey, u64>;

/// Entries of groups as the writer finds them, before it writes.
pub(crate) type Permits = Vec<(GroupId, u64, Option<GroupEntry>)>;

/// A user's entry from before their registers move, and the time of the move.
#[derive(Clone, Debug)]
pub(crate) struct RegisterMove {
    user: UserId,
    token: u64,
    old_entry: Option<UserEntry>,
    at: Timestamp,
}

impl Copy {
    fn user(&self) -> Option<&UserEntry> {
        match self {
            Copy::User(entry) => Some(entry),
            Copy::Group(_) => None,
        }
    }

    fn group(&self) -> Option<GroupEntry> {
        match self {
            Copy::Group(entry) => Some(*entry),
            Copy::User(_) => None,
        }
    }
}

impl World {
    fn is_valid(&self, at: Timestamp) -> bool {
        let keep_for = ENTRY_TTLS[usize::from(self.plan.stations > 1)];
        is_valid(at, keep_for, self.now)
    }

    pub(crate) fn user_entry(&mut self, user: UserId) -> (u64, Option<UserEntry>) {
        let (token, copy) = self.copies.look_up(CacheKey::User(user));
        let entry = copy.and_then(Copy::user).cloned();
        (token, entry.filter(|entry| self.is_valid(entry.at)))
    }

    pub(crate) fn group_entry(&mut self, group: GroupId) -> (u64, Option<GroupEntry>) {
        let (token, copy) = self.copies.look_up(CacheKey::Group(group));
        let entry = copy.and_then(Copy::group);
        (token, entry.filter(|entry| self.is_valid(entry.at)))
    }

    fn fill_one(&mut self, owner: CacheKey, token: u64, coverage: Coverage, copy: Copy) -> bool {
        let token = match self.sabotage {
            Some(Sabotage::OldCopyKept) => self.copies.look_up(owner).0,
            _ => token,
        };
        self.copies.fill(owner, token, coverage, copy)
    }

    pub(crate) fn invalidate_entries(&mut self, invalidations: &[Invalidation]) {
        for invalidation in invalidations {
            self.copies.invalidate(invalidation);
        }
    }

    /// Fills entries that a question read from the stores, as stations do.
    pub(crate) fn fill(&mut self, user: UserId, fills: Vec<Fill>, tokens: &FillTokens) {
        for fill in fills {
            match fill {
                Fill::User(entry) => {
                    let owner = CacheKey::User(user);
                    if let Some(token) = tokens.get(&owner) {
                        self.fill_one(owner, *token, Coverage::default(), Copy::User(*entry));
                    }
                }
                Fill::Group(group, entry) => {
                    let owner = CacheKey::Group(group);
                    let Some(token) = tokens.get(&owner) else {
                        continue;
                    };
                    if !self.fill_one(owner, *token, entry.reach(), Copy::Group(entry)) {
                        self.copies.invalidate(&Invalidation {
                            owner,
                            unless: Some(entry.reach()),
                        });
                    }
                }
                // The cache beside history has no part in these worlds.
                Fill::Timeline(..) => {}
            }
        }
    }

    /// Takes permits to renew the entries of these groups, before anything is written.
    pub(crate) fn ask_permits(&mut self, groups: Vec<GroupId>) -> Permits {
        let permits = groups.into_iter().map(|group| {
            let (token, copy) = self.copies.look_up(CacheKey::Group(group));
            (group, token, copy.and_then(Copy::group))
        });
        permits.collect()
    }

    /// Renews entries from the carrier's current heads.
    pub(crate) fn renew_entries(
        &mut self,
        permits: Permits,
        groups: Vec<(GroupId, ChangedPlaces)>,
    ) {
        let changes: BTreeMap<GroupId, ChangedPlaces> = groups.into_iter().collect();
        for (group, token, entry) in permits {
            let head = self.carrier.heads.get(&ConversationId::Group(group));
            let (Some(head), Some(changes)) = (head.copied(), changes.get(&group)) else {
                continue;
            };
            let Some(entry) = entry.and_then(|entry| entry.moved(head, changes)) else {
                continue;
            };
            let owner = CacheKey::Group(group);
            if !self.fill_one(owner, token, entry.reach(), Copy::Group(entry)) {
                self.copies.invalidate(&Invalidation::of(owner));
            }
        }
    }

    /// Cache entry of the user before registers move, with the station's time of the move.
    pub(crate) fn begin_register_move(&mut self, user: UserId, at: Timestamp) -> RegisterMove {
        let (token, copy) = self.copies.look_up(CacheKey::User(user));
        RegisterMove {
            user,
            token,
            old_entry: copy.and_then(Copy::user).cloned(),
            at,
        }
    }

    /// Adds the reads to the user's entry, or invalidates it.
    pub(crate) fn moved(&mut self, register_move: RegisterMove, reads: &[(ConversationId, Seq)]) {
        let RegisterMove {
            user,
            token,
            old_entry,
            at,
        } = register_move;
        let owner = CacheKey::User(user);
        let is_renewed = old_entry.is_some_and(|mut entry| {
            let each = reads.iter();
            each.for_each(|(conversation, seq)| entry.read(*conversation, *seq, at));
            self.fill_one(owner, token, Coverage::default(), Copy::User(entry))
        });
        if !is_renewed {
            self.copies.invalidate(&Invalidation::of(owner));
        }
    }
}
