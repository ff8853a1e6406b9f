//! Ruling on a change's record at its place in the log, stable across redeliveries.

use super::{
    ChangePlacement, ChangeRequest, ChangeRules, ChangeSubject, ChangeVerdict, OrderedChange, judge,
};
use crate::group::{Group, Role, dissolved};
use crate::history::Version;
use crate::{Code, Refusal, Seq, Timestamp, UserId};

/// The user who requests a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requester {
    pub role: Option<Role>,
    /// Position behind which the user may read the conversation.
    pub reads_after: Seq,
    /// Refusal of a new text or reaction, while the user is muted.
    pub mute: Option<Refusal>,
}

impl Requester {
    /// Either user of a private conversation.
    pub const ONE_OF_TWO: Requester = Requester {
        role: None,
        reads_after: Seq::ZERO,
        mute: None,
    };

    /// `at`: time at which the request was accepted.
    ///
    /// # Errors
    /// `Forbidden` for a user who is not in the group, `NotFound` if the group does not exist.
    pub fn in_group(
        group: Option<&Group>,
        by: UserId,
        at: Timestamp,
    ) -> Result<Requester, Refusal> {
        let Some(group) = group else {
            return Err(Refusal::new(Code::NotFound, "there is no such group"));
        };
        if group.info.is_dissolved {
            return Err(dissolved());
        }
        match (group.members.get(by), group.readable_after(by)) {
            (Some(member), Some(reads_after)) => Ok(Requester {
                role: member.role,
                reads_after,
                mute: group.info.may_write(member, at).err(),
            }),
            (_, _) => Err(Refusal::new(Code::Forbidden, "you are not in this group")),
        }
    }
}

/// State of the stores at a record's turn, with the effects of earlier records in its batch.
#[derive(Clone, Debug)]
pub struct RulingFacts<'a> {
    pub placement: ChangePlacement,
    /// Row of an earlier record with the same send_id. Look it up if the record may be a repeat or
    /// [late](crate::conversation::Head::may_be_late), or is a letter.
    pub first: Option<(Version, OrderedChange)>,
    /// True for a redriven dead letter.
    pub is_letter: bool,
    /// Row that this record itself wrote. Look it up unless the placement is new, or there is a first
    /// one.
    pub own: Option<OrderedChange>,
    pub subject: Option<ChangeSubject<'a>>,
    /// The asker's rights in the conversation, or the refusal of the request.
    pub asker: Result<Requester, Refusal>,
}

/// Ruling on a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangeRuling {
    Place {
        change: OrderedChange,
        /// Record that made the change: write it under this version.
        made_by: Version,
        /// True for a change that the head does not know of: it moves.
        moves: bool,
    },
    /// No change, or none beyond an earlier one; with the refusal, if the rules forbid it.
    Nothing(Option<Refusal>),
    /// The record died here before, and is dead again.
    Died {
        change: OrderedChange,
        /// Whether the head does not know of it: it moves.
        moves: bool,
    },
}

/// Gives a change its place, or returns the one it has.
pub fn rule(
    record: Version,
    request: &ChangeRequest,
    facts: RulingFacts<'_>,
    rules: &ChangeRules,
) -> ChangeRuling {
    if let (None, Some(change)) = (&facts.first, &facts.own)
        && change.has_died()
    {
        return ChangeRuling::Died {
            change: change.clone(),
            moves: facts.placement == ChangePlacement::Interrupted,
        };
    }
    let Some(subject) = facts.subject else {
        return if facts.is_new() {
            ChangeRuling::Nothing(judge_request(request, &facts, rules).err())
        } else {
            ChangeRuling::Nothing(None)
        };
    };
    let repeat = |made_by, change, moves| ChangeRuling::Place {
        change,
        made_by,
        moves,
    };
    match (&facts.first, facts.placement) {
        // Redriven: the change has its place, but the effects after it are missing.
        (Some((made_by, change)), _) if facts.is_letter => repeat(*made_by, change.clone(), false),
        (Some(_), _) => ChangeRuling::Nothing(None),
        (None, placement @ (ChangePlacement::Redelivery | ChangePlacement::Interrupted)) => {
            match facts.own {
                Some(change) => {
                    let moves = placement == ChangePlacement::Interrupted;
                    repeat(record, change, moves)
                }
                None => ChangeRuling::Nothing(None),
            }
        }
        (None, ChangePlacement::New(rev)) => match judge_request(request, &facts, rules) {
            Ok(ChangeVerdict::Change) => ChangeRuling::Place {
                change: OrderedChange {
                    rev,
                    seq: subject.seq,
                    asked: request.clone(),
                },
                made_by: record,
                moves: true,
            },
            Ok(ChangeVerdict::Nothing) => ChangeRuling::Nothing(None),
            Err(refusal) => ChangeRuling::Nothing(Some(refusal)),
        },
    }
}

impl RulingFacts<'_> {
    fn is_new(&self) -> bool {
        self.first.is_none() && matches!(self.placement, ChangePlacement::New(_))
    }
}

fn judge_request(
    request: &ChangeRequest,
    facts: &RulingFacts<'_>,
    rules: &ChangeRules,
) -> Result<ChangeVerdict, Refusal> {
    let asker = facts.asker.clone()?;
    if let Some(mute) = asker.mute
        && request.change.is_written()
    {
        return Err(mute);
    }
    let subject = facts.subject;
    let subject = subject.filter(|subject| subject.seq > asker.reads_after);
    judge(request, subject, asker.role, rules)
}
