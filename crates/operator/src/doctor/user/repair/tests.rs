use std::future::pending;
use std::sync::Arc;

use async_trait::async_trait;
use backend::hook::{Hook, Op};
use protocol::message::Target;
use protocol::{MessageId, Platform};

use super::*;
use crate::in_memory::Environment;

/// The mailbox never answers.
struct Away;

#[async_trait]
impl Hook for Away {
    async fn before(&self, op: &Op) -> backend::Result<()> {
        match op.seam {
            "mailbox" => pending().await,
            _ => Ok(()),
        }
    }
}

// Five hundred steps at a store that is away took half an hour, with the doctor's only room.
#[tokio::test(start_paused = true)]
async fn the_steps_of_a_repair_end_together() {
    let environment = Environment::in_memory().expect("stores in memory");
    let hook: Arc<dyn Hook> = Arc::new(Away);
    let backends = environment.backends.hooked(&hook);
    let target = Target {
        user: UserId::new(7).expect("positive"),
        platform: Platform::Ios,
    };
    let mends: Vec<Mend> = (1..=100)
        .map(|id| Mend::Acknowledge(target, MessageId::new(id).expect("positive")))
        .collect();
    let start = Instant::now();
    let steps = mend_all(&backends, mends).await;
    assert!(start.elapsed() <= STEPS_WITHIN + ANSWER_TIMEOUT * 2);
    assert_eq!(steps.len(), 100, "each is reported");
    let errors: Vec<String> = steps.into_iter().filter_map(|step| step.error).collect();
    assert_eq!(errors.len(), 100);
    let begun_count = errors.iter().filter(|error| !error.contains("not started"));
    let begun_count = begun_count.count();
    assert!((10..=20).contains(&begun_count), "{begun_count}");
    assert!(
        errors[begun_count..]
            .iter()
            .all(|error| error.contains("not started"))
    );
}
