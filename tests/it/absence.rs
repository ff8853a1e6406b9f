//! Recipients who are away when a message is sent.

use std::time::Duration;

use backend::hook::Fault;
use operator::audit::trace::EventDetail;
use protocol::frame::Send;
use protocol::mailbox::MailboxPolicy;
use protocol::message::Target;
use protocol::{MessageId, Options, Platform, Seq};
use tests::faults::MAILBOX;
use tests::person::{conversation, text};
use tests::wire::{Port, Wire, send};
use tests::{Cluster, settings, user};

async fn waiting(cluster: &Cluster, user_number: i64, platform: Platform) -> u64 {
    let target = Target {
        user: user(user_number),
        platform,
    };
    let mailbox = &cluster.backends.mailbox;
    mailbox.waiting(target).await.expect("the mailbox answers")
}

// proves S1-11, S1-19, S1-63, S2-03, S2-31 in part
#[tokio::test]
async fn messages_of_an_absence_arrive_in_order_and_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("bea.sqlite");
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let bea = cluster.device(2).keeping(state.clone()).ready().await;
    bea.close().await;

    let mut ids: Vec<MessageId> = Vec::new();
    for number in 0..20 {
        ids.push(ada.say(2, &number.to_string()).await);
    }
    cluster.assert_settled(20).await;
    assert_eq!(waiting(&cluster, 2, Platform::Desktop).await, 20);
    for event in [
        "StoredOffline",
        "Notified",
        "NotificationSent { provider: \"record\", ok: true }",
    ] {
        cluster
            .assert_traced(ids[7], event, Some("2/desktop"))
            .await;
    }

    let mut bea = cluster.device(2).keeping(state.clone()).ready().await;
    for id in &ids {
        assert_eq!(bea.hear().await.placed.message.id, *id);
    }
    bea.hears_nothing().await;
    tests::system::eventually("the mailbox is empty", async || {
        (waiting(&cluster, 2, Platform::Desktop).await == 0).then_some(())
    })
    .await;
    cluster
        .assert_traced(ids[7], "Fetched", Some("2/desktop"))
        .await;
    let verdict = cluster.trace(ids[7]).await.verdict.items.join("\n");
    assert!(verdict.contains("offline"), "{verdict}");
    bea.close().await;

    // The next sign-in brings none of them again.
    let mut bea = cluster.device(2).keeping(state).ready().await;
    bea.hears_nothing().await;
    cluster.assert_settled(20).await;
    cluster.stop().await;
}

// proves S0-16, S0-18, S0-19, S0-22: after a day a desktop is shown the newest of a private chat, and loads the rest backward
// until the message that it received last.
#[tokio::test]
async fn a_long_absence_is_loaded_backward_until_the_last_received() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("bea.sqlite");
    let mut settings = settings();
    // Messages that waited for the device have expired.
    settings.embedded.mailbox.expire = Duration::from_millis(1);
    settings.redis.expire = Duration::from_millis(1);
    let cluster = Cluster::with(settings, |backends| backends).await;
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).keeping(state.clone()).ready().await;
    for n in 1..=3 {
        ada.say(2, &n.to_string()).await;
        bea.hear().await;
    }
    bea.close().await;
    for n in 4..=30 {
        ada.say(2, &n.to_string()).await;
    }
    cluster.assert_settled(30).await;
    let bea = cluster.device(2).keeping(state).after_long(5);
    let mut bea = bea.connect().await;
    let (shown_seqs, gap) = bea.newest_and_gap(5).await;
    assert_eq!(shown_seqs, (26..=30).map(Seq).collect::<Vec<_>>());
    assert_eq!(gap, (Seq(4), Seq(25)));
    let loaded_seqs = bea.load_gap(conversation(1, 2), gap).await;
    assert_eq!(loaded_seqs, (4..=25).map(Seq).collect::<Vec<_>>());
    cluster.stop().await;
}

// proves S1-04: a notification for each platform that is away, which names it; none for one that is there, for a bot, of
// which no mail is kept, or for one that the user never was on.
#[tokio::test]
async fn each_platform_that_is_away_is_notified_by_itself() {
    let cluster = Cluster::start().await;
    for platform in [Platform::Ios, Platform::Android, Platform::Bot] {
        let device = cluster.device_on(2, platform, "away").await;
        device.close().await;
    }
    let mut web = cluster.device_on(2, Platform::Web, "there").await;
    let ada = cluster.device(1).ready().await;
    let id = ada.say(2, "hello").await;
    assert_eq!(text(&web.hear().await), "hello");
    cluster.assert_settled(1).await;
    let away_targets = ["2/android", "2/ios"];
    for target in away_targets {
        cluster
            .assert_traced(id, "NotificationSent", Some(target))
            .await;
    }
    let events = cluster.trace(id).await.events.items;
    let notifications =
        (events.iter()).filter(|entry| matches!(entry.event, EventDetail::NotificationSent { .. }));
    let mut targets: Vec<_> = notifications
        .filter_map(|entry| entry.target.as_deref())
        .collect();
    targets.sort_unstable();
    assert_eq!(targets, away_targets);
    cluster.stop().await;
}

// proves S1-64: needs an acknowledgement, is stored, is notified of: each by itself and with the others.
#[tokio::test]
async fn each_of_eight_options_does_what_it_names() {
    let cluster = Cluster::start().await;
    cluster.device(2).ready().await.close().await;
    let mut cy = cluster.device(3).ready().await;
    let mut ada = Wire::signed_in(&cluster, Port::Tcp, 1).await;
    let mut stored_count = 0;
    for bits in 0..8 {
        let options = Options::from_bits(bits).expect("three bits");
        let send = |to| Send {
            options,
            ..send(to, "hello")
        };
        let away_id = ada.ask(send(2)).await.expect("accepted");
        let present_id = ada.ask(send(3)).await.expect("accepted");
        cy.hear().await;
        cluster.assert_settled(2 * (u64::from(bits) + 1)).await;
        let is_stored = options.has(Options::STORE_OFFLINE);
        let (end, live_end) = match (is_stored, options.has(Options::NEEDS_ACK)) {
            (true, true) => ("StoredOffline", "Acked"),
            (true, false) => ("StoredOffline", "Written"),
            (false, true) => ("ReachableBySync", "Acked"),
            (false, false) => ("Dropped", "Written"),
        };
        cluster.assert_traced(away_id, end, Some("2/desktop")).await;
        cluster
            .assert_traced(present_id, live_end, Some("3/desktop"))
            .await;
        stored_count += u64::from(is_stored);
        assert_eq!(waiting(&cluster, 2, Platform::Desktop).await, stored_count);
        let events = cluster.trace(away_id).await.events.items;
        let is_notified = |event: &EventDetail| matches!(event, EventDetail::Notified);
        let was_notified = events.iter().any(|entry| is_notified(&entry.event));
        assert_eq!(was_notified, options.has(Options::NOTIFY_OFFLINE), "{bits}");
    }
    cy.close().await;
    cluster.stop().await;
}

// The ledger says that it was stored; only the mailbox knows whether it still waits.
#[tokio::test]
async fn a_trace_says_whether_it_still_waits() {
    let (cluster, faults) = Cluster::with_faults(tests::settings()).await;
    let ada = cluster.device(1).ready().await;
    cluster.device(2).ready().await.close().await;
    let [lost_id, fetched_id] = [ada.say(2, "lost").await, ada.say(2, "fetched").await];
    cluster.assert_settled(2).await;
    let assert_said = async |id, phrase| {
        let verdict = cluster.trace(id).await.verdict.items.join("\n");
        assert!(
            verdict.contains("stored offline for 2/desktop"),
            "{verdict}"
        );
        assert!(verdict.contains(phrase), "{verdict}");
    };
    let target = Target {
        user: user(2),
        platform: Platform::Desktop,
    };
    assert_said(lost_id, "not fetched yet").await;
    faults.begin(MAILBOX.named("find"), Fault::Unavailable);
    assert_said(lost_id, "the mailbox does not answer").await;
    faults.end(MAILBOX.named("find"));

    // A station that dies after the mailbox has dropped a message tells the ledger nothing.
    let store = &cluster.backends.mailbox;
    let acks = vec![(target, vec![fetched_id])];
    let acks = store.acknowledge(acks, cluster.now()).await;
    assert_eq!(acks[0].as_ref().expect("acknowledged"), &[fetched_id]);
    assert_said(fetched_id, "acknowledged by a device").await;
    assert_said(lost_id, "not fetched yet").await;

    let empty_mailbox = MailboxPolicy {
        expire: Duration::MAX,
        count_max: Some(0),
    };
    let trimmed_count = store.trim(target, empty_mailbox, cluster.now()).await;
    assert_eq!(trimmed_count.expect("trimmed"), 1);
    assert_said(lost_id, "no longer in the mailbox").await;
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear().await.placed.message.id, lost_id);
    bea.close().await;
    cluster.stop().await;
}

// proves S1-19: one platform is there and the other is not.
#[tokio::test]
async fn a_platform_that_is_away_has_its_own_copy_waiting() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let mut desk = cluster.device(2).ready().await;
    let phone = || cluster.device(2).on(Platform::Ios).named("phone");
    phone().ready().await.close().await;

    let id = ada.say(2, "see you").await;
    assert_eq!(desk.hear().await.placed.message.id, id);
    cluster.assert_settled(1).await;
    cluster.assert_traced(id, "Acked", Some("2/desktop")).await;
    cluster
        .assert_traced(id, "StoredOffline", Some("2/ios"))
        .await;
    assert_eq!(waiting(&cluster, 2, Platform::Desktop).await, 0);
    assert_eq!(waiting(&cluster, 2, Platform::Ios).await, 1);

    let mut phone = phone().ready().await;
    assert_eq!(text(&phone.hear().await), "see you");
    phone.hears_nothing().await;
    desk.hears_nothing().await;
    cluster.stop().await;
}

// Nobody ever signed in as this user: no mailbox can hold the message, and nothing is lost.
#[tokio::test]
async fn a_message_to_a_newcomer_is_found_at_the_first_sign_in() {
    let cluster = Cluster::start().await;
    let ada = cluster.device(1).ready().await;
    let id = ada.say(77, "welcome aboard").await;
    cluster.assert_settled(1).await;
    cluster.assert_traced(id, "ReachableBySync", None).await;
    let mut newcomer = cluster.device(77).ready().await;
    assert_eq!(text(&newcomer.hear().await), "welcome aboard");
    newcomer.hears_nothing().await;
    cluster.stop().await;
}

// proves S1-54: what waits comes in pages of 64.
#[tokio::test]
async fn mail_comes_in_pages_of_64() {
    const MESSAGE_COUNT: usize = 130;
    // Each assertion of the session would ask for mail once more.
    let mut settings = settings();
    settings.boat.sweep_pause_max = settings.boat.sweep_interval;
    let (cluster, faults) = Cluster::with_faults(settings).await;
    let ada = cluster.device(1).ready().await;
    cluster.device(2).ready().await.close().await;
    let texts: Vec<String> = (0..MESSAGE_COUNT)
        .map(|number| number.to_string())
        .collect();
    for text in &texts {
        ada.say(2, text).await;
    }
    cluster.assert_settled(MESSAGE_COUNT as u64).await;
    let mailbox = waiting(&cluster, 2, Platform::Desktop).await;
    assert_eq!(mailbox, MESSAGE_COUNT as u64);
    faults.calls("mailbox", "page");
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(MESSAGE_COUNT).await, texts);
    tests::system::eventually("the mailbox is empty", async || {
        (waiting(&cluster, 2, Platform::Desktop).await == 0).then_some(())
    })
    .await;
    assert_eq!(faults.calls("mailbox", "page"), 3, "64, 64 and 2");
    bea.close().await;
    cluster.stop().await;
}

// A phone lay in a drawer: the mailbox has long dropped the oldest of its messages.
// proves S0-13
#[tokio::test]
async fn a_device_that_was_away_for_long_catches_up_with_all() {
    const MESSAGE_COUNT: usize = 30;
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = tests::settings();
    settings.embedded.mailbox.count_max = 5;
    let cluster = Cluster::with(settings, |backends| backends).await;
    let ada = cluster.device(1).ready().await;
    let mut desk = cluster.device(2).ready().await;
    let mut tab = cluster.device(2).on(Platform::Web).ready().await;
    let phone = || {
        let phone = cluster.device(2).on(Platform::Ios).named("phone");
        phone.keeping(dir.path().join("phone.sqlite"))
    };
    phone().ready().await.close().await;

    let texts: Vec<String> = (0..MESSAGE_COUNT)
        .map(|number| number.to_string())
        .collect();
    for text in &texts {
        ada.say(2, text).await;
    }
    for device in [&mut desk, &mut tab] {
        assert_eq!(device.hear_texts(MESSAGE_COUNT).await, texts);
    }
    cluster.assert_settled(MESSAGE_COUNT as u64).await;
    assert_eq!(waiting(&cluster, 2, Platform::Ios).await, 5);

    let mut phone = phone().ready().await;
    assert_eq!(phone.hear_texts(MESSAGE_COUNT).await, texts);
    phone.hears_nothing().await;
    cluster.stop().await;
}

// The system stops and starts again on the same directory.
#[tokio::test]
async fn messages_wait_through_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let cluster = Cluster::on_disk(tests::patient_settings(), &data).await;
    cluster.device(2).ready().await.close().await;
    let ada = cluster.device(1).ready().await;
    for number in 0..5 {
        ada.say(2, &number.to_string()).await;
    }
    ada.close().await;
    let settings = cluster.stop().await;

    let cluster = Cluster::on_disk(settings, &data).await;
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(5).await, ["0", "1", "2", "3", "4"]);
    bea.hears_nothing().await;
    cluster.assert_settled(5).await;
    cluster.stop().await;
}
