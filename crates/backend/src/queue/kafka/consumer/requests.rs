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
    pub(super) is_truncated: bool,
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
        if self.is_truncated {
            f.write_str(
                " after it lost its tail, so records accepted since then have lower offsets",
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
    timeout: Duration,
) -> Result<Starts> {
    if list.count() == 0 {
        return Ok(list);
    }
    let starts = reader::committed(client, &list, timeout)?;
    for mut element in starts.elements() {
        if !matches!(element.offset(), Offset::Offset(_)) {
            element
                .set_offset(Offset::Beginning)
                .map_err(|error| failed("placing", error))?;
            let (first, _) = reader::bounds(client, element.topic(), element.partition(), timeout)?;
            if first > 0 {
                report_late_start(group, element.topic(), element.partition(), first);
            }
        }
    }
    Ok(starts)
}

/// Reports a group without offsets whose log has lost its beginning. Only the operator can tell a
/// new group from one whose offsets expired.
fn report_late_start(group: &str, topic: &str, partition: i32, first: u64) {
    counter!("queue_partitions_without_offset_total").increment(1);
    tracing::error!(
        group,
        topic,
        partition,
        first,
        "no committed offset, and the log no longer starts at 0: harmless for a new group. If the \
         group was away for longer than offsets.retention.minutes, older records were removed \
         unread, and the remaining ones are read again"
    );
}

/// Seeks each partition to its start; `None` while librdkafka has not begun to read some of them. A
/// seek to an offset with its leader epoch makes librdkafka ask the leader whether its log still
/// has the records read before; an assignment alone does not. Partitions that librdkafka has
/// stopped (`stopped_partitions`) refuse seeks.
pub(super) fn seek(
    client: &Client,
    starts: &Starts,
    layout: &Layout,
    timeout: Duration,
    stopped_partitions: &BTreeSet<Partition>,
) -> Result<Option<Places>> {
    if starts.count() == 0 {
        return Ok(Some(Vec::new()));
    }
    let results = client
        .seek_partitions(starts.clone(), timeout)
        .map_err(|error| failed("seeking", error))?;
    let results = results.elements();
    let unread = results.iter().filter(|element| {
        let partition = layout.partition(element.topic(), element.partition());
        !partition.is_some_and(|partition| stopped_partitions.contains(&partition))
    });
    if let Some(error) = unread.filter_map(|element| element.error().err()).next() {
        tracing::debug!(%error, "cannot read a partition yet");
        return Ok(None);
    }
    let places = results.iter().filter_map(|element| {
        let partition = layout.partition(element.topic(), element.partition())?;
        Some((partition, offset(element)))
    });
    Ok(Some(places.collect()))
}

/// Offsets among `starts`; a partition that starts at the beginning has none.
pub(super) fn offsets(starts: &Starts, layout: &Layout) -> Vec<(Partition, u64)> {
    let starts = starts.elements();
    let offsets = starts.iter().filter_map(|element| {
        let partition = layout.partition(element.topic(), element.partition())?;
        Some((partition, offset(element)?))
    });
    offsets.collect()
}

fn offset(element: &TopicPartitionListElem<'_>) -> Option<u64> {
    match element.offset() {
        Offset::Offset(offset) => u64::try_from(offset).ok(),
        _ => None,
    }
}

/// Commits, retrying while the group rebalances.
pub(super) fn commit(
    client: &Client,
    offsets: &Due,
    layout: &Layout,
    timeout: Duration,
) -> Result<()> {
    let list = with_epochs(client, offsets, layout)?;
    let deadline = Instant::now() + timeout;
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
fn with_epochs(client: &Client, offsets: &Due, layout: &Layout) -> Result<TopicPartitionList> {
    let failed = |error| failed("committing", error);
    let mut list = client.position().map_err(failed)?;
    let mut remaining: BTreeMap<Partition, u64> = offsets.iter().copied().collect();
    for mut element in list.elements() {
        let partition = layout.partition(element.topic(), element.partition());
        let offset = match partition.and_then(|partition| remaining.remove(&partition)) {
            Some(next) => Offset::Offset(next.cast_signed()),
            None => Offset::Invalid,
        };
        element.set_offset(offset).map_err(failed)?;
    }
    for (partition, next) in remaining {
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
    offsets: &Due,
    layout: &Layout,
    timeout: Duration,
) -> Result<()> {
    for &(partition, next) in offsets {
        let (_, end) = bounds(client, partition, layout, timeout)?;
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
    timeout: Duration,
) -> Result<(u64, u64)> {
    let (topic, number) = layout.place(partition)?;
    reader::bounds(client, topic, number, timeout)
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
    pub(super) gaps: Vec<OffsetGap>,
    /// Partitions that librdkafka no longer reads although their next record exists.
    pub(super) stopped_partitions: Vec<Partition>,
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
    timeout: Duration,
) -> Result<Search> {
    let mut search = Search::default();
    let mut seek_list = TopicPartitionList::new();
    let held_positions = positions.iter().map(|position| (position, true));
    let start_positions = starts.iter().map(|position| (position, false));
    for (&(partition, next), is_placed) in held_positions.chain(start_positions) {
        let (first, end) = bounds(client, partition, layout, timeout)?;
        let is_truncated =
            truncations.partitions.contains(&partition) || truncations.positions.contains(&next);
        if (first..=end).contains(&next) && !is_truncated {
            if !is_placed {
                continue;
            }
            let (topic, number) = layout.place(partition)?;
            seek_list
                .add_partition_offset(topic, number, Offset::Offset(next.cast_signed()))
                .map_err(|error| failed("seeking", error))?;
        } else {
            search.gaps.push(OffsetGap {
                partition,
                next,
                first,
                end,
                is_truncated,
            });
        }
    }
    if seek_list.count() > 0 && truncations.positions.is_empty() {
        let results = client
            .seek_partitions(seek_list, timeout)
            .map_err(|error| failed("seeking", error))?;
        let results = results.elements();
        let failures = results.iter().filter(|element| element.error().is_err());
        search.stopped_partitions = failures
            .filter_map(|element| layout.partition(element.topic(), element.partition()))
            .collect();
    }
    Ok(search)
}
