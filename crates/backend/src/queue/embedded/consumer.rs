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
    state: Arc<EmbeddedState>,
    group: Arc<Mutex<GroupState>>,
    member: MemberId,
    wake: Arc<Notify>,
    /// Partitions this member reads, in the order in which they are served next.
    positions: Vec<Position>,
}

struct Position {
    partition: Partition,
    next: u64,
    is_paused: bool,
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
        state.group.return_revoked(member, now);
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
        state: Arc<EmbeddedState>,
        group: &str,
        topic: Topic,
        member: MemberId,
    ) -> EmbeddedConsumer {
        let wake = Arc::new(Notify::new());
        state.logs.readers.write().push(Reader {
            member,
            topic,
            wake: wake.clone(),
        });
        let group = state.group(group);
        group
            .lock()
            .group
            .join(member, topic, wake.clone(), Instant::now());
        EmbeddedConsumer {
            state,
            group,
            member,
            wake,
            positions: Vec::new(),
        }
    }

    /// Returns a change of the assignment, if any, and the latest time for the next check.
    fn news(&mut self, now: Instant) -> Result<(Option<Polled>, Option<Instant>)> {
        let mut state = self.group.lock();
        state.group.expire(now);
        let change = match state.group.news(self.member) {
            None => None,
            Some(GroupNews::Lost(partitions)) => {
                self.positions
                    .retain(|position| !partitions.contains(&position.partition));
                Some(Polled::Lost(partitions))
            }
            Some(GroupNews::Revoked(partitions)) => {
                self.positions
                    .retain(|position| !partitions.contains(&position.partition));
                Some(Polled::Revoked(partitions))
            }
            Some(GroupNews::Assigned(partitions)) => {
                for &partition in &partitions {
                    let (first, _) = self.state.logs.log(partition)?.bounds();
                    let offset = state.committed_offsets.get(&partition).copied();
                    self.positions.push(Position {
                        partition,
                        next: offset.map_or(first, |next| next.max(first)),
                        is_paused: false,
                    });
                }
                Some(Polled::Assigned(partitions))
            }
        };
        Ok((change, state.group.next_check(now)))
    }

    /// Fetches visible records, starting with another partition each time.
    fn fetch(&mut self, max: usize) -> Result<Vec<Record>> {
        if !self.positions.is_empty() {
            self.positions.rotate_left(1);
        }
        let mut records: Vec<Record> = Vec::new();
        let mut budget = self.state.config.poll_bytes;
        for position in self
            .positions
            .iter_mut()
            .filter(|position| !position.is_paused)
        {
            if records.len() >= max || budget == 0 {
                break;
            }
            let log = self.state.logs.log(position.partition)?;
            let room = max - records.len();
            let more = match log.read(&self.state.engine, position.next, room, budget) {
                Ok(more) => more,
                // Records taken from other partitions already count as delivered: hand them out
                // first.
                Err(_) if !records.is_empty() => break,
                Err(error) => return Err(error),
            };
            if let Some(last) = more.last() {
                position.next = last.offset + 1;
            }
            let bytes: usize = more.iter().map(|r| r.key.len() + r.value.len()).sum();
            budget = budget.saturating_sub(bytes);
            records.extend(more);
        }
        Ok(records)
    }

    fn set_paused(&mut self, partitions: &[Partition], is_paused: bool) {
        for position in &mut self.positions {
            if partitions.contains(&position.partition) {
                position.is_paused = is_paused;
            }
        }
    }
}

#[async_trait]
impl Consumer for EmbeddedConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        let mut now = Instant::now();
        let _guard = PollGuard::begin(self.group.clone(), self.member, now);
        loop {
            let (change, expiry) = self.news(now)?;
            if let Some(outcome) = change {
                return Ok(outcome);
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
            let (_, end) = self.state.logs.log(partition)?.bounds();
            if next > end {
                return Err(Error::conflict(
                    SEAM,
                    format!("commit of {next}, but the partition ends at {end}"),
                ));
            }
            if state
                .committed_offsets
                .get(&partition)
                .is_none_or(|&c| c < next)
            {
                let key = log::committed_key(&state.name, partition);
                batch.put(Table::Offsets, key, next.to_be_bytes().to_vec());
            }
        }
        if batch.is_empty() {
            return Ok(());
        }
        self.state.engine.write(batch)?;
        for &(partition, next) in next {
            let offset = state.committed_offsets.entry(partition).or_default();
            *offset = next.max(*offset);
        }
        Ok(())
    }
}

impl Drop for EmbeddedConsumer {
    fn drop(&mut self) {
        let member = self.member;
        self.state
            .logs
            .readers
            .write()
            .retain(|reader| reader.member != member);
        self.group.lock().group.leave(member, Instant::now());
    }
}
