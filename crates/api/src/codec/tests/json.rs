//! Frames beside history, compared with their rows as JSON.

use std::hint::black_box;
use std::time::Duration;

use protocol::message::{Content, Message, Position, Recipient};
use protocol::{ConversationId, DeviceId, GroupId, MessageId, Options, Seq, Timestamp};
use serde::{Deserialize, Serialize};

use super::*;

/// A row of a group by the names of its columns; text columns stand as text.
#[derive(Serialize, Deserialize)]
struct Row {
    gid: i64,
    uid: i64,
    id: i64,
    tm: i64,
    seq: u64,
    prev: i64,
    send_id: String,
    dev: String,
    opt: u8,
    mt: i32,
    draf: String,
}

impl Row {
    fn from_message(placed_message: &Placed) -> Row {
        let message = &placed_message.message;
        let Recipient::Group(group) = message.to else {
            panic!("of a group");
        };
        Row {
            gid: group.get(),
            uid: message.from.get(),
            id: message.id.get(),
            tm: message.accepted_at.millis(),
            seq: placed_message.position.seq.0,
            prev: placed_message.position.prev.map_or(0, MessageId::get),
            send_id: message.send_id.to_string(),
            dev: message.device.as_str().to_owned(),
            opt: message.options.bits(),
            mt: message.content.kind,
            draf: String::from_utf8_lossy(&message.content.data).into_owned(),
        }
    }
}

fn sample_message(size: usize) -> Placed {
    let group = GroupId::new(1_001).expect("positive");
    let accepted_at = Timestamp::from_millis(1_790_000_000_000);
    let id = MessageId::floor_of(accepted_at);
    Placed {
        conversation: ConversationId::Group(group),
        position: Position {
            seq: Seq(86),
            prev: MessageId::new(id.get() - 4096).ok(),
        },
        message: Message {
            id,
            from: UserId::new(70_001).expect("positive"),
            to: Recipient::Group(group),
            accepted_at,
            device: DeviceId::new("pixel-9").expect("short"),
            send_id: SendId::from_bytes(*b"sixteen bytes it"),
            options: Options::CHAT,
            content: Content::text("word ".repeat(size / 5)),
        },
    }
}

/// The shortest of several runs: nobody else was at work then.
#[allow(clippy::disallowed_methods, reason = "the machine's time is measured")]
fn shortest(mut run: impl FnMut()) -> Duration {
    let durations = (0..10).map(|_| {
        let begin = std::time::Instant::now();
        (0..100).for_each(|_| run());
        begin.elapsed()
    });
    durations.min().unwrap_or_default()
}

// proves S0-78: smaller than its row as JSON, and sooner written and read.
// `cargo test --release -p api smaller_and_faster -- --nocapture` prints by how much (docs/benchmarks.md).
#[test]
#[allow(clippy::print_stdout, reason = "it is read by a person")]
fn a_frame_is_smaller_and_faster_than_its_row_as_json() {
    for size in [20, 200, 2000] {
        let message = sample_message(size);
        let body = encode_message(&message);
        let wire = v1::ServerFrame::decode(body.clone()).expect("protobuf");
        let row = Row::from_message(&message);
        let json = serde_json::to_vec(&row).expect("serialisable");
        let (mut write_cost, mut read_cost) = ([Duration::MAX; 2], [Duration::MAX; 2]);
        // In turn, so that both meet the same machine.
        for _ in 0..20 {
            let ours = shortest(|| _ = black_box(wire.encode_to_vec()));
            let theirs = shortest(|| _ = black_box(serde_json::to_vec(&row)));
            write_cost = [write_cost[0].min(ours), write_cost[1].min(theirs)];
            let ours = shortest(|| _ = black_box(v1::ServerFrame::decode(body.clone())));
            let theirs = shortest(|| _ = black_box(serde_json::from_slice::<Row>(&json)));
            read_cost = [read_cost[0].min(ours), read_cost[1].min(theirs)];
        }
        let share = |[ours, theirs]: [Duration; 2]| ours.as_secs_f64() / theirs.as_secs_f64();
        let (ours, theirs) = (body.len(), json.len());
        let (write_cost, read_cost) = (share(write_cost), share(read_cost));
        println!(
            "{size}: {ours} bytes to {theirs} ({:.2}), writing {write_cost:.2}, reading {read_cost:.2}",
            ours as f64 / theirs as f64
        );
        assert!(ours < theirs, "{size}");
        assert!(
            write_cost < 1.0 && read_cost < 1.0,
            "{size}: {write_cost} {read_cost}"
        );
    }
}
