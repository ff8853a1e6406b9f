use super::*;
use crate::cache::contract::{self, find, group_copy, keep_group};
use crate::test_ids::TestIds;

/// Each check in a memory of its own.
macro_rules! in_memory {
    ($open:path: $($check:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $check() {
                contract::$check(&$open(), &TestIds::new(1)).await;
            }
        )*

        #[tokio::test]
        async fn all_of_them_in_one() {
            let (cache, fresh) = ($open(), TestIds::new(1));
            $(contract::$check(&cache, &fresh).await;)*
            crate::test_servers::ran("cache", "embedded");
        }

        #[tokio::test]
        async fn all_of_them_behind_a_hook() {
            let (cache, fresh) = (crate::cache::behind_a_hook(std::sync::Arc::new($open())), TestIds::new(1));
            $(contract::$check(&*cache, &fresh).await;)*
        }
    };
}

contract::checks!(in_memory!(open));

fn open() -> EmbeddedCache {
    EmbeddedCache::new(CacheConfig::default())
}

#[tokio::test]
async fn least_recently_used_entry_makes_room() {
    let config = CacheConfig {
        memory_bytes_max: 4 * (OVERHEAD + 60),
        ..CacheConfig::default()
    };
    let cache = EmbeddedCache::new(config);
    let fresh = TestIds::new(1);
    let groups = [(); 100].map(|()| fresh.group());
    let first = CacheKey::Group(groups[0]);
    for group in groups {
        let token = find(&cache, CacheKey::Group(group)).await.token;
        assert!(keep_group(&cache, group, &token, &group_copy(1, 0)).await);
        // Entry `first` is used again after each fill.
        assert!(find(&cache, first).await.group().is_some());
    }
    let slots = cache.slots.lock();
    assert!((2..=4).contains(&slots.used_at.len()));
    assert_eq!(slots.used_at.len(), slots.use_order.len());
    assert!(slots.bytes <= cache.config.memory_bytes_max);
}

#[tokio::test]
async fn zero_retention_stores_nothing() {
    let config = CacheConfig {
        keep_for: Duration::ZERO,
        ..CacheConfig::default()
    };
    let cache = EmbeddedCache::new(config);
    let group = TestIds::new(1).group();
    let token = find(&cache, CacheKey::Group(group)).await.token;
    assert!(!keep_group(&cache, group, &token, &group_copy(1, 0)).await);
    assert_eq!(find(&cache, CacheKey::Group(group)).await.group(), None);
    assert!(cache.slots.lock().used_at.is_empty());
}
