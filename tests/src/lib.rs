//! Shared code of whole-system tests: a system in one process, its users, its faults, its log, and
//! the worlds that services live in.

pub mod actions;
pub mod app;
pub mod conversations;
pub mod core_device;
pub mod crowd;
pub mod evidence;
pub mod faults;
pub mod judge;
pub mod logs;
pub mod model;
mod parts;
mod paused;
pub mod person;
mod pipes;
pub mod poison;
pub mod screen;
pub mod spans;
pub mod system;
pub mod wire;
pub mod world;

pub use person::{Device, user};
pub use system::{Cluster, patient_settings, settings};
