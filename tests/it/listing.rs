//! The conversation list of a user on several devices.

use std::time::Duration;

use protocol::change::Arranged;
use protocol::frame::Summary;
use protocol::{Platform, Recipient};
use tests::Cluster;
use tests::person::{conversation, done, user};

fn is_on_it(row: &Summary) -> bool {
    row.seq > row.cleared_seq
}

// proves S4-05 in part, S4-17, S4-23, S4-24, S4-34:
// all goes on one device and is gone on the other; what is said next comes back.
#[tokio::test]
async fn a_list_that_is_cleared_is_cleared_on_all_devices() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let bea = cluster.device(2).ready().await;
    let cy = cluster.device(3).ready().await;
    bea.say(1, "hello").await;
    cy.say(1, "good evening").await;
    for device in [&mut ada, &mut phone] {
        device.hear().await;
        device.hear().await;
    }
    let [with_bea, with_cy] = [conversation(1, 2), conversation(1, 3)];
    let tickets = ada.client.clear_all(user(1)).await;
    assert_eq!(tickets.len(), 2);
    for ticket in tickets {
        let mut ticket = ticket.expect("in the outbox");
        done(&mut ticket).await.expect("it is cleared");
    }
    for device in [&ada, &phone] {
        for of in [with_bea, with_cy] {
            device.lists("cleared", of, |row| !is_on_it(row)).await;
        }
    }
    bea.say(1, "are you there?").await;
    phone.lists("back", with_bea, is_on_it).await;
    let list = phone.client.conversations();
    assert!(!is_on_it(&list.borrow()[&with_cy]));
    cluster.stop().await;
}

#[tokio::test]
async fn a_conversation_is_pinned_and_muted_on_all_devices() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let bea = cluster.device(2).ready().await;
    bea.say(1, "hello").await;
    ada.hear().await;
    phone.hear().await;
    let until = ada.client.conversations().borrow()[&conversation(1, 2)].version;
    let arranged = Arranged {
        pinned: true,
        muted_until: Some(until + Duration::from_secs(3600)),
    };
    let pinned = ada.client.arrange(Recipient::User(user(2)), arranged).await;
    let mut ticket = pinned.expect("in the outbox");
    done(&mut ticket).await.expect("it is done");
    for device in [&ada, &phone] {
        let is_so = |row: &Summary| row.arranged == arranged;
        device.lists("pinned", conversation(1, 2), is_so).await;
    }
    cluster.stop().await;
}
