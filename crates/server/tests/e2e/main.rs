//! Real processes of the built program, as an operator and a user start them.

mod all;
mod auditing;
#[cfg(feature = "otlp")]
mod canary;
mod certificate;
mod chatting;
mod crash;
mod crowds;
mod dead_letters;
mod deployment;
mod doctor;
mod door;
mod draining;
mod edges;
mod failpoints;
mod files;
mod garbage;
mod limits;
mod neighbours;
mod partitions;
mod ports;
mod printing;
mod process;
mod raw;
mod relay;
mod rotation;
mod secure;
mod settings;
mod signing_out;
mod slow;
mod stopping;
mod tokens;
mod unread;
mod webhook;

#[cfg(feature = "cluster")]
mod blows;
#[cfg(feature = "cluster")]
mod campaign;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "cluster")]
mod fleet;
#[cfg(feature = "cluster")]
mod night;
#[cfg(feature = "cluster")]
mod one_away;
#[cfg(feature = "cluster")]
mod page;
#[cfg(feature = "cluster")]
mod proof;
#[cfg(feature = "cluster")]
mod real;
#[cfg(feature = "cluster")]
mod rolling;
#[cfg(feature = "cluster")]
mod secured;
