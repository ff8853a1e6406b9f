//! Frames of a session that its wire has not taken, and the weight of all bytes that the socket has
//! not.

use std::collections::VecDeque;
use std::time::Duration;

use api::codec::encode_server;
use bytes::Bytes;
use metrics::Counter;
use protocol::Timestamp;
use protocol::session::Outgoing;

use crate::stack::Wire;

/// Bytes handed to the wire between two flushes.
const FLUSH_BYTES: usize = 64 * 1024;
/// Maximum number of bytes that may linger.
const LINGER_BYTES: usize = 16 * 1024;

/// Frames on their way to the wire, in memory that is held only while some wait.
#[derive(Debug, Default)]
pub(super) struct OutgoingQueue {
    /// Frames transmitted and not yet taken by the wire, each with its weight.
    frames: VecDeque<(Bytes, u32)>,
    /// Deadline until which all of the frames may linger; `None`: write them now.
    lingers_until: Option<Timestamp>,
    /// Weight of frames that the wire has taken and the socket has not.
    in_wire: usize,
    /// Weight of frames transmitted and not written: now, and at the last report.
    unwritten: usize,
    reported_weight: usize,
}

impl OutgoingQueue {
    /// Queues a frame; notices and acknowledgements linger for up to `linger`.
    pub(super) fn push(&mut self, item: Outgoing, linger: Duration, now: Timestamp) {
        let weight = item.weight() as u32;
        self.unwritten += weight as usize;
        if !item.may_wait() || self.unwritten > LINGER_BYTES {
            self.lingers_until = None;
        } else if self.frames.is_empty() {
            self.lingers_until = Some(now + linger);
        }
        self.frames.push_back((encode(item), weight));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    pub(super) fn lingers_until(&self) -> Option<Timestamp> {
        self.lingers_until
    }

    /// Hands waiting frames to the wire, as far as it has room. From here on the socket sets the
    /// pace, not an expired timer.
    pub(super) fn fill(&mut self, wire: &mut Wire, frame_counter: &Counter) {
        self.lingers_until = None;
        while self.in_wire < FLUSH_BYTES
            && wire.has_room()
            && let Some((frame, weight)) = self.frames.pop_front()
        {
            wire.send(&frame);
            frame_counter.increment(1);
            self.in_wire += weight as usize;
        }
        if self.frames.is_empty() {
            self.frames = VecDeque::new();
        }
    }

    /// Notes that the socket took everything the wire had. Returns its weight.
    pub(super) fn handle_flushed(&mut self) -> usize {
        let weight = std::mem::take(&mut self.in_wire);
        self.unwritten -= weight;
        weight
    }

    /// Drops the waiting frames: nobody will read them.
    pub(super) fn clear(&mut self) {
        self.frames = VecDeque::new();
        self.lingers_until = None;
    }

    /// Counts nothing as unwritten any more: the socket is gone.
    pub(super) fn end(&mut self) {
        self.unwritten = 0;
    }

    /// Change of the unwritten weight since the last report, if any.
    pub(super) fn report(&mut self) -> Option<f64> {
        if self.unwritten == self.reported_weight {
            return None;
        }
        let change = self.unwritten as f64 - self.reported_weight as f64;
        self.reported_weight = self.unwritten;
        Some(change)
    }
}

fn encode(item: Outgoing) -> Bytes {
    match item {
        Outgoing::Encoded(frame) | Outgoing::Notice(frame) => frame,
        Outgoing::Frame(frame) => encode_server(&frame),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_millis(200);
    const NOW: Timestamp = Timestamp::from_millis(1000);

    fn notice(len: usize) -> Outgoing {
        Outgoing::Notice(vec![0; len].into())
    }

    fn message(len: usize) -> Outgoing {
        Outgoing::Encoded(vec![0; len].into())
    }

    fn wire() -> Wire {
        Wire::length_prefix(1 << 20)
    }

    #[test]
    fn notices_wait_for_company_from_the_first_on() {
        let mut queue = OutgoingQueue::default();
        queue.push(notice(10), LINGER, NOW);
        queue.push(notice(10), LINGER, NOW + LINGER / 2);
        assert_eq!(queue.lingers_until(), Some(NOW + LINGER));
        queue.push(message(10), LINGER, NOW);
        assert_eq!(queue.lingers_until(), None, "a message takes them along");
        queue.push(notice(10), LINGER, NOW);
        assert_eq!(queue.lingers_until(), None, "not behind a message");
    }

    #[test]
    fn many_notices_do_not_wait() {
        let mut queue = OutgoingQueue::default();
        queue.push(notice(LINGER_BYTES), LINGER, NOW);
        assert!(queue.lingers_until().is_some());
        queue.push(notice(1), LINGER, NOW);
        assert_eq!(queue.lingers_until(), None);
    }

    #[test]
    fn the_wire_takes_so_much_before_it_is_flushed() {
        let mut queue = OutgoingQueue::default();
        for _ in 0..5 {
            queue.push(message(FLUSH_BYTES / 2), LINGER, NOW);
        }
        let mut turns = Vec::new();
        while !queue.is_empty() {
            let mut wire = wire();
            queue.fill(&mut wire, &Counter::noop());
            turns.push(queue.handle_flushed() / (FLUSH_BYTES / 2));
        }
        assert_eq!(turns, [2, 2, 1]);
        assert_eq!(queue.report(), None);
        assert_eq!(queue.frames.capacity(), 0);
    }

    #[test]
    fn unwritten_weight_is_reported_on_change() {
        let mut queue = OutgoingQueue::default();
        queue.push(message(30), LINGER, NOW);
        queue.push(message(12), LINGER, NOW);
        assert_eq!(queue.report(), Some(42.0));
        assert_eq!(queue.report(), None);
        queue.fill(&mut wire(), &Counter::noop());
        assert_eq!(queue.report(), None, "the wire's is not the socket's");
        assert_eq!(queue.handle_flushed(), 42);
        assert_eq!(queue.report(), Some(-42.0));
        queue.push(message(5), LINGER, NOW);
        queue.report();
        queue.end();
        assert_eq!(queue.report(), Some(-5.0));
    }
}
