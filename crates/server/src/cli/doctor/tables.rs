//! Findings as tables for people: healthy parts get one line each, problems a line and a remedy.

use anyhow::Result;
use operator::doctor::rules::{CheckVerdict, Finding};

use super::Report;
use crate::cli::table::TextTable;
use crate::cli::terminal::{out, outln};

pub(super) fn print(report: &Report) -> Result<()> {
    for process in &report.processes {
        let role = process.role.as_deref();
        let role = role.map(|role| format!(" ({role})")).unwrap_or_default();
        outln!("{}{role}", process.admin)?;
        findings(&process.findings)?;
    }
    if !report.findings.is_empty() {
        outln!("all processes")?;
        findings(&report.findings)?;
    }
    let all = report
        .processes
        .iter()
        .flat_map(|process| &process.findings);
    let all: Vec<&Finding> = all.chain(&report.findings).collect();
    let count = |verdict| all.iter().filter(|one| one.verdict == verdict).count();
    let (warnings, failures) = (count(CheckVerdict::Warning), count(CheckVerdict::Failure));
    match (failures, warnings) {
        (0, 0) => outln!("ok: {} checks, no problems", all.len())?,
        (0, warnings) => outln!(
            "ok: no failures, {warnings} of {} checks with warnings",
            all.len()
        )?,
        (failures, warnings) => {
            outln!(
                "FAILED: {failures} of {} checks; {warnings} with warnings",
                all.len()
            )?;
        }
    }
    Ok(())
}

fn findings(findings: &[Finding]) -> Result<()> {
    let mut table = TextTable::new_wrapped();
    for finding in findings {
        let (verdict, check) = (word(finding.verdict), finding.check.name());
        table.row([verdict, check, &finding.observation]);
        if !finding.advice.is_empty() {
            table.row(["", "→", &finding.advice]);
        }
    }
    out!("{table}\n")?;
    Ok(())
}

/// Name of a verdict; problems stand out in capitals.
pub(super) const fn word(verdict: CheckVerdict) -> &'static str {
    match verdict {
        CheckVerdict::Ok => "ok",
        CheckVerdict::Warning => "WARNING",
        CheckVerdict::Failure => "FAILURE",
    }
}
