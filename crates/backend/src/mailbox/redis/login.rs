//! Sessions come, are said again, and go.

use protocol::mailbox::{ConnectAnswer, ConnectRequest, NewSession, Policies, ReassertAnswer};
use protocol::message::Target;
use protocol::presence::{BoatLife, Denied, SessionEntry, SessionKey};
use protocol::{Timestamp, UserId, keys};
use redis::Value;

use super::keys::Keys;
use super::route::{oldest_kept, score};
use super::session;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;
use crate::redis::scripts::Name;

/// In the place of a login number.
const FULL: &str = "full";

/// What a login and a reassertion are made of.
pub(super) struct Login<'a> {
    pub(super) user: UserId,
    pub(super) new: &'a NewSession,
    pub(super) now: Timestamp,
    /// The marker to be, where the bucket has none that counts.
    pub(super) marker: u64,
}

impl Login<'_> {
    fn call(&self, name: Name, keys: &Keys, policies: &Policies, denied: &[BoatLife]) -> Call {
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
        Call::script(bucket, name)
            .key(keys.sessions(self.user))
            .key(keys.waiting(target))
            .key(keys.epoch(bucket))
            .arg(score(self.now))
            .arg(session::denied_text(denied))
            .arg(key.session)
            .arg(platform.number())
            .arg(platform.sessions_max())
            .arg(session::incarnation(&key.life))
            .arg(&key.life.boat)
            .arg(device)
            .arg(oldest_kept(policies.of(*platform), self.now))
            // Zero is what a client without a marker says.
            .arg(self.marker.max(1))
    }

    /// `denied` are lives that were met and have ended.
    pub(super) fn connect(&self, keys: &Keys, policies: &Policies, denied: &[BoatLife]) -> Call {
        self.call(Name::Connect, keys, policies, denied)
    }

    /// As for `connect`.
    pub(super) fn reassert(&self, keys: &Keys, policies: &Policies, denied: &[BoatLife]) -> Call {
        self.call(Name::Reassert, keys, policies, denied)
    }
}

/// The outcome of a login.
pub(super) enum Connected {
    Registered(ConnectAnswer),
    /// The platform has as many sessions as it may; some are perhaps of lives that have ended.
    Full {
        denied: Vec<BoatLife>,
    },
}

/// Sessions of denied lives ended, and nobody is told.
pub(super) fn connected(told: Value, request: &ConnectRequest) -> Result<Connected, Failure> {
    let [login, marker, mail_waits, displaced, replaced] = reply::items(told)?;
    if reply::text(login.clone())? == FULL {
        let held = session::read_all(displaced)?.into_iter();
        let mut denied: Vec<BoatLife> = held.map(|entry| entry.life).collect();
        denied.retain(|life| request.denied.contains(life));
        denied.sort_unstable();
        denied.dedup();
        return Ok(Connected::Full { denied });
    }
    let keys = |told| -> Result<Vec<SessionKey>, Failure> {
        let ended = session::living(session::read_all(told)?, &request.denied);
        let key = |entry: SessionEntry| entry.into_key(request.user);
        Ok(ended.into_iter().map(key).collect())
    };
    Ok(Connected::Registered(ConnectAnswer {
        login: reply::number(login)?,
        displaced: keys(displaced)?,
        replaced: keys(replaced)?,
        marker: reply::number(marker)?,
        mail_waits: reply::integer(mail_waits)? == 1,
    }))
}

/// What a boat is told, and the session that holds the platform in its place.
pub(super) fn reasserted(told: Value) -> Result<(ReassertAnswer, Option<SessionEntry>), Failure> {
    let mut told = reply::list(told)?.into_iter();
    let mut next = || told.next().unwrap_or(Value::Nil);
    let outcome = reply::text(next())?;
    let marker = reply::number(next())?;
    let mail_waits = reply::integer(next())? == 1;
    let answer = match outcome.as_str() {
        "known" => ReassertAnswer::Known { mail_waits },
        "restored" => ReassertAnswer::Restored { marker, mail_waits },
        "displaced" => ReassertAnswer::Displaced,
        "replaced" => ReassertAnswer::Replaced,
        other => return Err(Failure::Reply(format!("a session cannot be {other:?}"))),
    };
    let holder = session::read_all(Value::Array(told.collect()))?.pop();
    Ok((answer, holder))
}

/// The life that must be known to have ended for this to be decided anew.
pub(super) fn met<'a>(holder: &'a Option<SessionEntry>, denied: &Denied) -> Option<&'a BoatLife> {
    let life = holder.as_ref().map(|holder| &holder.life);
    life.filter(|life| denied.contains(*life))
}

pub(super) fn disconnect(keys: &Keys, key: &SessionKey) -> Call {
    Call::script(keys::bucket_of(key.user), Name::Disconnect)
        .key(keys.sessions(key.user))
        .arg(key.session)
        .arg(&key.life.boat)
        .arg(session::incarnation(&key.life))
}
