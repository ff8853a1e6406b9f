//! Operator: holds what people who run the program work with. Services depend on none of it. A room
//! per subject, each with its rules, its work and its routes:
//!
//! * [`port`]: the admin port, with the desk, its console and the probes of a process; and ports
//!   that speak HTTP, of the desk and of edges
//! * [`dead_letters`]: dead letters, tasks over them, and the log of operations
//! * [`audit`]: the balance of accepted messages, closed minutes and their chain, traces
//! * [`doctor`]: checks of an installation and of one user
//! * [`boats`], [`users`]: drains, and sign-outs
//! * [`lifecycle`] and [`pulse`]: phases of a process, and life of its runtimes
//! * [`answer`]: forms that all answers share

mod access;
pub mod answer;
pub mod audit;
pub mod boats;
pub mod dead_letters;
pub mod doctor;
#[cfg(test)]
mod in_memory;
pub mod lifecycle;
pub mod port;
pub mod pulse;
pub mod users;

pub use access::Access;
pub use dead_letters::DeadLetters;
