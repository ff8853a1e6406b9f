//! What a member asks of the brokers, blocking.

use std::fmt;
use std::time::Duration;

use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::Instant;

use super::super::SEAM;
use super::super::layout::Layout;
use super::super::reader;
use super::super::report::failed;
use super::Client;
use crate::queue::Partition;
use crate::{Error, Result};

/// Where each partition begins: its committed offset, `None` where the group has none.
pub(super) type Starts = Vec<(Partition, Option<u64>)>;

/// Offsets to be committed.
pub(super) type Due = Vec<(Partition, u64)>;

/// How long a commit waits that came in the middle of a rebalance.
const REBALANCE_PAUSE: Duration = Duration::from_millis(20);

/// A partition whose next record is not in the log.
#[derive(Debug)]
pub(super) struct Misplaced {
    pub(super) partition: Partition,
    next: u64,
    first: u64,
    end: u64,
}

impl fmt::Display for Misplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { topic, number } = self.partition;
        let Misplaced {
            next, first, end, ..
        } = self;
        write!(
            f,
            "{topic}/{number} continues at {next}, but the log has {first} to {end}"
        )
    }
}

/// Asks for the committed offsets.
pub(super) fn starts(
    client: &Client,
    list: TopicPartitionList,
    layout: &Layout,
    patience: Duration,
) -> Result<Starts> {
    if list.count() == 0 {
        return Ok(Vec::new());
    }
    let found = reader::committed(client, &list, patience)?;
    let elements = found.elements();
    let starts = elements.iter().filter_map(|at| {
        let partition = layout.partition(at.topic(), at.partition())?;
        let start = match at.offset() {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        };
        Some((partition, start))
    });
    Ok(starts.collect())
}

/// Commits, again while the group is dividing its partitions anew.
pub(super) fn commit(
    client: &Client,
    due: &Due,
    layout: &Layout,
    patience: Duration,
) -> Result<()> {
    let mut list = TopicPartitionList::new();
    for &(partition, next) in due {
        let (topic, number) = layout.place(partition)?;
        list.add_partition_offset(topic, number, Offset::Offset(next.cast_signed()))
            .map_err(|error| failed("committing", error))?;
    }
    let deadline = Instant::now() + patience;
    loop {
        let code = match client.commit(&list, CommitMode::Sync) {
            Ok(()) => return Ok(()),
            Err(error) => match error.rdkafka_error_code() {
                Some(code) if Instant::now() < deadline && is_rebalance(code) => code,
                _ => return Err(failed("committing", error)),
            },
        };
        if client.assignment_lost() {
            return Err(Error::conflict(
                SEAM,
                format!("the partitions are lost: {code}"),
            ));
        }
        std::thread::sleep(REBALANCE_PAUSE);
    }
}

fn is_rebalance(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::RebalanceInProgress | Code::StaleMemberEpoch | Code::CoordinatorLoadInProgress
    )
}

/// Refuses (`Conflict`) offsets that are not in the log yet.
pub(super) fn check_ends(
    client: &Client,
    due: &Due,
    layout: &Layout,
    patience: Duration,
) -> Result<()> {
    for &(partition, next) in due {
        let (_, end) = bounds(client, partition, layout, patience)?;
        if next > end {
            return Err(Error::conflict(
                SEAM,
                format!("commit of {next}, but the partition ends at {end}"),
            ));
        }
    }
    Ok(())
}

fn bounds(
    client: &Client,
    partition: Partition,
    layout: &Layout,
    patience: Duration,
) -> Result<(u64, u64)> {
    let (topic, number) = layout.place(partition)?;
    reader::bounds(client, topic, number, patience)
}

/// Finds the partitions whose next record is not there, and lets the others be read again from where they
/// are: librdkafka stopped one of them and does not say which.
pub(super) fn misplaced(
    client: &Client,
    positions: &[(Partition, u64)],
    layout: &Layout,
    patience: Duration,
) -> Result<Vec<Misplaced>> {
    let mut found = Vec::new();
    let mut there = TopicPartitionList::new();
    for &(partition, next) in positions {
        let (first, end) = bounds(client, partition, layout, patience)?;
        if (first..=end).contains(&next) {
            let (topic, number) = layout.place(partition)?;
            there
                .add_partition_offset(topic, number, Offset::Offset(next.cast_signed()))
                .map_err(|error| failed("seeking", error))?;
        } else {
            found.push(Misplaced {
                partition,
                next,
                first,
                end,
            });
        }
    }
    if there.count() > 0 {
        client
            .seek_partitions(there, patience)
            .map_err(|error| failed("seeking", error))?;
    }
    Ok(found)
}
