//! Trace of a message: the context that travels with it (W3C `traceparent`), and the spans of its
//! way.
//!
//! ```text
//! client ── send ── accept ── place ─┬─ deliver (one a user and platform) ── push
//!           boat    station   carrier└─ deliver ── notify (horn)
//! ```
//!
//! Span ids are derived, not random: the parent span and the subject of a step determine the step's
//! id. So no state has to be kept between push and settlement, and a record processed again after a
//! crash yields the same spans.

mod context;
mod span;

pub use context::{SpanId, TraceContext, TraceId};
pub use span::{Span, Step};
