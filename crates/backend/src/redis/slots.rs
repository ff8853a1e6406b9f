//! Redis Cluster's slots. A key lies in the slot of its tag, the part between its first braces.

use protocol::keys;

pub(crate) const SLOTS: u16 = 16_384;

pub(crate) fn of_tag(tag: &str) -> u16 {
    keys::crc16(tag.as_bytes()) % SLOTS
}

/// The tag of all keys of a bucket of users.
pub(crate) fn of_bucket(bucket: u16) -> u16 {
    of_tag(&format!("b{bucket:04}"))
}

/// The slot of any key, as the cluster's specification says it.
#[cfg(test)]
pub(crate) fn of_key(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| {
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    });
    of_tag(tag.unwrap_or(key))
}
