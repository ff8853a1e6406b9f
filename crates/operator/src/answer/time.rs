//! Times, for programs and for people.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use protocol::Timestamp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Last millisecond that has a text: the end of year 9999.
const LAST: i64 = 253_402_300_799_999;

/// A time. Written `{"utc": "2026-11-27T17:05:37.123Z", "ms": 1795799137123}`; read from that, from
/// milliseconds since 1970, and from RFC 3339. Times before 1970 have the text of its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(Timestamp);

impl Time {
    pub const fn from_ms(ms: i64) -> Time {
        Time(Timestamp::from_millis(ms))
    }

    /// Milliseconds since 1970.
    pub const fn ms(self) -> i64 {
        self.0.millis()
    }

    pub const fn at(self) -> Timestamp {
        self.0
    }
}

impl From<Timestamp> for Time {
    fn from(at: Timestamp) -> Time {
        Time(at)
    }
}

impl From<Time> for Timestamp {
    fn from(time: Time) -> Timestamp {
        time.0
    }
}

/// RFC 3339 with milliseconds: `2026-11-27T17:05:37.123Z`.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_rfc3339_millis(to_system_time(self.0)).fmt(f)
    }
}

/// Formats a time to the second, for people: `2026-03-01T09:00:00Z`.
pub fn utc(at: impl Into<Timestamp>) -> String {
    humantime::format_rfc3339_seconds(to_system_time(at.into())).to_string()
}

fn to_system_time(at: Timestamp) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(at.millis().clamp(0, LAST) as u64)
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Time, String> {
        let ms = text.parse().ok().or_else(|| parse_rfc3339(text));
        ms.map(Time::from_ms).ok_or_else(|| {
            format!("{text:?} is not a time: use milliseconds since 1970, or 2026-03-01T09:00:00Z")
        })
    }
}

/// Milliseconds since 1970 at a time with `Z`, with an offset, or with neither, which is UTC.
fn parse_rfc3339(text: &str) -> Option<i64> {
    let (local, offset_ms) = split_offset(text)?;
    let since_1970 = humantime::parse_rfc3339_weak(local).ok()?;
    let since_1970 = since_1970.duration_since(UNIX_EPOCH).ok()?;
    i64::try_from(since_1970.as_millis())
        .ok()?
        .checked_sub(offset_ms)
}

/// Splits `2026-03-01T09:00:00+01:00` into the time there and the milliseconds it is ahead of UTC.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let sign = text.char_indices().rev().nth("00:00".len());
    let Some((at, sign @ ('+' | '-'))) = sign else {
        return Some((text, 0));
    };
    let (hours, minutes) = text[at + 1..].split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    if !(0..24).contains(&hours) || !(0..60).contains(&minutes) {
        return None;
    }
    let offset_ms = (hours * 60 + minutes) * 60_000;
    Some((
        &text[..at],
        if sign == '+' { offset_ms } else { -offset_ms },
    ))
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut time = to.serialize_struct("Time", 2)?;
        time.serialize_field("utc", &self.to_string())?;
        time.serialize_field("ms", &self.ms())?;
        time.end()
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Time, D::Error> {
        from.deserialize_any(AnyForm)
    }
}

struct AnyForm;

impl<'de> Visitor<'de> for AnyForm {
    type Value = Time;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("milliseconds since 1970, or a time such as 2026-03-01T09:00:00Z")
    }

    fn visit_i64<E: de::Error>(self, ms: i64) -> Result<Time, E> {
        Ok(Time::from_ms(ms))
    }

    fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Time, E> {
        i64::try_from(ms).map(Time::from_ms).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
        text.parse().map_err(E::custom)
    }

    /// Reads the answers' own form. The milliseconds count if both are there.
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Time, A::Error> {
        let (mut ms, mut text) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "ms" => ms = Some(map.next_value::<i64>()?),
                "utc" => text = Some(map.next_value::<String>()?),
                _ => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        match (ms, text) {
            (Some(ms), _) => Ok(Time::from_ms(ms)),
            (None, Some(text)) => text.parse().map_err(de::Error::custom),
            (None, None) => Err(de::Error::missing_field("ms")),
        }
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let schema = json_schema!({
            "type": "object",
            "description": "A time, for people and for programs.",
            "properties": {
                "utc": {
                    "type": "string",
                    "format": "date-time",
                    "description": "RFC 3339, with milliseconds.",
                },
                "ms": {
                    "type": "integer",
                    "format": "int64",
                    "description": "Milliseconds since 1970.",
                },
            },
            "required": ["utc", "ms"],
        });
        if generator.contract().is_serialize() {
            schema
        } else {
            json_schema!({
                "description": "A time: RFC 3339, milliseconds since 1970, or as answers write it.",
                "anyOf": [
                    { "type": "string", "format": "date-time" },
                    { "type": "integer", "format": "int64" },
                    schema,
                ],
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_795_799_137_123;
    const TEXT: &str = "2026-11-27T17:05:37.123Z";

    fn read(json: &str) -> Result<Time, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn a_time_is_written_for_people_and_for_programs() {
        let json = serde_json::to_string(&Time::from_ms(MS)).expect("JSON");
        assert_eq!(json, format!(r#"{{"utc":"{TEXT}","ms":{MS}}}"#));
        assert_eq!(utc(Timestamp::from_millis(MS)), "2026-11-27T17:05:37Z");
    }

    #[test]
    fn a_time_is_read_from_all_its_forms() {
        for json in [
            format!(r#"{{"utc":"{TEXT}","ms":{MS}}}"#),
            format!(r#"{{"ms":{MS}}}"#),
            format!(r#"{{"utc":"{TEXT}"}}"#),
            format!("{MS}"),
            format!(r#""{MS}""#),
            format!(r#""{TEXT}""#),
            r#""2026-11-27T18:35:37.123+01:30""#.to_owned(),
            r#""2026-11-27T12:05:37.123-05:00""#.to_owned(),
            r#""2026-11-27 17:05:37.123""#.to_owned(),
        ] {
            assert_eq!(read(&json).expect(&json).ms(), MS, "{json}");
        }
        for wrong in [
            "{}",
            r#""yesterday""#,
            r#""2026-11-27""#,
            r#""2026-11-27T17:05:37+24:00""#,
            "1.5",
            "null",
            "18446744073709551615",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    // Requests may hold any number.
    #[test]
    fn every_number_has_a_text_and_stays_itself() {
        for ms in [i64::MIN, -1, 0, LAST, LAST + 1, i64::MAX] {
            let json = serde_json::to_string(&Time::from_ms(ms)).expect("JSON");
            assert_eq!(read(&json).expect(&json).ms(), ms);
        }
        assert_eq!(Time::from_ms(-1).to_string(), "1970-01-01T00:00:00.000Z");
        let last = Time::from_ms(i64::MAX).to_string();
        assert_eq!(last, "9999-12-31T23:59:59.999Z");
    }
}
