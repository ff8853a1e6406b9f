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

/// Builds the call; `denied_lives` were found in an earlier answer and have ended.
pub(super) fn call(
    keys: &Keys,
    policies: &Policies,
    request: &RouteRequest,
    denied_lives: &[BoatLife],
) -> Call {
    let bucket = keys::bucket_of(request.user);
    let mut call = Call::script(bucket, ScriptName::RouteOrStore)
        .key(keys.sessions(request.user))
        .arg(score(request.now))
        .arg(session::lives_text(denied_lives))
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
            .arg(u8::from(request.forced_platforms.contains(&platform)))
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
    drops: Vec<(Platform, u32)>,
}

pub(super) fn answer(reply: Value) -> Result<RouteReply, Failure> {
    let [live, stored_platforms, acked_platforms, drop_counts] = reply::items(reply)?;
    let stored_platforms = platforms(stored_platforms)?;
    let count = |reply| Ok(u32::try_from(reply::integer(reply)?).unwrap_or(u32::MAX));
    let counts: Vec<u32> = (reply::list(drop_counts)?.into_iter())
        .map(count)
        .collect::<Result<_, Failure>>()?;
    Ok(RouteReply {
        drops: stored_platforms
            .iter()
            .copied()
            .zip(counts.iter().copied())
            .collect(),
        answer: RouteAnswer {
            live: session::read_all(live)?,
            stored_platforms,
            acknowledged_platforms: platforms(acked_platforms)?,
            dropped_count: counts.iter().sum(),
        },
    })
}

impl RouteReply {
    /// Merges the answer to an earlier attempt: its drops count, but the message itself is not
    /// counted twice.
    pub(super) fn merge(mut self, previous: RouteReply) -> RouteReply {
        for (platform, old_count) in previous.drops {
            match self.drops.iter_mut().find(|(p, _)| *p == platform) {
                Some((_, count)) => *count = old_count.max(*count),
                None => self.drops.push((platform, old_count)),
            }
        }
        self.answer.dropped_count = self.drops.iter().map(|(_, count)| count).sum();
        self
    }
}

/// Denied lives among these sessions.
pub(super) fn lives_to_name<'a>(
    live: &'a [SessionEntry],
    request: &'a RouteRequest,
) -> impl Iterator<Item = &'a BoatLife> {
    let lives = live.iter().map(|entry| &entry.life);
    lives.filter(|life| request.denied_boats.contains(*life))
}

fn platforms(reply: Value) -> Result<Vec<Platform>, Failure> {
    let platform = |reply| {
        let number: u8 = reply::number(reply)?;
        Platform::from_number(number)
            .ok_or_else(|| Failure::Reply(format!("no platform has number {number}")))
    };
    reply::list(reply)?.into_iter().map(platform).collect()
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
