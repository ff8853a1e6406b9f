//! A snapshot in, differences out.

use std::collections::BTreeSet;

use protocol::conversation::{ConversationRow, Head};
use protocol::history::Version;
use protocol::message::Content;
use protocol::message_row::MessageRow;
use protocol::presence::SessionKey;
use protocol::receipt::ReceiptKind;
use protocol::{
    BoatId, ConversationId, DeviceId, Incarnation, Message, MessageId, Options, Placed, Platform,
    Position, Recipient, SendId, Seq, SessionId,
};

use super::*;
use crate::doctor::rules::CheckVerdict;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn id(number: u64) -> MessageId {
    MessageId::new(number as i64).expect("positive")
}

fn ours() -> ConversationId {
    ConversationId::private(user(1), user(2)).expect("two users")
}

fn life(boat: &str, incarnation: u64) -> BoatLife {
    BoatLife {
        boat: BoatId::new(boat).expect("a name"),
        incarnation: Incarnation(incarnation),
    }
}

fn session(boat: &str, incarnation: u64) -> SessionEntry {
    SessionEntry {
        session: SessionId::new(7).expect("positive"),
        platform: Platform::Ios,
        life: life(boat, incarnation),
        login: NOW.millis() as u64,
    }
}

fn version(offset: u64) -> Version {
    Version { epoch: 1, offset }
}

/// User 2's row of the message at this position.
fn row(seq: u64) -> MessageRow {
    let message = Message {
        id: id(seq),
        from: user(1),
        to: Recipient::User(user(2)),
        accepted_at: NOW,
        device: DeviceId::new("d").expect("short"),
        send_id: SendId::from_bytes([1; 16]),
        options: Options::CHAT,
        content: Content::text("x"),
    };
    let placed_message = Placed {
        conversation: ours(),
        position: Position {
            seq: Seq(seq),
            prev: (seq > 1).then(|| id(seq - 1)),
        },
        message,
    };
    let [_, incoming_row] =
        MessageRow::private_pair(&placed_message, seq, version(seq)).expect("private");
    incoming_row
}

/// A conversation whose history, head and list agree on `last` messages.
fn whole(last: u64) -> Conversation {
    let newest = row(last);
    Conversation {
        id: ours(),
        listing: Some(ListedConversation {
            row: ConversationRow {
                owner: user(2),
                conversation: ours(),
                end: newest.tally(),
                rev: 0,
                last_id: newest.id(),
                version: NOW,
                source: newest.version,
            },
            read_seq: Seq(1),
            received_seq: Seq(last),
        }),
        head: Some(Head {
            seq: newest.seq(),
            rev: 0,
            last_id: Some(newest.id()),
            max_id: Some(newest.id()),
            from_low: last,
            stamp: NOW,
            version: newest.version,
        }),
        head_unread: false,
        newest: Some(Newest::from(&newest)),
        max_id: Some(newest.id()),
        holes: Vec::new(),
        skipped_until: Seq::ZERO,
        cut_off: false,
    }
}

fn entry(seq: u64) -> MailEntry {
    MailEntry {
        id: id(seq),
        accepted_at: Some(NOW),
        body: Body::Says(ours(), Seq(seq)),
        row: Some((ours(), Seq(seq))),
        rebuilt_row: None,
    }
}

/// User 2, without inconsistencies.
fn chart() -> UserSnapshot {
    UserSnapshot {
        user: user(2),
        now: NOW,
        sessions: vec![session("boat-1", 5)],
        boats: vec![life("boat-1", 5)],
        mail: vec![Mailbox {
            platform: Platform::Ios,
            entries: vec![entry(4), entry(5)],
        }],
        conversations: vec![whole(5)],
    }
}

fn only(chart: &UserSnapshot) -> Difference {
    let mut differences = chart.differences();
    assert_eq!(differences.len(), 1, "{differences:?}");
    differences.pop().expect("one")
}

#[test]
fn a_healthy_user_has_no_differences() {
    assert_eq!(chart().differences(), []);
    let nobody = UserSnapshot {
        sessions: Vec::new(),
        mail: Vec::new(),
        conversations: Vec::new(),
        ..chart()
    };
    assert_eq!(nobody.differences(), []);
}

#[test]
fn a_session_of_an_ended_life_is_removed_exactly() {
    let mut chart = chart();
    chart.sessions = vec![session("boat-1", 4)];
    let difference = only(&chart);
    assert_eq!(difference.damage.name(), "session_of_ended_life");
    let key = SessionKey {
        user: user(2),
        session: SessionId::new(7).expect("positive"),
        life: life("boat-1", 4),
    };
    assert_eq!(difference.mend, Some(Mend::Disconnect(key)));
}

#[test]
fn unknown_means_alive() {
    let mut chart = chart();
    chart.sessions = vec![session("boat-2", 4)];
    let difference = only(&chart);
    assert_eq!(
        (difference.damage.name(), difference.mend),
        ("session_of_absent_boat", None)
    );
    // The boat list is older than the session.
    chart.sessions = vec![session("boat-1", 6)];
    assert_eq!(chart.differences(), []);
    // An empty discovery is at fault itself, not the sessions.
    chart.boats.clear();
    chart.sessions = vec![session("boat-2", 4)];
    assert_eq!(chart.differences(), []);
}

#[test]
fn each_kind_of_bad_mail_is_told_apart() {
    let target = protocol::message::Target {
        user: user(2),
        platform: Platform::Ios,
    };
    let acknowledge = || Some(Mend::Acknowledge(target, id(5)));
    let other_position = Some((ours(), Seq(4)));
    let cases = [
        (Body::Gone, entry(5).row, "mail_bodiless", None),
        (
            Body::Unreadable,
            entry(5).row,
            "mail_unreadable",
            acknowledge(),
        ),
        (
            entry(5).body,
            other_position,
            "mail_misplaced",
            acknowledge(),
        ),
        (Body::Gone, None, "mail_lost", acknowledge()),
        (Body::Unreadable, None, "mail_lost", acknowledge()),
        (entry(5).body, None, "mail_unknown", None),
    ];
    for (body, row, name, mend) in cases {
        let mut chart = chart();
        let bad = MailEntry {
            body,
            row,
            ..entry(5)
        };
        chart.mail[0].entries = vec![entry(4), bad];
        let difference = only(&chart);
        assert_eq!((difference.damage.name(), difference.mend), (name, mend));
    }
}

#[test]
fn mail_that_history_lost_is_written_again_from_the_other_side() {
    let mut chart = chart();
    chart.mail[0].entries[1].row = None;
    chart.mail[0].entries[1].rebuilt_row = Some(row(5));
    assert_eq!(only(&chart).mend, Some(Mend::WriteRows(vec![row(5)])));
    // The hole itself is reported, once.
    chart.conversations[0].holes = vec![Gap {
        first: Seq(5),
        last: Seq(5),
        rows: vec![row(5)],
    }];
    assert_eq!(only(&chart).damage.name(), "hole");
}

#[test]
fn mail_that_nobody_fetches_is_told_of() {
    let long_ago = Timestamp::from_millis(NOW.millis() - 3_600_000);
    let mut chart = chart();
    chart.mail[0].entries[0].accepted_at = Some(long_ago);
    assert_eq!(chart.differences(), [], "it has just signed in");
    chart.sessions[0].login = long_ago.millis() as u64;
    let difference = only(&chart);
    assert_eq!(
        (difference.damage.name(), difference.mend),
        ("mail_stuck", None)
    );
    chart.sessions[0].platform = Platform::Web;
    assert_eq!(chart.differences(), [], "somebody else is there");
}

#[test]
fn adjacent_holes_are_joined_and_written_together() {
    let hole = |seq: u64, is_left: bool| Gap {
        first: Seq(seq),
        last: Seq(seq),
        rows: is_left.then(|| row(seq)).into_iter().collect(),
    };
    let mut chart = chart();
    chart.conversations[0].holes = vec![hole(2, true), hole(3, true), hole(4, false)];
    let differences = chart.differences();
    let damage = |first, last| Damage::Hole {
        conversation: ours(),
        first: Seq(first),
        last: Seq(last),
    };
    assert_eq!(differences.len(), 2, "{differences:?}");
    assert_eq!(differences[0].damage, damage(2, 3));
    assert_eq!(
        differences[0].mend,
        Some(Mend::WriteRows(vec![row(2), row(3)]))
    );
    assert_eq!(
        (&differences[1].damage, &differences[1].mend),
        (&damage(4, 4), &None)
    );
}

#[test]
fn a_list_that_lags_is_written_from_the_newest_row() {
    let mut chart = chart();
    let listing = chart.conversations[0].listing.as_mut().expect("listed");
    let expected_row = listing.row;
    listing.row.end.seq = Seq(3);
    listing.received_seq = Seq(3);
    let difference = only(&chart);
    assert_eq!(difference.damage.name(), "list_behind");
    assert_eq!(difference.mend, Some(Mend::WriteListed(expected_row)));
    chart.conversations[0].listing = None;
    assert_eq!(only(&chart).mend, Some(Mend::WriteListed(expected_row)));
}

#[test]
fn a_head_that_lags_is_set_where_all_ids_are_known() {
    let mut chart = chart();
    let expected_head = chart.conversations[0].head;
    let standing = Head {
        seq: Seq(3),
        rev: 8,
        last_id: Some(id(3)),
        max_id: Some(id(900)),
        from_low: 3,
        stamp: NOW,
        version: version(3),
    };
    chart.conversations[0].head = Some(standing);
    let difference = only(&chart);
    assert_eq!(difference.damage.name(), "head_behind");
    let new_head = Head {
        rev: 8,
        max_id: Some(id(900)),
        ..expected_head.expect("a head")
    };
    assert_eq!(difference.mend, Some(Mend::WriteHead(ours(), new_head)));

    chart.conversations[0].head = None;
    let difference = only(&chart);
    assert_eq!(
        difference.mend,
        expected_head.map(|head| Mend::WriteHead(ours(), head)),
        "all rows were read"
    );
    chart.conversations[0].skipped_until = Seq(2);
    assert_eq!(
        only(&chart).mend,
        None,
        "an id may be larger than those read"
    );
}

#[test]
fn a_register_beyond_the_end_is_told_of() {
    let mut chart = chart();
    let listing = chart.conversations[0].listing.as_mut().expect("listed");
    (listing.read_seq, listing.received_seq) = (Seq(5), Seq(6));
    let difference = only(&chart);
    let damage = Damage::RegisterAhead {
        conversation: ours(),
        kind: ReceiptKind::Received,
        at: Seq(6),
        last: Seq(5),
    };
    assert_eq!((difference.damage, difference.mend), (damage, None));
}

#[test]
fn transient_differences_do_not_last() {
    let list_behind = |listed: u64, last: u64| Difference {
        damage: Damage::ListBehind {
            conversation: ours(),
            listed: Some(Seq(listed)),
            last: Seq(last),
        },
        mend: None,
    };
    assert_eq!(
        retain_lasting(vec![list_behind(4, 5)], &[list_behind(3, 4)]),
        []
    );
    let differences = retain_lasting(vec![list_behind(3, 9)], &[list_behind(3, 4)]);
    assert_eq!(differences, [list_behind(3, 9)]);
}

#[test]
fn each_damage_has_a_sentence_a_name_and_something_to_do() {
    let (platform, message, conversation) = (Platform::Ios, id(5), ours());
    let all = [
        Damage::SessionOfEndedLife {
            session: session("boat-1", 4),
            newer_life: life("boat-1", 5),
        },
        Damage::SessionOfAbsentBoat {
            session: session("boat-1", 4),
        },
        Damage::MailUnknown {
            platform,
            message,
            conversation,
            seq: Seq(5),
        },
        Damage::MailLost { platform, message },
        Damage::MailMisplaced {
            platform,
            message,
            mail_position: (conversation, Seq(5)),
            history_position: (conversation, Seq(6)),
        },
        Damage::MailUnreadable { platform, message },
        Damage::MailBodiless { platform, message },
        Damage::MailStuck {
            platform,
            since: NOW,
        },
        Damage::Hole {
            conversation,
            first: Seq(5),
            last: Seq(5),
        },
        Damage::HeadBehind {
            conversation,
            head: Seq(4),
            last: Seq(5),
        },
        Damage::ListBehind {
            conversation,
            listed: None,
            last: Seq(5),
        },
        Damage::RegisterAhead {
            conversation,
            kind: ReceiptKind::Read,
            at: Seq(6),
            last: Seq(5),
        },
    ];
    let names: BTreeSet<_> = all.iter().map(Damage::name).collect();
    assert_eq!(names, BTreeSet::from(Damage::NAMES));
    let sentences: BTreeSet<_> = all.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.len(), all.len(), "{sentences:#?}");
    assert!(all.iter().all(|damage| !damage.advice().is_empty()));
}

/// An unreadable head yields no position, and is never overwritten.
#[test]
fn unread_data_is_neither_damaged_nor_mended() {
    let chart = |one: Conversation| UserSnapshot {
        user: user(2),
        now: NOW,
        sessions: Vec::new(),
        boats: Vec::new(),
        mail: Vec::new(),
        conversations: vec![one],
    };
    let mut unread = whole(5);
    unread.head = None;
    assert_eq!(difference_kinds(&chart(unread.clone())), ["head_behind"]);
    unread.head_unread = true;
    assert_eq!(difference_kinds(&chart(unread)), [""; 0]);

    // Rows behind the newest seen row may exist, so the head would be set wrongly.
    let mut cut_off = whole(5);
    cut_off.head = None;
    cut_off.listing = None;
    cut_off.cut_off = true;
    let differences = chart(cut_off).differences();
    assert_eq!(differences.len(), 2);
    assert!(
        differences
            .iter()
            .all(|difference| difference.mend.is_none())
    );
}

fn difference_kinds(chart: &UserSnapshot) -> Vec<&'static str> {
    let differences = chart.differences();
    differences.iter().map(|one| one.damage.name()).collect()
}

#[test]
fn unreadable_data_is_worse_than_data_not_reached() {
    let unread = |reason| Unread::new("the head of p:1:2", reason);
    let late = unread(UnreadReason::Late);
    let no_answer = unread(UnreadReason::Failed("no answer within 5s".to_owned()));
    let corrupt = unread(UnreadReason::Corrupt("heads: corrupt: no head".to_owned()));
    let verdicts = [&late, &no_answer, &corrupt].map(Unread::verdict);
    let [warning, failure] = [CheckVerdict::Warning, CheckVerdict::Failure];
    assert_eq!(verdicts, [warning, warning, failure]);
    assert_eq!(
        late.to_string(),
        "the head of p:1:2: not examined: took too long"
    );
    assert_eq!(
        corrupt.to_string(),
        "the head of p:1:2: unreadable: heads: corrupt: no head"
    );
}
