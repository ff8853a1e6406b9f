//! Sessions and waiting messages of users, behind one seam because *look and store* is a single
//! step.
//!
//! Every call may be repeated without harm. The mailbox is an accelerator: losing all its data
//! loses no message, because history has them and every device syncs from its own cursors.

#[cfg(test)]
mod contract;
pub mod embedded;
#[cfg(test)]
mod random;
#[cfg(feature = "redis")]
pub mod redis;

use async_trait::async_trait;
use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, HeldSession, MailCursor,
    MailLocation, MailPage, MailboxPolicy, ReassertAnswer, RouteAnswer, RouteRequest,
    TooManySessions,
};
use protocol::message::Target;
use protocol::presence::{DeniedBoats, SessionEntry, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId};

use crate::Result;
use crate::hook::hooked;

pub use embedded::{EmbeddedMailbox, IntegrityCheck, MailboxConfig, PlatformConfig};
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisMailbox, RedisMode};

/// One of the servers that hold a mailbox; callers only compare ids, to see which calls share a
/// server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u64);

#[async_trait]
pub trait MailboxStore: Send + Sync {
    /// Server that currently answers for this user. A call whose users share one server waits for
    /// no other server.
    fn server(&self, user: UserId) -> ServerId;

    /// Handles each request in one atomic step: returns the live sessions (those not denied) and
    /// stores for platforms that have none or are forced. Requests for one user take effect in
    /// order.
    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>>;

    /// Registers a session. The same step removes the earlier session of its device and, if other
    /// devices already fill the platform's capacity, the oldest of theirs. Mail stored before the
    /// login is announced by `mail_waits`; a message routed after it finds the session. Bots
    /// displace nobody: if other devices fill the capacity on boats that are not denied, the login
    /// is refused and nothing is registered.
    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>>;

    /// Registers again the sessions a boat holds; one answer per session, in order. Sessions
    /// registered under an earlier life of the same boat are its own and move to the later life. A
    /// store that has lost them gets them back in the order of their logins, whoever comes first;
    /// otherwise nobody is displaced.
    async fn reassert(
        &self,
        sessions: Vec<(UserId, HeldSession)>,
        denied_boats: DeniedBoats,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>>;

    /// Removes exactly these sessions, unless a later life of their boat has since asserted them; a
    /// session that is no longer registered is no error. One answer per session, in order: an
    /// unavailable server fails only its own sessions.
    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>>;

    /// Live sessions of each user, in the order of `users`.
    async fn sessions(
        &self,
        users: &[UserId],
        denied_boats: DeniedBoats,
    ) -> Vec<Result<Vec<SessionEntry>>>;

    /// Reads waiting mail, oldest first, strictly after `cursor`; removes nothing.
    async fn page(
        &self,
        target: Target,
        cursor: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage>;

    /// Removes messages that devices acknowledged, and remembers them for a while so that a late
    /// retry does not store them again. Each answer, in order, lists the ids that were waiting.
    async fn acknowledge(
        &self,
        acks: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>>;

    /// Limits on mail kept for devices of a platform.
    fn policy(&self, platform: Platform) -> MailboxPolicy;

    /// Removes mail beyond the policy; returns the number of messages removed.
    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32>;

    /// Number of waiting messages.
    async fn waiting(&self, target: Target) -> Result<u64>;

    /// Locates each of these messages, in the order of `queries`, with one atomic lookup each.
    /// Changes nothing.
    async fn find(
        &self,
        queries: &[(Target, MessageId)],
        now: Timestamp,
    ) -> Vec<Result<MailLocation>>;

    /// Looks up the dedupe key of each send and, if it is new, marks it pending with the send
    /// offered. In order: a repeat within one call finds the first. The answer names the
    /// conversation of the first send, which may differ from that of the repeat.
    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>>;

    /// Marks sends as done once the log has them.
    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()>;

    /// Remembers for a while the newest message each user has received; never goes back.
    async fn set_received(&self, positions: Vec<(UserId, MessageId)>) -> Result<()>;

    /// Newest message the user is known to have received; `None` if unknown.
    async fn received(&self, user: UserId) -> Result<Option<MessageId>>;
}

hooked! { MailboxStore as "mailbox":
    by_hook server(user: UserId) -> ServerId;
    each write route_or_store(requests: Vec<RouteRequest>)
        by |request| request.user.get(), if |answer| !answer.stored_platforms.is_empty() => RouteAnswer;
    write connect(request: ConnectRequest) of [request.user.get()] => Result<ConnectAnswer, TooManySessions>;
    each write reassert(sessions: Vec<(UserId, HeldSession)>, denied: DeniedBoats, now: Timestamp)
        by |(user, _)| user.get(), if |answer| matches!(answer, ReassertAnswer::Restored { .. }) => ReassertAnswer;
    each write disconnect(sessions: Vec<SessionKey>) by |key| key.user.get() => ();
    each read sessions(users: &[UserId], denied: DeniedBoats) by |user| user.get() => Vec<SessionEntry>;
    read page(target: Target, after: Option<MailCursor>, limit: usize, now: Timestamp)
        of [target.user.get()] => MailPage;
    each write acknowledge(acked: Vec<(Target, Vec<MessageId>)>, now: Timestamp)
        by |(target, _)| target.user.get(), if |removed| !removed.is_empty() => Vec<MessageId>;
    plain policy(platform: Platform) -> MailboxPolicy;
    write trim(target: Target, policy: MailboxPolicy, now: Timestamp) of [target.user.get()] => u32;
    read waiting(target: Target) of [target.user.get()] => u64;
    each read find(asked: &[(Target, MessageId)], now: Timestamp) by |(target, _)| target.user.get() => MailLocation;
    each write dedupe_begin(sends: Vec<(DedupeKey, FirstSend)>, now: Timestamp)
        by |(key, _)| key.from.get() => DedupeAnswer;
    write dedupe_done(sends: Vec<(DedupeKey, FirstSend)>) of sends.iter().map(|(key, _)| key.from.get()) => ();
    write set_received(received: Vec<(UserId, MessageId)>) of received.iter().map(|(user, _)| user.get()) => ();
    read received(user: UserId) of [user.get()] => Option<MessageId>;
}
