//! Operator: holds what people who run the program work with. Services depend on none of it.
//!
//! * [`admin`]: the admin port, with the desk, its console and the probes of a process
//! * [`dead_letters`]: dead letters, and tasks over them
//! * [`desk`], [`doctor`] and [`minute_builder`]: their rules, as pure values
//! * [`lifecycle`] and [`pulse`]: phases of a process, and life of its runtimes
//! * [`answer`]: forms that all answers share
//! * [`http`]: ports that speak HTTP, of the desk and of edges

mod access;
pub mod admin;
pub mod answer;
pub mod dead_letters;
pub mod desk;
pub mod doctor;
pub mod http;
#[cfg(test)]
mod in_memory;
pub mod lifecycle;
pub mod minute_builder;
pub mod pulse;

pub use access::Access;
pub use dead_letters::DeadLetters;
