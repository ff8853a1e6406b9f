//! Settings that do what they say, and should not.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Check, Finding, named};

/// What tokens are checked with, and who may bring one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// It is the development key, which everybody knows.
    pub is_well_known: bool,
    /// Where clients or services are served that come from other machines.
    pub open: Vec<SocketAddr>,
}

impl TokenKey {
    pub fn finding(self) -> Finding {
        let advice = "let station.auth.issuers say whose tokens are believed, or station.auth.key_file name a secret; the same for all stations";
        if !self.is_well_known {
            return Finding::ok(Check::TokenKey, "tokens are checked with keys of your own");
        }
        if self.open.is_empty() {
            let seen = "tokens are checked with the well-known development key; nobody from elsewhere is served";
            return Finding::warning(Check::TokenKey, seen, advice);
        }
        let open = named(self.open.iter().map(SocketAddr::to_string));
        let seen = format!(
            "anybody may sign in as anybody: the well-known development key is in use, and {open} can be reached \
             from elsewhere"
        );
        Finding::failure(Check::TokenKey, seen, advice)
    }
}

/// Proof between services, as the settings ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// There is a certificate to show.
    pub is_on: bool,
    /// Services without one are refused.
    pub required: bool,
    /// The address for services, where other machines reach it.
    pub open: Option<SocketAddr>,
}

impl ServiceIdentity {
    pub fn finding(self) -> Finding {
        let advice = "let section identity name certificates, with identity.required = true";
        match (self.is_on, self.required, self.open) {
            (true, true, _) => Finding::ok(Check::Identity, "services prove what they are"),
            (true, false, _) => Finding::warning(
                Check::Identity,
                "services without a certificate are believed, too, as while a fleet changes over",
                advice,
            ),
            (false, _, None) => Finding::ok(
                Check::Identity,
                "only this machine reaches the address for services",
            ),
            (false, _, Some(open)) => Finding::warning(
                Check::Identity,
                format!(
                    "whoever reaches {open} is believed to be a service, unless a mesh looks after it"
                ),
                advice,
            ),
        }
    }
}

/// Proof of a boat that its clients have signed in, as a station's settings ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTickets {
    /// There are keys, or boats are of the same process.
    pub is_on: bool,
    /// Calls without a ticket are refused.
    pub required: bool,
    /// Boats prove their names; a ticket is bound to its boat's.
    pub names_proved: bool,
    /// Address for boats, where other machines reach it.
    pub open: Option<SocketAddr>,
}

impl SessionTickets {
    pub fn finding(self) -> Finding {
        match (self.is_on, self.required, self.open) {
            (true, true, Some(open)) if !self.names_proved => Finding::warning(
                Check::Tickets,
                format!(
                    "tickets are bound to the names of boats, and whoever reaches {open} may claim any name"
                ),
                "let section identity name certificates, with identity.required = true",
            ),
            (true, true, _) => Finding::ok(
                Check::Tickets,
                "boats prove that the users they speak for have signed in",
            ),
            (true, false, Some(_)) => Finding::warning(
                Check::Tickets,
                "boats without tickets are believed, too, as while a fleet changes over",
                "set station.tickets.required = true when every boat is new and sessions of before have ended",
            ),
            (_, _, None) => Finding::ok(
                Check::Tickets,
                "only this machine reaches the address for boats",
            ),
            (false, _, Some(open)) => Finding::warning(
                Check::Tickets,
                format!("a boat that is stolen speaks for every user at {open}"),
                "let station.tickets.keys_file name a file that packetboat keys new made, the same for all stations",
            ),
        }
    }
}

/// The way from this process to a part, as the settings have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `Kafka`, `Redis`, `etcd`, `ScyllaDB` or `the collector`.
    pub part: &'static str,
    /// Section of the settings.
    pub section: &'static str,
    pub is_tls: bool,
    /// An address on another machine, if there is one.
    pub far: Option<String>,
}

impl Link {
    /// The address that is spoken to in the clear over a network.
    pub fn open(&self) -> Option<&str> {
        self.far.as_deref().filter(|_| !self.is_tls)
    }

    pub fn finding(self) -> Finding {
        let Link { part, section, .. } = self;
        match self.open() {
            None if self.is_tls => {
                Finding::ok(Check::Links, format!("{part} is spoken to with TLS"))
            }
            None => Finding::ok(Check::Links, format!("{part} is on this machine")),
            Some(address) => Finding::warning(
                Check::Links,
                format!(
                    "whoever is between can read and change all that {part} at {address} is told"
                ),
                format!(
                    "name the roots of its certificates in {section}.tls.ca_file; production = true insists on it"
                ),
            ),
        }
    }
}

/// Who may use the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminPort {
    pub listen: SocketAddr,
    /// How many operators sign in; 0: nobody has to.
    pub operators: usize,
    /// A proxy signs operators in, too.
    pub by_proxy: bool,
}

impl AdminPort {
    pub fn finding(self) -> Finding {
        let AdminPort {
            listen,
            operators,
            by_proxy,
        } = self;
        if operators > 0 || by_proxy {
            let by_proxy = if by_proxy {
                ", and a proxy signs in others"
            } else {
                ""
            };
            let seen = format!("operators sign in ({operators} are named{by_proxy})");
            return Finding::ok(Check::Operators, seen);
        }
        if listen.ip().is_loopback() {
            let seen = "nobody signs in, and only this machine reaches the admin port";
            return Finding::ok(Check::Operators, seen);
        }
        Finding::failure(
            Check::Operators,
            format!(
                "whoever reaches {listen} may read, redrive and discard: admin.operators names nobody"
            ),
            "name operators in admin.operators, or let admin.listen be on loopback; at least keep the port inside a \
             network of its own",
        )
    }
}

/// Time that the certificate of the desk still has, as the alarms of certificates count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeskCertificate {
    pub expires_in: Duration,
}

impl DeskCertificate {
    /// Renewed at two thirds of its life, a certificate of 30 days never comes below it.
    const ENOUGH: Duration = Duration::from_secs(7 * 86_400);
    const SHORT: Duration = Duration::from_secs(86_400);

    pub fn finding(self) -> Finding {
        let DeskCertificate { expires_in } = self;
        let hours = expires_in.as_secs() / 3600;
        let seen = match hours {
            0 if expires_in.is_zero() => "the desk's certificate is over".to_owned(),
            0..48 => format!("the desk's certificate ends in {hours} hours"),
            _ => format!("the desk's certificate ends in {} days", hours / 24),
        };
        let advice = "renew the files of admin.tls: they are read again within ten seconds; a line at WARN says why not";
        match expires_in {
            left if left >= DeskCertificate::ENOUGH => Finding::ok(Check::DeskCertificate, seen),
            left if left >= DeskCertificate::SHORT => {
                Finding::warning(Check::DeskCertificate, seen, advice)
            }
            _ => Finding::failure(Check::DeskCertificate, seen, advice),
        }
    }
}

/// Whether the audit goes on by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auditing {
    pub continuous: bool,
}

impl Auditing {
    pub fn finding(self) -> Finding {
        match self.continuous {
            true => Finding::ok(Check::Auditing, "the audit goes on by itself"),
            false => Finding::warning(
                Check::Auditing,
                "nobody looks whether messages are missing until somebody asks",
                "set audit.continuous = true wherever there is a desk, and watch audit_missing",
            ),
        }
    }
}

/// On how many machines the real parts keep what is accepted, as the settings want it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Brokers that hold each record.
    pub log: u32,
    /// Of these, how many have it before it counts as accepted.
    pub accepted: u32,
    /// Copies of a row in each datacenter; of several datacenters the fewest.
    pub rows: u8,
}

impl Copies {
    pub fn finding(self) -> Finding {
        let Copies {
            log,
            accepted,
            rows,
        } = self;
        let seen = format!(
            "{log} brokers hold a record, {accepted} of them before it is accepted; {rows} nodes hold a row"
        );
        if log >= 3 && accepted >= 2 && rows >= 3 {
            return Finding::ok(Check::Copies, seen);
        }
        Finding::warning(
            Check::Copies,
            format!("{seen}: whatever loses one machine may lose messages"),
            "in production: kafka.replication_factor 3, kafka.min_insync_replicas 2 (then topics apply), and \
             scylla.replication.factor 3",
        )
    }
}
