//! Findings as tables for people: healthy parts get one line each, problems a line and a remedy.

use comfy_table::{ContentArrangement, Table, presets};
use operator::doctor::{CheckVerdict, Finding};

use super::Report;

pub(super) fn print(report: &Report) {
    for process in &report.processes {
        let role = process.role.as_deref();
        let role = role.map(|role| format!(" ({role})")).unwrap_or_default();
        println!("{}{role}", process.admin);
        findings(&process.findings);
    }
    if !report.findings.is_empty() {
        println!("all together");
        findings(&report.findings);
    }
    let all = report
        .processes
        .iter()
        .flat_map(|process| &process.findings);
    let all: Vec<&Finding> = all.chain(&report.findings).collect();
    let count = |verdict| all.iter().filter(|one| one.verdict == verdict).count();
    let (warnings, failures) = (count(CheckVerdict::Warning), count(CheckVerdict::Failure));
    match (failures, warnings) {
        (0, 0) => println!("ok: {} checks, nothing to do", all.len()),
        (0, warnings) => println!(
            "ok: nothing failed, {warnings} of {} checks warn",
            all.len()
        ),
        (failures, warnings) => {
            println!(
                "FAILED: {failures} of {} checks, and {warnings} warn",
                all.len()
            );
        }
    }
}

fn findings(findings: &[Finding]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    for finding in findings {
        let (verdict, check) = (word(finding.verdict), finding.check.name());
        table.add_row([verdict, check, &finding.observation]);
        if !finding.advice.is_empty() {
            table.add_row(["", "→", &finding.advice]);
        }
    }
    println!("{table}");
}

/// Name of a verdict; problems stand out in capitals.
pub(super) const fn word(verdict: CheckVerdict) -> &'static str {
    match verdict {
        CheckVerdict::Ok => "ok",
        CheckVerdict::Warning => "WARNING",
        CheckVerdict::Failure => "FAILURE",
    }
}
