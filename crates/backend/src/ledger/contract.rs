//! Contract of every ledger. Each check uses messages of its own.

use protocol::ledger::{DeadReason, FailureCause, LedgerEntry, LedgerEvent};
use protocol::message::Target;
use protocol::presence::BoatLife;
use protocol::{
    BoatId, ConversationId, Incarnation, MessageId, Platform, SendId, Seq, SessionId, Timestamp,
};

use super::LedgerStore;
use crate::test_ids::TestIds;

fn entry(message: MessageId, after_millis: i64, event: LedgerEvent) -> LedgerEntry {
    LedgerEntry {
        message,
        at: Timestamp::from_millis(message.timestamp().millis() + after_millis),
        target: None,
        event,
    }
}

fn placed_event(fresh: &TestIds, conversation: ConversationId, send_id: SendId) -> LedgerEvent {
    LedgerEvent::Placed {
        conversation,
        seq: Seq(u64::MAX),
        from: fresh.user(),
        send_id,
        partition: u32::MAX,
        offset: u64::MAX,
    }
}

async fn append(ledger: &dyn LedgerStore, entries: Vec<LedgerEntry>) {
    ledger.append(entries).await.expect("appends");
}

async fn trace(ledger: &dyn LedgerStore, message: MessageId) -> Vec<LedgerEntry> {
    let mut traces = ledger.trace(&[message, message]).await.expect("reads");
    assert_eq!(
        traces[0], traces[1],
        "what is asked twice is answered twice"
    );
    traces.remove(0)
}

pub(super) async fn every_event_comes_back(ledger: &dyn LedgerStore, fresh: &TestIds) {
    let message = fresh.message();
    let session = SessionId::new(i64::MAX).expect("positive");
    let letter = || "letter-1".to_owned();
    let mut events = vec![
        placed_event(fresh, fresh.conversation(), fresh.send_id()),
        LedgerEvent::Repeat {
            of: fresh.message(),
        },
        LedgerEvent::Pushed {
            session,
            life: BoatLife {
                boat: BoatId::new("boat-1").expect("a name"),
                incarnation: Incarnation(u64::MAX),
            },
            attempt: 1,
        },
        LedgerEvent::Acked { session },
        LedgerEvent::Retried {
            attempt: 2,
            tier: 3,
        },
        LedgerEvent::StoredOffline,
        LedgerEvent::Fetched { session },
        LedgerEvent::ReachableBySync,
        LedgerEvent::Dropped,
        LedgerEvent::Notified,
        LedgerEvent::NotificationSent {
            provider: "webhook".to_owned(),
            ok: false,
        },
        LedgerEvent::Redriven { letter: letter() },
        LedgerEvent::Settled,
    ];
    events.extend(DeadReason::ALL.map(|reason| LedgerEvent::Dead {
        reason,
        letter: letter(),
    }));
    use FailureCause::*;
    events.extend(
        [
            NoAck,
            NoSession,
            BoatUnreachable,
            SessionFull,
            MailboxUnavailable,
            MailboxRefused,
        ]
        .map(|cause| LedgerEvent::Failed { cause, attempt: 9 }),
    );
    // Times may precede the message's own: clocks differ.
    let mut entries: Vec<_> = (-3..)
        .zip(events)
        .map(|(after_millis, event)| entry(message, after_millis, event))
        .collect();
    let user = fresh.user();
    for (entry, platform) in entries.iter_mut().zip(Platform::ALL) {
        entry.target = Some(Target { user, platform });
    }
    append(ledger, entries.clone()).await;
    assert_eq!(trace(ledger, message).await, entries);
}

pub(super) async fn entries_come_oldest_first_and_in_their_order(
    ledger: &dyn LedgerStore,
    fresh: &TestIds,
) {
    let message = fresh.message();
    let late = entry(message, 50, LedgerEvent::Settled);
    let first = entry(message, 10, LedgerEvent::StoredOffline);
    let second = entry(message, 10, LedgerEvent::Notified);
    append(ledger, vec![late.clone()]).await;
    append(ledger, vec![first.clone(), second.clone()]).await;
    assert_eq!(trace(ledger, message).await, [first, second, late]);
}

/// Neither in one call, nor between neighbouring ids.
pub(super) async fn messages_do_not_mix(ledger: &dyn LedgerStore, fresh: &TestIds) {
    let one = fresh.message();
    let other = MessageId::new(one.get() + 1).expect("positive");
    let unknown = fresh.message();
    let entries = [
        (one, LedgerEvent::StoredOffline),
        (other, LedgerEvent::Dropped),
        (one, LedgerEvent::Notified),
    ]
    .map(|(message, event)| entry(message, 1, event));
    append(ledger, entries.to_vec()).await;
    append(ledger, Vec::new()).await;
    let [a, b, c] = entries;
    let traces = ledger.trace(&[other, unknown, one]).await;
    assert_eq!(traces.expect("reads"), [vec![b], vec![], vec![a, c]]);
}

/// A redelivery repeats the entry, and readers must tolerate it; no entry is lost for that.
pub(super) async fn the_same_entry_may_stand_twice(ledger: &dyn LedgerStore, fresh: &TestIds) {
    let message = fresh.message();
    let offline = entry(message, 1, LedgerEvent::StoredOffline);
    let end = entry(message, 2, LedgerEvent::Settled);
    append(ledger, vec![offline.clone()]).await;
    append(ledger, vec![offline.clone(), end.clone()]).await;
    let mut entries = trace(ledger, message).await;
    entries.dedup();
    assert_eq!(entries, [offline, end]);
}

/// A message that fails repeatedly.
pub(super) async fn a_long_life_is_read_whole(ledger: &dyn LedgerStore, fresh: &TestIds) {
    let message = fresh.message();
    let retry = |attempt: u32| {
        let event = LedgerEvent::Retried { attempt, tier: 1 };
        entry(message, i64::from(attempt), event)
    };
    for attempt in 0..600 {
        append(ledger, vec![retry(attempt)]).await;
    }
    let expected: Vec<_> = (0..600).map(retry).collect();
    assert_eq!(trace(ledger, message).await, expected);
}

/// Old messages go, younger ones stay whole. `young` is below all messages of other tests.
pub(super) async fn forgotten_messages_leave_nothing(ledger: &dyn LedgerStore, fresh: &TestIds) {
    let conversation = fresh.conversation();
    let old = [1, 2].map(|n| MessageId::new(n).expect("positive"));
    let young = MessageId::new(3).expect("positive");
    for message in [old[0], old[1], young] {
        let event = placed_event(fresh, conversation, fresh.send_id());
        append(ledger, vec![entry(message, 1, event)]).await;
        append(ledger, vec![entry(message, 2, LedgerEvent::Settled)]).await;
    }
    while ledger.forget(young, 3).await.expect("forgets") > 0 {}
    let traces = ledger.trace(&[old[0], old[1], young]).await;
    let counts: Vec<_> = traces.expect("reads").iter().map(Vec::len).collect();
    assert_eq!(counts, [0, 0, 2]);
}

/// Hands the names of all checks to another macro: no backend can leave one out; `and` adds checks
/// for some backends only.
macro_rules! checks {
    ($then:ident!($($with:tt)*) $(and $more:ident)*) => {
        $then!($($with)*:
            every_event_comes_back,
            entries_come_oldest_first_and_in_their_order,
            messages_do_not_mix,
            the_same_entry_may_stand_twice,
            a_long_life_is_read_whole,
            $($more,)*
        );
    };
}
pub(crate) use checks;
