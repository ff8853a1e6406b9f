//! A frame of the client that has been received in part.

use super::{Phase, Session, SessionLimits};
use crate::{Code, Refusal, Timestamp};

/// Received part of a frame. On a slow line it may take its time, as long as more bytes arrive.
#[derive(Debug)]
pub(super) struct PartialFrame {
    /// Maximum number of buffered bytes so far; control frames in between are buffered only for a
    /// moment.
    bytes: usize,
    began_at: Timestamp,
    /// Time at which a further byte came.
    came_at: Timestamp,
}

impl PartialFrame {
    fn new(bytes: usize, now: Timestamp) -> PartialFrame {
        PartialFrame {
            bytes,
            began_at: now,
            came_at: now,
        }
    }

    fn grow(&mut self, bytes: usize, now: Timestamp) {
        if bytes > self.bytes {
            (self.bytes, self.came_at) = (bytes, now);
        }
    }

    /// Some of the frame must come within the time in which the client must read some, and all of
    /// it within the time in which a silent client must send a frame.
    pub(super) fn deadline(&self, limits: &SessionLimits) -> Timestamp {
        (self.came_at + limits.write_wait).min(self.began_at + limits.silence_max())
    }
}

impl Session {
    /// Notes how many bytes of an unfinished frame are held.
    pub fn handle_partial(&mut self, bytes: usize, now: Timestamp) {
        if bytes == 0 || self.is_closed() {
            self.partial = None;
        } else if let Some(partial) = &mut self.partial {
            partial.grow(bytes, now);
        } else {
            self.partial = Some(Box::new(PartialFrame::new(bytes, now)));
        }
    }

    /// Bytes held of a frame that has not ended.
    pub fn received(&self) -> usize {
        self.partial.as_ref().map_or(0, |partial| partial.bytes)
    }

    /// `None` once the session takes nothing new: it ends anyhow, and owes the client some answers.
    pub(super) fn partial_deadline(&self) -> Option<Timestamp> {
        if !matches!(self.phase, Phase::Open) {
            return None;
        }
        let partial = self.partial.as_ref()?;
        Some(partial.deadline(&self.limits))
    }

    pub(super) fn end_partial(&mut self) {
        let (stall_timeout, total_timeout) = (self.limits.write_wait, self.limits.silence_max());
        self.end(Refusal::new(
            Code::HeartbeatMissed,
            format!(
                "incomplete frame: no byte of it for {} seconds, or not all of it in {}; reconnect \
                 and resend what was not answered",
                stall_timeout.as_secs(),
                total_timeout.as_secs()
            ),
        ));
    }
}
