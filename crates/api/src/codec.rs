//! Frames and bytes.
//!
//! A WebSocket binary message is one frame; on TCP a varint length stands before each ([`Frames`]).

mod length;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::encoded_len_varint;
use protocol::event::{Encode, Event};
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::{Code, Placed, Recipient, Refusal, SendId, TraceContext, UserId};

pub use length::{FrameError, Frames, LENGTH_BYTES_MAX, put_length};

use crate::trace::trace_text;
use crate::v1;
use crate::v1::client_frame::Frame;

/// Field number of `message` in `ServerFrame`.
const MESSAGE_TAG: u32 = 4;

/// Encodes a complete `ServerFrame`.
pub fn encode_server(frame: &ServerFrame) -> Bytes {
    match frame {
        ServerFrame::Message(message) => encode_message(message),
        other => v1::ServerFrame::from(other).encode_to_vec().into(),
    }
}

/// Encodes a complete `ClientFrame`.
pub fn encode_client(frame: &ClientFrame) -> Bytes {
    v1::ClientFrame::from(frame).encode_to_vec().into()
}

/// Encodes the complete `ServerFrame` of a message (msg:N): once, shared by all its recipients.
pub fn encode_message(message: &Placed) -> Bytes {
    encode_traced(message, None)
}

/// Same, with the trace that it comes in. A private message is the recipient's copy; one to a group
/// is everybody's.
pub fn encode_traced(placed_message: &Placed, trace: Option<TraceContext>) -> Bytes {
    let owner = match placed_message.message.to {
        Recipient::User(to) => Some(to),
        Recipient::Group(_) => None,
    };
    encode_copy(placed_message, owner, trace)
}

/// Encodes the copy of this user.
fn encode_copy(message: &Placed, owner: Option<UserId>, trace: Option<TraceContext>) -> Bytes {
    let chat = v1::MsgChat {
        user_id: owner.map_or(0, UserId::get),
        traceparent: trace_text(trace),
        ..message.into()
    };
    let len = chat.encoded_len();
    let mut bytes = BytesMut::with_capacity(1 + encoded_len_varint(len as u64) + len);
    prost::encoding::message::encode(MESSAGE_TAG, &chat, &mut bytes);
    bytes.freeze()
}

/// Makes a complete `ServerFrame` of each event. Frames of messages carry the trace.
#[derive(Clone, Copy, Debug)]
pub struct EventFrames;

impl Encode for EventFrames {
    fn encode(&self, event: &Event<'_>, trace: Option<TraceContext>) -> Bytes {
        match event {
            Event::Message(message) => encode_traced(message, trace),
            Event::SenderCopy(message) => encode_copy(message, Some(message.message.from), trace),
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

/// Reads a frame from a client. Bytes of the message are slices of `bytes`, not copies.
///
/// # Errors
/// `TooLarge` above `max` bytes, `Malformed` if it is no frame, and refusals of the conversion.
pub fn decode_client(bytes: Bytes, max: usize) -> Result<ClientFrame, Refusal> {
    decode_client_about(bytes, max).map_err(|rejection| rejection.refusal)
}

/// Like [`decode_client`], but also names the subject of the refusal, so that exactly that can be
/// answered and the connection may go on.
pub fn decode_client_about(bytes: Bytes, max: usize) -> Result<ClientFrame, FrameRejection> {
    let frame_rejection = |refusal| FrameRejection {
        refusal,
        context: FrameContext::Frame,
    };
    fits(bytes.len(), max).map_err(frame_rejection)?;
    let wire = v1::ClientFrame::decode(bytes).map_err(|error| frame_rejection(no_frame(&error)))?;
    let context = FrameContext::from_frame(&wire);
    wire.try_into()
        .map_err(|refusal| FrameRejection { refusal, context })
}

/// Reads a frame from a boat.
///
/// # Errors
/// As [`decode_client`].
pub fn decode_server(bytes: Bytes, max: usize) -> Result<ServerFrame, Refusal> {
    fits(bytes.len(), max)?;
    v1::ServerFrame::decode(bytes)
        .map_err(|error| no_frame(&error))?
        .try_into()
}

/// Trace that the message of a frame comes in. [`decode_server`] skips it: a client that takes no
/// part in traces needs none.
pub fn message_trace(frame: Bytes) -> Option<TraceContext> {
    match v1::ServerFrame::decode(frame).ok()?.frame? {
        v1::server_frame::Frame::Message(chat) => TraceContext::parse(&chat.traceparent),
        _ => None,
    }
}

/// A frame that was refused at the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameRejection {
    pub refusal: Refusal,
    pub context: FrameContext,
}

/// Question that a refusal answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContext {
    /// The frame as a whole: its sender does not speak the protocol.
    Frame,
    /// A send with a known id: answer `Refused`.
    Send(SendId),
    /// A sync question: answer `Error` with its number.
    Sync(u32),
}

impl FrameContext {
    fn from_frame(wire: &v1::ClientFrame) -> FrameContext {
        match &wire.frame {
            Some(Frame::Send(send)) => {
                let send_id = send.message.as_ref().and_then(|m| m.send_id.parse().ok());
                send_id.map_or(FrameContext::Frame, FrameContext::Send)
            }
            Some(Frame::Sync(sync)) if sync.request != 0 => FrameContext::Sync(sync.request),
            _ => FrameContext::Frame,
        }
    }
}

fn fits(len: usize, max: usize) -> Result<(), Refusal> {
    if len > max {
        let text = format!("a frame of {len} bytes; at most {max} are accepted");
        return Err(Refusal::new(Code::TooLarge, text));
    }
    Ok(())
}

fn no_frame(error: &prost::DecodeError) -> Refusal {
    Refusal::new(
        Code::Malformed,
        format!("not a packetboat.v1 frame: {error}"),
    )
}

#[cfg(test)]
mod tests;
