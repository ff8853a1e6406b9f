//! A message's trace: the context that travels with it (W3C `traceparent`), and the spans of its way.
//!
//! ```text
//! client ── send ── accept ── place ─┬─ deliver (one a user and platform) ── push
//!           boat    station   carrier└─ deliver ── notify (horn)
//! ```
//!
//! Ids of spans are derived, not drawn: who knows the span before and what a step is about knows the id of
//! the step. So nothing has to be remembered between the push and the settlement, and a record that is
//! worked on again after a crash names the same spans again.

mod context;
mod span;

pub use context::{SpanId, TraceContext, TraceId};
pub use span::{Span, Step};
