//! What becomes of the record of a change at its place in the log, also when it comes again.

use super::{Altered, Asked, ChangePlacement, Changed, Rules, Subject, Verdict, judge};
use crate::group::{Group, Role};
use crate::history::Version;
use crate::{Code, Placed, Refusal, Seq, UserId};

/// Who asks for a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    pub role: Option<Role>,
    /// From behind there on they know the conversation.
    pub reads_after: Seq,
}

impl Asker {
    /// One of the two of a private conversation.
    pub const ONE_OF_TWO: Asker = Asker {
        role: None,
        reads_after: Seq::ZERO,
    };

    /// # Errors
    /// `Forbidden` for who is not in the group, `NotFound` where there is none.
    pub fn in_group(group: Option<&Group>, by: UserId) -> Result<Asker, Refusal> {
        let Some(group) = group else {
            return Err(Refusal::new(Code::NotFound, "there is no such group"));
        };
        match group.readable_after(by) {
            Some(reads_after) => Ok(Asker {
                role: group.role(by),
                reads_after,
            }),
            None => Err(Refusal::new(Code::Forbidden, "you are not in this group")),
        }
    }
}

/// What stands when a record has its turn; records before it in its batch have taken effect.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    pub placement: ChangePlacement,
    /// The row of an earlier record under the same send_id. To be looked for where the record may be a repeat or
    /// [late](crate::conversation::Head::may_be_late), and where it is a letter.
    pub first: Option<(Version, Changed)>,
    /// It is a dead letter that was sent on its way again.
    pub is_letter: bool,
    /// The row that this record wrote itself; to be looked for where it is redelivered.
    pub own: Option<Changed>,
    /// The message that is to be changed, as it was sent.
    pub subject: Option<&'a Placed>,
    pub altered: &'a Altered,
    /// As what they are there; or why they may not ask.
    pub asker: Result<Asker, Refusal>,
}

/// What becomes of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    Place {
        changed: Changed,
        /// The record whose change it is: write it as that one's.
        made_by: Version,
        /// It is new: the head moves.
        moves: bool,
    },
    /// Nothing is changed, or not once more; why, where the rules say no.
    Nothing(Option<Refusal>),
}

/// Gives a change its place, or the one that it has.
pub fn rule(record: Version, asked: &Asked, known: Known<'_>, rules: &Rules) -> Ruling {
    let Some(subject) = known.subject else {
        return match known.is_new() {
            true => Ruling::Nothing(judged(record, asked, &known, rules).err()),
            false => Ruling::Nothing(None),
        };
    };
    let kept = |made_by, changed| Ruling::Place {
        changed,
        made_by,
        moves: false,
    };
    match (&known.first, known.placement) {
        // Sent on its way again: it has its place, and what follows was not done.
        (Some((made_by, changed)), _) if known.is_letter => kept(*made_by, changed.clone()),
        (Some(_), _) => Ruling::Nothing(None),
        (None, ChangePlacement::Redelivery) => match known.own {
            Some(changed) => kept(record, changed),
            None => Ruling::Nothing(None),
        },
        (None, ChangePlacement::New(rev)) => match judged(record, asked, &known, rules) {
            Ok(Verdict::Change) => Ruling::Place {
                changed: Changed {
                    rev,
                    seq: subject.position.seq,
                    asked: asked.clone(),
                },
                made_by: record,
                moves: true,
            },
            Ok(Verdict::Nothing) => Ruling::Nothing(None),
            Err(refusal) => Ruling::Nothing(Some(refusal)),
        },
    }
}

impl Known<'_> {
    fn is_new(&self) -> bool {
        self.first.is_none() && matches!(self.placement, ChangePlacement::New(_))
    }
}

fn judged(
    record: Version,
    asked: &Asked,
    known: &Known<'_>,
    rules: &Rules,
) -> Result<Verdict, Refusal> {
    let asker = known.asker.clone()?;
    let subject = known.subject;
    let subject = subject.filter(|placed| placed.position.seq > asker.reads_after);
    let subject = subject.map(|placed| Subject {
        from: placed.message.from,
        accepted_at: placed.message.accepted_at,
        content: &placed.message.content,
        altered: known.altered,
    });
    judge(record, asked, subject, asker.role, rules)
}
