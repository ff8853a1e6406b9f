//! Outcomes of records, whatever the provider.

use std::sync::atomic::{AtomicU64, Ordering};

use api::dead_letter::DeadLetter;
use async_trait::async_trait;
use protocol::change::ListArrangement;
use protocol::history::Version;
use protocol::ledger::DeadReason;
use protocol::notify::NotifyFailure;
use tokio::sync::Semaphore;

use super::*;
use crate::{ProviderError, ProviderPush, Recorder};

/// Provider with a scripted answer; holds calls while it has no permits.
struct ScriptedProvider {
    answer: fn(&ProviderPush) -> Result<(), ProviderError>,
    calls: AtomicU64,
    gate: Semaphore,
}

impl ScriptedProvider {
    fn new(
        permits: usize,
        answer: fn(&ProviderPush) -> Result<(), ProviderError>,
    ) -> Arc<ScriptedProvider> {
        Arc::new(ScriptedProvider {
            answer,
            calls: AtomicU64::new(0),
            gate: Semaphore::new(permits),
        })
    }

    fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    async fn wait_for_calls(&self, times: u64) {
        let enough_calls = async {
            while self.calls() < times {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        let outcome = tokio::time::timeout(TEST_TIMEOUT, enough_calls).await;
        outcome.expect("called");
    }
}

#[async_trait]
impl Provider for ScriptedProvider {
    fn name(&self) -> &'static str {
        "scripted"
    }

    async fn send(&self, push: &ProviderPush) -> Result<(), ProviderError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let _permit = self.gate.acquire().await.expect("open");
        (self.answer)(push)
    }
}

// proves S1-63: horn consumes notification tasks and calls a provider, for each platform.
#[tokio::test(start_paused = true)]
async fn each_target_is_told_and_the_ledger_knows() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    let web = mail(1);
    let mut ios = web;
    ios.target.platform = Platform::Ios;
    desk.publish(web).await;
    let partition = desk.publish(ios).await;
    desk.wait_for_commit(partition, 2).await;
    let mut notifications = recorder.recorded();
    notifications.sort_by_key(|notification| notification.target);
    assert_eq!(notifications, [ios, web]);
    let trace = desk.ledger.trace(&[web.message]).await.expect("reads");
    assert_eq!(trace[0].len(), 2);
    assert_eq!(desk.letters().await.len(), 0);
    horn.stop().await;
}

/// Muted messages still appear in the user's list; and once the mute ends, notifications resume.
#[tokio::test(start_paused = true)]
async fn muted_user_is_not_notified() {
    let desk = Desk::new();
    let arrange = async |offset, end| {
        let version = Version { epoch: 1, offset };
        let arrangement = ListArrangement {
            pinned: false,
            muted_until: Some(end),
        };
        let moves = vec![(user(2), mail(1).conversation, version, arrangement)];
        let save = desk.conversations.arrange(moves, SystemClock.now());
        save.await.expect("saves");
    };
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    let mute_end = SystemClock.now() + Duration::from_secs(3600);
    arrange(1, mute_end).await;
    let (muted_mail, loud_mail) = (mail(1), mail(2));
    let partition = desk.publish(muted_mail).await;
    desk.wait_for_commit(partition, 1).await;
    assert_eq!(recorder.recorded(), []);
    let trace = desk
        .ledger
        .trace(&[muted_mail.message])
        .await
        .expect("reads");
    let muted_event = LedgerEvent::NotificationSent {
        provider: "mute".to_owned(),
        ok: false,
    };
    assert_eq!(
        trace[0].iter().map(|e| &e.event).collect::<Vec<_>>(),
        [&muted_event]
    );
    arrange(2, SystemClock.now()).await;
    desk.publish(loud_mail).await;
    desk.wait_for_commit(partition, 2).await;
    assert_eq!(recorder.recorded(), [loud_mail]);
    assert_eq!(desk.letters().await.len(), 0);
    horn.stop().await;
}

/// The settings choose the provider, and a missing one is named.
#[tokio::test(start_paused = true)]
async fn settings_choose_the_provider() {
    let desk = Desk::new();
    let shutdown = CancellationToken::new();
    let handle = crate::start(Config::default(), desk.parts(), shutdown.clone()).await;
    let handle = handle.expect("starts");
    desk.publish(mail(1)).await;
    let recorder = handle.recorder().expect("records");
    let outcome = tokio::time::timeout(TEST_TIMEOUT, recorder.reached(1)).await;
    outcome.expect("told");
    shutdown.cancel();
    handle.drained().await;

    let no_url = Config {
        provider: crate::ProviderKind::Webhook,
        ..Config::default()
    };
    let start_error = crate::start(no_url.clone(), desk.parts(), shutdown.clone()).await;
    assert!(matches!(start_error, Err(crate::StartError::NoUrl)));
    let no_secret = Config {
        url: Some("https://example.org/".into()),
        secret_file: Some("/nowhere/secret".into()),
        ..no_url
    };
    let start_error = crate::start(no_secret, desk.parts(), shutdown).await;
    assert!(matches!(start_error, Err(crate::StartError::Secret(_))));
}

/// Storing again publishes again; the user is notified once.
#[tokio::test(start_paused = true)]
async fn a_repeated_task_is_told_once() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    for _ in 0..3 {
        desk.publish(mail_with_id(7)).await;
    }
    let partition = desk.publish(mail_with_id(8)).await;
    desk.wait_for_commit(partition, 4).await;
    assert_eq!(recorder.total(), 2);
    horn.stop().await;
}

/// The same message in each call, unlike [`mail`].
fn mail_with_id(n: i64) -> Notification {
    let mut notification = mail(0);
    notification.message = MessageId::new(n).expect("positive");
    notification
}

/// A commit never passes a notification without an outcome, although later ones have theirs.
#[tokio::test(start_paused = true)]
async fn a_commit_waits_for_the_oldest() {
    let desk = Desk::new();
    let slow_first = ScriptedProvider::new(1, |push| match push.notification.message.get() {
        1 if push.attempt < 3 => Err(ProviderError::new(NotifyFailure::Unavailable, "later")),
        _ => Ok(()),
    });
    let config = Config {
        retry_delay: Duration::from_millis(200),
        retry_delay_max: Duration::from_millis(200),
        ..quick()
    };
    let horn = desk.horn(config, slow_first.clone()).await;
    for n in 1..=5 {
        desk.publish(mail_with_id(n)).await;
    }
    slow_first.wait_for_calls(5).await;
    let partition = desk.publish(mail_with_id(6)).await;
    slow_first.wait_for_calls(6).await;
    assert_eq!(desk.committed(partition).await, 0);
    desk.wait_for_commit(partition, 6).await;
    assert_eq!(slow_first.calls(), 8);
    horn.stop().await;
}

/// A notification that waits for another attempt at a stop is sent by the next life.
#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_where_nothing_was_committed() {
    let desk = Desk::new();
    let provider = ScriptedProvider::new(9, |_| {
        Err(ProviderError::new(NotifyFailure::Unavailable, "down"))
    });
    let config = Config {
        retry_delay: Duration::from_secs(3600),
        retry_delay_max: Duration::from_secs(3600),
        ..quick()
    };
    let horn = desk.horn(config, provider.clone()).await;
    let notification = mail(1);
    let partition = desk.publish(notification).await;
    provider.wait_for_calls(1).await;
    horn.stop().await;
    assert_eq!(desk.committed(partition).await, 0);

    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    desk.wait_for_commit(partition, 1).await;
    assert_eq!(recorder.recorded(), [notification]);
    assert_eq!(
        desk.ledger_outcomes(notification).await,
        [("record".to_owned(), true)]
    );
    horn.stop().await;
}

/// An outcome that cannot be recorded is not committed, so that the notification is repeated rather
/// than lost.
#[tokio::test(start_paused = true)]
async fn no_ledger_no_commit() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    desk.ledger_engine.crash(0).expect("in memory");
    let partition = desk.publish(mail(1)).await;
    recorder.reached(1).await;
    horn.stop().await;
    assert_eq!(desk.committed(partition).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_record_is_a_dead_letter_and_stops_nobody() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    let key = Bytes::copy_from_slice(&control_key(user(2)));
    let garbage = Bytes::from_static(b"\xff\xff no task");
    desk.publish_bytes(key.clone(), garbage.clone()).await;
    let partition = desk.publish(mail(1)).await;
    desk.wait_for_commit(partition, 2).await;
    assert_eq!(recorder.total(), 1);
    let letters = desk.letters().await;
    let (record, headers) = &letters[0];
    assert_eq!((&record.key, &record.value), (&key, &garbage));
    assert_eq!(headers["reason"], "undecodable");
    assert_eq!(headers["origin-topic"], "notification");
    assert_eq!(headers["origin-offset"], "0");
    assert_eq!(letters.len(), 1);
    horn.stop().await;
}

#[tokio::test(start_paused = true)]
async fn old_message_is_not_notified() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(10));
    let horn = desk.horn(quick(), recorder.clone()).await;
    let mut old = mail(1);
    old.accepted_at = old.accepted_at - Duration::from_secs(2 * 24 * 3600);
    let partition = desk.publish(old).await;
    desk.wait_for_commit(partition, 1).await;
    assert_eq!(recorder.total(), 0);
    assert_eq!(desk.letters().await[0].1["reason"], "expired");
    horn.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_provider_that_panics_costs_one_notification() {
    let desk = Desk::new();
    let fragile = ScriptedProvider::new(9, |push| {
        assert_ne!(push.notification.message.get(), 1, "a bug");
        Ok(())
    });
    let horn = desk.horn(quick(), fragile).await;
    let first = desk.publish(mail_with_id(1)).await;
    desk.publish(mail_with_id(2)).await;
    desk.wait_for_commit(first, 2).await;
    let letters = desk.letters().await;
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].1["reason"], "handler-panic");
    horn.stop().await;
}

/// A horn remembers the targets that it notified, not those that it gave up: a redriven dead letter
/// is tried again.
#[tokio::test(start_paused = true)]
async fn redriven_dead_letter_is_notified() {
    let desk = Desk::new();
    let refusing =
        ScriptedProvider::new(9, |_| Err(ProviderError::new(NotifyFailure::Refused, "no")));
    let horn = desk.horn(quick(), refusing.clone()).await;
    let notification = mail(1);
    for times in 1..=2 {
        let partition = desk.publish(notification).await;
        desk.wait_for_commit(partition, times).await;
        assert_eq!(refusing.calls(), times);
    }
    let letters = desk.letters().await;
    assert_eq!(letters.len(), 2);
    let letter = DeadLetter::from_headers(&letters[0].0.headers).expect("readable");
    assert_eq!(letter.reason, DeadReason::Refused);
    assert_eq!(letter.message, Some(notification.message));
    assert_eq!(letter.conversation, Some(notification.conversation));
    assert_eq!(letter.targets, [notification.target]);
    assert_eq!(letter.error_message, "no");
    horn.stop().await;
}

/// The desk publishes a redrive again if its worker died before the log of operations had the
/// outcome: one more letter of it would be news of nothing.
#[tokio::test(start_paused = true)]
async fn a_repeated_redrive_is_tried_once() {
    let desk = Desk::new();
    let refusing =
        ScriptedProvider::new(9, |_| Err(ProviderError::new(NotifyFailure::Refused, "no")));
    let horn = desk.horn(quick(), refusing.clone()).await;
    let notification = mail(1);
    let names = ["notification-0-7", "notification-0-7", "notification-0-8"];
    for (times, (letter, calls)) in (1..).zip(names.into_iter().zip([1, 1, 2])) {
        let partition = desk.publish_redrive(notification, Some(letter)).await;
        desk.wait_for_commit(partition, times).await;
        assert_eq!(refusing.calls(), calls, "{letter}");
    }
    assert_eq!(desk.letters().await.len(), 2);
    horn.stop().await;
}

/// At its bounds the horn makes no further call and reads no further; the rest waits in the log.
#[tokio::test(start_paused = true)]
async fn calls_and_memory_are_bounded() {
    let desk = Desk::new();
    let provider = ScriptedProvider::new(0, |_| Ok(()));
    let config = Config {
        concurrency: 2,
        pending_max: 3,
        timeout: TEST_TIMEOUT,
        ..quick()
    };
    let horn = desk.horn(config, provider.clone()).await;
    let mut partition = desk.publish(mail_with_id(1)).await;
    for n in 2..=10 {
        partition = desk.publish(mail_with_id(n)).await;
    }
    provider.wait_for_calls(2).await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(provider.calls(), 2);
    provider.gate.add_permits(2);
    desk.wait_for_commit(partition, 10).await;
    assert_eq!(provider.calls(), 10);
    horn.stop().await;
}

/// A second horn takes over a part of the log; no target is forgotten, and in an orderly handover
/// none is notified twice.
#[tokio::test(start_paused = true)]
async fn a_partition_changes_hands_between_outcomes() {
    let desk = Desk::new();
    let recorder = Arc::new(Recorder::new(1000));
    let slow = Config {
        concurrency: 1,
        ..quick()
    };
    let one = desk.horn(slow.clone(), recorder.clone()).await;
    let mut ends = BTreeMap::new();
    let mut publish_count = 0;
    let mut other = None;
    for n in 1..=200 {
        let mut notification = mail_with_id(n);
        notification.target.user = user(n);
        *ends.entry(desk.publish(notification).await).or_insert(0) += 1;
        publish_count += 1;
        if n == 100 {
            other = Some(desk.horn(slow.clone(), recorder.clone()).await);
        }
    }
    assert_eq!(ends.len(), 2, "both partitions are used");
    for (partition, end) in ends {
        desk.wait_for_commit(partition, end).await;
    }
    assert_eq!(recorder.total(), publish_count);
    one.stop().await;
    other.expect("a second horn").stop().await;
}
