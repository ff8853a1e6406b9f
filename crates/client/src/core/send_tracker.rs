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
    tracked_sends: BTreeMap<u64, TrackedSend>,
    by_send: BTreeMap<SendId, u64>,
    by_id: BTreeMap<MessageId, u64>,
    /// Sends accepted on this connection, with the time by which their position should be known.
    unplaced_sends: VecDeque<(Timestamp, u64)>,
    /// Time by which the sync should have brought the positions of all others; then they are looked
    /// for, once in a connection.
    synced_by: Option<Timestamp>,
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
            tracked_sends: rows
                .into_iter()
                .map(|(order, row)| (order, TrackedSend { row, message: None }))
                .collect(),
            unplaced_sends: VecDeque::new(),
            synced_by: None,
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
        self.tracked_sends
            .insert(order, TrackedSend { row, message: None });
        out.change(Change::Followed(row));
    }

    /// Keeps the message until it is placed, which should be known at `until`.
    pub(super) fn expect_place(&mut self, order: u64, message: Message, deadline: Timestamp) {
        if let Some(tracked_send) = self.tracked_sends.get_mut(&order) {
            tracked_send.message = Some(message);
            self.unplaced_sends.push_back((deadline, order));
        }
    }

    /// Expects the sync to bring the positions of all accepted sends until `deadline`. It may miss
    /// one: a list that a station with a clock ahead answered hides what was written meanwhile.
    pub(super) fn connected(&mut self, deadline: Timestamp) {
        let mut tracked_sends = self.tracked_sends.values();
        let has_unplaced = tracked_sends.any(|tracked_send| tracked_send.row.seq.is_none());
        self.synced_by = has_unplaced.then_some(deadline);
    }

    /// Forgets the expected positions: the next sync brings those missing.
    pub(super) fn disconnected(&mut self) {
        self.unplaced_sends.clear();
        self.synced_by = None;
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let deadline = self.unplaced_sends.front().map(|(at, _)| *at);
        deadline.into_iter().chain(self.synced_by).min()
    }

    /// Conversations of accepted sends whose position should be known by now.
    pub(super) fn unplaced(&mut self, now: Timestamp, limits: &Limits) -> Vec<ConversationId> {
        let mut late = Vec::new();
        while let Some(&(at, order)) = self.unplaced_sends.front()
            && at <= now
        {
            self.unplaced_sends.pop_front();
            if let Some(tracked_send) = self.tracked_sends.get(&order)
                && tracked_send.row.seq.is_none()
            {
                late.push(tracked_send.row.conversation);
                self.unplaced_sends
                    .push_back((now + limits.placement, order));
            }
        }
        if self
            .synced_by
            .take_if(|deadline| *deadline <= now)
            .is_some()
        {
            let rows = self.tracked_sends.values().map(|it| it.row);
            let unplaced_rows = rows.filter(|row| row.seq.is_none());
            late.extend(unplaced_rows.map(|row| row.conversation));
        }
        late
    }

    #[cfg(test)]
    pub(super) fn all_placed(&self) -> bool {
        self.unplaced_sends.is_empty()
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
        let tracked_send = self.tracked_sends.get_mut(&order)?;
        // A resend that the server took for a new message is dropped in favour of the first: that
        // one is ours, of which only the id says when it was accepted.
        let message = tracked_send.message.take().map(|message| {
            if message.id == id {
                message
            } else {
                Message {
                    id,
                    accepted_at: id.timestamp(),
                    ..message
                }
            }
        });
        let old_id = std::mem::replace(&mut tracked_send.row.id, id);
        if tracked_send.row.seq.is_none() || old_id != id {
            self.by_id.remove(&old_id);
            self.by_id.insert(id, order);
            tracked_send.row.seq = Some(position.seq);
            out.change(Change::Followed(tracked_send.row));
            if tracked_send.row.status == ReceiptStatus::Sent {
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

    /// Applies a receipt. Returns whether it is the first sign that the message has a position.
    pub(super) fn receipt(&mut self, receipt: &Receipt, out: &mut Out) -> bool {
        let order_of_id = self.by_id.get(&receipt.id).copied();
        let tracked_send = order_of_id.and_then(|order| self.tracked_sends.get(&order));
        let is_unplaced = tracked_send.is_some_and(|tracked_send| tracked_send.row.seq.is_none());
        if let Some(order) = order_of_id {
            self.advance(order, receipt.kind, out);
        }
        if receipt.kind == ReceiptKind::Read {
            let earlier_orders: Vec<u64> = (self.tracked_sends.iter())
                .filter(|(_, tracked_send)| {
                    tracked_send.row.conversation == receipt.conversation
                        && tracked_send.row.seq.is_some_and(|seq| seq <= receipt.seq)
                })
                .map(|(&order, _)| order)
                .collect();
            for order in earlier_orders {
                self.advance(order, ReceiptKind::Read, out);
            }
        }
        if order_of_id.is_none() {
            out.emit_event(Event::Receipt(*receipt));
        }
        is_unplaced
    }

    /// Newest messages whose status may have moved while we were away.
    pub(super) fn unread_ids(&self) -> Vec<MessageId> {
        (self.tracked_sends.values().rev())
            .map(|tracked_send| tracked_send.row.id)
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
        let Some(tracked_send) = self.tracked_sends.get_mut(&order) else {
            return;
        };
        let (send_id, id) = (tracked_send.row.send_id, tracked_send.row.id);
        let status = tracked_send.row.status.advanced_by(kind);
        if status == tracked_send.row.status {
            return;
        }
        tracked_send.row.status = status;
        match status {
            ReceiptStatus::Sent => {}
            ReceiptStatus::Delivered => {
                out.change(Change::Followed(tracked_send.row));
                out.status(send_id, SendStatus::Delivered { id });
            }
            ReceiptStatus::Read => {
                self.unfollow(order, out);
                out.status(send_id, SendStatus::Read { id });
            }
        }
    }

    pub(super) fn follow_fewer(&mut self, limits: &Limits, out: &mut Out) {
        while self.tracked_sends.len() > limits.followed_max
            && let Some((&order, _)) = self.tracked_sends.first_key_value()
        {
            self.unfollow(order, out);
        }
    }

    /// Settles an accepted change that is done.
    pub(super) fn changed(&mut self, send_id: SendId, seq: Seq, out: &mut Out) {
        if let Some(order) = self.by_send.get(&send_id).copied()
            && let Some(tracked_send) = self.tracked_sends.get(&order)
        {
            let id = tracked_send.row.id;
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
        let is_open = (self.tracked_sends.get(&order)).is_some_and(|f| f.row.seq.is_none());
        let is_change = is_open && !refusal.code.retryable();
        if is_change {
            self.unfollow(order, out);
            out.status(send_id, SendStatus::Failed(refusal.clone()));
        }
        is_change
    }

    fn unfollow(&mut self, order: u64, out: &mut Out) {
        if let Some(tracked_send) = self.tracked_sends.remove(&order) {
            self.by_id.remove(&tracked_send.row.id);
            self.by_send.remove(&tracked_send.row.send_id);
            out.change(Change::Forget { order });
        }
    }
}
