//! Result of a bench, as a table or as JSON: medians of the rounds, and ratios to the floor.

use std::collections::BTreeMap;

use anyhow::Result;
use comfy_table::{Table, presets};
use serde::Serialize;
use server::cli::Output;
use server::{out, outln};

use super::dialect::Dialect;
use super::load::LoadResult;

#[derive(Debug, Default, Serialize)]
pub(super) struct Report {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) idle: Option<Idle>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) chat: Option<Chat>,
}

#[derive(Debug, Serialize)]
pub(super) struct Idle {
    pub(super) connections: u64,
    /// Resident bytes of the server per connection.
    pub(super) bytes_each: u64,
    pub(super) sign_in_cpu_us: f64,
}

#[derive(Debug, Default, Serialize)]
pub(super) struct Chat {
    pub(super) pairs: u64,
    pub(super) body_bytes: usize,
    pub(super) floor: Side,
    pub(super) packetboat: Side,
}

/// Rounds of one side.
#[derive(Debug, Default, Serialize)]
pub(super) struct Side {
    pub(super) rate: Vec<f64>,
    pub(super) cpu_us: Vec<f64>,
    /// `cpu_us` by service.
    pub(super) services_us: BTreeMap<String, Vec<f64>>,
    /// CPU time of processes beside it.
    pub(super) beside_us: BTreeMap<String, Vec<f64>>,
    /// Like `cpu_us`, at half the saturated rate or at the requested rate.
    pub(super) half_cpu_us: Vec<f64>,
    /// Milliseconds from due to arrived, at half the saturated rate.
    pub(super) half_p50_ms: Vec<f64>,
    pub(super) half_p99_ms: Vec<f64>,
    pub(super) accepted: u64,
    pub(super) lost: u64,
    pub(super) repeated: u64,
    pub(super) out_of_order: u64,
    pub(super) refused: u64,
    pub(super) closed: u64,
}

impl Side {
    pub(super) fn add(&mut self, full_load: LoadResult, half: LoadResult) {
        self.rate.push(full_load.rate);
        self.cpu_us.push(full_load.cpu_us());
        for (name, used) in full_load.services {
            self.services_us.entry(name).or_default().push(used);
        }
        for (name, used) in full_load.other_cpu {
            self.beside_us.entry(name).or_default().push(used);
        }
        self.half_cpu_us.push(half.cpu_us());
        self.half_p50_ms
            .push(half.latency.value_at_quantile(0.50) as f64 / 1000.0);
        self.half_p99_ms
            .push(half.latency.value_at_quantile(0.99) as f64 / 1000.0);
        for sum in [full_load.sum, half.sum] {
            self.accepted += sum.accepted_count;
            self.lost += sum.lost_count;
            self.repeated += sum.repeated_count;
            self.out_of_order += sum.out_of_order;
            self.refused += sum.refused_count;
            self.closed += sum.closed_count;
        }
    }

    fn is_clean(&self) -> bool {
        self.lost + self.repeated + self.out_of_order + self.refused + self.closed == 0
    }
}

impl Chat {
    pub(super) fn side(&mut self, dialect: &Dialect) -> &mut Side {
        match dialect {
            Dialect::Packetboat { .. } => &mut self.packetboat,
            Dialect::Floor => &mut self.floor,
        }
    }
}

impl Report {
    /// Whether every run kept the promise.
    pub(super) fn is_clean(&self) -> bool {
        self.chat
            .as_ref()
            .is_none_or(|chat| chat.packetboat.is_clean() && chat.floor.is_clean())
    }

    pub(super) fn print(&self, output: Output) -> Result<()> {
        match output {
            Output::Json => outln!("{}", serde_json::to_string(self)?)?,
            Output::Table => {
                if let Some(idle) = &self.idle {
                    out!(
                        "{} idle WebSocket connections: {:.2} KiB resident each, {:.0} µs of CPU a sign-in\n\n",
                        idle.connections,
                        idle.bytes_each as f64 / 1024.0,
                        idle.sign_in_cpu_us,
                    )?;
                }
                if let Some(chat) = &self.chat {
                    out!("{}\n", table(chat))?;
                }
            }
        }
        Ok(())
    }
}

/// Selects a figure of each round, or a sum over all of them.
type Rounds = fn(&Side) -> &Vec<f64>;
type Count = fn(&Side) -> u64;

fn table(chat: &Chat) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let title = format!(
        "private chat, {} pairs, {} bytes",
        chat.pairs, chat.body_bytes
    );
    table.set_header([title.as_str(), "floor", "packetboat", "ratio"]);
    let rows: [(&str, Rounds); 5] = [
        ("messages/s at saturation", |side| &side.rate),
        ("server CPU, µs a message", |side| &side.cpu_us),
        ("half load, server CPU, µs a message", |side| {
            &side.half_cpu_us
        }),
        ("half load, p50 ms from due", |side| &side.half_p50_ms),
        ("half load, p99 ms from due", |side| &side.half_p99_ms),
    ];
    for (name, of) in rows {
        let (floor, ours) = (median(of(&chat.floor)), median(of(&chat.packetboat)));
        table.add_row([
            name.to_owned(),
            format!("{floor:.2}"),
            format!("{ours:.2}"),
            format!("{:.2}", ours / floor),
        ]);
    }
    if chat.packetboat.services_us.len() > 1 {
        add_shares(&mut table, "of it", &chat.packetboat.services_us);
    }
    add_shares(&mut table, "CPU beside it:", &chat.packetboat.beside_us);
    let counts: [(&str, Count); 6] = [
        ("accepted", |side| side.accepted),
        ("lost", |side| side.lost),
        ("shown twice", |side| side.repeated),
        ("out of order", |side| side.out_of_order),
        ("refused", |side| side.refused),
        ("pairs that ended", |side| side.closed),
    ];
    for (name, of) in counts {
        table.add_row([
            name.to_owned(),
            of(&chat.floor).to_string(),
            of(&chat.packetboat).to_string(),
            String::new(),
        ]);
    }
    table
}

fn add_shares(table: &mut Table, prefix: &str, shares: &BTreeMap<String, Vec<f64>>) {
    for (name, rounds) in shares {
        let median = format!("{:.2}", median(rounds));
        table.add_row([&format!("{prefix} {name}, µs"), "", &median, ""]);
    }
}

/// The middle value, or the mean of the two middle ones.
pub(super) fn median(values: &[f64]) -> f64 {
    let mut sorted_values = values.to_vec();
    sorted_values.sort_by(f64::total_cmp);
    match sorted_values.len() {
        0 => f64::NAN,
        even if even % 2 == 0 => {
            f64::midpoint(sorted_values[even / 2 - 1], sorted_values[even / 2])
        }
        odd => sorted_values[odd / 2],
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn a_median_is_in_the_middle() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }
}
