//! Client listeners: from an accepted socket to the wire of a connection.

pub(crate) mod acceptor;
mod arrival;
pub mod client_stream;
mod pipe;
pub(crate) mod tcp;
pub mod upgrade;
pub(crate) mod websocket;

pub use pipe::PipeListener;
