//! The groups of the conversations that are written, as the single writer of each knows them.

use std::collections::BTreeMap;
use std::sync::Arc;

use backend::groups::GroupStore;
use backend::queue::Partition;
use futures_util::{StreamExt, TryStreamExt, stream};
use lru::LruCache;
use protocol::GroupId;
use protocol::group::{Group, Outcome};
use protocol::keys::Topic;

use crate::Config;
use crate::stores::{Result, Timed};

/// Groups that are read at once.
const TOGETHER: usize = 16;

pub(super) struct Groups {
    store: Arc<dyn GroupStore>,
    stores: Timed,
    /// With the partition that each belongs to. Whoever owns that is the only one who changes them.
    cache: LruCache<GroupId, (u32, Arc<Group>)>,
    /// Members of all that are remembered.
    members: usize,
    members_max: usize,
}

impl Groups {
    pub(super) fn new(store: Arc<dyn GroupStore>, config: &Config) -> Groups {
        Groups {
            store,
            stores: Timed::new(config),
            cache: LruCache::unbounded(),
            members: 0,
            members_max: config.group_members_max,
        }
    }

    /// Those of these groups that exist; each with its partition.
    pub(super) async fn load(
        &mut self,
        wanted: BTreeMap<GroupId, u32>,
    ) -> Result<BTreeMap<GroupId, Arc<Group>>> {
        let mut groups = BTreeMap::new();
        let mut missing = Vec::new();
        for (group, partition) in wanted {
            match self.cache.get(&group) {
                Some((_, known)) => _ = groups.insert(group, known.clone()),
                None => missing.push((group, partition)),
            }
        }
        let (store, stores) = (&self.store, self.stores);
        let loads = missing.into_iter().map(|(group, partition)| async move {
            let loaded = stores.within(store.load(group)).await?;
            Ok::<_, backend::Error>((group, partition, loaded))
        });
        let loads = stream::iter(loads).buffered(TOGETHER);
        let loaded: Vec<_> = loads.try_collect().await?;
        for (group, partition, loaded) in loaded {
            if let Some(loaded) = loaded {
                let loaded = Arc::new(loaded);
                self.keep(group, partition, loaded.clone());
                groups.insert(group, loaded);
            }
        }
        Ok(groups)
    }

    /// Saves what a record made of a group, which is `after` then.
    pub(super) async fn save(
        &mut self,
        group: GroupId,
        partition: u32,
        outcome: &Outcome,
        after: Arc<Group>,
    ) -> Result<()> {
        let members = outcome.members.iter();
        let members = members.map(|(user, member)| (*user, *member)).collect();
        // What is broken off is found when it is read again.
        self.forget_one(group);
        let saved = self.store.save(group, outcome.settings, members);
        self.stores.within(saved).await?;
        self.keep(group, partition, after);
        Ok(())
    }

    fn keep(&mut self, group: GroupId, partition: u32, known: Arc<Group>) {
        self.members += known.members.len();
        let before = self.cache.put(group, (partition, known));
        self.members -= before.map_or(0, |(_, before)| before.members.len());
        while self.members > self.members_max {
            let Some((_, (_, oldest))) = self.cache.pop_lru() else {
                return;
            };
            self.members -= oldest.members.len();
        }
    }

    pub(super) fn forget_one(&mut self, group: GroupId) {
        if let Some((_, known)) = self.cache.pop(&group) {
            self.members -= known.members.len();
        }
    }

    pub(super) fn forget(&mut self, partitions: &[Partition]) {
        let is_gone = |number: u32| {
            let mut partitions = partitions.iter();
            partitions.any(|gone| gone.topic == Topic::Message && gone.number == number)
        };
        let groups = self.cache.iter();
        let gone = groups.filter(|(_, (partition, _))| is_gone(*partition));
        let gone: Vec<GroupId> = gone.map(|(group, _)| *group).collect();
        gone.into_iter().for_each(|group| self.forget_one(group));
    }
}
