//! `packetboat drain`: empties a boat, lets it take clients again, or lists boats.

use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use comfy_table::{Table, presets};
use operator::admin::drain::{BoatProgress, BoatRow, DrainQuestion};
use operator::answer::List;
use tokio::time::{Instant, sleep};

use super::Output;
use super::desk::Desk;

/// Polling interval of `--wait`.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Time for which polls may fail.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat drain
  packetboat drain boat-2 --wait
  packetboat drain boat-2 --pace 200/s
  packetboat drain boat-2 --cancel")]
pub struct Drain {
    /// Boat to drain; without one, all boats are listed.
    boat: Option<String>,
    /// Let the boat take clients again.
    #[arg(long, requires = "boat", conflicts_with_all = ["pace", "wait"])]
    cancel: bool,
    /// Clients sent away per second at most; fewer if other boats have no room for more.
    #[arg(long, requires = "boat", value_name = "N/s", value_parser = pace)]
    pace: Option<NonZeroU32>,
    /// Wait until the boat is empty. Interrupting ends the wait, not the drain.
    #[arg(long, requires = "boat")]
    wait: bool,
    #[command(flatten)]
    desk: Desk,
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

impl Drain {
    pub(super) async fn run(self, _config: Option<&Path>) -> Result<ExitCode> {
        let Some(boat) = &self.boat else {
            let boats: List<BoatRow> = self.desk.get("/api/v1/boats", &()).await?;
            match self.output {
                Output::Json => println!("{}", serde_json::to_string(&boats)?),
                Output::Table => println!("{}", table(&boats.items)),
            }
            return Ok(ExitCode::SUCCESS);
        };
        let question = DrainQuestion {
            cancel: self.cancel,
            pace: self.pace,
        };
        let path = format!("/api/v1/boats/{boat}");
        let order = format!("{path}/drain");
        let mut progress: BoatProgress = self.desk.post(&order, &question).await?;
        let mut shown = None;
        while self.wait && progress.connections > 0 {
            if shown.as_ref() != Some(&progress) {
                eprintln!("{}", words(&progress));
            }
            let asked = self.ask_again(&path).await?;
            shown = Some(std::mem::replace(&mut progress, asked));
            if progress.state != "draining" {
                bail!(
                    "the drain was cancelled, or {boat} was started anew: {}",
                    words(&progress)
                );
            }
        }
        match self.output {
            Output::Json => println!("{}", serde_json::to_string(&progress)?),
            Output::Table => println!("{}", words(&progress)),
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Drain {
    /// Polls the progress a moment later. One failed answer does not end a wait of hours.
    async fn ask_again(&self, path: &str) -> Result<BoatProgress> {
        let end = Instant::now() + PATIENCE;
        loop {
            sleep(ASK_AGAIN).await;
            match self.desk.get(path, &()).await {
                Err(error) if Instant::now() < end => eprintln!("{error:#}; asking again"),
                answer => return answer,
            }
        }
    }
}

/// Parses `500` or `500/s`.
fn pace(text: &str) -> Result<NonZeroU32, String> {
    let number = text.strip_suffix("/s").unwrap_or(text);
    number
        .parse()
        .map_err(|_| format!("{text:?} is no number of clients a second, such as 500/s"))
}

fn words(progress: &BoatProgress) -> String {
    let BoatProgress {
        name,
        state,
        connections,
        waits,
    } = progress;
    let clients = match connections {
        0 => "no clients".to_owned(),
        1 => "1 client".to_owned(),
        many => format!("{many} clients"),
    };
    let waits = match waits {
        true => "; other boats have no room, and these wait",
        false => "",
    };
    format!("{name} is {state}, {clients} aboard{waits}")
}

fn table(boats: &[BoatRow]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["boat", "state", "clients", "seats", "zone", "url"]);
    for boat in boats {
        let number =
            |number: Option<usize>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        table.add_row([
            boat.name.clone(),
            boat.state.clone(),
            number(boat.connections),
            number(boat.seats),
            text(&boat.zone),
            text(&boat.url),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_is_a_number_a_second() {
        assert_eq!(pace("500").map(NonZeroU32::get), Ok(500));
        assert_eq!(pace("500/s").map(NonZeroU32::get), Ok(500));
        for wrong in ["0", "-1", "500/m", "fast", ""] {
            assert!(pace(wrong).is_err(), "{wrong:?}");
        }
    }
}
