use proptest::prelude::*;

use super::*;
use crate::DeviceId;

const SECOND: Duration = Duration::from_secs(1);

fn at(secs: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + secs * 1000)
}

fn user(number: i64) -> UserId {
    UserId::new(number).expect("positive")
}

fn session(number: i64) -> SessionId {
    SessionId::new(number).expect("positive")
}

fn keys() -> KeyFile {
    KeyFile::new(1, [7; KEY_BYTES])
}

fn required() -> Tickets {
    Tickets::new(&keys(), true)
}

fn lenient() -> Tickets {
    Tickets::new(&keys(), false)
}

/// A sign-in with a one-day token.
fn sign_in() -> SignIn {
    SignIn {
        user: user(1),
        session: session(2),
        platform: Platform::Web,
        issued_at: at(-3600) + Duration::from_millis(1),
        ends_at: at(23 * 3600),
    }
}

fn claim(ticket: Option<Ticket>) -> Claim<'static> {
    Claim {
        user: user(1),
        session: Some(session(2)),
        platform: Some(Platform::Web),
        ticket,
        boat: Some("boat-1"),
    }
}

fn ticket() -> Option<Ticket> {
    required().sign(&sign_in(), Some("boat-1"), at(0))
}

#[test]
fn numbers_are_those_of_the_promise() {
    assert_eq!(LIFE, 900 * SECOND);
    assert_eq!(RENEWABLE, 24 * 3600 * SECOND);
    assert_eq!(RETRY_AFTER, 5 * SECOND);
    assert_eq!((RENEW_BEFORE, PASS_MAX), (60 * SECOND, 300 * SECOND));
    // Pauses may add up to half a pass.
    assert!(PASS_MAX * 3 / 2 * 2 <= LIFE, "one pass may fail");
    assert_eq!((TICKET_BYTES, KEY_BYTES, KEYS_MAX), (32, 32, 16));
}

// Stations of several releases read each other's tickets: neither layout nor MAC may change under
// the same label.
#[test]
fn a_ticket_is_the_same_at_every_station() {
    let bytes = ticket().expect("keys");
    let hex: String = (bytes.as_bytes().iter())
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert_eq!(&hex[..32], "01036b49d5846b4b157001a318256181");
    // Computed elsewhere, over the same bytes.
    assert_eq!(&hex[32..], "d80b26641066645d368936d99d057b48");
}

#[test]
fn a_ticket_is_good_for_a_quarter_of_an_hour() {
    let tickets = required();
    assert_eq!(tickets.check(&claim(ticket()), at(899)), Ok(()));
    let late = tickets.check(&claim(ticket()), at(900));
    assert_eq!(late, Err(TicketError::Expired));
}

#[test]
fn a_ticket_is_renewed_a_minute_before_its_end_unless_its_token_ends_with_it() {
    let due = |of: SignIn, secs| {
        let ticket = required().sign(&of, None, at(0)).expect("a key");
        ticket.is_due(at(secs))
    };
    assert!(!due(sign_in(), 839));
    assert!(due(sign_in(), 840));
    assert!(due(sign_in(), 100_000));
    let short = SignIn {
        ends_at: at(900),
        ..sign_in()
    };
    assert!(!due(short, 899), "there is no later one");
}

#[test]
fn a_late_renewal_does_not_undo_a_refresh() {
    let sign = |of| required().sign(&of, None, at(0)).expect("a key");
    let refreshed = SignIn {
        issued_at: at(0),
        ends_at: at(24 * 3600),
        ..sign_in()
    };
    let (old, new) = (sign(sign_in()), sign(refreshed));
    assert_eq!(old.replaced_by(new), new);
    assert_eq!(new.replaced_by(old), new);
    let later = required().sign(&sign_in(), None, at(60)).expect("a key");
    assert_eq!(old.replaced_by(later), later);
}

#[test]
fn a_ticket_ends_with_its_token() {
    let tickets = required();
    let short = SignIn {
        ends_at: at(60),
        ..sign_in()
    };
    let ticket = tickets.sign(&short, Some("boat-1"), at(0));
    assert_eq!(tickets.check(&claim(ticket), at(59)), Ok(()));
    assert_eq!(
        tickets.check(&claim(ticket), at(60)),
        Err(TicketError::Expired)
    );
    assert_eq!(
        tickets.renew(&claim(ticket), at(60)),
        Err(TicketError::Expired)
    );
}

#[test]
fn a_renewal_has_what_the_sign_in_said() {
    let tickets = required();
    let renewal = |secs| tickets.renew(&claim(ticket()), at(secs));
    assert_eq!(renewal(0), Ok(Renewal::Proved(sign_in())));
    assert_eq!(renewal(899), Ok(Renewal::Proved(sign_in())));
    assert_eq!(renewal(900), Ok(Renewal::Late(sign_in())));
    assert_eq!(renewal(23 * 3600 - 1), Ok(Renewal::Late(sign_in())));
    assert_eq!(
        renewal(23 * 3600),
        Err(TicketError::Expired),
        "the token has ended"
    );

    let long = SignIn {
        ends_at: at(90 * 24 * 3600),
        ..sign_in()
    };
    let ticket = tickets.sign(&long, Some("boat-1"), at(0));
    let renewal = |secs| tickets.renew(&claim(ticket), at(secs));
    assert_eq!(renewal(900 + 24 * 3600 - 1), Ok(Renewal::Late(long)));
    assert_eq!(renewal(900 + 24 * 3600), Err(TicketError::Expired));
}

#[test]
fn a_ticket_is_of_one_session_of_one_boat() {
    let good = claim(ticket());
    let others = [
        Claim {
            user: user(3),
            ..good
        },
        Claim {
            session: Some(session(3)),
            ..good
        },
        Claim {
            platform: Some(Platform::Ios),
            ..good
        },
        Claim {
            boat: Some("boat-2"),
            ..good
        },
    ];
    for tickets in [required(), lenient()] {
        assert_eq!(tickets.check(&good, at(1)), Ok(()));
        assert_eq!(
            tickets.check(
                &Claim {
                    platform: None,
                    ..good
                },
                at(1)
            ),
            Ok(())
        );
        for other in others {
            // Long after its end as well: a forged ticket reveals nothing.
            for secs in [1, 100_000] {
                assert_eq!(
                    tickets.check(&other, at(secs)),
                    Err(TicketError::Forged),
                    "{other:?}"
                );
                assert_eq!(
                    tickets.renew(&other, at(secs)),
                    Err(TicketError::Forged),
                    "{other:?}"
                );
            }
        }
    }
}

// A call without a certificate comes over a network that the settings trust.
#[test]
fn certificates_may_come_and_go_while_tickets_are_not_required() {
    let named = ticket();
    let unnamed = required().sign(&sign_in(), None, at(0));
    let by = |boat, ticket| Claim {
        boat,
        ..claim(ticket)
    };
    for (boat, ticket) in [(None, named), (Some("boat-1"), unnamed)] {
        assert_eq!(lenient().check(&by(boat, ticket), at(1)), Ok(()));
        assert_eq!(
            required().check(&by(boat, ticket), at(1)),
            Err(TicketError::Forged)
        );
    }
    let proved = lenient().renew(&by(Some("boat-1"), unnamed), at(1));
    assert_eq!(proved, Ok(Renewal::Proved(sign_in())));
    assert_eq!(
        lenient().renew(&by(None, named), at(1)),
        Ok(Renewal::Unproved)
    );
}

#[test]
fn without_a_ticket_a_boat_is_believed_only_where_none_is_required() {
    let none = claim(None);
    assert_eq!(required().check(&none, at(0)), Err(TicketError::Missing));
    assert_eq!(required().renew(&none, at(0)), Err(TicketError::Missing));
    assert_eq!(lenient().check(&none, at(0)), Ok(()));
    assert_eq!(lenient().renew(&none, at(0)), Ok(Renewal::Unproved));
    let nameless = Claim {
        session: None,
        ..claim(ticket())
    };
    assert_eq!(
        required().check(&nameless, at(1)),
        Err(TicketError::Missing)
    );
    let late = claim(ticket());
    assert_eq!(lenient().check(&late, at(900)), Ok(()));
    for claim in [none, late] {
        assert_eq!(Tickets::off().check(&claim, at(0)), Ok(()));
        assert_eq!(Tickets::off().renew(&claim, at(0)), Ok(Renewal::Unproved));
    }
    assert_eq!(Tickets::off().sign(&sign_in(), None, at(0)), None);
}

#[test]
fn a_key_is_rotated_without_a_refusal() {
    let mut file = keys();
    let check = |file: &KeyFile, ticket| Tickets::new(file, true).check(&claim(ticket), at(1));
    let sign = |file: &KeyFile| Tickets::new(file, true).sign(&sign_in(), Some("boat-1"), at(0));
    let stages = {
        let first = file.clone();
        assert_eq!(file.add([8; KEY_BYTES]), Ok(2));
        let both = file.clone();
        assert_eq!(file.promote(), Some(2));
        [first, both, file.clone()]
    };
    // Each step reaches some stations before others.
    for [one, next] in [[0, 1], [1, 2]] {
        for (signs, checks) in [(one, next), (next, one), (one, one), (next, next)] {
            let ticket = sign(&stages[signs]);
            assert_eq!(check(&stages[checks], ticket), Ok(()), "{signs} {checks}");
        }
    }
    let old = sign(&stages[0]);
    assert_eq!(file.retire(), [1]);
    assert_eq!(check(&file, old), Err(TicketError::UnknownKey(1)));
    assert_eq!(check(&file, sign(&stages[2])), Ok(()));
    // Both steps at once: lagging stations know nothing of them.
    let ahead = sign(&stages[2]);
    assert_eq!(check(&stages[0], ahead), Err(TicketError::UnknownKey(2)));
}

#[test]
fn a_file_of_keys_comes_back_as_it_was() {
    let mut file = keys();
    for round in 2..=KEYS_MAX as u8 {
        assert_eq!(file.add([round; KEY_BYTES]), Ok(round));
    }
    assert_eq!(file.add([0; KEY_BYTES]), Err(KeyFileError::Full));
    assert_eq!(KeyFile::parse(&file.to_text()), Ok(file.clone()));
    assert_eq!(file.retire().len(), KEYS_MAX - 1);
    assert_eq!((file.len(), file.promote()), (1, Some(1)));
    assert_eq!(file.retire(), Vec::<u8>::new());

    let last = format!("255 {}", "ab".repeat(KEY_BYTES));
    let mut file = KeyFile::parse(&last).expect("one key");
    assert_eq!(file.add([1; KEY_BYTES]), Ok(0), "numbers go round");
}

#[test]
fn a_file_that_is_no_file_of_keys_says_which_line() {
    let key = "ab".repeat(KEY_BYTES);
    let parse = |text: String| KeyFile::parse(&text).map(|file| file.len());
    assert_eq!(parse(format!("# two\n\n1 {key}\n 2\t{key} \n")), Ok(2));
    for bad in ["x", "256", "-1", "+"] {
        assert_eq!(
            parse(format!("1 {key}\n{bad} {key}")),
            Err(KeyFileError::Line(2)),
            "{bad}"
        );
    }
    for bad in [
        &key[1..],
        &key.replace('a', "g"),
        &format!("{key} x"),
        &format!("{key}ab"),
    ] {
        assert_eq!(
            parse(format!("1 {bad}")),
            Err(KeyFileError::Line(1)),
            "{bad}"
        );
    }
    assert_eq!(
        parse(format!("1 {key}\n1 {key}")),
        Err(KeyFileError::Twice(1))
    );
    assert_eq!(parse("# none\n".to_owned()), Err(KeyFileError::Empty));
    let many: String = (0..17).map(|id| format!("{id} {key}\n")).collect();
    assert_eq!(parse(many), Err(KeyFileError::Full));
}

#[test]
fn no_ticket_is_the_end_of_a_send() {
    for error in [
        TicketError::Missing,
        TicketError::Forged,
        TicketError::UnknownKey(1),
        TicketError::Expired,
    ] {
        let refusal = error.refusal();
        assert_eq!(refusal.code, Code::Unavailable, "{refusal}");
        assert_eq!(refusal.retry_after, Some(RETRY_AFTER));
    }
}

#[test]
fn a_late_ticket_is_as_good_as_none_while_none_is_required() {
    assert_eq!(
        lenient().renew(&claim(ticket()), at(900)),
        Ok(Renewal::Proved(sign_in()))
    );
    let over = lenient().renew(&claim(ticket()), at(23 * 3600));
    assert_eq!(over, Ok(Renewal::Unproved));
}

#[test]
fn nothing_of_a_key_or_a_ticket_is_shown() {
    let shown = format!("{:?} {:?} {:?}", ticket(), keys(), required());
    assert!(
        !shown.contains("07070707") && !shown.contains("7, 7"),
        "{shown}"
    );
    assert!(shown.contains("32 bytes"), "{shown}");
}

proptest! {
    // Any change makes a ticket invalid.
    #[test]
    fn a_changed_ticket_is_forged(place in 1..TICKET_BYTES, bits in 1..=u8::MAX) {
        let mut bytes = *ticket().expect("keys").as_bytes();
        bytes[place] ^= bits;
        let changed = claim(Some(Ticket::from_bytes(bytes)));
        prop_assert_eq!(required().check(&changed, at(1)), Err(TicketError::Forged));
        prop_assert_eq!(lenient().check(&changed, at(1)), Err(TicketError::Forged));
    }

    #[test]
    fn any_bytes_are_judged(bytes in any::<[u8; TICKET_BYTES]>(), secs in any::<i32>()) {
        let any = claim(Some(Ticket::from_bytes(bytes)));
        prop_assert!(required().check(&any, at(secs.into())).is_err());
        prop_assert!(required().renew(&any, at(secs.into())).is_err());
    }
}

fn device(name: &str) -> DeviceId {
    DeviceId::new(name).expect("short")
}

fn resume_ticket() -> ResumeTicket {
    let offered = required().offer_resume(&claim(ticket()), &device("phone"), at(0));
    offered.expect("no lie").expect("a key")
}

// Threat 12: wrong device, wrong platform, late, forged, with a retired key.
#[test]
fn a_client_resumes_on_its_own_device_within_two_minutes() {
    let tickets = required();
    let ticket = resume_ticket();
    let resume =
        |platform, of: &str, secs| tickets.resume(&ticket, platform, &device(of), at(secs));
    assert_eq!(RESUME_LIFE, 120 * SECOND);
    for secs in [0, 119] {
        assert_eq!(
            resume(Platform::Web, "phone", secs),
            Ok(sign_in()),
            "twice, too"
        );
    }
    let late = resume(Platform::Web, "phone", 120);
    assert_eq!(late, Err(TicketError::Expired));
    for secs in [0, 100_000] {
        let other = resume(Platform::Web, "laptop", secs);
        assert_eq!(other, Err(TicketError::Forged));
        let other = resume(Platform::Ios, "phone", secs);
        assert_eq!(other, Err(TicketError::Forged));
    }
    for place in 0..RESUME_TICKET_BYTES {
        let mut bytes = *ticket.as_bytes();
        bytes[place] ^= 1;
        let forged = ResumeTicket::from_bytes(bytes);
        let resumed = tickets.resume(&forged, Platform::Web, &device("phone"), at(0));
        let expected = match place {
            0 => TicketError::UnknownKey(0),
            _ => TicketError::Forged,
        };
        assert_eq!(resumed, Err(expected), "{place}");
    }
    let off = Tickets::off().resume(&ticket, Platform::Web, &device("phone"), at(0));
    assert_eq!(off, Err(TicketError::UnknownKey(1)));
}

#[test]
fn a_resume_ticket_ends_with_its_token() {
    let short = SignIn {
        ends_at: at(60),
        ..sign_in()
    };
    let ticket = required().sign(&short, Some("boat-1"), at(0));
    let offered = required().offer_resume(&claim(ticket), &device("phone"), at(0));
    let ticket = offered.expect("no lie").expect("a key");
    let resume = |secs| required().resume(&ticket, Platform::Web, &device("phone"), at(secs));
    assert!(resume(59).is_ok());
    assert_eq!(resume(60), Err(TicketError::Expired));
}

#[test]
fn a_resume_ticket_is_offered_for_a_session_that_is_proved() {
    let offer = |tickets: Tickets, claim: Claim<'_>, secs| {
        let offered = tickets.offer_resume(&claim, &device("phone"), at(secs));
        offered.map(|ticket| ticket.is_some())
    };
    let good = claim(ticket());
    for tickets in [required(), lenient()] {
        assert_eq!(offer(tickets, good, 0), Ok(true));
    }
    for tickets in [required(), lenient()] {
        assert_eq!(offer(tickets, good, 900), Ok(false), "late");
    }
    for tickets in [required(), lenient(), Tickets::off()] {
        assert_eq!(offer(tickets, claim(None), 0), Ok(false));
    }
    let other = Claim {
        boat: Some("boat-2"),
        ..good
    };
    assert_eq!(offer(required(), other, 0), Err(TicketError::Forged));
}

// One kind of proof does not pass for the other.
#[test]
fn kinds_of_tickets_are_apart() {
    let session = ticket().expect("a key");
    let mut bytes = [0; RESUME_TICKET_BYTES];
    bytes[..TICKET_BYTES].copy_from_slice(session.as_bytes());
    let resumed = required().resume(
        &ResumeTicket::from_bytes(bytes),
        Platform::Web,
        &device("phone"),
        at(0),
    );
    assert_eq!(resumed, Err(TicketError::Forged));
    let mut bytes = [0; TICKET_BYTES];
    bytes.copy_from_slice(&resume_ticket().as_bytes()[..TICKET_BYTES]);
    let checked = required().check(&claim(Some(Ticket::from_bytes(bytes))), at(0));
    assert_eq!(checked, Err(TicketError::Forged));
}

#[test]
fn a_client_falls_back_to_its_token_where_its_ticket_is_not_taken() {
    let errors = [
        TicketError::Missing,
        TicketError::Forged,
        TicketError::UnknownKey(1),
        TicketError::Expired,
    ];
    for error in errors {
        assert!(falls_back(error.resume_refusal().code), "{error:?}");
    }
    for code in [
        Code::Full,
        Code::Unavailable,
        Code::Draining,
        Code::Forbidden,
    ] {
        assert!(!falls_back(code));
    }
    // Late tickets are not an attack, and do not count as one.
    assert_eq!(
        TicketError::Expired.resume_refusal().code,
        Code::TokenExpired
    );
    let forged = TicketError::Forged.resume_refusal();
    assert_eq!(forged.code, Code::Unauthenticated);
}

#[test]
fn a_token_is_refreshed_after_four_fifths_of_its_life_give_or_take_a_tenth() {
    let refresh = |secs, jitter| refresh_in(secs * SECOND, jitter);
    assert_eq!(refresh(3600, 0), 2592 * SECOND);
    assert_eq!(refresh(3600, 576_000), 3168 * SECOND, "the latest");
    assert_eq!(refresh(3600, 576_001), 2592 * SECOND);
    assert_eq!(refresh(0, 7), Duration::ZERO);
    assert!(refresh_in(Duration::MAX, u64::MAX) < Duration::MAX);
    assert_eq!(REFRESH_PAUSE, 60 * SECOND);
}

#[test]
fn a_session_goes_on_with_a_younger_token_of_its_user() {
    let of = |number, secs: Option<i64>| TokenOf {
        user: user(number),
        issued_at: secs.map(at),
    };
    let check = |session, next| check_refresh(session, next).map_err(|refusal| refusal.code);
    assert_eq!(check(of(1, Some(5)), of(1, Some(6))), Ok(()));
    assert_eq!(
        check(of(1, Some(5)), of(1, Some(5))),
        Ok(()),
        "the same again"
    );
    let older = check(of(1, Some(5)), of(1, Some(4)));
    assert_eq!(older, Err(Code::InvalidArgument));
    assert_eq!(
        check(of(1, None), of(1, Some(4))),
        Ok(()),
        "an older station"
    );
    let other = check(of(1, Some(5)), of(2, Some(6)));
    assert_eq!(other, Err(Code::Unauthenticated));
}
