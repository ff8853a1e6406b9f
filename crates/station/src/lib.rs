//! Station: admits sessions, accepts messages into the log, and answers what the server keeps.

pub mod auth;
