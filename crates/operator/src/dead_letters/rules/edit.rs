//! Edits of letters by operators. The letter's own record stays unchanged: the new bytes lie beside
//! it, and count from the log entry that announces them.

use std::fmt;
use std::str::FromStr;

use protocol::Timestamp;
use protocol::keys::Topic;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use thiserror::Error;

/// Hexadecimal digits of a version.
const DIGITS: usize = 16;

/// A short name of some bytes, derived from their digest: other bytes have another name.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Version(String);

impl Version {
    pub fn of(bytes: &[u8]) -> Version {
        let digest = Sha256::digest(bytes);
        let digits = digest.iter().take(DIGITS / 2);
        Version(digits.map(|byte| format!("{byte:02x}")).collect())
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let is_digit = |c: char| matches!(c, '0'..='9' | 'a'..='f');
        if text.len() == DIGITS && text.chars().all(is_digit) {
            return Ok(Version(text.to_owned()));
        }
        Err(format!(
            "{text:?} is not a version: use {DIGITS} digits of 0-9 and a-f"
        ))
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Version, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> String {
        version.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Position of one record of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditPosition {
    pub topic: Topic,
    pub partition: u32,
    pub offset: u64,
}

/// A letter holds other bytes from now on. No field contains message content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditedLetter {
    pub letter: String,
    /// Version that was edited.
    pub base: Version,
    /// Version after the edit.
    pub version: Version,
    /// Position of the new bytes in the log.
    pub at: EditPosition,
    /// Names of the changed fields.
    pub fields: Vec<String>,
    pub why: String,
}

/// An edit in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edit {
    pub by: String,
    pub at: Timestamp,
    pub letter: EditedLetter,
}

/// Reasons for an edit not to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum EditRefusal {
    #[error("it was changed in the meantime: reload it")]
    Changed,
    #[error("a task is about to process it: wait for the task")]
    IsInHand,
    #[error("it was redriven: only open letters can be edited")]
    Redriven,
    #[error("it is discarded: restore it first")]
    Discarded,
    #[error(
        "{0} letters are edited already, the maximum: edits are dropped when the log drops the letters"
    )]
    TooMany(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_bytes_and_comes_back() {
        let version = Version::of(b"a letter");
        assert_ne!(version, Version::of(b"another"));
        assert_eq!(version.to_string().len(), DIGITS);
        assert_eq!(version.to_string().parse(), Ok(version));
        assert!("not one".parse::<Version>().is_err());
        assert!("ABCDEFABCDEFABCD".parse::<Version>().is_err());
    }
}
