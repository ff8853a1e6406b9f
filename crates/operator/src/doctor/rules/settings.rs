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
        let advice = "configure station.auth.issuers, or a secret in station.auth.key_file; the \
                      same on all stations";
        if !self.is_well_known {
            return Finding::ok(Check::TokenKey, "tokens are verified with your own keys");
        }
        if self.open.is_empty() {
            let evidence = "tokens are verified with the well-known development key; only local clients are accepted";
            return Finding::warning(Check::TokenKey, evidence, advice);
        }
        let open = join_names(self.open.iter().map(SocketAddr::to_string));
        let evidence = format!(
            "anyone can sign in as any user: the well-known development key is in use, and {open} \
             is reachable from other machines"
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
        let advice = "configure certificates in section identity, with identity.required = true";
        match (self.is_on, self.is_required, self.open) {
            (true, true, _) => Finding::ok(Check::Identity, "services authenticate each other"),
            (true, false, _) => Finding::warning(
                Check::Identity,
                "services without certificates are still accepted (migration)",
                advice,
            ),
            (false, _, None) => Finding::ok(
                Check::Identity,
                "the service port is reachable from this machine only",
            ),
            (false, _, Some(open)) => Finding::warning(
                Check::Identity,
                format!(
                    "anyone who can reach {open} passes as a service, unless a service mesh protects it"
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
                    "tickets are bound to boat names, and anyone who can reach {open} can claim any name"
                ),
                "configure certificates in section identity, with identity.required = true",
            ),
            (true, true, _) => Finding::ok(
                Check::Tickets,
                "boats prove that their users have signed in",
            ),
            (true, false, Some(_)) => Finding::warning(
                Check::Tickets,
                "boats without tickets are still accepted (migration)",
                "set station.tickets.required = true once every boat is updated and older sessions have ended",
            ),
            (_, _, None) => Finding::ok(
                Check::Tickets,
                "the port for boats is reachable from this machine only",
            ),
            (false, _, Some(open)) => Finding::warning(
                Check::Tickets,
                format!("a compromised boat can act as any user at {open}"),
                "set station.tickets.keys_file to a file made by packetboat keys new, the same on all stations",
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
            None if self.is_tls => Finding::ok(Check::Links, format!("{part} uses TLS")),
            None => Finding::ok(Check::Links, format!("{part} is on this machine")),
            Some(address) => Finding::warning(
                Check::Links,
                format!("traffic to {part} at {address} is not encrypted"),
                format!(
                    "set {section}.tls.ca_file to the root certificates of the servers; production \
                     = true requires it"
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
                ", others sign in through a proxy"
            } else {
                ""
            };
            let evidence = format!("operators sign in ({operators} configured{by_proxy})");
            return Finding::ok(Check::Operators, evidence);
        }
        if listen.ip().is_loopback() {
            let evidence = "no sign-in, and the admin port is reachable from this machine only";
            return Finding::ok(Check::Operators, evidence);
        }
        Finding::failure(
            Check::Operators,
            format!(
                "anyone who can reach {listen} can read, redrive and discard: admin.operators is empty"
            ),
            "configure admin.operators, or set admin.listen to loopback; at the very least isolate \
             the port's network",
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
            0 if expires_in.is_zero() => "the certificate of the admin port has expired".to_owned(),
            0..48 => format!("the certificate of the admin port expires in {hours} hours"),
            _ => format!(
                "the certificate of the admin port expires in {} days",
                hours / 24
            ),
        };
        let advice = "renew the files of admin.tls; they are reloaded within ten seconds, or a \
                      WARN line says why not";
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
            Finding::ok(Check::Auditing, "the continuous audit is on")
        } else {
            Finding::warning(
                Check::Auditing,
                "the continuous audit is off: missing messages go unnoticed until someone runs an audit",
                "set audit.continuous = true on stations and carriers, and alert on audit_missing",
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
            "each record is on {log} brokers, on {in_sync} of them before it is accepted; each \
             row is on {rows} nodes"
        );
        if log >= 3 && in_sync >= 2 && rows >= 3 {
            return Finding::ok(Check::Copies, evidence);
        }
        Finding::warning(
            Check::Copies,
            format!("{evidence}: losing one machine may lose messages"),
            "in production set kafka.replication_factor = 3, kafka.min_insync_replicas = 2 (then \
             run packetboat topics apply) and scylla.replication.factor = 3",
        )
    }
}
