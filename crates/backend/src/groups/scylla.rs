//! Groups in ScyllaDB or Cassandra.
//!
//! | table | partition | row | holds |
//! | --- | --- | --- | --- |
//! | `group_info` | group | | the group without its members |
//! | `group_member` | group | user | membership, past or present: some megabytes for 100,000 |
//! | `user_group` | user | group | the same |
//!
//! Each row is a register of its version. In `group_member`, rows of departed members have a time
//! to live, unless these are muted or banned: that of the ledger, longer than the log may have a
//! record older than the departure.
//! Checks of membership read the user's side: the members of a large group lie on a few nodes, its
//! users everywhere.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use async_trait::async_trait;
use protocol::group::{GroupInfo, GroupSettings, Member, Restrictions, Role};
use protocol::{GroupId, Seq, Timestamp, UserId};
use scylla::response::PagingState;

use super::GroupStore;
use crate::scylla::{Cql, SeamCql, Statement, write_time};
use crate::{Error, Result};

const SEAM: &str = "groups";

/// Rows per answer, at most and at least: even a small page reads some more rows, because those of
/// departed members lie in between.
const PAGE: usize = 1_000;
const PAGE_MIN: usize = 128;
/// Largest number of keys that a server takes in one query.
const KEYS_MAX: usize = 100;
/// Members per write: some kilobytes.
const MEMBERS_PER_WRITE: usize = 50;

/// Time to live of rows that never expire.
const FOR_EVER: i32 = 0;

/// `settings`, as bits.
const OPEN_HISTORY: i32 = 1;
const OPEN_DOOR: i32 = 2;

/// `flags`, as bits.
const MUTED: i32 = 1;
const QUIET: i32 = 2;
const LARGE: i32 = 4;
const DISSOLVED: i32 = 8;

/// Group or user, then `role`, `since`, `ver`, `banned`, `muted`.
type MemberColumns = (i64, i8, i64, i64, Option<bool>, Option<i64>);

/// `settings`, `ver`, `flags`, `present`, `resized`: the last three unset in a group from before
/// members were counted.
type InfoColumns = (i32, i64, Option<i32>, Option<i32>, Option<i64>);

/// Groups in ScyllaDB or Cassandra. Several may write at once.
pub struct ScyllaGroups {
    cql: SeamCql,
    put_info: Statement,
    info: Statement,
    put_member: Statement,
    members: Statement,
    put_group: Statement,
    groups: Statement,
    some_groups: Statement,
    /// Seconds for which a group remembers a departed member.
    departed_ttl: i32,
}

impl ScyllaGroups {
    pub fn new(cql: Cql) -> ScyllaGroups {
        let retention_secs = cql.config().ledger_retention.as_secs();
        let put = |table: &str| {
            Statement::new(format!(
                "INSERT INTO {table} (gid, uid, role, since, ver, banned, muted) \
                 VALUES (?, ?, ?, ?, ?, ?, ?) USING TIMESTAMP ? AND TTL ?"
            ))
        };
        ScyllaGroups {
            // Bounds were checked with the settings.
            departed_ttl: i32::try_from(retention_secs).unwrap_or(i32::MAX),
            cql: cql.at(SEAM),
            put_info: Statement::new(
                "INSERT INTO group_info (gid, settings, ver, flags, present, resized) \
                 VALUES (?, ?, ?, ?, ?, ?) USING TIMESTAMP ?",
            ),
            info: Statement::new(
                "SELECT settings, ver, flags, present, resized FROM group_info WHERE gid = ?",
            ),
            put_member: put("group_member"),
            members: Statement::new(
                "SELECT uid, role, since, ver, banned, muted FROM group_member \
                 WHERE gid = ? AND uid > ?",
            ),
            put_group: put("user_group"),
            groups: Statement::new(
                "SELECT gid, role, since, ver, banned, muted FROM user_group \
                 WHERE uid = ? AND gid > ?",
            ),
            some_groups: Statement::new(
                "SELECT gid, role, since, ver, banned, muted FROM user_group \
                 WHERE uid = ? AND gid IN ?",
            ),
        }
    }

    /// Memberships of a user in some groups, past or present.
    async fn memberships_in(
        &self,
        user: UserId,
        groups: &[GroupId],
    ) -> Result<Vec<(GroupId, Member)>> {
        let groups: Vec<i64> = groups.iter().map(|group| group.get()).collect();
        let key = (user.get(), groups);
        let rows: Vec<MemberColumns> = self.cql.rows(&self.some_groups, key).await?;
        rows.into_iter().map(membership).collect()
    }

    async fn info(&self, group: GroupId) -> Result<Option<GroupInfo>> {
        let rows: Vec<InfoColumns> = self.cql.rows(&self.info, (group.get(),)).await?;
        let info = |columns: &InfoColumns| {
            let text = || format!("group {group} has invalid columns {columns:?}");
            info_from_columns(columns).ok_or_else(|| Error::corrupt(SEAM, text()))
        };
        rows.first().map(info).transpose()
    }

    /// Members of a group for which `accepts` is true, after `cursor`, at most `limit`.
    async fn list(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
        accepts: impl Fn(&Member) -> bool,
    ) -> Result<Vec<(UserId, Member)>> {
        let key = (group.get(), cursor.map_or(0, UserId::get));
        let mut members = Vec::new();
        let mut from = Some(PagingState::start()).filter(|_| limit > 0);
        while let Some(start) = from.take() {
            let page = self
                .cql
                .page(&self.members, key, start, limit.clamp(PAGE_MIN, PAGE));
            let (rows, next): (Vec<MemberColumns>, _) = page.await?;
            for row in rows {
                let user = UserId::new(row.0).map_err(|error| Error::corrupt(SEAM, error))?;
                members.extend(Some((user, member(row)?)).filter(|(_, member)| accepts(member)));
            }
            from = next.filter(|_| members.len() < limit);
        }
        members.truncate(limit);
        Ok(members)
    }
}

#[async_trait]
impl GroupStore for ScyllaGroups {
    async fn save(
        &self,
        group: GroupId,
        info: Option<GroupInfo>,
        members: Vec<(UserId, Member)>,
    ) -> Result<()> {
        let values = |(user, member): &(UserId, Member)| {
            let since_seq = write_time::from_seq(SEAM, member.since)?.unwrap_or(0);
            let ver = write_time::from_version(SEAM, member.version)?;
            let role = role_code(member.role);
            let Restrictions {
                is_banned,
                muted_until,
            } = member.restrictions;
            let row = move |ttl: i32| {
                let until = muted_until.millis();
                let (gid, uid) = (group.get(), user.get());
                (gid, uid, role, since_seq, ver, is_banned, until, ver, ttl)
            };
            let departed_ttl = member.may_be_forgotten().then_some(self.departed_ttl);
            Ok((row(FOR_EVER), row(departed_ttl.unwrap_or(FOR_EVER))))
        };
        let rows = members.iter().map(values).collect::<Result<Vec<_>>>()?;
        let info = match info {
            Some(info) => {
                let ver = write_time::from_version(SEAM, info.version)?;
                let resized = write_time::from_version(SEAM, info.resized_by)?;
                let present = info.present.and_then(|count| i32::try_from(count).ok());
                let bits = settings_bits(info.settings);
                Some((group.get(), bits, ver, flags(&info), present, resized, ver))
            }
            None => None,
        };

        let lists = rows.iter();
        let lists = lists.map(|(list_row, _)| self.cql.write(&self.put_group, *list_row));
        self.cql.all(lists.collect()).await?;
        let chunks = rows.chunks(MEMBERS_PER_WRITE).map(|chunk| {
            let writes = chunk.iter().map(|(_, row)| (&self.put_member, *row));
            self.cql.write_together(writes.collect())
        });
        self.cql.all(chunks.collect()).await?;
        match info {
            Some(info) => self.cql.write(&self.put_info, info).await,
            None => Ok(()),
        }
    }

    async fn infos(&self, groups: &[GroupId]) -> Result<Vec<Option<GroupInfo>>> {
        let reads = groups.iter().map(|group| self.info(*group));
        self.cql.all(reads.collect()).await
    }

    async fn members(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        self.list(group, cursor, limit, |_| true).await
    }

    async fn members_of(
        &self,
        keys: &[(GroupId, UserId)],
    ) -> Result<Vec<Option<(GroupInfo, Member)>>> {
        let mut groups_by_user: BTreeMap<UserId, BTreeSet<GroupId>> = BTreeMap::new();
        for (group, user) in keys {
            groups_by_user.entry(*user).or_default().insert(*group);
        }
        let mut questions = Vec::with_capacity(groups_by_user.len());
        for (user, groups) in groups_by_user {
            let groups: Vec<GroupId> = groups.into_iter().collect();
            questions.extend(groups.chunks(KEYS_MAX).map(|chunk| (user, chunk.to_vec())));
        }
        let reads = questions.iter().map(|(user, groups)| async move {
            Ok((*user, self.memberships_in(*user, groups).await?))
        });
        let mut members = HashMap::with_capacity(keys.len());
        for (user, memberships) in self.cql.all(reads.collect()).await? {
            members.extend(
                memberships
                    .into_iter()
                    .map(|(group, member)| ((group, user), member)),
            );
        }
        let groups: BTreeSet<GroupId> = members.keys().map(|(group, _)| *group).collect();
        let groups: Vec<GroupId> = groups.into_iter().collect();
        let infos = self.infos(&groups).await?;
        let infos: HashMap<_, _> = groups.into_iter().zip(infos).collect();
        let answer = |key: &(GroupId, UserId)| {
            let info = infos.get(&key.0).copied().flatten();
            info.zip(members.get(key).copied())
        };
        Ok(keys.iter().map(answer).collect())
    }

    async fn present(
        &self,
        group: GroupId,
        cursor: Option<UserId>,
        limit: usize,
    ) -> Result<Vec<(UserId, Member)>> {
        let is_in = |member: &Member| member.role.is_some();
        self.list(group, cursor, limit, is_in).await
    }

    async fn groups_of(
        &self,
        user: UserId,
        cursor: Option<GroupId>,
        limit: usize,
    ) -> Result<Vec<(GroupId, Member)>> {
        let key = (user.get(), cursor.map_or(0, GroupId::get));
        let mut groups = Vec::new();
        let mut from = Some(PagingState::start()).filter(|_| limit > 0);
        while let Some(start) = from.take() {
            let page_size = PAGE.min(limit - groups.len());
            let page = self.cql.page(&self.groups, key, start, page_size);
            let (rows, next): (Vec<MemberColumns>, _) = page.await?;
            for row in rows {
                groups.push(membership(row)?);
            }
            from = next.filter(|_| groups.len() < limit);
        }
        groups.truncate(limit);
        Ok(groups)
    }
}

fn membership(row: MemberColumns) -> Result<(GroupId, Member)> {
    let group = GroupId::new(row.0).map_err(|error| Error::corrupt(SEAM, error))?;
    Ok((group, member(row)?))
}

fn member((id, role, since, ver, banned, muted): MemberColumns) -> Result<Member> {
    let whole = || {
        let since = Seq(u64::try_from(since).ok()?);
        Some(Member {
            restrictions: Restrictions {
                is_banned: banned.unwrap_or_default(),
                muted_until: Timestamp::from_millis(muted.unwrap_or_default()),
            },
            ..Member::new(role_from_code(role)?, since, write_time::to_version(ver)?)
        })
    };
    whole().ok_or_else(|| {
        let text = format!("the membership of {id} has invalid columns");
        Error::corrupt(SEAM, text)
    })
}

/// 0: a member no more.
const fn role_code(role: Option<Role>) -> i8 {
    match role {
        None => 0,
        Some(Role::Member) => 1,
        Some(Role::Admin) => 2,
        Some(Role::Owner) => 3,
    }
}

fn role_from_code(number: i8) -> Option<Option<Role>> {
    let roles = [
        None,
        Some(Role::Member),
        Some(Role::Admin),
        Some(Role::Owner),
    ];
    roles.into_iter().find(|role| role_code(*role) == number)
}

const fn settings_bits(settings: GroupSettings) -> i32 {
    let GroupSettings {
        open_history,
        open_door,
        muted: _,
        quiet: _,
    } = settings;
    open_history as i32 * OPEN_HISTORY + open_door as i32 * OPEN_DOOR
}

/// `None` if an unknown bit is set.
fn settings_from_bits(bits: i32) -> Option<GroupSettings> {
    let settings = GroupSettings {
        open_history: bits & OPEN_HISTORY != 0,
        open_door: bits & OPEN_DOOR != 0,
        ..GroupSettings::CLOSED
    };
    (settings_bits(settings) == bits).then_some(settings)
}

const fn flags(info: &GroupInfo) -> i32 {
    info.settings.muted as i32 * MUTED
        + info.settings.quiet as i32 * QUIET
        + info.is_large as i32 * LARGE
        + info.is_dissolved as i32 * DISSOLVED
}

/// `None` if a column says nothing that this program knows.
fn info_from_columns((bits, ver, flag_bits, present, resized): &InfoColumns) -> Option<GroupInfo> {
    let settings = settings_from_bits(*bits)?;
    let mut info = GroupInfo::uncounted(settings, write_time::to_version(*ver)?);
    let flag_bits = flag_bits.unwrap_or_default();
    info.settings.muted = flag_bits & MUTED != 0;
    info.settings.quiet = flag_bits & QUIET != 0;
    info.is_large = flag_bits & LARGE != 0;
    info.is_dissolved = flag_bits & DISSOLVED != 0;
    info.present = match present {
        Some(present) => Some(u32::try_from(*present).ok()?),
        None => None,
    };
    if let Some(resized) = resized {
        info.resized_by = write_time::to_version(*resized)?;
    }
    (flags(&info) == flag_bits).then_some(info)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::contract;
    use crate::scylla::fixture::on_cql;
    use crate::test_ids::TestIds;

    contract::checks!(on_cql!("groups", ScyllaGroups::new));

    /// A group forgets departed members in time, but never present members; the users' own lists
    /// forget neither.
    #[tokio::test]
    #[ignore = "needs the real parts: make e2e"]
    async fn rows_of_departed_members_have_a_ttl() {
        let cql = crate::scylla::fixture::cql().await;
        let retention = cql.config().ledger_retention.as_secs() as i32;
        let (store, fresh) = (ScyllaGroups::new(cql.clone()), TestIds::new(1));
        let (group, leaver, returner) = (fresh.group(), fresh.user(), fresh.user());
        let banned = fresh.user();
        let entry = |user, role, n| (user, contract::member(role, n, n));
        let member = Some(Role::Member);
        for members in [
            vec![entry(leaver, member, 1), entry(returner, member, 1)],
            vec![entry(leaver, None, 2), entry(returner, None, 2)],
            vec![entry(returner, member, 3)],
            vec![(
                banned,
                Member {
                    restrictions: Restrictions {
                        is_banned: true,
                        ..Restrictions::default()
                    },
                    ..contract::member(None, 4, 4)
                },
            )],
        ] {
            store.save(group, None, members).await.expect("saves");
        }
        let cql = cql.at(SEAM);
        let read_ttl = |table, user: UserId| {
            let text = format!("SELECT TTL(role) FROM {table} WHERE gid = ? AND uid = ?");
            let cql = &cql;
            async move {
                let key = (group.get(), user.get());
                let rows = cql.rows(&Statement::new(text), key).await;
                let rows: Vec<(Option<i32>,)> = rows.expect("reads");
                rows[0].0
            }
        };
        let seconds = read_ttl("group_member", leaver)
            .await
            .expect("a time to live");
        assert!((retention - 60..=retention).contains(&seconds), "{seconds}");
        assert_eq!(read_ttl("group_member", returner).await, None);
        assert_eq!(read_ttl("group_member", banned).await, None);
        assert_eq!(read_ttl("user_group", leaver).await, None);
    }

    #[test]
    fn columns_round_trip_or_are_rejected() {
        for bits in 0..4 {
            let settings = settings_from_bits(bits).expect("means something");
            assert_eq!(settings_bits(settings), bits);
        }
        for number in 0..4 {
            let role = role_from_code(number).expect("means something");
            assert_eq!(role_code(role), number);
        }
        assert_eq!(
            (settings_from_bits(4), settings_from_bits(-1)),
            (None, None)
        );
        assert_eq!((role_from_code(4), role_from_code(-1)), (None, None));
    }
}
