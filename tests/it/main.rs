//! The whole system in one process, as its users see it.

mod absence;
mod asking;
mod auditing;
mod bad_input;
mod changing;
mod chatting;
mod converging;
mod dead_letters;
mod doctor;
mod groups;
mod hiding;
mod judging;
mod listing;
mod receipts;
mod resending;
mod returning;
mod sessions;
mod stores_away;
mod traces;
