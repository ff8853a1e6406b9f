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
    assert_eq!(RENEWAL_WINDOW, 24 * 3600 * SECOND);
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
    let expired = tickets.check(&claim(ticket()), at(900));
    assert_eq!(expired, Err(TicketError::Expired));
}

#[test]
fn ticket_is_renewed_a_minute_early_unless_its_token_ends() {
    let is_due_at = |signed_in: SignIn, secs| {
        let ticket = required().sign(&signed_in, None, at(0)).expect("a key");
        ticket.is_due(at(secs))
    };
    assert!(!is_due_at(sign_in(), 839));
    assert!(is_due_at(sign_in(), 840));
    assert!(is_due_at(sign_in(), 100_000));
    let short_token = SignIn {
        ends_at: at(900),
        ..sign_in()
    };
    assert!(!is_due_at(short_token, 899), "there is no later one");
}

#[test]
fn a_late_renewal_does_not_undo_a_refresh() {
    let sign = |signed_in| required().sign(&signed_in, None, at(0)).expect("a key");
    let refreshed_sign_in = SignIn {
        issued_at: at(0),
        ends_at: at(24 * 3600),
        ..sign_in()
    };
    let (old, new) = (sign(sign_in()), sign(refreshed_sign_in));
    assert_eq!(old.replaced_by(new), new);
    assert_eq!(new.replaced_by(old), new);
    let later_ticket = required().sign(&sign_in(), None, at(60)).expect("a key");
    assert_eq!(old.replaced_by(later_ticket), later_ticket);
}

#[test]
fn a_ticket_ends_with_its_token() {
    let tickets = required();
    let short_token = SignIn {
        ends_at: at(60),
        ..sign_in()
    };
    let ticket = tickets.sign(&short_token, Some("boat-1"), at(0));
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

    let long_token = SignIn {
        ends_at: at(90 * 24 * 3600),
        ..sign_in()
    };
    let ticket = tickets.sign(&long_token, Some("boat-1"), at(0));
    let renewal = |secs| tickets.renew(&claim(ticket), at(secs));
    assert_eq!(renewal(900 + 24 * 3600 - 1), Ok(Renewal::Late(long_token)));
    assert_eq!(renewal(900 + 24 * 3600), Err(TicketError::Expired));
}

#[test]
fn a_ticket_is_of_one_session_of_one_boat() {
    let valid_claim = claim(ticket());
    let other_claims = [
        Claim {
            user: user(3),
            ..valid_claim
        },
        Claim {
            session: Some(session(3)),
            ..valid_claim
        },
        Claim {
            platform: Some(Platform::Ios),
            ..valid_claim
        },
        Claim {
            boat: Some("boat-2"),
            ..valid_claim
        },
    ];
    for tickets in [required(), lenient()] {
        assert_eq!(tickets.check(&valid_claim, at(1)), Ok(()));
        assert_eq!(
            tickets.check(
                &Claim {
                    platform: None,
                    ..valid_claim
                },
                at(1)
            ),
            Ok(())
        );
        for other_claim in other_claims {
            // Long after its end as well: a forged ticket reveals nothing.
            for secs in [1, 100_000] {
                assert_eq!(
                    tickets.check(&other_claim, at(secs)),
                    Err(TicketError::Forged),
                    "{other_claim:?}"
                );
                assert_eq!(
                    tickets.renew(&other_claim, at(secs)),
                    Err(TicketError::Forged),
                    "{other_claim:?}"
                );
            }
        }
    }
}

// A call without a certificate comes over a network that the settings trust.
#[test]
fn certificates_may_come_and_go_while_tickets_are_not_required() {
    let for_boat = ticket();
    let for_any_boat = required().sign(&sign_in(), None, at(0));
    let claim_from = |boat, ticket| Claim {
        boat,
        ..claim(ticket)
    };
    for (boat, ticket) in [(None, for_boat), (Some("boat-1"), for_any_boat)] {
        assert_eq!(lenient().check(&claim_from(boat, ticket), at(1)), Ok(()));
        assert_eq!(
            required().check(&claim_from(boat, ticket), at(1)),
            Err(TicketError::Forged)
        );
    }
    let renewal = lenient().renew(&claim_from(Some("boat-1"), for_any_boat), at(1));
    assert_eq!(renewal, Ok(Renewal::Proved(sign_in())));
    assert_eq!(
        lenient().renew(&claim_from(None, for_boat), at(1)),
        Ok(Renewal::Unproved)
    );
}

#[test]
fn missing_ticket_is_accepted_only_where_none_is_required() {
    let no_ticket = claim(None);
    assert_eq!(
        required().check(&no_ticket, at(0)),
        Err(TicketError::Missing)
    );
    assert_eq!(
        required().renew(&no_ticket, at(0)),
        Err(TicketError::Missing)
    );
    assert_eq!(lenient().check(&no_ticket, at(0)), Ok(()));
    assert_eq!(lenient().renew(&no_ticket, at(0)), Ok(Renewal::Unproved));
    let no_session = Claim {
        session: None,
        ..claim(ticket())
    };
    assert_eq!(
        required().check(&no_session, at(1)),
        Err(TicketError::Missing)
    );
    let late_claim = claim(ticket());
    assert_eq!(lenient().check(&late_claim, at(900)), Ok(()));
    for claim in [no_ticket, late_claim] {
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
        let two_keys = file.clone();
        assert_eq!(file.promote(), Some(2));
        [first, two_keys, file.clone()]
    };
    // Each step reaches some stations before others.
    for [one, next] in [[0, 1], [1, 2]] {
        for (signer, checker) in [(one, next), (next, one), (one, one), (next, next)] {
            let ticket = sign(&stages[signer]);
            assert_eq!(
                check(&stages[checker], ticket),
                Ok(()),
                "{signer} {checker}"
            );
        }
    }
    let old_ticket = sign(&stages[0]);
    assert_eq!(file.retire(), [1]);
    assert_eq!(check(&file, old_ticket), Err(TicketError::UnknownKey(1)));
    assert_eq!(check(&file, sign(&stages[2])), Ok(()));
    // Both steps at once: lagging stations know nothing of them.
    let newer_ticket = sign(&stages[2]);
    assert_eq!(
        check(&stages[0], newer_ticket),
        Err(TicketError::UnknownKey(2))
    );
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
    for bad_text in ["x", "256", "-1", "+"] {
        assert_eq!(
            parse(format!("1 {key}\n{bad_text} {key}")),
            Err(KeyFileError::Line(2)),
            "{bad_text}"
        );
    }
    for bad_text in [
        &key[1..],
        &key.replace('a', "g"),
        &format!("{key} x"),
        &format!("{key}ab"),
    ] {
        assert_eq!(
            parse(format!("1 {bad_text}")),
            Err(KeyFileError::Line(1)),
            "{bad_text}"
        );
    }
    assert_eq!(
        parse(format!("1 {key}\n1 {key}")),
        Err(KeyFileError::Twice(1))
    );
    assert_eq!(parse("# none\n".to_owned()), Err(KeyFileError::Empty));
    let too_many: String = (0..17).map(|id| format!("{id} {key}\n")).collect();
    assert_eq!(parse(too_many), Err(KeyFileError::Full));
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
    let after_token_end = lenient().renew(&claim(ticket()), at(23 * 3600));
    assert_eq!(after_token_end, Ok(Renewal::Unproved));
}

#[test]
fn debug_output_hides_keys_and_tickets() {
    let debug_text = format!("{:?} {:?} {:?}", ticket(), keys(), required());
    assert!(
        !debug_text.contains("07070707") && !debug_text.contains("7, 7"),
        "{debug_text}"
    );
    assert!(debug_text.contains("32 bytes"), "{debug_text}");
}

proptest! {
    // Any change makes a ticket invalid.
    #[test]
    fn a_changed_ticket_is_forged(index in 1..TICKET_BYTES, bits in 1..=u8::MAX) {
        let mut bytes = *ticket().expect("keys").as_bytes();
        bytes[index] ^= bits;
        let changed_claim = claim(Some(Ticket::from_bytes(bytes)));
        prop_assert_eq!(required().check(&changed_claim, at(1)), Err(TicketError::Forged));
        prop_assert_eq!(lenient().check(&changed_claim, at(1)), Err(TicketError::Forged));
    }

    #[test]
    fn any_bytes_are_judged(bytes in any::<[u8; TICKET_BYTES]>(), secs in any::<i32>()) {
        let any_claim = claim(Some(Ticket::from_bytes(bytes)));
        prop_assert!(required().check(&any_claim, at(secs.into())).is_err());
        prop_assert!(required().renew(&any_claim, at(secs.into())).is_err());
    }
}

fn device(name: &str) -> DeviceId {
    DeviceId::new(name).expect("short")
}

fn resume_ticket() -> ResumeTicket {
    let offer_result = required().offer_resume(&claim(ticket()), &device("phone"), at(0));
    offer_result.expect("no lie").expect("a key")
}

// Threat 12: wrong device, wrong platform, late, forged, with a retired key.
#[test]
fn a_client_resumes_on_its_own_device_within_two_minutes() {
    let tickets = required();
    let ticket = resume_ticket();
    let resume = |platform, device_name: &str, secs| {
        tickets.resume(&ticket, platform, &device(device_name), at(secs))
    };
    assert_eq!(RESUME_LIFE, 120 * SECOND);
    for secs in [0, 119] {
        assert_eq!(
            resume(Platform::Web, "phone", secs),
            Ok(sign_in()),
            "twice, too"
        );
    }
    let expired = resume(Platform::Web, "phone", 120);
    assert_eq!(expired, Err(TicketError::Expired));
    for secs in [0, 100_000] {
        let other = resume(Platform::Web, "laptop", secs);
        assert_eq!(other, Err(TicketError::Forged));
        let other = resume(Platform::Ios, "phone", secs);
        assert_eq!(other, Err(TicketError::Forged));
    }
    for index in 0..RESUME_TICKET_BYTES {
        let mut bytes = *ticket.as_bytes();
        bytes[index] ^= 1;
        let forged_ticket = ResumeTicket::from_bytes(bytes);
        let result = tickets.resume(&forged_ticket, Platform::Web, &device("phone"), at(0));
        let expected = match index {
            0 => TicketError::UnknownKey(0),
            _ => TicketError::Forged,
        };
        assert_eq!(result, Err(expected), "{index}");
    }
    let without_tickets = Tickets::off().resume(&ticket, Platform::Web, &device("phone"), at(0));
    assert_eq!(without_tickets, Err(TicketError::UnknownKey(1)));
}

#[test]
fn a_resume_ticket_ends_with_its_token() {
    let short_token = SignIn {
        ends_at: at(60),
        ..sign_in()
    };
    let ticket = required().sign(&short_token, Some("boat-1"), at(0));
    let offer_result = required().offer_resume(&claim(ticket), &device("phone"), at(0));
    let ticket = offer_result.expect("no lie").expect("a key");
    let resume = |secs| required().resume(&ticket, Platform::Web, &device("phone"), at(secs));
    assert!(resume(59).is_ok());
    assert_eq!(resume(60), Err(TicketError::Expired));
}

#[test]
fn a_resume_ticket_is_offered_for_a_session_that_is_proved() {
    let offer = |tickets: Tickets, claim: Claim<'_>, secs| {
        let offer_result = tickets.offer_resume(&claim, &device("phone"), at(secs));
        offer_result.map(|ticket| ticket.is_some())
    };
    let valid_claim = claim(ticket());
    for tickets in [required(), lenient()] {
        assert_eq!(offer(tickets, valid_claim, 0), Ok(true));
    }
    for tickets in [required(), lenient()] {
        assert_eq!(offer(tickets, valid_claim, 900), Ok(false), "late");
    }
    for tickets in [required(), lenient(), Tickets::off()] {
        assert_eq!(offer(tickets, claim(None), 0), Ok(false));
    }
    let other = Claim {
        boat: Some("boat-2"),
        ..valid_claim
    };
    assert_eq!(offer(required(), other, 0), Err(TicketError::Forged));
}

// One kind of proof does not pass for the other.
#[test]
fn kinds_of_tickets_are_apart() {
    let session = ticket().expect("a key");
    let mut bytes = [0; RESUME_TICKET_BYTES];
    bytes[..TICKET_BYTES].copy_from_slice(session.as_bytes());
    let result = required().resume(
        &ResumeTicket::from_bytes(bytes),
        Platform::Web,
        &device("phone"),
        at(0),
    );
    assert_eq!(result, Err(TicketError::Forged));
    let mut bytes = [0; TICKET_BYTES];
    bytes.copy_from_slice(&resume_ticket().as_bytes()[..TICKET_BYTES]);
    let result_of_check = required().check(&claim(Some(Ticket::from_bytes(bytes))), at(0));
    assert_eq!(result_of_check, Err(TicketError::Forged));
}

#[test]
fn client_falls_back_to_its_token_if_its_ticket_is_refused() {
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
    let refusal = TicketError::Forged.resume_refusal();
    assert_eq!(refusal.code, Code::Unauthenticated);
}

#[test]
fn token_is_refreshed_after_80_percent_of_its_life() {
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
    let token = |number, secs: Option<i64>| TokenOf {
        user: user(number),
        issued_at: secs.map(at),
    };
    let check = |session, next| check_refresh(session, next).map_err(|refusal| refusal.code);
    assert_eq!(check(token(1, Some(5)), token(1, Some(6))), Ok(()));
    assert_eq!(
        check(token(1, Some(5)), token(1, Some(5))),
        Ok(()),
        "the same again"
    );
    let older_token = check(token(1, Some(5)), token(1, Some(4)));
    assert_eq!(older_token, Err(Code::InvalidArgument));
    assert_eq!(
        check(token(1, None), token(1, Some(4))),
        Ok(()),
        "an older station"
    );
    let other_user = check(token(1, Some(5)), token(2, Some(6)));
    assert_eq!(other_user, Err(Code::Unauthenticated));
}
