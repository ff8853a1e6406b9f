//! Cost of the largest group, counted over the whole suite in one process.

#![allow(clippy::print_stdout, reason = "says what was measured")]

use std::time::Duration;

use peak_alloc::PeakAlloc;
use protocol::frame::Send;
use protocol::group::{GroupInfo, Member, Role};
use protocol::history::Version;
use protocol::ledger::LedgerEvent;
use protocol::{GroupId, Recipient, Seq};
use tests::person::{CLOSED, user};
use tests::wire::{Port, Wire, send};
use tests::{Cluster, patient_settings};
use tokio::time::Instant;

#[global_allocator]
static ALLOCATED: PeakAlloc = PeakAlloc;

const MEMBERS: i64 = 100_000;
const MESSAGES: usize = 512;
const PAIRS: i64 = 8;
const ROUNDS: usize = 6;
/// Memory a carrier may need.
const BYTES_MAX: usize = 1 << 30;

async fn largest_group(cluster: &Cluster) -> GroupId {
    let group = GroupId::new(77).expect("a group");
    let member = |number: i64| {
        let role = if number == 1 {
            Role::Owner
        } else {
            Role::Member
        };
        Member::new(Some(role), Seq::ZERO, Version::default())
    };
    let members: Vec<_> = (1..=MEMBERS).map(|n| (user(n), member(n))).collect();
    for members in members.chunks(1000) {
        let info = GroupInfo::uncounted(CLOSED, Version::default());
        let groups = &cluster.backends.groups;
        let save = groups.save(group, Some(info), members.to_vec());
        save.await.expect("saves");
    }
    group
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn largest_group_burst_fits_in_memory_and_private_chats_go_on() {
    // Time passes on several threads, and is measured.
    let mut cluster = Cluster::on_sockets(patient_settings(), |backends| backends).await;
    cluster.waive_judges("it ends in the middle of a burst");
    let group = largest_group(&cluster).await;
    let mut owner = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    ALLOCATED.reset_peak_usage();
    let baseline_bytes = ALLOCATED.current_usage();

    let mut last = None;
    for _ in 0..MESSAGES {
        let message = Send {
            to: Recipient::Group(group),
            ..send(1, "to all")
        };
        last = Some(owner.ask(message).await.expect("accepted"));
    }
    let mut slowest = Duration::ZERO;
    for pair in 0..PAIRS {
        let number = MEMBERS + 1 + 2 * pair;
        let mut sender = Wire::signed_in(&cluster, Port::Tcp, number).await;
        let mut receiver = Wire::signed_in(&cluster, Port::Tcp, number + 1).await;
        for _ in 0..ROUNDS {
            let start = Instant::now();
            let id = sender.ask(send(number + 1, "to you")).await;
            let (placed, _) = receiver.next_message().await;
            assert_eq!(Ok(placed.message.id), id);
            slowest = slowest.max(start.elapsed());
            receiver.acknowledge(&placed).await;
        }
    }
    let peak = ALLOCATED.peak_usage();
    println!(
        "{MESSAGES} messages to {MEMBERS}: {} MiB at most, {} MiB before; a private message {slowest:?} at most",
        peak >> 20,
        baseline_bytes >> 20
    );
    let last = last.expect("one was sent");
    let entries = cluster.backends.ledger.trace(&[last]).await.expect("reads");
    let is_settled = entries[0]
        .iter()
        .any(|entry| entry.event == LedgerEvent::Settled);
    // Whatever the machine takes for either, no private message waited for the group's.
    assert!(!is_settled, "the group was reached before it was measured");
    assert!(peak < BYTES_MAX, "{peak}");
    cluster.stop().await;
}
