//! Revocations of tokens: read from the store before the station is ready, then again every few
//! seconds. Sign-ins and assertions are checked against them, and boats ask for them.

use std::time::Duration;

use api::station::{Revoke, RevokedPage};
use backend::Backends;
use futures_util::StreamExt;
use futures_util::stream;
use metrics::gauge;
use parking_lot::{Mutex, RwLock};
use protocol::revocation::{
    Insertion, PAGE_SIZE, POLL_PAUSE, PageStart, Revocation, RevocationCursor, Revocations,
    STALE_AGE, refusal, stale_refusal,
};
use protocol::{Refusal, Timestamp, UserId};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::config::Config;
use crate::stores::within;

/// Rows of one question to the store.
const PAGE_ROWS: usize = 1000;
/// Hours read at the same time.
const MAX_CONCURRENT_HOURS: usize = 8;
/// Time for the whole first read: a million rows in one hour take half of it at 60 ms a question.
const FIRST_WITHIN: Duration = Duration::from_secs(120);

pub(crate) struct RevocationDoor {
    backends: Backends,
    deadline: Duration,
    retention: Duration,
    strict: bool,
    set: RwLock<Revocations>,
    cursor: Mutex<RevocationCursor>,
    /// Begin of the last read that succeeded.
    read_at: Mutex<Instant>,
}

impl RevocationDoor {
    pub(crate) fn new(backends: &Backends, config: &Config) -> RevocationDoor {
        RevocationDoor {
            backends: backends.clone(),
            deadline: config.store_deadline,
            retention: protocol::revocation::retention(config.auth.lifetime_max()),
            strict: config.auth.strict,
            set: RwLock::default(),
            cursor: Mutex::default(),
            read_at: Mutex::new(Instant::now()),
        }
    }

    /// Reads every revocation that may matter, before anybody is admitted: without them a station
    /// would admit users whom another one has signed out.
    ///
    /// # Errors
    /// A store that is away, or too slow.
    pub(crate) async fn load(&self) -> backend::Result<()> {
        timeout(FIRST_WITHIN, self.read()).await.unwrap_or_else(|_| {
            let known_count = self.set.read().len();
            let text = format!(
                "reading all revocations took longer than {FIRST_WITHIN:?} ({known_count} read so far): \
                 the CQL store is too slow; restart the station"
            );
            Err(backend::Error::unavailable("revocations", text))
        })
    }

    /// Reads again and again, for ever. A failed read is made good by the next.
    pub(crate) async fn follow(&self) {
        loop {
            sleep(POLL_PAUSE.draw(self.backends.entropy.next())).await;
            if let Err(error) = self.read().await {
                tracing::warn!(%error, source = %error.source, "cannot read revocations");
            }
            gauge!("station_revocations_age_seconds").set(self.age().as_secs_f64());
        }
    }

    /// Reads revocations that are new since the last read; the first read takes all that may
    /// matter.
    pub(crate) async fn read(&self) -> backend::Result<()> {
        let (started_at, now) = (Instant::now(), self.backends.clock.now());
        let window = self.cursor.lock().window(now, self.retention);
        let hours = window.hours.map(|hour| self.read_hour(hour, window.start));
        let mut results = stream::iter(hours).buffer_unordered(MAX_CONCURRENT_HOURS);
        let mut latest = None;
        while let Some(latest_in_hour) = results.next().await {
            latest = latest.max(latest_in_hour?);
        }
        self.cursor.lock().handle_read(now, latest);
        *self.read_at.lock() = started_at;
        while self.set.write().forget(now, self.retention) {
            yield_now().await;
        }
        gauge!("station_revocations").set(self.set.read().len() as f64);
        Ok(())
    }

    /// Reads the revocations of an hour, and returns the latest time among them.
    async fn read_hour(
        &self,
        hour: i64,
        lower_bound: Timestamp,
    ) -> backend::Result<Option<Timestamp>> {
        let (mut from, mut latest) = (PageStart::of(lower_bound), None);
        loop {
            let page = self.backends.revocations.page(hour, from, PAGE_ROWS);
            let rows = timeout(self.deadline, page).await;
            let rows = rows.unwrap_or_else(|_| Err(silence(self.deadline)))?;
            self.add(&rows);
            let Some(last) = rows.last() else {
                return Ok(latest);
            };
            latest = Some(last.at);
            if rows.len() < PAGE_ROWS {
                return Ok(latest);
            }
            from = PageStart::behind(last.at, last.user);
        }
    }

    fn add(&self, rows: &[Revocation]) {
        if rows.is_empty() {
            return;
        }
        let mut set = self.set.write();
        let is_surplus = |row: &&Revocation| set.insert((*row).into()) == Insertion::Full;
        let surplus = rows.iter().filter(is_surplus).count();
        drop(set);
        if surplus > 0 {
            metrics::counter!("station_revocations_dropped_total").increment(surplus as u64);
            tracing::error!(
                surplus,
                "more revoked users than a station can hold: sign tokens with new keys"
            );
        }
    }

    /// Time since the last read that succeeded.
    fn age(&self) -> Duration {
        self.read_at.lock().elapsed()
    }

    /// Refuses a token of this time if it is revoked, or, in strict mode, if it may be.
    pub(crate) fn check(&self, user: UserId, issued_at: Timestamp) -> Result<(), Refusal> {
        if self.set.read().refuses(user, issued_at) {
            metrics::counter!("station_tokens_revoked_total").increment(1);
            return Err(refusal());
        }
        let age = self.age();
        if self.strict && age >= STALE_AGE {
            Err(stale_refusal(age))
        } else {
            Ok(())
        }
    }

    /// Whether the token is revoked. A session that an older station admitted has no time of issue,
    /// and passes.
    pub(crate) fn refuses(&self, user: UserId, issued_at: Option<Timestamp>) -> bool {
        issued_at.is_some_and(|issued_at| self.set.read().refuses(user, issued_at))
    }

    /// Stores a revocation, and returns the time before which tokens are refused. This station
    /// knows it at once.
    pub(crate) async fn revoke(&self, revoke: Revoke) -> Result<Timestamp, Refusal> {
        let now = self.backends.clock.now();
        let revocation = Revocation {
            user: revoke.user,
            before: revoke.issued_before.unwrap_or(now),
            reason: revoke.reason,
            by: revoke.by,
            at: now,
        };
        revocation.check()?;
        self.set.read().admit(revocation.user)?;
        let addition = self.backends.revocations.add(&revocation, self.retention);
        within(self.deadline, addition).await?;
        self.add(std::slice::from_ref(&revocation));
        tracing::info!(user = %revocation.user, by = %revocation.by, "tokens were revoked");
        Ok(revocation.before)
    }

    /// A page of revocations, for boats.
    pub(crate) fn page(&self, from: PageStart) -> RevokedPage {
        // Taken before the set: revocations read meanwhile do no harm.
        let complete_until = self.cursor.lock().complete_until();
        let users = self.set.read().page(from, PAGE_SIZE);
        RevokedPage {
            more: users.len() == PAGE_SIZE,
            users,
            complete_until,
            retention: Some(self.retention),
        }
    }
}

fn silence(deadline: Duration) -> backend::Error {
    backend::Error::unavailable("revocations", format!("no answer within {deadline:?}"))
}
