//! A boat's subscriptions with a carrier, a station and clients: each interleaving of small cases,
//! and random worlds.

mod interleavings;
mod random;
mod rules;
mod world;
