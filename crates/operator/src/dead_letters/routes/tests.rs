use std::future::pending;

use async_trait::async_trait;
use backend::hook::{Hook, Op};
use backend::queue::NewRecord;
use protocol::bounds::Bounds;
use protocol::{MessageId, Timestamp};
use tokio::time::sleep;

use super::*;
use crate::audit;
use crate::audit::tests::{Books, dead_letter};
use crate::dead_letters::rules::Version;
use crate::in_memory::Environment;
use crate::port::operators::Operators;

fn desk() -> State<Arc<Desk>> {
    let environment = Environment::in_memory().expect("stores in memory");
    State(Arc::new(Desk::new(
        &environment.backends,
        &environment.connector,
        Bounds::default(),
        Operators::default(),
    )))
}

fn anybody() -> Extension<Operator> {
    Extension(Operator::anybody())
}

#[tokio::test(start_paused = true)]
async fn a_desk_that_is_busy_says_that_one_may_ask_again() {
    let desk = desk();
    let turn = desk.log.turn().await.expect("nobody reads");
    let list_answer = list(desk.clone(), Query(ListQuestion::default())).await;
    let stats_answer = stats(desk.clone()).await;
    let audit_answer =
        audit::routes::audit_all(desk.clone(), Query(audit::AuditQuestion::default()));
    for refusal in [
        audit_answer.await.err(),
        list_answer.err(),
        stats_answer.err(),
    ] {
        let refusal = refusal.expect("refused");
        assert_eq!(refusal.status, StatusCode::TOO_MANY_REQUESTS);
        let error = refusal.error;
        assert!(
            error.retry && error.message.contains("try again"),
            "{error:?}"
        );
    }
    drop(turn);
    assert!(stats(desk).await.is_ok());
}

/// Ledger and discovery never answer.
struct Away;

#[async_trait]
impl Hook for Away {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        match op.name {
            "trace" | "cluster" => pending().await,
            _ => Ok(()),
        }
    }
}

/// A desk with the letter of a message, among stores that never answer.
async fn desk_alone() -> State<Arc<Desk>> {
    let environment = Environment::in_memory().expect("stores in memory");
    let message = Books::new().record(MessageId::new(1 << 40).expect("positive"));
    let letter = NewRecord {
        key: message.key,
        value: message.value,
        ..dead_letter(0, Timestamp::ZERO)
    };
    let producer = environment.backends.queue.producer();
    let answers = producer.publish(vec![letter]).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    let hook: Arc<dyn Hook> = Arc::new(Away);
    State(Arc::new(Desk::new(
        &environment.backends.hooked(&hook),
        &environment.connector,
        Bounds::default(),
        Operators::default(),
    )))
}

/// Has a turn while others wait for the stores.
async fn turn_meanwhile(desk: &Desk) {
    sleep(Duration::from_secs(1)).await;
    drop(desk.log.turn().await.expect("nobody holds a turn"));
}

// A slow store kept all others from the log.
#[tokio::test(start_paused = true)]
async fn requests_that_wait_for_stores_hold_no_turn_and_end() {
    let desk = desk_alone().await;
    let one = Selection::ids(vec!["message-0-0".to_owned()]);
    let plan_answer = plan(desk.clone(), Json(one));
    let (plan_answer, ()) = tokio::join!(plan_answer, turn_meanwhile(&desk));
    let export_answer = export(desk.clone(), anybody(), Json(ExportQuestion::default()));
    let (export_answer, ()) = tokio::join!(export_answer, turn_meanwhile(&desk));
    let import_answer = import(desk.clone(), anybody(), Json(ImportQuestion::default()));
    let (import_answer, ()) = tokio::join!(import_answer, turn_meanwhile(&desk));
    for refusal in [plan_answer.err(), export_answer.err(), import_answer.err()] {
        let refusal = refusal.expect("nobody answers");
        assert_eq!(refusal.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(refusal.error.retry, "{refusal:?}");
    }
}

// Nothing matched, and nothing done yet, were one answer.
#[tokio::test(start_paused = true)]
async fn a_redrive_counts_open_letters_and_names_its_task() {
    let desk = desk_alone().await;
    let filter = |text: &str| Selection::Filter {
        filter: Filter {
            text: Some(text.to_owned()),
            ..Filter::default()
        },
        limit: 10,
    };
    let nothing = redrive(desk.clone(), anybody(), Json(filter("no such error"))).await;
    let Json(nothing) = nothing.expect("an answer");
    assert_eq!(nothing, RedriveAnswer::default());
    // Nobody works.
    let redrive_answer = redrive(desk.clone(), anybody(), Json(filter(""))).await;
    let Json(redrive_answer) = redrive_answer.expect("an answer");
    assert_eq!(
        (redrive_answer.items.len(), redrive_answer.truncated),
        (0, 1)
    );
    let id = redrive_answer.task.expect("a task");
    let Json(task) = task(desk, Path(id)).await.expect("it goes on");
    assert_eq!(task.letters, 1);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_has_an_end() {
    let many = Selection::ids(vec!["message-0-0".to_owned(); LETTERS_MAX + 1]);
    let refusal = redrive(desk(), anybody(), Json(many)).await;
    let refusal = refusal.expect_err("refused");
    assert_eq!(refusal.status, StatusCode::BAD_REQUEST);
    assert!(refusal.error.message.contains("1000"), "{refusal:?}");
}

#[tokio::test(start_paused = true)]
async fn a_role_is_needed() {
    let viewer = || Extension(Operator::with("ann", &[Role::View]));
    let one = Selection::ids(vec!["message-0-0".to_owned()]);
    let refusal = redrive(desk(), viewer(), Json(one)).await;
    assert_eq!(refusal.expect_err("refused").status, StatusCode::FORBIDDEN);
    let because = |reason: &str| {
        let reason = reason.to_owned();
        Json(LookQuestion { why: reason })
    };
    let id = || Path("message-0-0".to_owned());
    let refusal = read(desk(), viewer(), id(), because("a complaint")).await;
    assert_eq!(refusal.expect_err("refused").status, StatusCode::FORBIDDEN);
    let reader = || Extension(Operator::with("bob", &[Role::View, Role::ViewBody]));
    let refusal = read(desk(), reader(), id(), because("")).await;
    assert_eq!(
        refusal.expect_err("refused").status,
        StatusCode::BAD_REQUEST
    );
    let desk = desk();
    let nothing = read(desk.clone(), reader(), id(), because("a complaint")).await;
    assert_eq!(
        nothing.expect_err("no letter").status,
        StatusCode::NOT_FOUND
    );
    let Json(page) = log(desk.clone(), Query(LogQuestion::default()))
        .await
        .expect("a log");
    assert_eq!(page.items.len(), 1, "who looked is written down");
    assert_eq!(page.items[0].by, "bob");
    let change = || {
        Json(LetterChange {
            base: Version::of(b""),
            envelope: "{}".to_owned(),
            why: "a test".to_owned(),
            dry_run: true,
            drop_unknown: false,
        })
    };
    let refusal = edit(desk.clone(), reader(), id(), change()).await;
    assert_eq!(refusal.expect_err("refused").status, StatusCode::FORBIDDEN);
    let blind = || Extension(Operator::with("eve", &[Role::View, Role::Edit]));
    let refusal = edit(desk.clone(), blind(), id(), change()).await;
    assert_eq!(refusal.expect_err("refused").status, StatusCode::FORBIDDEN);
    let editor = Operator::with("dan", &[Role::View, Role::ViewBody, Role::Edit]);
    let nothing = edit(desk.clone(), Extension(editor), id(), change()).await;
    assert_eq!(
        nothing.expect_err("no letter").status,
        StatusCode::NOT_FOUND
    );
    let page = log(desk, Query(LogQuestion::default())).await;
    let Json(page) = page.expect("a log");
    assert_eq!(page.items.len(), 2, "who saw a difference is written down");
    assert_eq!(page.items[0].by, "dan");
}
