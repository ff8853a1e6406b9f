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

fn of_room_for(messages: usize) -> EmbeddedTimeline {
    let config = TimelineConfig {
        memory_bytes_max: messages * (OVERHEAD + entry(1).body.len()),
        ..TimelineConfig::default()
    };
    EmbeddedTimeline::new(config).expect("good settings")
}

#[tokio::test]
async fn who_was_not_used_for_longest_makes_room() {
    let (line, fresh) = (of_room_for(10), TestIds::new(1));
    let [one, other, third] = [(); 3].map(|()| fresh.group());
    push(&line, one, 1..=4).await;
    push(&line, other, 1..=4).await;
    // A read of `one` counts as use.
    assert_eq!(latest(&line, one, 0, 1).await.len(), 1);
    push(&line, third, 1..=4).await;
    let counts = [
        count(&line, one, 9).await,
        count(&line, other, 9).await,
        count(&line, third, 9).await,
    ];
    assert_eq!(counts, [4, 0, 4]);
}

#[tokio::test]
async fn one_group_alone_keeps_what_has_room() {
    let (line, fresh) = (of_room_for(10), TestIds::new(1));
    let group = fresh.group();
    push(&line, group, 1..=9).await;
    push(&line, group, 10..=25).await;
    let kept = count(&line, group, 99).await;
    assert!((8..=10).contains(&kept), "{kept}");
    assert_eq!(latest(&line, group, 0, 1).await, [entry(25)]);
    // Larger than the whole room.
    let huge = TimelineEntry {
        body: Bytes::from(vec![0; 1 << 20]),
        ..entry(26)
    };
    line.push(group, vec![huge]).await.expect("pushes");
    assert_eq!(count(&line, group, 99).await, 0);
    let groups = line.groups.lock();
    assert_eq!(
        (groups.bytes, groups.used.len(), groups.by_id.len()),
        (0, 0, 0)
    );
}

/// The byte count equals the contents after any replacement, move or drop.
#[tokio::test]
async fn bytes_are_counted_right() {
    let (line, fresh) = (open(), TestIds::new(1));
    let group = fresh.group();
    push(&line, group, 1..=1200).await;
    push(&line, group, 1000..=1100).await;
    let moved = TimelineEntry {
        seq: Seq(1199),
        ..entry(1000)
    };
    line.push(group, vec![moved]).await.expect("pushes");
    let groups = line.groups.lock();
    let kept = &groups.by_id[&group];
    let bytes = kept.entries.values().map(|it| it.body.len() + OVERHEAD);
    assert_eq!(groups.bytes, bytes.sum::<usize>());
    assert_eq!(kept.seqs.len(), kept.entries.len());
}

#[test]
fn settings_that_cannot_work_are_refused() {
    let keep = TimelineConfig {
        keep: 0,
        ..TimelineConfig::default()
    };
    assert!(EmbeddedTimeline::new(keep).is_err());
}
