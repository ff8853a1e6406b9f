//! The W3C trace context, version 00.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

use super::Step;
use crate::delivery::Source;
use crate::keys::Topic;
use crate::message::Target;
use crate::pause::mix;

/// Id of a trace: 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceId(NonZeroU128);

/// Id of a span within its trace: 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpanId(NonZeroU64);

/// Trace of a step, and the span that the step follows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: SpanId,
    /// Whether the trace's spans are recorded; otherwise the context is only passed on.
    pub sampled: bool,
}

/// `00-<32 digits>-<16 digits>-<2 digits>`.
const LENGTH: usize = 55;

impl TraceContext {
    /// Starts a new, recorded trace from random numbers.
    pub fn root(high: u64, low: u64, span: u64) -> TraceContext {
        let trace = u128::from(high) << 64 | u128::from(low);
        TraceContext {
            trace: TraceId(NonZeroU128::new(trace).unwrap_or(NonZeroU128::MIN)),
            span: SpanId(NonZeroU64::new(span).unwrap_or(NonZeroU64::MIN)),
            sampled: true,
        }
    }

    /// Parses a `traceparent`. A version after 00 is read as far as 00 goes; invalid text yields
    /// `None`, for a trace is never a reason to refuse anything.
    pub fn parse(text: &str) -> Option<TraceContext> {
        let bytes = text.as_bytes();
        let (prefix, rest) = bytes.split_at_checked(LENGTH)?;
        let [v1, v0, b'-', ids @ ..] = prefix else {
            return None;
        };
        let version = hex(&[*v1, *v0])?;
        let is_valid_rest = match version {
            0x00 => rest.is_empty(),
            0xff => false,
            _ => rest.first().is_none_or(|&next| next == b'-'),
        };
        let (trace, span, flags) = (&ids[..32], &ids[33..49], &ids[50..]);
        if !is_valid_rest || ids[32] != b'-' || ids[49] != b'-' {
            return None;
        }
        Some(TraceContext {
            trace: TraceId(NonZeroU128::new(hex(trace)?)?),
            span: SpanId(NonZeroU64::new(hex(span)? as u64)?),
            sampled: hex(flags)? & 1 == 1,
        })
    }

    /// The context of a step that follows from this one. `keys` distinguish steps of one kind
    /// with the same parent. An unsampled context is passed on unchanged, as there is no span of
    /// ours to follow from.
    #[must_use]
    pub fn step(self, step: Step, keys: &[u64]) -> TraceContext {
        if !self.sampled {
            return self;
        }
        let (high, low) = ((self.trace.0.get() >> 64) as u64, self.trace.0.get() as u64);
        let seeds = [high, low, self.span.0.get(), step as u64];
        let id = seeds.into_iter().chain(keys.iter().copied()).fold(0, mix);
        TraceContext {
            span: SpanId(NonZeroU64::new(id).unwrap_or(NonZeroU64::MIN)),
            ..self
        }
    }

    /// The context of the delivery of a record to one target.
    #[must_use]
    pub fn delivery(self, source: Source, target: Option<Target>) -> TraceContext {
        let topic = match source.topic {
            Topic::Retry(tier) => u64::from(tier),
            Topic::Message
            | Topic::Dead
            | Topic::Notification
            | Topic::NotificationDead
            | Topic::Operation => 0,
        };
        let (user, platform) = target.map_or((0, 0), |target| {
            (target.user.get() as u64, target.platform.number())
        });
        let place = u64::from(source.partition) << 32 | u64::from(platform) << 8 | topic;
        self.step(Step::Deliver, &[place, source.offset, user])
    }
}

/// Lower-case digits only, as the standard has it; at most 32 of them.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value: u128, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

impl TraceId {
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_be_bytes()
    }
}

impl SpanId {
    pub fn to_bytes(self) -> [u8; 8] {
        self.0.get().to_be_bytes()
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TraceId({self})")
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SpanId({self})")
    }
}

/// Formats as `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(f, "00-{}-{}-{flags:02x}", self.trace, self.span)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::{Platform, UserId};

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn example() -> TraceContext {
        TraceContext::parse(EXAMPLE).expect("a context")
    }

    proptest! {
        #[test]
        fn contexts_survive_their_text(high: u64, low: u64, span: u64, sampled: bool) {
            let context = TraceContext { sampled, ..TraceContext::root(high, low, span) };
            let text = context.to_string();
            prop_assert_eq!(text.len(), LENGTH);
            prop_assert_eq!(TraceContext::parse(&text), Some(context));
        }

        #[test]
        fn no_text_is_a_panic(text: String, cut in 0..LENGTH, other: char) {
            let _ = TraceContext::parse(&text);
            prop_assert_eq!(TraceContext::parse(&EXAMPLE[..cut]), None);
            let broken = format!("{}{other}{}", &EXAMPLE[..cut], &EXAMPLE[cut + 1..]);
            if let Some(context) = TraceContext::parse(&broken) {
                prop_assert!(other == '-' || other.is_ascii_hexdigit());
                prop_assert_eq!(context.to_string().len(), LENGTH);
            }
        }

        #[test]
        fn a_later_version_is_read_as_far_as_it_is_known(version in 1..255u8, more in "(-.*)?") {
            let traceparent = format!("{version:02x}{}{more}", &EXAMPLE[2..]);
            prop_assert_eq!(TraceContext::parse(&traceparent), Some(example()));
        }

        #[test]
        fn steps_have_spans_of_their_own_and_the_same_ones_again(numbers: BTreeSet<u64>) {
            let steps = numbers.iter().map(|&number| example().step(Step::Push, &[number]));
            let spans: BTreeSet<SpanId> = steps.clone().map(|step| step.span).collect();
            prop_assert_eq!(spans.len(), numbers.len());
            let second_run: BTreeSet<SpanId> = steps.map(|step| step.span).collect();
            prop_assert_eq!(spans, second_run);
        }
    }

    #[test]
    fn invalid_traceparent_is_none() {
        for text in [
            "",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "0g-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7_01",
        ] {
            assert_eq!(TraceContext::parse(text), None, "{text}");
        }
    }

    #[test]
    fn only_the_sampled_flag_is_known() {
        let parse_flags = |flags| TraceContext::parse(&format!("{}{flags}", &EXAMPLE[..53]));
        let is_sampled = |flags| parse_flags(flags).map(|context| context.sampled);
        assert_eq!(is_sampled("00"), Some(false));
        assert_eq!(is_sampled("03"), Some(true));
        assert_eq!(is_sampled("fe"), Some(false));
    }

    #[test]
    fn unsampled_context_is_passed_on_unchanged() {
        let context = TraceContext {
            sampled: false,
            ..example()
        };
        assert_eq!(context.step(Step::Accept, &[1]), context);
        assert_ne!(
            example().step(Step::Accept, &[1]),
            example().step(Step::Place, &[1])
        );
    }

    #[test]
    fn deliveries_of_a_record_are_told_apart() {
        let source = |topic, offset| Source {
            topic,
            partition: 3,
            offset,
        };
        let target = |user, platform| {
            let user = UserId::new(user).expect("positive");
            Some(Target { user, platform })
        };
        let (first, retry) = (source(Topic::Message, 7), source(Topic::Retry(1), 7));
        let spans: BTreeSet<SpanId> = [
            example().delivery(first, None),
            example().delivery(first, target(1, Platform::Ios)),
            example().delivery(first, target(1, Platform::Web)),
            example().delivery(first, target(2, Platform::Ios)),
            example().delivery(retry, target(1, Platform::Ios)),
            example().delivery(source(Topic::Message, 8), target(1, Platform::Ios)),
        ]
        .map(|context| context.span)
        .into();
        assert_eq!(spans.len(), 6);
    }
}
