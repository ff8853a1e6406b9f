//! Copies beside the stores: who comes back soon is answered from them (`protocol::cached`). What is not there, or does
//! not answer in time, is read from the stores.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use backend::cache::{Cache, Copy, Found, Token};
use backend::clock::Clock;
use backend::conversations::ConversationStore;
use metrics::Counter;
use protocol::cached::{CachedGroup, CachedUser, Outdated, Owner};
use protocol::{ConversationId, GroupId, Refusal, Seq, Timestamp, UserId};
use tokio::sync::Semaphore;

use crate::deadline::{in_time, within};

/// Groups of one user that a copy has at most; who is in more is answered from the stores.
const GROUPS_MAX: usize = 1000;

/// Calls that move registers at a time; beyond, they wait for each other.
const MOVING_MAX: usize = 256;

/// Reads and keeps copies.
#[derive(Clone)]
pub(crate) struct Cached {
    cache: Arc<dyn Cache>,
    conversations: Arc<dyn ConversationStore>,
    clock: Arc<dyn Clock>,
    deadline: Duration,
    /// For registers that are on their way.
    moving: Arc<Semaphore>,
    metrics: Metrics,
}

#[derive(Clone)]
struct Metrics {
    found: Counter,
    missed: Counter,
    failed: Counter,
}

/// A copy, and the permit to keep another; neither where there is no answer.
#[derive(Clone, Debug)]
pub(crate) struct Slot<T> {
    pub(crate) copy: Option<T>,
    token: Option<Token>,
}

impl<T> Slot<T> {
    pub(crate) fn silent() -> Slot<T> {
        Slot {
            copy: None,
            token: None,
        }
    }
}

impl Cached {
    pub(crate) fn new(
        cache: Arc<dyn Cache>,
        conversations: Arc<dyn ConversationStore>,
        clock: Arc<dyn Clock>,
        deadline: Duration,
    ) -> Cached {
        let metrics = Metrics {
            found: metrics::counter!("station_copies_total", "answer" => "found"),
            missed: metrics::counter!("station_copies_total", "answer" => "missed"),
            failed: metrics::counter!("station_copies_total", "answer" => "failed"),
        };
        Cached {
            cache,
            conversations,
            clock,
            deadline,
            moving: Arc::new(Semaphore::new(MOVING_MAX)),
            metrics,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) async fn user(&self, user: UserId) -> Slot<CachedUser> {
        let found = self.find(&[Owner::User(user)]).await;
        let slot = found.into_iter().next().map(|found| self.user_in(found));
        slot.unwrap_or_else(Slot::silent)
    }

    /// Nothing happened to it since; nothing is known of one that is not answered, then and now.
    pub(crate) async fn is_still(&self, user: UserId, slot: &Slot<CachedUser>) -> bool {
        let found = self.find(&[Owner::User(user)]).await;
        let token = found.into_iter().next().flatten().map(|found| found.token);
        token == slot.token
    }

    /// In order of the question.
    pub(crate) async fn groups(&self, groups: &[GroupId]) -> Vec<Slot<CachedGroup>> {
        let owners: Vec<Owner> = groups.iter().map(|group| Owner::Group(*group)).collect();
        let found = self.find(&owners).await.into_iter();
        found.map(|found| self.group_in(found)).collect()
    }

    /// The group first: whoever was sent away before what is found of it was written is not found to be in.
    pub(crate) async fn member(
        &self,
        user: UserId,
        group: GroupId,
    ) -> (Slot<CachedUser>, Slot<CachedGroup>) {
        let of_group = self.groups(&[group]).await.pop();
        let of_group = of_group.unwrap_or_else(Slot::silent);
        match of_group.copy {
            Some(_) => (self.user(user).await, of_group),
            None => (Slot::silent(), of_group),
        }
    }

    /// One answer each; none where the cache does not answer.
    async fn find(&self, owners: &[Owner]) -> Vec<Option<Found>> {
        if owners.is_empty() {
            return Vec::new();
        }
        let found = async { Ok(self.cache.find(owners).await) };
        let found = within(self.deadline, found).await.unwrap_or_default();
        let silent = std::iter::repeat_with(|| None);
        let found = found.into_iter().map(Result::ok).chain(silent);
        let found: Vec<Option<Found>> = found.take(owners.len()).collect();
        let failed = found.iter().filter(|found| found.is_none()).count();
        self.metrics.failed.increment(failed as u64);
        found
    }

    fn user_in(&self, found: Option<Found>) -> Slot<CachedUser> {
        let copy = found.as_ref().and_then(Found::user);
        self.slot(found, copy, |copy| copy.at)
    }

    fn group_in(&self, found: Option<Found>) -> Slot<CachedGroup> {
        let copy = found.as_ref().and_then(Found::group);
        self.slot(found, copy, |copy| copy.at)
    }

    fn slot<T>(
        &self,
        found: Option<Found>,
        copy: Option<T>,
        at: impl Fn(&T) -> Timestamp,
    ) -> Slot<T> {
        let Some(found) = found else {
            return Slot::silent();
        };
        let now = self.clock.now();
        let copy = copy.filter(|copy| at(copy) + self.cache.keep_for() > now);
        match copy {
            Some(_) => self.metrics.found.increment(1),
            None => self.metrics.missed.increment(1),
        }
        Slot {
            copy,
            token: Some(found.token),
        }
    }

    /// As it was read after the slot was found. What fails is done by the next who asks.
    pub(crate) async fn keep_user(&self, user: UserId, slot: &Slot<CachedUser>, copy: &CachedUser) {
        if let Some(token) = slot.token.clone()
            && copy.groups.len() <= GROUPS_MAX
        {
            let copy = Copy::of_user(user, token, copy);
            self.keep(copy.into_iter().collect::<Vec<_>>()).await;
        }
    }

    /// As [`Cached::keep_user`].
    pub(crate) async fn keep_groups(
        &self,
        groups: impl Iterator<Item = (GroupId, Slot<CachedGroup>, CachedGroup)>,
    ) {
        let copies = groups.filter_map(|(group, slot, copy)| {
            let outdated = Outdated {
                owner: Owner::Group(group),
                unless: Some(copy.reach()),
            };
            let copy = Copy::of_group(group, slot.token?, &copy).ok()?;
            Some((outdated, copy))
        });
        let (outdated, copies): (Vec<Outdated>, Vec<Copy>) = copies.unzip();
        let kept = self.keep(copies).await.into_iter();
        let kept = outdated.into_iter().zip(kept);
        // Somebody else was quicker, who may have read before: nobody is told less than this one.
        let older = kept.filter(|(_, kept)| matches!(kept, Ok(false)));
        let older: Vec<Outdated> = older.map(|(outdated, _)| outdated).collect();
        self.forget(&older).await;
    }

    /// A failure is counted with the store's.
    async fn keep(&self, copies: Vec<Copy>) -> Vec<backend::Result<bool>> {
        if copies.is_empty() {
            return Vec::new();
        }
        let kept = async { Ok(self.cache.keep(copies).await) };
        within(self.deadline, kept).await.unwrap_or_default()
    }

    /// Moves read registers, and the copies with them. Answers of whom a copy may still be found that does not say it:
    /// they must say it again.
    ///
    /// Call it where no caller can hang up: broken off in the middle, a copy would not say what the register does.
    ///
    /// # Errors
    /// The store's, or none in time for a turn.
    pub(crate) async fn set_read(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        // Never closed. A deadline of its own: those who wait are no calls any more that their callers could end.
        let _moving = in_time(self.deadline, self.moving.acquire()).await?.ok();
        self.move_registers(reads).await
    }

    async fn move_registers(
        &self,
        reads: Vec<(UserId, ConversationId, Seq)>,
    ) -> Result<BTreeSet<UserId>, Refusal> {
        let users: BTreeSet<UserId> = reads.iter().map(|(user, ..)| *user).collect();
        let owners: Vec<Owner> = users.iter().map(|user| Owner::User(*user)).collect();
        let found = self.find(&owners).await;
        // Not before: no other device's list may have passed it when it is written.
        let at = self.clock.now();
        let written = self.conversations.set_read(reads.clone(), at);
        let written = within(self.deadline, written).await;
        let renewed = match &written {
            Ok(()) => self.renewed(&users, found, &reads, at).await,
            Err(_) => BTreeSet::new(),
        };
        let outdated = users.difference(&renewed);
        let outdated = outdated.map(|user| Outdated::of(Owner::User(*user)));
        let unforgotten = self.forget(&outdated.collect::<Vec<_>>()).await;
        let is_unheard = |user: &UserId| unforgotten.contains(&Owner::User(*user));
        written.map(|()| users.into_iter().filter(is_unheard).collect())
    }

    /// Those whose copies say it, too.
    async fn renewed(
        &self,
        users: &BTreeSet<UserId>,
        found: Vec<Option<Found>>,
        reads: &[(UserId, ConversationId, Seq)],
        at: Timestamp,
    ) -> BTreeSet<UserId> {
        let copies = users.iter().zip(found).filter_map(|(user, found)| {
            let found = found?;
            let mut copy = found.user()?;
            let own = reads.iter().filter(|(reader, ..)| reader == user);
            own.for_each(|(_, conversation, seq)| copy.read(*conversation, *seq, at));
            let copy = Copy::of_user(*user, found.token, &copy).ok()?;
            Some((*user, copy))
        });
        let (users, copies): (Vec<UserId>, Vec<Copy>) = copies.unzip();
        if copies.is_empty() {
            return BTreeSet::new();
        }
        let kept = users.into_iter().zip(self.keep(copies).await);
        let kept = kept.filter(|(_, kept)| matches!(kept, Ok(true)));
        kept.map(|(user, _)| user).collect()
    }

    /// Answers those that may still be found.
    async fn forget(&self, outdated: &[Outdated]) -> BTreeSet<Owner> {
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
