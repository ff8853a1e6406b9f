//! Cache of users and groups for clients that come back soon; never the only copy.
//!
//! A filler first looks up the entry, then reads the stores, then presents the token of its lookup.
//! Any invalidation or fill in between has ended that token, so data read before a change is never
//! stored after it. [`protocol::cache`] explains the purpose of these rules.

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "redis")]
mod redis;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::cache::{CacheKey, Coverage, GroupEntry, Invalidation, UserEntry};
use serde::de::DeserializeOwned;

pub use self::embedded::EmbeddedCache;
#[cfg(feature = "redis")]
pub use self::redis::RedisCache;
use crate::Result;
use crate::embedded::value::{decode, encode};
use crate::hook::hooked;

const SEAM: &str = "cache";

/// Copies of data in history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Age at which a copy is dropped. Zero: no copies.
    pub keep_for: Duration,
    /// Maximum size of all copies in bytes, if they are kept in memory. The least recently used one
    /// is dropped first.
    pub memory_bytes_max: usize,
}

impl Default for CacheConfig {
    fn default() -> Self {
        CacheConfig {
            keep_for: Duration::from_secs(30 * 60),
            memory_bytes_max: 64 << 20,
        }
    }
}

impl CacheConfig {
    /// True below one millisecond, the shortest expiry that Redis knows.
    fn is_off(&self) -> bool {
        self.keep_for.as_millis() == 0
    }
}

/// Permission to fill one entry, valid until anything else happens to that entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillToken(String);

/// Result of a lookup: the entry, if any, and a token to fill it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheLookup {
    pub token: FillToken,
    entry: Option<Bytes>,
}

impl CacheLookup {
    /// Lookup in a cache that is off.
    fn nothing() -> CacheLookup {
        CacheLookup {
            token: FillToken(String::new()),
            entry: None,
        }
    }

    /// `None` if there is no entry, or one in a format unknown to this program.
    pub fn user(&self) -> Option<UserEntry> {
        self.read()
    }

    /// As [`CacheLookup::user`].
    pub fn group(&self) -> Option<GroupEntry> {
        self.read()
    }

    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        decode(SEAM, self.entry.as_ref()?).ok()
    }
}

/// Entry to be stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheRecord {
    owner: CacheKey,
    token: FillToken,
    reach: Coverage,
    bytes: Bytes,
}

impl CacheRecord {
    pub fn from_user(
        owner: protocol::UserId,
        token: FillToken,
        user: &UserEntry,
    ) -> Result<CacheRecord> {
        Ok(CacheRecord {
            owner: CacheKey::User(owner),
            token,
            reach: Coverage::default(),
            bytes: encode(SEAM, user)?,
        })
    }

    pub fn from_group(
        owner: protocol::GroupId,
        token: FillToken,
        group: &GroupEntry,
    ) -> Result<CacheRecord> {
        Ok(CacheRecord {
            owner: CacheKey::Group(owner),
            token,
            reach: group.reach(),
            bytes: encode(SEAM, group)?,
        })
    }
}

#[async_trait]
pub trait Cache: Send + Sync {
    /// Age up to which an entry is valid, counted from the read of the stores. It may be found for
    /// longer.
    fn keep_for(&self) -> Duration;

    /// Looks up each entry, with a token to fill it. One answer per owner, in order, here and
    /// below.
    async fn find(&self, owners: &[CacheKey]) -> Vec<Result<CacheLookup>>;

    /// Stores each entry whose token is still valid, and ends the token; `false`: not stored.
    async fn keep(&self, records: Vec<CacheRecord>) -> Vec<Result<bool>>;

    /// Removes outdated entries and ends their tokens. An entry may still be found until its
    /// removal is confirmed.
    async fn forget(&self, invalidations: &[Invalidation]) -> Vec<Result<()>>;
}

hooked! { Cache as "cache":
    plain keep_for() -> Duration;
    each read find(owners: &[CacheKey]) by |owner| owner_number(*owner) => CacheLookup;
    each write keep(copies: Vec<CacheRecord>) by |copy| owner_number(copy.owner) => bool;
    each write forget(outdated: &[Invalidation]) by |outdated| owner_number(outdated.owner) => ();
}

fn owner_number(owner: CacheKey) -> i64 {
    match owner {
        CacheKey::User(user) => user.get(),
        CacheKey::Group(group) => group.get(),
    }
}
