//! Sessions and waiting messages of users: one seam, because *look and store* is one step.
//!
//! Everything here may be repeated without harm. It is an accelerator: a mailbox that lost all its data
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
    ConnectAnswer, ConnectRequest, DedupeAnswer, DedupeKey, FirstSend, MailCursor, MailPage,
    MailboxPolicy, NewSession, ReassertAnswer, RouteAnswer, RouteRequest, TooManySessions,
    Whereabouts,
};
use protocol::message::Target;
use protocol::presence::{Denied, SessionEntry, SessionKey};
use protocol::{MessageId, Platform, Timestamp, UserId};

use crate::Result;
use crate::hook::hooked;

pub use embedded::{Audit, EmbeddedMailbox, MailboxConfig, PlatformConfig};
#[cfg(feature = "redis")]
pub use redis::{RedisConfig, RedisMailbox, RedisMode};

/// One of the servers that a mailbox is kept on, as far as whoever asks cares: which questions go to the same one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u64);

#[async_trait]
pub trait MailboxStore: Send + Sync {
    /// Who answers for this user at present. A call that names users of one server waits for no other.
    fn server(&self, user: UserId) -> ServerId;

    /// For each request, in one atomic step: the live sessions (those not denied), and storing for
    /// platforms that have none or are forced. Requests for one user take effect in order.
    async fn route_or_store(&self, requests: Vec<RouteRequest>) -> Vec<Result<RouteAnswer>>;

    /// Registers a session and removes its device's earlier one and, where other devices have as many as the platform may
    /// have, the oldest of those, in one step; whatever was stored before is told of by `mail_waits`, whatever
    /// is routed after finds the session. Bots displace nobody: refused where other devices have as many as they
    /// may have, on boats that are not denied; then nothing is registered.
    async fn connect(
        &self,
        request: ConnectRequest,
    ) -> Result<Result<ConnectAnswer, TooManySessions>>;

    /// A boat says again what it holds. One answer a session, in order. What is registered under an
    /// earlier life of the same boat is its own, and goes over to the later one. Displaces nobody.
    async fn reassert(
        &self,
        sessions: Vec<(UserId, NewSession)>,
        denied: Denied,
        now: Timestamp,
    ) -> Vec<Result<ReassertAnswer>>;

    /// Removes exactly these sessions, unless a later life of their boat has asserted them since; what is
    /// no longer registered is no error. One answer a session, in order: a server that is away keeps back
    /// nobody else's.
    async fn disconnect(&self, sessions: Vec<SessionKey>) -> Vec<Result<()>>;

    /// The live sessions of each user, in order of the question.
    async fn sessions(&self, users: &[UserId], denied: Denied) -> Vec<Result<Vec<SessionEntry>>>;

    /// What waits, oldest first, strictly after `after`; removes nothing.
    async fn page(
        &self,
        target: Target,
        after: Option<MailCursor>,
        limit: usize,
        now: Timestamp,
    ) -> Result<MailPage>;

    /// Removes what devices acknowledged, and remembers it for a while, so that a late retry does not
    /// store it again. Answers each, in order, which of its ids were waiting.
    async fn acknowledge(
        &self,
        acked: Vec<(Target, Vec<MessageId>)>,
        now: Timestamp,
    ) -> Vec<Result<Vec<MessageId>>>;

    /// What is kept for devices of a platform.
    fn policy(&self, platform: Platform) -> MailboxPolicy;

    /// Removes what the policy no longer keeps; answers how many.
    async fn trim(&self, target: Target, policy: MailboxPolicy, now: Timestamp) -> Result<u32>;

    /// How many wait.
    async fn waiting(&self, target: Target) -> Result<u64>;

    /// What is known of each of these messages, in order of the question; each is one look. Changes nothing.
    async fn find(&self, asked: &[(Target, MessageId)], now: Timestamp)
    -> Vec<Result<Whereabouts>>;

    /// Looks up the dedupe key of each send and, where it is new, marks it pending as it is offered. In
    /// order: a repeat inside one call finds the first. The answer names the first send's conversation: it
    /// may be another than that of the send that asks.
    async fn dedupe_begin(
        &self,
        sends: Vec<(DedupeKey, FirstSend)>,
        now: Timestamp,
    ) -> Vec<Result<DedupeAnswer>>;

    /// The log has them.
    async fn dedupe_done(&self, sends: Vec<(DedupeKey, FirstSend)>) -> Result<()>;

    /// Remembers for a while how far users have received, by message; never goes back.
    async fn set_received(&self, received: Vec<(UserId, MessageId)>) -> Result<()>;

    /// How far; `None` where it is not known.
    async fn received(&self, user: UserId) -> Result<Option<MessageId>>;
}

hooked! { MailboxStore as "mailbox":
    by_hook server(user: UserId) -> ServerId;
    each write route_or_store(requests: Vec<RouteRequest>)
        by |request| request.user.get(), if |answer| !answer.stored.is_empty() => RouteAnswer;
    write connect(request: ConnectRequest) of [request.user.get()] => Result<ConnectAnswer, TooManySessions>;
    each write reassert(sessions: Vec<(UserId, NewSession)>, denied: Denied, now: Timestamp)
        by |(user, _)| user.get(), if |answer| matches!(answer, ReassertAnswer::Restored { .. }) => ReassertAnswer;
    each write disconnect(sessions: Vec<SessionKey>) by |key| key.user.get() => ();
    each read sessions(users: &[UserId], denied: Denied) by |user| user.get() => Vec<SessionEntry>;
    read page(target: Target, after: Option<MailCursor>, limit: usize, now: Timestamp)
        of [target.user.get()] => MailPage;
    each write acknowledge(acked: Vec<(Target, Vec<MessageId>)>, now: Timestamp)
        by |(target, _)| target.user.get(), if |removed| !removed.is_empty() => Vec<MessageId>;
    plain policy(platform: Platform) -> MailboxPolicy;
    write trim(target: Target, policy: MailboxPolicy, now: Timestamp) of [target.user.get()] => u32;
    read waiting(target: Target) of [target.user.get()] => u64;
    each read find(asked: &[(Target, MessageId)], now: Timestamp) by |(target, _)| target.user.get() => Whereabouts;
    each write dedupe_begin(sends: Vec<(DedupeKey, FirstSend)>, now: Timestamp)
        by |(key, _)| key.from.get() => DedupeAnswer;
    write dedupe_done(sends: Vec<(DedupeKey, FirstSend)>) of sends.iter().map(|(key, _)| key.from.get()) => ();
    write set_received(received: Vec<(UserId, MessageId)>) of received.iter().map(|(user, _)| user.get()) => ();
    read received(user: UserId) of [user.get()] => Option<MessageId>;
}
