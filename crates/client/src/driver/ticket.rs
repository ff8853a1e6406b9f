use protocol::{Code, MessageId, Refusal, SendId};
use tokio::sync::watch;

use super::why_closed;
use crate::core::{SendStatus, State};

/// One send on its way.
#[derive(Clone, Debug)]
pub struct SendTicket {
    pub(super) send_id: SendId,
    pub(super) status: watch::Receiver<SendStatus>,
    pub(super) state: watch::Receiver<State>,
}

impl SendTicket {
    pub fn send_id(&self) -> SendId {
        self.send_id
    }

    /// How far it has come.
    pub fn status(&self) -> SendStatus {
        self.status.borrow().clone()
    }

    /// Waits until the server has it: from then on it is not lost.
    ///
    /// # Errors
    /// Why it has failed (it stays in the outbox), or why the client has ended before. Waits as long as
    /// the server cannot be reached.
    pub async fn accepted(&mut self) -> Result<MessageId, Refusal> {
        self.reach(2).await.and_then(|status| {
            let id = status.id();
            id.ok_or_else(|| Refusal::new(Code::Unavailable, "accepted without an id"))
        })
    }

    /// Waits until it stands in its conversation; of a change, or a wish about a group: until it is done.
    ///
    /// # Errors
    /// As [`accepted`](Self::accepted), and why it came to nothing.
    pub async fn placed(&mut self) -> Result<(), Refusal> {
        self.reach(3).await.map(drop)
    }

    /// Waits until a device of the receiver has it.
    ///
    /// # Errors
    /// As [`accepted`](Self::accepted).
    pub async fn delivered(&mut self) -> Result<(), Refusal> {
        self.reach(4).await.map(drop)
    }

    /// Waits for the next change. `None`: there will be none.
    pub async fn changed(&mut self) -> Option<SendStatus> {
        self.status.changed().await.ok()?;
        Some(self.status.borrow_and_update().clone())
    }

    async fn reach(&mut self, rank: u8) -> Result<SendStatus, Refusal> {
        let reached = (self.status)
            .wait_for(|status| status.rank() >= rank || matches!(status, SendStatus::Failed(_)))
            .await
            .map(|status| status.clone());
        match reached {
            Ok(SendStatus::Failed(refusal)) => Err(refusal),
            Ok(status) => Ok(status),
            Err(_) => Err(why_closed(&self.state)),
        }
    }
}
