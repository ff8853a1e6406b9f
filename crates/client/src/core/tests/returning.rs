//! Costs of coming back, in rounds of queries.

use protocol::frame::{ClientFrame, HistoryPage, HistoryRange, ListPage, SyncAnswer, SyncQuery};
use protocol::id::Uuid;
use protocol::{Placed, SendId, Seq};

use super::device::{Device, message, summary, with};

const PAGE: u64 = 100;

/// Message with an id of its own.
fn named(seq: u64) -> Placed {
    let mut entry = message(seq);
    entry.message.send_id = SendId::from_uuid(Uuid::from_u64_pair(9, seq));
    entry
}

/// Answers every query about a conversation of `last` messages. Returns the number of rounds it
/// took.
fn rounds(device: &mut Device, last: u64) -> usize {
    let all: Vec<Placed> = (1..=last).map(named).collect();
    for round in 0.. {
        let requests = device
            .take_sent()
            .into_iter()
            .filter_map(|frame| match frame {
                ClientFrame::Sync(request) => Some(request),
                _ => None,
            });
        let requests: Vec<_> = requests.collect();
        if requests.is_empty() {
            return round;
        }
        for request in requests {
            let answer = match request.query {
                SyncQuery::List { .. } => SyncAnswer::List(ListPage {
                    conversations: vec![summary(2, last)],
                    version: device.now,
                    more: false,
                }),
                SyncQuery::History {
                    range: HistoryRange::Forward { after },
                    limit,
                    ..
                } => {
                    let limit = u64::from(limit).min(PAGE) as usize;
                    let page: Vec<Placed> = (all[after.0 as usize..].iter())
                        .take(limit)
                        .cloned()
                        .collect();
                    SyncAnswer::History(HistoryPage {
                        conversation: with(2),
                        more: after.0 + (page.len() as u64) < last,
                        messages: page,
                        marks: Default::default(),
                        statuses: Default::default(),
                        rev: 0,
                        last_seq: Seq(last),
                    })
                }
                other => panic!("nobody needs {other:?}"),
            };
            device.answer(request.request, answer);
        }
    }
    unreachable!("rounds go on for ever")
}

// proves S0-16, S0-17, S0-21: a thousand missed messages are in after the list and one round for each page.
#[test]
fn a_return_takes_a_round_for_each_page_and_one() {
    for (missed, pages) in [(0, 0), (1, 1), (250, 3), (1000, 10)] {
        let mut device = Device::new();
        device.sign_in();
        let rounds = rounds(&mut device, missed);
        assert!(device.is_ready());
        assert_eq!(device.take_shown().len() as u64, missed);
        assert!(rounds <= pages + 1, "{missed} missed: {rounds} rounds");
    }
}
