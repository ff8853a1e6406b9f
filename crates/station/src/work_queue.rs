//! Work that follows an answer: gathered into batches, bounded, and dropped with a count at the
//! bound.

use std::future::Future;

use metrics::Counter;
use tokio::sync::mpsc;

use crate::part_spawner::PartSpawner;

/// Tasks that wait after an answer, in each queue. Beyond them the newest are dropped and counted;
/// sync or the boats' sweep makes up for them.
pub(crate) const WAITING_MAX: usize = 65_536;

/// Largest batch.
const BATCH_MAX: usize = 1024;

/// Sending end of a queue of background work.
#[derive(Debug)]
pub(crate) struct WorkQueue<T> {
    queue: mpsc::Sender<T>,
    dropped_total: Counter,
}

impl<T: Send + 'static> WorkQueue<T> {
    /// Starts a worker, which runs until the parts are stopped, and then does the work that is still
    /// queued; `name` labels its drops, and at most `waiting_max` items wait. Items offered while a
    /// batch is worked on make the next batch.
    pub(crate) fn spawn<W, F>(
        spawner: &PartSpawner,
        name: &'static str,
        waiting_max: usize,
        mut work: W,
    ) -> WorkQueue<T>
    where
        W: FnMut(Vec<T>) -> F + Send + 'static,
        F: Future<Output = ()> + Send,
    {
        let (queue, mut receiver) = mpsc::channel(waiting_max);
        let stop = spawner.stop.clone();
        spawner.spawn(name, stop.clone(), async move {
            loop {
                let first = tokio::select! {
                    biased;
                    first = receiver.recv() => first,
                    () = stop.cancelled() => None,
                };
                let Some(first) = first else { break };
                // Items offered by others in this turn of the runtime join the batch.
                tokio::task::yield_now().await;
                let mut batch = vec![first];
                while batch.len() < BATCH_MAX
                    && let Ok(more) = receiver.try_recv()
                {
                    batch.push(more);
                }
                work(batch).await;
            }
        });
        WorkQueue {
            queue,
            dropped_total: metrics::counter!("station_background_dropped_total", "work" => name),
        }
    }

    /// Queues one item; returns false if it was dropped.
    pub(crate) fn offer(&self, item: T) -> bool {
        let is_queued = self.queue.try_send(item).is_ok();
        if !is_queued {
            self.dropped_total.increment(1);
        }
        is_queued
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tokio_util::sync::CancellationToken;

    use super::*;

    #[tokio::test]
    async fn queued_work_is_done_and_excess_is_dropped() {
        let parts = PartSpawner::new(CancellationToken::new());
        let results = Arc::new(Mutex::new(Vec::new()));
        let log = results.clone();
        let queue = WorkQueue::spawn(&parts, "test", 3, move |batch: Vec<u32>| {
            log.lock().extend(batch);
            std::future::ready(())
        });
        let outcomes: Vec<bool> = (0..5).map(|n| queue.offer(n)).collect();
        assert_eq!(outcomes, [true, true, true, false, false]);
        parts.stop.cancel();
        parts.tasks.close();
        parts.tasks.wait().await;
        assert_eq!(*results.lock(), [0, 1, 2]);
        assert!(!queue.offer(9), "nobody works any more");
    }
}
