//! What consumers hand to a shard's executor.

use backend::queue::{NewRecord, Partition};
use protocol::delivery::{Notice, Source, Task};
use protocol::ledger::LedgerEntry;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;

use crate::work::{Read, partition_key};

/// Work on records that are placed, or need no place.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) deliver: Vec<(Source, Task)>,
    pub(crate) kickouts: Vec<Read>,
    /// Records that are decided already.
    pub(crate) effects: Vec<Effects>,
    pub(crate) notices: Vec<Notice>,
}

impl Batch {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliver.is_empty()
            && self.kickouts.is_empty()
            && self.effects.is_empty()
            && self.notices.is_empty()
    }

    pub(crate) fn append(&mut self, later: Batch) {
        self.deliver.extend(later.deliver);
        self.kickouts.extend(later.kickouts);
        self.effects.extend(later.effects);
        self.notices.extend(later.notices);
    }

    /// Takes out what belongs to these partitions; answers how many records that was.
    pub(crate) fn drop_partitions(&mut self, partitions: &[Partition]) -> usize {
        let keys: Vec<_> = partitions.iter().copied().map(partition_key).collect();
        let gone = |source: &Source| keys.contains(&(source.topic, source.partition));
        let before = self.deliver.len() + self.kickouts.len() + self.effects.len();
        self.deliver.retain(|(source, _)| !gone(source));
        self.kickouts.retain(|read| !gone(&read.source));
        self.effects.retain(|effects| !gone(&effects.source));
        before - self.deliver.len() - self.kickouts.len() - self.effects.len()
    }
}

/// All that must be durable before a record is settled. To be repeated whole until it is.
#[derive(Debug)]
pub(crate) struct Effects {
    pub(crate) source: Source,
    pub(crate) records: Vec<NewRecord>,
    pub(crate) ledger: Vec<LedgerEntry>,
}

impl Effects {
    /// Nothing is to be done: the record only has to be passed.
    pub(crate) fn none(source: Source) -> Effects {
        Effects {
            source,
            records: Vec::new(),
            ledger: Vec::new(),
        }
    }
}

/// Partitions were given away: forget their records, and say when that is done.
#[derive(Debug)]
pub(crate) struct Abandon {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) done: oneshot::Sender<()>,
}

/// The way to a shard's executor.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) batches: mpsc::Sender<Batch>,
    abandons: mpsc::Sender<Abandon>,
}

/// Batches that wait for a shard.
const BATCHES: usize = 4;

impl Shard {
    pub(crate) fn new() -> (Shard, mpsc::Receiver<Batch>, mpsc::Receiver<Abandon>) {
        let (batches, batches_out) = mpsc::channel(BATCHES);
        let (abandons, abandons_out) = mpsc::channel(1);
        (Shard { batches, abandons }, batches_out, abandons_out)
    }

    /// Waits for room for one batch. A shard that has ended never has room. Cancel safe.
    pub(crate) async fn room(&self) -> OwnedPermit<Batch> {
        match self.batches.clone().reserve_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        }
    }

    /// The shard works no longer on these partitions when this returns. Whoever calls it sends nothing
    /// of them meanwhile.
    pub(crate) async fn abandon(&self, partitions: Vec<Partition>) {
        let (done, is_done) = oneshot::channel();
        let abandon = Abandon { partitions, done };
        if self.abandons.send(abandon).await.is_ok() {
            // An executor that ended works on nothing.
            let _ = is_done.await;
        }
    }
}
