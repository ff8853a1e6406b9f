//! Pairs of users that talk to each other.

use std::path::Path;

use anyhow::{Context, Result};
use protocol::UserId;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) sender: UserId,
    pub(super) receiver: UserId,
}

/// Consecutive users in pairs: `first` sends to the user after it, and so on.
pub(super) fn consecutive(first: i64, pairs: u32) -> Result<Vec<Pair>> {
    let pairs = (0..i64::from(pairs)).map(|pair| {
        let user = |number| UserId::new(number).context("--first-user must be above zero");
        Ok(Pair {
            sender: user(first + pair * 2)?,
            receiver: user(first + pair * 2 + 1)?,
        })
    });
    pairs.collect()
}

/// Reads pairs from a file, one per line: `<sender> <receiver>`.
pub(super) fn read(file: &Path) -> Result<Vec<Pair>> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("reading the users of {}", file.display()))?;
    let lines = text.lines().enumerate().map(|(number, line)| {
        parse(line).with_context(|| {
            let (file, number) = (file.display(), number + 1);
            format!("{file}, line {number}: {line:?} is not two users: sender, space, receiver")
        })
    });
    lines.collect()
}

fn parse(line: &str) -> Option<Pair> {
    let (sender, receiver) = line.trim().split_once(' ')?;
    let user = |text: &str| UserId::new(text.trim().parse().ok()?).ok();
    Some(Pair {
        sender: user(sender)?,
        receiver: user(receiver)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(sender: i64, receiver: i64) -> Pair {
        let user = |number| UserId::new(number).expect("a user");
        Pair {
            sender: user(sender),
            receiver: user(receiver),
        }
    }

    #[test]
    fn a_line_names_sender_and_receiver() {
        assert_eq!(parse("7 9"), Some(pair(7, 9)));
        assert_eq!(parse("7"), None);
        assert_eq!(parse("7 0"), None);
        assert_eq!(parse("seven nine"), None);
    }

    #[test]
    fn consecutive_pairs_share_nobody() {
        let pairs = consecutive(10, 2).expect("users");
        assert_eq!(pairs, [pair(10, 11), pair(12, 13)]);
    }
}
