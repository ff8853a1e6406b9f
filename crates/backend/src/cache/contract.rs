//! Contract of every cache, under default settings. Each check uses users and groups of its own, so
//! that all may share one cache.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::cache::{CacheKey, Coverage, GroupEntry, Invalidation, MemberEntry, UserEntry};
use protocol::conversation::{Head, ListRegisters};
use protocol::group::{GroupSettings, Member, Role};
use protocol::history::Version;
use protocol::{GroupId, Seq, Timestamp, UserId};

use super::{Cache, CacheLookup, CacheRecord, FillToken};
use crate::Result;
use crate::test_ids::TestIds;

pub(super) fn user_copy(at: i64) -> UserEntry {
    let member = Member::new(Some(Role::Admin), Seq(3), Version::LATEST);
    let registers = ListRegisters {
        read_seq: Seq(7),
        hidden: 9,
        ..ListRegisters::default()
    };
    let group = GroupId::new(1 << 40).expect("positive");
    UserEntry {
        at: Timestamp::from_millis(at),
        private_before: Timestamp::from_millis(at + 5),
        groups: BTreeMap::from([(group, MemberEntry { member, registers })]),
    }
}

pub(super) fn group_copy(seq: u64, rev: u64) -> GroupEntry {
    GroupEntry {
        at: Timestamp::from_millis(77),
        head: Head {
            seq: Seq(seq),
            rev,
            ..Head::default()
        },
        changed_to: Seq(seq / 2),
        settings: Some(GroupSettings {
            open_history: true,
            ..GroupSettings::CLOSED
        }),
        is_dissolved: false,
    }
}

pub(super) async fn find_all(cache: &dyn Cache, owners: &[CacheKey]) -> Vec<CacheLookup> {
    let lookups = cache.find(owners).await.into_iter();
    lookups.collect::<Result<_>>().expect("answers")
}

async fn keep_all(cache: &dyn Cache, copies: Vec<CacheRecord>) -> Vec<bool> {
    let results = cache.keep(copies).await.into_iter();
    results.collect::<Result<_>>().expect("answers")
}

pub(super) async fn find(cache: &dyn Cache, owner: CacheKey) -> CacheLookup {
    let mut lookups = find_all(cache, &[owner]).await;
    assert_eq!(lookups.len(), 1);
    lookups.remove(0)
}

pub(super) async fn keep_user(
    cache: &dyn Cache,
    user: UserId,
    token: &FillToken,
    copy: &UserEntry,
) -> bool {
    let copy = CacheRecord::from_user(user, token.clone(), copy).expect("small");
    keep_all(cache, vec![copy]).await == [true]
}

pub(super) async fn keep_group(
    cache: &dyn Cache,
    group: GroupId,
    token: &FillToken,
    copy: &GroupEntry,
) -> bool {
    let copy = CacheRecord::from_group(group, token.clone(), copy).expect("small");
    keep_all(cache, vec![copy]).await == [true]
}

pub(super) async fn forget(cache: &dyn Cache, owner: CacheKey, unless: Option<Coverage>) {
    let results = cache.forget(&[Invalidation { owner, unless }]).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    assert_eq!(results.len(), 1);
}

pub(super) async fn stored_entries_are_found(cache: &dyn Cache, fresh: &TestIds) {
    let (user, group) = (fresh.user(), fresh.group());
    let owners = [CacheKey::User(user), CacheKey::Group(group)];
    let lookups = find_all(cache, &owners).await;
    assert_eq!((lookups[0].user(), lookups[1].group()), (None, None));
    let (user_entry, group_entry) = (user_copy(1_000), group_copy(5, 2));
    let copies = vec![
        CacheRecord::from_group(group, lookups[1].token.clone(), &group_entry).expect("small"),
        CacheRecord::from_user(user, lookups[0].token.clone(), &user_entry).expect("small"),
    ];
    assert_eq!(keep_all(cache, copies).await, [true, true]);
    for _ in 0..2 {
        let lookups = find_all(cache, &owners).await;
        let lookups = (lookups[0].user(), lookups[1].group());
        assert_eq!(lookups, (Some(user_entry.clone()), Some(group_entry)));
    }
    // A user and a group with the same number have nothing in common.
    let same = GroupId::new(user.get()).expect("positive");
    assert_eq!(find(cache, CacheKey::Group(same)).await.group(), None);
    assert_eq!(find_all(cache, &[]).await, []);
}

// proves S2-24: what was read before a change is not kept after it.
pub(super) async fn any_change_ends_a_token(cache: &dyn Cache, fresh: &TestIds) {
    let user = fresh.user();
    let owner = CacheKey::User(user);
    let (old, new) = (user_copy(1), user_copy(2));
    // Invalidation of an entry that does not exist yet.
    let stale_token = find(cache, owner).await.token;
    forget(cache, owner, None).await;
    assert!(!keep_user(cache, user, &stale_token, &old).await);
    // Two concurrent readers: the first to store wins.
    let (one, other) = (find(cache, owner).await, find(cache, owner).await);
    assert!(!keep_user(cache, user, &stale_token, &old).await);
    assert!(keep_user(cache, user, &one.token, &new).await);
    assert!(!keep_user(cache, user, &other.token, &old).await);
    assert!(!keep_user(cache, user, &one.token, &old).await);
    let lookup = find(cache, owner).await;
    assert_eq!(lookup.user(), Some(new));
    // The holder of the current token may replace the entry.
    assert!(keep_user(cache, user, &lookup.token, &old).await);
    let lookup = find(cache, owner).await;
    assert_eq!(lookup.user(), Some(old.clone()));
    forget(cache, owner, None).await;
    assert!(!keep_user(cache, user, &lookup.token, &old).await);
    assert_eq!(find(cache, owner).await.user(), None);
}

pub(super) async fn entries_with_enough_coverage_stay(cache: &dyn Cache, fresh: &TestIds) {
    let reach = |seq, rev| {
        let seq = Seq(seq);
        Some(Coverage { seq, rev })
    };
    for (unless, stays) in [
        (reach(5, 2), true),
        (reach(5, 0), true),
        (reach(1, 2), true),
        (reach(6, 0), false),
        (reach(1, 3), false),
        (reach(10, 2), false),
        (None, false),
    ] {
        let group = fresh.group();
        let owner = CacheKey::Group(group);
        let token = find(cache, owner).await.token;
        assert!(keep_group(cache, group, &token, &group_copy(5, 2)).await);
        let token = find(cache, owner).await.token;
        forget(cache, owner, unless).await;
        let is_present = find(cache, owner).await.group().is_some();
        assert_eq!(is_present, stays, "{unless:?}");
        let keeps = keep_group(cache, group, &token, &group_copy(7, 2)).await;
        assert_eq!(keeps, stays, "{unless:?}");
    }
    // No coverage protects an entry that does not exist: its reader is too late.
    let group = fresh.group();
    let owner = CacheKey::Group(group);
    let token = find(cache, owner).await.token;
    forget(cache, owner, reach(1, 0)).await;
    assert!(!keep_group(cache, group, &token, &group_copy(9, 9)).await);
}

pub(super) async fn each_is_forgotten_alone(cache: &dyn Cache, fresh: &TestIds) {
    let users: Vec<UserId> = (0..40).map(|_| fresh.user()).collect();
    let owners: Vec<CacheKey> = users.iter().map(|user| CacheKey::User(*user)).collect();
    let lookups = find_all(cache, &owners).await;
    let copies = users.iter().zip(lookups).zip(1..);
    let copies = copies
        .map(|((user, lookup), at)| CacheRecord::from_user(*user, lookup.token, &user_copy(at)));
    let copies: Vec<CacheRecord> = copies.collect::<Result<_>>().expect("small");
    let results = keep_all(cache, copies).await;
    assert_eq!(results, [true; 40]);
    let invalidations: Vec<_> = (owners.iter().step_by(2))
        .map(|owner| Invalidation {
            owner: *owner,
            unless: None,
        })
        .collect();
    let answers = cache.forget(&invalidations).await;
    assert!(answers.len() == 20 && answers.iter().all(Result::is_ok));
    let lookup = find_all(cache, &owners).await;
    for (n, lookup) in lookup.iter().enumerate() {
        let at = n as i64 + 1;
        let expected = (n % 2 == 1).then(|| user_copy(at));
        assert_eq!(lookup.user(), expected, "{n}");
    }
    assert_eq!(cache.keep_for(), Duration::from_secs(30 * 60));
}

/// Many writers change one value and refresh its entry by the rules; none leaves a stale entry.
pub(super) async fn no_old_copy_is_left(cache: &dyn Cache, fresh: &TestIds) {
    let user = fresh.user();
    let owner = CacheKey::User(user);
    let store = std::sync::atomic::AtomicI64::new(0);
    let read = || store.load(std::sync::atomic::Ordering::SeqCst);
    let fill = async || {
        for _ in 0..40 {
            let token = find(cache, owner).await.token;
            let copy = user_copy(read());
            tokio::task::yield_now().await;
            keep_user(cache, user, &token, &copy).await;
        }
    };
    let change = async || {
        for _ in 0..40 {
            store.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            tokio::task::yield_now().await;
            forget(cache, owner, None).await;
            // Clients may hear of the change from here on.
            let (version, lookup) = (read(), find(cache, owner).await);
            let at = lookup.user().map(|copy| copy.at.millis());
            assert!(at.is_none_or(|at| at >= version - 1), "{at:?} of {version}");
        }
    };
    tokio::join!(fill(), fill(), change(), fill(), change());
    forget(cache, owner, None).await;
    fill().await;
    let at = find(cache, owner).await.user().map(|copy| copy.at);
    assert_eq!(at, Some(Timestamp::from_millis(read())));
}

/// Hands the names of all checks to another macro: no backend can leave one out.
macro_rules! checks {
    ($then:ident!($($with:tt)*)) => {
        $then!($($with)*:
            stored_entries_are_found,
            any_change_ends_a_token,
            entries_with_enough_coverage_stay,
            each_is_forgotten_alone,
            no_old_copy_is_left,
        );
    };
}
pub(crate) use checks;
