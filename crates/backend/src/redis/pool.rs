//! Routes calls to their servers and returns answers within the deadline.
//!
//! Calls for one slot go to one server, in order, as pipelines that each start when the previous
//! one is answered. A call refused for a passing reason is repeated until the deadline, at the
//! server the refusal names: every call may be repeated.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, RwLock};
use protocol::pause::doubled;
use redis::{Pipeline, Value};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};

use super::call::Call;
use super::failure::{Failure, Reaction};
use super::finder::{Address, Finder, SlotMap, redirect_address};
use super::node::{ConnectionMode, Node};
use crate::mailbox::ServerId;

/// Maximum number of attempts per call.
const MAX_ATTEMPTS: u32 = 8;
/// Pause before the second attempt; doubles with each further one, up to the deadline.
const RETRY_PAUSE: Duration = Duration::from_millis(4);
/// Timeout of connecting at start, long enough for slow servers: many processes start at once, and
/// each handshake costs time.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of bytes in a pipeline, unless a single call has more.
const PIPELINE_BYTES: usize = 1 << 20;

type Answer = Result<Value, Failure>;

/// The servers, and calls to them.
pub(crate) struct Pool {
    pub(crate) mode: Arc<ConnectionMode>,
    pub(crate) finder: Finder,
    pipeline_max: usize,
    pub(crate) map: RwLock<SlotMap>,
    pub(crate) nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Notified if the map may be wrong.
    pub(crate) doubt: Notify,
    /// Number of searches that have ended.
    pub(crate) searches: watch::Sender<u64>,
}

/// A call without an answer yet.
struct OpenCall {
    /// Position in the chunk.
    place: usize,
    /// Server to ask this once, after a redirect.
    ask: Option<Address>,
    failure: Option<Failure>,
}

impl Pool {
    /// Connects to all masters. Fails if no master can be determined, or if one is unreachable or
    /// still late after ten seconds.
    pub(crate) async fn open(
        mode: ConnectionMode,
        finder: Finder,
        pipeline_max: usize,
    ) -> Result<Pool, Failure> {
        let deadline = Instant::now() + OPEN_TIMEOUT;
        let map = with_retries(deadline, async || finder.find(&[], &mode).await).await?;
        let pool = Pool {
            mode: Arc::new(mode),
            finder,
            pipeline_max,
            map: RwLock::new(map),
            nodes: Mutex::default(),
            doubt: Notify::new(),
            searches: watch::Sender::new(0),
        };
        for address in pool.masters() {
            let reach = async || {
                let connect_deadline = Instant::now() + 2 * pool.mode.connect_wait;
                pool.node(&address).live(&pool.mode, connect_deadline).await
            };
            with_retries(deadline, reach).await?;
        }
        Ok(pool)
    }

    /// Server of a slot, as a hash. Two servers that collide, once in 2^64 pairs, wait for each
    /// other.
    pub(crate) fn server(&self, slot: u16) -> ServerId {
        let address = self.map.read().server_for(slot);
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        ServerId(hasher.finish())
    }

    /// Answers each call, in order.
    pub(crate) async fn run(&self, calls: &[Call]) -> Vec<Answer> {
        let mut lanes: BTreeMap<Option<Address>, Vec<usize>> = BTreeMap::new();
        {
            let map = self.map.read();
            for (index, call) in calls.iter().enumerate() {
                lanes
                    .entry(map.server_for(call.slot))
                    .or_default()
                    .push(index);
            }
        }
        let lanes = lanes.into_values();
        let lane_answers = join_all(lanes.map(|lane| self.run_lane(calls, lane))).await;
        let mut answers: Vec<Option<Answer>> = calls.iter().map(|_| None).collect();
        for (index, answer) in lane_answers.into_iter().flatten() {
            answers[index] = Some(answer);
        }
        let answers = answers.into_iter();
        answers
            .map(|answer| answer.unwrap_or(Err(Failure::GivenUp)))
            .collect()
    }

    /// Runs a single call.
    pub(crate) async fn ask(&self, call: Call) -> Answer {
        let mut answers = self.run(&[call]).await;
        answers.pop().unwrap_or(Err(Failure::GivenUp))
    }

    /// Runs one pipeline after the other; once a server is silent, the rest is not tried.
    async fn run_lane(&self, calls: &[Call], lane: Vec<usize>) -> Vec<(usize, Answer)> {
        let mut answers = Vec::with_capacity(lane.len());
        let mut rest = lane.as_slice();
        let mut is_silent = false;
        while !rest.is_empty() {
            let (chunk, remainder) = rest.split_at(self.chunk_len(calls, rest));
            rest = remainder;
            if is_silent {
                answers.extend(chunk.iter().map(|&index| (index, Err(Failure::GivenUp))));
                continue;
            }
            let chunk_answers = self.run_chunk(calls, chunk).await;
            let silence = |answer: &Answer| answer.as_ref().is_err_and(Failure::is_silence);
            is_silent = chunk_answers.iter().all(silence);
            answers.extend(chunk.iter().copied().zip(chunk_answers));
        }
        answers
    }

    fn chunk_len(&self, calls: &[Call], rest: &[usize]) -> usize {
        let mut bytes = 0;
        let fits = |&&index: &&usize| {
            bytes += calls[index].size();
            bytes <= PIPELINE_BYTES
        };
        let count = rest.iter().take(self.pipeline_max).take_while(fits).count();
        count.max(1)
    }

    async fn run_chunk(&self, calls: &[Call], chunk: &[usize]) -> Vec<Answer> {
        let deadline = Instant::now() + self.mode.deadline;
        let mut answers: Vec<Option<Value>> = chunk.iter().map(|_| None).collect();
        let mut open: Vec<OpenCall> = (0..chunk.len())
            .map(|place| OpenCall {
                place,
                ask: None,
                failure: None,
            })
            .collect();
        let mut failed_calls: Vec<OpenCall> = Vec::new();
        for attempt in 0..MAX_ATTEMPTS {
            let mut needs_search = false;
            let mut needs_pause = false;
            let mut moved_to: Vec<Address> = Vec::new();
            for (address, group) in self.group(calls, chunk, open) {
                for (mut call, answer) in self
                    .send(calls, chunk, address.clone(), group, deadline)
                    .await
                {
                    let failure = match answer {
                        Ok(value) => {
                            answers[call.place] = Some(value);
                            continue;
                        }
                        Err(failure) => failure,
                    };
                    let server = address.as_deref().unwrap_or_default();
                    match failure.reaction() {
                        Reaction::Final => {
                            call.failure = Some(failure);
                            failed_calls.push(call);
                            continue;
                        }
                        Reaction::Ask(to) => call.ask = Some(redirect_address(&to, server)),
                        Reaction::Moved(to) => {
                            let to = redirect_address(&to, server);
                            let slot = calls[chunk[call.place]].slot;
                            self.map.write().moved(slot, Arc::clone(&to));
                            if !moved_to.contains(&to) {
                                moved_to.push(to);
                            }
                        }
                        Reaction::Load => {}
                        Reaction::Again => needs_pause = true,
                        Reaction::Find => {
                            needs_search = true;
                            needs_pause = true;
                        }
                    }
                    call.failure = Some(failure);
                    failed_calls.push(call);
                }
            }
            let (retryable, final_failures) = split_final(failed_calls);
            (open, failed_calls) = (retryable, final_failures);
            if open.is_empty() || Instant::now() >= deadline {
                break;
            }
            if !moved_to.is_empty() {
                // Other slots may have moved along with these.
                self.doubt.notify_one();
            }
            for address in moved_to {
                self.node(&address).verify(&self.mode, deadline).await;
            }
            if needs_search {
                self.search(deadline).await;
            }
            if needs_pause {
                let time_left = deadline.saturating_duration_since(Instant::now());
                sleep(doubled(RETRY_PAUSE, attempt, time_left)).await;
            }
        }
        let mut failures: HashMap<usize, Failure> = HashMap::new();
        for call in failed_calls.into_iter().chain(open) {
            failures.insert(call.place, call.failure.unwrap_or(Failure::GivenUp));
        }
        let answers = answers.into_iter().enumerate();
        answers
            .map(|(place, answer)| match answer {
                Some(answer) => Ok(answer),
                None => Err(failures.remove(&place).unwrap_or(Failure::GivenUp)),
            })
            .collect()
    }

    /// Groups calls by server, each group in order. Calls redirected just this once form their own
    /// groups.
    fn group(
        &self,
        calls: &[Call],
        chunk: &[usize],
        mut open: Vec<OpenCall>,
    ) -> Vec<(Option<Address>, Vec<OpenCall>)> {
        open.sort_by_key(|call| call.place);
        let map = self.map.read();
        let mut groups: Vec<(Option<Address>, Vec<OpenCall>)> = Vec::new();
        for call in open {
            let is_ask = call.ask.is_some();
            let address = match &call.ask {
                Some(address) => Some(Arc::clone(address)),
                None => map.server_for(calls[chunk[call.place]].slot),
            };
            let group = groups
                .iter_mut()
                .find(|(to, group)| *to == address && group[0].ask.is_some() == is_ask);
            match group {
                Some((_, group)) => group.push(call),
                None => groups.push((address, vec![call])),
            }
        }
        groups
    }

    /// Sends a group to its server as one pipeline.
    async fn send(
        &self,
        calls: &[Call],
        chunk: &[usize],
        address: Option<Address>,
        group: Vec<OpenCall>,
        deadline: Instant,
    ) -> Vec<(OpenCall, Answer)> {
        let Some(address) = address else {
            let no_master = Failure::NoMaster("no server has these slots".to_owned());
            return all(group, &no_master);
        };
        let node = self.node(&address);
        if node.is_silent() {
            // Another server may have taken over these slots.
            self.doubt.notify_one();
            let address = address.to_string();
            return all(group, &Failure::Silent { address });
        }
        let live = match node.live(&self.mode, deadline).await {
            Ok(live) => live,
            Err(failure) => return all(group, &failure),
        };
        let mut pipeline = Pipeline::with_capacity(group.len());
        let is_ask = group.first().is_some_and(|call| call.ask.is_some());
        for call in &group {
            if is_ask {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            let call = &calls[chunk[call.place]];
            pipeline.add_command(call.command_for(&self.mode.scripts, &live.replid));
        }
        let mut values = match node.send(&live, pipeline, deadline, &self.mode).await {
            Ok(values) => values,
            Err(failure) => {
                if failure.reaction() == Reaction::Find {
                    node.forget(&live);
                }
                return all(group, &failure);
            }
        };
        if is_ask {
            // Every other value is the answer to ASKING.
            values = values.into_iter().skip(1).step_by(2).collect();
        }
        let mut needs_scripts = false;
        let mut is_stale = false;
        let results: Vec<(OpenCall, Answer)> = group
            .into_iter()
            .zip(values)
            .map(|(mut call, value)| {
                call.ask = None;
                let answer = match value {
                    Value::ServerError(error) => Err(Failure::from(redis::RedisError::from(error))),
                    value => Ok(value),
                };
                match answer.as_ref().err().map(Failure::reaction) {
                    Some(Reaction::Load) => needs_scripts = true,
                    Some(Reaction::Find) => is_stale = true,
                    _ => {}
                }
                (call, answer)
            })
            .collect();
        if needs_scripts && let Err(failure) = node.load(&live, deadline, &self.mode).await {
            tracing::debug!(server = %address, %failure, "cannot load scripts");
        }
        if is_stale {
            node.forget(&live);
        }
        results
    }

    /// All servers that serve at least one slot.
    pub(crate) fn masters(&self) -> Vec<Address> {
        let mut masters: Vec<Address> = match &*self.map.read() {
            SlotMap::One(address) => vec![Arc::clone(address)],
            SlotMap::Slots(slots) => {
                // Neighbouring slots mostly share a server.
                let mut masters: Vec<Address> = Vec::new();
                for address in slots.iter().flatten() {
                    if masters.last() != Some(address) {
                        masters.push(Arc::clone(address));
                    }
                }
                masters
            }
        };
        masters.sort_unstable();
        masters.dedup();
        masters
    }

    pub(crate) fn node(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(Arc::clone(address)).or_insert_with(|| {
            let in_flight_max = self.mode.in_flight_max;
            Arc::new(Node::new(Arc::clone(address), in_flight_max))
        });
        Arc::clone(node)
    }
}

fn all(group: Vec<OpenCall>, failure: &Failure) -> Vec<(OpenCall, Answer)> {
    let to_failed = |mut call: OpenCall| {
        call.ask = None;
        (call, Err(failure.clone()))
    };
    group.into_iter().map(to_failed).collect()
}

/// Separates calls to repeat from calls that failed for good.
fn split_final(calls: Vec<OpenCall>) -> (Vec<OpenCall>, Vec<OpenCall>) {
    let is_final = |call: &OpenCall| {
        let failure = call.failure.as_ref();
        failure.is_none_or(|failure| failure.reaction() == Reaction::Final)
    };
    calls.into_iter().partition(|call| !is_final(call))
}

/// Repeats an attempt that came too late, until `deadline`.
async fn with_retries<T>(
    deadline: Instant,
    attempt: impl AsyncFn() -> Result<T, Failure>,
) -> Result<T, Failure> {
    loop {
        match attempt().await {
            Err(failure) if failure.is_late() && Instant::now() < deadline => {
                sleep(RETRY_PAUSE).await;
            }
            answer => return answer,
        }
    }
}
