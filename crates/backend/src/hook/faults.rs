//! Faults that a test begins and ends, and counts of calls.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::sleep;

use super::{Fate, Hook, Names, Op};
use crate::mailbox::ServerId;
use crate::queue::{NewRecord, Partition, Record};
use crate::{Error, Kind, Result};

/// Selection of calls of a seam: all, those of one method, or those about one subject. Unknown
/// names panic; in a constant they do not compile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calls {
    names: &'static Names,
    name: Option<&'static str>,
    kind: Option<&'static str>,
    subject: Option<u64>,
    writes_only: bool,
}

impl Calls {
    /// All calls of a seam.
    #[track_caller]
    pub const fn to(seam: &str) -> Calls {
        Calls {
            names: Names::of(seam),
            name: None,
            kind: None,
            subject: None,
            writes_only: false,
        }
    }

    /// Calls of this method.
    #[track_caller]
    pub const fn named(self, name: &str) -> Calls {
        Calls {
            name: Some(self.names.call(name)),
            ..self
        }
    }

    /// Calls of this kind ([`Op::kind`]).
    #[track_caller]
    pub const fn of_kind(self, kind: &str) -> Calls {
        Calls {
            kind: Some(self.names.kind(kind)),
            ..self
        }
    }

    /// Calls that write.
    pub const fn writes(self) -> Calls {
        Calls {
            writes_only: true,
            ..self
        }
    }

    /// Calls about this user, group or message; if items fail singly, only those items.
    pub const fn about(self, subject: i64) -> Calls {
        Calls {
            subject: Some(subject.unsigned_abs()),
            ..self
        }
    }

    fn selects(&self, op: &Op) -> bool {
        let is =
            |expected: Option<&str>, actual| expected.is_none_or(|expected| expected == actual);
        let is_selected = is(self.name, op.name) && is(self.kind, op.kind);
        self.names.seam == op.seam && is_selected && (op.has_effect || !self.writes_only)
    }

    /// Whether the whole call is selected, not only some of its items.
    fn selects_call(&self, op: &Op) -> bool {
        self.selects(op)
            && match self.subject {
                Some(subject) => !op.by_item && op.subjects.contains(&subject),
                None => true,
            }
    }

    fn selects_item(&self, op: &Op, subject: u64) -> bool {
        self.selects(op) && self.subject == Some(subject)
    }
}

/// The fate of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Not done: `Unavailable`.
    Unavailable,
    /// Not done: `Conflict`.
    Conflict,
    /// Neither done nor answered, ever.
    Hang,
    /// Done once the fault has ended.
    Hold,
    /// Done after this delay.
    Delay(Duration),
    /// One in this many calls is not done.
    UnavailableEvery(usize),
    /// Done, and never answered.
    NoAnswer,
    /// Done, and answered with `Unavailable`.
    LostAnswer,
}

#[derive(Clone, Copy, Debug)]
struct Rule {
    calls: Calls,
    fault: Fault,
    /// Calls still to hit before the rule ends by itself.
    remaining_hits: Option<usize>,
    hits: usize,
}

type Refusal = Box<dyn Fn(&NewRecord) -> Option<Kind> + Send>;
type Loss = Box<dyn FnMut(&Op, &Record) -> bool + Send>;

/// Hook of faults; none at first.
pub struct Faults {
    rules: Mutex<Vec<Rule>>,
    /// Counter of changes of the rules.
    changes: watch::Sender<u64>,
    counts: Mutex<BTreeMap<(&'static str, &'static str), CallCount>>,
    refusal: Mutex<Option<Refusal>>,
    without_leader: Mutex<Option<Partition>>,
    loss: Mutex<Option<Loss>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct CallCount {
    calls: usize,
    subjects: usize,
    has_effect: bool,
}

impl Default for Faults {
    fn default() -> Self {
        Faults {
            rules: Mutex::default(),
            changes: watch::Sender::new(0),
            counts: Mutex::default(),
            refusal: Mutex::default(),
            without_leader: Mutex::default(),
            loss: Mutex::default(),
        }
    }
}

impl Faults {
    /// Hook for [`Backends::hooked`](crate::Backends::hooked).
    pub fn hook(self: &Arc<Faults>) -> Arc<dyn Hook> {
        self.clone()
    }

    /// Gives these calls this fault, until [`end`](Self::end).
    pub fn begin(&self, calls: Calls, fault: Fault) {
        self.add(calls, fault, None);
    }

    /// Gives the next `count` of these calls this fault.
    pub fn next(&self, count: usize, calls: Calls, fault: Fault) {
        self.add(calls, fault, Some(count));
    }

    fn add(&self, calls: Calls, fault: Fault, remaining: Option<usize>) {
        self.rules.lock().push(Rule {
            calls,
            fault,
            remaining_hits: remaining,
            hits: 0,
        });
    }

    /// Ends the faults of exactly these calls.
    ///
    /// # Panics
    /// No call met such a fault, and the calls are not only those about one subject.
    #[track_caller]
    pub fn end(&self, calls: Calls) {
        let is_ended = |rule: &mut Rule| rule.calls == calls;
        let ended_rules: Vec<Rule> = self.rules.lock().extract_if(.., is_ended).collect();
        self.changes.send_modify(|count| *count += 1);
        let is_met = |rule: &Rule| rule.hits > 0 || calls.subject.is_some();
        assert!(
            ended_rules.iter().all(is_met),
            "no call met {ended_rules:?}"
        );
    }

    /// Refuses the records for which `refusal` returns a kind.
    pub fn refuse_records(&self, refusal: impl Fn(&NewRecord) -> Option<Kind> + Send + 'static) {
        *self.refusal.lock() = Some(Box::new(refusal));
    }

    pub fn accept_records(&self) {
        *self.refusal.lock() = None;
    }

    /// Makes publishes to this partition hang: they are neither accepted nor answered.
    pub fn without_leader(&self, partition: Option<Partition>) {
        *self.without_leader.lock() = partition;
    }

    /// Hides lost records, as if they had never existed.
    pub fn lose_records(&self, is_lost: impl FnMut(&Op, &Record) -> bool + Send + 'static) {
        *self.loss.lock() = Some(Box::new(is_lost));
    }

    /// Number of calls since the last query of it.
    #[track_caller]
    pub fn calls(&self, seam: &str, name: &str) -> usize {
        self.count(seam, name, |count| &mut count.calls)
    }

    /// Number of items of calls, since the last query of it.
    #[track_caller]
    pub fn items(&self, seam: &str, name: &str) -> usize {
        self.count(seam, name, |count| &mut count.subjects)
    }

    #[track_caller]
    fn count(&self, seam: &str, name: &str, of: fn(&mut CallCount) -> &mut usize) -> usize {
        let names = Names::of(seam);
        let mut counts = self.counts.lock();
        let count = counts.entry((names.seam, names.call(name)));
        std::mem::take(of(count.or_default()))
    }

    /// Number of reads of a seam, since the last query of it.
    #[track_caller]
    pub fn reads(&self, seam: &str) -> usize {
        self.sum(seam, false)
    }

    /// Number of writes of a seam, since the last query of it.
    #[track_caller]
    pub fn writes(&self, seam: &str) -> usize {
        self.sum(seam, true)
    }

    #[track_caller]
    fn sum(&self, seam: &str, has_effect: bool) -> usize {
        let seam = Names::of(seam).seam;
        let mut counts = self.counts.lock();
        let selected = counts
            .iter_mut()
            .filter(|((name, _), count)| *name == seam && count.has_effect == has_effect);
        selected
            .map(|(_, count)| std::mem::take(&mut count.calls))
            .sum()
    }

    /// Returns the faults of a call, and counts a hit for each.
    fn hit(&self, selects: impl Fn(&Rule) -> bool) -> Vec<Rule> {
        let mut rules = self.rules.lock();
        let mut hit = Vec::new();
        for rule in rules.iter_mut().filter(|rule| selects(rule)) {
            rule.hits += 1;
            if let Some(remaining) = &mut rule.remaining_hits {
                *remaining -= 1;
            }
            hit.push(*rule);
        }
        rules.retain(|rule| rule.remaining_hits != Some(0));
        hit
    }

    /// Waits until no such fault is left.
    async fn wait_for_end(&self, rule: &Rule) {
        let mut changes = self.changes.subscribe();
        let is_same = |other: &Rule| other.calls == rule.calls && other.fault == rule.fault;
        while self.rules.lock().iter().any(is_same) && changes.changed().await.is_ok() {}
    }
}

fn unavailable_error(op: &Op) -> Error {
    Error::unavailable(op.seam, "away, as the test wants it")
}

fn conflict_error(op: &Op) -> Error {
    Error::conflict(op.seam, "refused, as the test wants it")
}

#[async_trait]
impl Hook for Faults {
    async fn before(&self, op: &Op) -> Result<()> {
        Names::check(op);
        {
            let mut counts = self.counts.lock();
            let count = counts.entry((op.seam, op.name)).or_default();
            count.calls += 1;
            count.subjects += op.subjects.len();
            count.has_effect = op.has_effect;
        }
        let is_before = |fault| !matches!(fault, Fault::NoAnswer | Fault::LostAnswer);
        for rule in self.hit(|rule| is_before(rule.fault) && rule.calls.selects_call(op)) {
            match rule.fault {
                Fault::Unavailable => return Err(unavailable_error(op)),
                Fault::Conflict => return Err(conflict_error(op)),
                Fault::Hang => pending().await,
                Fault::Hold => self.wait_for_end(&rule).await,
                Fault::Delay(duration) => sleep(duration).await,
                Fault::UnavailableEvery(number) if rule.hits % number == 0 => {
                    return Err(unavailable_error(op));
                }
                Fault::UnavailableEvery(_) | Fault::NoAnswer | Fault::LostAnswer => {}
            }
        }
        Ok(())
    }

    fn item(&self, op: &Op, subject: u64) -> Fate {
        let hit = self.hit(|rule| rule.calls.selects_item(op, subject));
        match hit.first().map(|rule| rule.fault) {
            Some(Fault::Unavailable) => Fate::Fail(unavailable_error(op)),
            Some(Fault::Conflict) => Fate::Fail(conflict_error(op)),
            Some(Fault::Hang) => Fate::Hang,
            _ => Fate::Pass,
        }
    }

    /// A user with mailbox faults of their own has a server of their own.
    fn server(&self, user: u64) -> Option<ServerId> {
        let rules = self.rules.lock();
        let is_of_it =
            |rule: &Rule| rule.calls.names.seam == "mailbox" && rule.calls.subject == Some(user);
        rules.iter().any(is_of_it).then_some(ServerId(u64::MAX))
    }

    fn publish(&self, record: &NewRecord) -> Fate {
        if *self.without_leader.lock() == Some(record.partition) {
            return Fate::Hang;
        }
        let refusal = self.refusal.lock();
        match refusal.as_ref().and_then(|refusal| refusal(record)) {
            Some(kind) => Fate::Fail(Error::new("queue", kind, "not this one")),
            None => Fate::Pass,
        }
    }

    fn shows(&self, op: &Op, record: &Record) -> bool {
        let mut loss = self.loss.lock();
        !loss.as_mut().is_some_and(|is_lost| is_lost(op, record))
    }

    async fn after(&self, op: &Op, _: usize) -> Result<()> {
        let is_after = |fault| matches!(fault, Fault::NoAnswer | Fault::LostAnswer);
        for rule in self.hit(|rule| is_after(rule.fault) && rule.calls.selects_call(op)) {
            match rule.fault {
                Fault::NoAnswer => pending().await,
                _ => {
                    return Err(Error::unavailable(
                        op.seam,
                        "its answer is lost, as the test wants it",
                    ));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use protocol::GroupId;
    use protocol::cache::{CacheKey, Invalidation};
    use protocol::conversation::Head;
    use protocol::keys::Topic;
    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::cache::{Cache, CacheConfig, EmbeddedCache};
    use crate::clock::SystemClock;
    use crate::embedded::Engine;
    use crate::heads::{EmbeddedHeads, HeadStore};
    use crate::hook::Hooked;
    use crate::queue::{EmbeddedQueue, Polled, Queue, QueueConfig};
    use crate::test_ids::TestIds;

    const SAVES: Calls = Calls::to("heads").named("save");
    const FAULT_TIMEOUT: Duration = Duration::from_secs(3600);

    fn faults() -> (Arc<Faults>, Arc<dyn Hook>) {
        let faults = Arc::new(Faults::default());
        let hook = faults.hook();
        (faults, hook)
    }

    // A fault of an unknown call would never be met.
    #[test]
    fn names_that_no_call_has_are_refused() {
        let refuses = |name: fn()| std::panic::catch_unwind(name).is_err();
        assert!(!refuses(|| _ = SAVES));
        assert!(refuses(|| _ = Calls::to("head")));
        assert!(refuses(|| _ = Calls::to("heads").named("saved")));
        assert!(refuses(|| _ = Calls::to("heads").named("push")));
        assert!(refuses(|| _ = Calls::to("queue").of_kind("delivered")));
        assert!(refuses(|| _ = Faults::default().calls("heads", "saves")));
        assert!(refuses(|| _ = Faults::default().items("head", "save")));
        assert!(refuses(|| _ = Faults::default().reads("head")));
        assert!(refuses(|| _ = Faults::default().writes("head")));
    }

    // An unlisted call could have no faults.
    #[test]
    fn calls_that_are_on_no_list_are_refused() {
        let refuses = |op: Op| std::panic::catch_unwind(|| Names::check(&op)).is_err();
        let publish = |kind| Op {
            kind,
            ..Op::new("queue", "publish")
        };
        assert!(!refuses(publish("")) && !refuses(publish("retry")));
        assert!(refuses(publish("retries")));
        assert!(refuses(Op::new("queue", "produce")));
    }

    #[tokio::test(start_paused = true)]
    async fn each_fault_says_whether_a_call_is_done_and_what_is_answered() {
        let fresh = TestIds::new(1);
        // A fault, whether the call is done, and the answer: ok, an error, or none.
        let fates = [
            (Fault::Unavailable, false, Some(Some(Kind::Unavailable))),
            (Fault::Conflict, false, Some(Some(Kind::Conflict))),
            (Fault::Hang, false, None),
            (Fault::Hold, false, None),
            (Fault::Delay(FAULT_TIMEOUT / 2), true, Some(None)),
            (Fault::Delay(FAULT_TIMEOUT * 2), false, None),
            (
                Fault::UnavailableEvery(1),
                false,
                Some(Some(Kind::Unavailable)),
            ),
            (Fault::UnavailableEvery(2), true, Some(None)),
            (Fault::NoAnswer, true, None),
            (Fault::LostAnswer, true, Some(Some(Kind::Unavailable))),
        ];
        for (fault, is_done, answer) in fates {
            let (faults, hook) = faults();
            let inner: Arc<dyn HeadStore> = Arc::new(EmbeddedHeads::new(Engine::memory()));
            let heads = Hooked::new(inner.clone(), &hook);
            let conversation = fresh.conversation();
            let save = || {
                timeout(
                    FAULT_TIMEOUT,
                    heads.save(vec![(conversation, Head::default())]),
                )
            };
            faults.begin(SAVES, fault);
            let outcome = save()
                .await
                .ok()
                .map(|result| result.err().map(|error| error.kind));
            assert_eq!(outcome, answer, "{fault:?}");
            let stored_heads = inner.load(&[conversation]).await.expect("reads");
            assert_eq!(stored_heads[0].is_some(), is_done, "{fault:?}");
            // Other calls have no fault.
            heads.load(&[conversation]).await.expect("reads");
            faults.end(SAVES);
            assert!(matches!(save().await, Ok(Ok(()))), "{fault:?}");
            assert_eq!((faults.writes("heads"), faults.reads("heads")), (2, 1));
            assert_eq!(faults.items("heads", "save"), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn held_calls_resume_at_the_end_and_counted_faults_expire() {
        let (faults, hook) = faults();
        let heads: Arc<dyn HeadStore> = Arc::new(EmbeddedHeads::new(Engine::memory()));
        let heads = Hooked::new(heads, &hook);
        faults.begin(SAVES, Fault::Hold);
        let began = Instant::now();
        let (result, ()) = tokio::join!(heads.save(Vec::new()), async {
            sleep(FAULT_TIMEOUT).await;
            faults.end(SAVES);
        });
        result.expect("done");
        assert_eq!(began.elapsed(), FAULT_TIMEOUT);
        faults.next(2, SAVES, Fault::Unavailable);
        for is_done in [false, false, true] {
            assert_eq!(heads.save(Vec::new()).await.is_ok(), is_done);
        }
    }

    #[test]
    #[should_panic(expected = "no call met")]
    fn an_unmet_fault_panics_at_its_end() {
        let faults = Faults::default();
        faults.begin(SAVES, Fault::Hang);
        faults.end(SAVES);
    }

    #[tokio::test(start_paused = true)]
    async fn items_fail_alone_and_hang_when_the_others_are_done() {
        let (faults, hook) = faults();
        let cache: Arc<dyn Cache> = Arc::new(EmbeddedCache::new(CacheConfig::default()));
        let cache = Hooked::new(cache, &hook);
        let groups = [1, 2, 3].map(|n| GroupId::new(n).unwrap());
        let forget = async || {
            let invalidations = groups.map(|group| Invalidation::of(CacheKey::Group(group)));
            timeout(FAULT_TIMEOUT, cache.forget(&invalidations)).await
        };
        let two = Calls::to("cache").about(2);
        faults.begin(two, Fault::Unavailable);
        let answers = forget().await.expect("answered");
        let outcomes: Vec<bool> = answers.iter().map(Result::is_ok).collect();
        assert_eq!(outcomes, [true, false, true]);
        faults.end(two);
        faults.begin(two, Fault::Hang);
        forget().await.expect_err("it hangs");
    }

    #[tokio::test(start_paused = true)]
    async fn records_are_refused_lost_and_unanswered_alone() {
        let (faults, hook) = faults();
        let log = EmbeddedQueue::open(
            Engine::memory(),
            QueueConfig::default(),
            Arc::new(SystemClock),
        );
        let log: Arc<dyn Queue> = Arc::new(log.unwrap());
        let log = Hooked::new(log, &hook);
        let record = |topic, number, value: &'static str| NewRecord {
            partition: Partition { topic, number },
            key: Bytes::new(),
            headers: Vec::new(),
            value: Bytes::from_static(value.as_bytes()),
        };
        let records = vec![
            record(Topic::Message, 0, "lost"),
            record(Topic::Retry(2), 0, "later"),
            record(Topic::Message, 0, "refused"),
            record(Topic::Message, 0, "shown"),
            record(Topic::Message, 1, "nowhere"),
            record(Topic::Dead, 0, "silent"),
        ];
        faults.refuse_records(|new| (new.value == "refused").then_some(Kind::Conflict));
        faults.lose_records(|_, record| record.value == "lost");
        faults.without_leader(Some(records[4].partition));
        let dead = Calls::to("queue").named("publish").of_kind("dead");
        faults.begin(dead, Fault::Hang);
        let answers = log
            .producer()
            .publish_within(records.clone(), FAULT_TIMEOUT)
            .await;
        let outcomes = answers
            .iter()
            .map(|answer| answer.as_ref().map(Result::is_ok));
        assert_eq!(
            outcomes.collect::<Vec<_>>(),
            [Some(true), Some(true), Some(false), Some(true), None, None]
        );
        let replies = log.producer().publish(records[..4].to_vec()).await;
        let outcomes: Vec<bool> = replies.iter().map(Result::is_ok).collect();
        assert_eq!(outcomes, [true, true, false, true]);
        let mut consumer = log.subscribe("group", Topic::Message).await.unwrap();
        let visible = loop {
            if let Polled::Records(records) = consumer.poll(10).await.unwrap() {
                break records;
            }
        };
        assert!(
            visible.iter().all(|record| record.value == "shown"),
            "{visible:?}"
        );
        let read = log.read(records[0].partition, 0, 10).await.unwrap();
        assert_eq!(read.len(), 2, "{read:?}");
    }
}
