//! Copies of what the stores say of users and groups, for who comes back soon: a cache, never the only copy.
//!
//! Whoever fills a copy asks first, reads the stores, and shows the token that they were answered: it has ended where
//! anything was forgotten or kept in between, so what was read before a change is not kept after it. What the rules are
//! for is said in [`protocol::cached`].

#[cfg(test)]
mod contract;
mod embedded;
#[cfg(feature = "redis")]
mod redis;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::cached::{CachedGroup, CachedUser, Outdated, Owner, Reach};
use protocol::settings::Problems;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use self::embedded::EmbeddedCache;
#[cfg(feature = "redis")]
pub use self::redis::RedisCache;
use crate::embedded::value::{decode, encode};
use crate::hook::hooked;
use crate::{Error, Result};

const SEAM: &str = "cache";

/// Copies of what history has.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheConfig {
    /// Age of a copy at which it is dropped. Zero: no copies.
    #[serde(with = "humantime_serde")]
    #[schemars(with = "protocol::settings::Span", extend("zero" = true))]
    pub keep_for: Duration,
    /// Bytes of all copies, where they are kept in memory; the least recently used goes first.
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
    /// Shorter than Redis can say is not at all.
    fn is_off(&self) -> bool {
        self.keep_for.as_millis() == 0
    }

    /// What cannot work.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        if self.memory_bytes_max == 0 {
            let remedy = "At least 1; keep_for = \"0s\" keeps nothing";
            problems.refuse("memory_bytes_max", 0, "no copy would fit", remedy);
        }
        problems
    }

    /// `Conflict` with all problems.
    pub fn check(&self) -> Result<()> {
        Error::settings(SEAM, &self.problems())
    }
}

/// Permits to keep one copy, as long as nothing else happens to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token(String);

/// What is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub token: Token,
    copy: Option<Bytes>,
}

impl Found {
    /// Where nothing is ever kept.
    fn nothing() -> Found {
        Found {
            token: Token(String::new()),
            copy: None,
        }
    }

    /// `None`: nothing, or of a shape that this program does not know.
    pub fn user(&self) -> Option<CachedUser> {
        self.read()
    }

    /// As [`Found::user`].
    pub fn group(&self) -> Option<CachedGroup> {
        self.read()
    }

    fn read<T: DeserializeOwned>(&self) -> Option<T> {
        decode(SEAM, self.copy.as_ref()?).ok()
    }
}

/// A copy to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    owner: Owner,
    token: Token,
    reach: Reach,
    bytes: Bytes,
}

impl Copy {
    pub fn of_user(owner: protocol::UserId, token: Token, user: &CachedUser) -> Result<Copy> {
        Ok(Copy {
            owner: Owner::User(owner),
            token,
            reach: Reach::default(),
            bytes: encode(SEAM, user)?,
        })
    }

    pub fn of_group(owner: protocol::GroupId, token: Token, group: &CachedGroup) -> Result<Copy> {
        Ok(Copy {
            owner: Owner::Group(owner),
            token,
            reach: group.reach(),
            bytes: encode(SEAM, group)?,
        })
    }
}

#[async_trait]
pub trait Cache: Send + Sync {
    /// How long after it was read a copy is good. It may be there for longer.
    fn keep_for(&self) -> Duration;

    /// What is there of each, and with which token it may be kept anew. One answer each, in order, here and below.
    async fn find(&self, owners: &[Owner]) -> Vec<Result<Found>>;

    /// Keeps each whose token has not ended, and ends it; `false`: it is not kept.
    async fn keep(&self, copies: Vec<Copy>) -> Vec<Result<bool>>;

    /// Forgets what is old, and ends all tokens of it. What is not known to be forgotten may still be found.
    async fn forget(&self, outdated: &[Outdated]) -> Vec<Result<()>>;
}

hooked! { Cache as "cache":
    plain keep_for() -> Duration;
    each read find(owners: &[Owner]) by |owner| owner_number(*owner) => Found;
    each write keep(copies: Vec<Copy>) by |copy| owner_number(copy.owner) => bool;
    each write forget(outdated: &[Outdated]) by |outdated| owner_number(outdated.owner) => ();
}

fn owner_number(owner: Owner) -> i64 {
    match owner {
        Owner::User(user) => user.get(),
        Owner::Group(group) => group.get(),
    }
}
