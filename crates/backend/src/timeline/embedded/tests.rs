use bytes::Bytes;

use super::*;
use crate::test_ids::TestIds;
use crate::timeline::contract::{self, count, entry, latest, push};

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
            let (line, fresh) = ($open(), TestIds::new(1));
            $(contract::$check(&line, &fresh).await;)*
            crate::test_servers::ran("timeline", "embedded");
        }

        #[tokio::test]
        async fn all_of_them_behind_a_hook() {
            let (line, fresh) = (crate::timeline::behind_a_hook(std::sync::Arc::new($open())), TestIds::new(1));
            $(contract::$check(&*line, &fresh).await;)*
        }
    };
}

contract::checks!(in_memory!(open));

fn open() -> EmbeddedTimeline {
    EmbeddedTimeline::new(TimelineConfig::default()).expect("good settings")
}

fn with_room_for(messages: usize) -> EmbeddedTimeline {
    let config = TimelineConfig {
        memory_bytes_max: messages * (OVERHEAD + entry(1).body.len()),
        ..TimelineConfig::default()
    };
    EmbeddedTimeline::new(config).expect("good settings")
}

#[tokio::test]
async fn least_recently_used_group_makes_room() {
    let (timeline, fresh) = (with_room_for(10), TestIds::new(1));
    let [one, other, third] = [(); 3].map(|()| fresh.group());
    push(&timeline, one, 1..=4).await;
    push(&timeline, other, 1..=4).await;
    // A read of `one` counts as use.
    assert_eq!(latest(&timeline, one, 0, 1).await.len(), 1);
    push(&timeline, third, 1..=4).await;
    let counts = [
        count(&timeline, one, 9).await,
        count(&timeline, other, 9).await,
        count(&timeline, third, 9).await,
    ];
    assert_eq!(counts, [4, 0, 4]);
}

#[tokio::test]
async fn one_group_alone_keeps_what_has_room() {
    let (timeline, fresh) = (with_room_for(10), TestIds::new(1));
    let group = fresh.group();
    push(&timeline, group, 1..=9).await;
    push(&timeline, group, 10..=25).await;
    let stored_count = count(&timeline, group, 99).await;
    assert!((8..=10).contains(&stored_count), "{stored_count}");
    assert_eq!(latest(&timeline, group, 0, 1).await, [entry(25)]);
    // Larger than the whole room.
    let huge = TimelineEntry {
        body: Bytes::from(vec![0; 1 << 20]),
        ..entry(26)
    };
    timeline.push(group, vec![huge]).await.expect("pushes");
    assert_eq!(count(&timeline, group, 99).await, 0);
    let groups = timeline.groups.lock();
    assert_eq!(
        (groups.bytes, groups.use_order.len(), groups.by_id.len()),
        (0, 0, 0)
    );
}

/// The byte count equals the contents after any replacement, move or drop.
#[tokio::test]
async fn bytes_are_counted_right() {
    let (timeline, fresh) = (open(), TestIds::new(1));
    let group = fresh.group();
    push(&timeline, group, 1..=1200).await;
    push(&timeline, group, 1000..=1100).await;
    let moved_entry = TimelineEntry {
        seq: Seq(1199),
        ..entry(1000)
    };
    timeline
        .push(group, vec![moved_entry])
        .await
        .expect("pushes");
    let groups = timeline.groups.lock();
    let group_entries = &groups.by_id[&group];
    let bytes = group_entries
        .entries
        .values()
        .map(|entry| entry.body.len() + OVERHEAD);
    assert_eq!(groups.bytes, bytes.sum::<usize>());
    assert_eq!(group_entries.seqs.len(), group_entries.entries.len());
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let keep = TimelineConfig {
        keep: 0,
        ..TimelineConfig::default()
    };
    assert!(EmbeddedTimeline::new(keep).is_err());
}
