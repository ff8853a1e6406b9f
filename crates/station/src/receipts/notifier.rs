//! ack:N: statuses of messages, for live sessions of their senders, and read places, for other
//! devices of the reader.
//!
//! A failed push is repeated for a quarter of a minute; receipts lost after that are learned by
//! asking for the status (S3-18). A push that comes twice harms nobody: a status only moves
//! forward.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::boat::{Notice, NoticeKind};
use api::codec;
use backend::Backends;
use bytes::Bytes;
use protocol::frame::ServerFrame;
use protocol::history::RowStatus;
use protocol::presence::BoatLife;
use protocol::receipt::{Receipt, ReceiptKind, ReceiptNotice, ReceiptNotices};
use protocol::{MessageId, SessionId, UserId};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::boat_clients::BoatClients;
use crate::config::Config;
use crate::metrics::ReceiptMetrics;
use crate::part_spawner::PartSpawner;

/// Receipts of one frame: well below what a frame may hold.
const RECEIPTS_PER_FRAME: usize = 500;

/// Pauses before each repeat. Their sum is longer than a boat without a lease takes to be over, or
/// a Redis to get a new master.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
];

/// First pause of a doubtful notice: a store that fails is not asked at once, and three times at
/// most.
const FIRST_DOUBTFUL_ATTEMPT: usize = 2;

/// Notices that wait for a repeat; further ones are not repeated.
const REPEATS_MAX: usize = 65_536;

/// Pushes receipts.
pub(super) struct ReceiptNotifier {
    backends: Backends,
    deadline: Duration,
    boats: Arc<BoatClients>,
    tasks: TaskTracker,
    stop: CancellationToken,
    metrics: ReceiptMetrics,
    repeats: Arc<Semaphore>,
}

/// A call to one boat.
#[derive(Default)]
struct BoatCall {
    users: Vec<UserId>,
    notices: Vec<Notice>,
}

impl ReceiptNotifier {
    pub(super) fn new(
        backends: &Backends,
        config: &Config,
        boats: Arc<BoatClients>,
        spawner: &PartSpawner,
    ) -> Arc<ReceiptNotifier> {
        Arc::new(ReceiptNotifier {
            backends: backends.clone(),
            deadline: config.store_deadline,
            boats,
            tasks: spawner.tasks.clone(),
            stop: spawner.stop.clone(),
            metrics: ReceiptMetrics::new(),
            repeats: Arc::new(Semaphore::new(REPEATS_MAX)),
        })
    }

    /// Pushes recorded receipts; waits for Redis, not for boats.
    pub(super) async fn notify_all(self: Arc<Self>, batches: Vec<ReceiptNotices>) {
        let mut all = ReceiptNotices::default();
        batches.into_iter().for_each(|batch| all.extend(batch));
        let ReceiptNotices {
            recorded: ready,
            doubtful,
        } = all;
        self.repeat(ReceiptNotices::doubtful(doubtful), FIRST_DOUBTFUL_ATTEMPT);
        self.push(ready, 0).await;
    }

    /// Asks for the sessions of all users at once, then makes one call to each boat.
    async fn push(self: &Arc<Self>, notices: Vec<ReceiptNotice>, attempt: usize) {
        if notices.is_empty() {
            return;
        }
        let mut receipts: BTreeMap<UserId, Vec<Receipt>> = BTreeMap::new();
        for notice in &notices {
            let user_receipts = receipts.entry(notice.to).or_default();
            user_receipts.push(notice.receipt);
        }
        let users: Vec<UserId> = receipts.keys().copied().collect();
        let request = self.backends.mailbox.sessions(&users, self.boats.denied());
        let Ok(answers) = timeout(self.deadline, request).await else {
            return self.repeat_for_users(&receipts, &users, attempt);
        };
        let mut unknown = Vec::new();
        let mut calls: BTreeMap<BoatLife, BoatCall> = BTreeMap::new();
        for ((&user, receipts), sessions) in receipts.iter().zip(answers) {
            let Ok(sessions) = sessions else {
                unknown.push(user);
                continue;
            };
            if sessions.is_empty() {
                continue;
            }
            let frames = encode_frames(receipts);
            for entry in sessions {
                let call = calls.entry(entry.life).or_default();
                let notices = frames.iter().map(|frame| notice(entry.session, frame));
                call.notices.extend(notices);
                if call.users.last() != Some(&user) {
                    call.users.push(user);
                }
            }
        }
        self.repeat_for_users(&receipts, &unknown, attempt);
        let receipts = Arc::new(receipts);
        for (life, BoatCall { users, notices }) in calls {
            let (this, receipts) = (self.clone(), receipts.clone());
            self.tasks.spawn(async move {
                let count = notices.len();
                let missing_count = this.boats.notify(life, notices).await;
                let Some(missing_count) = missing_count else {
                    return this.repeat_for_users(&receipts, &users, attempt);
                };
                // A missing session has ended: its device asks for statuses when it signs in.
                let missing_count = missing_count.min(count);
                this.metrics
                    .pushed_total
                    .increment((count - missing_count) as u64);
                this.metrics.push_failed.increment(missing_count as u64);
            });
        }
    }

    fn repeat_for_users(
        self: &Arc<Self>,
        receipts: &BTreeMap<UserId, Vec<Receipt>>,
        users: &[UserId],
        attempt: usize,
    ) {
        let to_notices = |&to: &UserId| {
            let receipts = receipts.get(&to).into_iter().flatten();
            receipts.map(move |&receipt| ReceiptNotice { to, receipt })
        };
        let notices = users.iter().flat_map(to_notices).collect();
        self.repeat(ReceiptNotices::recorded(notices), attempt);
    }

    /// Repeats notices after a pause, in a task of its own.
    fn repeat(self: &Arc<Self>, notices: ReceiptNotices, attempt: usize) {
        let count = notices.len();
        if count == 0 {
            return;
        }
        let permits = u32::try_from(count).unwrap_or(u32::MAX);
        let permit = self.repeats.clone().try_acquire_many_owned(permits);
        let (Some(&pause), Ok(permit)) = (PAUSES.get(attempt), permit) else {
            self.metrics.push_failed.increment(count as u64);
            return;
        };
        self.metrics.push_repeated.increment(count as u64);
        let this = self.clone();
        self.tasks.spawn(async move {
            let outcome = this.stop.run_until_cancelled(sleep(pause)).await;
            if outcome.is_none() {
                this.metrics.push_failed.increment(count as u64);
                return;
            }
            let ReceiptNotices {
                recorded: ready,
                doubtful,
            } = this.check_registers(notices).await;
            drop(permit);
            this.repeat(ReceiptNotices::doubtful(doubtful), attempt + 1);
            this.push(ready, attempt + 1).await;
        });
    }

    /// Moves doubtful notices whose status stands to the recorded ones.
    async fn check_registers(&self, mut notices: ReceiptNotices) -> ReceiptNotices {
        if notices.doubtful.is_empty() {
            return notices;
        }
        let keys = notices.doubtful.iter();
        let keys: Vec<(UserId, MessageId)> = keys.map(|n| (n.to, n.receipt.id)).collect();
        let answer = timeout(self.deadline, self.backends.messages.status(&keys)).await;
        if let Ok(Ok(statuses)) = answer {
            let doubtful = std::mem::take(&mut notices.doubtful);
            for (notice, status) in doubtful.into_iter().zip(statuses) {
                if is_recorded(&status, notice.receipt.kind) {
                    notices.recorded.push(notice);
                } else {
                    notices.doubtful.push(notice);
                }
            }
        }
        notices
    }
}

fn is_recorded(status: &RowStatus, kind: ReceiptKind) -> bool {
    match kind {
        ReceiptKind::Received => status.delivered_at.is_some(),
        ReceiptKind::Read => status.read_at.is_some(),
    }
}

/// Encodes frames once for all sessions of a user.
fn encode_frames(receipts: &[Receipt]) -> Vec<Bytes> {
    receipts
        .chunks(RECEIPTS_PER_FRAME)
        .map(|chunk| codec::encode_server(&ServerFrame::Receipts(chunk.to_vec())))
        .collect()
}

fn notice(session: SessionId, frame: &Bytes) -> Notice {
    Notice {
        session,
        kind: NoticeKind::Frame(frame.clone()),
    }
}
