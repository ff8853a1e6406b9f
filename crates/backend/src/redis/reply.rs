//! Readers of server replies.

use redis::Value;

use super::failure::Failure;

fn unexpected(expected: &str, got: &Value) -> Failure {
    let mut got = format!("{got:?}");
    got.truncate(got.floor_char_boundary(200));
    Failure::Reply(format!("wanted {expected}, got {got}"))
}

pub(crate) fn list(value: Value) -> Result<Vec<Value>, Failure> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(unexpected("a list", &other)),
    }
}

/// Reads a list of exactly `N` values.
pub(crate) fn items<const N: usize>(value: Value) -> Result<[Value; N], Failure> {
    let values = list(value)?;
    values
        .try_into()
        .map_err(|values| unexpected("a list of another length", &Value::Array(values)))
}

pub(crate) fn integer(value: Value) -> Result<i64, Failure> {
    match value {
        Value::Int(number) => Ok(number),
        other => number(other),
    }
}

/// Reads a number sent as text.
pub(crate) fn number<N: std::str::FromStr>(value: Value) -> Result<N, Failure> {
    let text = text(value)?;
    text.parse()
        .map_err(|_| Failure::Reply(format!("wanted a number, got {text:?}")))
}

pub(crate) fn bytes(value: Value) -> Result<Vec<u8>, Failure> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        Value::SimpleString(text) => Ok(text.into_bytes()),
        other => Err(unexpected("bytes", &other)),
    }
}

pub(crate) fn text(value: Value) -> Result<String, Failure> {
    String::from_utf8(bytes(value)?)
        .map_err(|_| Failure::Reply("wanted text, got other bytes".to_owned()))
}
