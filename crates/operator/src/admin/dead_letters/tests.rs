use std::future::pending;

use async_trait::async_trait;
use backend::hook::{Hook, Op};
use backend::queue::NewRecord;
use protocol::bounds::Bounds;
use protocol::{MessageId, Timestamp};
use tokio::time::sleep;

use super::*;
use crate::admin::audit;
use crate::admin::operators::Operators;
use crate::admin::tests::{Books, dead_letter};
use crate::desk::Version;
use crate::in_memory::Environment;

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
    let listed = list(desk.clone(), Query(ListQuestion::default())).await;
    let counted = stats(desk.clone()).await;
    let audited =
        super::super::api::audit_all(desk.clone(), Query(audit::AuditQuestion::default()));
    for refused in [audited.await.err(), listed.err(), counted.err()] {
        let refused = refused.expect("refused");
        assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
        let error = refused.error;
        assert!(
            error.retry && error.message.contains("ask again"),
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
    let published = producer.publish(vec![letter]).await;
    assert!(published.iter().all(Result::is_ok), "{published:?}");
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
async fn whoever_waits_for_the_stores_holds_no_turn_and_waits_for_an_end() {
    let desk = desk_alone().await;
    let one = Selection::ids(vec!["message-0-0".to_owned()]);
    let planned = plan(desk.clone(), Json(one));
    let (planned, ()) = tokio::join!(planned, turn_meanwhile(&desk));
    let exported = export(desk.clone(), anybody(), Json(ExportQuestion::default()));
    let (exported, ()) = tokio::join!(exported, turn_meanwhile(&desk));
    let imported = import(desk.clone(), anybody(), Json(ImportQuestion::default()));
    let (imported, ()) = tokio::join!(imported, turn_meanwhile(&desk));
    for refused in [planned.err(), exported.err(), imported.err()] {
        let refused = refused.expect("nobody answers");
        assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(refused.error.retry, "{refused:?}");
    }
}

// Nothing matched, and nothing done yet, were one answer.
#[tokio::test(start_paused = true)]
async fn a_redrive_counts_the_letters_without_an_outcome_and_names_its_task() {
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
    let begun = redrive(desk.clone(), anybody(), Json(filter(""))).await;
    let Json(begun) = begun.expect("an answer");
    assert_eq!((begun.items.len(), begun.truncated), (0, 1));
    let id = begun.task.expect("a task");
    let Json(task) = task(desk, Path(id)).await.expect("it goes on");
    assert_eq!(task.letters, 1);
}

#[tokio::test(start_paused = true)]
async fn a_redrive_has_an_end() {
    let many = Selection::ids(vec!["message-0-0".to_owned(); LETTERS_MAX + 1]);
    let refused = redrive(desk(), anybody(), Json(many)).await;
    let refused = refused.expect_err("refused");
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.error.message.contains("1000"), "{refused:?}");
}

#[tokio::test(start_paused = true)]
async fn a_role_is_needed() {
    let viewer = || Extension(Operator::with("ann", &[Role::View]));
    let one = Selection::ids(vec!["message-0-0".to_owned()]);
    let refused = redrive(desk(), viewer(), Json(one)).await;
    assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
    let because = |why: &str| {
        let why = why.to_owned();
        Json(LookQuestion { why })
    };
    let id = || Path("message-0-0".to_owned());
    let refused = read(desk(), viewer(), id(), because("a complaint")).await;
    assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
    let reader = || Extension(Operator::with("bob", &[Role::View, Role::ViewBody]));
    let refused = read(desk(), reader(), id(), because("")).await;
    assert_eq!(
        refused.expect_err("refused").status,
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
    let refused = edit(desk.clone(), reader(), id(), change()).await;
    assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
    let blind = || Extension(Operator::with("eve", &[Role::View, Role::Edit]));
    let refused = edit(desk.clone(), blind(), id(), change()).await;
    assert_eq!(refused.expect_err("refused").status, StatusCode::FORBIDDEN);
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
