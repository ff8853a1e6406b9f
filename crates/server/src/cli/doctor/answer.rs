//! Self-report of a process, whatever its version.

use operator::doctor::rules::{Finding, UnknownProcess};
use serde::Deserialize;
use serde_json::Value;

/// A checkup as this program understands it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) role: String,
    pub(super) findings: Vec<Finding>,
}

impl Answer {
    /// Parses a checkup; `None`: this program does not know its form. A finding of an unknown check
    /// keeps the wording of the answer.
    pub(super) fn read(answer: Value) -> Option<Answer> {
        let role = answer.get("role")?.as_str()?.to_owned();
        let findings = answer.get("findings")?.as_array()?;
        let findings: Option<_> = findings.iter().map(finding).collect();
        Some(Answer {
            role,
            findings: findings?,
        })
    }
}

fn finding(value: &Value) -> Option<Finding> {
    if let Ok(finding) = Finding::deserialize(value) {
        return Some(finding);
    }
    let text = |key: &str| Some(value.get(key)?.as_str()?.to_owned());
    let stranger = UnknownProcess {
        check: text("check")?,
        verdict: value
            .get("verdict")
            .and_then(|v| Deserialize::deserialize(v).ok()),
        observation: text("observation")?,
    };
    Some(stranger.finding())
}

#[cfg(test)]
mod tests {
    use operator::doctor::Checkup;
    use operator::doctor::rules::{Check, CheckVerdict};
    use serde_json::json;

    use super::*;

    #[test]
    fn a_checkup_of_this_version_is_read_whole() {
        let checkup = Checkup {
            role: "boat".to_owned(),
            version: "1".to_owned(),
            verdict: CheckVerdict::Warning,
            findings: vec![
                Finding::ok(Check::Log, "it answers"),
                Finding::warning(Check::Space, "little", "make room"),
            ],
        };
        let json = serde_json::to_value(&checkup).expect("JSON");
        let answer = Answer::read(json).expect("a checkup");
        assert_eq!(answer.role, "boat");
        assert_eq!(answer.findings, checkup.findings);
    }

    #[test]
    fn a_check_of_another_version_hides_no_other() {
        let json = json!({
            "role": "boat",
            "findings": [
                { "check": "log", "verdict": "ok", "observation": "it answers", "advice": "" },
                { "check": "quorum", "verdict": "failure", "observation": "one of three", "advice": "start two" },
                { "check": "log", "verdict": "curious", "observation": "it hums", "advice": "" },
            ],
        });
        let findings = Answer::read(json).expect("a checkup").findings;
        let verdicts: Vec<_> = findings.iter().map(|one| one.verdict).collect();
        assert_eq!(
            verdicts,
            [
                CheckVerdict::Ok,
                CheckVerdict::Failure,
                CheckVerdict::Warning
            ]
        );
        assert!(findings[1].observation.contains("quorum"), "{findings:?}");
    }

    #[test]
    fn other_json_is_not_a_checkup() {
        for json in [
            json!(null),
            json!({}),
            json!({ "role": "boat", "findings": [7] }),
        ] {
            assert_eq!(Answer::read(json.clone()), None, "{json}");
        }
    }
}
