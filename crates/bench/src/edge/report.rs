//! Figures of a run: one line each, with its peer of the same run beside it.

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use server::cli::Output;
use server::{errln, out, outln};

use super::Part;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    figures: Vec<Figure>,
    /// Sign-ins and messages that went wrong, and the first failure in words.
    failed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct Figure {
    part: Part,
    name: String,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<PeerFigure>,
    /// Goal: the most that `ratio` may be, or `value` without a peer.
    #[serde(skip_serializing_if = "Option::is_none")]
    goal: Option<f64>,
}

/// The same figure of another server, or of an earlier moment.
#[derive(Debug, Serialize)]
struct PeerFigure {
    name: &'static str,
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

impl Figure {
    pub(super) fn new(part: Part, name: impl Into<String>, value: f64) -> Figure {
        Figure {
            part,
            name: name.into(),
            value,
            peer: None,
            goal: None,
        }
    }

    pub(super) fn beside(mut self, name: &'static str, value: f64) -> Figure {
        let ratio = (value != 0.0).then(|| self.value / value);
        self.peer = Some(PeerFigure { name, value, ratio });
        self
    }

    pub(super) fn at_most(mut self, goal: f64) -> Figure {
        self.goal = Some(goal);
        self
    }

    fn cells(&self) -> [String; 6] {
        let peer = self.peer.as_ref();
        let text = |value: Option<f64>| value.map(number).unwrap_or_default();
        let peer_text = peer.map(|peer| format!("{} {}", number(peer.value), peer.name));
        [
            self.part.name().to_owned(),
            self.name.clone(),
            number(self.value),
            peer_text.unwrap_or_default(),
            text(peer.and_then(|peer| peer.ratio)),
            text(self.goal),
        ]
    }
}

/// Formats a value with three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

impl Report {
    pub(super) fn add(&mut self, figure: Figure) {
        let [part, name, value, peer, ratio, _] = figure.cells();
        errln!("{part}: {name} {value} {peer} {ratio}");
        self.figures.push(figure);
    }

    pub(super) fn fail(&mut self, count: u64, reason: Option<String>) {
        self.failed += count;
        if count > 0 && self.why.is_none() {
            self.why = reason;
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        self.failed == 0
    }

    pub(super) fn print(&self, output: Output) -> Result<()> {
        match output {
            Output::Json => outln!("{}", serde_json::to_string(self)?)?,
            Output::Table => {
                let mut table = Table::new();
                table.load_style(presets::ASCII_MARKDOWN);
                table.set_header(["", "", "packetboat", "beside it", "ratio", "goal"]);
                table.add_rows(self.figures.iter().map(Figure::cells));
                out!("{table}\n")?;
                outln!("failed: {}", self.failed)?;
                if let Some(reason) = &self.why {
                    outln!("the first: {reason}")?;
                }
            }
        }
        Ok(())
    }
}

/// The least value that this share of all does not exceed.
pub(super) fn quantile(values: &[u32], share: f64) -> u32 {
    let mut sorted_values = values.to_vec();
    sorted_values.sort_unstable();
    let rank = (share * sorted_values.len() as f64).ceil() as usize;
    sorted_values
        .get(rank.saturating_sub(1))
        .copied()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_was_there() {
        let values: Vec<u32> = (1..=1000).rev().collect();
        assert_eq!(quantile(&values, 0.5), 500);
        assert_eq!(quantile(&values, 0.99), 990);
        assert_eq!(quantile(&values, 1.0), 1000);
        assert_eq!(quantile(&[7], 0.01), 7);
        assert_eq!(quantile(&[], 0.5), 0);
    }

    #[test]
    fn a_figure_has_its_ratio_and_its_goal_beside_it() {
        let figure = Figure::new(Part::Connect, "µs", 90.0)
            .beside("bare", 60.0)
            .at_most(1.5);
        let cells = figure.cells();
        assert_eq!(cells[1..], ["µs", "90.0", "60.0 bare", "1.50", "1.50"]);
        let without_peer = Figure::new(Part::Idle, "bytes", 1234.4);
        assert_eq!(without_peer.cells()[2..], ["1234", "", "", ""]);
        let json = serde_json::to_value(&figure).expect("JSON");
        assert_eq!(json["peer"]["ratio"], 1.5);
        assert_eq!(json["part"], "connect");
    }

    #[test]
    fn the_first_failure_is_told() {
        let mut report = Report::default();
        report.fail(0, Some("nothing".to_owned()));
        assert!(report.is_clean());
        report.fail(2, Some("full".to_owned()));
        report.fail(1, Some("late".to_owned()));
        assert_eq!((report.failed, report.why.as_deref()), (3, Some("full")));
        assert!(!report.is_clean());
    }
}
