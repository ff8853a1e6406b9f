//! Settings of librdkafka: our defaults, the operator's overrides, and those that must not change.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;
use secrecy::ExposeSecret;

use super::SEAM;
use super::config::{GroupProtocol, KafkaConfig};
use super::sasl::read_token;
use crate::credentials::CredentialSnapshot;
use crate::{Error, Result};

/// Properties that the log's guarantees depend on, and those with a setting of their own.
pub(super) const FIXED_PROPERTIES: &[&str] = &[
    "acks",
    "auto.offset.reset",
    "bootstrap.servers",
    "client.id",
    "client.rack",
    "delivery.timeout.ms",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "enable.gapless.guarantee",
    "enable.idempotence",
    "enable.partition.eof",
    "group.id",
    "group.protocol",
    "heartbeat.interval.ms",
    "isolation.level",
    "log.queue",
    "max.poll.interval.ms",
    "message.max.bytes",
    "message.timeout.ms",
    "metadata.broker.list",
    "partition.assignment.strategy",
    "queue.buffering.max.kbytes",
    "queue.buffering.max.messages",
    "request.required.acks",
    "session.timeout.ms",
    "transactional.id",
];

/// Key of the password among the credentials.
pub(super) const PASSWORD: &str = "sasl.password_file";

/// Setting that stands for a property, if there is one.
pub(super) fn dedicated_setting(property: &str) -> Option<&'static str> {
    Some(match property.to_ascii_lowercase().as_str() {
        "security.protocol" => "kafka.tls and kafka.sasl",
        "sasl.mechanism" | "sasl.mechanisms" => "kafka.sasl.mechanism",
        "sasl.username" => "kafka.sasl.username",
        "sasl.password" => "kafka.sasl.password_file",
        "ssl.ca.location" | "ssl.ca.pem" | "enable.ssl.certificate.verification" => {
            "kafka.tls.ca_file"
        }
        "ssl.certificate.location" | "ssl.certificate.pem" => "kafka.tls.cert_file",
        "ssl.key.location" | "ssl.key.pem" => "kafka.tls.key_file",
        _ => return None,
    })
}

/// Wire overhead of a batch beyond its records.
const BATCH_OVERHEAD: usize = 4 << 10;

/// Interval between heartbeats of a member, by which it also learns that partitions are to move.
const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(500);

/// Time for which a broker holds a fetch that finds nothing: a partition that was just assigned
/// waits this long at most.
const FETCH_WAIT: Duration = Duration::from_millis(100);

/// Bytes of records that one member fetches ahead.
const PREFETCH_BYTES: usize = 16 << 20;

/// Bytes of the largest batch, at the client and at the brokers.
pub(super) fn batch_bytes_max(config: &KafkaConfig) -> usize {
    config.record_bytes_max + BATCH_OVERHEAD
}

/// Settings of any client. `Conflict` for a property that may not be set.
pub(super) fn client(config: &KafkaConfig) -> Result<ClientConfig> {
    config.check()?;
    let mut settings = ClientConfig::new();
    settings
        .set("bootstrap.servers", config.brokers.join(","))
        .set("client.id", &config.client_id)
        .set("socket.keepalive.enable", "true")
        .set("socket.connection.setup.timeout.ms", "5000")
        .set("reconnect.backoff.max.ms", "2000")
        .set("enable.metrics.push", "false")
        // At more verbose levels librdkafka logs every connection.
        .set_log_level(RDKafkaLogLevel::Warning);
    if let Some(rack) = &config.rack {
        settings.set("client.rack", rack);
    }
    for (name, value) in &config.properties {
        settings.set(changeable(name)?, value);
    }
    let credentials = config.credentials()?;
    let snapshot = credentials.current();
    for name in config.property_files.keys() {
        if let Some(secret) = snapshot.secret(name) {
            settings.set(changeable(name)?, secret.expose_secret());
        }
    }
    secure(&mut settings, config, &snapshot)?;
    Ok(settings)
}

/// Configures TLS and sign-in. Certificates are passed by content, so that a half-finished renewal
/// changes nothing.
fn secure(
    settings: &mut ClientConfig,
    config: &KafkaConfig,
    snapshot: &CredentialSnapshot,
) -> Result<()> {
    let protocol = match (config.tls.is_on(), config.sasl.is_on()) {
        (false, false) => return Ok(()),
        (true, false) => "ssl",
        (false, true) => "sasl_plaintext",
        (true, true) => "sasl_ssl",
    };
    settings.set("security.protocol", protocol);
    if let Some(tls) = &snapshot.tls {
        settings.set("ssl.ca.pem", text(tls.ca_pem())?);
        if let Some((cert, key)) = tls.own_pem() {
            settings.set("ssl.certificate.pem", text(cert)?);
            settings.set("ssl.key.pem", text(key)?);
        }
    }
    let sasl = &config.sasl;
    if let Some(mechanism) = sasl.mechanism {
        settings.set("sasl.mechanism", mechanism.name());
    }
    if let (Some(username), Some(secret)) = (&sasl.username, snapshot.secret(PASSWORD)) {
        settings.set("sasl.username", username);
        settings.set("sasl.password", secret.expose_secret());
    }
    if let Some(file) = sasl.token_file.as_deref().filter(|_| sasl.by_token()) {
        // Read the token once now: librdkafka asks for its first one when no error can be returned
        // any more.
        read_token(file).map_err(|error| Error::conflict(SEAM, error.to_string()))?;
    }
    Ok(())
}

fn text(pem: &[u8]) -> Result<&str> {
    std::str::from_utf8(pem)
        .map_err(|_| Error::conflict(SEAM, "a file of kafka.tls is not valid PEM"))
}

fn changeable(name: &str) -> Result<&str> {
    if FIXED_PROPERTIES.contains(&name) || dedicated_setting(name).is_some() {
        return Err(Error::conflict(
            SEAM,
            format!(
                "{name} cannot be set as a property: Packetboat manages it, or it has its own setting"
            ),
        ));
    }
    Ok(name)
}

pub(super) fn producer(config: &KafkaConfig) -> Result<ClientConfig> {
    let mut settings = client(config)?;
    let defaults = [
        ("compression.type", "lz4"),
        ("retry.backoff.ms", "50"),
        ("retry.backoff.max.ms", "500"),
        // A producer that takes over from another has its connections ready.
        ("enable.sparse.connections", "false"),
    ];
    for (name, value) in defaults {
        set_default(&mut settings, name, value);
    }
    let producer = &config.producer;
    let linger_ms = producer.linger.as_secs_f64() * 1e3;
    set_default(&mut settings, "linger.ms", &linger_ms.to_string());
    settings
        .set("acks", "all")
        .set("enable.idempotence", "true")
        // A gap stops the producer instead of letting later records through.
        .set("enable.gapless.guarantee", "true")
        // Records do not time out individually: the whole producer is replaced (see `Generation`).
        .set("message.timeout.ms", "0")
        .set("message.max.bytes", batch_bytes_max(config).to_string())
        .set("queue.buffering.max.messages", "0")
        // The effective bound is ours, and lower.
        .set(
            "queue.buffering.max.kbytes",
            kbytes(producer.buffer_bytes.saturating_mul(2)),
        );
    Ok(settings)
}

/// Settings of a consumer that is assigned its partitions by hand, or whose group on the brokers is
/// `group`.
pub(super) fn reader(config: &KafkaConfig, group: &str) -> Result<ClientConfig> {
    let mut settings = client(config)?;
    set_default(&mut settings, "check.crcs", "true");
    // Pause before fetching more for a partition with a full queue; the default is a second.
    set_default(&mut settings, "fetch.queue.backoff.ms", "20");
    set_default(&mut settings, "fetch.wait.max.ms", &millis(FETCH_WAIT));
    let prefetch_kbytes = kbytes(PREFETCH_BYTES);
    set_default(
        &mut settings,
        "queued.max.messages.kbytes",
        &prefetch_kbytes,
    );
    settings
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "error")
        .set("isolation.level", "read_uncommitted")
        .set(
            "fetch.message.max.bytes",
            batch_bytes_max(config).to_string(),
        );
    Ok(settings)
}

/// Settings of a member of a group.
pub(super) fn member(config: &KafkaConfig, group: &str) -> Result<ClientConfig> {
    let mut settings = reader(config, group)?;
    let consumer = &config.consumer;
    settings.set("max.poll.interval.ms", millis(consumer.poll_interval_max));
    match consumer.protocol {
        GroupProtocol::Consumer => {
            settings.set("group.protocol", "consumer");
        }
        GroupProtocol::Classic => {
            settings
                .set("group.protocol", "classic")
                .set("partition.assignment.strategy", "cooperative-sticky")
                .set("session.timeout.ms", millis(consumer.session_timeout))
                .set("heartbeat.interval.ms", millis(HEARTBEAT_INTERVAL));
        }
    }
    Ok(settings)
}

fn set_default(settings: &mut ClientConfig, name: &str, value: &str) {
    if settings.get(name).is_none() {
        settings.set(name, value);
    }
}

fn millis(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn kbytes(bytes: usize) -> String {
    // Maximum that librdkafka accepts for either queue.
    const MAX_KBYTES: usize = 2_097_151;
    (bytes >> 10).clamp(1, MAX_KBYTES).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn the_promise_cannot_be_configured_away() {
        for (name, value) in [("acks", "1"), ("auto.offset.reset", "latest")] {
            let mut config = KafkaConfig::default();
            config.properties.insert(name.into(), value.into());
            let error = member(&config, "carrier").unwrap_err();
            assert_eq!(error.kind, Kind::Conflict);
            assert!(error.source.to_string().contains(name));
        }
    }

    #[test]
    fn other_properties_go_through_and_win_over_ours() {
        let mut config = KafkaConfig::default();
        let overrides = [
            ("ssl.endpoint.identification.algorithm", "none"),
            ("compression.type", "gzip"),
        ];
        config
            .properties
            .extend(overrides.map(|(name, value)| (name.into(), value.into())));
        let settings = producer(&config).unwrap();
        let names = settings.get("ssl.endpoint.identification.algorithm");
        assert_eq!(names, Some("none"));
        assert_eq!(settings.get("compression.type"), Some("gzip"));
    }

    #[test]
    fn secrets_come_from_files_only() {
        let mut config = KafkaConfig::default();
        let name = "sasl.oauthbearer.client.secret";
        config.properties.insert(name.into(), "hidden".into());
        assert_eq!(client(&config).unwrap_err().kind, Kind::Conflict);
        config.properties.clear();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "hidden\n").unwrap();
        config
            .property_files
            .insert(name.into(), file.path().into());
        assert_eq!(client(&config).unwrap().get(name), Some("hidden"));
        config
            .property_files
            .insert("ssl.key.password".into(), "/nowhere".into());
        let error = client(&config).unwrap_err();
        assert!(error.source.to_string().contains("/nowhere"));
    }

    #[test]
    fn the_protocol_follows_from_the_sections() {
        use crate::queue::kafka::SaslMechanism;
        let files = tempfile::tempdir().unwrap();
        let path = |name: &str| files.path().join(name);
        let root = rcgen::generate_simple_self_signed(["kafka".to_owned()]).unwrap();
        std::fs::write(path("ca.crt"), root.cert.pem()).unwrap();
        std::fs::write(path("password"), "s3 cret\n").unwrap();
        let build = |is_tls: bool, is_sasl: bool| {
            let mut config = KafkaConfig::default();
            config.tls.ca_file = is_tls.then(|| path("ca.crt"));
            if is_sasl {
                config.sasl.mechanism = Some(SaslMechanism::ScramSha512);
                config.sasl.username = Some("boat".into());
                config.sasl.password_file = Some(path("password"));
            }
            client(&config).unwrap()
        };
        for (is_tls, is_sasl, protocol) in [
            (false, false, None),
            (true, false, Some("ssl")),
            (false, true, Some("sasl_plaintext")),
            (true, true, Some("sasl_ssl")),
        ] {
            assert_eq!(build(is_tls, is_sasl).get("security.protocol"), protocol);
        }
        let settings = build(true, true);
        assert_eq!(settings.get("sasl.mechanism"), Some("SCRAM-SHA-512"));
        assert_eq!(settings.get("sasl.password"), Some("s3 cret"));
        // The linked OpenSSL accepts all of it.
        settings.create_native_config().unwrap();
        assert!(!format!("{settings:?}").contains("s3 cret"), "{settings:?}");
    }
}
