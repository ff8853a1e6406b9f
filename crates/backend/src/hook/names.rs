//! Names of seams, of their calls and of kinds of calls. A fault of an unknown call would never be
//! met, and no test would notice.

use super::Op;
use crate::{
    audit, cache, changes, conversations, devices, discovery, groups, heads, installation, ledger,
    mailbox, messages, queue, revocations, timeline,
};

/// Names of one seam.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Names {
    pub(crate) seam: &'static str,
    pub(crate) calls: &'static [&'static str],
    /// Names in [`Op::kind`].
    pub(crate) kinds: &'static [&'static str],
}

const SEAMS: &[Names] = &[
    audit::NAMES,
    cache::NAMES,
    changes::NAMES,
    conversations::NAMES,
    devices::NAMES,
    discovery::hooked::NAMES,
    groups::NAMES,
    heads::NAMES,
    installation::NAMES,
    ledger::NAMES,
    mailbox::NAMES,
    messages::NAMES,
    queue::hooked::NAMES,
    revocations::NAMES,
    timeline::NAMES,
];

impl Names {
    /// Names of a seam. The compiler refuses unknown names in constants.
    ///
    /// # Panics
    /// No seam has this name.
    #[track_caller]
    pub(crate) const fn of(name: &str) -> &'static Names {
        let mut seams = SEAMS;
        while let [names, rest @ ..] = seams {
            if is_same(names.seam, name) {
                return names;
            }
            seams = rest;
        }
        panic!("no seam has this name");
    }

    /// # Panics
    /// No call of the seam has this name.
    #[track_caller]
    pub(crate) const fn call(&self, name: &str) -> &'static str {
        find(self.calls, name).expect("a call of the seam")
    }

    /// # Panics
    /// No call of the seam is of this kind.
    #[track_caller]
    pub(crate) const fn kind(&self, name: &str) -> &'static str {
        find(self.kinds, name).expect("a kind of calls of the seam")
    }

    /// Checks a call as it is made, since hand-written lists grow old.
    ///
    /// # Panics
    /// The call is on no list.
    #[track_caller]
    pub(crate) fn check(op: &Op) {
        let names = Names::of(op.seam);
        let is_kind = op.kind.is_empty() || find(names.kinds, op.kind).is_some();
        let is_listed = is_kind && find(names.calls, op.name).is_some();
        assert!(is_listed, "on no list: {op:?}");
    }
}

const fn find(mut names: &[&'static str], name: &str) -> Option<&'static str> {
    while let [first, rest @ ..] = names {
        if is_same(first, name) {
            return Some(first);
        }
        names = rest;
    }
    None
}

/// Compares strings; constants have no `==` for them.
const fn is_same(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.as_bytes(), other.as_bytes());
    while let ([a, one_rest @ ..], [b, other_rest @ ..]) = (one, other) {
        if *a != *b {
            return false;
        }
        (one, other) = (one_rest, other_rest);
    }
    one.is_empty() && other.is_empty()
}
