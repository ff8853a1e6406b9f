//! A member of a consumer group.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use protocol::keys::Topic;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::super::{Consumer, Partition, Polled, Record};
use super::group::{GroupNews, MemberId};
use super::{EmbeddedState, GroupState, Reader, SEAM, log};
use crate::embedded::{Table, WriteBatch};
use crate::{Error, Result};

pub(super) struct EmbeddedConsumer {
    shared: Arc<EmbeddedState>,
    group: Arc<Mutex<GroupState>>,
    member: MemberId,
    wake: Arc<Notify>,
    /// Partitions this member reads, in the order in which they are served next.
    reading: Vec<Position>,
}

struct Position {
    partition: Partition,
    next: u64,
    paused: bool,
}

/// A poll in progress; may be dropped at any time.
struct PollGuard {
    group: Arc<Mutex<GroupState>>,
    member: MemberId,
}

impl PollGuard {
    fn begin(group: Arc<Mutex<GroupState>>, member: MemberId, now: Instant) -> PollGuard {
        let mut state = group.lock();
        state.group.expire(now);
        state.group.poll_begins(member, now);
        state.group.give_up_told(member, now);
        drop(state);
        PollGuard { group, member }
    }
}

impl Drop for PollGuard {
    fn drop(&mut self) {
        let mut state = self.group.lock();
        state.group.poll_ends(self.member, Instant::now());
    }
}

impl EmbeddedConsumer {
    pub(super) fn join(
        shared: Arc<EmbeddedState>,
        group: &str,
        topic: Topic,
        member: MemberId,
    ) -> EmbeddedConsumer {
        let wake = Arc::new(Notify::new());
        shared.logs.readers.write().push(Reader {
            member,
            topic,
            wake: wake.clone(),
        });
        let group = shared.group(group);
        group
            .lock()
            .group
            .join(member, topic, wake.clone(), Instant::now());
        EmbeddedConsumer {
            shared,
            group,
            member,
            wake,
            reading: Vec::new(),
        }
    }

    /// Returns a change of the assignment, if any, and the latest time for the next check.
    fn news(&mut self, now: Instant) -> Result<(Option<Polled>, Option<Instant>)> {
        let mut state = self.group.lock();
        state.group.expire(now);
        let polled = match state.group.news(self.member) {
            None => None,
            Some(GroupNews::Lost(lost)) => {
                self.reading.retain(|at| !lost.contains(&at.partition));
                Some(Polled::Lost(lost))
            }
            Some(GroupNews::Revoked(revoked)) => {
                self.reading.retain(|at| !revoked.contains(&at.partition));
                Some(Polled::Revoked(revoked))
            }
            Some(GroupNews::Assigned(assigned)) => {
                for &partition in &assigned {
                    let (first, _) = self.shared.logs.log(partition)?.bounds();
                    let committed = state.committed.get(&partition).copied();
                    self.reading.push(Position {
                        partition,
                        next: committed.map_or(first, |next| next.max(first)),
                        paused: false,
                    });
                }
                Some(Polled::Assigned(assigned))
            }
        };
        Ok((polled, state.group.next_look(now)))
    }

    /// Fetches visible records, starting with another partition each time.
    fn fetch(&mut self, max: usize) -> Result<Vec<Record>> {
        if !self.reading.is_empty() {
            self.reading.rotate_left(1);
        }
        let mut records: Vec<Record> = Vec::new();
        let mut budget = self.shared.config.poll_bytes;
        for at in self.reading.iter_mut().filter(|at| !at.paused) {
            if records.len() >= max || budget == 0 {
                break;
            }
            let log = self.shared.logs.log(at.partition)?;
            let room = max - records.len();
            let more = match log.read(&self.shared.engine, at.next, room, budget) {
                Ok(more) => more,
                // Records taken from other partitions already count as delivered: hand them out
                // first.
                Err(_) if !records.is_empty() => break,
                Err(error) => return Err(error),
            };
            if let Some(last) = more.last() {
                at.next = last.offset + 1;
            }
            let bytes: usize = more.iter().map(|r| r.key.len() + r.value.len()).sum();
            budget = budget.saturating_sub(bytes);
            records.extend(more);
        }
        Ok(records)
    }

    fn set_paused(&mut self, partitions: &[Partition], paused: bool) {
        for at in &mut self.reading {
            if partitions.contains(&at.partition) {
                at.paused = paused;
            }
        }
    }
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        let mut now = Instant::now();
        let _polling = PollGuard::begin(self.group.clone(), self.member, now);
        loop {
            let (news, expiry) = self.news(now)?;
            if let Some(polled) = news {
                return Ok(polled);
            }
            let records = self.fetch(max.max(1))?;
            if !records.is_empty() {
                return Ok(Polled::Records(records));
            }
            // The Notify keeps a wake-up that came since the last check, so none is slept through.
            match expiry {
                None => self.wake.notified().await,
                Some(expiry) => tokio::select! {
                    biased;
                    () = sleep_until(expiry) => {}
                    () = self.wake.notified() => {}
                },
            }
            now = Instant::now();
        }
    }

    fn pause(&mut self, partitions: &[Partition]) {
        self.set_paused(partitions, true);
    }

    fn resume(&mut self, partitions: &[Partition]) {
        self.set_paused(partitions, false);
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        // Held across the write, so that the next holder of the partition commits after it.
        let mut state = self.group.lock();
        state.group.expire(Instant::now());
        let mut batch = WriteBatch::new();
        for &(partition, next) in next {
            if !state.group.holds(self.member, partition) {
                return Err(Error::conflict(
                    SEAM,
                    format!(
                        "{}/{} is not assigned to this member of {}",
                        partition.topic, partition.number, state.name
                    ),
                ));
            }
            let (_, end) = self.shared.logs.log(partition)?.bounds();
            if next > end {
                return Err(Error::conflict(
                    SEAM,
                    format!("commit of {next}, but the partition ends at {end}"),
                ));
            }
            if state.committed.get(&partition).is_none_or(|&c| c < next) {
                let key = log::committed_key(&state.name, partition);
                batch.put(Table::Offsets, key, next.to_be_bytes().to_vec());
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.shared.engine.write(batch)?;
        for &(partition, next) in next {
            let committed = state.committed.entry(partition).or_default();
            *committed = next.max(*committed);
        }
        Ok(())
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        let member = self.member;
        self.shared
            .logs
            .readers
            .write()
            .retain(|reader| reader.member != member);
        self.group.lock().group.leave(member, Instant::now());
    }
}
