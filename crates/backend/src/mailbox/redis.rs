//! The mailbox on Redis: one server, a master behind sentinels, or a cluster.
//!
//! **State.** Every user belongs to one of 1024 buckets, all keys of a bucket bear its tag, and
//! every atomic step is one script that touches keys of a single bucket (`keys.rs`, `lua/`). A
//! body, and the number of mailboxes that need it, are shared by the users of a bucket. Every key
//! has a time to live, so that unclaimed data goes away; retention itself is up to the policy.
//!
//! **Steps.** Scripts read and check everything before they write, may be repeated, and complete
//! any step they find half done. So a call whose answer was lost is simply repeated
//! (`crate::redis`).
//!
//! **Loss.** Redis may lose acknowledged writes: in a failover, in a restart, by FLUSHALL. Each
//! bucket has an epoch: a random marker and the replid of the master it was made under. If the
//! epoch is missing or names another master, the next login or reassertion makes a new one; a
//! session that was given another marker is answered *restored*. Only these two calls check the
//! epoch: a replid never comes back, so a later check sees no less. After a failover without loss,
//! and after slots have moved, this is a false alarm and costs a sync.
//!
//! **A moving slot** is split between two servers, key by key. A script that names several keys is
//! refused (TRYAGAIN) until all of them exist in one place. Keys that scripts reach beyond those
//! they name may be on the other server: a body missing from a page is looked up once more under
//! its own name, and counts as missing only then. A count that cannot be seen stays as it is: its
//! body goes with its time to live.
//!
//! **Denied lives** number in the hundreds in an older installation, and few sessions are on them.
//! So scripts first run without them, which is harmless: a session wrongly taken for live only
//! keeps its platform from being stored for. A caller that finds a denied life in the answer asks
//! again, naming it.

mod auditor;
mod config;
mod connect;
mod keys;
mod mail;
mod reroutes;
mod route;
mod send;
mod session;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use protocol::keys::bucket_of;
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, HeldSession, MailCursor,
    MailLocation, MailPage, MailboxPolicy, NewSession, Overflow, Policies, ReassertAnswer,
    RouteAnswer, RouteRequest, SessionCapacity, TooManySessions,
};
use protocol::message::Target;
use protocol::presence::{DeniedBoats, SessionEntry, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId};

pub use self::config::{RedisConfig, RedisMode};
use self::connect::{Lives, Login, LoginOutcome};
use self::keys::Keys;
use self::reroutes::Reroutes;
use self::route::RouteReply;
use super::embedded::DEDUPE_KEEP;
use super::{IntegrityCheck, MailboxStore, ServerId};
use crate::clock::Entropy;
use crate::redis::failure::Failure;
use crate::redis::pool::Pool;
use crate::redis::{RedisConnection, connect, reply, slots};
use crate::{Error, Result};

const SEAM: &str = "mailbox";

/// Maximum number of calls in one login. Each call names the lives found by the previous one; other
/// logins of the same user rarely come in between.
const LOGIN_ROUNDS: usize = 4;

/// [`MailboxStore`] on Redis.
pub struct RedisMailbox {
    config: RedisConfig,
    policies: Policies,
    keys: Keys,
    entropy: Arc<dyn Entropy>,
    connection: RedisConnection,
}

impl RedisMailbox {
    /// Connects to every master. `Conflict` on settings that cannot work, `Unavailable` if a master
    /// is unreachable or older than Redis 7.0.
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

    /// Replaces the default session capacity of the platforms.
    #[must_use]
    pub fn with_sessions(mut self, capacity: SessionCapacity) -> RedisMailbox {
        self.policies.sessions = capacity;
        self
    }

    fn pool(&self) -> &Arc<Pool> {
        &self.connection.pool
    }

    /// Checks that waiting mail is whole. Reads all of it.
    pub async fn audit(&self) -> Result<IntegrityCheck> {
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
        self.pool().server(slots::for_bucket(bucket_of(user)))
    }

    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>> {
        let mut reroutes = Reroutes::of(requests.len());
        let mut previous: Vec<Option<RouteReply>> = requests.iter().map(|_| None).collect();
        while let Some(round) = reroutes.round() {
            let call = |&n: &usize| {
                route::call(
                    &self.keys,
                    &self.policies,
                    &requests[n],
                    reroutes.lives_to_name(n),
                )
            };
            let calls: Vec<_> = round.iter().map(call).collect();
            for (n, result) in round.into_iter().zip(self.pool().run(&calls).await) {
                let mut reply = match result.and_then(route::answer) {
                    Ok(reply) => reply,
                    Err(failure) => {
                        reroutes.answer(n, Err(failure.into()));
                        continue;
                    }
                };
                if let Some(previous) = previous[n].take() {
                    reply = reply.merge(previous);
                }
                let denied_lives: Vec<_> = route::lives_to_name(&reply.answer.live, &requests[n])
                    .cloned()
                    .collect();
                if denied_lives.is_empty() {
                    reroutes.answer(n, Ok(reply.answer));
                } else {
                    previous[n] = Some(reply);
                    reroutes.retry(n, denied_lives);
                }
            }
        }
        reroutes.answers()
    }

    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>> {
        let login = self.login(request.user, &request.entry, request.now);
        let displaces = SessionCapacity::overflow(request.entry.platform) == Overflow::Displace;
        let mut lives = Lives::default();
        for _ in 0..LOGIN_ROUNDS {
            let call = login.connect(&self.keys, &self.policies, &lives);
            let reply = self.pool().ask(call).await?;
            let new_lives = match connect::parse_login(reply, &request)? {
                LoginOutcome::Registered(answer) => return Ok(Ok(answer)),
                LoginOutcome::Full { occupants: lives } => lives,
            };
            // Sessions of ended lives leave room.
            if !displaces && new_lives.denied.is_empty() {
                return Ok(Err(TooManySessions));
            }
            lives.denied.extend(new_lives.denied);
            lives.living.extend(new_lives.living);
        }
        let why = "gave up a sign-in: the sessions of the platform kept changing";
        Err(Error::unavailable(SEAM, why))
    }

    async fn reassert(
        &self,
        sessions: Vec<(UserId, HeldSession)>,
        denied_boats: DeniedBoats,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>> {
        let mut reroutes = Reroutes::of(sessions.len());
        while let Some(round) = reroutes.round() {
            let call = |&n: &usize| {
                let (user, held_session) = &sessions[n];
                let login = self.login(*user, &held_session.session, now);
                let lives = Lives::of(reroutes.lives_to_name(n).iter().cloned(), &denied_boats);
                login.reassert(&self.keys, &self.policies, &lives, held_session.login(now))
            };
            let calls: Vec<_> = round.iter().map(call).collect();
            for (n, result) in round.into_iter().zip(self.pool().run(&calls).await) {
                match result.and_then(connect::parse_reassert) {
                    Ok((Some(answer), holders)) => {
                        match connect::lives_to_name(holders, &denied_boats) {
                            denied_lives if denied_lives.is_empty() => {
                                reroutes.answer(n, Ok(answer))
                            }
                            denied_lives => reroutes.retry(n, denied_lives),
                        }
                    }
                    // Some holders may have ended: then no earlier session need be displaced.
                    Ok((None, holders)) => {
                        reroutes.retry(n, holders.into_iter().map(|holder| holder.life));
                    }
                    Err(failure) => reroutes.answer(n, Err(failure.into())),
                }
            }
        }
        reroutes.answers()
    }

    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>> {
        let calls: Vec<_> = sessions
            .iter()
            .map(|key| connect::disconnect(&self.keys, key))
            .collect();
        let answers = self.pool().run(&calls).await.into_iter();
        answers
            .map(|result| Ok(reply::integer(result?).map(drop)?))
            .collect()
    }

    async fn sessions(
        &self,
        users: &[UserId],
        denied_boats: DeniedBoats,
    ) -> Vec<Result<Vec<SessionEntry>>> {
        let call = |user: &UserId| session::ask(&self.keys, *user);
        let calls: Vec<_> = users.iter().map(call).collect();
        let reply = self.pool().run(&calls).await.into_iter();
        reply
            .map(|reply| Ok(session::living(session::read_all(reply?)?, &denied_boats)))
            .collect()
    }

    async fn page(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage> {
        let oldest_kept = self.oldest_kept(target, now);
        let bytes_max = self.config.page_bytes_max;
        let call = mail::page(&self.keys, target, cursor, limit, oldest_kept, bytes_max);
        let page_read = mail::parse_page(self.pool().ask(call).await?)?;
        let second_reads = page_read.second_look(&self.keys, bucket_of(target.user));
        Ok(page_read.page(self.pool().run(&second_reads).await)?)
    }

    async fn acknowledge(
        &self,
        acks: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>> {
        let mut calls = Vec::with_capacity(acks.len());
        let mut indices = Vec::with_capacity(acks.len());
        for (n, (target, ids)) in acks.iter().enumerate() {
            for call in mail::acknowledge(&self.keys, *target, ids, now) {
                calls.push(call);
                indices.push(n);
            }
        }
        let mut waiting_ids: Vec<Result<Vec<MessageId>>> =
            acks.iter().map(|_| Ok(Vec::new())).collect();
        for (n, result) in indices.into_iter().zip(self.pool().run(&calls).await) {
            match result.and_then(mail::parse_acknowledged) {
                Ok(mut ids) => {
                    if let Ok(waiting_ids) = &mut waiting_ids[n] {
                        waiting_ids.append(&mut ids);
                    }
                }
                Err(failure) => waiting_ids[n] = Err(failure.into()),
            }
        }
        waiting_ids
    }

    fn policy(&self, platform: Platform) -> MailboxPolicy {
        self.policies.of(platform)
    }

    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32> {
        let mut removed_count = 0;
        loop {
            let call = mail::trim(&self.keys, target, policy, now);
            let step = reply::integer(self.pool().ask(call).await?)?;
            removed_count += u32::try_from(step).unwrap_or(0);
            if step < mail::STEP as i64 {
                return Ok(removed_count);
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
        queries: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<MailLocation>> {
        let call = |&(target, id): &(Target, MessageId)| {
            let oldest_kept = self.oldest_kept(target, now);
            mail::find(&self.keys, target, id, oldest_kept, now)
        };
        let calls: Vec<_> = queries.iter().map(call).collect();
        let result = self.pool().run(&calls).await.into_iter();
        result
            .map(|result| Ok(mail::parse_location(result?)?))
            .collect()
    }

    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        _now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>> {
        let calls: Vec<_> = sends
            .iter()
            .map(|(key, first_send)| send::begin(&self.keys, key, *first_send, DEDUPE_KEEP))
            .collect();
        let result = self.pool().run(&calls).await.into_iter();
        result
            .map(|result| Ok(send::parse_begin(result?)?))
            .collect()
    }

    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()> {
        let calls: Vec<_> = sends
            .iter()
            .map(|(key, first_send)| send::done(&self.keys, key, *first_send, DEDUPE_KEEP))
            .collect();
        for result in self.pool().run(&calls).await {
            reply::integer(result?)?;
        }
        Ok(())
    }

    async fn set_received(&self, positions: Vec<(UserId, MessageId)>) -> Result<()> {
        let positions = positions.into_iter();
        let calls: Vec<_> = positions
            .map(|(user, id)| mail::set_received(&self.keys, user, id))
            .collect();
        for result in self.pool().run(&calls).await {
            reply::integer(result?)?;
        }
        Ok(())
    }

    async fn received(&self, user: UserId) -> Result<Option<MessageId>> {
        let call = mail::received(&self.keys, user);
        Ok(mail::parse_received(self.pool().ask(call).await?)?)
    }
}
