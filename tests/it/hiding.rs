//! Messages that a user hides from themselves.

use protocol::change::ChangeKind;
use protocol::{MessageId, Platform, Recipient, Seq};
use tests::Cluster;
use tests::person::{conversation, done, text, user};

// proves S0-13, S4-34: gone on all devices of who hid it, also on one that was away and on one that comes later; nobody
// else notices.
#[tokio::test]
async fn it_is_gone_on_all_devices_of_one_person() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let mut bea = cluster.device(2).ready().await;
    bea.say(1, "a secret").await;
    let secret = ada.hear().await.placed;
    phone.hear().await;
    bea.say(1, "no secret").await;
    ada.hear().await;
    phone.hear().await;
    let with_bea = Recipient::User(user(2));
    let ticket = ada.client.hide(with_bea, secret.message.id).await;
    let mut ticket = ticket.expect("in the outbox");
    done(&mut ticket).await.expect("it is hidden");
    for device in [&mut ada, &mut phone] {
        assert_eq!(device.next_hidden().await, [Seq(1)]);
    }
    let mut laptop = cluster.device_on(1, Platform::Web, "laptop").await;
    let first = laptop.hear().await;
    assert_eq!(
        (text(&first).as_str(), first.placed.position.seq),
        ("", Seq(1))
    );
    assert!(first.marks.is_some_and(|marks| marks.hidden));
    assert_eq!(text(&laptop.hear().await), "no secret");

    let page = bea.client.load_older(conversation(1, 2), None, 9).await;
    let page = page.expect("a page");
    let lengths: Vec<_> = page
        .messages
        .iter()
        .map(|m| m.message.content.data.len())
        .collect();
    assert_eq!(lengths, ["no secret".len(), "a secret".len()]);
    let to_ada = Recipient::User(user(1));
    bea.change(to_ada, secret.message.id, ChangeKind::Edit, "another")
        .await;
    bea.next_change().await;
    for device in [&mut phone, &mut laptop] {
        let change = device.next_change().await;
        let protocol::change::MessageChange::Edit(content) = change.asked.change else {
            panic!("an edit");
        };
        assert!(content.data.is_empty(), "what it says now is hidden, too");
    }
    let unknown_id = MessageId::new(77).expect("positive");
    let ticket = ada.client.hide(with_bea, unknown_id).await;
    let mut ticket = ticket.expect("in the outbox");
    assert!(done(&mut ticket).await.is_err(), "there is no such message");
    cluster.stop().await;
}
