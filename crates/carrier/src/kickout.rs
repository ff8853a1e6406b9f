//! Ends exactly the sessions that a task names: their boats close them, and their registrations go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{Notice, NoticeBatch, NoticeKind};
use api::transport::Connector;
use api::v1::NoticeRequest;
use api::v1::boat_service_client::BoatServiceClient;
use backend::Backends;
use backend::clock::Clock;
use backend::mailbox::MailboxStore;
use protocol::access::Role;
use protocol::delivery::{DeliveryLimits, Source};
use protocol::keys::Topic;
use protocol::ledger::DeadReason;
use protocol::presence::{BoatLife, SessionKey};
use protocol::record::{KickoutTask, Task, Work};

use crate::Config;
use crate::boat_directory::BoatDirectory;
use crate::deadline::StoreDeadline;
use crate::decoded_record::{DecodedRecord, PoisonRecord};
use crate::executor_queue::SettleWork;
use crate::records::Records;
use crate::writer::dead_letter;

/// Time for a boat to close the sessions of a kickout; then it counts as unreachable.
const KICKOUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Dependencies of a kickout. Clones share them.
#[derive(Clone)]
pub(crate) struct KickoutSender {
    mailbox: Arc<dyn MailboxStore>,
    clock: Arc<dyn Clock>,
    store_deadline: StoreDeadline,
    limits: DeliveryLimits,
    connector: Connector,
    directory: BoatDirectory,
    records: Records,
}

impl KickoutSender {
    pub(crate) fn new(
        backends: &Backends,
        config: &Config,
        limits: DeliveryLimits,
        connector: Connector,
        directory: BoatDirectory,
        records: Records,
    ) -> KickoutSender {
        KickoutSender {
            mailbox: backends.mailbox.clone(),
            clock: backends.clock.clone(),
            store_deadline: StoreDeadline::new(config),
            limits,
            connector,
            directory,
            records,
        }
    }

    /// Does the task, and returns the effects that settle its record: none, a retry of what failed,
    /// or a dead letter.
    pub(crate) async fn kick(self, record: DecodedRecord) -> SettleWork {
        let Work::Kickout(task) = &record.task.work else {
            // Only kickouts come here, so any other task counts as unreadable.
            let poison =
                PoisonRecord::of(record, DeadReason::Undecodable, "not a task of this topic");
            return dead_letter(&self.records, &poison, self.clock.now());
        };
        let mut failed_sessions = Vec::new();
        let mut error = String::new();
        let mut removed_sessions = Vec::with_capacity(task.sessions.len());
        let answers = self.mailbox.disconnect(task.sessions.clone());
        let answers = self.store_deadline.each(task.sessions.len(), answers).await;
        for (session, answer) in task.sessions.iter().zip(answers) {
            match answer {
                Ok(()) => removed_sessions.push(session.clone()),
                Err(cause) => {
                    error = cause.to_string();
                    failed_sessions.push(session.clone());
                }
            }
        }
        for (life, sessions) in by_life(&removed_sessions) {
            if let Err(cause) = self.close(life, &sessions, task).await {
                error = cause;
                failed_sessions.extend(sessions);
            }
        }
        if failed_sessions.is_empty() {
            return SettleWork::none(record.source);
        }
        self.retry_sessions(record, failed_sessions, error)
    }

    async fn close(
        &self,
        life: &BoatLife,
        sessions: &[SessionKey],
        task: &KickoutTask,
    ) -> Result<(), String> {
        let is_over = self.directory.denied().contains(life);
        let address = self.directory.address(life);
        let (false, Some(address)) = (is_over, address) else {
            if !is_over {
                self.directory.report_unknown(life);
            }
            // The connections ended with the boat.
            return if is_over {
                Ok(())
            } else {
                Err("the boat's address is not known".to_owned())
            };
        };
        let batch = NoticeBatch {
            life: life.clone(),
            notices: sessions
                .iter()
                .map(|key| Notice {
                    session: key.session,
                    kind: NoticeKind::Close(task.refusal.clone()),
                })
                .collect(),
        };
        let channel = self.connector.channel(Role::Boat, &address);
        let mut boat = BoatServiceClient::new(channel.with_unary_timeout(KICKOUT_TIMEOUT));
        let answer = boat.notice(NoticeRequest::from(&batch)).await;
        // A session unknown to the boat is closed already.
        answer.map(drop).map_err(|status| status.to_string())
    }

    fn retry_sessions(
        &self,
        record: DecodedRecord,
        sessions: Vec<SessionKey>,
        error: String,
    ) -> SettleWork {
        let retry_count = record.task.retry_count + 1;
        if retry_count > self.limits.retry_max {
            let poison = PoisonRecord::of(record, DeadReason::MaxRetries, error);
            return dead_letter(&self.records, &poison, self.clock.now());
        }
        let Work::Kickout(task) = &record.task.work else {
            return SettleWork::none(record.source);
        };
        let retry = Task {
            retry_count,
            work: Work::Kickout(KickoutTask {
                sessions,
                refusal: task.refusal.clone(),
            }),
            ..record.task.clone()
        };
        let tier = self.limits.tiers.retry_tier(retry_count);
        self.retry(record.source, tier, &retry)
    }

    /// Puts off a kickout that the shard has no room for. Nothing was tried, so no retry is
    /// counted.
    pub(crate) fn put_off(&self, record: DecodedRecord) -> SettleWork {
        metrics::counter!("carrier_kickouts_put_off_total").increment(1);
        self.retry(record.source, 1, &record.task)
    }

    fn retry(&self, source: Source, tier: u8, task: &Task) -> SettleWork {
        let record = self.records.task(Topic::Retry(tier), task);
        SettleWork {
            source,
            records: record.into_iter().collect(),
            ledger: Vec::new(),
        }
    }
}

fn by_life(sessions: &[SessionKey]) -> BTreeMap<&BoatLife, Vec<SessionKey>> {
    let mut lives: BTreeMap<&BoatLife, Vec<SessionKey>> = BTreeMap::new();
    for key in sessions {
        lives.entry(&key.life).or_default().push(key.clone());
    }
    lives
}
