//! Forms that all answers of the operators' API share: times, ids, lists, reasons, refusals.
//!
//! Stored forms (the log of operations, exported letters) are none of these: they change on their
//! own terms.

mod error;
pub mod id;
mod list;
pub mod reason;
mod time;

pub use error::{ErrorAnswer, ErrorDetail};
pub use list::{List, Page};
pub use time::{Time, utc};
