//! Checks of the parts outside: each answers, and its topics and tables are present.

use backend::discovery::{Registry, Role};
use backend::mailbox::MailboxStore;
use backend::queue::Partition;
use backend::{Error, Result};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use protocol::keys::Topic;
use protocol::message_row::Owner;
use protocol::presence::DeniedBoats;
use protocol::{ConversationId, MessageId, UserId};
use tokio::time::Instant;

use crate::doctor::rules::{Answer, Check, Finding, Inspection, Members};
use crate::doctor::{ANSWER_TIMEOUT, Doctor, look};
use backend::Backends;

/// Users asked for sessions: enough that every shard has some.
const USERS: i64 = 64;

type Look<'a> = BoxFuture<'a, Vec<Finding>>;
type Question<'a> = BoxFuture<'a, Answer>;

impl Doctor {
    pub(in crate::doctor) fn answers(&self) -> Vec<Look<'_>> {
        let questions = self.questions().into_iter();
        questions
            .map(|question| question.map(|answer| vec![answer.finding()]).boxed())
            .collect()
    }

    /// Asks each seam of this process one small question.
    pub(in crate::doctor) fn questions(&self) -> Vec<Question<'_>> {
        let access = &self.parts.access;
        let mut answers: Vec<Question<'_>> = Vec::new();
        if let Some(queue) = &access.queue {
            let first = Partition {
                topic: Topic::Message,
                number: 0,
            };
            answers.push(answer(Check::Log, queue.bounds(first)).boxed());
        }
        if let Some(registry) = &access.registry {
            answers.push(answer(Check::Discovery, registry.cluster()).boxed());
        }
        if let Some(ledger) = &access.ledger {
            let query = async {
                ledger
                    .trace(&[MessageId::floor_of(protocol::Timestamp::ZERO)])
                    .await
            };
            answers.push(answer(Check::Ledger, query).boxed());
        }
        if let Some(backends) = &access.backends {
            answers.extend(store_questions(backends));
        }
        answers
    }

    pub(in crate::doctor) async fn members(&self) -> Vec<Finding> {
        let Some(registry) = &self.parts.access.registry else {
            return Vec::new();
        };
        let (boats, stations) = tokio::join!(
            registered_names(registry.as_ref(), Role::Boat),
            registered_names(registry.as_ref(), Role::Station)
        );
        vec![Members { boats, stations }.finding()]
    }

    /// Checks topics and tables, if the real parts are used.
    #[cfg(feature = "cluster")]
    pub(in crate::doctor) fn schema_checks(&self) -> Vec<Look<'_>> {
        let access = &self.parts.access;
        let is_real = self.parts.stores == crate::doctor::Stores::Real;
        let mut looks: Vec<Look<'_>> = Vec::new();
        if is_real && access.queue.is_some() {
            looks.push(self.topics().boxed());
        }
        if is_real && access.ledger.is_some() {
            looks.push(self.tables().boxed());
        }
        looks
    }

    #[cfg(not(feature = "cluster"))]
    pub(in crate::doctor) fn schema_checks(&self) -> Vec<Look<'_>> {
        Vec::new()
    }

    #[cfg(feature = "cluster")]
    async fn topics(&self) -> Vec<Finding> {
        use backend::queue::topics::{self, Difference};

        use crate::doctor::rules::{Deviation, Topics};

        let deviation = |difference: Difference| Deviation {
            text: difference.to_string(),
            is_grave: match difference {
                Difference::Missing { .. }
                | Difference::Partitions { .. }
                | Difference::Epoch { .. } => true,
                Difference::Replicas { .. } | Difference::Setting { .. } => false,
            },
        };
        let inspection = look(
            crate::doctor::SCAN_TIMEOUT,
            topics::check(&self.parts.settings.kafka),
        )
        .await;
        let deviations =
            inspection.map(|differences| differences.into_iter().map(deviation).collect());
        vec![Topics(deviations).finding()]
    }

    #[cfg(feature = "cluster")]
    async fn tables(&self) -> Vec<Finding> {
        use backend::scylla::schema;

        use crate::doctor::rules::Tables;

        let inspection = look(
            crate::doctor::SCAN_TIMEOUT,
            schema::check(&self.parts.settings.scylla),
        )
        .await;
        vec![Tables(inspection).finding()]
    }
}

/// Questions to the stores; none of the rows asked for has to exist.
fn store_questions(backends: &Backends) -> Vec<Question<'_>> {
    let now = backends.clock.now();
    let users: Vec<UserId> = (1..=USERS).filter_map(|n| UserId::new(n).ok()).collect();
    let Some(&one) = users.first() else {
        return Vec::new();
    };
    let conversation = ConversationId::System(one);
    let id = MessageId::floor_of(now);
    vec![
        answer(Check::Mailbox, all_shards(backends.mailbox.as_ref(), users)).boxed(),
        answer(Check::History, async move {
            backends.messages.rows(&[(Owner::User(one), id)]).await
        })
        .boxed(),
        answer(Check::Heads, async move {
            backends.heads.load(&[conversation]).await
        })
        .boxed(),
        answer(Check::Conversations, async move {
            backends.conversations.get(&[(one, conversation)]).await
        })
        .boxed(),
        answer(Check::Devices, async move {
            backends.devices.platforms(&[one], now).await
        })
        .boxed(),
        answer(Check::AuditStore, backends.audit.head()).boxed(),
    ]
}

async fn all_shards(mailbox: &dyn MailboxStore, users: Vec<UserId>) -> Result<()> {
    let answers = mailbox.sessions(&users, DeniedBoats::default()).await;
    let (user_count, mut errors) = (users.len(), answers.into_iter().filter_map(Result::err));
    let Some(first) = errors.next() else {
        return Ok(());
    };
    let count = 1 + errors.count();
    let text = format!(
        "lookups fail for {count} of {user_count} sample users: {}",
        first.source
    );
    Err(Error::unavailable("mailbox", text))
}

async fn answer<T>(check: Check, question: impl Future<Output = Result<T>>) -> Answer {
    let start = Instant::now();
    let duration = look(ANSWER_TIMEOUT, question)
        .await
        .map(|_| start.elapsed());
    Answer { check, duration }
}

async fn registered_names(registry: &dyn Registry, role: Role) -> Inspection<Vec<String>> {
    let inspection = look(ANSWER_TIMEOUT, registry.watch(role)).await;
    inspection.map(|directory| {
        let present = directory.borrow();
        let names = present
            .iter()
            .map(|instance| instance.life.boat.to_string());
        names.collect()
    })
}
