//! Chats of two users, both signed in.

use client::core::{Origin, SendStatus};
use protocol::{Platform, Seq};
use tests::Cluster;
use tests::person::{accepted, reaches, text};

// proves S3-11, S3-12, S3-13, S3-31, S2-02, S2-07 in part, S1-59, S1-61
#[tokio::test]
async fn two_users_chat_over_websocket_and_tcp() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device(1).over_websocket().ready().await;
    let mut bea = cluster.device(2).over_tcp().ready().await;

    let question_id = ada.say(2, "tea?").await;
    let message = bea.hear().await;
    assert_eq!(
        (text(&message).as_str(), message.origin),
        ("tea?", Origin::Other)
    );
    assert_eq!(message.placed.message.id, question_id);
    assert_eq!(message.placed.position.seq, Seq(1));

    bea.say(1, "at four").await;
    let answer = ada.hear().await;
    assert_eq!(text(&answer), "at four");
    assert_eq!(answer.placed.position.seq, Seq(2));
    assert_eq!(answer.placed.position.prev, Some(question_id));

    cluster.assert_settled(2).await;
    cluster
        .assert_traced(question_id, "Acked", Some("2/desktop"))
        .await;
    ada.close().await;
    bea.close().await;
    cluster.stop().await;
}

// Both write at once: both see one order, with each writer's own order kept.
// proves S2-07 in part
#[tokio::test]
async fn both_sides_see_one_order() {
    let cluster = Cluster::start().await;
    let mut ada = cluster.device_on(1, Platform::Ios, "writes").await;
    let mut bea = cluster.device_on(2, Platform::Ios, "writes").await;
    let mut ada_sees = cluster.device(1).ready().await;
    let mut bea_sees = cluster.device(2).ready().await;
    let mut tickets = Vec::new();
    for number in 0..50 {
        tickets.push(ada.write(2, &format!("a{number}")).await);
        tickets.push(bea.write(1, &format!("b{number}")).await);
    }
    for ticket in &mut tickets {
        accepted(ticket).await;
    }
    let texts = ada_sees.hear_texts(100).await;
    assert_eq!(texts, bea_sees.hear_texts(100).await);
    let texts_from = |prefix: &str| -> Vec<String> {
        let own_texts = texts.iter().filter(|text| text.starts_with(prefix));
        own_texts.cloned().collect()
    };
    assert_eq!(
        texts_from("a"),
        (0..50).map(|n| format!("a{n}")).collect::<Vec<_>>()
    );
    assert_eq!(
        texts_from("b"),
        (0..50).map(|n| format!("b{n}")).collect::<Vec<_>>()
    );
    assert_eq!(ada.hear_texts(50).await, texts_from("b"));
    assert_eq!(bea.hear_texts(50).await, texts_from("a"));
    cluster.assert_settled(100).await;
    cluster.stop().await;
}

// One task on the log, for any number of platforms.
// proves S1-12, S1-13, S1-19, S1-61
#[tokio::test]
async fn each_platform_of_a_user_gets_the_message() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut desk = cluster.device(2).ready().await;
    let mut phone = cluster.device_on(2, Platform::Ios, "phone").await;
    let mut web = cluster.device_on(2, Platform::Web, "tab").await;
    let id = ada.say(2, "everywhere").await;
    assert_eq!(cluster.tasks().await, 1);
    for device in [&mut desk, &mut phone, &mut web] {
        assert_eq!(device.hear().await.placed.message.id, id);
    }
    for device in [&mut desk, &mut phone, &mut web] {
        device.hears_nothing().await;
    }
    cluster.assert_settled(1).await;
    for target in ["2/desktop", "2/ios", "2/web"] {
        cluster.assert_traced(id, "Acked", Some(target)).await;
    }
    cluster.stop().await;
}

// Bots may sign in side by side, as one user on one platform.
// proves S1-20
#[tokio::test]
async fn all_sessions_of_a_platform_get_the_message() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut first = cluster.device_on(2, Platform::Bot, "one").await;
    let mut second = cluster.device_on(2, Platform::Bot, "two").await;
    ada.say(2, "to all of you").await;
    assert_eq!(first.hear_texts(1).await, ["to all of you"]);
    assert_eq!(second.hear_texts(1).await, ["to all of you"]);
    cluster.assert_settled(1).await;
    cluster.stop().await;
}

#[tokio::test]
async fn my_other_device_shows_what_i_send() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut phone = cluster.device_on(1, Platform::Ios, "phone").await;
    let _bea = cluster.device(2).ready().await;
    let mut ticket = ada.write(2, "from my desk").await;
    let message = phone.hear().await;
    assert_eq!(text(&message), "from my desk");
    assert_eq!(message.origin, Origin::OwnElsewhere);
    phone.hears_nothing().await;
    // The sending device knows the position without a second event.
    reaches(&mut ticket, |s| {
        s.rank()
            >= SendStatus::Placed {
                id: message.placed.message.id,
                seq: Seq(1),
            }
            .rank()
    })
    .await;
    cluster.assert_settled(1).await;
    cluster.stop().await;
}
