//! The mailbox on Redis: one server, a master behind sentinels, or a cluster.
//!
//! **What lies where.** Every user belongs to one of 1024 buckets, all keys of a bucket bear its tag, and
//! whatever must happen in one step is one script that touches keys of one bucket (`keys.rs`, `lua/`).
//! A body and the number of mailboxes that wait for it are shared by the users of a bucket. Everything
//! has a time to live, so that what nobody asks for goes; what is kept, the policy says.
//!
//! **Steps.** Scripts read and check everything before they write, may be repeated, and set again what they
//! find half done. So a call whose answer was lost is simply made again (`crate::redis`).
//!
//! **Loss.** Redis may lose what it acknowledged: at a failover, at a restart, by FLUSHALL. Each bucket has an
//! epoch: a random marker and the replid of the master that it was made under. Where it is missing, or
//! the master is another, the next login or reassertion makes a new one; a session that was told another
//! marker is answered *restored*. Only these two look at it: a replid never comes back, so looking later
//! sees no less. At a failover that lost nothing, and where slots have moved, this is a false alarm and
//! costs a sync.
//!
//! **A slot that moves** lies on two servers, key by key. A script that names several keys is refused (TRYAGAIN)
//! until all are there and in one place. What scripts reach beside the keys they name may lie on the other server:
//! so a body that a page does not see is looked for once more under its own name, and counts as missing only then.
//! A count that is not seen stays as it is: the body goes with its time to live.
//!
//! **Denied lives** are hundreds in an installation of some age and met by few. So scripts are first called
//! without them, which is harmless: a session taken for alive keeps its platform from being stored for. Whoever
//! finds a denied life in the answer asks again, naming it.

mod auditor;
mod config;
mod keys;
mod login;
mod mail;
mod meetings;
mod route;
mod send;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use protocol::keys::bucket_of;
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, MailCursor, MailPage,
    MailboxPolicy, NewSession, Overflow, Policies, ReassertAnswer, RouteAnswer, RouteRequest,
    SessionCapacity, TooManySessions, Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionEntry, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId};

pub use self::config::{RedisConfig, RedisMode};
use self::keys::Keys;
use self::login::{Connected, Lives, Login};
use self::meetings::Meetings;
use self::route::Routed;
use super::{Audit, MailboxStore, ServerId};
use crate::clock::Entropy;
use crate::redis::failure::Failure;
use crate::redis::pool::Pool;
use crate::redis::{Connection, connect, reply, slots};
use crate::{Error, Result};

const SEAM: &str = "mailbox";

/// Questions of one login. Each names what the one before has met; of others' sessions, few come in between.
const LOGIN_ROUNDS: usize = 4;

/// [`MailboxStore`] on Redis.
pub struct RedisMailbox {
    config: RedisConfig,
    policies: Policies,
    keys: Keys,
    entropy: Arc<dyn Entropy>,
    connection: Connection,
}

impl RedisMailbox {
    /// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` when a master is not
    /// reached or runs something older than Redis 7.0.
    pub async fn connect(config: &RedisConfig, entropy: Arc<dyn Entropy>) -> Result<RedisMailbox> {
        config.check()?;
        Ok(RedisMailbox {
            policies: config.policies()?,
            keys: Keys::new(&config.key_prefix),
            config: config.clone(),
            entropy,
            connection: connect(SEAM, config).await?,
        })
    }

    /// The same with these sessions a platform, and not those that are usual.
    #[must_use]
    pub fn with_sessions(mut self, capacity: SessionCapacity) -> RedisMailbox {
        self.policies.sessions = capacity;
        self
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.connection.pool
    }

    /// Whether waiting mail is whole. Reads all of it.
    pub async fn audit(&self) -> Result<Audit> {
        Ok(auditor::audit(self.pool(), &self.keys).await?)
    }

    fn oldest_kept(&self, target: Target, now: Timestamp) -> i64 {
        route::oldest_kept(self.policies.of(target.platform), now)
    }

    fn login<'a>(&self, user: UserId, new: &'a NewSession, now: Timestamp) -> Login<'a> {
        Login {
            user,
            new,
            now,
            marker: self.entropy.next(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        failure.at(SEAM)
    }
}

#[async_trait]
impl MailboxStore for RedisMailbox {
    fn server(&self, user: UserId) -> ServerId {
        self.pool().server(slots::of_bucket(bucket_of(user)))
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let mut meetings = Meetings::of(requests.len());
        let mut earlier: Vec<Option<Routed>> = requests.iter().map(|_| None).collect();
        while let Some(round) = meetings.round() {
            let call =
                |&n: &usize| route::call(&self.keys, &self.policies, &requests[n], meetings.met(n));
            let calls: Vec<_> = round.iter().map(call).collect();
            for (n, told) in round.into_iter().zip(self.pool().run(&calls).await) {
                let mut routed = match told.and_then(route::answer) {
                    Ok(routed) => routed,
                    Err(failure) => {
                        meetings.answer(n, Err(failure.into()));
                        continue;
                    }
                };
                if let Some(earlier) = earlier[n].take() {
                    routed = routed.after(earlier);
                }
                let met: Vec<_> = route::met(&routed.answer.live, &requests[n])
                    .cloned()
                    .collect();
                if met.is_empty() {
                    meetings.answer(n, Ok(routed.answer));
                } else {
                    earlier[n] = Some(routed);
                    meetings.again(n, met);
                }
            }
        }
        meetings.answers()
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        let login = self.login(request.user, &request.entry, request.now);
        let displaces = SessionCapacity::overflow(request.entry.platform) == Overflow::Displace;
        let mut met = Lives::default();
        for _ in 0..LOGIN_ROUNDS {
            let call = login.connect(&self.keys, &self.policies, &met);
            let told = self.pool().ask(call).await?;
            let now_met = match login::connected(told, &request)? {
                Connected::Registered(answer) => return Ok(Ok(answer)),
                Connected::Full { met } => met,
            };
            // Sessions of ended lives leave room.
            if !displaces && now_met.denied.is_empty() {
                return Ok(Err(TooManySessions));
            }
            met.denied.extend(now_met.denied);
            met.living.extend(now_met.living);
        }
        let why = "the sessions of a platform changed under a login again and again";
        Err(Error::unavailable(SEAM, why))
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, NewSession)>,
        denied: Denied,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        let mut meetings = Meetings::of(sessions.len());
        while let Some(round) = meetings.round() {
            let call = |&n: &usize| {
                let (user, new) = &sessions[n];
                let login = self.login(*user, new, now);
                login.reassert(&self.keys, &self.policies, meetings.met(n))
            };
            let calls: Vec<_> = round.iter().map(call).collect();
            for (n, told) in round.into_iter().zip(self.pool().run(&calls).await) {
                match told.and_then(login::reasserted) {
                    Ok((answer, holders)) => match login::met(holders, &denied) {
                        met if met.is_empty() => meetings.answer(n, Ok(answer)),
                        met => meetings.again(n, met),
                    },
                    Err(failure) => meetings.answer(n, Err(failure.into())),
                }
            }
        }
        meetings.answers()
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        let calls: Vec<_> = sessions
            .iter()
            .map(|key| login::disconnect(&self.keys, key))
            .collect();
        let answers = self.pool().run(&calls).await.into_iter();
        answers
            .map(|told| Ok(reply::integer(told?).map(drop)?))
            .collect()
    }

    async fn sessions(&self, users: &[UserId], denied: Denied) -> Vec<Result<Vec<SessionEntry>>> {
        let call = |user: &UserId| session::ask(&self.keys, *user);
        let calls: Vec<_> = users.iter().map(call).collect();
        let told = self.pool().run(&calls).await.into_iter();
        told.map(|told| Ok(session::living(session::read_all(told?)?, &denied)))
            .collect()
    }

    async fn page(
        &self,
        target: Target,
        after: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        let kept = self.oldest_kept(target, now);
        let bytes_max = self.config.page_bytes_max;
        let call = mail::page(&self.keys, target, after, limit, kept, bytes_max);
        let seen = mail::seen(self.pool().ask(call).await?)?;
        let second_look = seen.second_look(&self.keys, bucket_of(target.user));
        Ok(seen.page(self.pool().run(&second_look).await)?)
    }

    async fn acknowledge(
        &self,
        acked: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>> {
        let mut calls = Vec::with_capacity(acked.len());
        let mut belongs = Vec::with_capacity(acked.len());
        for (n, (target, ids)) in acked.iter().enumerate() {
            for call in mail::acknowledge(&self.keys, *target, ids, now) {
                calls.push(call);
                belongs.push(n);
            }
        }
        let mut waited: Vec<Result<Vec<MessageId>>> =
            acked.iter().map(|_| Ok(Vec::new())).collect();
        for (n, told) in belongs.into_iter().zip(self.pool().run(&calls).await) {
            match told.and_then(mail::acknowledged) {
                Ok(mut ids) => {
                    if let Ok(waited) = &mut waited[n] {
                        waited.append(&mut ids);
                    }
                }
                Err(failure) => waited[n] = Err(failure.into()),
            }
        }
        waited
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.policies.of(platform)
    }

    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        let mut removed = 0;
        loop {
            let call = mail::trim(&self.keys, target, policy, now);
            let step = reply::integer(self.pool().ask(call).await?)?;
            removed += u32::try_from(step).unwrap_or(0);
            if step < mail::STEP as i64 {
                return Ok(removed);
            }
        }
    }

    async fn waiting(&self, target: Target) -> Result<u64> {
        let call = mail::waiting(&self.keys, target);
        let count = reply::integer(self.pool().ask(call).await?)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn find(
        &self,
        asked: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<Whereabouts>> {
        let call = |&(target, id): &(Target, MessageId)| {
            let kept = self.oldest_kept(target, now);
            mail::find(&self.keys, target, id, kept, now)
        };
        let calls: Vec<_> = asked.iter().map(call).collect();
        let told = self.pool().run(&calls).await.into_iter();
        told.map(|told| Ok(mail::found(told?)?)).collect()
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        _now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        let keep = self.config.dedupe_keep;
        let calls: Vec<_> = sends
            .iter()
            .map(|(key, offered)| send::begin(&self.keys, key, *offered, keep))
            .collect();
        let told = self.pool().run(&calls).await.into_iter();
        told.map(|told| Ok(send::begun(told?)?)).collect()
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        let keep = self.config.dedupe_keep;
        let calls: Vec<_> = sends
            .iter()
            .map(|(key, sent)| send::done(&self.keys, key, *sent, keep))
            .collect();
        for told in self.pool().run(&calls).await {
            reply::integer(told?)?;
        }
        Ok(())
    }

    async fn set_received(&self, received: Vec<(UserId, MessageId)>) -> Result<()> {
        let received = received.into_iter();
        let calls: Vec<_> = received
            .map(|(user, id)| mail::set_received(&self.keys, user, id))
            .collect();
        for told in self.pool().run(&calls).await {
            reply::integer(told?)?;
        }
        Ok(())
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        let call = mail::received(&self.keys, user);
        Ok(mail::received_is(self.pool().ask(call).await?)?)
    }
}
