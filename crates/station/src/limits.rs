//! Rates of users and of conversations, and concurrent reads of history: each with its code and its
//! counter.
//!
//! A user has a rate at every station, and with several stations may reach a multiple of it: a
//! shared count would cost each send a round trip. A station takes twice its share of a
//! conversation's rate, because senders do not spread evenly: all stations together take double at
//! most.

use std::hash::Hash;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use backend::discovery::Directory;
use backend::rate_limit::{Rate, RateLimit};
use metrics::Counter;
use protocol::mailbox::TooManySessions;
use protocol::{Code, ConversationId, Platform, Refusal, UserId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::config::Config;

/// Shortest pause for a device whose sign-ins come too fast.
const SIGN_IN_PAUSE: Duration = Duration::from_secs(2);

/// Pause for a reader while history has too much to do.
const READ_PAUSE: Duration = Duration::from_secs(1);

/// One send, in halves.
const HALVES_PER_SEND: NonZeroU32 = NonZeroU32::new(2).expect("positive");

/// Limits of docs/operations/limits.md that a station enforces.
pub(crate) struct Limits {
    /// Sign-ins of a user's devices, and separately those of their bots.
    sign_ins: RateLimit<(UserId, bool)>,
    user_sends: RateLimit<UserId>,
    bot_sends: RateLimit<UserId>,
    private_sends: RateLimit<ConversationId>,
    group_sends: RateLimit<ConversationId>,
    questions: RateLimit<UserId>,
    user_reads: RateLimit<UserId>,
    reads: Arc<Semaphore>,
    reads_refused: Counter,
    sessions_refused: Counter,
    stations: watch::Receiver<Directory>,
}

impl Limits {
    pub(crate) fn new(config: &Config, stations: watch::Receiver<Directory>) -> Limits {
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
            private_sends: by_halves(
                "private_sends",
                config.private_sends_per_second,
                config.private_sends_burst,
            ),
            group_sends: by_halves(
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
            sessions_refused: metrics::counter!("limits_total", "limit" => "user_sessions"),
            stations,
        }
    }

    pub(crate) fn sign_in(&self, user: UserId, platform: Platform) -> Result<(), Refusal> {
        let refuse = |wait: Duration| too_much("you sign in too often", wait.max(SIGN_IN_PAUSE));
        let is_bot = platform == Platform::Bot;
        self.sign_ins.check((user, is_bot)).map_err(refuse)
    }

    /// Counts a refusal by the mailbox, which counts the sessions.
    pub(crate) fn sessions(&self, too_many: TooManySessions) -> Refusal {
        self.sessions_refused.increment(1);
        too_many.into()
    }

    pub(crate) fn take_user_send(&self, user: UserId, platform: Platform) -> Result<(), Refusal> {
        let rate = match platform {
            Platform::Bot => &self.bot_sends,
            _ => &self.user_sends,
        };
        let refuse = |wait| too_much("you send too much at once", wait);
        rate.check(user).map_err(refuse)
    }

    /// Takes a send to a conversation by a user who may send there: others take nothing from its
    /// rate.
    pub(crate) fn take_conversation_send(
        &self,
        conversation: ConversationId,
    ) -> Result<(), Refusal> {
        let rate = match conversation {
            ConversationId::Group(_) => &self.group_sends,
            ConversationId::Private { .. } | ConversationId::System(_) => &self.private_sends,
        };
        let refuse = |wait| too_much("too much is sent to this conversation at once", wait);
        let cost = send_cost(self.stations.borrow().len());
        let outcome = rate.check_cost(conversation, cost);
        outcome.map_err(refuse)
    }

    pub(crate) fn question(&self, user: UserId) -> Result<(), Refusal> {
        let refuse = |wait| too_much("you ask too much at once", wait);
        self.questions.check(user).map_err(refuse)
    }

    /// Takes a permit for a read of history, held until the read is done.
    pub(crate) fn read(&self, user: UserId) -> Result<OwnedSemaphorePermit, Refusal> {
        let refuse = |wait| too_much("you read too much history at once", wait);
        self.user_reads.check(user).map_err(refuse)?;
        let permit = self.reads.clone().try_acquire_owned();
        permit.map_err(|_| {
            self.reads_refused.increment(1);
            Refusal::new(Code::Unavailable, "history is overloaded").retry_after(READ_PAUSE)
        })
    }
}

fn by_second<K: Hash>(limit: &'static str, count: NonZeroU32, burst: NonZeroU32) -> RateLimit<K> {
    RateLimit::new(limit, Rate::per_second(count, burst))
}

/// A rate counted in halves of a send.
fn by_halves<K: Hash>(limit: &'static str, count: NonZeroU32, burst: NonZeroU32) -> RateLimit<K> {
    by_second(
        limit,
        count.saturating_mul(HALVES_PER_SEND),
        burst.saturating_mul(HALVES_PER_SEND),
    )
}

/// Cost of a send beside this many stations, in halves: one station, or each of two, has all of the
/// rate; each of n has two n-ths.
fn send_cost(stations: usize) -> NonZeroU32 {
    let stations = u32::try_from(stations).ok().and_then(NonZeroU32::new);
    stations.map_or(HALVES_PER_SEND, |stations| stations.max(HALVES_PER_SEND))
}

fn too_much(text: &str, wait: Duration) -> Refusal {
    Refusal::new(Code::RateLimited, text).retry_after(wait)
}

#[cfg(test)]
mod tests {
    use backend::discovery::{Instance, Role};
    use protocol::presence::BoatLife;
    use protocol::{BoatId, GroupId, Incarnation};
    use tokio::time::Instant;

    use super::*;
    use crate::tests::refusals::Refusals;

    fn user(number: i64) -> UserId {
        UserId::new(number).expect("positive")
    }

    fn limits() -> (Limits, Refusals) {
        let refusals = Refusals::default();
        let limits = || Limits::new(&Config::default(), watch::Sender::default().subscribe());
        (metrics::with_local_recorder(&refusals, limits), refusals)
    }

    fn private(one: i64, other: i64) -> ConversationId {
        ConversationId::private(user(one), user(other)).expect("two users")
    }

    /// Number of calls that pass at once, and the refusal of the next.
    fn drain<T>(mut check: impl FnMut() -> Result<T, Refusal>) -> (u32, Refusal) {
        let mut count = 0;
        loop {
            match check() {
                Ok(_) => count += 1,
                Err(refusal) => return (count, refusal),
            }
        }
    }

    /// Number of calls that pass in a minute if each waits for as long as it is asked to.
    async fn count_with_waits(mut check: impl FnMut() -> Result<(), Refusal>) -> u32 {
        let (end, mut count) = (Instant::now() + Duration::from_secs(60), 0);
        while Instant::now() < end {
            match check() {
                Ok(()) => count += 1,
                Err(refusal) => tokio::time::advance(refusal.retry_after.expect("a wait")).await,
            }
        }
        count
    }

    async fn count_per_minute(mut check: impl FnMut() -> Result<(), Refusal>) -> u32 {
        let mut count = 0;
        for _ in 0..60 {
            tokio::time::advance(Duration::from_secs(1)).await;
            count += drain(&mut check).0;
        }
        count
    }

    #[tokio::test(start_paused = true)]
    async fn sign_ins_of_a_user() {
        let (limits, refusals) = limits();
        let (count, refusal) = drain(|| limits.sign_in(user(1), Platform::Ios));
        assert_eq!((count, refusal.code), (20, Code::RateLimited));
        assert!(refusals.counted_only("user_sign_ins", 1));
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(2)));
        tokio::time::advance(Duration::from_millis(1500)).await;
        let refusal = limits
            .sign_in(user(1), Platform::Ios)
            .expect_err("half a second early");
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(2)));
        assert_eq!(
            limits.sign_in(user(2), Platform::Ios),
            Ok(()),
            "a neighbour"
        );
        // Bots that sign in again and again leave their user's devices alone.
        let (count, _) = drain(|| limits.sign_in(user(3), Platform::Bot));
        assert_eq!(count, 20);
        assert_eq!(limits.sign_in(user(3), Platform::Ios), Ok(()));
        tokio::time::advance(Duration::from_millis(500)).await;
        assert_eq!(drain(|| limits.sign_in(user(1), Platform::Ios)).0, 1);
        let minute = count_per_minute(|| limits.sign_in(user(1), Platform::Ios)).await;
        assert_eq!(minute, 30);
    }

    #[tokio::test(start_paused = true)]
    async fn sends_of_people_and_bots() {
        for (platform, limit, burst, rate, wait) in [
            (Platform::Web, "user_sends", 200, 20, 50),
            (Platform::Bot, "bot_sends", 1000, 200, 5),
        ] {
            let (limits, refusals) = limits();
            let mut send = || limits.take_user_send(user(1), platform);
            let (count, refusal) = drain(&mut send);
            assert_eq!((count, refusal.code), (burst, Code::RateLimited));
            assert_eq!(refusal.retry_after, Some(Duration::from_millis(wait)));
            assert!(refusals.counted_only(limit, 1));
            assert_eq!(count_per_minute(&mut send).await, 60 * rate);
            assert_eq!(limits.take_user_send(user(2), platform), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sessions_of_a_user_are_counted_where_they_are_refused() {
        let (limits, refusals) = limits();
        let refusal = limits.sessions(TooManySessions);
        assert_eq!(refusal.code, Code::TooManySessions);
        assert!(refusals.counted_only("user_sessions", 1));
    }

    #[tokio::test(start_paused = true)]
    async fn each_station_takes_twice_its_share_of_a_conversation() {
        let instance = |n: u64| Instance {
            role: Role::Station,
            life: BoatLife {
                boat: BoatId::new(&format!("station-{n}")).expect("short"),
                incarnation: Incarnation(n),
            },
            address: String::new(),
        };
        // Burst, and sends a minute: of all stations, and of each.
        for (stations, set, burst, a_minute) in [
            (1, 400, 400, 3000),
            (2, 400, 400, 3000),
            (4, 400, 200, 1500),
            (6, 400, 133, 1000),
            // A share of less than one send counts as one.
            (6, 2, 1, 1000),
            (50, 2, 1, 120),
            (50, 1, 1, 120),
        ] {
            let directory: Vec<_> = (0..stations).map(instance).collect();
            let directory = watch::Sender::new(Arc::new(directory));
            let config = Config {
                private_sends_burst: NonZeroU32::new(set).expect("positive"),
                ..Config::default()
            };
            let limits = Limits::new(&config, directory.subscribe());
            let mut send = || limits.take_conversation_send(private(1, 2));
            assert_eq!(drain(&mut send).0, burst, "{stations}");
            let count = count_with_waits(&mut send).await;
            assert!(count.abs_diff(a_minute) <= 1, "{stations}: {count}");
        }
    }

    // A busy bot leaves its user's own devices alone, and the other way round.
    #[tokio::test(start_paused = true)]
    async fn a_user_and_their_bot_have_rates_of_their_own() {
        let (limits, refusals) = limits();
        for _ in 0..1000 {
            assert_eq!(limits.take_user_send(user(1), Platform::Bot), Ok(()));
        }
        assert!(limits.take_user_send(user(1), Platform::Bot).is_err());
        assert!(refusals.counted_only("bot_sends", 1));
        assert_eq!(limits.take_user_send(user(1), Platform::Ios), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn sends_to_a_conversation() {
        let group = |number| ConversationId::Group(GroupId::new(number).expect("positive"));
        for (limit, to, neighbour, burst, rate) in [
            ("private_sends", private(1, 2), private(1, 3), 400, 50),
            ("group_sends", group(1), group(2), 1000, 100),
        ] {
            let (limits, refusals) = limits();
            let mut send = || limits.take_conversation_send(to);
            let (count, refusal) = drain(&mut send);
            assert_eq!((count, refusal.code), (burst, Code::RateLimited));
            assert!(refusal.text.contains("conversation"), "{refusal}");
            assert!(refusals.counted_only(limit, 1));
            assert_eq!(count_per_minute(&mut send).await, 60 * rate);
            assert_eq!(limits.take_conversation_send(neighbour), Ok(()));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn questions_and_reads_of_a_user() {
        let (limits, refusals) = limits();
        let (count, refusal) = drain(|| limits.question(user(1)));
        assert_eq!((count, refusal.code), (200, Code::RateLimited));
        assert!(refusals.counted_only("user_questions", 1));
        assert_eq!(limits.question(user(2)), Ok(()));
        let minute = count_per_minute(|| limits.question(user(1))).await;
        assert_eq!(minute, 60 * 50);
        let old_counts = refusals.all();
        let (count, refusal) = drain(|| limits.read(user(1)));
        assert_eq!((count, refusal.code), (50, Code::RateLimited));
        let mut new_counts = refusals.all();
        assert_eq!(new_counts.remove(0), ("user_history_reads".to_owned(), 1));
        assert_eq!(new_counts, old_counts);
        assert!(limits.read(user(2)).is_ok());
        let minute = count_per_minute(|| limits.read(user(1)).map(drop)).await;
        assert_eq!(minute, 60 * 10);
    }

    #[tokio::test(start_paused = true)]
    async fn reads_of_a_station() {
        let (limits, refusals) = limits();
        let mut permits = Vec::new();
        let (count, refusal) = drain(|| {
            let reader = user(permits.len() as i64 + 1);
            permits.push(limits.read(reader)?);
            Ok(())
        });
        assert_eq!((count, refusal.code), (512, Code::Unavailable));
        assert!(refusals.counted_only("history_reads", 1));
        assert_eq!(refusal.retry_after, Some(Duration::from_secs(1)));
        permits.pop();
        assert!(limits.read(user(9999)).is_ok());
    }
}
