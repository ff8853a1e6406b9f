//! Cache beside the stores, for users who come back soon (`protocol::cache`). Entries that are
//! missing, or do not come in time, are read from the stores.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backend::cache::{Cache, CacheLookup, CacheRecord, FillToken};
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use metrics::Counter;
use protocol::cache::{CacheKey, GroupEntry, Invalidation, UserEntry, is_valid};
use protocol::{ConversationId, GroupId, Refusal, Seq, Timestamp, UserId};
use tokio::sync::Semaphore;

use crate::deadline::{in_time, within};

/// Calls that move registers at the same time; further ones wait.
const MOVING_MAX: usize = 256;

/// Reads and fills the cache.
#[derive(Clone)]
pub(crate) struct ListCache {
    cache: Arc<dyn Cache>,
    conversations: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    /// Permits for moving registers.
    moving: Arc<Semaphore>,
    metrics: Metrics,
}

#[derive(Clone)]
struct Metrics {
    found: Counter,
    missed: Counter,
    failed: Counter,
}

/// A cache entry, and the permit to fill it; neither if there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct CacheSlot<T> {
    pub(crate) copy: Option<T>,
    pub(crate) token: Option<FillToken>,
}

impl<T> CacheSlot<T> {
    pub(crate) fn silent() -> CacheSlot<T> {
        CacheSlot {
            copy: None,
            token: None,
        }
    }
}

impl ListCache {
    pub(crate) fn new(
        cache: Arc<dyn Cache>,
        conversations: Arc<dyn ConversationStore>,
        clock: Arc<dyn Clock>,
        deadline: Duration,
    ) -> ListCache {
        let metrics = Metrics {
            found: metrics::counter!("station_copies_total", "answer" => "found"),
            missed: metrics::counter!("station_copies_total", "answer" => "missed"),
            failed: metrics::counter!("station_copies_total", "answer" => "failed"),
        };
        ListCache {
            cache,
            conversations,
            clock,
            deadline,
            moving: Arc::new(Semaphore::new(MOVING_MAX)),
            metrics,
        }
    }

    pub(crate) async fn user(&self, user: UserId) -> CacheSlot<UserEntry> {
        let found = self.find(&[CacheKey::User(user)]).await;
        let slot = found.into_iter().next().map(|found| self.user_in(found));
        slot.unwrap_or_else(CacheSlot::silent)
    }

    /// True if nothing happened to the entry since the lookup that gave this token. An entry without
    /// an answer, then and now, counts as unchanged.
    pub(crate) async fn is_unchanged(&self, user: UserId, before: Option<&FillToken>) -> bool {
        let found = self.find(&[CacheKey::User(user)]).await;
        let token = found.into_iter().next().flatten().map(|found| found.token);
        token.as_ref() == before
    }

    /// Looks up groups, in order of the question.
    pub(crate) async fn groups(&self, groups: &[GroupId]) -> Vec<CacheSlot<GroupEntry>> {
        let owners: Vec<CacheKey> = groups.iter().map(|group| CacheKey::Group(*group)).collect();
        let found = self.find(&owners).await.into_iter();
        found.map(|found| self.group_in(found)).collect()
    }

    /// One answer per owner; none if the cache does not answer.
    async fn find(&self, owners: &[CacheKey]) -> Vec<Option<CacheLookup>> {
        if owners.is_empty() {
            return Vec::new();
        }
        let found = async { Ok(self.cache.find(owners).await) };
        let found = within(self.deadline, found).await.unwrap_or_default();
        let silent = std::iter::repeat_with(|| None);
        let found = found.into_iter().map(Result::ok).chain(silent);
        let found: Vec<Option<CacheLookup>> = found.take(owners.len()).collect();
        let failed = found.iter().filter(|found| found.is_none()).count();
        self.metrics.failed.increment(failed as u64);
        found
    }

    fn user_in(&self, found: Option<CacheLookup>) -> CacheSlot<UserEntry> {
        let copy = found.as_ref().and_then(CacheLookup::user);
        self.slot(found, copy, |copy| copy.at)
    }

    fn group_in(&self, found: Option<CacheLookup>) -> CacheSlot<GroupEntry> {
        let copy = found.as_ref().and_then(CacheLookup::group);
        self.slot(found, copy, |copy| copy.at)
    }

    fn slot<T>(
        &self,
        found: Option<CacheLookup>,
        copy: Option<T>,
        at: impl Fn(&T) -> Timestamp,
    ) -> CacheSlot<T> {
        let Some(found) = found else {
            return CacheSlot::silent();
        };
        let now = self.clock.now();
        let copy = copy.filter(|copy| is_valid(at(copy), self.cache.keep_for(), now));
        match copy {
            Some(_) => self.metrics.found.increment(1),
            None => self.metrics.missed.increment(1),
        }
        CacheSlot {
            copy,
            token: Some(found.token),
        }
    }

    /// Fills an entry under the token of the lookup before it was read. A failure is made good by the
    /// next reader.
    pub(crate) async fn keep_user(&self, user: UserId, token: FillToken, copy: &UserEntry) {
        let copy = CacheRecord::of_user(user, token, copy);
        self.keep(copy.into_iter().collect()).await;
    }

    /// As [`ListCache::keep_user`], for groups.
    pub(crate) async fn keep_groups(&self, groups: Vec<(GroupId, FillToken, GroupEntry)>) {
        let copies = groups.into_iter().filter_map(|(group, token, copy)| {
            let outdated = Invalidation {
                owner: CacheKey::Group(group),
                unless: Some(copy.reach()),
            };
            let copy = CacheRecord::of_group(group, token, &copy).ok()?;
            Some((outdated, copy))
        });
        let (outdated, copies): (Vec<Invalidation>, Vec<CacheRecord>) = copies.unzip();
        let kept = self.keep(copies).await.into_iter();
        let kept = outdated.into_iter().zip(kept);
        // Another station was quicker, and may have read before this one: its entry must not tell
        // anybody less.
        let older = kept.filter(|(_, kept)| matches!(kept, Ok(false)));
        let older: Vec<Invalidation> = older.map(|(outdated, _)| outdated).collect();
        self.forget(&older).await;
    }

    /// A failure is counted with the store's.
    async fn keep(&self, copies: Vec<CacheRecord>) -> Vec<backend::Result<bool>> {
        if copies.is_empty() {
            return Vec::new();
        }
        let kept = async { Ok(self.cache.keep(copies).await) };
        within(self.deadline, kept).await.unwrap_or_default()
    }

    /// Moves read registers, and the cache entries with them. Returns the users of whom a stale
    /// entry may still be found: they must say it again.
    ///
    /// Call it where no caller can hang up: broken off in the middle, it would leave an entry that
    /// does not say what the register does.
    ///
    /// # Errors
    /// The store's, or no turn in time.
    pub(crate) async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        self.set_read_within(self.deadline, reads).await
    }

    /// Same with less time for the store of the registers.
    ///
    /// # Errors
    /// The store's, or no turn in time.
    pub(crate) async fn set_read_within(
        &self,
        deadline: Duration,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        // Never closed. It has a deadline of its own: calls that wait here can no longer be ended
        // by their callers.
        let _moving = in_time(self.deadline, self.moving.acquire()).await?.ok();
        self.move_registers(deadline, reads).await
    }

    async fn move_registers(
        &self,
        deadline: Duration,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        let users: BTreeSet<UserId> = reads.iter().map(|(user, ..)| *user).collect();
        let owners: Vec<CacheKey> = users.iter().map(|user| CacheKey::User(*user)).collect();
        let found = self.find(&owners).await;
        // No earlier: no other device's list may be past this time when the register is written.
        let at = self.clock.now();
        let written = self.conversations.set_read(reads.clone(), at);
        let written = within(deadline, written).await;
        let renewed = match &written {
            Ok(()) => self.renewed(&users, found, &reads, at).await,
            Err(_) => BTreeSet::new(),
        };
        let outdated = users.difference(&renewed);
        let outdated = outdated.map(|user| Invalidation::of(CacheKey::User(*user)));
        let unforgotten = self.forget(&outdated.collect::<Vec<_>>()).await;
        let is_unheard = |user: &UserId| unforgotten.contains(&CacheKey::User(*user));
        written.map(|()| users.into_iter().filter(is_unheard).collect())
    }

    /// Users whose cache entries were renewed as well.
    async fn renewed(
        &self,
        users: &BTreeSet<UserId>,
        found: Vec<Option<CacheLookup>>,
        reads: &[(UserId, ConversationId, Seq)],
        at: Timestamp,
    ) -> BTreeSet<UserId> {
        let copies = users.iter().zip(found).filter_map(|(user, found)| {
            let found = found?;
            let mut copy = found.user()?;
            let own = reads.iter().filter(|(reader, ..)| reader == user);
            own.for_each(|(_, conversation, seq)| copy.read(*conversation, *seq, at));
            let copy = CacheRecord::of_user(*user, found.token, &copy).ok()?;
            Some((*user, copy))
        });
        let (users, copies): (Vec<UserId>, Vec<CacheRecord>) = copies.unzip();
        if copies.is_empty() {
            return BTreeSet::new();
        }
        let kept = users.into_iter().zip(self.keep(copies).await);
        let kept = kept.filter(|(_, kept)| matches!(kept, Ok(true)));
        kept.map(|(user, _)| user).collect()
    }

    /// Returns the owners of entries that may still be found.
    async fn forget(&self, outdated: &[Invalidation]) -> BTreeSet<CacheKey> {
        if outdated.is_empty() {
            return BTreeSet::new();
        }
        let forgotten = async { Ok(self.cache.forget(outdated).await) };
        let forgotten = within(self.deadline, forgotten).await.unwrap_or_default();
        let forgotten = forgotten.into_iter().map(|told| told.is_ok());
        let forgotten = forgotten.chain(std::iter::repeat(false));
        let told = outdated.iter().zip(forgotten);
        told.filter(|(_, is_forgotten)| !is_forgotten)
            .map(|(outdated, _)| outdated.owner)
            .collect()
    }
}
