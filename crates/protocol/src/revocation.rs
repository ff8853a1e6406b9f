//! Revocation of tokens: a user's tokens issued before some time are refused, and their sessions
//! end.
//!
//! A revocation is written once. Every station polls the store, and every boat polls a station.
//! Each poll starts a little before the last certain point, so that the next one makes up for a
//! lost one.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeInclusive};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::pause::between;
use crate::{Code, Refusal, Timestamp, UserId};

/// Revoked users that a station can hold. More of them are an incident that calls for new keys.
pub const REVOCATIONS_MAX: usize = 1_000_000;

/// Clock skew and write delay that rereading makes up for.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Life of a revocation beyond that of the tokens that it refuses.
pub const RETENTION_MARGIN: Duration = Duration::from_secs(2 * 3600);

/// Pause of a station between two reads of the store: mean and spread.
pub const POLL_PAUSE: Pause = Pause {
    mean: Duration::from_secs(5),
    around: Duration::from_secs(1),
};

/// Pause of a boat between two queries to a station.
pub const QUERY_PAUSE: Pause = Pause {
    mean: Duration::from_secs(10),
    around: Duration::from_secs(2),
};

/// Time for a station to answer a boat.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// Age of a station's revocations at which they are stale: the alarm, and the end of sign-ins if so
/// configured.
pub const STALE_AGE: Duration = Duration::from_secs(60);

/// Users in one answer to a boat.
pub const PAGE_SIZE: usize = 10_000;

/// Issue time of an undated token: before every revocation.
pub const UNDATED: Timestamp = Timestamp::from_millis(1);

const REASON_BYTES_MAX: usize = 1024;
const BY_BYTES_MAX: usize = 256;
const HOUR_MILLIS: i64 = 3_600_000;

/// A randomised pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub mean: Duration,
    pub around: Duration,
}

impl Pause {
    /// Draws a pause, by a random number.
    pub fn draw(self, random: u64) -> Duration {
        between(self.mean - self.around, self.longest(), random)
    }

    pub fn longest(self) -> Duration {
        self.mean + self.around
    }
}

/// One revocation, as stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub user: UserId,
    /// Tokens issued before this are refused.
    pub before: Timestamp,
    pub reason: String,
    pub by: String,
    pub at: Timestamp,
}

impl Revocation {
    /// # Errors
    /// Tokens of the future, or overlong text.
    pub fn check(&self) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::new(Code::InvalidArgument, text));
        if self.before > self.at + MAX_CLOCK_SKEW {
            return refuse("tokens that are not issued yet cannot be revoked".to_owned());
        }
        for (name, text, max) in [
            ("reason", &self.reason, REASON_BYTES_MAX),
            ("by", &self.by, BY_BYTES_MAX),
        ] {
            if text.len() > max {
                return refuse(format!("{name} has {} bytes, at most {max}", text.len()));
            }
        }
        Ok(())
    }

    pub fn hour(&self) -> i64 {
        hour(self.at)
    }
}

/// Partition of the store for revocations made at this time.
pub fn hour(at: Timestamp) -> i64 {
    at.millis().div_euclid(HOUR_MILLIS)
}

/// Time for which a revocation matters: as long as a token that it refuses may exist, plus a
/// margin.
pub fn retention(lifetime_max: Duration) -> Duration {
    lifetime_max + RETENTION_MARGIN
}

/// Answer to a revoked token.
pub fn refusal() -> Refusal {
    let text = "this token was revoked; sign in again";
    Refusal::new(Code::Unauthenticated, text)
}

/// Close of a session whose token was revoked. Its client does not reconnect by itself.
pub fn closing() -> Refusal {
    let text = "signed out: the token of this session was revoked; sign in again";
    Refusal::new(Code::KickedOut, text)
}

/// Answer to every sign-in at a station that prefers admitting nobody to admitting a revoked user.
pub fn stale_refusal(age: Duration) -> Refusal {
    let text = format!(
        "revocations were last read {} s ago, and station.auth.strict refuses sign-ins until they \
         are current; try again",
        age.as_secs()
    );
    Refusal::new(Code::Unavailable, text).retry_after(POLL_PAUSE.mean)
}

/// Part of the store to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Start: revocations of this time or later.
    pub start: Timestamp,
    pub hours: RangeInclusive<i64>,
}

/// Progress of a station through the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RevocationCursor {
    /// Start of the last successful read, and the latest revocation of all.
    position: Option<(Timestamp, Timestamp)>,
}

impl RevocationCursor {
    /// Window of the next read. The first one has everything that may matter; later ones have
    /// revocations younger than the last, in the hour of the last read, the one before, and those
    /// since.
    pub fn window(&self, now: Timestamp, retention: Duration) -> Window {
        // A writer's clock may be ahead.
        let last = hour(now + MAX_CLOCK_SKEW);
        match self.position {
            None => Window {
                start: now - retention,
                hours: hour(now - retention)..=last,
            },
            Some((read, latest)) => Window {
                start: latest.min(read) - MAX_CLOCK_SKEW,
                hours: hour(now.min(read)) - 1..=last,
            },
        }
    }

    /// Start of the last successful read, by this station's clock: everything written before it is
    /// known.
    pub fn complete_until(&self) -> Timestamp {
        self.position.map_or(Timestamp::ZERO, |(read, _)| read)
    }

    /// Notes a successful read that began then, with revocations of these times.
    pub fn handle_read(
        &mut self,
        started_at: Timestamp,
        times: impl IntoIterator<Item = Timestamp>,
    ) {
        let latest = self.position.map_or(Timestamp::ZERO, |(_, latest)| latest);
        let latest = times.into_iter().fold(latest, Ord::max);
        self.position = Some((started_at, latest));
    }
}

/// A user's revocations merged: the effective `before`, and the time of the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UserRevocation {
    pub user: UserId,
    pub before: Timestamp,
    pub at: Timestamp,
}

impl From<&Revocation> for UserRevocation {
    fn from(revocation: &Revocation) -> UserRevocation {
        UserRevocation {
            user: revocation.user,
            before: revocation.before,
            at: revocation.at,
        }
    }
}

/// Outcome of an insertion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// More tokens are refused than before.
    Changed,
    Unchanged,
    /// The maximum number of users is revoked.
    Full,
}

/// Revocations known to a station or a boat.
#[derive(Clone, Debug)]
pub struct Revocations {
    users: BTreeMap<UserId, UserRevocation>,
    /// Users by time of their last revocation; users are greater than zero.
    times: BTreeSet<(Timestamp, i64)>,
    max: usize,
}

impl Default for Revocations {
    fn default() -> Revocations {
        Revocations::with_room_for(REVOCATIONS_MAX)
    }
}

impl Revocations {
    fn with_room_for(max: usize) -> Revocations {
        Revocations {
            users: BTreeMap::new(),
            times: BTreeSet::new(),
            max,
        }
    }

    pub fn len(&self) -> usize {
        self.users.len()
    }

    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }

    pub fn refuses(&self, user: UserId, issued_at: Timestamp) -> bool {
        (self.users.get(&user)).is_some_and(|existing| issued_at < existing.before)
    }

    /// Checks for room for a revocation of this user.
    ///
    /// # Errors
    /// The maximum number of users is revoked.
    pub fn admit(&self, user: UserId) -> Result<(), Refusal> {
        if self.users.len() < self.max || self.users.contains_key(&user) {
            return Ok(());
        }
        let text = format!(
            "{} users are revoked, {} at most: sign tokens with new keys, and withdraw the old ones",
            self.users.len(),
            self.max
        );
        Err(Refusal::new(Code::Forbidden, text))
    }

    /// Adds a revocation; for each user the largest `before` counts.
    pub fn insert(&mut self, revocation: UserRevocation) -> Insertion {
        let UserRevocation {
            user,
            before: cutoff,
            at,
        } = revocation;
        if self.admit(user).is_err() {
            return Insertion::Full;
        }
        let previous = self.users.get(&user).map(|current| current.before);
        let current = self.users.entry(user).or_insert(revocation);
        self.times.remove(&(current.at, user.get()));
        current.before = current.before.max(cutoff);
        current.at = current.at.max(at);
        self.times.insert((current.at, user.get()));
        if previous.is_none_or(|previous| previous < cutoff) {
            Insertion::Changed
        } else {
            Insertion::Unchanged
        }
    }

    /// Drops revocations that refuse no token any more, ten thousand at most, since sign-ins wait
    /// meanwhile. Returns whether more of them may be left.
    pub fn forget(&mut self, now: Timestamp, retention: Duration) -> bool {
        const MAX_PER_CALL: usize = 10_000;
        for _ in 0..MAX_PER_CALL {
            let Some(&(at, user)) = self.times.first() else {
                return false;
            };
            if at + retention > now {
                return false;
            }
            self.times.pop_first();
            if let Ok(user) = UserId::new(user) {
                self.users.remove(&user);
            }
        }
        true
    }

    /// Next revocations in order of time, at most `limit`.
    pub fn page(&self, from: PageStart, limit: usize) -> Vec<UserRevocation> {
        let first = (from.start, from.cursor.map_or(0, UserId::get));
        let next = self.times.range((Bound::Excluded(first), Bound::Unbounded));
        let users = next.filter_map(|&(_, user)| UserId::new(user).ok());
        let rows = users.filter_map(|user| self.users.get(&user).copied());
        rows.take(limit).collect()
    }
}

/// Start of a page: a time, and a user of that time to skip past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStart {
    pub start: Timestamp,
    pub cursor: Option<UserId>,
}

impl PageStart {
    /// Starts at this time.
    pub fn of(start: Timestamp) -> PageStart {
        PageStart {
            start,
            cursor: None,
        }
    }

    /// Starts behind the last row of a page.
    pub fn behind(at: Timestamp, user: UserId) -> PageStart {
        PageStart {
            start: at,
            cursor: Some(user),
        }
    }
}

/// Progress of a boat through the revocations of its stations. Its first query is for everything,
/// since its clock may differ from the stations'.
///
/// Three hazards could make it skip a revocation: a station's newest one may be its own, with
/// others not read yet; the station may have read nothing for an hour; and its clock may be ahead.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    /// Everything up to this time is known, as far as clocks agree.
    complete: Timestamp,
    /// Newest revocation in any page.
    newest: Timestamp,
    /// End of the previous station's knowledge, by that station.
    station_complete: Timestamp,
}

impl Follower {
    /// Start of the next query.
    pub fn start(&self) -> PageStart {
        PageStart::of(self.complete - MAX_CLOCK_SKEW)
    }

    /// Takes a page.
    pub fn handle_page(&mut self, page: &[UserRevocation]) {
        let times = page.iter().map(|revocation| revocation.at);
        self.newest = times.fold(self.newest, Ord::max);
    }

    /// Takes the end of the last page, from a station that knows everything up to
    /// `complete_until` by its own clock.
    pub fn handle_end(&mut self, complete_until: Timestamp) {
        let previous_complete = std::mem::replace(&mut self.station_complete, complete_until);
        let complete = self.newest.min(complete_until).min(previous_complete);
        self.complete = self.complete.max(complete);
    }
}

/// Users whose older sessions end.
#[derive(Clone, Debug, Default)]
pub struct Endings(BTreeMap<UserId, Timestamp>);

impl Endings {
    pub fn of(revocations: impl IntoIterator<Item = UserRevocation>) -> Endings {
        let cutoffs =
            (revocations.into_iter()).map(|revocation| (revocation.user, revocation.before));
        Endings(cutoffs.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the session ends. A session that an older station admitted has no issue time: only a
    /// kick ends it.
    pub fn ends(&self, user: UserId, issued_at: Option<Timestamp>) -> bool {
        let cutoff = self.0.get(&user);
        cutoff.is_some_and(|cutoff| issued_at.is_some_and(|issued_at| issued_at < *cutoff))
    }
}
