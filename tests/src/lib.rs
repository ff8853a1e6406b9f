//! What the whole-system tests share: a system in one process, its users, its faults, its log.

pub mod counted;
pub mod faults;
pub mod logs;
mod parts;
pub mod person;
pub mod spans;
pub mod system;
pub mod wire;

pub use person::{Device, user};
pub use system::{Cluster, settings};
