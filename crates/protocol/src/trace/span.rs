//! A finished step of a message's way.

use std::time::Duration;

use super::{SpanId, TraceContext};
use crate::{MessageId, Platform};

/// The recorded steps of a message's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Boat: from the client's frame to its answer.
    Send = 1,
    /// Station: dedupe and the log.
    Accept = 2,
    /// Carrier: position and writes.
    Place = 3,
    /// Carrier: one attempt at one user's platform.
    Deliver = 4,
    /// Boat: from the carrier's push to the client's acknowledgement.
    Push = 5,
    /// Horn: a call to the provider.
    Notify = 6,
}

impl Step {
    pub const fn name(self) -> &'static str {
        match self {
            Step::Send => "send",
            Step::Accept => "accept",
            Step::Place => "place",
            Step::Deliver => "deliver",
            Step::Push => "push",
            Step::Notify => "notify",
        }
    }
}

/// A finished step. Identifies messages by id only: no user, no body, no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub step: Step,
    /// Trace and id of the span.
    pub context: TraceContext,
    /// Parent span; `None` at the root of the trace.
    pub parent: Option<SpanId>,
    /// Age of the start and of the end; the receiver of the span, which has a clock, makes them
    /// times.
    pub began_ago: Duration,
    pub ended_ago: Duration,
    /// Outcome in one word.
    pub outcome: &'static str,
    /// Whether the outcome is not the wanted one.
    pub is_failure: bool,
    pub message: Option<MessageId>,
    /// Kind of conversation.
    pub conversation: Option<&'static str>,
    pub platform: Option<Platform>,
    /// Record in the log: partition and offset.
    pub record: Option<(u32, u64)>,
    /// 0 for the first attempt.
    pub attempt: Option<u32>,
    /// Events on the way, with their ages.
    pub events: Vec<(&'static str, Duration)>,
}

impl Span {
    /// A span that has just ended well.
    pub fn new(
        step: Step,
        context: TraceContext,
        parent: Option<SpanId>,
        duration: Duration,
        outcome: &'static str,
    ) -> Span {
        Span {
            step,
            context,
            parent,
            began_ago: duration,
            ended_ago: Duration::ZERO,
            outcome,
            is_failure: false,
            message: None,
            conversation: None,
            platform: None,
            record: None,
            attempt: None,
            events: Vec::new(),
        }
    }
}
