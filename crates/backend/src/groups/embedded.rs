//! Groups in the embedded store.
//!
//! | table | key | value |
//! | --- | --- | --- |
//! | `group-info` | group | the group without its members |
//! | `group-member` | group, user | membership, past or present |
//! | `user-group` | user, group | the same |
//! | `group-left` | time, group, user | version of a departure, by time of its write, for expiry |

use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::group::{GroupInfo, GroupSettings, Member, Restrictions};
use protocol::history::Version;
use protocol::{GroupId, Timestamp, UserId};
use serde::{Deserialize, Serialize};

use super::GroupStore;
use crate::clock::Clock;
use crate::embedded::value::{decode, decode_extended, encode};
use crate::embedded::{Engine, ScanOrder, Table, WriteBatch};
use crate::{Error, Result};

const SEAM: &str = "groups";

/// Members per read.
const SCAN: usize = 1024;

/// Groups in the embedded store.
pub struct EmbeddedGroups {
    engine: Engine,
    clock: Arc<dyn Clock>,
    /// Held from the read of stored versions to their replacement, never across an await.
    write_lock: Mutex<()>,
}

/// A group, as the first programs stored it. An [`InfoExtension`] follows it since.
#[derive(Serialize, Deserialize)]
struct InfoRow {
    version: Version,
    settings: GroupSettings,
}

/// The rest of a group.
#[derive(Serialize, Deserialize)]
struct InfoExtension {
    muted: bool,
    quiet: bool,
    present: Option<u32>,
    is_large: bool,
    resized_by: Version,
    is_dissolved: bool,
}

impl EmbeddedGroups {
    pub fn new(engine: Engine, clock: Arc<dyn Clock>) -> EmbeddedGroups {
        EmbeddedGroups {
            engine,
            clock,
            write_lock: Mutex::new(()),
        }
    }

    /// Removes members who left a group before `cutoff` from that group, unless they are muted or
    /// banned there, examining at most `limit`; returns the number examined. The users' own lists
    /// keep them. `cutoff` must be older than any record in the log.
    pub fn forget_left(&self, cutoff: Timestamp, limit: usize) -> Result<usize> {
        let _write_guard = self.write_lock.lock();
        let end = moment(cutoff);
        let bounds = (Bound::Unbounded, Bound::Excluded(&end[..]));
        let table = Table::GroupLeft;
        let departures = self
            .engine
            .range(table, bounds, ScanOrder::Forward, limit)?;
        let keys = departures.iter().map(|(key, _)| member_key(key));
        let current = self.read_members(&keys.collect::<Result<Vec<_>>>()?)?;
        let mut batch = WriteBatch::new();
        for ((key, value), current) in departures.iter().zip(current) {
            let version: Version = decode(SEAM, value)?;
            let is_out = |member: Member| member.may_be_forgotten() && member.version == version;
            if current.is_some_and(is_out) {
                batch.remove(Table::GroupMember, member_key(key)?.to_vec());
            }
            batch.remove(Table::GroupLeft, key.to_vec());
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(departures.len())
    }

    fn read_info(&self, group: GroupId) -> Result<Option<GroupInfo>> {
        let bytes = self.engine.get(Table::GroupInfo, &number(group.get()))?;
        bytes.map(|value| decode_info(&value)).transpose()
    }

    fn read_members(&self, keys: &[[u8; 16]]) -> Result<Vec<Option<Member>>> {
        let values = self.engine.multi_get(Table::GroupMember, keys)?.into_iter();
        values
            .map(|value| value.map(|value| decode_member(&value)).transpose())
            .collect()
    }

    /// Lists rows under the first number of a key, after a second number.
    fn list(
        &self,
        table: Table,
        first: i64,
        cursor: Option<i64>,
        limit: usize,
    ) -> Result<Vec<(i64, Member)>> {
        let start = match cursor {
            Some(cursor) => Bound::Excluded(pair(first, cursor)),
            None => Bound::Included(pair(first, 0)),
        };
        let end = pair(first, i64::MAX);
        let bounds = (
            start.as_ref().map(|key| &key[..]),
            Bound::Included(&end[..]),
        );
        let rows = self
            .engine
            .range(table, bounds, ScanOrder::Forward, limit)?;
        let members = rows.iter();
        members
            .map(|(key, value)| Ok((second(key)?, decode_member(value)?)))
            .collect()
    }
}

#[async_trait]
impl GroupStore for EmbeddedGroups {
    async fn save(
        &self,
        group: GroupId,
        info: Option<GroupInfo>,
        mut members: Vec<(UserId, Member)>,
    ) -> Result<()> {
        // The last write of a key in a batch counts, so the latest version goes last.
        members.sort_by_key(|(_, member)| member.version);
        let _write_guard = self.write_lock.lock();
        let mut batch = WriteBatch::new();
        let pairs = members
            .iter()
            .map(|(user, _)| pair(group.get(), user.get()));
        let current = self.read_members(&pairs.collect::<Vec<_>>())?;
        for ((user, member), current) in members.iter().zip(current) {
            if current.is_some_and(|current| current.version > member.version) {
                continue;
            }
            let (group, user, value) = (group.get(), user.get(), encode_member(member)?);
            if member.role.is_none() {
                let key = [&moment(self.clock.now())[..], &pair(group, user)].concat();
                batch.put(Table::GroupLeft, key, encode(SEAM, &member.version)?);
            }
            batch.put(Table::UserGroup, pair(user, group).to_vec(), value.clone());
            batch.put(Table::GroupMember, pair(group, user).to_vec(), value);
        }
        if let Some(info) = info
            && self
                .read_info(group)?
                .is_none_or(|current| current.version <= info.version)
        {
            let value = encode_info(&info)?;
            batch.put(Table::GroupInfo, number(group.get()).to_vec(), value);
        }
        if !batch.is_empty() {
            self.engine.write(batch)?;
        }
        Ok(())
    }

    async fn infos(&self, groups: &[GroupId]) -> Result<Vec<Option<GroupInfo>>> {
        groups.iter().map(|group| self.read_info(*group)).collect()
    }

    async fn members(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        let cursor = cursor.map(UserId::get);
        let page = self.list(Table::GroupMember, group.get(), cursor, limit)?;
        let members = page.into_iter();
        members
            .map(|(id, member)| Ok((user(id)?, member)))
            .collect()
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(GroupInfo, Member)>>> {
        let pairs = keys
            .iter()
            .map(|(group, user)| pair(group.get(), user.get()));
        let members = self.read_members(&pairs.collect::<Vec<_>>())?;
        let answers = keys.iter().zip(members).map(|((group, _), member)| {
            let Some(member) = member else {
                return Ok(None);
            };
            let info = self.read_info(*group)?;
            Ok(info.map(|info| (info, member)))
        });
        answers.collect()
    }

    async fn present(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        let mut members = Vec::new();
        let mut cursor = cursor.map(UserId::get);
        while members.len() < limit {
            let page = self.list(Table::GroupMember, group.get(), cursor, SCAN)?;
            cursor = page.last().map(|(user, _)| *user);
            let is_last = page.len() < SCAN;
            for (id, member) in page.into_iter().filter(|(_, member)| member.role.is_some()) {
                members.push((user(id)?, member));
            }
            if is_last {
                break;
            }
        }
        members.truncate(limit);
        Ok(members)
    }

    async fn groups_of(
        &self,
        user: UserId,
        cursor: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>> {
        let cursor = cursor.map(GroupId::get);
        let page = self.list(Table::UserGroup, user.get(), cursor, limit)?;
        let groups = page.into_iter().map(|(id, member)| {
            let group = GroupId::new(id).map_err(|error| Error::corrupt(SEAM, error))?;
            Ok((group, member))
        });
        groups.collect()
    }
}

fn encode_info(info: &GroupInfo) -> Result<Bytes> {
    let GroupInfo {
        settings,
        version,
        present,
        is_large,
        resized_by,
        is_dissolved,
    } = *info;
    let extension = InfoExtension {
        muted: settings.muted,
        quiet: settings.quiet,
        present,
        is_large,
        resized_by,
        is_dissolved,
    };
    encode(SEAM, &(InfoRow { version, settings }, extension))
}

fn decode_info(value: &[u8]) -> Result<GroupInfo> {
    let (row, extension): (InfoRow, Option<InfoExtension>) = decode_extended(SEAM, value)?;
    let mut info = GroupInfo::uncounted(row.settings, row.version);
    if let Some(extension) = extension {
        info.settings.muted = extension.muted;
        info.settings.quiet = extension.quiet;
        info.present = extension.present;
        info.is_large = extension.is_large;
        info.resized_by = extension.resized_by;
        info.is_dissolved = extension.is_dissolved;
    }
    Ok(info)
}

/// A row of a member without restrictions is as the first programs stored it.
fn encode_member(member: &Member) -> Result<Bytes> {
    if member.restrictions == Restrictions::default() {
        encode(SEAM, member)
    } else {
        encode(SEAM, &(member, member.restrictions))
    }
}

fn decode_member(value: &[u8]) -> Result<Member> {
    let (member, restrictions): (Member, Option<Restrictions>) = decode_extended(SEAM, value)?;
    Ok(Member {
        restrictions: restrictions.unwrap_or_default(),
        ..member
    })
}

fn user(id: i64) -> Result<UserId> {
    UserId::new(id).map_err(|error| Error::corrupt(SEAM, error))
}

fn number(value: i64) -> [u8; 8] {
    value.to_be_bytes()
}

fn pair(first: i64, second: i64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&number(first));
    key[8..].copy_from_slice(&number(second));
    key
}

/// Time as bytes that sort as times do.
fn moment(at: Timestamp) -> [u8; 8] {
    number(at.millis().max(0))
}

/// Key in `group-member` of the row that an entry of `group-left` is about.
fn member_key(key: &[u8]) -> Result<[u8; 16]> {
    behind_first(key)
}

fn second(key: &[u8]) -> Result<i64> {
    behind_first(key).map(i64::from_be_bytes)
}

/// Returns a key without its first number.
fn behind_first<const N: usize>(key: &[u8]) -> Result<[u8; N]> {
    let rest = key.get(8..).and_then(|bytes| bytes.try_into().ok());
    rest.ok_or_else(|| Error::corrupt(SEAM, "corrupt key"))
}

#[cfg(test)]
mod tests;
