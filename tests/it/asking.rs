//! Queries over all conversations, by a device that keeps nothing.

use protocol::Recipient;
use protocol::message::Content;
use tests::Cluster;
use tests::person::{accepted, conversation, user};
use tests::system::eventually;

// proves S0-05, S2-14 in part, S2-16
#[tokio::test]
async fn device_without_state_asks_for_missed_and_unread_messages() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let bea = cluster.device(2).ready().await;
    for (device, text) in [(&ada, "one"), (&bea, "two"), (&ada, "three")] {
        let ticket = device
            .client
            .send(Recipient::User(user(3)), Content::text(text));
        accepted(&mut ticket.await.expect("it is in the outbox")).await;
    }
    let cy = cluster.device(3).deaf().ready().await;
    eventually("everything is placed", async || {
        let page = cy.client.missed(None).await.expect("an answer");
        let texts = page.messages.iter().map(|m| m.message.content.data.clone());
        (texts.collect::<Vec<_>>() == ["one", "two", "three"]).then_some(())
    })
    .await;
    // The row of the list is written after the message's.
    let counts = [(conversation(1, 3), 2), (conversation(2, 3), 1)];
    eventually("the list has its rows", async || {
        let unread = cy.client.unread().await.expect("an answer");
        (unread == counts).then_some(())
    })
    .await;
    cluster.stop().await;
}
