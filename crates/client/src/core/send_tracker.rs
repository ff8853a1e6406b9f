//! Own messages that the server has: from *accepted* to *read*.

use std::collections::{BTreeMap, VecDeque};

use protocol::frame::MessageStatus;
use protocol::receipt::{Receipt, ReceiptKind, ReceiptStatus};
use protocol::{
    ConversationId, Message, MessageId, Placed, Position, Refusal, SendId, Seq, Timestamp,
};

use super::snapshot::FollowedRow;
use super::{Change, Event, Limits, Out, SendStatus};

/// Upper bound of statuses requested after a reconnect.
const STATUSES_MAX: usize = 100;

/// Accepted sends whose status is followed, by their order.
#[derive(Debug)]
pub(super) struct SendTracker {
    followed: BTreeMap<u64, TrackedSend>,
    by_send: BTreeMap<SendId, u64>,
    by_id: BTreeMap<MessageId, u64>,
    /// Sends accepted on this connection, with the time by which their position should be known.
    unplaced: VecDeque<(Timestamp, u64)>,
}

#[derive(Debug)]
struct TrackedSend {
    row: FollowedRow,
    /// The message until it is placed, to be shown at its position.
    message: Option<Message>,
}

impl SendTracker {
    pub(super) fn new(rows: BTreeMap<u64, FollowedRow>) -> SendTracker {
        SendTracker {
            by_send: rows
                .iter()
                .map(|(&order, row)| (row.send_id, order))
                .collect(),
            by_id: rows.iter().map(|(&order, row)| (row.id, order)).collect(),
            followed: rows
                .into_iter()
                .map(|(order, row)| (order, TrackedSend { row, message: None }))
                .collect(),
            unplaced: VecDeque::new(),
        }
    }

    pub(super) fn has(&self, send_id: SendId) -> bool {
        self.by_send.contains_key(&send_id)
    }

    /// Begins to follow the status of a send.
    pub(super) fn follow(
        &mut self,
        order: u64,
        send_id: SendId,
        conversation: ConversationId,
        id: MessageId,
        out: &mut Out,
    ) {
        let row = FollowedRow {
            order,
            send_id,
            conversation,
            id,
            seq: None,
            status: ReceiptStatus::Sent,
        };
        self.by_send.insert(send_id, order);
        self.by_id.insert(id, order);
        self.followed
            .insert(order, TrackedSend { row, message: None });
        out.change(Change::Followed(row));
    }

    /// Keeps the message until it is placed, which should be known at `until`.
    pub(super) fn expect_place(&mut self, order: u64, message: Message, until: Timestamp) {
        if let Some(followed) = self.followed.get_mut(&order) {
            followed.message = Some(message);
            self.unplaced.push_back((until, order));
        }
    }

    /// Forgets the expected positions: the next sync brings those missing.
    pub(super) fn disconnected(&mut self) {
        self.unplaced.clear();
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.unplaced.front().map(|(at, _)| *at)
    }

    /// Conversations of accepted sends whose position should be known by now.
    pub(super) fn unplaced(&mut self, now: Timestamp, limits: &Limits) -> Vec<ConversationId> {
        let mut late = Vec::new();
        while let Some(&(at, order)) = self.unplaced.front()
            && at <= now
        {
            self.unplaced.pop_front();
            if let Some(followed) = self.followed.get(&order)
                && followed.row.seq.is_none()
            {
                late.push(followed.row.conversation);
                self.unplaced.push_back((now + limits.placed, order));
            }
        }
        late
    }

    #[cfg(test)]
    pub(super) fn all_placed(&self) -> bool {
        self.unplaced.is_empty()
    }

    /// Records the position of a send. Returns the whole message if this device still has it.
    pub(super) fn placed(
        &mut self,
        send_id: SendId,
        id: MessageId,
        conversation: ConversationId,
        position: Position,
        out: &mut Out,
    ) -> Option<Placed> {
        let order = *self.by_send.get(&send_id)?;
        let followed = self.followed.get_mut(&order)?;
        // A resend that the server took for a new message is dropped in favour of the first: that
        // one is ours, of which only the id says when it was accepted.
        let message = followed
            .message
            .take()
            .map(|message| match message.id == id {
                true => message,
                false => Message {
                    id,
                    accepted_at: id.timestamp(),
                    ..message
                },
            });
        let renamed = std::mem::replace(&mut followed.row.id, id);
        if followed.row.seq.is_none() || renamed != id {
            self.by_id.remove(&renamed);
            self.by_id.insert(id, order);
            followed.row.seq = Some(position.seq);
            out.change(Change::Followed(followed.row));
            if followed.row.status == ReceiptStatus::Sent {
                let seq = position.seq;
                out.status(send_id, SendStatus::Placed { id, seq });
            }
        }
        Some(Placed {
            message: message?,
            conversation,
            position,
        })
    }

    /// Applies a receipt. True if it is the first sign that the message has a position.
    pub(super) fn receipt(&mut self, receipt: &Receipt, out: &mut Out) -> bool {
        let known = self.by_id.get(&receipt.id).copied();
        let followed = known.and_then(|order| self.followed.get(&order));
        let is_unplaced = followed.is_some_and(|followed| followed.row.seq.is_none());
        if let Some(order) = known {
            self.advance(order, receipt.kind, out);
        }
        if receipt.kind == ReceiptKind::Read {
            let before: Vec<u64> = (self.followed.iter())
                .filter(|(_, followed)| {
                    followed.row.conversation == receipt.conversation
                        && followed.row.seq.is_some_and(|seq| seq <= receipt.seq)
                })
                .map(|(&order, _)| order)
                .collect();
            for order in before {
                self.advance(order, ReceiptKind::Read, out);
            }
        }
        if known.is_none() {
            out.tell(Event::Receipt(*receipt));
        }
        is_unplaced
    }

    /// Newest messages whose status may have moved while we were away.
    pub(super) fn unread_ids(&self) -> Vec<MessageId> {
        (self.followed.values().rev())
            .map(|followed| followed.row.id)
            .take(STATUSES_MAX)
            .collect()
    }

    pub(super) fn statuses(&mut self, statuses: &[MessageStatus], out: &mut Out) {
        for status in statuses {
            let Some(&order) = self.by_id.get(&status.id) else {
                continue;
            };
            if status.read_at.is_some() {
                self.advance(order, ReceiptKind::Read, out);
            } else if status.delivered_at.is_some() {
                self.advance(order, ReceiptKind::Received, out);
            }
        }
    }

    /// Advances the status of a followed send. Read is final: the send is no longer followed.
    fn advance(&mut self, order: u64, kind: ReceiptKind, out: &mut Out) {
        let Some(followed) = self.followed.get_mut(&order) else {
            return;
        };
        let (send_id, id) = (followed.row.send_id, followed.row.id);
        let status = followed.row.status.advanced_by(kind);
        if status == followed.row.status {
            return;
        }
        followed.row.status = status;
        match status {
            ReceiptStatus::Sent => {}
            ReceiptStatus::Delivered => {
                out.change(Change::Followed(followed.row));
                out.status(send_id, SendStatus::Delivered { id });
            }
            ReceiptStatus::Read => {
                self.unfollow(order, out);
                out.status(send_id, SendStatus::Read { id });
            }
        }
    }

    pub(super) fn follow_fewer(&mut self, limits: &Limits, out: &mut Out) {
        while self.followed.len() > limits.followed_max
            && let Some((&order, _)) = self.followed.first_key_value()
        {
            self.unfollow(order, out);
        }
    }

    /// Settles an accepted change that is done.
    pub(super) fn changed(&mut self, send_id: SendId, seq: Seq, out: &mut Out) {
        if let Some(order) = self.by_send.get(&send_id).copied()
            && let Some(followed) = self.followed.get(&order)
        {
            let id = followed.row.id;
            self.unfollow(order, out);
            out.status(send_id, SendStatus::Placed { id, seq });
        }
    }

    /// Fails an accepted send that was refused in the end, which happens only to changes. True if
    /// it was one.
    pub(super) fn came_to_nothing(
        &mut self,
        send_id: SendId,
        refusal: &Refusal,
        out: &mut Out,
    ) -> bool {
        let Some(order) = self.by_send.get(&send_id).copied() else {
            return false;
        };
        let is_open = (self.followed.get(&order)).is_some_and(|f| f.row.seq.is_none());
        let is_change = is_open && !refusal.code.retryable();
        if is_change {
            self.unfollow(order, out);
            out.status(send_id, SendStatus::Failed(refusal.clone()));
        }
        is_change
    }

    fn unfollow(&mut self, order: u64, out: &mut Out) {
        if let Some(followed) = self.followed.remove(&order) {
            self.by_id.remove(&followed.row.id);
            self.by_send.remove(&followed.row.send_id);
            out.change(Change::Forget { order });
        }
    }
}
