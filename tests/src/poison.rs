//! Records whose handling panics: the frames of their messages and changes cannot be made.

use api::codec::EventFrames;
use bytes::Bytes;
use protocol::event::{Encode, Event};
use protocol::{SendId, TraceContext};

/// Makes frames, but panics for those of sends that are poison.
pub struct PoisonFrames<P>(pub P);

impl<P: Fn(SendId) -> bool + Send + Sync> Encode for PoisonFrames<P> {
    fn encode(&self, event: &Event<'_>, trace: Option<TraceContext>) -> Bytes {
        let send_id = match event {
            Event::Message(placed) | Event::SenderCopy(placed) => Some(placed.message.send_id),
            Event::Changed { change, .. } => Some(change.asked.send_id),
            Event::List(_) => None,
        };
        if send_id.is_some_and(&self.0) {
            // A planned panic is no finding, and says nothing on standard error.
            std::panic::resume_unwind(Box::new("a planned panic"));
        }
        EventFrames.encode(event, trace)
    }
}
