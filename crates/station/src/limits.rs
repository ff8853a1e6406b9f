//! Rates of users and conversations, and reads of history at a time: each with its code and its counter.
//!
//! A user or conversation has its rates at every station, so that with several it may reach a multiple: a shared
//! count would cost each send a round trip.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use backend::rate_limit::{Rate, RateLimit};
use metrics::Counter;
use protocol::{Code, ConversationId, Platform, Refusal, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::config::Config;

/// A device whose sign-ins come too fast waits for this long at least.
const SIGN_IN_PAUSE: Duration = Duration::from_secs(2);

/// The pause of a reader where history has too much to do.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The station's part of docs/operations/limits.md.
pub(crate) struct Limits {
    sign_ins: RateLimit<UserId>,
    user_sends: RateLimit<UserId>,
    bot_sends: RateLimit<UserId>,
    private_sends: RateLimit<ConversationId>,
    group_sends: RateLimit<ConversationId>,
    questions: RateLimit<UserId>,
    user_reads: RateLimit<UserId>,
    reads: Arc<Semaphore>,
    reads_refused: Counter,
}

impl Limits {
    pub(crate) fn new(config: &Config) -> Limits {
        let sign_ins =
            Rate::per_minute(config.user_sign_ins_per_minute, config.user_sign_ins_burst);
        Limits {
            sign_ins: RateLimit::new("user_sign_ins", sign_ins),
            user_sends: by_second(
                "user_sends",
                config.user_sends_per_second,
                config.user_sends_burst,
            ),
            bot_sends: by_second(
                "bot_sends",
                config.bot_sends_per_second,
                config.bot_sends_burst,
            ),
            private_sends: by_second(
                "private_sends",
                config.private_sends_per_second,
                config.private_sends_burst,
            ),
            group_sends: by_second(
                "group_sends",
                config.group_sends_per_second,
                config.group_sends_burst,
            ),
            questions: by_second(
                "user_questions",
                config.user_questions_per_second,
                config.user_questions_burst,
            ),
            user_reads: by_second(
                "user_history_reads",
                config.user_history_reads_per_second,
                config.user_history_reads_burst,
            ),
            reads: Arc::new(Semaphore::new(
                config.history_reads_max.min(Semaphore::MAX_PERMITS),
            )),
            reads_refused: metrics::counter!("limits_total", "limit" => "history_reads"),
        }
    }

    pub(crate) fn sign_in(&self, user: UserId) -> Result<(), Refusal> {
        let refuse = |wait: Duration| too_much("you sign in too often", wait.max(SIGN_IN_PAUSE));
        self.sign_ins.check(user).map_err(refuse)
    }

    pub(crate) fn send(&self, user: UserId, platform: Platform) -> Result<(), Refusal> {
        let of_sender = match platform {
            Platform::Bot => &self.bot_sends,
            _ => &self.user_sends,
        };
        let refuse = |wait| too_much("you send too much at once", wait);
        of_sender.check(user).map_err(refuse)
    }

    /// A send of somebody who may send there: others take nothing from those who may.
    pub(crate) fn send_to(&self, conversation: ConversationId) -> Result<(), Refusal> {
        let in_conversation = match conversation {
            ConversationId::Group(_) => &self.group_sends,
            ConversationId::Private { .. } | ConversationId::System(_) => &self.private_sends,
        };
        let refuse = |wait| too_much("too much is sent to this conversation at once", wait);
        in_conversation.check(conversation).map_err(refuse)
    }

    pub(crate) fn question(&self, user: UserId) -> Result<(), Refusal> {
        let refuse = |wait| too_much("you ask too much at once", wait);
        self.questions.check(user).map_err(refuse)
    }

    /// A place among the reads of history, held until the read is done.
    pub(crate) fn read(&self, user: UserId) -> Result<OwnedSemaphorePermit, Refusal> {
        let refuse = |wait| too_much("you read too much of the past at once", wait);
        self.user_reads.check(user).map_err(refuse)?;
        let place = self.reads.clone().try_acquire_owned();
        place.map_err(|_| {
            self.reads_refused.increment(1);
            Refusal::new(Code::Unavailable, "history has too much to do").retry_after(READ_PAUSE)
        })
    }
}

fn by_second<K: Hash>(limit: &'static str, count: NonZeroU32, burst: NonZeroU32) -> RateLimit<K> {
    RateLimit::new(limit, Rate::per_second(count, burst))
}

fn too_much(text: &str, wait: Duration) -> Refusal {
    Refusal::new(Code::RateLimited, text).retry_after(wait)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU64, Ordering};

    use metrics::{Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
    use parking_lot::Mutex;
    use protocol::GroupId;

    use super::*;

    /// Counters by the limit that they bear.
    #[derive(Default)]
    struct Refusals(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

    impl Refusals {
        fn all(&self) -> Vec<(String, u64)> {
            let counters = self.0.lock();
            let counts = counters.iter();
            let counts =
                counts.map(|(limit, count)| (limit.clone(), count.load(Ordering::Relaxed)));
            counts.filter(|(_, count)| *count > 0).collect()
        }
    }

    impl Recorder for Refusals {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            assert_eq!(key.name(), "limits_total");
            let limit = key.labels().find(|label| label.key() == "limit");
            let limit = limit.expect("a limit").value().to_owned();
            Counter::from_arc(self.0.lock().entry(limit).or_default().clone())
        }

        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }

        fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::noop()
        }
    }

    /// Refusals under this limit, so many, and under no other one.
    fn counts(refusals: &Refusals, limit: &str, count: u64) -> bool {
        refusals.all() == [(limit.to_owned(), count)]
    }

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn limits() -> (Limits, Refusals) {
        let refusals = Refusals::default();
        let limits = || Limits::new(&Config::default());
        (metrics::with_local_recorder(&refusals, limits), refusals)
    }

    fn private(one: i64, other: i64) -> ConversationId {
        ConversationId::private(user(one), user(other)).expect("two users")
    }

    /// As many as go at once, and the refusal of the next.
    fn drain<T>(mut check: impl FnMut() -> Result<T, Refusal>) -> (u32, Refusal) {
        let mut passed = 0;
        loop {
            match check() {
                Ok(_) => passed += 1,
                Err(refusal) => return (passed, refusal),
            }
        }
    }

    async fn passed_in_a_minute(mut check: impl FnMut() -> Result<(), Refusal>) -> u32 {
        let mut passed = 0;
        for _ in 0..60 {
            tokio::time::advance(Duration::from_secs(1)).await;
            passed += drain(&mut check).0;
        }
        passed
    }

    #[tokio::test(start_paused = true)]
    async fn sign_ins_of_a_user() {
        let (limits, refusals) = limits();
        let (passed, refusal) = drain(|| limits.sign_in(user(1)));
        assert_eq!((passed, refusal.code), (20, Code::RateLimited));
        assert!(counts(&refusals, "user_sign_ins", 1));
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_millis(1500)).await;
        let refusal = limits.sign_in(user(1)).expect_err("half a second early");
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(2)));
        assert_eq!(limits.sign_in(user(2)), Ok(()), "a neighbour");
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(drain(|| limits.sign_in(user(1))).0, 1);
        let minute = passed_in_a_minute(|| limits.sign_in(user(1))).await;
        assert_eq!(minute, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn sends_of_people_and_bots() {
        for (platform, limit, burst, rate, wait) in [
            (Platform::Web, "user_sends", 200, 20, 50),
            (Platform::Bot, "bot_sends", 1000, 200, 5),
        ] {
            let (limits, refusals) = limits();
            let mut send = || limits.send(user(1), platform);
            let (passed, refusal) = drain(&mut send);
            assert_eq!((passed, refusal.code), (burst, Code::RateLimited));
            assert_eq!(refusal.retry_after, Some(Duration::from_millis(wait)));
            assert!(counts(&refusals, limit, 1));
            assert_eq!(passed_in_a_minute(&mut send).await, 60 * rate);
            assert_eq!(limits.send(user(2), platform), Ok(()));
        }
    }

    // A bot that is busy leaves its user's own devices alone, and the other way round.
    #[tokio::test(start_paused = true)]
    async fn a_user_and_their_bot_have_rates_of_their_own() {
        let (limits, refusals) = limits();
        for _ in 0..1000 {
            assert_eq!(limits.send(user(1), Platform::Bot), Ok(()));
        }
        assert!(limits.send(user(1), Platform::Bot).is_err());
        assert!(counts(&refusals, "bot_sends", 1));
        assert_eq!(limits.send(user(1), Platform::Ios), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn sends_to_a_conversation() {
        let group = |number| ConversationId::Group(GroupId::new(number).expect("positive"));
        for (limit, to, neighbour, burst, rate) in [
            ("private_sends", private(1, 2), private(1, 3), 400, 50),
            ("group_sends", group(1), group(2), 1000, 100),
        ] {
            let (limits, refusals) = limits();
            let mut send = || limits.send_to(to);
            let (passed, refusal) = drain(&mut send);
            assert_eq!((passed, refusal.code), (burst, Code::RateLimited));
            assert!(refusal.text.contains("conversation"), "{refusal}");
            assert!(counts(&refusals, limit, 1));
            assert_eq!(passed_in_a_minute(&mut send).await, 60 * rate);
            assert_eq!(limits.send_to(neighbour), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions_and_reads_of_a_user() {
        let (limits, refusals) = limits();
        let (passed, refusal) = drain(|| limits.question(user(1)));
        assert_eq!((passed, refusal.code), (200, Code::RateLimited));
        assert!(counts(&refusals, "user_questions", 1));
        assert_eq!(limits.question(user(2)), Ok(()));
        let minute = passed_in_a_minute(|| limits.question(user(1))).await;
        assert_eq!(minute, 60 * 50);
        let before = refusals.all();
        let (passed, refusal) = drain(|| limits.read(user(1)));
        assert_eq!((passed, refusal.code), (50, Code::RateLimited));
        let mut after = refusals.all();
        assert_eq!(after.remove(0), ("user_history_reads".to_owned(), 1));
        assert_eq!(after, before);
        assert!(limits.read(user(2)).is_ok());
        let minute = passed_in_a_minute(|| limits.read(user(1)).map(drop)).await;
        assert_eq!(minute, 60 * 10);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_of_a_station() {
        let (limits, refusals) = limits();
        let mut held = Vec::new();
        let (passed, refusal) = drain(|| {
            let reader = user(held.len() as i64 + 1);
            held.push(limits.read(reader)?);
            Ok(())
        });
        assert_eq!((passed, refusal.code), (512, Code::Unavailable));
        assert!(counts(&refusals, "history_reads", 1));
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
        held.pop();
        assert!(limits.read(user(9999)).is_ok());
    }
}
