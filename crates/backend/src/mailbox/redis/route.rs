//! Looks up sessions, and stores mail for platforms without one.

use std::time::Duration;

use protocol::mailbox::{ACKED_KEEP, MailboxPolicy, Policies, RouteAnswer, RouteRequest};
use protocol::message::Target;
use protocol::presence::{BoatLife, SessionEntry};
use protocol::{Platform, Timestamp, keys};
use redis::Value;

use super::keys::{Keys, member};
use super::session;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::ScriptName;

/// Extra life of keys beyond expiry: clocks differ, and the policy decides, not the key's time to
/// live.
const LINGER: Duration = Duration::from_secs(600);
/// Times beyond this are inexact as scores.
const TIME_MAX: i64 = 1 << 51;

/// Builds the call; `denied` are lives that were encountered and have ended.
pub(super) fn call(
    keys: &Keys,
    policies: &Policies,
    request: &RouteRequest,
    denied: &[BoatLife],
) -> Call {
    let bucket = keys::bucket_of(request.user);
    let mut call = Call::script(bucket, ScriptName::RouteOrStore)
        .key(keys.sessions(request.user))
        .arg(score(request.now))
        .arg(session::lives_text(denied))
        .arg(ACKED_KEEP.as_millis());
    let Some(mail) = &request.mail else {
        return call;
    };
    call = call
        .key(keys.body(bucket, mail.id))
        .key(keys.count(bucket, mail.id))
        .arg(member(mail.id))
        .arg(score(mail.accepted_at))
        .bytes(mail.body.clone());
    for &platform in &request.platforms {
        let target = Target {
            user: request.user,
            platform,
        };
        let policy = policies.of(platform);
        call = call
            .key(keys.waiting(target))
            .key(keys.mark(target))
            .arg(platform.number())
            .arg(u8::from(request.forced.contains(&platform)))
            .arg(oldest_kept(policy, request.now))
            .arg(count_max(policy))
            .arg(keep_until(policy, mail.accepted_at, request.now));
    }
    call
}

/// Answer to a request, with the messages dropped per platform.
pub(super) struct RouteReply {
    /// Lists all sessions found, including those of denied lives that the call did not name.
    pub(super) answer: RouteAnswer,
    dropped: Vec<(Platform, u32)>,
}

pub(super) fn answer(told: Value) -> Result<RouteReply, Failure> {
    let [live, stored, acknowledged, dropped] = reply::items(told)?;
    let stored = platforms(stored)?;
    let count = |told| Ok(u32::try_from(reply::integer(told)?).unwrap_or(u32::MAX));
    let counts: Vec<u32> = (reply::list(dropped)?.into_iter())
        .map(count)
        .collect::<Result<_, Failure>>()?;
    Ok(RouteReply {
        dropped: stored.iter().copied().zip(counts.iter().copied()).collect(),
        answer: RouteAnswer {
            live: session::read_all(live)?,
            stored,
            acknowledged: platforms(acknowledged)?,
            dropped: counts.iter().sum(),
        },
    })
}

impl RouteReply {
    /// Merges the answer to an earlier attempt: its drops count, but the message itself is not
    /// counted twice.
    pub(super) fn after(mut self, earlier: RouteReply) -> RouteReply {
        for (platform, before) in earlier.dropped {
            match self.dropped.iter_mut().find(|(p, _)| *p == platform) {
                Some((_, dropped)) => *dropped = before.max(*dropped),
                None => self.dropped.push((platform, before)),
            }
        }
        self.answer.dropped = self.dropped.iter().map(|(_, dropped)| dropped).sum();
        self
    }
}

/// Denied lives among these sessions.
pub(super) fn met<'a>(
    live: &'a [SessionEntry],
    request: &'a RouteRequest,
) -> impl Iterator<Item = &'a BoatLife> {
    let lives = live.iter().map(|entry| &entry.life);
    lives.filter(|life| request.denied.contains(*life))
}

fn platforms(told: Value) -> Result<Vec<Platform>, Failure> {
    let platform = |told| {
        let number: u8 = reply::number(told)?;
        Platform::from_number(number)
            .ok_or_else(|| Failure::Reply(format!("no platform has number {number}")))
    };
    reply::list(told)?.into_iter().map(platform).collect()
}

/// Converts a time to a score.
pub(super) fn score(time: Timestamp) -> i64 {
    time.millis().clamp(-TIME_MAX, TIME_MAX)
}

pub(super) fn oldest_kept(policy: MailboxPolicy, now: Timestamp) -> i64 {
    score(policy.oldest_kept(now))
}

pub(super) fn count_max(policy: MailboxPolicy) -> i64 {
    policy.count_max.map_or(-1, i64::from)
}

/// Time until which Redis keeps an entry and its body if nobody claims them.
fn keep_until(policy: MailboxPolicy, accepted_at: Timestamp, now: Timestamp) -> i64 {
    let expires = accepted_at + policy.expire;
    score(expires.max(now) + LINGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_outlives_its_expiry_a_little() {
        // proves S1-43 in part
        let policy = MailboxPolicy {
            expire: Duration::from_secs(60),
            count_max: None,
        };
        let at = Timestamp::from_millis;
        let linger = LINGER.as_millis() as i64;
        assert_eq!(keep_until(policy, at(5_000), at(6_000)), 65_000 + linger);
        assert_eq!(keep_until(policy, at(5_000), at(90_000)), 90_000 + linger);
        let for_ever = MailboxPolicy {
            expire: Duration::MAX,
            count_max: Some(3),
        };
        assert_eq!(keep_until(for_ever, at(5_000), at(6_000)), TIME_MAX);
        assert_eq!(oldest_kept(for_ever, at(0)), -TIME_MAX);
        assert_eq!([count_max(policy), count_max(for_ever)], [-1, 3]);
    }
}
