//! Status of this boat: its lives, its lease, and whether newcomers are welcome.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use protocol::presence::{BoatLife, Restoration};
use protocol::{Code, Refusal};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time within which clients that were sent away come back elsewhere, each at a random moment.
pub(crate) const RETURN_SPREAD: Duration = Duration::from_secs(10);

/// Stage of a boat's life with clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Serving,
    /// Not ready, for balancers to see; clients that come all the same are served.
    Notice {
        ends_at: Instant,
    },
    /// Clients are being sent away, or all have gone.
    Draining,
}

/// Reasons to turn newcomers away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    Memory,
    /// Files for sockets that a listener could accept; each listener has its own.
    WebSocketFiles,
    TcpFiles,
}

pub(crate) struct BoatStatus {
    /// All lives of this process, the present one last. A push to an earlier life still means this
    /// boat.
    lives: RwLock<Vec<BoatLife>>,
    /// True while the present life holds its lease.
    is_leased: AtomicBool,
    restoration: Mutex<Restoration>,
    phase: watch::Sender<Phase>,
    shortages: [AtomicBool; 3],
    /// True while registered, not leaving, and short of nothing.
    ready: watch::Sender<bool>,
    /// Cancelled when the boat leaves for good.
    leave_token: CancellationToken,
}

impl BoatStatus {
    pub(crate) fn new() -> BoatStatus {
        BoatStatus {
            lives: RwLock::default(),
            is_leased: AtomicBool::new(false),
            restoration: Mutex::default(),
            phase: watch::Sender::new(Phase::Serving),
            shortages: Default::default(),
            ready: watch::Sender::new(false),
            leave_token: CancellationToken::new(),
        }
    }

    /// The present life; `None` before the first registration.
    pub(crate) fn life(&self) -> Option<BoatLife> {
        self.lives.read().last().cloned()
    }

    pub(crate) fn begin_life(&self, life: BoatLife) {
        self.lives.write().push(life);
        self.is_leased.store(true, Ordering::Release);
    }

    pub(crate) fn lose_lease(&self) {
        self.is_leased.store(false, Ordering::Release);
    }

    pub(crate) fn has_lease(&self) -> bool {
        self.is_leased.load(Ordering::Acquire)
    }

    /// Whether a call for this life is for this boat.
    pub(crate) fn is_mine(&self, life: &BoatLife) -> bool {
        self.lives.read().contains(life)
    }

    /// Notes the store's marker under which a session was registered. Returns whether the boat had
    /// not seen this marker before.
    pub(crate) fn is_new_marker(&self, marker: u64) -> bool {
        self.restoration.lock().handle_marker(marker)
    }

    pub(crate) fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.send_replace(phase);
        self.refresh_ready();
    }

    /// True while newcomers are refused.
    pub(crate) fn is_draining(&self) -> bool {
        self.phase() == Phase::Draining
    }

    /// Refusal for a client that arrives while the boat drains.
    pub(crate) fn draining_refusal(&self) -> Option<Refusal> {
        self.is_draining().then(|| {
            let text = "this boat is shutting down; reconnect to reach another";
            Refusal::new(Code::Draining, text).retry_after(RETURN_SPREAD)
        })
    }

    pub(crate) fn is_leaving(&self) -> bool {
        self.leave_token.is_cancelled()
    }

    /// Waits until the boat leaves for good.
    pub(crate) async fn leaving(&self) {
        self.leave_token.cancelled().await;
    }

    pub(crate) fn begin_leaving(&self) {
        self.leave_token.cancel();
    }

    /// Begins or ends a shortage.
    pub(crate) fn set_shortage(&self, shortage: Shortage, is_short: bool) {
        self.shortages[shortage as usize].store(is_short, Ordering::Release);
        self.refresh_ready();
    }

    pub(crate) fn is_short_of(&self, shortage: Shortage) -> bool {
        self.shortages[shortage as usize].load(Ordering::Acquire)
    }

    /// Publishes whether newcomers are welcome.
    pub(crate) fn refresh_ready(&self) {
        // Evaluated under the watch's lock: of several concurrent callers the last one sees all
        // changes.
        self.ready.send_if_modified(|ready| {
            let is_ready = self.lacks_nothing() && self.phase() == Phase::Serving;
            std::mem::replace(ready, is_ready) != is_ready
        });
    }

    /// Whether the boat has its lease and no shortage, whatever its phase.
    pub(crate) fn lacks_nothing(&self) -> bool {
        let mut shortages = self.shortages.iter();
        self.has_lease() && !shortages.any(|it| it.load(Ordering::Acquire))
    }
}
