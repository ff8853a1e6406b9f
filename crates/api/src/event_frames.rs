//! Frames of events.

use bytes::Bytes;
use protocol::TraceContext;
use protocol::event::{Encode, Event};
use protocol::frame::ServerFrame;

use crate::codec::{encode_copy, encode_server, encode_traced};

/// Makes a complete `ServerFrame` of each event. Frames of messages carry the trace.
#[derive(Clone, Copy, Debug)]
pub struct EventFrames;

impl Encode for EventFrames {
    fn encode(&self, event: &Event<'_>, trace: Option<TraceContext>) -> Bytes {
        match event {
            Event::Message(placed) => encode_traced(placed, trace),
            Event::SenderCopy(placed) => encode_copy(placed, Some(placed.message.from), trace),
            Event::Changed {
                conversation,
                change,
            } => encode_server(&ServerFrame::Changed {
                conversation: *conversation,
                changed: change.clone(),
            }),
            Event::List(event) => encode_server(&ServerFrame::Listed(*event)),
        }
    }
}
