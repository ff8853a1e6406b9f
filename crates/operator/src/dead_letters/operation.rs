//! The log of operations, as answers show it. Its stored form is `crate::dead_letters::rules::OperationEntry`.

use std::num::NonZeroU32;

use protocol::UserId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LetterOutcome;
use super::rules::{
    OperationEntry, OperatorAction, OperatorWork, Pace, TaskClaim, TaskId, Version,
};
use crate::answer::{Time, id};

/// One line of the log of operations.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Operation {
    pub at: Time,
    /// Operator, or the process that works on tasks.
    pub by: String,
    pub action: Action,
}

/// Request of an operator, or work on one.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Action {
    /// An operator started a task.
    Begun {
        task: TaskId,
        work: OperatorWork,
        /// Number of its letters.
        letters: u64,
        pace: Pace,
        /// Selection of its letters, in words.
        selection: String,
        why: String,
    },
    /// Ids of letters of a task, in the order of the work.
    Chosen {
        task: TaskId,
        letters: Vec<String>,
    },
    /// Letters that a worker of an earlier version was about to process.
    Claimed {
        task: TaskId,
        claims: Vec<Claim>,
    },
    /// Outcomes of letters.
    Done {
        task: TaskId,
        outcomes: Vec<LetterOutcome>,
    },
    Paused {
        task: TaskId,
        why: String,
        /// Whether too many letters died again.
        automatic: bool,
    },
    /// Letters of a task died again.
    DiedAgain {
        task: TaskId,
        /// Ids of the new letters.
        letters: Vec<String>,
        /// Id of the letter before each of them; empty in entries of older versions.
        parents: Vec<String>,
    },
    Resumed {
        task: TaskId,
    },
    Cancelled {
        task: TaskId,
    },
    /// An operator read the body of a letter.
    Looked {
        letter: String,
        why: String,
    },
    /// An operator exported letters with their bodies.
    Exported {
        /// Id of the first.
        from: String,
        /// Number of letters.
        letters: u64,
        why: String,
    },
    /// An operator imported these letters.
    Imported {
        letters: Vec<String>,
        why: String,
    },
    /// An operator repaired stored data of a user.
    Repaired {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        user: UserId,
        /// Steps, in words.
        steps: Vec<String>,
        why: String,
    },
    /// An operator ended sessions of a user.
    SignedOut {
        #[serde(with = "id")]
        #[schemars(with = "String")]
        user: UserId,
        /// Platform, unless it was all.
        platform: Option<String>,
        /// Time before which issued tokens are refused, if they were revoked.
        revoked_before: Option<Time>,
        why: String,
        /// Result, which has an entry of its own; null in the entry that precedes the work.
        outcome: Option<String>,
    },
    /// An operator drained a boat, or ended its drain.
    Drained {
        boat: String,
        /// Whether the boat takes clients again.
        cancel: bool,
        /// Clients per second, unless it was up to the boat's settings.
        pace: Option<NonZeroU32>,
    },
    /// An operator edited a letter.
    Edited {
        letter: String,
        /// Version that was edited.
        base: Version,
        /// Version after the edit.
        version: Version,
        position: Position,
        /// Names of the changed fields.
        fields: Vec<String>,
        why: String,
    },
    /// The log dropped these letters.
    Forgotten {
        letters: Vec<String>,
    },
}

/// A letter that a worker of an earlier version was about to process.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Claim {
    pub letter: String,
    /// Time before the record was published.
    pub at: Time,
    /// Place behind which its record lies, if it gets one.
    pub position: Option<Position>,
    /// Version of the letter's edit, if it has one.
    pub version: Option<Version>,
}

/// A place in the log.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[schemars(rename = "LogPosition")]
pub struct Position {
    pub topic: String,
    pub partition: u32,
    pub offset: u64,
}

impl From<OperationEntry> for Operation {
    fn from(entry: OperationEntry) -> Operation {
        Operation {
            at: entry.at.into(),
            by: entry.by,
            action: entry.act.into(),
        }
    }
}

impl From<TaskClaim> for Claim {
    fn from(claim: TaskClaim) -> Claim {
        Claim {
            letter: claim.letter,
            at: claim.at.into(),
            position: claim.to.map(|to| Position {
                topic: to.topic.name().to_owned(),
                partition: to.partition,
                offset: to.from,
            }),
            version: claim.version,
        }
    }
}

impl From<OperatorAction> for Action {
    fn from(action: OperatorAction) -> Action {
        match action {
            OperatorAction::Begun(begun) => Action::Begun {
                task: begun.task,
                work: begun.work,
                letters: begun.letters,
                pace: begun.pace,
                selection: begun.about,
                why: begun.why,
            },
            OperatorAction::Chosen { task, letters } => Action::Chosen { task, letters },
            OperatorAction::Claimed { task, claims } => Action::Claimed {
                task,
                claims: claims.into_iter().map(Claim::from).collect(),
            },
            OperatorAction::Done { task, outcomes } => Action::Done {
                task,
                outcomes: outcomes
                    .into_iter()
                    .map(|(id, outcome)| LetterOutcome { id, outcome })
                    .collect(),
            },
            OperatorAction::Paused {
                task,
                why: reason,
                by_itself,
            } => Action::Paused {
                task,
                why: reason,
                automatic: by_itself,
            },
            OperatorAction::DiedAgain {
                task,
                letters,
                parents,
            } => Action::DiedAgain {
                task,
                letters,
                parents,
            },
            OperatorAction::Resumed { task } => Action::Resumed { task },
            OperatorAction::Cancelled { task } => Action::Cancelled { task },
            OperatorAction::Looked {
                letter,
                why: reason,
            } => Action::Looked {
                letter,
                why: reason,
            },
            OperatorAction::Exported {
                from,
                letters,
                why: reason,
            } => Action::Exported {
                from,
                letters,
                why: reason,
            },
            OperatorAction::Imported {
                letters,
                why: reason,
            } => Action::Imported {
                letters,
                why: reason,
            },
            OperatorAction::Repaired {
                user,
                what,
                why: reason,
            } => Action::Repaired {
                user,
                steps: what,
                why: reason,
            },
            OperatorAction::SignedOut {
                user,
                platform,
                revoked_before,
                why: reason,
                outcome,
            } => Action::SignedOut {
                user,
                platform: platform.map(|platform| platform.name().to_owned()),
                revoked_before: revoked_before.map(Time::from),
                why: reason,
                outcome,
            },
            OperatorAction::Drained { boat, cancel, pace } => Action::Drained {
                boat: boat.to_string(),
                cancel,
                pace,
            },
            OperatorAction::Edited(edited) => Action::Edited {
                letter: edited.letter,
                base: edited.base,
                version: edited.version,
                position: Position {
                    topic: edited.at.topic.name().to_owned(),
                    partition: edited.at.partition,
                    offset: edited.at.offset,
                },
                fields: edited.fields,
                why: edited.why,
            },
            OperatorAction::Forgotten { letters } => Action::Forgotten { letters },
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::keys::Topic;
    use protocol::{BoatId, Platform, Timestamp};
    use serde_json::{Value, json};

    use super::*;
    use crate::dead_letters::rules::{
        EditPosition, EditedLetter, LetterPosition, StartedTask, TaskOutcome,
    };

    fn user() -> UserId {
        UserId::new(i64::MAX).expect("positive")
    }

    fn task() -> TaskId {
        "night".parse().expect("a name")
    }

    fn letters() -> Vec<String> {
        vec!["message-0-1".to_owned()]
    }

    /// One action of each kind.
    fn actions() -> Vec<OperatorAction> {
        let (task, letter, reason) = (task(), "message-0-1".to_owned(), "a test".to_owned());
        let (letters, at) = (letters(), Timestamp::from_millis(7));
        vec![
            OperatorAction::Begun(StartedTask {
                task: task.clone(),
                work: OperatorWork::Redrive,
                letters: 1,
                pace: Pace::default(),
                about: letter.clone(),
                why: reason.clone(),
                batch: None,
            }),
            OperatorAction::Chosen {
                task: task.clone(),
                letters: letters.clone(),
            },
            OperatorAction::Claimed {
                task: task.clone(),
                claims: vec![TaskClaim {
                    letter: letter.clone(),
                    at,
                    to: Some(LetterPosition {
                        topic: Topic::Retry(1),
                        partition: 2,
                        from: 3,
                    }),
                    version: Some(Version::of(b"a")),
                }],
            },
            OperatorAction::Done {
                task: task.clone(),
                outcomes: vec![(letter.clone(), TaskOutcome::ToRetry)],
            },
            OperatorAction::Paused {
                task: task.clone(),
                why: reason.clone(),
                by_itself: true,
            },
            OperatorAction::DiedAgain {
                task: task.clone(),
                letters: letters.clone(),
                parents: letters.clone(),
            },
            OperatorAction::Resumed { task: task.clone() },
            OperatorAction::Cancelled { task },
            OperatorAction::Looked {
                letter: letter.clone(),
                why: reason.clone(),
            },
            OperatorAction::Exported {
                from: letter.clone(),
                letters: 1,
                why: reason.clone(),
            },
            OperatorAction::Imported {
                letters: letters.clone(),
                why: reason.clone(),
            },
            OperatorAction::Repaired {
                user: user(),
                what: vec!["a step".to_owned()],
                why: reason.clone(),
            },
            OperatorAction::SignedOut {
                user: user(),
                platform: Some(Platform::Ios),
                revoked_before: Some(at),
                why: reason.clone(),
                outcome: None,
            },
            OperatorAction::Drained {
                boat: BoatId::new("boat-1").expect("a name"),
                cancel: false,
                pace: NonZeroU32::new(9),
            },
            OperatorAction::Edited(EditedLetter {
                letter,
                base: Version::of(b"a"),
                version: Version::of(b"b"),
                at: EditPosition {
                    topic: Topic::Dead,
                    partition: 0,
                    offset: 5,
                },
                fields: vec!["message.data".to_owned()],
                why: reason,
            }),
            OperatorAction::Forgotten { letters },
        ]
    }

    fn to_json(act: OperatorAction) -> Value {
        let at = Timestamp::from_millis(7);
        let by = "ann".to_owned();
        let operation = Operation::from(OperationEntry { at, by, act });
        let json = serde_json::to_value(&operation).expect("JSON");
        let back: Operation = serde_json::from_value(json.clone()).expect("back");
        assert_eq!(back, operation);
        json
    }

    #[test]
    fn an_action_says_its_type_and_comes_back() {
        let types: Vec<_> = actions()
            .into_iter()
            .map(|action| to_json(action)["action"]["type"].clone())
            .collect();
        let expected = [
            "begun",
            "chosen",
            "claimed",
            "done",
            "paused",
            "died_again",
            "resumed",
            "cancelled",
            "looked",
            "exported",
            "imported",
            "repaired",
            "signed_out",
            "drained",
            "edited",
            "forgotten",
        ];
        assert_eq!(types, expected.map(Value::from));
    }

    #[test]
    fn times_and_ids_have_the_form_of_all_answers() {
        let signed_out = to_json(actions().remove(12));
        let time = json!({ "utc": "1970-01-01T00:00:00.007Z", "ms": 7 });
        assert_eq!(signed_out["at"], time);
        assert_eq!(signed_out["action"]["revoked_before"], time);
        assert_eq!(signed_out["action"]["user"], "9223372036854775807");
        assert_eq!(signed_out["action"]["platform"], "ios");
        let claims = to_json(actions().remove(2));
        let position = json!({ "topic": "retry-1", "partition": 2, "offset": 3 });
        assert_eq!(claims["action"]["claims"][0]["position"], position);
    }
}
