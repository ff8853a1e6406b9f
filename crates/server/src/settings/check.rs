//! Settings that are each fine and together are not. Makes no call and reads no file.

use std::time::Duration;

#[cfg(feature = "cluster")]
use backend::queue::NOTIFICATION_RETENTION;
use protocol::bounds::ENVELOPE_BYTES_MAX;
use protocol::settings::Problems;

use super::{Settings, bounds, span};
use crate::compose::StationProvers;

/// Least `audit.settle`: ids run ahead of a clock by a second, clocks differ, and another process
/// takes over after half of it, in which a store must answer.
const SETTLE_MIN: Duration = Duration::from_secs(20);

/// Time that the log may keep a record past its retention: it drops whole segments, which end
/// within a day.
#[cfg(feature = "cluster")]
const SEGMENTS: Duration = Duration::from_secs(2 * 86_400);

impl Settings {
    /// All problems, the first of each key.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = self.contradictions();
        for problem in bounds::problems(self).iter() {
            if problems.iter().all(|other| other.key != problem.key) {
                let (value, reason) = (&problem.value, &problem.reason);
                problems.refuse(&problem.key, value, reason, &problem.remedy);
            }
        }
        problems
    }

    fn contradictions(&self) -> Problems {
        let mut problems = Problems::default();
        self.log(&mut problems);
        problems.section("admin", self.admin.problems(&StationProvers));
        self.development_key(&mut problems);
        problems.section("identity", self.identity.problems());
        self.services(&mut problems);
        self.audit(&mut problems);
        self.embedded(&mut problems);
        problems.section("boat", self.boat.problems());
        problems.section("station", self.station.problems());
        problems.section("carrier", self.carrier.problems());
        problems.section("horn", self.horn.problems());
        self.together(&mut problems);
        #[cfg(feature = "cluster")]
        self.parts(&mut problems);
        problems
    }

    fn log(&self, problems: &mut Problems) {
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log.level) {
            let value = format!("{:?}", self.log.level);
            let reason = format!("not a valid log filter: {error}");
            problems.refuse(
                "log.level",
                value,
                &reason,
                "Such as info, or info,boat=debug",
            );
        }
        problems.section("log.otlp", self.log.otlp.problems());
    }

    fn development_key(&self, problems: &mut Problems) {
        if !self.station.auth.is_well_known() {
            return;
        }
        let addresses = [
            ("boat.websocket", Some(self.boat.websocket)),
            ("boat.tcp", Some(self.boat.tcp)),
            ("station.listen", self.station.listen),
        ];
        for (key, address) in addresses {
            let Some(address) = address.filter(|address| !address.ip().is_loopback()) else {
                continue;
            };
            problems.refuse(
                key,
                address,
                "reachable from other machines while station.auth still uses the well-known \
                 development key: anyone could sign in as any user",
                "Configure station.auth.issuers, or a secret of your own in key_file, or listen on 127.0.0.1",
            );
        }
    }

    /// Refuses ports that others reach without certificates: a service that asks for no proof
    /// believes every caller.
    fn services(&self, problems: &mut Problems) {
        if self.identity.is_on() || !self.identity.required {
            return;
        }
        for (key, listen) in [
            ("boat.listen", self.boat.listen),
            ("station.listen", self.station.listen),
        ] {
            let Some(address) = listen.filter(|address| !address.ip().is_loopback()) else {
                continue;
            };
            problems.refuse(
                key,
                address,
                "reachable from other machines, and callers are not authenticated",
                "Configure certificates in section identity (packetboat certs new creates some), \
                 or set identity.required = false behind a service mesh, or listen on 127.0.0.1",
            );
        }
    }

    fn audit(&self, problems: &mut Problems) {
        let audit = &self.audit;
        if audit.settle < SETTLE_MIN {
            let remedy = format!("At least {}", span::write(SETTLE_MIN));
            let value = span::write(audit.settle);
            problems.refuse(
                "audit.settle",
                value,
                "clocks may differ by more than this",
                &remedy,
            );
        }
    }

    fn embedded(&self, problems: &mut Problems) {
        let config = &self.embedded;
        let in_log = (config.queue.retention_unread).saturating_add(config.queue.retention);
        if config.ledger_retention < in_log {
            problems.refuse(
                "embedded.ledger_retention",
                span::write(config.ledger_retention),
                "a message may be in the log for longer (a dead letter for \
                 embedded.queue.retention_unread, then for embedded.queue.retention after its \
                 redrive), and the audit would report it missing",
                &format!("At least {}", span::write(in_log)),
            );
        }
        problems.section("embedded.mailbox", config.mailbox.problems());
        problems.section("embedded.timeline", config.timeline.problems());
    }

    /// Checks settings of one service against those of another.
    fn together(&self, problems: &mut Problems) {
        let (boat, station) = (&self.boat, &self.station);
        if station.publish_deadline >= boat.station_timeout {
            problems.refuse(
                "station.publish_deadline",
                span::write(station.publish_deadline),
                "a boat would give up before it learns the outcome of a send",
                "Less than boat.station_timeout",
            );
        }
        if station.store_deadline >= boat.station_timeout {
            problems.refuse(
                "station.store_deadline",
                span::write(station.store_deadline),
                "a boat would give up before it learns that a store does not answer",
                &format!(
                    "Less than boat.station_timeout, {}",
                    span::write(boat.station_timeout)
                ),
            );
        }
        self.pushes_pass(problems);
        let log = self.embedded.queue.record_bytes_max;
        self.records_fit("embedded.queue.record_bytes_max", log, problems);
    }

    /// Checks that boats take what carriers push, and that carriers wait for the outcome.
    fn pushes_pass(&self, problems: &mut Problems) {
        let (session, carrier) = (&self.boat.session, &self.carrier);
        let patience = carrier.ack_wait.saturating_add(carrier.ack_wait / 2);
        if session.ack_wait >= patience {
            problems.refuse(
                "boat.session.ack_wait",
                span::write(session.ack_wait),
                &format!(
                    "carriers wait for {}, 1.5 times carrier.ack_wait, and would take the boat of \
                     a slow client for a dead one",
                    span::write(patience)
                ),
                &format!("As carrier.ack_wait, {}", span::write(carrier.ack_wait)),
            );
        }
        let body = self.station.body_bytes_max;
        let frame = body.saturating_add(ENVELOPE_BYTES_MAX);
        if (session.frame_bytes_max as usize) < frame {
            let reason =
                format!("a body of station.body_bytes_max, {body}, would not fit into a frame");
            let remedy = format!("At least {frame}, 4 KiB more than that");
            let value = session.frame_bytes_max;
            problems.refuse("boat.session.frame_bytes_max", value, &reason, &remedy);
        }
    }

    /// Checks that the largest records fit into the log.
    fn records_fit(&self, key: &str, log: usize, problems: &mut Problems) {
        self.body_fits(key, log, problems);
        let retry = self.carrier.retry_bytes_max;
        if log < retry {
            let reason = format!("the log would refuse a retry for many users, {retry} bytes");
            problems.refuse(key, log, &reason, "At least that");
        }
    }

    fn body_fits(&self, key: &str, log: usize, problems: &mut Problems) {
        let body = self.station.body_bytes_max;
        if log < body.saturating_add(ENVELOPE_BYTES_MAX) {
            let reason = format!("a body of station.body_bytes_max, {body}, would not fit");
            problems.refuse(key, log, &reason, "At least 4 KiB more than that");
        }
    }

    #[cfg(feature = "cluster")]
    fn parts(&self, problems: &mut Problems) {
        problems.section("kafka", self.kafka.problems());
        problems.section("redis", self.redis.problems());
        problems.section("timeline", self.timeline.problems());
        problems.section("etcd", self.etcd.problems());
        problems.section("scylla", self.scylla.problems());
        // A day less: horn may be late.
        let age_max = NOTIFICATION_RETENTION - Duration::from_secs(86_400);
        if self.horn.age_max > age_max {
            let value = span::write(self.horn.age_max);
            let reason = "topic notification keeps records for three days, and horn may be late";
            let remedy = format!("At most {}", span::write(age_max));
            problems.refuse("horn.age_max", value, reason, &remedy);
        }
        let longest_delay = self.carrier.retry_delays.iter().max().copied();
        if longest_delay >= Some(self.kafka.retention.message) {
            let reason = "a retry would be removed before it is due";
            let remedy = "Each shorter than kafka.retention.message";
            problems.refuse("carrier.retry_delays", "", reason, remedy);
        }
        let in_log = self.kafka.retention.message.saturating_add(SEGMENTS);
        if self.scylla.ledger_retention < in_log {
            problems.refuse(
                "scylla.ledger_retention",
                span::write(self.scylla.ledger_retention),
                "a replayed record may be older than the record of who left a group",
                &format!(
                    "At least {}: kafka.retention.message and two days",
                    span::write(in_log)
                ),
            );
        }
        let log = self.kafka.record_bytes_max;
        self.records_fit("kafka.record_bytes_max", log, problems);
        self.links_hold(problems);
    }

    /// Refuses links in production that somebody in between could read or change.
    #[cfg(feature = "cluster")]
    fn links_hold(&self, problems: &mut Problems) {
        if !self.production {
            return;
        }
        for link in self.links() {
            if let Some(address) = link.open() {
                let reason =
                    format!("production = true, but traffic to {address} is not encrypted");
                let remedy = format!("Set it to the root certificates of {}", link.part);
                let key = format!("{}.tls.ca_file", link.section);
                problems.refuse(&key, "unset", &reason, &remedy);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use api::transport::MESSAGE_BYTES_MAX;

    use super::*;

    fn check_with(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.problems().to_string()
    }

    #[test]
    fn the_defaults_have_no_problem() {
        assert_eq!(check_with(|_| ()), "");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn groups_remember_who_left_for_longer_than_the_log_has_records() {
        let of_days = |days: u64| Duration::from_secs(days * 86_400);
        let with = |days| check_with(|settings| settings.scylla.ledger_retention = of_days(days));
        assert!(with(8).contains("scylla.ledger_retention"), "{}", with(8));
        assert_eq!(with(9), "");
    }

    #[test]
    fn a_station_that_others_reach_has_a_key_of_its_own() {
        let open = |s: &mut Settings| s.station.listen = Some(([0, 0, 0, 0], 9100).into());
        assert!(check_with(open).starts_with("station.listen is 0.0.0.0:9100"));
        let with_key = check_with(|s| {
            open(s);
            s.identity.required = false;
            s.station.auth.key_file = Some("/a/key".into());
        });
        assert_eq!(with_key, "");
    }

    // A station believed every caller that reached it.
    #[test]
    fn services_that_others_reach_prove_what_they_are() {
        let with = |required: bool, is_on: bool| {
            check_with(|s| {
                s.station.listen = Some(([0, 0, 0, 0], 9100).into());
                s.station.auth.key_file = Some("/a/key".into());
                s.identity.required = required;
                if is_on {
                    let folder = std::path::Path::new("/a");
                    s.identity = backend::tls::IdentityConfig::within(folder, "station");
                    s.identity.required = required;
                }
            })
        };
        let nothing = with(true, false);
        assert!(
            nothing.starts_with("station.listen is 0.0.0.0:9100"),
            "{nothing}"
        );
        for (required, is_on) in [(true, true), (false, true), (false, false)] {
            assert_eq!(with(required, is_on), "");
        }
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn in_production_parts_elsewhere_are_spoken_to_with_tls() {
        let listen_elsewhere = |s: &mut Settings| {
            s.kafka.brokers = vec!["kafka-1:9092".into()];
            s.redis.addresses = vec!["10.0.0.7:6379".into()];
            s.etcd.endpoints = vec!["http://etcd:2379".into()];
            s.scylla.contact_points = vec!["[2001:db8::1]:9042".into()];
            if cfg!(feature = "otlp") {
                s.log.otlp.endpoint = Some("http://collector:4317".into());
            }
        };
        assert_eq!(check_with(listen_elsewhere), "");
        assert_eq!(check_with(|s| s.production = true), "");
        let refusal = check_with(|s| {
            listen_elsewhere(s);
            s.production = true;
        });
        let sections = if cfg!(feature = "otlp") {
            &["kafka", "redis", "etcd", "scylla", "log.otlp"][..]
        } else {
            &["kafka", "redis", "etcd", "scylla"]
        };
        assert_eq!(refusal.lines().count(), sections.len(), "{refusal}");
        for (part, line) in sections.iter().zip(refusal.lines()) {
            assert!(line.starts_with(&format!("{part}.tls.ca_file")), "{line}");
        }
        let with_tls = check_with(|s| {
            listen_elsewhere(s);
            s.production = true;
            s.etcd.endpoints = vec!["https://etcd:2379".into()];
            s.scylla.tls.ca_file = Some("/ca".into());
            if cfg!(feature = "otlp") {
                s.log.otlp.endpoint = Some("https://collector:4317".into());
                s.log.otlp.tls.ca_file = Some("/ca".into());
            }
            for tls in [&mut s.kafka.tls, &mut s.redis.tls, &mut s.etcd.tls] {
                tls.ca_file = Some("/ca".into());
            }
        });
        assert_eq!(with_tls, "");
    }

    #[test]
    fn one_key_is_refused_once() {
        let refusal = check_with(|s| s.audit.settle = Duration::ZERO);
        assert_eq!(refusal.lines().count(), 1, "{refusal}");
        assert!(refusal.contains("At least 20s"), "{refusal}");
    }

    #[test]
    fn services_fit_each_other() {
        for (refusal, key) in [
            (
                check_with(|s| s.station.publish_deadline = s.boat.station_timeout),
                "station.publish_deadline is 5s",
            ),
            (
                check_with(|s| s.embedded.queue.record_bytes_max = 64 * 1024 - 1),
                "embedded.queue.record_bytes_max is 65535",
            ),
            (
                check_with(|s| s.log.level = "[[".into()),
                "log.level is \"[[\"",
            ),
        ] {
            assert!(refusal.starts_with(key), "{key}: {refusal}");
        }
    }

    /// Checks each refusal, and that the values next to it pass.
    fn refuses(change: impl Fn(&mut Settings, bool), refusal: &str) {
        let refusal_text = |is_over| check_with(|s| change(s, is_over));
        assert_eq!(refusal_text(false), "");
        assert_eq!(refusal_text(true), refusal);
    }

    #[test]
    fn boats_hear_what_stores_did_not_answer() {
        let refusal = "station.store_deadline is 5s: a boat would give up before it learns that a \
                       store does not answer. Less than boat.station_timeout, 5s";
        let deadline = |s: &mut Settings, is_over| {
            let just_before = Duration::from_millis(4_999);
            s.station.store_deadline = if is_over {
                s.boat.station_timeout
            } else {
                just_before
            };
        };
        refuses(deadline, refusal);
    }

    // A boat tells of a client that does not acknowledge once its own wait is over.
    #[test]
    fn carriers_wait_for_what_boats_tell_of_their_clients() {
        let refusal = "boat.session.ack_wait is 3s: carriers wait for 3s, 1.5 times \
                       carrier.ack_wait, and would take the boat of a slow client for a dead one. \
                       As carrier.ack_wait, 2s";
        let wait = |s: &mut Settings, is_over| {
            s.boat.session.ack_wait = Duration::from_millis(2_999 + u64::from(is_over));
        };
        refuses(wait, refusal);
    }

    #[test]
    fn the_largest_message_fits_into_a_frame() {
        let refusal = "boat.session.frame_bytes_max is 65535: a body of station.body_bytes_max, \
                       61440, would not fit into a frame. At least 65536, 4 KiB more than that";
        let bytes = |s: &mut Settings, is_over| {
            s.boat.session.frame_bytes_max = 65_536 - u32::from(is_over);
        };
        refuses(bytes, refusal);
    }

    // What no file can change must fit by itself.
    #[test]
    fn fixed_values_fit_each_other() {
        let settings = Settings::default();
        let (boat, station, carrier) = (&settings.boat, &settings.station, &settings.carrier);
        assert!(boat.batch_items_max <= station.batch_items_max);
        let limits = protocol::delivery::DeliveryLimits::default();
        assert!(limits.lane_window <= boat.session.push_window as usize);
        assert!(carrier.store_timeout <= carrier.list_margin / 2);
        assert_eq!(carrier.list_margin, station.list_margin);
        let rows = station.page_max * 256;
        assert!(station.page_bytes_max + rows <= MESSAGE_BYTES_MAX);
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn the_log_takes_what_stations_take() {
        let least = |bytes| {
            check_with(move |s| {
                s.kafka.record_bytes_max = bytes;
                s.carrier.retry_bytes_max = 64 * 1024;
            })
        };
        assert!(least(64 * 1024 - 1).starts_with("kafka.record_bytes_max is 65535"));
        assert_eq!(least(64 * 1024), "");
        let retry = check_with(|s| s.kafka.record_bytes_max = 64 * 1024);
        assert!(retry.contains("262144 bytes"), "{retry}");
    }
}
