//! Blocking requests of a member to the brokers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use metrics::counter;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList, TopicPartitionListElem};
use tokio::time::Instant;

use super::super::SEAM;
use super::super::layout::Layout;
use super::super::reader;
use super::super::report::failed;
use super::Client;
use crate::queue::Partition;
use crate::{Error, Result};

/// Start of each partition: its committed offset, or the beginning if the group has none. The list
/// is passed on as the brokers returned it, because an offset's leader epoch has no safe setter.
pub(super) type Starts = TopicPartitionList;

/// Offsets from which partitions are read; `None` is the beginning.
pub(super) type Places = Vec<(Partition, Option<u64>)>;

/// Offsets to commit.
pub(super) type Due = Vec<(Partition, u64)>;

/// Pause before retrying a commit that met a rebalance.
const REBALANCE_PAUSE: Duration = Duration::from_millis(20);

/// A partition whose next record is not in the log.
#[derive(Debug)]
pub(super) struct OffsetGap {
    pub(super) partition: Partition,
    next: u64,
    first: u64,
    end: u64,
    /// The log lost its tail and has grown again: the record now at `next` is not the successor.
    pub(super) truncated: bool,
}

impl fmt::Display for OffsetGap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Partition { topic, number } = self.partition;
        let OffsetGap {
            next, first, end, ..
        } = self;
        write!(
            f,
            "{topic}/{number} continues at {next}, but the log has {first} to {end}"
        )?;
        if self.truncated {
            f.write_str(
                " after it lost its tail, so that records accepted since stand before that",
            )?;
        }
        Ok(())
    }
}

/// Looks up the committed offsets. Only partitions without a commit start at the beginning.
pub(super) fn starts(
    client: &Client,
    group: &str,
    list: TopicPartitionList,
    patience: Duration,
) -> Result<Starts> {
    if list.count() == 0 {
        return Ok(list);
    }
    let starts = reader::committed(client, &list, patience)?;
    for mut at in starts.elements() {
        if !matches!(at.offset(), Offset::Offset(_)) {
            at.set_offset(Offset::Beginning)
                .map_err(|error| failed("placing", error))?;
            let (first, _) = reader::bounds(client, at.topic(), at.partition(), patience)?;
            if first > 0 {
                begins_late(group, at.topic(), at.partition(), first);
            }
        }
    }
    Ok(starts)
}

/// Reports a group without offsets whose log has lost its beginning. Only the operator can tell a
/// new group from one whose offsets expired.
fn begins_late(group: &str, topic: &str, partition: i32, first: u64) {
    counter!("queue_partitions_without_offset_total").increment(1);
    tracing::error!(
        group,
        topic,
        partition,
        first,
        "no committed offset, and the log has lost its beginning: harmless for a new group. Where the group was \
         away for longer than offsets.retention.minutes, records before the first one were dropped unread, and \
         all that are left are read again"
    );
}

/// Seeks each partition to its start; `None` while librdkafka has not begun to read some of them. A
/// seek to an offset with its leader epoch makes librdkafka ask the leader whether its log still
/// has the records read before; an assignment alone does not. Partitions that librdkafka has
/// `stopped` refuse seeks.
pub(super) fn seek(
    client: &Client,
    starts: &Starts,
    layout: &Layout,
    patience: Duration,
    stopped: &BTreeSet<Partition>,
) -> Result<Option<Places>> {
    if starts.count() == 0 {
        return Ok(Some(Vec::new()));
    }
    let sought = client
        .seek_partitions(starts.clone(), patience)
        .map_err(|error| failed("seeking", error))?;
    let sought = sought.elements();
    let unread = sought.iter().filter(|at| {
        let partition = layout.partition(at.topic(), at.partition());
        !partition.is_some_and(|partition| stopped.contains(&partition))
    });
    if let Some(error) = unread.filter_map(|at| at.error().err()).next() {
        tracing::debug!(%error, "a partition is not read yet");
        return Ok(None);
    }
    let places = sought.iter().filter_map(|at| {
        let partition = layout.partition(at.topic(), at.partition())?;
        Some((partition, offset(at)))
    });
    Ok(Some(places.collect()))
}

/// Offsets among `starts`; a partition that starts at the beginning has none.
pub(super) fn offsets(starts: &Starts, layout: &Layout) -> Vec<(Partition, u64)> {
    let starts = starts.elements();
    let offsets = starts.iter().filter_map(|at| {
        let partition = layout.partition(at.topic(), at.partition())?;
        Some((partition, offset(at)?))
    });
    offsets.collect()
}

fn offset(at: &TopicPartitionListElem<'_>) -> Option<u64> {
    match at.offset() {
        Offset::Offset(offset) => u64::try_from(offset).ok(),
        _ => None,
    }
}

/// Commits, retrying while the group rebalances.
pub(super) fn commit(
    client: &Client,
    due: &Due,
    layout: &Layout,
    patience: Duration,
) -> Result<()> {
    let list = with_epochs(client, due, layout)?;
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

/// Pairs the offsets with the leader epochs of the last records read: those are never older than
/// the offsets' own epochs, so a log that lost either is detected. Invalid offsets are not sent.
fn with_epochs(client: &Client, due: &Due, layout: &Layout) -> Result<TopicPartitionList> {
    let failed = |error| failed("committing", error);
    let mut list = client.position().map_err(failed)?;
    let mut left: BTreeMap<Partition, u64> = due.iter().copied().collect();
    for mut at in list.elements() {
        let partition = layout.partition(at.topic(), at.partition());
        let offset = match partition.and_then(|partition| left.remove(&partition)) {
            Some(next) => Offset::Offset(next.cast_signed()),
            None => Offset::Invalid,
        };
        at.set_offset(offset).map_err(failed)?;
    }
    for (partition, next) in left {
        let (topic, number) = layout.place(partition)?;
        list.add_partition_offset(topic, number, Offset::Offset(next.cast_signed()))
            .map_err(failed)?;
    }
    Ok(list)
}

fn is_rebalance(code: RDKafkaErrorCode) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(
        code,
        Code::RebalanceInProgress | Code::StaleMemberEpoch | Code::CoordinatorLoadInProgress
    )
}

/// Refuses (`Conflict`) offsets beyond the end of the log.
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

/// Truncations that librdkafka found in logs.
#[derive(Clone, Debug, Default)]
pub(super) struct Truncations {
    /// Partitions known to be truncated.
    pub(super) partitions: BTreeSet<Partition>,
    /// Positions of truncations whose partitions librdkafka does not name.
    pub(super) positions: BTreeSet<u64>,
}

/// Findings of a search.
#[derive(Debug, Default)]
pub(super) struct Search {
    pub(super) misplaced: Vec<OffsetGap>,
    /// Partitions that librdkafka no longer reads although their next record exists.
    pub(super) stopped: Vec<Partition>,
}

/// Finds the partitions whose next record is missing, and seeks the others to their positions
/// again: librdkafka stopped one of them and does not say which. After a truncation nothing is
/// sought, because a log may have grown past the position in the meantime, with other records.
/// Partitions that only have `starts` are left to [`seek`].
pub(super) fn misplaced(
    client: &Client,
    positions: &[(Partition, u64)],
    starts: &[(Partition, u64)],
    truncations: &Truncations,
    layout: &Layout,
    patience: Duration,
) -> Result<Search> {
    let mut found = Search::default();
    let mut there = TopicPartitionList::new();
    let placed = positions.iter().map(|at| (at, true));
    let starting = starts.iter().map(|at| (at, false));
    for (&(partition, next), is_placed) in placed.chain(starting) {
        let (first, end) = bounds(client, partition, layout, patience)?;
        let truncated =
            truncations.partitions.contains(&partition) || truncations.positions.contains(&next);
        if (first..=end).contains(&next) && !truncated {
            if !is_placed {
                continue;
            }
            let (topic, number) = layout.place(partition)?;
            there
                .add_partition_offset(topic, number, Offset::Offset(next.cast_signed()))
                .map_err(|error| failed("seeking", error))?;
        } else {
            found.misplaced.push(OffsetGap {
                partition,
                next,
                first,
                end,
                truncated,
            });
        }
    }
    if there.count() > 0 && truncations.positions.is_empty() {
        let sought = client
            .seek_partitions(there, patience)
            .map_err(|error| failed("seeking", error))?;
        let sought = sought.elements();
        let stopped = sought.iter().filter(|at| at.error().is_err());
        found.stopped = stopped
            .filter_map(|at| layout.partition(at.topic(), at.partition()))
            .collect();
    }
    Ok(found)
}
