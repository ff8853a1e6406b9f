//! The reference client: a pure [`core`] that the simulator shares, a [`store`], and a [`driver`]
//! on tokio.

pub mod core;
pub mod driver;
pub mod store;

pub use driver::{
    Client, ClientConfig, ClientError, ConnectError, ConversationList, EdgeConfig, EdgeSource,
    Event, Events, Handlers, SendTicket, TokenSource,
};
