//! The reference client: a pure [`core`] that the simulator shares, a [`store`], and a [`driver`]
//! on tokio.

pub mod core;
pub mod driver;
pub mod store;

pub use driver::{
    Address, ByteStream, Client, ClientConfig, ClientError, ConnectError, ConversationList, Dial,
    EdgeConfig, EdgeSource, Event, Events, Handlers, SendTicket, TcpDial, TokenSource,
};
