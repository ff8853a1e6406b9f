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
use crate::doctor::CheckVerdict;

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
    let placed = Placed {
        conversation: ours(),
        position: Position {
            seq: Seq(seq),
            prev: (seq > 1).then(|| id(seq - 1)),
        },
        message,
    };
    let [_, incoming] = MessageRow::pair_of(&placed, seq, version(seq)).expect("private");
    incoming
}

/// A conversation whose history, head and list agree on `last` messages.
fn whole(last: u64) -> Conversation {
    let newest = row(last);
    Conversation {
        id: ours(),
        listed: Some(ListedConversation {
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
        skipped: Seq::ZERO,
        cut_off: false,
    }
}

fn entry(seq: u64) -> MailEntry {
    MailEntry {
        id: id(seq),
        accepted_at: Some(NOW),
        body: Body::Says(ours(), Seq(seq)),
        row: Some((ours(), Seq(seq))),
        copy: None,
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
fn nothing_is_wrong_with_the_healthy() {
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
    let found = only(&chart);
    assert_eq!(found.damage.name(), "session_of_ended_life");
    let key = SessionKey {
        user: user(2),
        session: SessionId::new(7).expect("positive"),
        life: life("boat-1", 4),
    };
    assert_eq!(found.mend, Some(Mend::Disconnect(key)));
}

#[test]
fn unknown_means_alive() {
    let mut chart = chart();
    chart.sessions = vec![session("boat-2", 4)];
    let found = only(&chart);
    assert_eq!(
        (found.damage.name(), found.mend),
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
    let away = || Some(Mend::Acknowledge(target, id(5)));
    let elsewhere = Some((ours(), Seq(4)));
    let cases = [
        (Body::Gone, entry(5).row, "mail_bodiless", None),
        (Body::Unreadable, entry(5).row, "mail_unreadable", away()),
        (entry(5).body, elsewhere, "mail_misplaced", away()),
        (Body::Gone, None, "mail_lost", away()),
        (Body::Unreadable, None, "mail_lost", away()),
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
        let found = only(&chart);
        assert_eq!((found.damage.name(), found.mend), (name, mend));
    }
}

#[test]
fn mail_that_history_lost_is_written_again_from_the_other_side() {
    let mut chart = chart();
    chart.mail[0].entries[1].row = None;
    chart.mail[0].entries[1].copy = Some(row(5));
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
    let found = only(&chart);
    assert_eq!((found.damage.name(), found.mend), ("mail_stuck", None));
    chart.sessions[0].platform = Platform::Web;
    assert_eq!(chart.differences(), [], "somebody else is there");
}

#[test]
fn holes_that_follow_each_other_are_one_and_are_written_together_or_not_at_all() {
    let hole = |seq: u64, is_left: bool| Gap {
        first: Seq(seq),
        last: Seq(seq),
        rows: is_left.then(|| row(seq)).into_iter().collect(),
    };
    let mut chart = chart();
    chart.conversations[0].holes = vec![hole(2, true), hole(3, true), hole(4, false)];
    let found = chart.differences();
    let damage = |first, last| Damage::Hole {
        conversation: ours(),
        first: Seq(first),
        last: Seq(last),
    };
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(found[0].damage, damage(2, 3));
    assert_eq!(found[0].mend, Some(Mend::WriteRows(vec![row(2), row(3)])));
    assert_eq!((&found[1].damage, &found[1].mend), (&damage(4, 4), &None));
}

#[test]
fn a_list_that_lags_is_written_from_the_newest_row() {
    let mut chart = chart();
    let listed = chart.conversations[0].listed.as_mut().expect("listed");
    let right = listed.row;
    listed.row.end.seq = Seq(3);
    listed.received_seq = Seq(3);
    let found = only(&chart);
    assert_eq!(found.damage.name(), "list_behind");
    assert_eq!(found.mend, Some(Mend::WriteListed(right)));
    chart.conversations[0].listed = None;
    assert_eq!(only(&chart).mend, Some(Mend::WriteListed(right)));
}

#[test]
fn a_head_that_lags_is_set_where_all_ids_are_known() {
    let mut chart = chart();
    let right = chart.conversations[0].head;
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
    let found = only(&chart);
    assert_eq!(found.damage.name(), "head_behind");
    let mended = Head {
        rev: 8,
        max_id: Some(id(900)),
        ..right.expect("a head")
    };
    assert_eq!(found.mend, Some(Mend::WriteHead(ours(), mended)));

    chart.conversations[0].head = None;
    let found = only(&chart);
    assert_eq!(
        found.mend,
        right.map(|head| Mend::WriteHead(ours(), head)),
        "all rows were read"
    );
    chart.conversations[0].skipped = Seq(2);
    assert_eq!(
        only(&chart).mend,
        None,
        "an id may be larger than those read"
    );
}

#[test]
fn a_register_beyond_the_end_is_told_of() {
    let mut chart = chart();
    let listed = chart.conversations[0].listed.as_mut().expect("listed");
    (listed.read_seq, listed.received_seq) = (Seq(5), Seq(6));
    let found = only(&chart);
    let damage = Damage::RegisterAhead {
        conversation: ours(),
        kind: ReceiptKind::Received,
        at: Seq(6),
        last: Seq(5),
    };
    assert_eq!((found.damage, found.mend), (damage, None));
}

#[test]
fn what_is_on_its_way_does_not_last() {
    let behind = |listed: u64, last: u64| Difference {
        damage: Damage::ListBehind {
            conversation: ours(),
            listed: Some(Seq(listed)),
            last: Seq(last),
        },
        mend: None,
    };
    assert_eq!(lasting(vec![behind(4, 5)], &[behind(3, 4)]), []);
    let stands = lasting(vec![behind(3, 9)], &[behind(3, 4)]);
    assert_eq!(stands, [behind(3, 9)]);
}

#[test]
fn each_damage_has_a_sentence_a_name_and_something_to_do() {
    let (platform, message, conversation) = (Platform::Ios, id(5), ours());
    let all = [
        Damage::SessionOfEndedLife {
            session: session("boat-1", 4),
            later: life("boat-1", 5),
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
            says: (conversation, Seq(5)),
            stands: (conversation, Seq(6)),
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
fn what_was_not_read_is_neither_damaged_nor_mended() {
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
    assert_eq!(kinds_of(&chart(unread.clone())), ["head_behind"]);
    unread.head_unread = true;
    assert_eq!(kinds_of(&chart(unread)), [""; 0]);

    // Rows behind the newest seen row may exist, so the head would be set wrongly.
    let mut cut_off = whole(5);
    cut_off.head = None;
    cut_off.listed = None;
    cut_off.cut_off = true;
    let differences = chart(cut_off).differences();
    assert_eq!(differences.len(), 2);
    assert!(
        differences
            .iter()
            .all(|difference| difference.mend.is_none())
    );
}

fn kinds_of(chart: &UserSnapshot) -> Vec<&'static str> {
    let differences = chart.differences();
    differences.iter().map(|one| one.damage.name()).collect()
}

#[test]
fn what_cannot_be_read_is_worse_than_what_was_not_reached() {
    let unread = |why| Unread::new("the head of p:1:2", why);
    let late = unread(UnreadReason::Late);
    let away = unread(UnreadReason::Failed("no answer within 5s".to_owned()));
    let corrupt = unread(UnreadReason::Corrupt("heads: corrupt: no head".to_owned()));
    let verdicts = [&late, &away, &corrupt].map(Unread::verdict);
    let [warning, failure] = [CheckVerdict::Warning, CheckVerdict::Failure];
    assert_eq!(verdicts, [warning, warning, failure]);
    assert_eq!(
        late.to_string(),
        "the head of p:1:2: not looked at, as it took too long"
    );
    assert_eq!(
        corrupt.to_string(),
        "the head of p:1:2: cannot be read: heads: corrupt: no head"
    );
}
