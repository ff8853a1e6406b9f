//! What a process looks at, check by check.

mod flow;
mod limits;
mod parts;
mod probe;
mod settings;
