//! Real processes of the built program, as an operator and a user start them.

mod auditing;
mod chatting;
mod crash;
mod dead_letters;
mod process;
mod settings;
mod stopping;
