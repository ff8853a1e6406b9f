//! The rules of Packetboat, as pure values and state machines.
//!
//! Nothing here touches the world: no clock, no randomness, no socket, no store. Time comes in as a
//! [`Timestamp`], actions go out as values, and the services (or the simulator, or a client) carry
//! them out.
//!
//! The state machines ([`session::Session`], [`delivery::Delivery`]) share four kinds of method:
//! `handle_*` reports an event of the world (and its time), plain verbs are commands, `poll_action`
//! hands out actions, and `poll_timeout` names the next deadline. **Drain completely after every
//! call**: call `poll_action` until it returns `None`, then arm one timer for `poll_timeout`.

pub mod accept_backoff;
pub mod access;
pub mod admission;
pub mod bounds;
pub mod cache;
pub mod change;
pub mod circuit;
pub mod code;
pub mod conversation;
pub mod delivery;
pub mod drain;
pub mod edges;
pub mod event;
pub mod frame;
pub mod group;
pub mod hidden;
pub mod history;
pub mod id;
#[cfg(test)]
mod interleavings;
pub mod keys;
pub mod ledger;
pub mod loaded_ranges;
pub mod log_pace;
pub mod mailbox;
pub mod message;
pub mod message_row;
pub mod notify;
pub mod origin;
pub mod pause;
pub mod presence;
pub mod proxy;
pub mod reading;
pub mod receipt;
pub mod record;
pub mod revocation;
pub mod round_trip;
pub mod session;
pub mod settings;
pub mod signature;
pub mod subscription;
pub mod ticket;
pub mod time;
pub mod trace;
pub mod unread;
pub mod writer;

pub use code::{Code, Refusal};
pub use hidden::Hidden;
pub use id::{
    BoatId, ConversationId, DeviceId, GroupId, Incarnation, MessageId, Platform, SendId, Seq,
    SessionId, UserId,
};
pub use message::{Message, Options, Placed, Position, Recipient};
pub use time::{Moment, Timestamp};
pub use trace::TraceContext;
