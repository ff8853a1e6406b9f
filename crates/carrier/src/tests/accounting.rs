//! What a message costs the stores, by the rows that are there afterwards.

use std::sync::atomic::Ordering::SeqCst;

use backend::embedded::{Order, Table};

use super::groups::create;
use super::world::*;

impl World {
    /// Rows of a table, and the bytes of their values.
    fn stored(&self, table: Table) -> (usize, usize) {
        let rows = self.engine.prefix(table, b"", Order::Forward, 10_000);
        let rows = rows.expect("readable");
        (rows.len(), rows.iter().map(|(_, row)| row.len()).sum())
    }
}

// proves S0-06 in part, S3-23 in part: two copies of what two users say, one of what is said in a group.
// proves S0-79 in part: of two users' messages nothing lies beside history.
// proves S4-14 in part, S4-32 in part, S4-33:
// each of two users has one row of the list however much is said; members of a group none.
#[tokio::test(start_paused = true)]
async fn a_message_of_two_users_is_two_rows_and_one_of_a_group_is_one() {
    let world = World::new().await;
    for said in 1..=5 {
        world.send(ALICE, BOB).await;
        world.until_quiet().await;
        assert_eq!(world.stored(Table::Private).0, 2 * said);
        assert_eq!(world.stored(Table::Conversation).0, 2);
    }
    assert_eq!(world.timeline.pushed.load(SeqCst), 0);

    world.wish(ALICE, create(100..140)).await;
    let said = 5;
    for _ in 0..said {
        world.say(ALICE).await;
    }
    world.until_quiet().await;
    assert_eq!(world.stored(Table::Group).0, said);
    assert_eq!(world.stored(Table::Conversation).0, 2);
    assert_eq!(world.timeline.pushed.load(SeqCst), said);

    let per_private = world.stored(Table::Private).1 / said;
    let per_group = world.stored(Table::Group).1 / said;
    assert!(
        (19..=21).contains(&(10 * per_private / per_group)),
        "{per_private} to {per_group} bytes a message"
    );
}
