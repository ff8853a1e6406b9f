//! The mailbox on Redis follows the rule.

use async_trait::async_trait;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::*;
use crate::mailbox::random::{MailboxComparison, Subject, capacities, ops};

struct OnRedis(Arc<RedisMailbox>);

#[async_trait]
impl Subject for OnRedis {
    fn store(&self) -> &dyn MailboxStore {
        &*self.0
    }

    fn policies(&self) -> &Policies {
        &self.0.policies
    }

    async fn audit(&self) -> IntegrityCheck {
        self.0.audit().await.expect("audited")
    }

    /// The process holds no state, so a restart loses nothing.
    fn restart(&mut self) -> bool {
        false
    }
}

fn agrees_on(mode: RedisMode, part: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let mut runner = TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(60)
    });
    let cases = (capacities(), prop::collection::vec(ops(), 1..60));
    let result = runner.run(&cases, |(capacity, ops)| {
        runtime.block_on(async {
            let mailbox = open_real(mode, part).await.with_sessions(capacity);
            let mailbox = Arc::new(mailbox);
            let mut comparison =
                MailboxComparison::new(OnRedis(Arc::clone(&mailbox)), SystemClock.now());
            for op in ops {
                comparison.step(op).await;
                comparison.check().await;
            }
            comparison.audit().await;
            clean(&mailbox).await;
        });
        Ok(())
    });
    result.expect("they agree");
}

#[test]
#[ignore = "needs the real parts: make e2e"]
fn random_operations_agree_with_the_rule_on_one_server() {
    agrees_on(RedisMode::Single, "redis-single");
}

#[test]
#[ignore = "needs the real parts: make e2e"]
fn random_operations_agree_with_the_rule_on_a_cluster() {
    agrees_on(RedisMode::Cluster, "redis-cluster");
}
