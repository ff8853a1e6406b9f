//! Revocation of tokens: those of a user that were issued before some time are refused, and their sessions end.
//!
//! A revocation is written once. Every station reads the store again and again, and every boat asks a station: each
//! begins a little before what it is sure of, so that a poll that was lost is made up for by the next.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, RangeInclusive};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Code, Refusal, Timestamp, UserId};

/// Users with a revocation that a station knows. More of them are an incident that asks for new keys.
pub const REVOCATIONS_MAX: usize = 1_000_000;

/// Difference of clocks and slowness of a write that reading again makes up for.
pub const CLOCKS_APART: Duration = Duration::from_secs(60);

/// Life of a revocation beyond that of the tokens it refuses.
pub const RETENTION_MARGIN: Duration = Duration::from_secs(2 * 3600);

/// Pause of a station between two reads of the store, in the mean and around it.
pub const POLL: Pause = Pause {
    mean: Duration::from_secs(5),
    around: Duration::from_secs(1),
};

/// Pause of a boat between two questions to a station.
pub const ASK: Pause = Pause {
    mean: Duration::from_secs(10),
    around: Duration::from_secs(2),
};

/// Time for a station to answer a boat.
pub const ASK_WITHIN: Duration = Duration::from_secs(2);

/// Age of what a station knows from which on it is too old: the alarm, and the end of sign-ins where that is wanted.
pub const STALE_FROM: Duration = Duration::from_secs(60);

/// Users of one answer to a boat.
pub const PAGE: usize = 10_000;

/// Issue of a token that does not say when: before every revocation.
pub const UNDATED: Timestamp = Timestamp::from_millis(1);

const REASON_BYTES_MAX: usize = 1024;
const BY_BYTES_MAX: usize = 256;
const HOUR_MILLIS: i64 = 3_600_000;

/// A pause that differs from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub mean: Duration,
    pub around: Duration,
}

impl Pause {
    /// One of them, by a random number.
    pub fn draw(self, random: u64) -> Duration {
        let width = (self.around * 2).as_millis() as u64 + 1;
        self.mean - self.around + Duration::from_millis(random % width)
    }

    pub fn longest(self) -> Duration {
        self.mean + self.around
    }
}

/// One revocation, as it is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revocation {
    pub user: UserId,
    /// Tokens that were issued before this are refused.
    pub before: Timestamp,
    pub reason: String,
    pub by: String,
    pub at: Timestamp,
}

impl Revocation {
    /// # Errors
    /// Tokens of the future, or words without end.
    pub fn check(&self) -> Result<(), Refusal> {
        let refuse = |text: String| Err(Refusal::new(Code::InvalidArgument, text));
        if self.before > self.at + CLOCKS_APART {
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

/// The partition of the store that bears what was revoked at this time.
pub fn hour(at: Timestamp) -> i64 {
    at.millis().div_euclid(HOUR_MILLIS)
}

/// Time for which a revocation matters: as long as there may be a token that it refuses, and some more.
pub fn retention(lifetime_max: Duration) -> Duration {
    lifetime_max + RETENTION_MARGIN
}

/// The answer to a token that was revoked.
pub fn refusal() -> Refusal {
    let text = "this token was revoked; sign in again";
    Refusal::new(Code::Unauthenticated, text)
}

/// The end of a session whose token was revoked. Its client does not come back by itself.
pub fn closing() -> Refusal {
    let text = "signed out: the token of this session was revoked; sign in again";
    Refusal::new(Code::KickedOut, text)
}

/// The answer to everybody, by a station that would rather have nobody in than somebody who was revoked.
pub fn stale_refusal(age: Duration) -> Refusal {
    let text = format!(
        "revocations were read {} s ago, and station.auth.strict lets nobody in meanwhile; try again",
        age.as_secs()
    );
    Refusal::new(Code::Unavailable, text).retry_after(POLL.mean)
}

/// Part of the store that is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Revocations of this time or later.
    pub since: Timestamp,
    pub hours: RangeInclusive<i64>,
}

/// Progress of a station through the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursor {
    /// The beginning of the last read that succeeded, and the latest revocation of all.
    position: Option<(Timestamp, Timestamp)>,
}

impl Cursor {
    /// The first time everything that may matter; then what is younger than the last, in the hour of the last read,
    /// the one before, and those since.
    pub fn window(&self, now: Timestamp, retention: Duration) -> Window {
        // A writer's clock may be ahead.
        let last = hour(now + CLOCKS_APART);
        match self.position {
            None => Window {
                since: now - retention,
                hours: hour(now - retention)..=last,
            },
            Some((read, latest)) => Window {
                since: latest.min(read) - CLOCKS_APART,
                hours: hour(now.min(read)) - 1..=last,
            },
        }
    }

    /// Beginning of the last read that succeeded, by this station's clock: what was written before it is known.
    pub fn complete_until(&self) -> Timestamp {
        self.position.map_or(Timestamp::ZERO, |(read, _)| read)
    }

    /// A read that began then succeeded, with revocations of these times.
    pub fn handle_read(&mut self, began: Timestamp, times: impl IntoIterator<Item = Timestamp>) {
        let latest = self.position.map_or(Timestamp::ZERO, |(_, latest)| latest);
        let latest = times.into_iter().fold(latest, Ord::max);
        self.position = Some((began, latest));
    }
}

/// A user's revocations as one: what counts of them, and when the last was made.
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

/// Outcome of one more revocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// More tokens are refused than before.
    Changed,
    Unchanged,
    /// As many users are revoked as there may be.
    Full,
}

/// Revocations that a station or a boat knows.
#[derive(Clone, Debug)]
pub struct Revocations {
    users: BTreeMap<UserId, UserRevocation>,
    /// Their users by time; users are greater than zero.
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
        (self.users.get(&user)).is_some_and(|standing| issued_at < standing.before)
    }

    /// May tokens of this user be revoked?
    ///
    /// # Errors
    /// As many users are revoked as there may be.
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

    /// Adds one: of a user the largest `before` counts.
    pub fn insert(&mut self, revocation: UserRevocation) -> Insertion {
        let UserRevocation { user, before, at } = revocation;
        if self.admit(user).is_err() {
            return Insertion::Full;
        }
        let earlier = self.users.get(&user).map(|standing| standing.before);
        let standing = self.users.entry(user).or_insert(revocation);
        self.times.remove(&(standing.at, user.get()));
        standing.before = standing.before.max(before);
        standing.at = standing.at.max(at);
        self.times.insert((standing.at, user.get()));
        match earlier.is_none_or(|earlier| earlier < before) {
            true => Insertion::Changed,
            false => Insertion::Unchanged,
        }
    }

    /// Drops those that refuse no token any more, ten thousand at most: sign-ins wait meanwhile. True where there may be
    /// more of them.
    pub fn forget(&mut self, now: Timestamp, retention: Duration) -> bool {
        const AT_ONCE: usize = 10_000;
        for _ in 0..AT_ONCE {
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

    /// The next of them by their time, at most `limit`.
    pub fn page(&self, from: PageStart, limit: usize) -> Vec<UserRevocation> {
        let first = (from.since, from.after.map_or(0, UserId::get));
        let next = self.times.range((Bound::Excluded(first), Bound::Unbounded));
        let users = next.filter_map(|&(_, user)| UserId::new(user).ok());
        let rows = users.filter_map(|user| self.users.get(&user).copied());
        rows.take(limit).collect()
    }
}

/// The beginning of a page: a time, and behind a user of that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageStart {
    pub since: Timestamp,
    pub after: Option<UserId>,
}

impl PageStart {
    /// From this time on.
    pub fn of(since: Timestamp) -> PageStart {
        PageStart { since, after: None }
    }

    /// Behind the last row of a page.
    pub fn behind(at: Timestamp, user: UserId) -> PageStart {
        PageStart {
            since: at,
            after: Some(user),
        }
    }
}

/// Progress of a boat. Its first question is for all: its clock may differ from theirs.
///
/// Three things keep it from passing what it was not told: a station's newest revocation may be one of its own, while
/// others are not read yet; it may have read nothing for an hour; and its clock may be ahead.
#[derive(Clone, Debug, Default)]
pub struct Follower {
    /// All of this time and before are known, as far as clocks agree.
    complete: Timestamp,
    /// The newest of all pages.
    newest: Timestamp,
    /// The end of what the station before knew, in its own words.
    until: Timestamp,
}

impl Follower {
    /// The beginning of the next question.
    pub fn start(&self) -> PageStart {
        PageStart::of(self.complete - CLOCKS_APART)
    }

    /// A page was answered.
    pub fn handle_page(&mut self, page: &[UserRevocation]) {
        let times = page.iter().map(|revocation| revocation.at);
        self.newest = times.fold(self.newest, Ord::max);
    }

    /// The last page was answered, by a station that knows all up to `until`, by its own clock.
    pub fn handle_end(&mut self, until: Timestamp) {
        let before = std::mem::replace(&mut self.until, until);
        let reached = self.newest.min(until).min(before);
        self.complete = self.complete.max(reached);
    }
}

/// Users whose older sessions end.
#[derive(Clone, Debug, Default)]
pub struct Endings(BTreeMap<UserId, Timestamp>);

impl Endings {
    pub fn of(revocations: impl IntoIterator<Item = UserRevocation>) -> Endings {
        let before = (revocations.into_iter()).map(|of| (of.user, of.before));
        Endings(before.collect())
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A session that an older station admitted has no time of issue: a kick ends it.
    pub fn ends(&self, user: UserId, issued_at: Option<Timestamp>) -> bool {
        let before = self.0.get(&user);
        before.is_some_and(|before| issued_at.is_some_and(|issued_at| issued_at < *before))
    }
}
