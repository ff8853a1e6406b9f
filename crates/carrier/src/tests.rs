//! A carrier on embedded backends in memory and paused time, with a small boat that the test
//! directs.

mod accounting;
mod changing;
mod clearing;
mod copies;
mod crashes;
mod damage;
mod dead_letters;
mod delivering;
mod desk;
mod dropped;
mod editing;
mod groups;
mod kickouts;
mod placing;
mod retrying;
mod settling;
mod slow_stores;
mod stopping;
mod world;
