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
const MAX_CONCURRENT_LOADS: usize = 16;

/// Groups whose pages are remembered until the rest is read.
const MAX_PARTIAL_LOADS: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

pub(super) struct Groups {
    store: Arc<dyn GroupStore>,
    store_deadline: StoreDeadline,
    /// With the partition of each, whose owner alone changes it.
    cache: LruCache<GroupId, (u32, Arc<Group>)>,
    /// Groups whose reading was broken off.
    partial_loads: LruCache<GroupId, (u32, LoadProgress)>,
    /// Groups among these that are read anew.
    partial_reloads: LruCache<GroupId, ()>,
    /// Members of all that are remembered.
    member_count: usize,
    members_max: usize,
}

impl Groups {
    pub(super) fn new(store: Arc<dyn GroupStore>, config: &Config) -> Groups {
        Groups {
            store,
            store_deadline: StoreDeadline::new(config),
            cache: LruCache::unbounded(),
            partial_loads: LruCache::new(MAX_PARTIAL_LOADS),
            partial_reloads: LruCache::new(MAX_PARTIAL_LOADS),
            member_count: 0,
            members_max: config.group_members_max,
        }
    }

    /// Loads the `requested_groups`, each with its partition, and returns those that exist. `None`:
    /// time ran out before all were read. Of the first [`MAX_CONCURRENT_LOADS`] at least a page is read; others
    /// are begun only while there is time, and none once one has failed. Pages that were read stay
    /// for the next call.
    pub(super) async fn load(
        &mut self,
        requested_groups: &BTreeMap<GroupId, u32>,
        deadline: Instant,
    ) -> Result<Option<BTreeMap<GroupId, Arc<Group>>>> {
        let mut groups = BTreeMap::new();
        let mut cache_misses = Vec::new();
        for (group, partition) in requested_groups {
            match self.cache.get(group) {
                Some((_, entry)) => _ = groups.insert(*group, entry.clone()),
                None => {
                    let progress = self.partial_loads.pop(group).map(|(_, progress)| progress);
                    let progress = progress.unwrap_or_else(|| LoadProgress::new(*group));
                    cache_misses.push((*group, *partition, progress));
                }
            }
        }
        let (store, store_deadline) = (&*self.store, self.store_deadline);
        let has_failed = AtomicBool::new(false);
        let loads = cache_misses.into_iter().enumerate();
        let loads = loads.map(|(number, (group, partition, mut progress))| {
            let has_failed = &has_failed;
            async move {
                let is_late = number >= MAX_CONCURRENT_LOADS && Instant::now() >= deadline;
                let page = if is_late || has_failed.load(Relaxed) {
                    Ok(GroupLoad::Part)
                } else {
                    load_pages(store, store_deadline, &mut progress, deadline).await
                };
                has_failed.fetch_or(page.is_err(), Relaxed);
                (group, partition, progress, page)
            }
        });
        let loads = stream::iter(loads).buffered(MAX_CONCURRENT_LOADS);
        let pages: Vec<_> = loads.collect().await;
        let (mut is_whole, mut failure) = (true, None);
        for (group, partition, progress, page) in pages {
            match page {
                Ok(GroupLoad::Whole(entry)) => {
                    let entry = Arc::new(entry);
                    self.cache_group(group, partition, entry.clone());
                    groups.insert(group, entry);
                }
                Ok(GroupLoad::Absent) => {}
                Ok(GroupLoad::Part) => {
                    is_whole = false;
                    self.partial_loads.put(group, (partition, progress));
                }
                Err(error) => {
                    self.partial_loads.put(group, (partition, progress));
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(is_whole.then_some(groups)),
        }
    }

    /// Loads groups as the store has them now. A load that an earlier call here left unfinished is
    /// continued by [`load`](Groups::load), and is fresh enough: if each call started over, a large
    /// group would never be complete.
    pub(super) async fn reload(
        &mut self,
        requested_groups: &BTreeMap<GroupId, u32>,
        deadline: Instant,
    ) -> Result<Option<BTreeMap<GroupId, Arc<Group>>>> {
        for group in requested_groups.keys() {
            if self.partial_reloads.pop(group).is_none() {
                self.forget_one(*group);
            }
        }
        let result = self.load(requested_groups, deadline).await;
        if !matches!(result, Ok(Some(_))) {
            for group in requested_groups.keys() {
                self.partial_reloads.put(*group, ());
            }
        }
        result
    }

    /// Remembers a group that is written.
    pub(super) fn remember(&mut self, change: GroupChange) {
        self.cache_group(change.group, change.partition, change.updated_group);
    }

    fn cache_group(&mut self, group: GroupId, partition: u32, entry: Arc<Group>) {
        self.member_count += entry.members.len();
        let previous = self.cache.put(group, (partition, entry));
        self.member_count -= previous.map_or(0, |(_, previous)| previous.members.len());
        // A group in use stays, whatever its size.
        while self.member_count > self.members_max && self.cache.len() > 1 {
            let Some((_, (_, oldest))) = self.cache.pop_lru() else {
                return;
            };
            self.member_count -= oldest.members.len();
        }
    }

    pub(super) fn forget_one(&mut self, group: GroupId) {
        self.partial_loads.pop(&group);
        self.partial_reloads.pop(&group);
        if let Some((_, entry)) = self.cache.pop(&group) {
            self.member_count -= entry.members.len();
        }
    }

    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let is_gone = |number: u32| {
            let mut partitions = partitions.iter();
            partitions
                .any(|partition| partition.topic == Topic::Message && partition.number == number)
        };
        let groups = self
            .cache
            .iter()
            .map(|(group, (number, _))| (group, number));
        let partial_loads = self
            .partial_loads
            .iter()
            .map(|(group, (number, _))| (group, number));
        let lost_groups = groups
            .chain(partial_loads)
            .filter(|(_, number)| is_gone(**number));
        let lost_groups: Vec<GroupId> = lost_groups.map(|(group, _)| *group).collect();
        lost_groups
            .into_iter()
            .for_each(|group| self.forget_one(group));
    }
}

/// Page by page, each under a deadline of its own, for as long as there is time.
async fn load_pages(
    store: &dyn GroupStore,
    store_deadline: StoreDeadline,
    progress: &mut LoadProgress,
    deadline: Instant,
) -> Result<GroupLoad> {
    loop {
        let page = store_deadline.within(progress.next(store, PAGE)).await?;
        if !matches!(page, GroupLoad::Part) || Instant::now() >= deadline {
            return Ok(page);
        }
    }
}
