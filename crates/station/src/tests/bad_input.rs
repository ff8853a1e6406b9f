//! Input that a station should never get: each item gets its code, and its neighbours in the batch
//! notice nothing.

use std::time::Duration;

use api::v1;
use bytes::Bytes;
use protocol::{Code, Platform};

use super::world::*;
use crate::Config;
use crate::auth::Claims;

fn answer_code(answer: &v1::SendAnswer) -> Option<Code> {
    let refusal = answer.refusal.as_ref()?;
    Code::from_number(u16::try_from(refusal.code).ok()?)
}

#[tokio::test(start_paused = true)]
async fn bad_sends_get_their_code_and_their_neighbours_are_accepted() {
    let max = 1024;
    let world = world_with(Config {
        body_bytes_max: max,
        ..Config::default()
    })
    .await;
    let wire = |number: u8, change: fn(&mut v1::MsgChat)| {
        let mut item = v1::SendItem::from(&item(1, send(2, number, "fine")));
        let message = item.send.as_mut().and_then(|send| send.message.as_mut());
        change(message.expect("there"));
        item
    };
    type Case = (&'static str, Option<Code>, fn(&mut v1::MsgChat));
    let cases: [Case; 10] = [
        ("a good one", None, |_| {}),
        ("to oneself", Some(Code::ToSelf), |m| m.to_id = 1),
        ("to nobody", Some(Code::InvalidArgument), |m| m.to_id = 0),
        ("to less than nobody", Some(Code::InvalidArgument), |m| {
            m.to_id = -5
        }),
        ("to somebody never seen", None, |m| m.to_id = 999_999_999),
        ("empty text", Some(Code::InvalidArgument), |m| {
            m.data = Bytes::new()
        }),
        ("a maximal body", None, |m| m.data = vec![b'x'; 1024].into()),
        ("one byte more", Some(Code::TooLarge), |m| {
            m.data = vec![b'x'; 1025].into()
        }),
        ("no UUID", Some(Code::InvalidArgument), |m| {
            m.send_id = "42".into()
        }),
        ("an id of the client's own", None, |m| m.msg_id = 4711),
    ];
    let items = cases
        .iter()
        .zip(1..)
        .map(|((_, _, change), number)| wire(number, *change))
        .collect();
    let answers = world.submit_wire(items).await;
    assert_eq!(answers.len(), cases.len());
    for ((case, code, _), answer) in cases.iter().zip(&answers) {
        assert_eq!(answer_code(answer), *code, "{case}: {answer:?}");
        assert_eq!(answer.msg_id > 0, code.is_none(), "{case}");
    }
    assert_eq!(answers[8].send_id, "42", "named as it came");
    // proves S0-32: the id is the server's.
    assert_ne!(answers[9].msg_id, 4711);
    assert_eq!(world.messages().await.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn an_item_without_content_costs_only_itself() {
    let world = world().await;
    let answers = world
        .submit_wire(vec![
            v1::SendItem::default(),
            v1::SendItem::from(&item(1, send(2, 1, "fine"))),
        ])
        .await;
    assert!(answer_code(&answers[0]).is_some());
    assert!(answers[1].msg_id > 0);
}

// T-X2, over the wire.
#[tokio::test(start_paused = true)]
async fn bad_tokens_admit_nobody() {
    let world = world().await;
    let good = Claims::new(user(1), BEGIN, Duration::from_secs(60));
    let expired_claims = Claims {
        exp: BEGIN.millis() / 1000 - 60,
        ..good.clone()
    };
    let other = Claims {
        aud: "ferry".into(),
        ..good.clone()
    };
    let for_web = good.clone().for_platform(Platform::Web);
    let for_tablet = good.clone().for_device(&device("tablet"));
    let cases = [
        ("empty", String::new(), Code::Unauthenticated),
        ("garbage", "garbage".into(), Code::Unauthenticated),
        ("huge", "x".repeat(6000), Code::Unauthenticated),
        ("larger than a hello", "x".repeat(10_000), Code::TooLarge),
        ("expired", sign(&expired_claims), Code::TokenExpired),
        ("other audience", sign(&other), Code::Unauthenticated),
        (
            "for another platform",
            sign(&for_web),
            Code::Unauthenticated,
        ),
        (
            "for another device",
            sign(&for_tablet),
            Code::Unauthenticated,
        ),
    ];
    for (case, token, code) in cases {
        let mut connect = world.connect_request(1, Platform::Ios, 11);
        connect.token = token;
        let refusal = world.connect(&connect).await.expect_err(case);
        assert_eq!(refusal.code, code, "{case}: {refusal}");
    }
    let sessions = world
        .backends
        .mailbox
        .sessions(&[user(1)], <_>::default())
        .await;
    assert!(sessions[0].as_ref().expect("readable").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_long_is_refused_whole() {
    let world = world_with(Config {
        batch_items_max: 2,
        ..Config::default()
    })
    .await;
    let request = v1::SendBatchRequest {
        life: Some((&world.life).into()),
        items: (1..=3)
            .map(|n| (&item(1, send(2, n, "x"))).into())
            .collect(),
    };
    let outcome = world.client.clone().send_batch(request).await;
    assert_eq!(
        refusal_code(&outcome.expect_err("too long")),
        Code::TooLarge
    );
    let no_life = v1::SendBatchRequest::default();
    let outcome = world.client.clone().send_batch(no_life).await;
    assert_eq!(
        refusal_code(&outcome.expect_err("no life")),
        Code::Malformed
    );
    assert!(world.log().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn acks_for_what_was_never_sent_are_refused_one_by_one() {
    let world = world().await;
    let entry = world.place(1, 2, 1, "real").await;
    let real = v1::AckItem {
        conversation: Some(entry.conversation.into()),
        msg_id: entry.message.id.get(),
        seq: 1,
    };
    type Case = (&'static str, i64, fn(&mut v1::AckItem));
    let cases: [Case; 4] = [
        ("never sent", 2, |ack| ack.msg_id += 1),
        ("another place", 2, |ack| ack.seq = 2),
        ("another conversation", 2, |ack| {
            ack.conversation = Some(between(2, 3).into());
        }),
        ("not the receiver's", 3, |_| {}),
    ];
    for (case, number, change) in cases {
        let mut wrong = real;
        change(&mut wrong);
        let answer = receipt(&world, number, vec![wrong, real]).await;
        assert_eq!(answer.refused[0].msg_id, wrong.msg_id, "{case}");
        let refusal = answer.refused[0].refusal.as_ref().expect("a reason");
        assert_eq!(refusal.code, u32::from(Code::NotFound.number()), "{case}");
        let rest = if number == 2 {
            vec![real.msg_id]
        } else {
            vec![]
        };
        assert_eq!(answer.msg_ids, rest, "{case}");
    }
    settle().await;
    assert_eq!(world.boat.frames(), [], "nobody is there to be told");
    let nonsense = receipt(&world, 2, vec![v1::AckItem::default()]).await;
    assert_eq!(nonsense.refused.len(), 1);
}

async fn receipt(world: &World, number: i64, items: Vec<v1::AckItem>) -> v1::AckAnswer {
    let ack = v1::Ack {
        kind: v1::ReceiptKind::Received.into(),
        items,
    };
    let request = v1::ReceiptsRequest {
        items: vec![v1::ReceiptItem {
            user: number,
            session: number,
            ack: Some(ack),
            ..v1::ReceiptItem::default()
        }],
    };
    let answer = world.client.clone().receipts(request).await;
    answer.expect("answered").into_inner().answers.remove(0)
}
