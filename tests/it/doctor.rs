//! The doctor names exactly the faults, mends them, and is quiet if all is well.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use backend::clock::Clock;
use backend::embedded::{Engine, ScanOrder, Table, WriteBatch};
use backend::hook::{Fault, Faults};
use operator::Access;
use operator::dead_letters::rules::OperatorAction;
use operator::doctor::rules::{Check, CheckVerdict, Finding};
use operator::doctor::{self, Doctor, Stores, UserReport};
use operator::lifecycle::{Phase, Phases};
use operator::port::{Desk, Operators};
use protocol::conversation::ConversationRow;
use protocol::history::Version;
use protocol::mailbox::{ConnectRequest, NewSession};
use protocol::message::Target;
use protocol::presence::{BoatLife, DeniedBoats, SessionKey};
use protocol::unread::Tally;
use protocol::{BoatId, DeviceId, Incarnation, MessageId, Platform, Seq, SessionId, Timestamp};
use server::compose::Environment;
use server::settings::Settings;
use tests::faults::{HISTORY, MAILBOX};
use tests::person::conversation;
use tests::{Cluster, user};

/// Doctor of a process with all of these parts.
fn doctor(settings: &Settings, environment: &Environment, stores: Stores) -> Doctor {
    let phases = Phases::default();
    phases.enter(Phase::Ready);
    let (backends, connector) = (&environment.backends, &environment.connector);
    let bounds = settings.station.bounds();
    let desk = Desk::new(backends, connector, bounds, Operators::default());
    Doctor::new(doctor::Parts {
        settings: settings.for_doctor(),
        role: None,
        stores,
        access: Access::from(&environment.backends),
        phases,
        operators: Operators::default(),
        desk: Some(Arc::new(desk)),
        certificates: None,
    })
}

fn finding_for(findings: &[Finding], check: Check) -> &Finding {
    let finding_of_check = findings.iter().find(|finding| finding.check == check);
    finding_of_check.unwrap_or_else(|| panic!("no {} in {findings:#?}", check.name()))
}

fn kinds(report: &UserReport) -> Vec<&str> {
    assert_eq!(report.omissions, Vec::<String>::new());
    let difference = report.differences.items.iter();
    difference
        .map(|difference| difference.kind.as_str())
        .collect()
}

async fn examine_user(doctor: &Doctor, number: i64) -> UserReport {
    let report = doctor.examine(user(number)).await;
    report.expect("it sees the stores")
}

#[tokio::test]
async fn a_healthy_system_has_no_finding_however_busy_it_is() {
    const MESSAGE_COUNT: usize = 60;
    let dir = tempfile::tempdir().expect("a directory");
    let mut settings = tests::settings();
    settings.audit.continuous = true;
    let cluster = Cluster::over(settings.clone(), &Engine::memory()).await;
    let stores = Stores::Directory(dir.path().to_owned());
    let doctor = doctor(&settings, &cluster.environment, stores);
    let ada = cluster.device(1).ready().await;
    let mut bea = cluster.device(2).ready().await;
    // One platform is away: its mail grows.
    let phone = cluster.device(2).on(Platform::Ios).named("phone");
    phone.ready().await.close().await;
    ada.say(2, "first").await;
    assert_eq!(bea.hear_texts(1).await, ["first"]);

    let chat = async {
        for number in 0..MESSAGE_COUNT {
            let text = number.to_string();
            ada.say(2, &text).await;
            assert_eq!(bea.hear_texts(1).await, [text]);
        }
    };
    let checkups = async {
        let checkup = doctor.checkup().await;
        // The machine's limits are no fault of the program; the tests' key is the development key.
        let machine = [Check::OpenFiles, Check::Space, Check::TokenKey];
        for finding in &checkup.findings {
            let is_ok = finding.verdict == CheckVerdict::Ok;
            assert!(is_ok || machine.contains(&finding.check), "{finding:?}");
        }
        for check in [Check::Carriers, Check::ClosedMinutes, Check::Space] {
            finding_for(&checkup.findings, check);
        }
        for number in [1, 2, 1, 2, 3] {
            assert_eq!(kinds(&examine_user(&doctor, number).await), [""; 0]);
        }
    };
    tokio::join!(chat, checkups);
    cluster.assert_settled(1 + MESSAGE_COUNT as u64).await;
    let bea_now = examine_user(&doctor, 2).await;
    assert_eq!(kinds(&bea_now), [""; 0]);
    assert_eq!((bea_now.conversations, bea_now.mails), (1, 61));
    assert_eq!(bea_now.rows, 61);
    ada.close().await;
    bea.close().await;
    drop(doctor);
    cluster.stop().await;
}

/// Writes into the store behind the system's back, like a failing disk.
struct Vandal {
    engine: Engine,
}

impl Vandal {
    fn remove(&self, table: Table, key: &[u8]) {
        let value = self.engine.get(table, key).expect("reads");
        assert!(value.is_some(), "{table:?} has no {key:02x?}");
        let mut batch = WriteBatch::new();
        batch.remove(table, key.to_vec());
        self.engine.write(batch).expect("writes");
    }

    /// Removes a user's row of a message.
    fn remove_row(&self, owner: i64, id: MessageId) {
        let key = [owner.to_be_bytes(), id.get().to_be_bytes()].concat();
        self.remove(Table::Private, &key);
    }

    /// Removes the entry from a position to its message.
    fn remove_position(&self, id: MessageId) {
        let entries = self
            .engine
            .range(Table::PrivateIndex, .., ScanOrder::Forward, 100);
        let value = id.get().to_be_bytes();
        let entries = entries.expect("reads");
        let entry = entries.iter().find(|(_, id_bytes)| id_bytes[..] == value);
        self.remove(Table::PrivateIndex, &entry.expect("it has a position").0);
    }

    fn remove_list(&self, owner: i64) {
        let prefix = owner.to_be_bytes();
        let rows = self
            .engine
            .prefix(Table::Conversation, &prefix, ScanOrder::Forward, 10);
        for (key, _) in rows.expect("reads") {
            self.remove(Table::Conversation, &key);
        }
    }

    fn remove_body(&self, id: MessageId) {
        let key = [&id.get().to_be_bytes()[..], &[1]].concat();
        self.remove(Table::MailBody, &key);
    }
}

#[tokio::test]
async fn damage_is_named_mended_and_gone() {
    let engine = Engine::memory();
    let settings = tests::settings();
    let cluster = Cluster::over(settings.clone(), &engine).await;
    let doctor = doctor(&settings, &cluster.environment, Stores::Memory);
    let vandal = Vandal { engine };
    cluster.device(2).ready().await.close().await;
    let ada = cluster.device(1).ready().await;
    let (mut ids, mut head_of_three) = (Vec::new(), None);
    for number in 1..=5 {
        ids.push(ada.say(2, &number.to_string()).await);
        cluster.assert_settled(number).await;
        if number == 3 {
            let key = conversation(1, 2).to_key();
            head_of_three = vandal.engine.get(Table::Head, &key).expect("reads");
        }
    }
    assert_eq!(kinds(&examine_user(&doctor, 2).await), [""; 0]);

    // Row 2 is gone, and the position entry of row 4; the list, the newest of the head, a body; and
    // a session from the boat's previous life was never removed.
    vandal.remove_row(2, ids[1]);
    vandal.remove_position(ids[3]);
    vandal.remove_list(2);
    vandal.remove_body(ids[4]);
    let mut batch = WriteBatch::new();
    let key = conversation(1, 2).to_key().to_vec();
    batch.put(Table::Head, key, head_of_three.expect("a head"));
    vandal.engine.write(batch).expect("writes");
    let stale_session = SessionKey {
        user: user(2),
        session: SessionId::new(99).expect("positive"),
        life: BoatLife {
            boat: BoatId::new(&settings.boat.name).expect("a name"),
            incarnation: Incarnation(0),
        },
    };
    let entry = NewSession {
        key: stale_session,
        platform: Platform::Ios,
        device: DeviceId::new("phone").expect("a name"),
    };
    let connect = ConnectRequest {
        user: user(2),
        entry,
        denied_boats: DeniedBoats::default(),
        now: cluster.now(),
    };
    let result = cluster.backends.mailbox.connect(connect).await;
    result.expect("answered").expect("registered");

    let report = examine_user(&doctor, 2).await;
    assert_eq!(report.verdict, CheckVerdict::Failure);
    let expected = [
        "session_of_ended_life",
        "mail_bodiless",
        "hole",
        "hole",
        "head_behind",
        "list_behind",
    ];
    assert_eq!(kinds(&report), expected);
    let sentences: Vec<&str> = report
        .differences
        .items
        .iter()
        .map(|t| t.observation.as_str())
        .collect();
    let expect_part =
        |n: usize, part: &str| assert!(sentences[n].contains(part), "{}", sentences[n]);
    expect_part(0, "session 99 on ios");
    expect_part(1, &ids[4].to_string());
    expect_part(2, "position 2 of p:1:2 has no message");
    expect_part(3, "position 4 of p:1:2 has no message");
    expect_part(4, "ends at position 5, but its head is 3");
    expect_part(5, "lacks p:1:2");
    let unrepairable = report
        .differences
        .items
        .iter()
        .filter(|t| t.repair.is_none());
    let unrepairable: Vec<&str> = unrepairable
        .map(|difference| difference.kind.as_str())
        .collect();
    assert_eq!(
        unrepairable,
        ["mail_bodiless"],
        "history has it: it needs nothing"
    );

    let repair = doctor.repair("ann", user(2), "a disk failed").await;
    let repair = repair.expect("an answer").expect("it sees the stores");
    assert_eq!(kinds(&repair.before), expected);
    assert_eq!(repair.steps.len(), 5);
    let failed_steps: Vec<_> = repair.steps.iter().filter(|m| m.error.is_some()).collect();
    assert!(failed_steps.is_empty(), "{failed_steps:?}");
    assert_eq!(kinds(&repair.after), ["mail_bodiless"]);
    assert_eq!(repair.after.verdict, CheckVerdict::Warning);

    // A second repair changes nothing, and the operators' log has only repairs that were made.
    let second_repair = doctor.repair("ann", user(2), "to be sure").await;
    let second_repair = second_repair
        .expect("an answer")
        .expect("it sees the stores");
    assert_eq!(
        (second_repair.steps.len(), kinds(&second_repair.after)),
        (0, vec!["mail_bodiless"])
    );
    let log = cluster.letters().log(10, true, None).await.expect("a log");
    let repairs = log.entries.iter().filter_map(|entry| match &entry.act {
        OperatorAction::Repaired { user, what, why } => {
            Some((entry.by.as_str(), *user, what.len(), why.as_str()))
        }
        _ => None,
    });
    let repairs: Vec<_> = repairs.collect();
    assert_eq!(repairs, [("ann", user(2), 5, "a disk failed")]);

    // The other side is well again, too, and no user misses anything.
    assert_eq!(kinds(&examine_user(&doctor, 1).await), [""; 0]);
    ada.say(2, "6").await;
    let mut bea = cluster.device(2).ready().await;
    assert_eq!(bea.hear_texts(6).await, ["1", "2", "3", "4", "5", "6"]);
    bea.hears_nothing().await;
    let target = Target {
        user: user(2),
        platform: Platform::Desktop,
    };
    tests::system::eventually("the mailbox is empty", async || {
        let mail_count = cluster.backends.mailbox.waiting(target).await;
        (mail_count.expect("an answer") == 0).then_some(())
    })
    .await;
    let healthy = examine_user(&doctor, 2).await;
    assert_eq!((kinds(&healthy), healthy.rows), (vec![], 6));
    cluster.assert_settled(6).await;
    drop(doctor);
    cluster.stop().await;
}

/// The doctor names a message that both sides lost, and leaves it alone.
#[tokio::test]
async fn a_message_that_both_sides_lost_is_named_and_not_made_up() {
    let engine = Engine::memory();
    let settings = tests::settings();
    let mut cluster = Cluster::over(settings.clone(), &engine).await;
    cluster.waive_judges("a message is lost for good");
    let doctor = doctor(&settings, &cluster.environment, Stores::Memory);
    let ada = cluster.device(1).ready().await;
    let mut ids = Vec::new();
    for text in ["1", "2", "3"] {
        ids.push(ada.say(2, text).await);
    }
    cluster.assert_settled(3).await;
    let vandal = Vandal { engine };
    vandal.remove_row(1, ids[2]);
    vandal.remove_row(2, ids[2]);
    for number in [1, 2] {
        let repair = doctor.repair("ann", user(number), "").await;
        let repair = repair.expect("an answer").expect("it sees the stores");
        assert_eq!(repair.steps, []);
        assert_eq!(kinds(&repair.after), ["hole"]);
        let difference = &repair.after.differences.items[0];
        assert!(
            difference.observation.contains("position 3 of p:1:2"),
            "{difference:?}"
        );
        assert!(difference.advice.is_some(), "{difference:?}");
    }
    ada.close().await;
    drop(doctor);
    cluster.stop().await;
}

/// Clock ahead of another.
struct Ahead {
    inner: Arc<dyn Clock>,
    by_secs: AtomicU64,
}

impl Clock for Ahead {
    fn now(&self) -> Timestamp {
        self.inner.now() + Duration::from_secs(self.by_secs.load(Ordering::SeqCst))
    }
}

#[tokio::test]
async fn a_store_that_is_away_and_what_waits_for_it_are_told() {
    let (mut cluster, faults) = Cluster::with_faults(tests::settings()).await;
    cluster.expect_log("cannot write messages: their partitions wait");
    let clock = Arc::new(Ahead {
        inner: cluster.backends.clock.clone(),
        by_secs: AtomicU64::new(0),
    });
    let mut environment = cluster.environment.clone();
    environment.backends.clock = clock.clone();
    let doctor = doctor(&tests::settings(), &environment, Stores::Memory);
    let ada = cluster.device(1).ready().await;
    faults.begin(HISTORY, Fault::Unavailable);
    ada.say(2, "one").await;

    let verdict = |findings: &[Finding], check| finding_for(findings, check).verdict;
    let first = doctor.checkup().await.findings;
    assert_eq!(verdict(&first, Check::History), CheckVerdict::Failure);
    assert_eq!(
        verdict(&first, Check::Carriers),
        CheckVerdict::Ok,
        "it has just begun"
    );
    clock.by_secs.store(400, Ordering::SeqCst);
    let later_findings = doctor.checkup().await.findings;
    assert_eq!(
        verdict(&later_findings, Check::Carriers),
        CheckVerdict::Failure
    );
    let report = examine_user(&doctor, 2).await;
    assert_eq!(report.verdict, CheckVerdict::Warning);
    assert_eq!(kinds(&report), ["not_looked_at"]);
    let observation = &report.differences.items[0].observation;
    assert!(
        observation.contains("the newest messages") && observation.contains("away"),
        "{observation}"
    );

    faults.end(HISTORY);
    cluster.assert_settled(1).await;
    // The offset is committed a moment later.
    tests::system::eventually("nothing waits any more", async || {
        let current_findings = doctor.checkup().await.findings;
        assert_eq!(verdict(&current_findings, Check::History), CheckVerdict::Ok);
        (verdict(&current_findings, Check::Carriers) == CheckVerdict::Ok).then_some(())
    })
    .await;
    ada.close().await;
    drop(doctor);
    cluster.stop().await;
}

/// Only the doctor runs here: whichever part hangs, it reports on the others.
#[tokio::test(start_paused = true)]
async fn a_part_that_hangs_holds_up_no_other() {
    let settings = tests::settings();
    let mut environment =
        Environment::in_memory(&settings.embedded, settings.station.sessions.capacity())
            .expect("stores in memory");
    let faults = Arc::new(Faults::default());
    faults.begin(MAILBOX.named("sessions"), Fault::Hold);
    environment.backends = environment.backends.hooked(&faults.hook());
    let findings = doctor(&settings, &environment, Stores::Memory)
        .checkup()
        .await
        .findings;
    let mailbox = finding_for(&findings, Check::Mailbox);
    assert_eq!(mailbox.verdict, CheckVerdict::Failure);
    assert!(
        mailbox.observation.contains("no answer within 3s"),
        "{mailbox:?}"
    );
    for check in [Check::Log, Check::History, Check::Ledger, Check::Carriers] {
        assert_eq!(finding_for(&findings, check).verdict, CheckVerdict::Ok);
    }
    let members = finding_for(&findings, Check::Members);
    assert_eq!(members.verdict, CheckVerdict::Failure);
    assert!(
        members.observation.contains("neither a boat nor a station"),
        "{members:?}"
    );
}

/// Unreadable head: the doctor reports everything else of the user, and overwrites nothing.
#[tokio::test]
async fn unreadable_head_is_named_and_the_rest_is_examined() {
    let engine = Engine::memory();
    let settings = tests::settings();
    let mut cluster = Cluster::over(settings.clone(), &engine).await;
    cluster.waive_judges("a head stays unreadable");
    let doctor = doctor(&settings, &cluster.environment, Stores::Memory);
    cluster.device(2).ready().await.close().await;
    let ada = cluster.device(1).ready().await;
    for text in ["1", "2"] {
        ada.say(2, text).await;
    }
    cluster.assert_settled(2).await;
    ada.close().await;
    let mut batch = WriteBatch::new();
    let key = conversation(1, 2).to_key().to_vec();
    batch.put(Table::Head, key.clone(), b"no head".to_vec());
    engine.write(batch).expect("writes");
    let vandal = Vandal {
        engine: engine.clone(),
    };
    vandal.remove_list(2);

    let report = examine_user(&doctor, 2).await;
    assert_eq!(report.verdict, CheckVerdict::Failure);
    assert_eq!(kinds(&report), ["not_looked_at", "list_behind"]);
    let difference = &report.differences.items[0];
    assert!(
        difference
            .observation
            .contains("the head of p:1:2: unreadable"),
        "{difference:?}"
    );
    assert_eq!((report.mails, report.rows), (2, 2));
    let repair = doctor.repair("ann", user(2), "a disk failed").await;
    let repair = repair.expect("an answer").expect("it sees the stores");
    assert_eq!(repair.steps.len(), 1);
    assert_eq!(kinds(&repair.after), ["not_looked_at"]);
    let head = engine.get(Table::Head, &key).expect("reads");
    assert_eq!(head.as_deref(), Some(&b"no head"[..]));
    drop(doctor);
    cluster.stop().await;
}

/// The list claims three hundred positions that no store has: each is looked up on the other side,
/// too.
#[tokio::test(start_paused = true)]
async fn more_holes_than_there_is_time_for_end_in_a_report() {
    let settings = tests::settings();
    let mut environment =
        Environment::in_memory(&settings.embedded, settings.station.sessions.capacity())
            .expect("stores in memory");
    let faults = Arc::new(Faults::default());
    faults.begin(HISTORY.named("page"), Fault::Delay(Duration::from_secs(1)));
    environment.backends = environment.backends.hooked(&faults.hook());
    let claim = ConversationRow {
        owner: user(2),
        conversation: conversation(1, 2),
        end: Tally {
            seq: Seq(300),
            incoming: 0,
        },
        rev: 0,
        last_id: MessageId::new(77).expect("positive"),
        version: environment.backends.clock.now(),
        source: Version {
            epoch: 1,
            offset: 1,
        },
    };
    let result = environment.backends.conversations.save(vec![claim]).await;
    result.expect("saves");
    let doctor = doctor(&settings, &environment, Stores::Memory);
    let report = examine_user(&doctor, 2).await;
    assert_eq!(kinds(&report), ["not_looked_at", "hole"]);
    let difference = report.differences.items.iter();
    let observations: Vec<&str> = difference
        .map(|difference| difference.observation.as_str())
        .collect();
    let omission = "missing positions of p:1:2, from";
    assert!(observations[0].contains(omission), "{observations:?}");
    assert!(
        observations[0].contains("took too long"),
        "{observations:?}"
    );
    assert!(
        observations[1].starts_with("positions 1 to "),
        "{observations:?}"
    );
}
