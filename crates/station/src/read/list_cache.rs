//! Cache beside the stores, for users who come back soon (`protocol::cache`). Entries that are
//! missing, or do not come in time, are read from the stores.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backend::Backends;
use backend::cache::{Cache, CacheLookup, CacheRecord, FillToken};
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use metrics::Counter;
use protocol::cache::{CacheKey, GroupEntry, Invalidation, UserEntry, is_valid};
use protocol::{ConversationId, GroupId, Refusal, Seq, Timestamp, UserId};
use tokio::sync::Semaphore;

use crate::stores::{in_time, within};

/// Calls that move registers at the same time; further ones wait.
const MAX_CONCURRENT_MOVES: usize = 256;

/// Reads and fills the cache.
#[derive(Clone)]
pub(crate) struct ListCache {
    cache: Arc<dyn Cache>,
    conversations: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    /// Permits for moving registers.
    move_permits: Arc<Semaphore>,
    metrics: Metrics,
}

#[derive(Clone)]
struct Metrics {
    hits: Counter,
    misses: Counter,
    failures: Counter,
}

/// A cache entry, and the permit to fill it; neither if there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct CacheSlot<T> {
    pub(crate) entry: Option<T>,
    pub(crate) token: Option<FillToken>,
}

impl<T> CacheSlot<T> {
    pub(crate) fn silent() -> CacheSlot<T> {
        CacheSlot {
            entry: None,
            token: None,
        }
    }
}

impl ListCache {
    pub(crate) fn new(backends: &Backends, deadline: Duration) -> ListCache {
        let metrics = Metrics {
            hits: metrics::counter!("station_copies_total", "answer" => "found"),
            misses: metrics::counter!("station_copies_total", "answer" => "missed"),
            failures: metrics::counter!("station_copies_total", "answer" => "failed"),
        };
        ListCache {
            cache: backends.cache.clone(),
            conversations: backends.conversations.clone(),
            clock: backends.clock.clone(),
            deadline,
            move_permits: Arc::new(Semaphore::new(MAX_CONCURRENT_MOVES)),
            metrics,
        }
    }

    pub(crate) async fn user(&self, user: UserId) -> CacheSlot<UserEntry> {
        let lookup = self.find(&[CacheKey::User(user)]).await;
        let slot = lookup.into_iter().next().map(|lookup| self.user_in(lookup));
        slot.unwrap_or_else(CacheSlot::silent)
    }

    /// Whether nothing happened to the entry since the lookup that gave this token. An entry without
    /// an answer, then and now, counts as unchanged.
    pub(crate) async fn is_unchanged(
        &self,
        user: UserId,
        previous_token: Option<&FillToken>,
    ) -> bool {
        let lookup = self.find(&[CacheKey::User(user)]).await;
        let token = lookup
            .into_iter()
            .next()
            .flatten()
            .map(|lookup| lookup.token);
        token.as_ref() == previous_token
    }

    /// Looks up groups, in order of the question.
    pub(crate) async fn groups(&self, groups: &[GroupId]) -> Vec<CacheSlot<GroupEntry>> {
        let owners: Vec<CacheKey> = groups.iter().map(|group| CacheKey::Group(*group)).collect();
        let lookups = self.find(&owners).await.into_iter();
        lookups.map(|lookup| self.group_in(lookup)).collect()
    }

    /// One answer per owner; none if the cache does not answer.
    async fn find(&self, owners: &[CacheKey]) -> Vec<Option<CacheLookup>> {
        if owners.is_empty() {
            return Vec::new();
        }
        let lookups = async { Ok(self.cache.find(owners).await) };
        let lookups = within(self.deadline, lookups).await.unwrap_or_default();
        let silent = std::iter::repeat_with(|| None);
        let lookups = lookups.into_iter().map(Result::ok).chain(silent);
        let lookups: Vec<Option<CacheLookup>> = lookups.take(owners.len()).collect();
        let failure_count = lookups.iter().filter(|lookup| lookup.is_none()).count();
        self.metrics.failures.increment(failure_count as u64);
        lookups
    }

    fn user_in(&self, lookup: Option<CacheLookup>) -> CacheSlot<UserEntry> {
        let entry = lookup.as_ref().and_then(CacheLookup::user);
        self.slot(lookup, entry, |entry| entry.at)
    }

    fn group_in(&self, lookup: Option<CacheLookup>) -> CacheSlot<GroupEntry> {
        let entry = lookup.as_ref().and_then(CacheLookup::group);
        self.slot(lookup, entry, |entry| entry.at)
    }

    fn slot<T>(
        &self,
        lookup: Option<CacheLookup>,
        entry: Option<T>,
        at: impl Fn(&T) -> Timestamp,
    ) -> CacheSlot<T> {
        let Some(lookup) = lookup else {
            return CacheSlot::silent();
        };
        let now = self.clock.now();
        let entry = entry.filter(|entry| is_valid(at(entry), self.cache.keep_for(), now));
        match entry {
            Some(_) => self.metrics.hits.increment(1),
            None => self.metrics.misses.increment(1),
        }
        CacheSlot {
            entry,
            token: Some(lookup.token),
        }
    }

    /// Fills an entry under the token of the lookup before it was read. A failure is made good by the
    /// next reader.
    pub(crate) async fn store_user(&self, user: UserId, token: FillToken, entry: &UserEntry) {
        let entry = CacheRecord::from_user(user, token, entry);
        self.keep(entry.into_iter().collect()).await;
    }

    /// As [`ListCache::store_user`], for groups.
    pub(crate) async fn store_groups(&self, groups: Vec<(GroupId, FillToken, GroupEntry)>) {
        let records = groups.into_iter().filter_map(|(group, token, entry)| {
            let invalidation = Invalidation {
                owner: CacheKey::Group(group),
                unless: Some(entry.reach()),
            };
            let entry = CacheRecord::from_group(group, token, &entry).ok()?;
            Some((invalidation, entry))
        });
        let (invalidations, records): (Vec<Invalidation>, Vec<CacheRecord>) = records.unzip();
        let results = self.keep(records).await.into_iter();
        let results = invalidations.into_iter().zip(results);
        // Another station was quicker, and may have read before this one: its entry must not tell
        // anybody less.
        let older = results.filter(|(_, results)| matches!(results, Ok(false)));
        let older: Vec<Invalidation> = older.map(|(invalidation, _)| invalidation).collect();
        self.forget(&older).await;
    }

    /// A failure is counted with the store's.
    async fn keep(&self, records: Vec<CacheRecord>) -> Vec<backend::Result<bool>> {
        if records.is_empty() {
            return Vec::new();
        }
        let call = async { Ok(self.cache.keep(records).await) };
        within(self.deadline, call).await.unwrap_or_default()
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
        let _permit = in_time(self.deadline, self.move_permits.acquire())
            .await?
            .ok();
        self.move_registers(deadline, reads).await
    }

    async fn move_registers(
        &self,
        deadline: Duration,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        let users: BTreeSet<UserId> = reads.iter().map(|(user, ..)| *user).collect();
        let owners: Vec<CacheKey> = users.iter().map(|user| CacheKey::User(*user)).collect();
        let lookups = self.find(&owners).await;
        // No earlier: no other device's list may be past this time when the register is written.
        let read_at = self.clock.now();
        let result = self.conversations.set_read(reads.clone(), read_at);
        let result = within(deadline, result).await;
        let renewed_users = match &result {
            Ok(()) => self.renew_entries(&users, lookups, &reads, read_at).await,
            Err(_) => BTreeSet::new(),
        };
        let invalidations = users.difference(&renewed_users);
        let invalidations = invalidations.map(|user| Invalidation::of(CacheKey::User(*user)));
        let stale_owners = self.forget(&invalidations.collect::<Vec<_>>()).await;
        let is_stale = |user: &UserId| stale_owners.contains(&CacheKey::User(*user));
        result.map(|()| users.into_iter().filter(is_stale).collect())
    }

    /// Users whose cache entries were renewed as well.
    async fn renew_entries(
        &self,
        users: &BTreeSet<UserId>,
        lookups: Vec<Option<CacheLookup>>,
        reads: &[(UserId, ConversationId, Seq)],
        read_at: Timestamp,
    ) -> BTreeSet<UserId> {
        let records = users.iter().zip(lookups).filter_map(|(user, lookups)| {
            let lookups = lookups?;
            let mut entry = lookups.user()?;
            let own_reads = reads.iter().filter(|(reader, ..)| reader == user);
            own_reads.for_each(|(_, conversation, seq)| entry.read(*conversation, *seq, read_at));
            let entry = CacheRecord::from_user(*user, lookups.token, &entry).ok()?;
            Some((*user, entry))
        });
        let (users, records): (Vec<UserId>, Vec<CacheRecord>) = records.unzip();
        if records.is_empty() {
            return BTreeSet::new();
        }
        let results = users.into_iter().zip(self.keep(records).await);
        let results = results.filter(|(_, results)| matches!(results, Ok(true)));
        results.map(|(user, _)| user).collect()
    }

    /// Returns the owners of entries that may still be found.
    async fn forget(&self, invalidations: &[Invalidation]) -> BTreeSet<CacheKey> {
        if invalidations.is_empty() {
            return BTreeSet::new();
        }
        let results = async { Ok(self.cache.forget(invalidations).await) };
        let results = within(self.deadline, results).await.unwrap_or_default();
        let results = results.into_iter().map(|result| result.is_ok());
        let results = results.chain(std::iter::repeat(false));
        let outcomes = invalidations.iter().zip(results);
        outcomes
            .filter(|(_, is_forgotten)| !is_forgotten)
            .map(|(invalidation, _)| invalidation.owner)
            .collect()
    }
}
