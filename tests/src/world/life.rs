//! Lives of hosts: a hook around the parts that waits, fails, and ends with its host.

use std::fmt;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend::Error;
use backend::hook::{self, Hook, Op};
use backend::queue::{Partition, Record};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::{Chance, Fate, Outages, Trace};

/// Time after which a host without a network learns that a call fails.
const REFUSAL: Duration = Duration::from_secs(1);
/// Time without an answer from a part: as long as the most patient driver waits.
const HANG: Duration = Duration::from_secs(60);
/// Longest read of a host that reads slowly: below the time that carriers give a store.
const SLOW_READ_MAX: Duration = Duration::from_secs(4);

/// One life of a host, from start to end. After its death it makes no calls, and none is answered.
pub struct Life {
    name: String,
    trace: Arc<Trace>,
    pub chance: Chance,
    outages: Arc<Outages>,
    dead: CancellationToken,
    /// Cancelled once brokers have noticed the death.
    session_expired: CancellationToken,
    /// Node number for ids, if it is a station.
    node: Mutex<Option<u16>>,
    /// Isolation from parts and other hosts; clients still reach it.
    isolation: Mutex<Isolation>,
    /// End of the time in which it reads slowly.
    slow_until: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Isolation {
    end: Option<Instant>,
    /// Cancelled, and renewed, at each isolation.
    begins: CancellationToken,
}

impl fmt::Debug for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Life").field(&self.name).finish()
    }
}

impl Life {
    /// Begins a life under this name; its calls go into the trace.
    pub fn new(name: String, trace: Arc<Trace>, chance: Chance, outages: Arc<Outages>) -> Life {
        Life {
            name,
            trace,
            chance,
            outages,
            dead: CancellationToken::new(),
            session_expired: CancellationToken::new(),
            node: Mutex::default(),
            isolation: Mutex::default(),
            slow_until: Mutex::default(),
        }
    }

    /// Adds an event to the trace; nothing, once dead.
    pub fn note(&self, event: fmt::Arguments<'_>) {
        if !self.is_dead() {
            self.trace.add(&self.name, event);
        }
    }

    pub fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Kills the life: from now on it makes no calls, and none is answered.
    pub fn die(&self, cause: fmt::Arguments<'_>) {
        self.note(cause);
        self.dead.cancel();
    }

    /// Cancelled at the death.
    pub fn dead(&self) -> &CancellationToken {
        &self.dead
    }

    /// Lets brokers notice the death: its consumers leave their groups.
    pub fn expire(&self) {
        self.session_expired.cancel();
    }

    /// Node number for ids, if it reserved one.
    pub fn node(&self) -> Option<u16> {
        *self.node.lock()
    }

    /// Cuts it off from parts and other hosts, from now on for this time.
    pub fn isolate(&self, duration: Duration) {
        self.note(format_args!("is isolated for {duration:?}"));
        let mut isolation = self.isolation.lock();
        isolation.end = Some(Instant::now() + duration);
        std::mem::take(&mut isolation.begins).cancel();
    }

    pub fn is_isolated(&self) -> bool {
        let end = self.isolation.lock().end;
        end.is_some_and(|end| end > Instant::now())
    }

    /// Lets each read of a store take seconds, from now on for this time.
    pub fn slow_reads(&self, duration: Duration) {
        self.note(format_args!("reads slowly for {duration:?}"));
        *self.slow_until.lock() = Some(Instant::now() + duration);
    }

    fn is_slow(&self, op: &Op) -> bool {
        let end = *self.slow_until.lock();
        !op.has_effect && op.seam != "queue" && end.is_some_and(|end| end > Instant::now())
    }

    /// Waits until the connections open now break.
    pub async fn cut(&self) {
        let isolation_start = self.isolation.lock().begins.clone();
        tokio::select! {
            biased;
            () = self.dead.cancelled() => {}
            () = isolation_start.cancelled() => {}
        }
    }
}

#[async_trait]
impl Hook for Life {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        self.chance.wait().await;
        if self.is_slow(op) {
            sleep(self.chance.up_to(SLOW_READ_MAX)).await;
        }
        if self.is_dead() {
            return pending().await;
        }
        let Op {
            seam, name, kind, ..
        } = op;
        self.note(format_args!("{seam}.{name} {kind} {:?}", op.subjects));
        // Half of these hosts die before the effect, half after it.
        if op.has_effect && self.chance.is_last() {
            self.die(format_args!("dies at {seam}.{name}"));
            return pending().await;
        }
        if self.is_isolated() || self.outages.has(seam) {
            sleep(REFUSAL).await;
            return Err(Error::unavailable(op.seam, "no way there"));
        }
        match self.chance.fate() {
            Fate::Fail => {
                self.note(format_args!("{seam}.{name} fails"));
                Err(Error::unavailable(op.seam, "the part is away for a moment"))
            }
            Fate::Hang => {
                self.note(format_args!("{seam}.{name} hangs"));
                sleep(HANG).await;
                Err(Error::unavailable(op.seam, "no answer in time"))
            }
            Fate::Lose | Fate::Pass => Ok(()),
        }
    }

    fn item(&self, op: &Op, subject: u64) -> hook::Fate {
        match self.chance.fate() {
            Fate::Fail => {
                self.note(format_args!("{}.{} fails for {subject}", op.seam, op.name));
                hook::Fate::Fail(Error::unavailable(op.seam, "not for this one"))
            }
            Fate::Pass | Fate::Lose | Fate::Hang => hook::Fate::Pass,
        }
    }

    fn shows(&self, op: &Op, record: &Record) -> bool {
        let Partition { topic, number } = record.partition;
        let offset = record.offset;
        self.note(format_args!("{} shows {topic}/{number}@{offset}", op.name));
        true
    }

    async fn after(&self, op: &Op, _done: usize) -> backend::Result<()> {
        if op.name == "reserve_node" || op.name == "lease_node" {
            let number = op.subjects.first().copied();
            let mut node = self.node.lock();
            *node = number
                .and_then(|number| u16::try_from(number).ok())
                .or(*node);
        }
        if op.has_effect && self.chance.is_last() {
            self.die(format_args!("dies after {}.{}", op.seam, op.name));
        }
        self.chance.wait().await;
        if self.is_dead() {
            return pending().await;
        }
        // A failed read was not done; a lost answer matters only for an effect.
        if op.has_effect && self.chance.fate() == Fate::Lose {
            self.note(format_args!("{}.{} loses its answer", op.seam, op.name));
            return Err(Error::unavailable(op.seam, "the answer got lost"));
        }
        Ok(())
    }

    async fn ended(&self) {
        self.session_expired.cancelled().await;
    }
}
