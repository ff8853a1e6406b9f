//! What the whole-system tests share: a system in one process, its users, its faults, its log.

pub mod app;
pub mod crowd;
pub mod faults;
pub mod logs;
pub mod model;
mod parts;
pub mod person;
pub mod screen;
pub mod spans;
pub mod system;
pub mod wire;

pub use person::{Device, user};
pub use system::{Cluster, settings};
