//! A finished part of a message's way.

use std::time::Duration;

use super::{SpanId, TraceContext};
use crate::{MessageId, Platform};

/// The parts of a message's way that are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// Boat: from the client's frame to its answer.
    Send = 1,
    /// Station: dedupe and the log.
    Accept = 2,
    /// Carrier: a position, and what is written down.
    Place = 3,
    /// Carrier: an attempt at one user's platform.
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

/// A step that is over. Of who and what it says nothing but ids of messages: no user, no body, no token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    pub step: Step,
    /// Its trace and its own id.
    pub context: TraceContext,
    /// What it follows from; `None` where the trace begins.
    pub parent: Option<SpanId>,
    /// How long ago it began, and ended: who takes it in has a clock.
    pub began: Duration,
    pub ended: Duration,
    /// How it ended, in one word.
    pub outcome: &'static str,
    /// That is not what was wanted.
    pub failed: bool,
    pub message: Option<MessageId>,
    /// What kind of conversation.
    pub conversation: Option<&'static str>,
    pub platform: Option<Platform>,
    /// Where its record stands in the log: partition and offset.
    pub record: Option<(u32, u64)>,
    /// 0 for the first.
    pub attempt: Option<u32>,
    /// What happened on the way, and how long ago.
    pub events: Vec<(&'static str, Duration)>,
}

impl Span {
    /// One that has just ended well.
    pub fn new(
        step: Step,
        context: TraceContext,
        parent: Option<SpanId>,
        took: Duration,
        outcome: &'static str,
    ) -> Span {
        Span {
            step,
            context,
            parent,
            began: took,
            ended: Duration::ZERO,
            outcome,
            failed: false,
            message: None,
            conversation: None,
            platform: None,
            record: None,
            attempt: None,
            events: Vec::new(),
        }
    }
}
