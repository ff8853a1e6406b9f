use super::*;
use crate::GroupId;
use crate::subscription::{GROUPS_MAX, GroupEnd, GroupSignal, SubscriptionState, WATCHED_MAX};

fn group(number: i64) -> GroupId {
    GroupId::new(number).expect("positive")
}

fn end(seq: u64, rev: u64) -> GroupEnd {
    GroupEnd { seq: Seq(seq), rev }
}

fn signal(number: i64, seq: u64) -> GroupSignal {
    GroupSignal {
        group: group(number),
        end: end(seq, 0),
        at: after(seq),
        state: SubscriptionState::Subscribed,
        spread: Duration::ZERO,
    }
}

/// Frames of signals, each with the groups and positions that it names.
fn signal_frames(session: &mut Session) -> Vec<Vec<(i64, u64)>> {
    let actions = drain_actions(session);
    let frames = server_frames(&actions).into_iter();
    let frames = frames.filter_map(|frame| match frame {
        ServerFrame::Signals(signals) => Some(signals.iter()),
        _ => None,
    });
    frames
        .map(|signals| signals.map(|it| (it.group.get(), it.end.seq.0)).collect())
        .collect()
}

#[test]
fn the_first_signal_goes_out_at_once_then_one_frame_a_second() {
    let mut session = open();
    session.signal(signal(1, 1), after(0));
    assert_eq!(signal_frames(&mut session), [[(1, 1)]]);
    for seq in 2..=5 {
        session.signal(signal(1, seq), after(seq));
    }
    session.signal(signal(2, 9), after(6));
    assert!(signal_frames(&mut session).is_empty());
    assert_eq!(session.poll_timeout(), Some(after(1_000)));
    session.handle_timeout(after(999));
    assert!(signal_frames(&mut session).is_empty());
    session.handle_timeout(after(1_000));
    assert_eq!(
        signal_frames(&mut session),
        [[(1, 5), (2, 9)]],
        "the newest"
    );
    session.signal(signal(1, 6), after(5_000));
    assert_eq!(signal_frames(&mut session), [[(1, 6)]]);
}

#[test]
fn an_older_signal_does_not_replace_a_newer_one() {
    let mut session = open();
    session.signal(signal(3, 1), after(0));
    signal_frames(&mut session);
    let newer = GroupSignal {
        end: end(4, 1),
        ..signal(1, 4)
    };
    let older = GroupSignal {
        end: end(3, 2),
        ..signal(1, 3)
    };
    session.signal(newer, after(1));
    session.signal(older, after(2));
    session.handle_timeout(after(1_000));
    let actions = drain_actions(&mut session);
    let merged = GroupSignal {
        end: end(4, 2),
        ..newer
    };
    assert_eq!(
        server_frames(&actions),
        [&ServerFrame::Signals(vec![merged])]
    );
}

#[test]
fn the_last_state_of_a_subscription_is_told() {
    let mut session = open();
    session.signal(signal(3, 1), after(0));
    signal_frames(&mut session);
    session.signal(signal(1, 4), after(1));
    session.signal(
        GroupSignal::last(group(1), SubscriptionState::Gone),
        after(2),
    );
    session.handle_timeout(after(1_000));
    let actions = drain_actions(&mut session);
    let [ServerFrame::Signals(signals)] = server_frames(&actions)[..] else {
        panic!("{actions:?}");
    };
    let told = signals.first().map(|it| (it.state, it.end.seq));
    assert_eq!(told, Some((SubscriptionState::Gone, Seq(4))));
}

#[test]
fn bodies_become_signals_while_much_waits_to_be_written() {
    let mut session = open();
    let body = Bytes::from(vec![0; 40 * 1024]);
    for seq in 1..=5 {
        session.broadcast(body.clone(), signal(1, seq), after(seq));
    }
    let actions = drain_actions(&mut session);
    assert_eq!(pushed_frames(&actions).len(), 2);
    assert_eq!(close_code(&actions), None);
    assert!(server_frames(&actions).is_empty(), "signals wait, too");
    session.handle_written(40 * 1024, after(10));
    assert_eq!(signal_frames(&mut session), [[(1, 5)]]);
    session.broadcast(body, signal(1, 6), after(20));
    assert_eq!(pushed_frames(&drain_actions(&mut session)).len(), 1);
}

#[test]
fn sets_of_groups_are_bounded() {
    let mut session = open();
    let groups: Vec<_> = (1..=GROUPS_MAX as i64)
        .map(|it| (group(it), end(0, 0)))
        .collect();
    session.handle_frame(ClientFrame::Subscribe(groups.clone()), after(0));
    assert_eq!(
        drain_actions(&mut session),
        [Action::Subscribe(groups.clone())]
    );
    let watched: Vec<_> = (1..=WATCHED_MAX as i64).map(group).collect();
    session.handle_frame(ClientFrame::Watch(watched.clone()), after(0));
    assert_eq!(
        drain_actions(&mut session),
        [Action::Watch(watched.clone())]
    );

    let too_many = [groups, vec![(group(5_000), end(0, 0))]].concat();
    session.handle_frame(ClientFrame::Subscribe(too_many), after(0));
    let too_many = [watched, vec![group(9)]].concat();
    session.handle_frame(ClientFrame::Watch(too_many), after(0));
    let actions = drain_actions(&mut session);
    let [
        ServerFrame::Error { refusal: first, .. },
        ServerFrame::Error { refusal: last, .. },
    ] = server_frames(&actions)[..]
    else {
        panic!("{actions:?}");
    };
    assert_eq!(
        (first.code, last.code),
        (Code::InvalidArgument, Code::InvalidArgument)
    );
    assert_eq!(first.text, "1001 groups; 1000 are subscribed to at most");
}

#[test]
fn a_session_that_is_not_open_hears_no_signal() {
    let mut session = opened_session(SessionLimits::default());
    session.signal(signal(1, 1), after(0));
    session.broadcast(encoded_frame(1), signal(1, 1), after(0));
    assert!(drain_actions(&mut session).is_empty());
    let mut session = open();
    session.signal(signal(1, 1), after(0));
    session.signal(signal(1, 2), after(1));
    drain_actions(&mut session);
    session.handle_closed(after(2));
    assert_eq!(session.poll_timeout(), None);
    drain_actions(&mut session);
    assert!(session.is_settled());
}
