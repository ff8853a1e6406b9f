//! Groups of the conversations that are written, as the single writer of each knows them.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use backend::groups::{GroupLoad, GroupStore, LoadProgress, PAGE};
use backend::queue::Partition;
use futures_util::{StreamExt, stream};
use lru::LruCache;
use protocol::GroupId;
use protocol::group::Group;
use protocol::keys::Topic;
use protocol::writer::GroupChange;
use tokio::time::Instant;

use crate::Config;
use crate::deadline::{Result, StoreDeadline};

/// Groups that are read at once.
const TOGETHER: usize = 16;

/// Groups whose pages are remembered until the rest is read.
const LOADING_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

pub(super) struct Groups {
    store: Arc<dyn GroupStore>,
    stores: StoreDeadline,
    /// With the partition of each, whose owner alone changes it.
    cache: LruCache<GroupId, (u32, Arc<Group>)>,
    /// Groups whose reading was broken off.
    loading: LruCache<GroupId, (u32, LoadProgress)>,
    /// Groups among these that are read anew.
    reloading: LruCache<GroupId, ()>,
    /// Members of all that are remembered.
    members: usize,
    members_max: usize,
}

impl Groups {
    pub(super) fn new(store: Arc<dyn GroupStore>, config: &Config) -> Groups {
        Groups {
            store,
            stores: StoreDeadline::new(config),
            cache: LruCache::unbounded(),
            loading: LruCache::new(LOADING_MAX),
            reloading: LruCache::new(LOADING_MAX),
            members: 0,
            members_max: config.group_members_max,
        }
    }

    /// Loads the groups of `wanted`, each with its partition, and returns those that exist. `None`:
    /// time ran out before all were read. Of the first [`TOGETHER`] at least a page is read; others
    /// are begun only while there is time, and none once one has failed. Pages that were read stay
    /// for the next call.
    pub(super) async fn load(
        &mut self,
        wanted: &BTreeMap<GroupId, u32>,
        until: Instant,
    ) -> Result<Option<BTreeMap<GroupId, Arc<Group>>>> {
        let mut groups = BTreeMap::new();
        let mut missing = Vec::new();
        for (group, partition) in wanted {
            match self.cache.get(group) {
                Some((_, known)) => _ = groups.insert(*group, known.clone()),
                None => {
                    let loading = self.loading.pop(group).map(|(_, loading)| loading);
                    let loading = loading.unwrap_or_else(|| LoadProgress::new(*group));
                    missing.push((*group, *partition, loading));
                }
            }
        }
        let (store, stores) = (&*self.store, self.stores);
        let has_failed = AtomicBool::new(false);
        let loads = missing.into_iter().enumerate();
        let loads = loads.map(|(number, (group, partition, mut loading))| {
            let has_failed = &has_failed;
            async move {
                let is_late = number >= TOGETHER && Instant::now() >= until;
                let page = match is_late || has_failed.load(Relaxed) {
                    true => Ok(GroupLoad::Part),
                    false => read_on(store, stores, &mut loading, until).await,
                };
                has_failed.fetch_or(page.is_err(), Relaxed);
                (group, partition, loading, page)
            }
        });
        let loads = stream::iter(loads).buffered(TOGETHER);
        let loaded: Vec<_> = loads.collect().await;
        let (mut is_whole, mut failure) = (true, None);
        for (group, partition, loading, page) in loaded {
            match page {
                Ok(GroupLoad::Whole(loaded)) => {
                    let loaded = Arc::new(loaded);
                    self.keep(group, partition, loaded.clone());
                    groups.insert(group, loaded);
                }
                Ok(GroupLoad::Absent) => {}
                Ok(GroupLoad::Part) => {
                    is_whole = false;
                    self.loading.put(group, (partition, loading));
                }
                Err(error) => {
                    self.loading.put(group, (partition, loading));
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(is_whole.then_some(groups)),
        }
    }

    /// Loads groups as the store has them now. One that was broken off here is read to its end by [`load`](Groups::load),
    /// and is new enough: begun anew each time, a large one would never be whole.
    pub(super) async fn reload(
        &mut self,
        wanted: &BTreeMap<GroupId, u32>,
        until: Instant,
    ) -> Result<Option<BTreeMap<GroupId, Arc<Group>>>> {
        for group in wanted.keys() {
            if self.reloading.pop(group).is_none() {
                self.forget_one(*group);
            }
        }
        let loaded = self.load(wanted, until).await;
        if !matches!(loaded, Ok(Some(_))) {
            for group in wanted.keys() {
                self.reloading.put(*group, ());
            }
        }
        loaded
    }

    /// Remembers a group that is written.
    pub(super) fn remember(&mut self, change: GroupChange) {
        self.keep(change.group, change.partition, change.after);
    }

    fn keep(&mut self, group: GroupId, partition: u32, known: Arc<Group>) {
        self.members += known.members.len();
        let before = self.cache.put(group, (partition, known));
        self.members -= before.map_or(0, |(_, before)| before.members.len());
        // A group in use stays, whatever its size.
        while self.members > self.members_max && self.cache.len() > 1 {
            let Some((_, (_, oldest))) = self.cache.pop_lru() else {
                return;
            };
            self.members -= oldest.members.len();
        }
    }

    pub(super) fn forget_one(&mut self, group: GroupId) {
        self.loading.pop(&group);
        self.reloading.pop(&group);
        if let Some((_, known)) = self.cache.pop(&group) {
            self.members -= known.members.len();
        }
    }

    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let is_gone = |number: u32| {
            let mut partitions = partitions.iter();
            partitions.any(|gone| gone.topic == Topic::Message && gone.number == number)
        };
        let groups = self
            .cache
            .iter()
            .map(|(group, (number, _))| (group, number));
        let loading = self
            .loading
            .iter()
            .map(|(group, (number, _))| (group, number));
        let gone = groups
            .chain(loading)
            .filter(|(_, number)| is_gone(**number));
        let gone: Vec<GroupId> = gone.map(|(group, _)| *group).collect();
        gone.into_iter().for_each(|group| self.forget_one(group));
    }
}

/// Page by page, each under a deadline of its own, for as long as there is time.
async fn read_on(
    store: &dyn GroupStore,
    stores: StoreDeadline,
    loading: &mut LoadProgress,
    until: Instant,
) -> Result<GroupLoad> {
    loop {
        let page = stores.within(loading.next(store, PAGE)).await?;
        if !matches!(page, GroupLoad::Part) || Instant::now() >= until {
            return Ok(page);
        }
    }
}
