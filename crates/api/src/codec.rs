//! Frames and bytes.
//!
//! A WebSocket binary message is one frame; on TCP a varint length stands before each ([`Frames`]).

mod length;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::encoded_len_varint;
use protocol::frame::{ClientFrame, ServerFrame};
use protocol::{Code, Placed, Recipient, Refusal, SendId, TraceContext, UserId};

pub use length::{FrameError, Frames, LENGTH_BYTES_MAX, put_length};

use crate::trace::trace_text;
use crate::v1;
use crate::v1::client_frame::Frame;

/// The number of `message` in `ServerFrame`.
const MESSAGE_TAG: u32 = 4;

/// A complete `ServerFrame`.
pub fn encode_server(frame: &ServerFrame) -> Bytes {
    match frame {
        ServerFrame::Message(placed) => encode_message(placed),
        other => v1::ServerFrame::from(other).encode_to_vec().into(),
    }
}

/// A complete `ClientFrame`.
pub fn encode_client(frame: &ClientFrame) -> Bytes {
    v1::ClientFrame::from(frame).encode_to_vec().into()
}

/// The complete `ServerFrame` of a message (msg:N): made once, shared by all its receivers.
pub fn encode_message(placed: &Placed) -> Bytes {
    encode_traced(placed, None)
}

/// The same, and in which trace it comes. A private message is the receiver's copy; one to a group is everybody's.
pub fn encode_traced(placed: &Placed, trace: Option<TraceContext>) -> Bytes {
    let owner = match placed.message.to {
        Recipient::User(to) => Some(to),
        Recipient::Group(_) => None,
    };
    encode_copy(placed, owner, trace)
}

/// The copy of this user.
pub fn encode_copy(placed: &Placed, owner: Option<UserId>, trace: Option<TraceContext>) -> Bytes {
    let chat = v1::MsgChat {
        user_id: owner.map_or(0, UserId::get),
        traceparent: trace_text(trace),
        ..placed.into()
    };
    let len = chat.encoded_len();
    let mut bytes = BytesMut::with_capacity(1 + encoded_len_varint(len as u64) + len);
    prost::encoding::message::encode(MESSAGE_TAG, &chat, &mut bytes);
    bytes.freeze()
}

/// Reads what a client sent. Bytes of the message are slices of `bytes`, not copies.
///
/// # Errors
/// `TooLarge` above `max` bytes, `Malformed` for what is no frame, and what the conversion refuses.
pub fn decode_client(bytes: Bytes, max: usize) -> Result<ClientFrame, Refusal> {
    decode_client_about(bytes, max).map_err(|rejected| rejected.refusal)
}

/// Like [`decode_client`], and says what the refusal is about, so that it can be answered to exactly
/// that and the connection may go on.
pub fn decode_client_about(bytes: Bytes, max: usize) -> Result<ClientFrame, Rejected> {
    let of_frame = |refusal| Rejected {
        refusal,
        about: About::Frame,
    };
    fits(bytes.len(), max).map_err(of_frame)?;
    let wire = v1::ClientFrame::decode(bytes).map_err(|error| of_frame(no_frame(&error)))?;
    let about = About::of(&wire);
    wire.try_into()
        .map_err(|refusal| Rejected { refusal, about })
}

/// Reads what a boat sent.
///
/// # Errors
/// As [`decode_client`].
pub fn decode_server(bytes: Bytes, max: usize) -> Result<ServerFrame, Refusal> {
    fits(bytes.len(), max)?;
    v1::ServerFrame::decode(bytes)
        .map_err(|error| no_frame(&error))?
        .try_into()
}

/// In which trace the message of a frame comes. [`decode_server`] passes over it: a client that takes no
/// part in traces needs none.
pub fn trace_of(frame: Bytes) -> Option<TraceContext> {
    match v1::ServerFrame::decode(frame).ok()?.frame? {
        v1::server_frame::Frame::Message(chat) => TraceContext::parse(&chat.traceparent),
        _ => None,
    }
}

/// A frame that was refused at the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    pub refusal: Refusal,
    pub about: About,
}

/// Which question a refusal answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum About {
    /// The frame as a whole: whoever sends this does not speak the protocol.
    Frame,
    /// A send that can be named: answer `Refused`.
    Send(SendId),
    /// A sync question: answer `Error` with its number.
    Sync(u32),
}

impl About {
    fn of(wire: &v1::ClientFrame) -> About {
        match &wire.frame {
            Some(Frame::Send(send)) => {
                let send_id = send.message.as_ref().and_then(|m| m.send_id.parse().ok());
                send_id.map_or(About::Frame, About::Send)
            }
            Some(Frame::Sync(sync)) if sync.request != 0 => About::Sync(sync.request),
            _ => About::Frame,
        }
    }
}

fn fits(len: usize, max: usize) -> Result<(), Refusal> {
    if len > max {
        let text = format!("a frame of {len} bytes, at most {max} are taken");
        return Err(Refusal::new(Code::TooLarge, text));
    }
    Ok(())
}

fn no_frame(error: &prost::DecodeError) -> Refusal {
    Refusal::new(
        Code::Malformed,
        format!("these bytes are no frame of packetboat.v1: {error}"),
    )
}

#[cfg(test)]
mod tests;
