//! Queue from consumers to a shard's executor.

use backend::queue::{NewRecord, Partition};
use protocol::delivery::{DeliveryTask, Notice, Source};
use protocol::ledger::LedgerEntry;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;

use crate::decoded_record::{DecodedRecord, partition_key};

/// Work on records that are placed, or need no place.
#[derive(Debug, Default)]
pub(crate) struct ExecutorBatch {
    pub(crate) deliver: Vec<(Source, DeliveryTask)>,
    pub(crate) kickouts: Vec<DecodedRecord>,
    /// Effects of records that are already decided.
    pub(crate) effects: Vec<SettleWork>,
    pub(crate) notices: Vec<Notice>,
}

impl ExecutorBatch {
    pub(crate) fn is_empty(&self) -> bool {
        self.deliver.is_empty()
            && self.kickouts.is_empty()
            && self.effects.is_empty()
            && self.notices.is_empty()
    }

    pub(crate) fn append(&mut self, other: ExecutorBatch) {
        self.deliver.extend(other.deliver);
        self.kickouts.extend(other.kickouts);
        self.effects.extend(other.effects);
        self.notices.extend(other.notices);
    }

    /// Removes the work of these partitions, and returns the number of its records.
    pub(crate) fn drop_partitions(&mut self, partitions: &[Partition]) -> usize {
        let keys: Vec<_> = partitions.iter().copied().map(partition_key).collect();
        let is_dropped = |source: &Source| keys.contains(&(source.topic, source.partition));
        let old_count = self.deliver.len() + self.kickouts.len() + self.effects.len();
        self.deliver.retain(|(source, _)| !is_dropped(source));
        self.kickouts.retain(|record| !is_dropped(&record.source));
        self.effects.retain(|effect| !is_dropped(&effect.source));
        old_count - self.deliver.len() - self.kickouts.len() - self.effects.len()
    }
}

/// Effects that must be durable before a record is settled. Repeated whole until they are.
#[derive(Debug)]
pub(crate) struct SettleWork {
    pub(crate) source: Source,
    pub(crate) records: Vec<NewRecord>,
    pub(crate) ledger: Vec<LedgerEntry>,
}

impl SettleWork {
    /// No effects: the record only has to be passed.
    pub(crate) fn none(source: Source) -> SettleWork {
        SettleWork {
            source,
            records: Vec::new(),
            ledger: Vec::new(),
        }
    }
}

/// Request to forget the records of partitions that were given away, and to report when done.
#[derive(Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) reply: oneshot::Sender<()>,
}

/// A consumer's handle to a shard's executor.
#[derive(Clone, Debug)]
pub(crate) struct ExecutorHandle {
    pub(crate) batches: mpsc::Sender<ExecutorBatch>,
    releases: mpsc::Sender<ReleaseRequest>,
}

/// Batches that wait for a shard.
const BATCHES: usize = 4;

impl ExecutorHandle {
    pub(crate) fn new() -> (
        ExecutorHandle,
        mpsc::Receiver<ExecutorBatch>,
        mpsc::Receiver<ReleaseRequest>,
    ) {
        let (batches, batch_receiver) = mpsc::channel(BATCHES);
        let (releases, release_receiver) = mpsc::channel(1);
        (
            ExecutorHandle { batches, releases },
            batch_receiver,
            release_receiver,
        )
    }

    /// Waits for room for one batch. A shard that has ended never has room. Cancel safe.
    pub(crate) async fn room(&self) -> OwnedPermit<ExecutorBatch> {
        match self.batches.clone().reserve_owned().await {
            Ok(permit) => permit,
            Err(_) => std::future::pending().await,
        }
    }

    /// Ends the shard's work on these partitions, completely by the time it returns. The caller
    /// sends none of their records meanwhile.
    pub(crate) async fn abandon(&self, partitions: Vec<Partition>) {
        let (reply, answer) = oneshot::channel();
        let request = ReleaseRequest { partitions, reply };
        if self.releases.send(request).await.is_ok() {
            // An executor that has ended works on nothing.
            let _ = answer.await;
        }
    }
}
