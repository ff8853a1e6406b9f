//! Causes of death of letters, for grouping letters that died of the same cause.

use std::fmt;
use std::str::FromStr;

use protocol::ledger::DeadReason;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes of the error that distinguish causes.
const PATTERN_MAX: usize = 120;

/// A reason and its error text, without the parts that vary from letter to letter (numbers, quoted
/// text). Written `too-large: # bytes, at most # are taken`.
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, JsonSchema, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Cause(String);

impl Cause {
    pub fn of(reason: DeadReason, error: &str) -> Cause {
        let mut pattern = String::new();
        let mut rest = error.chars().peekable();
        while let Some(c) = rest.next() {
            if pattern.len() >= PATTERN_MAX {
                break;
            }
            match c {
                '0'..='9' => {
                    while rest
                        .next_if(|c| c.is_ascii_hexdigit() || *c == ',')
                        .is_some()
                    {}
                    pattern.push('#');
                }
                '"' | '`' => {
                    let _quoted = rest.by_ref().take_while(|end| *end != c).count();
                    pattern.push('…');
                }
                c => pattern.push(c),
            }
        }
        let pattern = pattern.trim();
        Cause(match pattern {
            "" => reason.name().to_owned(),
            pattern => format!("{}: {pattern}", reason.name()),
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Cause {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Cause, Self::Err> {
        Ok(Cause(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_of_single_letters_are_left_out_of_causes() {
        let of = |error: &str| Cause::of(DeadReason::TooLarge, error).to_string();
        let cause = "too-large: # bytes, at most # are taken";
        assert_eq!(of("5120 bytes, at most 4096 are taken"), cause);
        assert_eq!(of("70000 bytes, at most 4096 are taken"), cause);
        assert_eq!(of("no user \"ann\" here"), "too-large: no user … here");
        assert_eq!(of("  "), "too-large");
        assert_ne!(of("a"), of("b"));
        assert_ne!(
            Cause::of(DeadReason::Expired, "a"),
            Cause::of(DeadReason::Refused, "a")
        );
    }

    #[test]
    fn a_cause_has_an_end() {
        let long = "é".repeat(10_000);
        assert!(Cause::of(DeadReason::Undecodable, &long).to_string().len() < 200);
        let endless_quote = format!("\"{long}");
        assert_eq!(
            Cause::of(DeadReason::Undecodable, &endless_quote).to_string(),
            "undecodable: …"
        );
    }
}
