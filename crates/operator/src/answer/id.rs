//! Ids as text, for `#[serde(with = …)]`: a number of 64 bits is cut to 53 where numbers are
//! floating-point, as in JavaScript. Numbers are read, too.

use std::fmt::Display;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serializer, de};

/// An id as text or as a number.
#[derive(Deserialize)]
#[serde(untagged)]
enum IdInput {
    Number(i64),
    Large(u64),
    Text(String),
}

impl IdInput {
    fn read<T, E>(self) -> Result<T, E>
    where
        T: FromStr<Err: Display>,
        E: de::Error,
    {
        let text = match self {
            IdInput::Number(number) => number.to_string(),
            IdInput::Large(number) => number.to_string(),
            IdInput::Text(text) => text,
        };
        let read = text.parse();
        read.map_err(|error| E::custom(format!("{text:?}: {error}")))
    }
}

pub fn serialize<T: Display, S: Serializer>(id: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(id)
}

pub fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    IdInput::deserialize(from)?.read()
}

/// The same for an id that may be missing.
pub mod or_none {
    use std::fmt::Display;
    use std::str::FromStr;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::IdInput;

    pub fn serialize<T: Display, S: Serializer>(id: &Option<T>, to: S) -> Result<S::Ok, S::Error> {
        id.as_ref().map(ToString::to_string).serialize(to)
    }

    pub fn deserialize<'de, T, D>(from: D) -> Result<Option<T>, D::Error>
    where
        T: FromStr<Err: Display>,
        D: Deserializer<'de>,
    {
        let input = Option::<IdInput>::deserialize(from)?;
        input.map(IdInput::read).transpose()
    }
}

#[cfg(test)]
mod tests {
    use protocol::UserId;
    use serde::Serialize;

    use super::*;

    #[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Names {
        #[serde(with = "crate::answer::id")]
        one: UserId,
        #[serde(default, with = "crate::answer::id::or_none")]
        other: Option<UserId>,
    }

    #[test]
    fn an_id_is_written_as_text_and_read_from_text_and_numbers() {
        let user = |number| UserId::new(number).expect("positive");
        let large = Names {
            one: user(i64::MAX),
            other: None,
        };
        let json = serde_json::to_string(&large).expect("JSON");
        assert_eq!(json, r#"{"one":"9223372036854775807","other":null}"#);
        for read in [
            &json[..],
            r#"{"one":9223372036854775807}"#,
            r#"{"one":"9223372036854775807"}"#,
        ] {
            assert_eq!(serde_json::from_str::<Names>(read).expect(read), large);
        }
        let names = serde_json::from_str::<Names>(r#"{"one":7,"other":"8"}"#);
        assert_eq!(names.expect("both").other, Some(user(8)));
        for wrong in [
            r#"{"one":0}"#,
            r#"{"one":"ann"}"#,
            r#"{"one":-7}"#,
            r#"{"one":18446744073709551615}"#,
        ] {
            assert!(serde_json::from_str::<Names>(wrong).is_err(), "{wrong}");
        }
    }
}
