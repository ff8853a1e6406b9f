//! Ticket keys: a file shared by all stations, and its rotation.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use thiserror::Error;

/// Bytes of a key: the length of the digest (RFC 2104, 3).
pub const KEY_BYTES: usize = 32;

/// Keys in a file: one that signs, and those whose tickets may still be in use.
pub const KEYS_MAX: usize = 16;

/// Number of a key in its file.
pub(super) type KeyId = u8;

pub(super) type MacState = Hmac<Sha256>;

/// A key, ready for use.
#[derive(Clone)]
pub(super) struct Key {
    pub(super) id: u8,
    pub(super) mac: MacState,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Fault in a key file, for an operator to mend.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum KeyFileError {
    #[error("line {0} is not a number from 0 to 255 and a key of {hex} hexadecimal digits", hex = KEY_BYTES * 2)]
    Line(usize),
    #[error("key {0} is listed twice")]
    Twice(u8),
    #[error("no keys")]
    Empty,
    #[error("more than {KEYS_MAX} keys: retire those that are older")]
    Full,
}

/// Content of a key file: one line per key, with its number and the key in hexadecimal. The first
/// signs, all check.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyFile(Vec<(u8, [u8; KEY_BYTES])>);

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = self.0.iter().map(|(id, _)| id);
        f.debug_list().entries(ids).finish()
    }
}

impl KeyFile {
    /// A file with one key. Its number is random, so that tickets of a lost file have an unknown
    /// key.
    pub fn new(id: u8, key: [u8; KEY_BYTES]) -> KeyFile {
        KeyFile(vec![(id, key)])
    }

    /// # Errors
    /// A line without a key, a duplicate number, no key, or too many.
    pub fn parse(text: &str) -> Result<KeyFile, KeyFileError> {
        let mut keys: Vec<(u8, [u8; KEY_BYTES])> = Vec::new();
        for (place, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (id, key) = read_line(line).ok_or(KeyFileError::Line(place + 1))?;
            if keys.iter().any(|(other, _)| *other == id) {
                return Err(KeyFileError::Twice(id));
            }
            keys.push((id, key));
        }
        match keys.len() {
            0 => Err(KeyFileError::Empty),
            1..=KEYS_MAX => Ok(KeyFile(keys)),
            _ => Err(KeyFileError::Full),
        }
    }

    pub fn to_text(&self) -> String {
        let mut text = "# Keys of session tickets: the first signs, all check. Nobody but stations may read this.\n".to_owned();
        for (id, key) in &self.0 {
            text.push_str(&format!("{id} "));
            for byte in key {
                text.push_str(&format!("{byte:02x}"));
            }
            text.push('\n');
        }
        text
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a key that checks, but does not sign yet. Returns its number.
    ///
    /// # Errors
    /// The file is full.
    pub fn add(&mut self, key: [u8; KEY_BYTES]) -> Result<u8, KeyFileError> {
        if self.0.len() >= KEYS_MAX {
            return Err(KeyFileError::Full);
        }
        let is_free = |id: &u8| self.0.iter().all(|(other, _)| other != id);
        // Next number after the newest, wrapping: a retired number stays out of use for long.
        let newest = self.0.iter().map(|(id, _)| *id).max().unwrap_or_default();
        let mut ids = (1..=u8::MAX).map(|step| newest.wrapping_add(step));
        let id = ids.find(is_free).ok_or(KeyFileError::Full)?;
        self.0.push((id, key));
        Ok(id)
    }

    /// Makes the newest key sign from now on. Returns its number.
    pub fn promote(&mut self) -> Option<u8> {
        let newest = self.0.pop()?;
        self.0.insert(0, newest);
        Some(newest.0)
    }

    /// Drops all keys but the signing one. Returns their numbers.
    pub fn retire(&mut self) -> Vec<u8> {
        let removed_keys = self.0.split_off(self.0.len().min(1));
        removed_keys.into_iter().map(|(id, _)| id).collect()
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let keys = self.0.iter().filter_map(|(id, key)| {
            let mac = MacState::new_from_slice(key).ok()?;
            Some(Key { id: *id, mac })
        });
        keys.collect()
    }
}

fn read_line(line: &str) -> Option<(u8, [u8; KEY_BYTES])> {
    let mut words = line.split_ascii_whitespace();
    let (id, hex) = (words.next()?, words.next()?);
    let is_hex = hex.len() == KEY_BYTES * 2 && hex.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex || words.next().is_some() {
        return None;
    }
    let mut key = [0; KEY_BYTES];
    for (index, byte) in key.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some((id.parse().ok()?, key))
}
