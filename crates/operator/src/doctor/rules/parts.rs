//! Health of the parts outside the process, and completeness of topics and tables.

use std::time::Duration;

use super::{Check, Finding, Inspection, count, join_names, span};

/// Latency of one small question above which a part is in trouble.
const SLOW: Duration = Duration::from_millis(500);

/// Readiness for new work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readiness {
    pub is_ready: bool,
    /// Text of `/readyz`.
    pub word: String,
}

impl Readiness {
    pub fn finding(self) -> Finding {
        if self.is_ready {
            Finding::ok(Check::Ready, "accepting new work")
        } else {
            Finding::warning(
                Check::Ready,
                format!("not accepting new work: {}", self.word),
                "if it is starting or draining, wait. An unregistered boat keeps serving its \
                 clients, and registers when discovery is back",
            )
        }
    }
}

/// Latency of one small question to a seam.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub check: Check,
    pub duration: Inspection<Duration>,
}

impl Answer {
    pub fn finding(self) -> Finding {
        let Answer { check, duration } = self;
        match duration.seen() {
            Ok(duration) if duration < SLOW => {
                Finding::ok(check, format!("answers in {}", span(duration)))
            }
            Ok(duration) => Finding::warning(
                check,
                format!("slow: answers in {}", span(duration)),
                "check the load of the server behind it, and the network in between",
            ),
            Err(reason) => Finding::failure(check, reason, without(check)),
        }
    }
}

/// Effect of an unavailable part, and where to look.
const fn without(check: Check) -> &'static str {
    match check {
        Check::Log => {
            "sends are refused until the log is back: check Kafka (kafka.brokers) or the disk of embedded.data"
        }
        Check::Mailbox => {
            "sign-ins and deliveries of some users wait, nothing is lost: check Redis (redis.addresses)"
        }
        Check::Discovery => {
            "running processes carry on, but no new one can start: check etcd (etcd.endpoints)"
        }
        _ => {
            "messages are accepted but wait, and history is unavailable: check ScyllaDB \
             (scylla.contact_points) or the disk of embedded.data"
        }
    }
}

/// Members in discovery. Carriers and horns do not register: their work shows in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    pub boats: Inspection<Vec<String>>,
    pub stations: Inspection<Vec<String>>,
}

impl Members {
    pub fn finding(self) -> Finding {
        let (boats, stations) = match (self.boats.seen(), self.stations.seen()) {
            (Ok(boats), Ok(stations)) => (boats, stations),
            (Err(reason), _) | (_, Err(reason)) => {
                return Finding::failure(Check::Members, reason, without(Check::Discovery));
            }
        };
        let describe = |names: &[String], role: &str| {
            let names = names.iter().cloned();
            format!(
                "{} ({})",
                count(names.len() as u64, role),
                join_names(names)
            )
        };
        let (problem, effect) = match (boats.is_empty(), stations.is_empty()) {
            (false, false) => {
                let evidence = format!(
                    "{}, {}; carriers and horns do not register",
                    describe(&boats, "boat"),
                    describe(&stations, "station")
                );
                return Finding::ok(Check::Members, evidence);
            }
            (true, false) => ("no boat is registered", "clients cannot connect"),
            (false, true) => ("no station is registered", "nobody can sign in or send"),
            (true, true) => (
                "neither a boat nor a station is registered",
                "clients cannot connect or send",
            ),
        };
        let advice = format!("{effect}: start one, or check its log for why it does not register");
        Finding::failure(Check::Members, problem, advice)
    }
}

/// One deviation of the topics from the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deviation {
    pub text: String,
    /// Missing, or with another number of partitions: services refuse to start.
    pub is_grave: bool,
}

/// The topics of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topics(pub Inspection<Vec<Deviation>>);

impl Topics {
    pub fn finding(self) -> Finding {
        let deviations = match self.0.seen() {
            Ok(deviations) => deviations,
            Err(reason) => return Finding::failure(Check::Topics, reason, without(Check::Log)),
        };
        if deviations.is_empty() {
            return Finding::ok(Check::Topics, "topics match the settings");
        }
        let is_grave = deviations.iter().any(|deviation| deviation.is_grave);
        let evidence = join_names(deviations.into_iter().map(|deviation| deviation.text));
        let advice = "packetboat topics check lists all differences; packetboat topics apply \
                      creates what is missing. The number of partitions is fixed: set \
                      kafka.partitions to the actual number";
        if is_grave {
            Finding::failure(Check::Topics, evidence, advice)
        } else {
            Finding::warning(Check::Topics, evidence, advice)
        }
    }
}

/// State of the stores' tables: ok, or the error found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables(pub Inspection<()>);

impl Tables {
    pub fn finding(self) -> Finding {
        match self.0.seen() {
            Ok(()) => Finding::ok(Check::Schema, "tables are up to date"),
            Err(reason) => Finding::failure(
                Check::Schema,
                reason,
                "run packetboat schema apply if the tables are too old; otherwise check ScyllaDB",
            ),
        }
    }
}
