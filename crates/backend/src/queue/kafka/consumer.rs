//! A member of a consumer group on Kafka.
//!
//! Only [`Consumer::poll`] carries out the group's decisions: assigned partitions start at the
//! committed offset, which is looked up first; revoked partitions are reported, and returned to the
//! group at the next poll. Records that librdkafka prefetched stay in its bounded queue or, for
//! paused partitions, in [`Assignments`], so that a resumed partition continues at once.

mod assignments;
pub(super) mod rebalance;
mod requests;

use std::future::{pending, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{FutureExt, Stream, StreamExt};
use protocol::keys::Topic;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::error::KafkaError;
use rdkafka::message::BorrowedMessage;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use self::assignments::{Assignments, PartitionFlow};
use self::rebalance::{
    AssignmentChange, Rebalances, apply_assignment, is_offset_missing, truncated_at,
};
use self::requests::{Due, OffsetGap, Places, Search, Starts, Truncations};
use super::config::KafkaConfig;
use super::layout::Layout;
use super::renewal::Renewals;
use super::report::failed;
use super::{SEAM, record, settings};
use crate::queue::{Consumer, Partition, Polled, Record};
use crate::{Error, Result};

type Client = StreamConsumer<Rebalances>;

/// Approximate size of the records in one poll. A poll returns at least one record.
const POLL_BYTES: usize = 4 << 20;

/// Bytes of records that a paused partition buffers, to go on at once when it is resumed. Beyond
/// them it is paused at the broker.
const PAUSE_BYTES: usize = 256 << 10;

/// Time limit of a seek, which involves no other process.
const SEEK_TIMEOUT: Duration = Duration::from_millis(100);

/// Pause before seeking again in a partition that librdkafka has not begun to read.
const SEEK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Interval between repeated reports of a partition that cannot be read.
const REMINDER_INTERVAL: Duration = Duration::from_secs(60);

/// Remedy for records removed before the group read them.
const MISSING_RECORDS_REMEDY: &str = "These records were removed before the group read them (retention, or a \
                    recreated topic); nothing is skipped silently. Decide what to do about them, \
                    stop the group's members, set its offsets to where it should continue \
                    (kafka-consumer-groups --reset-offsets), and start them";

/// Remedy for a log that is shorter than the group's offsets. Resetting offsets is not enough:
/// records accepted since then carry versions that the stores have seen, and would be taken for
/// repeats.
const TRUNCATED_LOG_REMEDY: &str = "The log lost records that the group has read, and other records have \
                         their offsets now; nothing is skipped silently. Stop the group's members, \
                         set kafka.epoch_min above the log's epoch and run `packetboat topics \
                         apply`, set the group's offsets to the first lost one \
                         (kafka-consumer-groups --reset-offsets), and start them; see \
                         docs/operations/cluster.md, *A log that lost its tail*";

pub(super) struct KafkaConsumer {
    /// Present until drop. Closing it takes a while and must not happen on the runtime.
    client: Option<Arc<Client>>,
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    group: String,
    topic: Topic,
    renewals: Renewals,
    /// Number of the credentials used to join, or of older ones.
    renewal: u64,
    runtime: Handle,
    assignments: Assignments,
    /// Reported as *revoked*; returned to the group at the next poll.
    revoked_partitions: Vec<Partition>,
    /// Assignment in progress, while the group's offsets are looked up.
    assignment_task: Option<AssignmentTask>,
    /// Seek in progress, even after a poll that was dropped.
    seek_task: Option<JoinHandle<Result<Option<Places>>>>,
    /// True once librdkafka refuses to read a partition whose next record is in the log: it stopped
    /// the partition while the record was missing, and only a member that joins anew reads it.
    is_stuck: bool,
    /// Commit in progress, even after its caller gave up on it.
    commit_task: Option<CommitTask>,
    /// Search in progress for partitions whose next record is missing.
    search_task: Option<JoinHandle<Result<Search>>>,
    /// Set when librdkafka reported a partition during another search, which may have missed it.
    /// librdkafka reports each partition once and then stops reading it.
    needs_second_search: bool,
    offset_gaps: Vec<OffsetGap>,
    /// Findings of librdkafka about logs that lost their tails.
    truncations: Truncations,
    remind_at: Option<Instant>,
    /// Time of the last poll of librdkafka, which proves that this member lives.
    polled_at: Instant,
    /// True after too long without a poll: the group has already taken everything it asked for
    /// meanwhile.
    is_evicted: bool,
}

struct AssignmentTask {
    partitions: Vec<Partition>,
    step: AssignmentStep,
}

/// Progress of an assignment.
enum AssignmentStep {
    /// Group's offsets still to be looked up, also after a failure.
    Ask,
    Asked(JoinHandle<Result<Starts>>),
    /// Assigned, but some partitions are not at their offsets yet; the next seek is at
    /// `seek_at`.
    Seek {
        starts: Starts,
        seek_at: Instant,
        /// Time from which a seek that is refused makes the member join anew: no change of the
        /// group is answered until all partitions are placed.
        rejoin_at: Instant,
    },
}

struct CommitTask {
    offsets: Due,
    task: JoinHandle<Result<()>>,
}

/// Outcome of a wait inside a poll.
enum Event {
    Record(Option<Record>),
    Failed(KafkaError),
    Change,
    Placed(Result<Starts>),
    Seek,
    Searched(Result<Search>),
    Remind,
}

impl KafkaConsumer {
    pub(super) fn join(
        config: Arc<KafkaConfig>,
        layout: Arc<Layout>,
        group: &str,
        topic: Topic,
        renewals: Renewals,
    ) -> Result<KafkaConsumer> {
        let group = layout.group(group, topic);
        KafkaConsumer::open(config, layout, group, topic, renewals)
    }

    /// Opens a member of `group`, as named on the brokers.
    fn open(
        config: Arc<KafkaConfig>,
        layout: Arc<Layout>,
        group: String,
        topic: Topic,
        renewals: Renewals,
    ) -> Result<KafkaConsumer> {
        let renewal = *renewals.borrow();
        let join_failed = |error| failed(format!("joining group {group}"), error);
        let client: Client = settings::member(&config, &group)?
            .create_with_context(Rebalances::new(&config, layout.clone()))
            .map_err(join_failed)?;
        client
            .subscribe(&[layout.name(topic)])
            .map_err(join_failed)?;
        Ok(KafkaConsumer {
            client: Some(Arc::new(client)),
            config,
            layout,
            group,
            topic,
            renewals,
            renewal,
            runtime: Handle::current(),
            assignments: Assignments::default(),
            revoked_partitions: Vec::new(),
            assignment_task: None,
            seek_task: None,
            is_stuck: false,
            commit_task: None,
            search_task: None,
            needs_second_search: false,
            offset_gaps: Vec::new(),
            truncations: Truncations::default(),
            remind_at: None,
            polled_at: Instant::now(),
            is_evicted: false,
        })
    }

    fn client(&self) -> Result<&Arc<Client>> {
        let client = self.client.as_ref();
        client.ok_or_else(|| Error::conflict(SEAM, "the consumer has left its group"))
    }

    /// Rejoins the group if there are new credentials, or librdkafka does not read a partition.
    /// First reports everything held as *revoked*, once.
    fn rejoin(&mut self) -> Result<Option<Polled>> {
        let has_new_credentials = *self.renewals.borrow() != self.renewal;
        if !has_new_credentials && !self.is_stuck {
            return Ok(None);
        }
        let partitions: Vec<Partition> = self.assignments.partitions().collect();
        if !partitions.is_empty() {
            self.assignments.revoke(&partitions);
            self.revoked_partitions.clone_from(&partitions);
            return Ok(Some(Polled::Revoked(partitions)));
        }
        tracing::info!(
            group = self.group,
            has_new_credentials,
            is_stuck = self.is_stuck,
            "rejoining the consumer group"
        );
        let (config, layout) = (self.config.clone(), self.layout.clone());
        let (group, renewals) = (self.group.clone(), self.renewals.clone());
        *self = KafkaConsumer::open(config, layout, group, self.topic, renewals)?;
        Ok(None)
    }

    /// Next change to report, if any.
    fn next_change(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        while self.assignment_task.is_none()
            && let Some(change) = client.context().next()
        {
            match change {
                AssignmentChange::Assign(partitions) => {
                    self.is_evicted &= partitions.is_empty();
                    self.assignment_task = Some(AssignmentTask {
                        partitions,
                        step: AssignmentStep::Ask,
                    });
                }
                AssignmentChange::Revoke(partitions)
                    if !partitions.is_empty() && !self.is_evicted =>
                {
                    self.assignments.revoke(&partitions);
                    self.revoked_partitions.clone_from(&partitions);
                    return Ok(Some(Polled::Revoked(partitions)));
                }
                AssignmentChange::Revoke(partitions) | AssignmentChange::Lose(partitions) => {
                    self.release(&partitions)?;
                    if !partitions.is_empty() {
                        return Ok(Some(Polled::Lost(partitions)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn release(&mut self, partitions: &[Partition]) -> Result<()> {
        apply_assignment(self.client()?.as_ref(), false, &self.list(partitions)?);
        self.assignments.remove(partitions);
        self.offset_gaps
            .retain(|gap| !partitions.contains(&gap.partition));
        let truncated_partitions = &mut self.truncations.partitions;
        truncated_partitions.retain(|partition| !partitions.contains(partition));
        Ok(())
    }

    /// Returns revoked partitions to the group, after the last commit for them.
    async fn return_revoked(&mut self) -> Result<()> {
        if self.revoked_partitions.is_empty() {
            return Ok(());
        }
        // A commit that fails here has already failed for its caller.
        let _ = self.finish_commit().await;
        let partitions = std::mem::take(&mut self.revoked_partitions);
        self.release(&partitions)
    }

    fn list(&self, partitions: &[Partition]) -> Result<TopicPartitionList> {
        let mut list = TopicPartitionList::new();
        for &partition in partitions {
            let (topic, number) = self.layout.place(partition)?;
            list.add_partition(topic, number);
        }
        Ok(list)
    }

    /// Looks up the start offsets of newly assigned partitions.
    fn look_up_starts(&mut self) -> Result<()> {
        let client = self.client()?.clone();
        let Some(task) = &self.assignment_task else {
            return Ok(());
        };
        if !matches!(task.step, AssignmentStep::Ask) {
            return Ok(());
        }
        let list = self.list(&task.partitions)?;
        let (group, request_timeout) = (self.group.clone(), self.config.request_timeout);
        let lookup = self
            .runtime
            .spawn_blocking(move || requests::starts(&client, &group, list, request_timeout));
        if let Some(task) = &mut self.assignment_task {
            task.step = AssignmentStep::Asked(lookup);
        }
        Ok(())
    }

    /// Accepts the assignment and begins to seek.
    async fn accept_assignment(&mut self, starts: Result<Starts>) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(task) = &mut self.assignment_task else {
            return Ok(None);
        };
        task.step = AssignmentStep::Ask;
        let starts = starts?;
        apply_assignment(client.as_ref(), true, &starts);
        let now = Instant::now();
        task.step = AssignmentStep::Seek {
            starts,
            seek_at: now,
            rejoin_at: now + self.config.request_timeout,
        };
        self.seek().await
    }

    /// Seeks the assigned partitions to their start offsets. Records that arrive before all of them
    /// are there are dropped and come again.
    async fn seek(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(task) = &self.assignment_task else {
            return Ok(None);
        };
        let AssignmentStep::Seek { starts, .. } = &task.step else {
            return Ok(None);
        };
        let (starts, layout) = (starts.clone(), self.layout.clone());
        let stopped_partitions = self.offset_gaps.iter().map(|gap| gap.partition).collect();
        let seek =
            move || requests::seek(&client, &starts, &layout, SEEK_TIMEOUT, &stopped_partitions);
        self.seek_task = Some(self.runtime.spawn_blocking(seek));
        self.finish_seek().await
    }

    /// Waits for the seek in progress. Nothing is fetched meanwhile: a record that is read behind
    /// its partition's start, but before the partition is held, would be dropped and never come
    /// again.
    async fn finish_seek(&mut self) -> Result<Option<Polled>> {
        let Some(seek_task) = &mut self.seek_task else {
            return Ok(None);
        };
        let outcome = flatten_join(seek_task.await);
        self.seek_task = None;
        let Some(task) = &mut self.assignment_task else {
            return Ok(None);
        };
        let AssignmentStep::Seek {
            seek_at, rejoin_at, ..
        } = &mut task.step
        else {
            return Ok(None);
        };
        let now = Instant::now();
        *seek_at = now + SEEK_RETRY_INTERVAL;
        let places = match outcome {
            Ok(Some(places)) => places,
            unfinished => {
                // A search in progress may find out which partition to do without.
                if now >= *rejoin_at && self.search_task.is_none() {
                    tracing::warn!(
                        group = self.group,
                        partitions = ?task.partitions,
                        "librdkafka does not start fetching assigned partitions"
                    );
                    self.is_stuck = true;
                }
                return unfinished.map(|_| None);
            }
        };
        for (partition, start) in places {
            self.assignments.add(partition, start);
        }
        let partitions = std::mem::take(&mut task.partitions);
        self.assignment_task = None;
        let has_new_partitions = !partitions.is_empty();
        Ok(has_new_partitions.then_some(Polled::Assigned(partitions)))
    }

    /// Takes in fetched records without waiting, about as many as one poll may return.
    fn fill(&mut self, max: usize) -> Result<()> {
        let client = self.client()?.clone();
        self.mark_polled();
        let mut stream = client.stream();
        for _ in 0..max {
            match stream.next().now_or_never().flatten() {
                None => break,
                Some(Ok(message)) => {
                    let record = record::read(&message, &self.layout);
                    self.receive(&client, record);
                }
                Some(Err(error)) => self.handle_error(&client, error)?,
            }
        }
        Ok(())
    }

    fn mark_polled(&mut self) {
        let now = Instant::now();
        self.is_evicted |=
            now.duration_since(self.polled_at) >= self.config.consumer.poll_interval_max;
        self.polled_at = now;
    }

    fn receive(&mut self, client: &Client, record: Option<Record>) {
        let Some(record) = record else {
            return;
        };
        let partition = record.partition;
        let flow = self.assignments.receive(record, PAUSE_BYTES);
        self.apply_flow(client, partition, flow);
    }

    fn apply_flow(&self, client: &Client, partition: Partition, flow: Option<PartitionFlow>) {
        let (Some(flow), Ok(list)) = (flow, self.list(&[partition])) else {
            return;
        };
        let outcome = match flow {
            PartitionFlow::Stop => client.pause(&list),
            PartitionFlow::Go => client.resume(&list),
        };
        if let Err(error) = outcome {
            tracing::debug!(%error, ?partition, ?flow, "cannot pause or resume a partition");
        }
    }

    /// Searches for misplaced partitions and ignores passing errors, which are already logged;
    /// returns the rest.
    fn handle_error(&mut self, client: &Arc<Client>, error: KafkaError) -> Result<()> {
        if is_offset_missing(&error) {
            self.start_search(client);
            return Ok(());
        }
        if super::is_transient(&error) {
            return Ok(());
        }
        Err(failed(format!("reading as {}", self.group), error))
    }

    /// Start offsets of partitions that are still being sought.
    fn starts(&self) -> Vec<(Partition, u64)> {
        match self.assignment_task.as_ref().map(|task| &task.step) {
            Some(AssignmentStep::Seek { starts, .. }) => requests::offsets(starts, &self.layout),
            _ => Vec::new(),
        }
    }

    fn is_placing(&self, partition: Partition) -> bool {
        let mut task = self.assignment_task.iter();
        task.any(|task| task.partitions.contains(&partition))
    }

    fn start_search(&mut self, client: &Arc<Client>) {
        self.needs_second_search = self.search_task.is_some();
        if !self.needs_second_search {
            let (client, layout) = (client.clone(), self.layout.clone());
            let (positions, starts) = (self.assignments.positions(), self.starts());
            let reasons = client.context().misplaced();
            for reason in &reasons {
                tracing::warn!(
                    group = self.group,
                    reason,
                    "records are missing from the log"
                );
            }
            let truncated_positions = reasons.iter().filter_map(|reason| truncated_at(reason));
            self.truncations.positions.extend(truncated_positions);
            let truncations = self.truncations.clone();
            let request_timeout = self.config.request_timeout;
            self.search_task = Some(self.runtime.spawn_blocking(move || {
                requests::misplaced(
                    &client,
                    &positions,
                    &starts,
                    &truncations,
                    &layout,
                    request_timeout,
                )
            }));
        }
    }

    fn finish_search(&mut self, client: &Arc<Client>, outcome: Result<Search>) -> Result<()> {
        self.search_task = None;
        self.remind_at = Some(Instant::now() + REMINDER_INTERVAL);
        let needs_second_search = std::mem::take(&mut self.needs_second_search);
        let Ok(Search {
            mut gaps,
            mut stopped_partitions,
        }) = outcome
        else {
            if needs_second_search {
                self.start_search(client);
            }
            return outcome.map(drop);
        };
        gaps.retain(|gap| {
            self.assignments.contains(gap.partition) || self.is_placing(gap.partition)
        });
        stopped_partitions.retain(|partition| self.assignments.contains(*partition));
        let truncated_gaps = gaps.iter().filter(|gap| gap.is_truncated);
        (self.truncations.partitions).extend(truncated_gaps.map(|gap| gap.partition));
        self.truncations.positions.clear();
        self.offset_gaps = gaps;
        if needs_second_search {
            // The repeated search will find these partitions too.
            self.start_search(client);
            return Ok(());
        }
        if !stopped_partitions.is_empty() {
            tracing::warn!(
                group = self.group,
                partitions = ?stopped_partitions,
                "librdkafka has stopped reading partitions, although the missing record is back"
            );
            self.is_stuck = true;
        }
        if self.offset_gaps.is_empty() {
            // The record turned up after all. Its partition is read again, or a member that joins
            // anew reads it.
            self.remind_at = None;
            tracing::info!(
                group = self.group,
                "records were missing from the log for a moment"
            );
            return Ok(());
        }
        let places: Vec<String> = self.offset_gaps.iter().map(OffsetGap::to_string).collect();
        let is_truncated = self.offset_gaps.iter().any(|gap| gap.is_truncated);
        let remedy = if is_truncated {
            TRUNCATED_LOG_REMEDY
        } else {
            MISSING_RECORDS_REMEDY
        };
        Err(Error::corrupt(
            SEAM,
            format!(
                "group {} cannot continue: {}. {remedy}",
                self.group,
                places.join(", ")
            ),
        ))
    }

    async fn wait(&mut self) -> Result<Event> {
        self.mark_polled();
        let client = self.client()?.clone();
        let layout = self.layout.clone();
        let mut stream = client.stream();
        let remind_at = self.remind_at.filter(|_| self.search_task.is_none());
        let remind = async {
            match remind_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let mut seek_at = None;
        let mut lookup = match self
            .assignment_task
            .as_mut()
            .map(|placing| &mut placing.step)
        {
            Some(AssignmentStep::Asked(lookup)) => Some(lookup),
            Some(AssignmentStep::Seek { seek_at: at, .. }) => {
                seek_at = Some(*at);
                None
            }
            Some(AssignmentStep::Ask) | None => None,
        };
        let is_placing = lookup.is_some() || seek_at.is_some();
        let mut search = self.search_task.as_mut();
        let seek = async {
            match seek_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let (renewals, renewal) = (&mut self.renewals, self.renewal);
        let new_credentials = async {
            let has_changed = renewals.wait_for(|number| *number != renewal).await.is_ok();
            if !has_changed {
                // The queue is gone, and nobody watches its files.
                pending().await
            }
        };
        let polled_at = &mut self.polled_at;
        let next_event = poll_fn(|context| {
            // Some wake-ups serve only to show that this member lives.
            *polled_at = Instant::now();
            if let Some(Poll::Ready(starts)) = lookup.as_mut().map(|task| task.poll_unpin(context))
            {
                return Poll::Ready(Event::Placed(flatten_join(starts)));
            }
            if let Some(Poll::Ready(outcome)) = search.as_mut().map(|task| task.poll_unpin(context))
            {
                return Poll::Ready(Event::Searched(flatten_join(outcome)));
            }
            let stream_poll = Pin::new(&mut stream).poll_next(context);
            if let Poll::Ready(Some(next)) = stream_poll {
                return Poll::Ready(to_event(next, &layout));
            }
            // Changes arrive while the stream is polled.
            if !is_placing && client.context().any() {
                return Poll::Ready(Event::Change);
            }
            Poll::Pending
        });
        Ok(tokio::select! {
            biased;
            // The timers come first, because records may be ready all the time.
            () = new_credentials => Event::Change,
            () = seek => Event::Seek,
            () = remind => Event::Remind,
            event = next_event => event,
        })
    }

    /// Waits for the commit in progress, for at most the request timeout.
    async fn finish_commit(&mut self) -> Result<()> {
        let Some(task) = &mut self.commit_task else {
            return Ok(());
        };
        let request_timeout = self.config.request_timeout;
        let Ok(outcome) = timeout(request_timeout, &mut task.task).await else {
            let why = format!("no answer to a commit within {request_timeout:?}");
            return Err(Error::unavailable(SEAM, why));
        };
        let commit = self.commit_task.take();
        flatten_join(outcome)?;
        for (partition, next) in commit.into_iter().flat_map(|commit| commit.offsets) {
            self.assignments.set_committed(partition, next);
        }
        Ok(())
    }

    fn check_assigned(&self, partitions: &[(Partition, u64)]) -> Result<()> {
        let is_lost = self.client()?.assignment_lost();
        let mut partitions = partitions.iter().map(|(partition, _)| *partition);
        match partitions.find(|&partition| is_lost || !self.assignments.contains(partition)) {
            None => Ok(()),
            Some(partition) => Err(Error::conflict(
                SEAM,
                format!(
                    "{}/{} is not assigned to this member of {}",
                    partition.topic, partition.number, self.group
                ),
            )),
        }
    }
}

fn flatten_join<T>(outcome: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    outcome.unwrap_or_else(|error| Err(Error::unavailable(SEAM, error)))
}

fn to_event(next: Result<BorrowedMessage<'_>, KafkaError>, layout: &Layout) -> Event {
    match next {
        Ok(message) => Event::Record(record::read(&message, layout)),
        Err(error) => Event::Failed(error),
    }
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        let max = max.max(1);
        self.return_revoked().await?;
        if let Some(change) = self.finish_seek().await? {
            return Ok(change);
        }
        loop {
            if let Some(change) = self.rejoin()? {
                return Ok(change);
            }
            if let Some(change) = self.next_change()? {
                return Ok(change);
            }
            self.look_up_starts()?;
            if !self.assignments.has_pending() {
                self.fill(max)?;
            }
            let records = self.assignments.take(max, POLL_BYTES);
            if !records.is_empty() {
                return Ok(Polled::Records(records));
            }
            let client = self.client()?.clone();
            match self.wait().await? {
                Event::Change => {}
                Event::Record(record) => self.receive(&client, record),
                Event::Failed(error) => self.handle_error(&client, error)?,
                Event::Placed(starts) => {
                    if let Some(change) = self.accept_assignment(starts).await? {
                        return Ok(change);
                    }
                }
                Event::Seek => {
                    if let Some(change) = self.seek().await? {
                        return Ok(change);
                    }
                }
                Event::Searched(outcome) => self.finish_search(&client, outcome)?,
                Event::Remind => {
                    self.remind_at = None;
                    self.start_search(&client);
                }
            }
        }
    }

    fn pause(&mut self, partitions: &[Partition]) {
        for &partition in partitions {
            self.assignments.pause(partition);
        }
    }

    fn resume(&mut self, partitions: &[Partition]) {
        let Some(client) = self.client.clone() else {
            return;
        };
        for &partition in partitions {
            let flow = self.assignments.resume(partition);
            self.apply_flow(&client, partition, flow);
        }
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        self.check_assigned(next)?;
        // An older commit whose caller gave up must not arrive after this one.
        if let Err(error) = self.finish_commit().await {
            if self.commit_task.is_some() {
                return Err(error);
            }
            tracing::debug!(%error, "an earlier commit failed");
        }
        let new_offsets = next
            .iter()
            .filter(|(partition, next)| self.assignments.is_ahead(*partition, *next));
        let offsets: Due = new_offsets.copied().collect();
        if offsets.is_empty() {
            return Ok(());
        }
        let unread_offsets = offsets
            .iter()
            .filter(|(partition, next)| self.assignments.is_beyond(*partition, *next));
        let unread_offsets: Due = unread_offsets.copied().collect();
        let client = self.client()?.clone();
        let (layout, request_timeout) = (self.layout.clone(), self.config.request_timeout);
        let commit = offsets.clone();
        let task = self.runtime.spawn_blocking(move || {
            requests::check_ends(&client, &unread_offsets, &layout, request_timeout)?;
            requests::commit(&client, &commit, &layout, request_timeout)
        });
        self.commit_task = Some(CommitTask { offsets, task });
        self.finish_commit().await
    }
}

impl Drop for KafkaConsumer {
    /// Leaves the group in the background; a runtime that ends in order waits for it.
    fn drop(&mut self) {
        let Some(client) = self.client.take() else {
            return;
        };
        client.context().leave();
        // librdkafka does not close until every change is carried out.
        let unfinished = self
            .assignment_task
            .take()
            .map(|task| (true, task.partitions));
        let revoked_partitions = std::mem::take(&mut self.revoked_partitions);
        let mut open: Vec<(bool, Vec<Partition>)> = unfinished.into_iter().collect();
        if !revoked_partitions.is_empty() {
            open.push((false, revoked_partitions));
        }
        while let Some(change) = client.context().next() {
            open.push(match change {
                AssignmentChange::Assign(partitions) => (true, partitions),
                AssignmentChange::Revoke(partitions) | AssignmentChange::Lose(partitions) => {
                    (false, partitions)
                }
            });
        }
        for (is_assigned, partitions) in open {
            if let Ok(list) = self.list(&partitions) {
                apply_assignment(client.as_ref(), is_assigned, &list);
            }
        }
        self.runtime.spawn_blocking(move || drop(client));
    }
}

#[cfg(test)]
mod tests;
