//! Slots of Redis Cluster. A key belongs to the slot of its tag, the part between its first braces.

use protocol::keys;

pub(crate) const SLOTS: u16 = 16_384;

pub(crate) fn for_tag(tag: &str) -> u16 {
    keys::crc16(tag.as_bytes()) % SLOTS
}

/// Slot of a bucket of users, computed from the tag that all its keys bear.
pub(crate) fn for_bucket(bucket: u16) -> u16 {
    for_tag(&format!("b{bucket:04}"))
}

/// Slot of any key, as the cluster specification defines it.
pub(crate) fn for_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    for_tag(tag.unwrap_or(key))
}

/// Tag of one of our keys, after `prefix`.
///
/// # Panics
/// Panics on a key that holds more than its prefix, one tag, and the characters of numbers and our
/// own names.
#[cfg(test)]
pub(crate) fn parse_tag<'a>(prefix: &str, key: &'a str) -> &'a str {
    let tag_and_rest = key
        .strip_prefix(prefix)
        .and_then(|rest| rest.strip_prefix("/{"));
    let parts = tag_and_rest.and_then(|rest| rest.split_once("}/"));
    let (tag, rest) = parts.unwrap_or_else(|| panic!("{key:?} has no tag"));
    let is_ours =
        |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || "-:/".contains(sign);
    assert!(
        !tag.is_empty() && tag.chars().all(|sign| sign.is_ascii_alphanumeric()),
        "{key:?}"
    );
    assert!(!rest.is_empty() && rest.chars().all(is_ours), "{key:?}");
    tag
}

/// Pattern of the prefixes that the settings accept.
#[cfg(test)]
pub(crate) const PREFIXES: &str = "[A-Za-z0-9._:-]{1,20}";
