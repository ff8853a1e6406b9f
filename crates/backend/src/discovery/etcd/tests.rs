mod contract;
mod failures;
mod servers;
mod world;
