//! Resources that the machine grants this process.

use super::{Check, Finding};

/// Files open besides clients' connections: stores, services, log, reserve.
const OTHER_FILES: u64 = 1000;

const GIB: u64 = 1 << 30;
/// Free bytes below which the stores may stop at any time.
const SPACE_MIN: u64 = GIB;
/// Divisor of the total: less free space than this share will soon run out.
const SPACE_SHARE: u64 = 10;

/// Limit of open files of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenFiles {
    pub limit: u64,
    /// `boat.connections_max`, if the process is a boat.
    pub connections_max: Option<u64>,
}

impl OpenFiles {
    pub fn finding(self) -> Finding {
        let limit = self.limit;
        let evidence = format!("open file limit is {limit}");
        let Some(connections_max) = self.connections_max else {
            return if limit >= OTHER_FILES {
                Finding::ok(Check::OpenFiles, evidence)
            } else {
                Finding::warning(Check::OpenFiles, evidence, raise(OTHER_FILES))
            };
        };
        let room = limit.saturating_sub(OTHER_FILES);
        if room >= connections_max {
            let evidence =
                format!("{evidence}, enough for boat.connections_max = {connections_max}");
            return Finding::ok(Check::OpenFiles, evidence);
        }
        Finding::warning(
            Check::OpenFiles,
            format!(
                "{evidence}: new connections wait beyond about {room}, though boat.connections_max is {connections_max}"
            ),
            format!(
                "{}, or lower boat.connections_max so that clients are sent to another boat",
                raise(connections_max + OTHER_FILES)
            ),
        )
    }
}

fn raise(to: u64) -> String {
    format!("raise the limit to {to} (ulimit -n, LimitNOFILE of systemd)")
}

/// Connections of the busiest client addresses of a boat, against the limit on one address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddresses {
    /// Addresses with their connections, busiest first.
    pub busiest: Vec<(String, usize)>,
    /// Connections that one address may have.
    pub connections_max: usize,
}

impl ClientAddresses {
    pub fn finding(self) -> Finding {
        let check = Check::ClientAddresses;
        let max = self.connections_max;
        let Some((_, highest)) = self.busiest.first() else {
            return Finding::ok(
                check,
                format!("no clients connected; the limit is {max} connections per address"),
            );
        };
        let is_near = *highest >= max - max / 10;
        let busiest: Vec<_> = (self.busiest.iter())
            .map(|(address, connections)| format!("{address} with {connections}"))
            .collect();
        let evidence = format!(
            "busiest addresses: {}; the limit is {max} connections per address",
            busiest.join(", ")
        );
        if is_near {
            Finding::warning(
                check,
                evidence,
                "if many clients share an address, have the load balancer pass theirs on \
                 (boat.proxy), or raise boat.connections_per_address_max and \
                 boat.arrivals_per_address",
            )
        } else {
            Finding::ok(check, evidence)
        }
    }
}

/// Space for the data of the embedded stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Space {
    /// Bytes of the file system that holds a directory.
    Disk {
        path: String,
        free: u64,
        total: u64,
    },
    Memory,
    /// The file system could not be queried.
    Unknown {
        path: String,
        reason: String,
    },
}

impl Space {
    pub fn finding(self) -> Finding {
        let (path, free, total) = match self {
            Space::Disk { path, free, total } => (path, free, total),
            Space::Memory => {
                let evidence = "all data is in memory and is lost when this process stops";
                let advice = "start without --memory to keep messages";
                return Finding::warning(Check::Space, evidence, advice);
            }
            Space::Unknown { path, reason } => {
                let evidence = format!("free space of {path} is unknown: {reason}");
                return Finding::warning(Check::Space, evidence, "check the file system (df)");
            }
        };
        let evidence = format!("{} of {} free on the disk of {path}", gib(free), gib(total));
        let advice = "free up space or move embedded.data to a larger disk: no messages are accepted when \
             the disk is full";
        if free < SPACE_MIN {
            Finding::failure(Check::Space, evidence, advice)
        } else if free < total / SPACE_SHARE {
            Finding::warning(Check::Space, evidence, advice)
        } else {
            Finding::ok(Check::Space, evidence)
        }
    }
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / GIB as f64)
}
