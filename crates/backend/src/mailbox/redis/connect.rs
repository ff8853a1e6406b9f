//! Calls that register, reassert and remove sessions.

use std::collections::BTreeSet;

use protocol::mailbox::{
    ConnectAnswer, ConnectRequest, NewSession, Overflow, Policies, ReassertAnswer, SessionCapacity,
};
use protocol::message::Target;
use protocol::presence::{BoatLife, DeniedBoats, SessionEntry, SessionKey};
use protocol::{Timestamp, UserId, keys};
use redis::Value;

use super::keys::Keys;
use super::route::{oldest_kept, score};
use super::session;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::ScriptName;

/// Answered in place of a login number if the platform is full.
const FULL: &str = "full";

/// Lives of a platform's sessions that a login has encountered so far.
#[derive(Default)]
pub(super) struct Lives {
    pub(super) denied: Vec<BoatLife>,
    pub(super) living: Vec<BoatLife>,
}

impl Lives {
    pub(super) fn of(lives: impl IntoIterator<Item = BoatLife>, denied: &DeniedBoats) -> Lives {
        let (denied, living) = (lives.into_iter()).partition(|life| denied.contains(life));
        Lives { denied, living }
    }
}

/// Input of a login or a reassertion.
pub(super) struct Login<'a> {
    pub(super) user: UserId,
    pub(super) new: &'a NewSession,
    pub(super) now: Timestamp,
    /// Marker to set if the bucket has no valid one.
    pub(super) marker: u64,
}

impl Login<'_> {
    fn call(
        &self,
        name: ScriptName,
        keys: &Keys,
        policies: &Policies,
        lives: &Lives,
        login: Option<u64>,
    ) -> Call {
        let NewSession {
            key,
            platform,
            device,
        } = self.new;
        let bucket = keys::bucket_of(self.user);
        let target = Target {
            user: self.user,
            platform: *platform,
        };
        let overflow = match SessionCapacity::overflow(*platform) {
            Overflow::Displace => "displace",
            Overflow::Refuse => "refuse",
        };
        Call::script(bucket, name)
            .key(keys.sessions(self.user))
            .key(keys.waiting(target))
            .key(keys.epoch(bucket))
            .arg(score(self.now))
            .arg(session::lives_text(&lives.denied))
            .arg(key.session)
            .arg(platform.number())
            .arg(policies.sessions.of(*platform))
            .arg(session::incarnation(&key.life))
            .arg(&key.life.boat)
            .arg(device)
            .arg(oldest_kept(policies.of(*platform), self.now))
            // Clients without a marker send zero.
            .arg(self.marker.max(1))
            .arg(overflow)
            .arg(session::lives_text(&lives.living))
            .arg(login.unwrap_or(0))
    }

    pub(super) fn connect(&self, keys: &Keys, policies: &Policies, lives: &Lives) -> Call {
        self.call(ScriptName::Connect, keys, policies, lives, None)
    }

    /// Builds the call; `login` is the number of the session's login, if it is known.
    pub(super) fn reassert(
        &self,
        keys: &Keys,
        policies: &Policies,
        lives: &Lives,
        login: Option<u64>,
    ) -> Call {
        self.call(ScriptName::Reassert, keys, policies, lives, login)
    }
}

/// Outcome of a login.
pub(super) enum LoginOutcome {
    Registered(ConnectAnswer),
    /// The platform is at its capacity, with sessions of these lives; some may have ended.
    Full {
        occupants: Lives,
    },
}

/// Reads the answer to a login. Leaves out sessions of denied lives, which nobody needs to kick.
pub(super) fn parse_login(reply: Value, request: &ConnectRequest) -> Result<LoginOutcome, Failure> {
    let [login, marker, mail_waits, displaced, replaced] = reply::items(reply)?;
    if reply::text(login.clone())? == FULL {
        let sessions = session::read_all(displaced)?.into_iter();
        let lives: BTreeSet<BoatLife> = sessions.map(|entry| entry.life).collect();
        let holders = Lives::of(lives, &request.denied_boats);
        return Ok(LoginOutcome::Full { occupants: holders });
    }
    let keys = |reply| -> Result<Vec<SessionKey>, Failure> {
        let entries = session::living(session::read_all(reply)?, &request.denied_boats);
        let key = |entry: SessionEntry| entry.into_key(request.user);
        Ok(entries.into_iter().map(key).collect())
    };
    Ok(LoginOutcome::Registered(ConnectAnswer {
        login: reply::number(login)?,
        displaced_sessions: keys(displaced)?,
        replaced_sessions: keys(replaced)?,
        marker: reply::number(marker)?,
        mail_waits: reply::integer(mail_waits)? == 1,
    }))
}

/// Reads the answer to a reassertion, with the sessions that hold its place. Without an answer,
/// the reassertion would displace an earlier session: repeat the call, naming the lives of all
/// holders, because some of them may have ended.
pub(super) fn parse_reassert(
    reply: Value,
) -> Result<(Option<ReassertAnswer>, Vec<SessionEntry>), Failure> {
    let mut reply = reply::list(reply)?.into_iter();
    let mut next = || reply.next().unwrap_or(Value::Nil);
    let outcome = reply::text(next())?;
    let marker = reply::number(next())?;
    let mail_waits = reply::integer(next())? == 1;
    let answer = match outcome.as_str() {
        FULL => None,
        "known" => Some(ReassertAnswer::Known { mail_waits }),
        "restored" => Some(ReassertAnswer::Restored { marker, mail_waits }),
        "displaced" => Some(ReassertAnswer::Displaced),
        "replaced" => Some(ReassertAnswer::Replaced),
        other => return Err(Failure::Reply(format!("a session cannot be {other:?}"))),
    };
    let holders = session::read_all(Value::Array(reply.collect()))?;
    Ok((answer, holders))
}

/// Denied lives among the holders; the call must be repeated with them for a new decision.
pub(super) fn lives_to_name(
    holders: Vec<SessionEntry>,
    denied_boats: &DeniedBoats,
) -> Vec<BoatLife> {
    let lives = holders.into_iter().map(|holder| holder.life);
    let unique: BTreeSet<BoatLife> = lives.filter(|life| denied_boats.contains(life)).collect();
    unique.into_iter().collect()
}

pub(super) fn disconnect(keys: &Keys, key: &SessionKey) -> Call {
    Call::script(keys::bucket_of(key.user), ScriptName::Disconnect)
        .key(keys.sessions(key.user))
        .arg(key.session)
        .arg(&key.life.boat)
        .arg(session::incarnation(&key.life))
}
