//! A session in Redis: session → platform, incarnation, login, marker, boat and device, one per
//! line. Names contain no control characters, so lines are unambiguous whatever else a name
//! contains.

use protocol::keys::bucket_of;
use protocol::presence::{BoatLife, DeniedBoats, SessionEntry};
use protocol::{BoatId, Incarnation, Platform, SessionId, UserId};
use redis::Value;

use super::keys::Keys;
use crate::redis::call::Call;
use crate::redis::failure::Failure;
use crate::redis::reply;

/// Field of the hash with the last login number, the only one that is no session.
const LAST: &str = "last";

pub(super) fn ask(keys: &Keys, user: UserId) -> Call {
    Call::command(bucket_of(user), "HGETALL").key(keys.sessions(user))
}

/// Text form of an incarnation, which scripts compare.
pub(super) fn incarnation(life: &BoatLife) -> String {
    format!("{:020}", life.incarnation.0)
}

/// Text form of lives, which scripts search.
pub(super) fn lives_text<'a>(lives: impl IntoIterator<Item = &'a BoatLife>) -> String {
    let life = |life: &BoatLife| format!("\u{1}{}\n{}\u{1}", life.boat, incarnation(life));
    lives.into_iter().map(life).collect()
}

/// Reads a flat list of session, value, … into login order.
pub(super) fn read_all(reply: Value) -> Result<Vec<SessionEntry>, Failure> {
    let mut entries = Vec::new();
    let mut reply = reply::list(reply)?.into_iter();
    while let (Some(field), Some(value)) = (reply.next(), reply.next()) {
        let field = reply::text(field)?;
        if field != LAST {
            entries.push(read(&field, &reply::text(value)?)?);
        }
    }
    entries.sort_by_key(|entry| entry.login);
    Ok(entries)
}

fn read(field: &str, value: &str) -> Result<SessionEntry, Failure> {
    parse(field, value)
        .ok_or_else(|| Failure::Reply(format!("session {field} has an invalid value {value:?}")))
}

fn parse(field: &str, value: &str) -> Option<SessionEntry> {
    let mut lines = value.split('\n');
    let platform = Platform::from_number(lines.next()?.parse().ok()?)?;
    let incarnation = Incarnation(lines.next()?.parse().ok()?);
    let login = lines.next()?.parse().ok()?;
    let _marker = lines.next()?;
    let boat = BoatId::new(lines.next()?).ok()?;
    Some(SessionEntry {
        session: SessionId::new(field.parse().ok()?).ok()?,
        platform,
        life: BoatLife { boat, incarnation },
        login,
    })
}

/// Keeps the sessions whose boat is not known to have ended.
pub(super) fn living(
    mut entries: Vec<SessionEntry>,
    denied_boats: &DeniedBoats,
) -> Vec<SessionEntry> {
    if !denied_boats.is_empty() {
        entries.retain(|entry| !denied_boats.contains(&entry.life));
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    #[test]
    fn names_may_hold_separators() {
        // S1, pitfall A.
        let value = "1\n00000000000000000007\n1800000000000\n5\nios-boat|{b0001}\nphone-1";
        let items = vec![text("last"), text("1800000000000"), text("12"), text(value)];
        let entries = read_all(Value::Array(items)).expect("a session");
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].life.boat.as_str(), "ios-boat|{b0001}");
        assert_eq!(entries[0].life.incarnation, Incarnation(7));
    }

    #[test]
    fn malformed_sessions_are_rejected() {
        for value in [
            "",
            "ios-boat",
            "9\n1\n1\n1\nboat\nphone",
            "1\n-1\n1\n1\nboat\nphone",
        ] {
            assert!(read("12", value).is_err(), "{value:?}");
        }
    }
}
