//! Settings that take effect as written, and are dangerous.

use std::net::SocketAddr;
use std::time::Duration;

use super::{Check, Finding, join_names};

/// Keys that verify tokens, and who can present one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Whether the key is the development key, which everybody knows.
    pub is_well_known: bool,
    /// Listen addresses, for clients or services, that other machines can reach.
    pub open: Vec<SocketAddr>,
}

impl TokenKey {
    pub fn finding(self) -> Finding {
        let advice = "let station.auth.issuers say whose tokens are believed, or station.auth.key_file name a secret; the same for all stations";
        if !self.is_well_known {
            return Finding::ok(Check::TokenKey, "tokens are checked with keys of your own");
        }
        if self.open.is_empty() {
            let evidence = "tokens are checked with the well-known development key; nobody from elsewhere is served";
            return Finding::warning(Check::TokenKey, evidence, advice);
        }
        let open = join_names(self.open.iter().map(SocketAddr::to_string));
        let evidence = format!(
            "anybody may sign in as anybody: the well-known development key is in use, and {open} can be reached \
             from elsewhere"
        );
        Finding::failure(Check::TokenKey, evidence, advice)
    }
}

/// Mutual authentication of services, by the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceIdentity {
    /// Whether a certificate is configured.
    pub is_on: bool,
    /// Whether services without a certificate are refused.
    pub is_required: bool,
    /// Listen address for services, if other machines can reach it.
    pub open: Option<SocketAddr>,
}

impl ServiceIdentity {
    pub fn finding(self) -> Finding {
        let advice = "let section identity name certificates, with identity.required = true";
        match (self.is_on, self.is_required, self.open) {
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

/// Proof by a boat that its clients have signed in, by a station's settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionTickets {
    /// Whether ticket keys are configured, or boats run in the same process.
    pub is_on: bool,
    /// Whether calls without a ticket are refused.
    pub is_required: bool,
    /// Whether boats prove their names. A ticket is bound to its boat's name.
    pub names_proved: bool,
    /// Listen address for boats, if other machines can reach it.
    pub open: Option<SocketAddr>,
}

impl SessionTickets {
    pub fn finding(self) -> Finding {
        match (self.is_on, self.is_required, self.open) {
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

/// Connection from this process to a part, by the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// `Kafka`, `Redis`, `etcd`, `ScyllaDB` or `the collector`.
    pub part: &'static str,
    /// Section of the settings.
    pub section: &'static str,
    pub is_tls: bool,
    /// An address on another machine, if any.
    pub far: Option<String>,
}

impl Link {
    /// The remote address that is reached in cleartext, if any.
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

/// Access to the admin port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminPort {
    pub listen: SocketAddr,
    /// Number of operators who sign in; 0: nobody has to.
    pub operators: usize,
    /// Whether a proxy signs operators in, too.
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
            let evidence = format!("operators sign in ({operators} are named{by_proxy})");
            return Finding::ok(Check::Operators, evidence);
        }
        if listen.ip().is_loopback() {
            let evidence = "nobody signs in, and only this machine reaches the admin port";
            return Finding::ok(Check::Operators, evidence);
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

/// Remaining lifetime of the desk's certificate, counted as by the certificate alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeskCertificate {
    pub expires_in: Duration,
}

impl DeskCertificate {
    /// Remaining lifetime that is enough: a 30-day certificate renewed at two thirds of its life
    /// never falls below it.
    const AMPLE_LIFETIME: Duration = Duration::from_secs(7 * 86_400);
    const MIN_LIFETIME: Duration = Duration::from_secs(86_400);

    pub fn finding(self) -> Finding {
        let DeskCertificate { expires_in } = self;
        let hours = expires_in.as_secs() / 3600;
        let evidence = match hours {
            0 if expires_in.is_zero() => "the desk's certificate is over".to_owned(),
            0..48 => format!("the desk's certificate ends in {hours} hours"),
            _ => format!("the desk's certificate ends in {} days", hours / 24),
        };
        let advice = "renew the files of admin.tls: they are read again within ten seconds; a line at WARN says why not";
        match expires_in {
            lifetime_left if lifetime_left >= DeskCertificate::AMPLE_LIFETIME => {
                Finding::ok(Check::DeskCertificate, evidence)
            }
            lifetime_left if lifetime_left >= DeskCertificate::MIN_LIFETIME => {
                Finding::warning(Check::DeskCertificate, evidence, advice)
            }
            _ => Finding::failure(Check::DeskCertificate, evidence, advice),
        }
    }
}

/// State of the continuous audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuditState {
    pub continuous: bool,
}

impl AuditState {
    pub fn finding(self) -> Finding {
        if self.continuous {
            Finding::ok(Check::Auditing, "the audit goes on by itself")
        } else {
            Finding::warning(
                Check::Auditing,
                "nobody looks whether messages are missing until somebody asks",
                "set audit.continuous = true wherever there is a desk, and watch audit_missing",
            )
        }
    }
}

/// Replication of accepted data in the real parts, by the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copies {
    /// Brokers that hold each record.
    pub log: u32,
    /// Brokers that must hold a record before it counts as accepted.
    pub in_sync: u32,
    /// Replicas of a row in each datacenter; with several datacenters, the smallest number.
    pub rows: u8,
}

impl Copies {
    pub fn finding(self) -> Finding {
        let Copies { log, in_sync, rows } = self;
        let evidence = format!(
            "{log} brokers hold a record, {in_sync} of them before it is accepted; {rows} nodes hold a row"
        );
        if log >= 3 && in_sync >= 2 && rows >= 3 {
            return Finding::ok(Check::Copies, evidence);
        }
        Finding::warning(
            Check::Copies,
            format!("{evidence}: whatever loses one machine may lose messages"),
            "in production: kafka.replication_factor 3, kafka.min_insync_replicas 2 (then topics apply), and \
             scylla.replication.factor 3",
        )
    }
}
