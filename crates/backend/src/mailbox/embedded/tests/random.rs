//! The embedded mailbox follows the rule.

use async_trait::async_trait;
use proptest::prelude::*;

use super::*;
use crate::mailbox::random::{MailboxComparison, Subject, capacities, ops};

struct Embedded {
    engine: Engine,
    mailbox: EmbeddedMailbox,
}

#[async_trait]
impl Subject for Embedded {
    fn store(&self) -> &dyn MailboxStore {
        &self.mailbox
    }

    fn policies(&self) -> &Policies {
        &self.mailbox.policies
    }

    async fn audit(&self) -> IntegrityCheck {
        self.mailbox.audit().expect("audited")
    }

    fn restart(&mut self) -> bool {
        let capacity = self.mailbox.policies.sessions;
        self.mailbox = open(self.engine.clone()).with_sessions(capacity);
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn random_operations_agree_with_the_reference(
        capacity in capacities(),
        ops in prop::collection::vec(ops(), 1..60),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let engine = Engine::memory();
            let mailbox = open(engine.clone()).with_sessions(capacity);
            let mut comparison = MailboxComparison::new(Embedded { engine, mailbox }, NOW);
            for op in ops {
                comparison.step(op).await;
                comparison.check().await;
                comparison.audit().await;
            }
        });
    }
}
