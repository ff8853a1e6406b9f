use protocol::{Code, MessageId, Refusal, SendId};
use tokio::sync::watch;

use super::why_closed;
use crate::core::{ConnectionState, SendStatus};

/// Handle of one send under way.
#[derive(Clone, Debug)]
pub struct SendTicket {
    pub(super) send_id: SendId,
    pub(super) status: watch::Receiver<SendStatus>,
    pub(super) state: watch::Receiver<ConnectionState>,
}

impl SendTicket {
    pub fn send_id(&self) -> SendId {
        self.send_id
    }

    /// Current status of the send.
    pub fn status(&self) -> SendStatus {
        self.status.borrow().clone()
    }

    /// Waits until the server has accepted the send: from then on it is not lost.
    ///
    /// # Errors
    /// The refusal that failed the send (it stays in the outbox), or that ended the client first.
    /// Waits as long as the server cannot be reached.
    pub async fn accepted(&mut self) -> Result<MessageId, Refusal> {
        self.reach(2).await.and_then(|status| {
            let id = status.id();
            id.ok_or_else(|| Refusal::new(Code::Unavailable, "accepted without an id"))
        })
    }

    /// Waits until the message is placed in its conversation; a change or group command, until it
    /// is done.
    ///
    /// # Errors
    /// As [`accepted`](Self::accepted), and the refusal of a change in the end.
    pub async fn placed(&mut self) -> Result<(), Refusal> {
        self.reach(3).await.map(drop)
    }

    /// Waits until a device of the recipient has the message.
    ///
    /// # Errors
    /// As [`accepted`](Self::accepted).
    pub async fn delivered(&mut self) -> Result<(), Refusal> {
        self.reach(4).await.map(drop)
    }

    /// Waits for the next status. `None`: there will be none.
    pub async fn changed(&mut self) -> Option<SendStatus> {
        self.status.changed().await.ok()?;
        Some(self.status.borrow_and_update().clone())
    }

    async fn reach(&mut self, rank: u8) -> Result<SendStatus, Refusal> {
        let result = (self.status)
            .wait_for(|status| status.rank() >= rank || matches!(status, SendStatus::Failed(_)))
            .await
            .map(|status| status.clone());
        match result {
            Ok(SendStatus::Failed(refusal)) => Err(refusal),
            Ok(status) => Ok(status),
            Err(_) => Err(why_closed(&self.state)),
        }
    }
}
