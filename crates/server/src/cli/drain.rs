//! `packetboat drain`: empties a boat, lets it take clients again, or lists boats.

use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use clap::Args;
use operator::answer::List;
use operator::boats::{BoatProgress, BoatRow, DrainQuestion};
use protocol::drain::BoatState;
use tokio::time::{Instant, sleep};

use super::Output;
use super::desk::{Desk, DeskError};
use super::table::TextTable;
use super::terminal::{errln, is_yes, may_ask, out, outln};

/// Polling interval of `--wait`.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Time for which polls may fail.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat drain
  packetboat drain boat-2 --wait
  packetboat drain boat-2 --pace 200/s
  packetboat drain boat-2 --cancel
  packetboat drain boat-1 --force")]
pub struct Drain {
    /// Boat to drain; without one, all boats are listed.
    boat: Option<String>,
    /// Cancel the drain.
    #[arg(long, requires = "boat", conflicts_with_all = ["pace", "wait"])]
    cancel: bool,
    /// Clients sent away per second at most; fewer if other boats have no room for more.
    #[arg(long, requires = "boat", value_name = "N/s", value_parser = pace)]
    pace: Option<NonZeroU32>,
    /// Drain the boat without asking, even if no other boat accepts clients.
    #[arg(long, requires = "boat", conflicts_with = "cancel")]
    force: bool,
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
                Output::Json => outln!("{}", serde_json::to_string(&boats)?)?,
                Output::Table => out!("{}\n", table(&boats.items))?,
            }
            return Ok(ExitCode::SUCCESS);
        };
        if !self.cancel && !self.force && !self.is_meant(boat).await? {
            errln!("Nothing was changed.");
            return Ok(ExitCode::FAILURE);
        }
        let question = DrainQuestion {
            cancel: self.cancel,
            pace: self.pace,
        };
        let path = format!("/api/v1/boats/{boat}");
        let order = format!("{path}/drain");
        let mut progress: BoatProgress = self.desk.post(&order, &question).await?;
        let mut last_shown = None;
        while self.wait && progress.connections > 0 {
            if last_shown.as_ref() != Some(&progress) {
                errln!("{}", words(&progress));
            }
            let new_progress = self.ask_again(&path).await?;
            last_shown = Some(std::mem::replace(&mut progress, new_progress));
            if progress.state != "draining" {
                bail!(
                    "the drain was cancelled, or {boat} was restarted: {}",
                    words(&progress)
                );
            }
        }
        match self.output {
            Output::Json => outln!("{}", serde_json::to_string(&progress)?)?,
            Output::Table => outln!("{}", words(&progress))?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl Drain {
    /// Whether other boats take clients, or if the operator wants the drain all the same.
    async fn is_meant(&self, boat: &str) -> Result<bool> {
        let boats: Result<List<BoatRow>> = self.desk.get("/api/v1/boats", &()).await;
        let objection = match boats {
            Ok(boats) => objection(boat, &boats.items),
            Err(error) if error.is::<DeskError>() => Some(format!(
                "Cannot tell whether another boat accepts clients ({error:#})."
            )),
            Err(error) => return Err(error),
        };
        let Some(objection) = objection else {
            return Ok(true);
        };
        if !may_ask() {
            bail!("nothing was changed. {objection} Use --force to drain {boat} anyway");
        }
        errln!("{objection}");
        is_yes(&format!("Drain {boat} anyway?"))
    }

    /// Polls the progress a moment later. One failed answer does not end a wait of hours.
    async fn ask_again(&self, path: &str) -> Result<BoatProgress> {
        let end = Instant::now() + ANSWER_TIMEOUT;
        loop {
            sleep(ASK_AGAIN).await;
            match self.desk.get(path, &()).await {
                Err(error) if Instant::now() < end => errln!("{error:#}; retrying"),
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
        .map_err(|_| format!("{text:?} is not a rate in clients per second, such as 500/s"))
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
    let waits = if *waits {
        "; waiting, as no other boat has room"
    } else {
        ""
    };
    format!("{name} is {state}, {clients} connected{waits}")
}

/// Says what a drain of the only boat that takes clients does; `None` if another one takes clients,
/// or if this one takes none already. A boat that is short of memory or files counts as one to wait
/// for, as for the drain itself.
fn objection(boat: &str, boats: &[BoatRow]) -> Option<String> {
    let own = boats.iter().find(|row| row.name == boat)?;
    let is_beside = |state: &str| (boats.iter()).any(|row| row.name != boat && row.state == state);
    let draining_name = BoatState::Draining.name();
    if own.state == draining_name || is_beside(BoatState::Open.name()) {
        return None;
    }
    let clients = match own.connections {
        None => "its clients".to_owned(),
        Some(1) => "its 1 client".to_owned(),
        Some(many) => format!("its {many} clients"),
    };
    let fate = if is_beside(BoatState::Tight.name()) {
        "stay connected until another boat has room"
    } else {
        "be disconnected at once with no other boat to go to"
    };
    Some(format!(
        "{boat} is the only boat that accepts clients: {clients} would {fate}, and nobody could \
         sign in until `packetboat drain {boat} --cancel`."
    ))
}

fn table(boats: &[BoatRow]) -> TextTable {
    let mut table = TextTable::new(&["boat", "state", "clients", "seats", "zone", "url"]);
    for boat in boats {
        let number =
            |number: Option<usize>| number.map_or_else(|| "-".to_owned(), |it| it.to_string());
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        table.row([
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

    fn boat(name: &str, state: BoatState, connections: Option<usize>) -> BoatRow {
        BoatRow {
            name: name.to_owned(),
            state: state.name().to_owned(),
            connections,
            seats: None,
            zone: None,
            url: None,
        }
    }

    #[test]
    fn a_drain_of_the_only_boat_is_objected_to() {
        let (open, draining_state) = (BoatState::Open, BoatState::Draining);
        let own = boat("boat-1", open, Some(12));
        let text = objection("boat-1", std::slice::from_ref(&own)).expect("an objection");
        assert!(
            text.contains("its 12 clients would be disconnected at once"),
            "{text}"
        );
        assert!(text.contains("packetboat drain boat-1 --cancel"), "{text}");
        for (other, objects) in [
            (boat("boat-2", open, Some(0)), false),
            (boat("boat-2", draining_state, Some(3)), true),
            // Nothing published: the drain does not count it.
            (boat("boat-2", BoatState::Unknown, None), true),
        ] {
            let boats = [own.clone(), other];
            assert_eq!(objection("boat-1", &boats).is_some(), objects, "{boats:?}");
        }
        let tight = [own, boat("boat-2", BoatState::Tight, Some(9))];
        let waits = objection("boat-1", &tight).expect("an objection");
        assert!(
            waits.contains("would stay connected until another boat has room"),
            "{waits}"
        );
        let empty_boats = [boat("boat-1", draining_state, Some(0))];
        assert_eq!(
            objection("boat-1", &empty_boats),
            None,
            "it takes nobody already"
        );
        assert_eq!(
            objection("boat-x", &tight),
            None,
            "the desk says that there is none"
        );
    }
}
