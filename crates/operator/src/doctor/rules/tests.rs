//! Facts in, findings out.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use protocol::Timestamp;
use protocol::keys::Topic;

use super::*;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const MINUTE: Duration = Duration::from_secs(60);

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// The verdict of a finding, after checking that every other than an ok one has advice.
fn verdict(finding: Finding) -> CheckVerdict {
    assert!(!finding.observation.is_empty(), "{finding:?}");
    let is_advised = !finding.advice.is_empty();
    assert_eq!(
        is_advised,
        finding.verdict != CheckVerdict::Ok,
        "{finding:?}"
    );
    finding.verdict
}

#[test]
fn each_check_has_a_name_of_its_own_that_machines_are_told() {
    let names: BTreeSet<&str> = Check::ALL.iter().map(|check| check.name()).collect();
    assert_eq!(names.len(), Check::ALL.len());
    for check in Check::ALL {
        let json = serde_json::to_value(check).expect("JSON");
        assert_eq!(json, check.name());
    }
}

#[test]
fn the_worst_counts() {
    let ok = Finding::ok(Check::Log, "fine");
    let warning = Finding::warning(Check::Log, "slow", "look");
    let failure = Finding::failure(Check::Log, "gone", "look");
    assert_eq!(worst([]), CheckVerdict::Ok);
    assert_eq!(worst([&ok, &warning]), CheckVerdict::Warning);
    assert_eq!(worst([&failure, &warning, &ok]), CheckVerdict::Failure);
}

#[test]
fn the_development_key_is_for_this_machine_only() {
    let key = |is_well_known, open: &[&str]| TokenKey {
        is_well_known,
        open: open.iter().map(|text| address(text)).collect(),
    };
    let own = key(false, &["0.0.0.0:9000"]).finding();
    assert_eq!(verdict(own), CheckVerdict::Ok);
    assert_eq!(verdict(key(true, &[]).finding()), CheckVerdict::Warning);
    let open = key(true, &["0.0.0.0:9000"]).finding();
    assert!(open.observation.contains("0.0.0.0:9000"), "{open:?}");
    assert_eq!(verdict(open), CheckVerdict::Failure);
}

#[test]
fn a_part_elsewhere_is_spoken_to_with_tls() {
    let verdict = |is_tls, far: Option<&str>| {
        let link = Link {
            part: "Kafka",
            section: "kafka",
            is_tls,
            far: far.map(str::to_owned),
        };
        let finding = link.finding();
        if finding.verdict == CheckVerdict::Warning {
            assert!(finding.advice.contains("kafka.tls.ca_file"), "{finding:?}");
        }
        finding.verdict
    };
    assert_eq!(verdict(false, None), CheckVerdict::Ok);
    assert_eq!(verdict(true, Some("kafka:9092")), CheckVerdict::Ok);
    assert_eq!(verdict(false, Some("kafka:9092")), CheckVerdict::Warning);
}

#[test]
fn services_without_identity_are_warned_of_when_reachable() {
    for (is_on, required, open, expected) in [
        (true, true, Some("10.0.0.7:9100"), CheckVerdict::Ok),
        (true, false, None, CheckVerdict::Warning),
        (false, true, None, CheckVerdict::Ok),
        (false, false, Some("10.0.0.7:9100"), CheckVerdict::Warning),
    ] {
        let open = open.map(address);
        let identity = ServiceIdentity {
            is_on,
            is_required: required,
            open,
        };
        let finding = identity.finding();
        assert_eq!(verdict(finding.clone()), expected, "{finding:?}");
    }
}

#[test]
fn boats_without_tickets_are_warned_of_when_reachable() {
    let far = Some("10.0.0.7:9100");
    for (is_on, required, names_proved, open, expected) in [
        (true, true, true, far, CheckVerdict::Ok),
        (true, true, false, far, CheckVerdict::Warning),
        (true, true, false, None, CheckVerdict::Ok),
        (true, false, true, far, CheckVerdict::Warning),
        (true, false, false, None, CheckVerdict::Ok),
        (false, false, true, None, CheckVerdict::Ok),
        (false, false, true, far, CheckVerdict::Warning),
    ] {
        let open = open.map(address);
        let tickets = SessionTickets {
            is_on,
            is_required: required,
            names_proved,
            open,
        };
        let finding = tickets.finding();
        assert_eq!(verdict(finding.clone()), expected, "{finding:?}");
    }
}

#[test]
fn an_open_admin_port_wants_operators() {
    let port_by = |by_proxy, listen: &str, operators| {
        let port = AdminPort {
            listen: address(listen),
            operators,
            by_proxy,
        };
        verdict(port.finding())
    };
    let port = |listen: &str, operators| port_by(false, listen, operators);
    assert_eq!(port_by(true, "0.0.0.0:9190", 0), CheckVerdict::Ok);
    assert_eq!(port("127.0.0.1:9190", 0), CheckVerdict::Ok);
    assert_eq!(port("0.0.0.0:9190", 1), CheckVerdict::Ok);
    assert_eq!(port("0.0.0.0:9190", 0), CheckVerdict::Failure);
}

#[test]
fn a_certificate_of_the_desk_that_ends_is_said_a_week_before() {
    let hours = |hours: u64| {
        let expires_in = Duration::from_secs(hours * 3600);
        DeskCertificate { expires_in }.finding()
    };
    for (left, wanted, word) in [
        (90 * 24, CheckVerdict::Ok, "90 days"),
        (7 * 24, CheckVerdict::Ok, "7 days"),
        (7 * 24 - 1, CheckVerdict::Warning, "6 days"),
        (24, CheckVerdict::Warning, "24 hours"),
        (23, CheckVerdict::Failure, "23 hours"),
        (0, CheckVerdict::Failure, "has expired"),
    ] {
        let finding = hours(left);
        assert!(finding.observation.contains(word), "{finding:?}");
        assert_eq!(verdict(finding), wanted, "{left}");
    }
}

#[test]
fn missing_audit_and_few_copies_are_warned_of() {
    let audit_verdict = |continuous| verdict(AuditState { continuous }.finding());
    assert_eq!(
        [audit_verdict(true), audit_verdict(false)],
        [CheckVerdict::Ok, CheckVerdict::Warning]
    );
    let copies = |log, in_sync, rows| {
        let copies = Copies { log, in_sync, rows };
        verdict(copies.finding())
    };
    assert_eq!(copies(3, 2, 3), CheckVerdict::Ok);
    for few in [(2, 2, 3), (3, 1, 3), (3, 2, 1)] {
        assert_eq!(
            copies(few.0, few.1, few.2),
            CheckVerdict::Warning,
            "{few:?}"
        );
    }
}

#[test]
fn a_boat_wants_a_file_for_each_connection() {
    let files = |limit, connections_max| {
        let files = OpenFiles {
            limit,
            connections_max,
        };
        verdict(files.finding())
    };
    assert_eq!(files(101_000, Some(100_000)), CheckVerdict::Ok);
    assert_eq!(files(100_999, Some(100_000)), CheckVerdict::Warning);
    assert_eq!(files(0, Some(u64::MAX / 2)), CheckVerdict::Warning);
    assert_eq!(files(1024, None), CheckVerdict::Ok);
    assert_eq!(files(256, None), CheckVerdict::Warning);
}

#[test]
fn an_address_near_its_limit_is_a_warning() {
    let addresses = |counts: &[usize]| {
        let busiest = (1..).zip(counts);
        let addresses = ClientAddresses {
            busiest: busiest
                .map(|(last, count)| (format!("192.0.2.{last}"), *count))
                .collect(),
            connections_max: 100,
        };
        addresses.finding()
    };
    assert_eq!(verdict(addresses(&[])), CheckVerdict::Ok);
    let ok = addresses(&[89, 7]);
    assert!(
        ok.observation
            .contains("192.0.2.1 with 89, 192.0.2.2 with 7")
    );
    assert_eq!(verdict(ok), CheckVerdict::Ok);
    assert_eq!(verdict(addresses(&[90, 7])), CheckVerdict::Warning);
}

#[test]
fn a_disk_fills_up() {
    let gib = 1 << 30;
    let disk = |free, total| {
        let path = "/data".to_owned();
        verdict(Space::Disk { path, free, total }.finding())
    };
    assert_eq!(disk(50 * gib, 100 * gib), CheckVerdict::Ok);
    assert_eq!(disk(9 * gib, 100 * gib), CheckVerdict::Warning);
    assert_eq!(disk(gib - 1, 2 * gib), CheckVerdict::Failure);
    assert_eq!(verdict(Space::Memory.finding()), CheckVerdict::Warning);
    let (path, reason) = ("/data".to_owned(), "no answer".to_owned());
    let unknown = Space::Unknown { path, reason };
    assert_eq!(verdict(unknown.finding()), CheckVerdict::Warning);
}

#[test]
fn a_part_that_is_slow_late_or_away_is_told_apart() {
    let answer = |duration| {
        let check = Check::History;
        Answer { check, duration }.finding()
    };
    let fast = answer(Inspection::Saw(Duration::from_millis(3)));
    assert!(fast.observation.contains("3ms"), "{fast:?}");
    assert_eq!(verdict(fast), CheckVerdict::Ok);
    let at_once = answer(Inspection::Saw(Duration::from_micros(3)));
    assert_eq!(at_once.observation, "answers in less than 1ms");
    let slow = answer(Inspection::Saw(Duration::from_millis(800)));
    assert_eq!(verdict(slow), CheckVerdict::Warning);
    let late = answer(Inspection::Late(Duration::from_secs(3)));
    assert!(late.observation.contains("within 3s"), "{late:?}");
    assert_eq!(verdict(late), CheckVerdict::Failure);
    let unavailable = answer(Inspection::Failed("history: unavailable".to_owned()));
    assert!(
        unavailable.observation.contains("unavailable"),
        "{unavailable:?}"
    );
    assert_eq!(verdict(unavailable), CheckVerdict::Failure);
}

#[test]
fn a_role_that_nobody_has_is_a_failure() {
    let names = |names: &[&str]| Inspection::Saw(names.iter().map(|n| (*n).to_owned()).collect());
    let members = |boats: &[&str], stations: &[&str]| {
        let (boats, stations) = (names(boats), names(stations));
        verdict(Members { boats, stations }.finding())
    };
    assert_eq!(members(&["boat-1"], &["station-1"]), CheckVerdict::Ok);
    assert_eq!(members(&[], &["station-1"]), CheckVerdict::Failure);
    assert_eq!(members(&["boat-1"], &[]), CheckVerdict::Failure);
    assert_eq!(members(&[], &[]), CheckVerdict::Failure);
    let boats = Inspection::Late(Duration::from_secs(3));
    let stations = names(&["station-1"]);
    let unknown = Members { boats, stations }.finding();
    assert_eq!(verdict(unknown), CheckVerdict::Failure);
}

#[test]
fn topics_and_tables_are_as_they_have_to_be_or_it_is_said_why() {
    let topics = |deviations: &[bool]| {
        let deviation = |is_grave: &bool| Deviation {
            text: "topic x is wrong".to_owned(),
            is_grave: *is_grave,
        };
        let list = deviations.iter().map(deviation).collect();
        verdict(Topics(Inspection::Saw(list)).finding())
    };
    assert_eq!(topics(&[]), CheckVerdict::Ok);
    assert_eq!(topics(&[false; 9]), CheckVerdict::Warning);
    assert_eq!(topics(&[false, true]), CheckVerdict::Failure);
    assert_eq!(
        verdict(Tables(Inspection::Saw(())).finding()),
        CheckVerdict::Ok
    );
    let old = Tables(Inspection::Failed("lacks migration 6".to_owned()));
    assert_eq!(verdict(old.finding()), CheckVerdict::Failure);
}

#[test]
fn a_list_of_names_has_an_end() {
    let names = (1..=7).map(|n| n.to_string());
    assert_eq!(join_names(names), "1, 2, 3, 4, 5 and 2 more");
    assert_eq!(join_names(Vec::new()), "");
}

fn backlog(committed_offset: Option<u64>, wait: Duration) -> Backlog {
    Backlog {
        topic: Topic::Message,
        partition: 3,
        first: 10,
        end: 20,
        committed_offset,
        oldest_at: Some(NOW - wait),
        delay: Duration::ZERO,
    }
}

fn progress(backlogs: Vec<Backlog>) -> Finding {
    let progress = Progress {
        check: Check::Carriers,
        now: NOW,
        backlogs: Inspection::Saw(backlogs),
    };
    progress.finding()
}

#[test]
fn backlogs_are_judged_by_age_and_not_by_number() {
    let idle = Backlog {
        oldest_at: None,
        ..backlog(Some(20), MINUTE)
    };
    assert_eq!(progress(vec![idle.clone()]).observation, "no backlog");
    let busy = progress(vec![backlog(Some(12), MINUTE), idle]);
    assert_eq!(
        (busy.observation.as_str(), busy.verdict),
        ("8 records in flight", CheckVerdict::Ok)
    );
    let late = progress(vec![backlog(Some(12), MINUTE * 2)]);
    assert!(late.observation.contains("message/3, is 2m"), "{late:?}");
    assert_eq!(verdict(late), CheckVerdict::Warning);
    let stands = progress(vec![backlog(None, MINUTE * 6)]);
    assert!(
        stands.observation.starts_with("backlog of 10 records"),
        "{stands:?}"
    );
    assert_eq!(verdict(stands), CheckVerdict::Failure);
}

#[test]
fn a_retry_waits_for_its_tier_first() {
    let mut retry = backlog(Some(12), MINUTE * 10);
    retry.delay = MINUTE * 10;
    assert_eq!(verdict(progress(vec![retry])), CheckVerdict::Ok);
}

#[test]
fn records_that_went_unread_are_a_loss() {
    let finding = progress(vec![backlog(Some(7), Duration::ZERO)]);
    assert!(
        finding.observation.contains("3 in message/3"),
        "{finding:?}"
    );
    assert_eq!(verdict(finding), CheckVerdict::Failure);
}

#[test]
fn a_letter_that_waits_is_a_warning() {
    let letters = |inspection| {
        let inspection = Inspection::Saw(inspection);
        Letters {
            now: NOW,
            waiting_letters: inspection,
        }
        .finding()
    };
    assert_eq!(
        verdict(letters(WaitingLetters::default())),
        CheckVerdict::Ok
    );
    let two = letters(WaitingLetters {
        letters: 2,
        oldest: Some(NOW - MINUTE * 180),
        cause: Some("too-large".to_owned()),
        ..WaitingLetters::default()
    });
    assert_eq!(
        two.observation,
        "2 letters open, the oldest from 3h ago; most common cause: too-large"
    );
    assert_eq!(verdict(two), CheckVerdict::Warning);
    let busy = Inspection::Failed("another question is reading the log".to_owned());
    let uncounted_letters = Letters {
        now: NOW,
        waiting_letters: busy,
    };
    assert_eq!(verdict(uncounted_letters.finding()), CheckVerdict::Warning);
}

#[test]
fn minutes_may_be_open_for_a_while() {
    let minutes = |closed_ago: Option<Duration>, up| {
        let minutes = ClosedMinutes {
            now: NOW,
            uptime: up,
            settle: MINUTE * 2,
            closed_until: Inspection::Saw(closed_ago.map(|ago| NOW - ago)),
        };
        verdict(minutes.finding())
    };
    assert_eq!(minutes(Some(MINUTE * 4), MINUTE), CheckVerdict::Ok);
    assert_eq!(minutes(Some(MINUTE * 8), MINUTE), CheckVerdict::Warning);
    assert_eq!(minutes(Some(MINUTE * 90), MINUTE), CheckVerdict::Failure);
    assert_eq!(minutes(None, MINUTE), CheckVerdict::Ok, "it has just begun");
    assert_eq!(minutes(None, MINUTE * 8), CheckVerdict::Warning);
}

#[test]
fn minutes_closed_ahead_of_the_clock_are_a_finding() {
    let finding = |ahead| {
        let minutes = ClosedMinutes {
            now: NOW,
            uptime: MINUTE * 9,
            settle: MINUTE * 2,
            closed_until: Inspection::Saw(Some(NOW + ahead)),
        };
        minutes.finding()
    };
    assert_eq!(verdict(finding(MINUTE)), CheckVerdict::Ok);
    let two_hours = finding(MINUTE * 120);
    assert!(two_hours.observation.contains("2h"), "{two_hours:?}");
    assert_eq!(verdict(two_hours), CheckVerdict::Warning);
}

#[test]
fn a_clock_that_is_behind_shows_in_the_log() {
    let clock = |ahead: i64| {
        let newest = Timestamp::from_millis(NOW.millis() + ahead);
        let newest = Inspection::Saw(Some((newest, "message/0".to_owned())));
        verdict(LogClock { now: NOW, newest }.finding())
    };
    assert_eq!(clock(-5000), CheckVerdict::Ok);
    assert_eq!(clock(1000), CheckVerdict::Ok);
    assert_eq!(clock(1500), CheckVerdict::Warning);
    assert_eq!(clock(31_000), CheckVerdict::Failure);
    let nothing = LogClock {
        now: NOW,
        newest: Inspection::Saw(None),
    };
    assert_eq!(verdict(nothing.finding()), CheckVerdict::Ok);
}

#[test]
fn clocks_differ_only_where_the_way_there_does_not_explain_it() {
    let reading = |name: &str, ahead: i64, way: i64| Reading {
        address: name.to_owned(),
        asked_at: NOW,
        answered_at: Timestamp::from_millis(NOW.millis() + way),
        remote_at: Timestamp::from_millis(NOW.millis() + ahead),
    };
    let verdict_of = |readings| verdict(Clocks(readings).finding());
    assert_eq!(verdict_of(vec![]), CheckVerdict::Ok);
    assert_eq!(verdict_of(vec![reading("a", 40, 50)]), CheckVerdict::Ok);
    assert_eq!(verdict_of(vec![reading("a", 1900, 1000)]), CheckVerdict::Ok);
    assert_eq!(
        verdict_of(vec![reading("a", 2100, 1000)]),
        CheckVerdict::Warning
    );
    assert_eq!(
        verdict_of(vec![reading("a", -40_000, 10)]),
        CheckVerdict::Failure
    );
    // Each is close enough to this machine, but not to the other.
    let finding = Clocks(vec![reading("a", 900, 1), reading("b", -900, 1)]).finding();
    assert!(
        finding
            .observation
            .starts_with("a is ahead of b by at least 1s"),
        "{finding:?}"
    );
    assert_eq!(verdict(finding), CheckVerdict::Warning);
}

#[test]
fn a_port_that_answers_says_its_version() {
    let visit = |remote_version| {
        let visit = ProcessProbe {
            address: "http://a".to_owned(),
            own_version: "0.1.0".to_owned(),
            remote_version,
        };
        let findings = visit.findings().into_iter();
        findings
            .map(|finding| (finding.check, verdict(finding)))
            .collect::<Vec<_>>()
    };
    let port = (Check::AdminPort, CheckVerdict::Ok);
    assert_eq!(
        visit(Inspection::Saw("0.1.0".to_owned())),
        [port, (Check::Version, CheckVerdict::Ok)]
    );
    assert_eq!(
        visit(Inspection::Saw("0.2.0".to_owned())),
        [port, (Check::Version, CheckVerdict::Warning)]
    );
    assert_eq!(
        visit(Inspection::Failed("refused".to_owned())),
        [(Check::AdminPort, CheckVerdict::Failure)]
    );
}

#[test]
fn an_unknown_check_of_another_version_is_reported() {
    let verdict_of_unknown = |verdict| {
        let stranger = UnknownProcess {
            check: "quorum".to_owned(),
            verdict,
            observation: "two of three".to_owned(),
        };
        stranger.finding()
    };
    for verdict in [None, Some(CheckVerdict::Ok), Some(CheckVerdict::Warning)] {
        assert_eq!(verdict_of_unknown(verdict).verdict, CheckVerdict::Warning);
    }
    let failure = verdict_of_unknown(Some(CheckVerdict::Failure));
    assert_eq!(failure.verdict, CheckVerdict::Failure);
    assert_eq!(
        failure.observation,
        "quorum (unknown to this program): two of three"
    );
    for unreachable in [Unreachable::Busy, Unreachable::Foreign] {
        let finding = unreachable.finding();
        assert_eq!(finding.verdict, CheckVerdict::Warning);
        assert!(finding.observation.contains("not examined"), "{finding:?}");
    }
}
