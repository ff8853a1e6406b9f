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
use self::rebalance::{AssignmentChange, Rebalances, carry_out, is_misplaced, truncated_at};
use self::requests::{Due, OffsetGap, Places, Search, Starts, Truncations};
use super::config::KafkaConfig;
use super::layout::Layout;
use super::renewal::Renewals;
use super::report::failed;
use super::{SEAM, record, settings};
use crate::queue::{Consumer, Partition, Polled, Record};
use crate::{Error, Result};

type Client = StreamConsumer<Rebalances>;

/// Time limit of a seek, which involves no other process.
const SEEK: Duration = Duration::from_millis(100);

/// Pause before seeking again in a partition that librdkafka has not begun to read.
const SEEK_AGAIN: Duration = Duration::from_millis(10);

/// Interval between repeated reports of a partition that cannot be read.
const REMIND: Duration = Duration::from_secs(60);

/// Remedy for records removed before the group read them.
const GONE: &str = "Those records are gone from the log before the group has read them (retention, or a log \
    that was made anew); nothing is skipped in silence. Decide what to do about them, stop the group's members, \
    set its offsets to where it is to go on (kafka-consumer-groups --reset-offsets), and start them";

/// Remedy for a log that is shorter than the group's offsets. Resetting offsets is not enough:
/// records accepted since then carry versions that the stores have seen, and would be taken for
/// repeats.
const TRUNCATED: &str = "The log lost records that the group has read, and others stand at their offsets now; \
    nothing is skipped in silence. Stop the group's members, set kafka.epoch_min above the log's epoch and run \
    `packetboat topics apply`, set the group's offsets to the first lost one (kafka-consumer-groups \
    --reset-offsets), and start them; docs/operations/cluster.md, *A log that lost its tail*";

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
    holdings: Assignments,
    /// Reported as *revoked*; returned to the group at the next poll.
    revoked: Vec<Partition>,
    /// Assignment in progress, while the group's offsets are looked up.
    placing: Option<AssignmentTask>,
    /// Seek in progress, even after a poll that was dropped.
    seeking: Option<JoinHandle<Result<Option<Places>>>>,
    /// True once librdkafka refuses to read a partition whose next record is in the log: it stopped
    /// the partition while the record was missing, and only a member that joins anew reads it.
    is_stuck: bool,
    /// Commit in progress, even after its caller gave up on it.
    committing: Option<CommitTask>,
    /// Search in progress for partitions whose next record is missing.
    searching: Option<JoinHandle<Result<Search>>>,
    /// Set when librdkafka reported a partition during another search, which may have missed it.
    /// librdkafka reports each partition once and then stops reading it.
    search_again: bool,
    misplaced: Vec<OffsetGap>,
    /// Findings of librdkafka about logs that lost their tails.
    truncations: Truncations,
    remind_at: Option<Instant>,
    /// Time of the last poll of librdkafka, which proves that this member lives.
    polled_at: Instant,
    /// True after too long without a poll: the group has already taken everything it asked for
    /// meanwhile.
    away: bool,
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
    /// Assigned, but some partitions are not at their offsets yet; the next seek is at `at`.
    Seek {
        starts: Starts,
        at: Instant,
        /// Time from which a seek that is refused makes the member join anew: no change of the
        /// group is answered until all partitions are placed.
        rejoin_at: Instant,
    },
}

struct CommitTask {
    due: Due,
    done: JoinHandle<Result<()>>,
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
        let joining = |error| failed(format!("joining group {group}"), error);
        let client: Client = settings::member(&config, &group)?
            .create_with_context(Rebalances::new(&config, layout.clone()))
            .map_err(joining)?;
        client.subscribe(&[layout.name(topic)]).map_err(joining)?;
        Ok(KafkaConsumer {
            client: Some(Arc::new(client)),
            config,
            layout,
            group,
            topic,
            renewals,
            renewal,
            runtime: Handle::current(),
            holdings: Assignments::default(),
            revoked: Vec::new(),
            placing: None,
            seeking: None,
            is_stuck: false,
            committing: None,
            searching: None,
            search_again: false,
            misplaced: Vec::new(),
            truncations: Truncations::default(),
            remind_at: None,
            polled_at: Instant::now(),
            away: false,
        })
    }

    fn client(&self) -> Result<&Arc<Client>> {
        let client = self.client.as_ref();
        client.ok_or_else(|| Error::conflict(SEAM, "this consumer has left its group"))
    }

    /// Rejoins the group if there are new credentials, or librdkafka does not read a partition.
    /// First reports everything held as *revoked*, once.
    fn rejoin(&mut self) -> Result<Option<Polled>> {
        let has_new_credentials = *self.renewals.borrow() != self.renewal;
        if !has_new_credentials && !self.is_stuck {
            return Ok(None);
        }
        let held: Vec<Partition> = self.holdings.partitions().collect();
        if !held.is_empty() {
            self.holdings.revoke(&held);
            self.revoked.clone_from(&held);
            return Ok(Some(Polled::Revoked(held)));
        }
        tracing::info!(
            group = self.group,
            has_new_credentials,
            is_stuck = self.is_stuck,
            "the member joins again"
        );
        let (config, layout) = (self.config.clone(), self.layout.clone());
        let (group, renewals) = (self.group.clone(), self.renewals.clone());
        *self = KafkaConsumer::open(config, layout, group, self.topic, renewals)?;
        Ok(None)
    }

    /// Next change to report, if any.
    fn change(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        while self.placing.is_none()
            && let Some(change) = client.context().next()
        {
            match change {
                AssignmentChange::Assign(partitions) => {
                    self.away &= partitions.is_empty();
                    self.placing = Some(AssignmentTask {
                        partitions,
                        step: AssignmentStep::Ask,
                    });
                }
                AssignmentChange::Revoke(partitions) if !partitions.is_empty() && !self.away => {
                    self.holdings.revoke(&partitions);
                    self.revoked.clone_from(&partitions);
                    return Ok(Some(Polled::Revoked(partitions)));
                }
                AssignmentChange::Revoke(partitions) | AssignmentChange::Lose(partitions) => {
                    self.let_go(&partitions)?;
                    if !partitions.is_empty() {
                        return Ok(Some(Polled::Lost(partitions)));
                    }
                }
            }
        }
        Ok(None)
    }

    fn let_go(&mut self, partitions: &[Partition]) -> Result<()> {
        carry_out(self.client()?.as_ref(), false, &self.list(partitions)?);
        self.holdings.remove(partitions);
        self.misplaced
            .retain(|at| !partitions.contains(&at.partition));
        let truncated = &mut self.truncations.partitions;
        truncated.retain(|at| !partitions.contains(at));
        Ok(())
    }

    /// Returns revoked partitions to the group, after the last commit for them.
    async fn give_back(&mut self) -> Result<()> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        // A commit that fails here has already failed for its caller.
        let _ = self.finish_commit().await;
        let revoked = std::mem::take(&mut self.revoked);
        self.let_go(&revoked)
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
    fn ask_where_to_start(&mut self) -> Result<()> {
        let client = self.client()?.clone();
        let Some(placing) = &self.placing else {
            return Ok(());
        };
        if !matches!(placing.step, AssignmentStep::Ask) {
            return Ok(());
        }
        let list = self.list(&placing.partitions)?;
        let (group, patience) = (self.group.clone(), self.config.request_timeout);
        let asked = self
            .runtime
            .spawn_blocking(move || requests::starts(&client, &group, list, patience));
        if let Some(placing) = &mut self.placing {
            placing.step = AssignmentStep::Asked(asked);
        }
        Ok(())
    }

    /// Accepts the assignment and begins to seek.
    async fn start(&mut self, starts: Result<Starts>) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(placing) = &mut self.placing else {
            return Ok(None);
        };
        placing.step = AssignmentStep::Ask;
        let starts = starts?;
        carry_out(client.as_ref(), true, &starts);
        let at = Instant::now();
        placing.step = AssignmentStep::Seek {
            starts,
            at,
            rejoin_at: at + self.config.request_timeout,
        };
        self.seek().await
    }

    /// Seeks the assigned partitions to their start offsets. Records that arrive before all of them
    /// are there are dropped and come again.
    async fn seek(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(placing) = &self.placing else {
            return Ok(None);
        };
        let AssignmentStep::Seek { starts, .. } = &placing.step else {
            return Ok(None);
        };
        let (starts, layout) = (starts.clone(), self.layout.clone());
        let stopped = self.misplaced.iter().map(|at| at.partition).collect();
        let seek = move || requests::seek(&client, &starts, &layout, SEEK, &stopped);
        self.seeking = Some(self.runtime.spawn_blocking(seek));
        self.finish_seek().await
    }

    /// Waits for the seek in progress. Nothing is fetched meanwhile: a record that is read behind
    /// its partition's start, but before the partition is held, would be dropped and never come
    /// again.
    async fn finish_seek(&mut self) -> Result<Option<Polled>> {
        let Some(seeking) = &mut self.seeking else {
            return Ok(None);
        };
        let sought = joined(seeking.await);
        self.seeking = None;
        let Some(placing) = &mut self.placing else {
            return Ok(None);
        };
        let AssignmentStep::Seek { at, rejoin_at, .. } = &mut placing.step else {
            return Ok(None);
        };
        let now = Instant::now();
        *at = now + SEEK_AGAIN;
        let places = match sought {
            Ok(Some(places)) => places,
            refused => {
                // A search in progress may find out which partition to do without.
                if now >= *rejoin_at && self.searching.is_none() {
                    tracing::warn!(
                        group = self.group,
                        partitions = ?placing.partitions,
                        "librdkafka does not begin to read what was assigned"
                    );
                    self.is_stuck = true;
                }
                return refused.map(|_| None);
            }
        };
        for (partition, start) in places {
            self.holdings.add(partition, start);
        }
        let assigned = std::mem::take(&mut placing.partitions);
        self.placing = None;
        let told = !assigned.is_empty();
        Ok(told.then_some(Polled::Assigned(assigned)))
    }

    /// Takes in fetched records without waiting, about as many as one poll may return.
    fn fill(&mut self, max: usize) -> Result<()> {
        let client = self.client()?.clone();
        self.show_up();
        let mut stream = client.stream();
        for _ in 0..max {
            match stream.next().now_or_never().flatten() {
                None => break,
                Some(Ok(message)) => {
                    let read = record::read(&message, &self.layout);
                    self.receive(&client, read);
                }
                Some(Err(error)) => self.fail(&client, error)?,
            }
        }
        Ok(())
    }

    fn show_up(&mut self) {
        let now = Instant::now();
        self.away |= now.duration_since(self.polled_at) >= self.config.consumer.poll_interval_max;
        self.polled_at = now;
    }

    fn receive(&mut self, client: &Client, record: Option<Record>) {
        let Some(record) = record else {
            return;
        };
        let partition = record.partition;
        let flow = self
            .holdings
            .receive(record, self.config.consumer.pause_bytes);
        self.regulate(client, partition, flow);
    }

    fn regulate(&self, client: &Client, partition: Partition, flow: Option<PartitionFlow>) {
        let (Some(flow), Ok(list)) = (flow, self.list(&[partition])) else {
            return;
        };
        let done = match flow {
            PartitionFlow::Stop => client.pause(&list),
            PartitionFlow::Go => client.resume(&list),
        };
        if let Err(error) = done {
            tracing::debug!(%error, ?partition, ?flow, "the partition's flow stays as it is");
        }
    }

    /// Searches for misplaced partitions and ignores passing errors, which are already logged;
    /// returns the rest.
    fn fail(&mut self, client: &Arc<Client>, error: KafkaError) -> Result<()> {
        if is_misplaced(&error) {
            self.search(client);
            return Ok(());
        }
        if super::is_passing(&error) {
            return Ok(());
        }
        Err(failed(format!("reading as {}", self.group), error))
    }

    /// Start offsets of partitions that are still being sought.
    fn starts(&self) -> Vec<(Partition, u64)> {
        match self.placing.as_ref().map(|placing| &placing.step) {
            Some(AssignmentStep::Seek { starts, .. }) => requests::offsets(starts, &self.layout),
            _ => Vec::new(),
        }
    }

    fn is_placing(&self, partition: Partition) -> bool {
        let mut placing = self.placing.iter();
        placing.any(|placing| placing.partitions.contains(&partition))
    }

    fn search(&mut self, client: &Arc<Client>) {
        self.search_again = self.searching.is_some();
        if !self.search_again {
            let (client, layout) = (client.clone(), self.layout.clone());
            let (positions, starts) = (self.holdings.positions(), self.starts());
            let said = client.context().misplaced();
            for reason in &said {
                tracing::warn!(group = self.group, reason, "a place in the log is missing");
            }
            let truncated = said.iter().filter_map(|reason| truncated_at(reason));
            self.truncations.positions.extend(truncated);
            let truncations = self.truncations.clone();
            let patience = self.config.request_timeout;
            self.searching = Some(self.runtime.spawn_blocking(move || {
                requests::misplaced(
                    &client,
                    &positions,
                    &starts,
                    &truncations,
                    &layout,
                    patience,
                )
            }));
        }
    }

    fn searched(&mut self, client: &Arc<Client>, found: Result<Search>) -> Result<()> {
        self.searching = None;
        self.remind_at = Some(Instant::now() + REMIND);
        let again = std::mem::take(&mut self.search_again);
        let Ok(Search {
            mut misplaced,
            mut stopped,
        }) = found
        else {
            if again {
                self.search(client);
            }
            return found.map(drop);
        };
        misplaced
            .retain(|at| self.holdings.contains(at.partition) || self.is_placing(at.partition));
        stopped.retain(|at| self.holdings.contains(*at));
        let truncated = misplaced.iter().filter(|at| at.truncated);
        (self.truncations.partitions).extend(truncated.map(|at| at.partition));
        self.truncations.positions.clear();
        self.misplaced = misplaced;
        if again {
            // The repeated search will find these partitions too.
            self.search(client);
            return Ok(());
        }
        if !stopped.is_empty() {
            tracing::warn!(
                group = self.group,
                partitions = ?stopped,
                "librdkafka reads them no more, though a missing record is in the log again"
            );
            self.is_stuck = true;
        }
        if self.misplaced.is_empty() {
            // The record turned up after all. Its partition is read again, or a member that joins
            // anew reads it.
            self.remind_at = None;
            tracing::info!(
                group = self.group,
                "a place in the log was missing for a moment"
            );
            return Ok(());
        }
        let places: Vec<String> = self.misplaced.iter().map(OffsetGap::to_string).collect();
        let is_truncated = self.misplaced.iter().any(|at| at.truncated);
        let remedy = if is_truncated { TRUNCATED } else { GONE };
        Err(Error::corrupt(
            SEAM,
            format!(
                "group {} cannot go on: {}. {remedy}",
                self.group,
                places.join(", ")
            ),
        ))
    }

    async fn wait(&mut self) -> Result<Event> {
        self.show_up();
        let client = self.client()?.clone();
        let layout = self.layout.clone();
        let mut stream = client.stream();
        let remind_at = self.remind_at.filter(|_| self.searching.is_none());
        let remind = async {
            match remind_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let mut seek_at = None;
        let mut asked = match self.placing.as_mut().map(|placing| &mut placing.step) {
            Some(AssignmentStep::Asked(asked)) => Some(asked),
            Some(AssignmentStep::Seek { at, .. }) => {
                seek_at = Some(*at);
                None
            }
            Some(AssignmentStep::Ask) | None => None,
        };
        let is_placing = asked.is_some() || seek_at.is_some();
        let mut searching = self.searching.as_mut();
        let seek = async {
            match seek_at {
                Some(at) => sleep_until(at).await,
                None => pending().await,
            }
        };
        let (renewals, renewal) = (&mut self.renewals, self.renewal);
        let renewed = async {
            let told = renewals.wait_for(|number| *number != renewal).await.is_ok();
            if !told {
                // The queue is gone, and nobody watches its files.
                pending().await
            }
        };
        let polled_at = &mut self.polled_at;
        let told = poll_fn(|context| {
            // Some wake-ups serve only to show that this member lives.
            *polled_at = Instant::now();
            if let Some(Poll::Ready(starts)) = asked.as_mut().map(|task| task.poll_unpin(context)) {
                return Poll::Ready(Event::Placed(joined(starts)));
            }
            if let Some(Poll::Ready(found)) =
                searching.as_mut().map(|task| task.poll_unpin(context))
            {
                return Poll::Ready(Event::Searched(joined(found)));
            }
            let polled = Pin::new(&mut stream).poll_next(context);
            if let Poll::Ready(Some(next)) = polled {
                return Poll::Ready(event_of(next, &layout));
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
            () = renewed => Event::Change,
            () = seek => Event::Seek,
            () = remind => Event::Remind,
            event = told => event,
        })
    }

    /// Waits for the commit in progress, for at most the request timeout.
    async fn finish_commit(&mut self) -> Result<()> {
        let Some(committing) = &mut self.committing else {
            return Ok(());
        };
        let patience = self.config.request_timeout;
        let Ok(done) = timeout(patience, &mut committing.done).await else {
            let why = format!("no answer to a commit within {patience:?}");
            return Err(Error::unavailable(SEAM, why));
        };
        let committed = self.committing.take();
        joined(done)?;
        for (partition, next) in committed.into_iter().flat_map(|committed| committed.due) {
            self.holdings.committed(partition, next);
        }
        Ok(())
    }

    fn check_held(&self, partitions: &[(Partition, u64)]) -> Result<()> {
        let lost = self.client()?.assignment_lost();
        let mut partitions = partitions.iter().map(|(partition, _)| *partition);
        match partitions.find(|&partition| lost || !self.holdings.contains(partition)) {
            None => Ok(()),
            Some(at) => Err(Error::conflict(
                SEAM,
                format!(
                    "{}/{} is not assigned to this member of {}",
                    at.topic, at.number, self.group
                ),
            )),
        }
    }
}

fn joined<T>(done: Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    done.unwrap_or_else(|error| Err(Error::unavailable(SEAM, error)))
}

fn event_of(next: Result<BorrowedMessage<'_>, KafkaError>, layout: &Layout) -> Event {
    match next {
        Ok(message) => Event::Record(record::read(&message, layout)),
        Err(error) => Event::Failed(error),
    }
}

#[async_trait]
impl Consumer for KafkaConsumer {
    async fn poll(&mut self, max: usize) -> Result<Polled> {
        let max = max.max(1);
        self.give_back().await?;
        if let Some(polled) = self.finish_seek().await? {
            return Ok(polled);
        }
        loop {
            if let Some(polled) = self.rejoin()? {
                return Ok(polled);
            }
            if let Some(polled) = self.change()? {
                return Ok(polled);
            }
            self.ask_where_to_start()?;
            if !self.holdings.any_waiting() {
                self.fill(max)?;
            }
            let records = self.holdings.take(max, self.config.consumer.poll_bytes);
            if !records.is_empty() {
                return Ok(Polled::Records(records));
            }
            let client = self.client()?.clone();
            match self.wait().await? {
                Event::Change => {}
                Event::Record(record) => self.receive(&client, record),
                Event::Failed(error) => self.fail(&client, error)?,
                Event::Placed(starts) => {
                    if let Some(polled) = self.start(starts).await? {
                        return Ok(polled);
                    }
                }
                Event::Seek => {
                    if let Some(polled) = self.seek().await? {
                        return Ok(polled);
                    }
                }
                Event::Searched(found) => self.searched(&client, found)?,
                Event::Remind => {
                    self.remind_at = None;
                    self.search(&client);
                }
            }
        }
    }

    fn pause(&mut self, partitions: &[Partition]) {
        for &partition in partitions {
            self.holdings.pause(partition);
        }
    }

    fn resume(&mut self, partitions: &[Partition]) {
        let Some(client) = self.client.clone() else {
            return;
        };
        for &partition in partitions {
            let flow = self.holdings.resume(partition);
            self.regulate(&client, partition, flow);
        }
    }

    async fn commit(&mut self, next: &[(Partition, u64)]) -> Result<()> {
        self.check_held(next)?;
        // An older commit whose caller gave up must not arrive after this one.
        if let Err(error) = self.finish_commit().await {
            if self.committing.is_some() {
                return Err(error);
            }
            tracing::debug!(%error, "an earlier commit failed");
        }
        let ahead = next
            .iter()
            .filter(|(partition, next)| self.holdings.is_ahead(*partition, *next));
        let due: Due = ahead.copied().collect();
        if due.is_empty() {
            return Ok(());
        }
        let beyond = due
            .iter()
            .filter(|(partition, next)| self.holdings.is_beyond(*partition, *next));
        let beyond: Due = beyond.copied().collect();
        let client = self.client()?.clone();
        let (layout, patience) = (self.layout.clone(), self.config.request_timeout);
        let commit = due.clone();
        let done = self.runtime.spawn_blocking(move || {
            requests::check_ends(&client, &beyond, &layout, patience)?;
            requests::commit(&client, &commit, &layout, patience)
        });
        self.committing = Some(CommitTask { due, done });
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
        let placing = self
            .placing
            .take()
            .map(|placing| (true, placing.partitions));
        let revoked = std::mem::take(&mut self.revoked);
        let mut open: Vec<(bool, Vec<Partition>)> = placing.into_iter().collect();
        if !revoked.is_empty() {
            open.push((false, revoked));
        }
        while let Some(change) = client.context().next() {
            open.push(match change {
                AssignmentChange::Assign(partitions) => (true, partitions),
                AssignmentChange::Revoke(partitions) | AssignmentChange::Lose(partitions) => {
                    (false, partitions)
                }
            });
        }
        for (assigned, partitions) in open {
            if let Ok(list) = self.list(&partitions) {
                carry_out(client.as_ref(), assigned, &list);
            }
        }
        self.runtime.spawn_blocking(move || drop(client));
    }
}

#[cfg(test)]
mod tests;
