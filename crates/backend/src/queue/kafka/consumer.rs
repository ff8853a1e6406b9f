//! A member of a consumer group on Kafka.
//!
//! The group's decisions are carried out by [`Consumer::poll`] alone: what is assigned begins at the
//! committed offset, which is asked for first; what is revoked is told, and given back to the group at
//! the poll after. Records that librdkafka fetched ahead stay in its bounded queue, or, of paused
//! partitions, in [`Holdings`], so that a partition that is resumed goes on at once.

mod held;
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

use self::held::{Flow, Holdings};
use self::rebalance::{Change, Rebalances, carry_out, is_misplaced, truncated_at};
use self::requests::{Due, Misplaced, Search, Starts, Truncations};
use super::config::KafkaConfig;
use super::layout::Layout;
use super::renewal::Renewals;
use super::report::failed;
use super::{SEAM, record, settings};
use crate::queue::{Consumer, Partition, Polled, Record};
use crate::{Error, Result};

type Client = StreamConsumer<Rebalances>;

/// How long a seek may take, which asks nobody outside this process.
const SEEK: Duration = Duration::from_millis(100);

/// When a partition is sought again that librdkafka has not begun to read yet.
const SEEK_AGAIN: Duration = Duration::from_millis(10);

/// How often it is said again that a partition cannot be read.
const REMIND: Duration = Duration::from_secs(60);

/// The remedy where records went before the group has read them.
const GONE: &str = "Those records are gone from the log before the group has read them (retention, or a log \
    that was made anew); nothing is skipped in silence. Decide what to do about them, stop the group's members, \
    set its offsets to where it is to go on (kafka-consumer-groups --reset-offsets), and start them";

/// The remedy where librdkafka stopped a partition whose place is there again.
const STOPPED: &str = "librdkafka does not read it, and a member that joins anew does: restart this process where it \
    lasts";

/// The remedy where the log is shorter than what the group has read. Offsets alone will not do: what was accepted
/// since bears versions that the stores have seen, and would be taken for repeats.
const TRUNCATED: &str = "The log lost records that the group has read, and others stand at their offsets now; \
    nothing is skipped in silence. Stop the group's members, set kafka.epoch_min above the log's epoch and run \
    `packetboat topics apply`, set the group's offsets to the first lost one (kafka-consumer-groups \
    --reset-offsets), and start them; docs/operations/cluster.md, *A log that lost its tail*";

pub(super) struct KafkaConsumer {
    /// Always there until it is dropped, which takes a while and must not happen on the runtime.
    client: Option<Arc<Client>>,
    config: Arc<KafkaConfig>,
    layout: Arc<Layout>,
    group: String,
    topic: Topic,
    renewals: Renewals,
    /// Number of the credentials that it joined with, or of older ones.
    renewal: u64,
    runtime: Handle,
    holdings: Holdings,
    /// Told *revoked*: given back at the next poll.
    revoked: Vec<Partition>,
    /// Assigned, while the group's offsets are asked for.
    placing: Option<Placing>,
    /// A commit under way; one that was given up on still is.
    committing: Option<Committing>,
    /// A search for partitions whose next record is not there.
    searching: Option<JoinHandle<Result<Search>>>,
    /// librdkafka reported a partition while another search was under way, which may not have known it. It
    /// reports each once and then reads it no more.
    search_again: bool,
    misplaced: Vec<Misplaced>,
    /// What librdkafka found out about logs that lost their tails.
    truncations: Truncations,
    remind_at: Option<Instant>,
    /// When librdkafka last heard from this member.
    polled_at: Instant,
    /// The member did not poll for too long: whatever the group asked of it meanwhile is done already.
    away: bool,
}

struct Placing {
    partitions: Vec<Partition>,
    step: Step,
}

/// How far an assignment is.
enum Step {
    /// The group's offsets are to be asked for, also after a failure.
    Ask,
    Asked(JoinHandle<Result<Starts>>),
    /// Assigned, and not all partitions are at their places yet; they are sought there again at `at`.
    Seek {
        starts: Starts,
        at: Instant,
        /// The member says then that it still waits.
        remind_at: Instant,
    },
}

struct Committing {
    due: Due,
    done: JoinHandle<Result<()>>,
}

/// What a poll waits for.
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

    /// `group` is its name on the brokers.
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
            holdings: Holdings::default(),
            revoked: Vec::new(),
            placing: None,
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

    /// Leaves the group and joins it with new credentials, where there are any. Before that all that is held is told
    /// *revoked*, once.
    fn renew(&mut self) -> Result<Option<Polled>> {
        if *self.renewals.borrow() == self.renewal {
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
            "credentials are new: the member joins again"
        );
        let (config, layout) = (self.config.clone(), self.layout.clone());
        let (group, renewals) = (self.group.clone(), self.renewals.clone());
        *self = KafkaConsumer::open(config, layout, group, self.topic, renewals)?;
        Ok(None)
    }

    /// A change that is to be told, if there is one.
    fn change(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        while self.placing.is_none()
            && let Some(change) = client.context().next()
        {
            match change {
                Change::Assign(partitions) => {
                    self.away &= partitions.is_empty();
                    self.placing = Some(Placing {
                        partitions,
                        step: Step::Ask,
                    });
                }
                Change::Revoke(partitions) if !partitions.is_empty() && !self.away => {
                    self.holdings.revoke(&partitions);
                    self.revoked.clone_from(&partitions);
                    return Ok(Some(Polled::Revoked(partitions)));
                }
                Change::Revoke(partitions) | Change::Lose(partitions) => {
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

    /// Gives back what the member was told to give up, after the last commit for it.
    async fn give_back(&mut self) -> Result<()> {
        if self.revoked.is_empty() {
            return Ok(());
        }
        // One that fails now has failed for its caller already.
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

    /// Asks where the partitions that were assigned begin.
    fn ask_where_to_start(&mut self) -> Result<()> {
        let client = self.client()?.clone();
        let Some(placing) = &self.placing else {
            return Ok(());
        };
        if !matches!(placing.step, Step::Ask) {
            return Ok(());
        }
        let list = self.list(&placing.partitions)?;
        let (group, patience) = (self.group.clone(), self.config.request_timeout);
        let asked = self
            .runtime
            .spawn_blocking(move || requests::starts(&client, &group, list, patience));
        if let Some(placing) = &mut self.placing {
            placing.step = Step::Asked(asked);
        }
        Ok(())
    }

    /// Takes over what was assigned.
    fn start(&mut self, starts: Result<Starts>) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(placing) = &mut self.placing else {
            return Ok(None);
        };
        placing.step = Step::Ask;
        let starts = starts?;
        carry_out(client.as_ref(), true, &starts);
        let at = Instant::now();
        placing.step = Step::Seek {
            starts,
            at,
            remind_at: at + self.config.request_timeout,
        };
        self.seek()
    }

    /// Begins to read what was assigned. Records that came before all are at their places are not taken in,
    /// and come again.
    fn seek(&mut self) -> Result<Option<Polled>> {
        let client = self.client()?.clone();
        let Some(placing) = &mut self.placing else {
            return Ok(None);
        };
        let Step::Seek {
            starts,
            at,
            remind_at,
        } = &mut placing.step
        else {
            return Ok(None);
        };
        let now = Instant::now();
        *at = now + SEEK_AGAIN;
        let stopped = |partition| {
            self.misplaced
                .iter()
                .any(|place| place.partition == partition)
        };
        let Some(places) = requests::seek(&client, starts, &self.layout, SEEK, stopped)? else {
            if now < *remind_at {
                return Ok(None);
            }
            *remind_at = now + REMIND;
            let why = format!(
                "what was assigned to {} is waited for. {STOPPED}",
                self.group
            );
            return Err(Error::unavailable(SEAM, why));
        };
        for (partition, start) in places {
            self.holdings.add(partition, start);
        }
        let assigned = std::mem::take(&mut placing.partitions);
        self.placing = None;
        let told = !assigned.is_empty();
        Ok(told.then_some(Polled::Assigned(assigned)))
    }

    /// Takes over what is there without waiting, about as much as one poll may return.
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

    fn regulate(&self, client: &Client, partition: Partition, flow: Option<Flow>) {
        let (Some(flow), Ok(list)) = (flow, self.list(&[partition])) else {
            return;
        };
        let done = match flow {
            Flow::Stop => client.pause(&list),
            Flow::Go => client.resume(&list),
        };
        if let Err(error) = done {
            tracing::debug!(%error, ?partition, ?flow, "the partition's flow stays as it is");
        }
    }

    /// What passes by itself was logged; the rest is told.
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

    /// Starts of partitions that are not at their places yet.
    fn starts(&self) -> Vec<(Partition, u64)> {
        match self.placing.as_ref().map(|placing| &placing.step) {
            Some(Step::Seek { starts, .. }) => requests::offsets(starts, &self.layout),
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
            // Its findings hold those of this one.
            self.search(client);
            return Ok(());
        }
        if self.misplaced.is_empty() && stopped.is_empty() {
            // It was there after all, and is read again.
            self.remind_at = None;
            tracing::info!(
                group = self.group,
                "a place in the log was missing for a moment"
            );
            return Ok(());
        }
        if self.misplaced.is_empty() {
            let why = format!("{stopped:?} were missing for a moment. {STOPPED}");
            return Err(Error::unavailable(SEAM, why));
        }
        let places: Vec<String> = self.misplaced.iter().map(Misplaced::to_string).collect();
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
            Some(Step::Asked(asked)) => Some(asked),
            Some(Step::Seek { at, .. }) => {
                seek_at = Some(*at);
                None
            }
            Some(Step::Ask) | None => None,
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
                // The queue is gone, and nobody looks at its files.
                pending().await
            }
        };
        let polled_at = &mut self.polled_at;
        let told = poll_fn(|context| {
            // Also woken now and then only to show that this member lives.
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
            // Changes come while the stream is polled.
            if !is_placing && client.context().any() {
                return Poll::Ready(Event::Change);
            }
            Poll::Pending
        });
        Ok(tokio::select! {
            biased;
            event = told => event,
            () = renewed => Event::Change,
            () = seek => Event::Seek,
            () = remind => Event::Remind,
        })
    }

    /// Waits for the commit that is under way; not longer than a request may take.
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
        loop {
            if let Some(polled) = self.renew()? {
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
                    if let Some(polled) = self.start(starts)? {
                        return Ok(polled);
                    }
                }
                Event::Seek => {
                    if let Some(polled) = self.seek()? {
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
        // An older commit that was dropped must not arrive after this one.
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
        self.committing = Some(Committing { due, done });
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
        // librdkafka does not close before each change is carried out.
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
                Change::Assign(partitions) => (true, partitions),
                Change::Revoke(partitions) | Change::Lose(partitions) => (false, partitions),
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
