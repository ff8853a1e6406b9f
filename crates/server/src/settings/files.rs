//! Checks of the files that settings name, before anything starts.

use std::path::Path;
use std::sync::Arc;

use backend::clock::SystemClock;
use backend::tls::Identity;
use horn::provider::Secret;
use operator::port::Operators;
use protocol::settings::Problems;
use serde_json::Value;
use station::auth::TokenDoor;

use super::Settings;
use crate::compose::StationProvers;

/// Limit of a file: more than a secret, a list of headers or a chain of certificates ever has.
const BYTES_MAX: u64 = 1 << 20;

impl Settings {
    /// Problems of files that cannot be read, are empty, or hold no key.
    pub fn file_problems(&self) -> Problems {
        let mut problems = Problems::default();
        if let Ok(value) = serde_json::to_value(self) {
            walk("", "", &value, &mut problems);
        }
        if problems.is_empty() {
            self.contents(&mut problems);
        }
        problems
    }

    /// Reads each file as its user does at start.
    fn contents(&self, problems: &mut Problems) {
        if let Err(error) = TokenDoor::open(&self.station.auth) {
            let key = match &self.station.auth {
                auth if auth.remote.is_on() => "station.auth",
                auth if auth.issuers.is_empty() => "station.auth.key_file",
                _ => "station.auth.issuers",
            };
            let remedy = "Create a secret with openssl rand -hex 32; public keys are a JWK set";
            problems.refuse(key, "", &error.to_string(), remedy);
        }
        if let Err(error) = self.station.tickets.check_file() {
            let remedy = "Create one with packetboat keys new";
            problems.refuse("station.tickets.keys_file", "", &error.to_string(), remedy);
        }
        self.identity(problems);
        #[cfg(feature = "cluster")]
        self.check_certificates(problems);
        if let Err(error) = Operators::open(&self.admin, &StationProvers) {
            problems.refuse("admin", "", &format!("{error:#}"), "");
        }
        if let Some(file) = &self.horn.secret_file
            && let Err(error) = Secret::read(file)
        {
            problems.refuse("horn.secret_file", "", &error.to_string(), "");
        }
        if let Err(error) = self.log.otlp.check_headers() {
            problems.refuse("log.otlp.headers_file", "", &format!("{error:#}"), "");
        }
        let now = backend::clock::Clock::now(&SystemClock);
        if let Err(error) = self.log.otlp.tls.check(now) {
            problems.refuse("log.otlp.tls", "", &error.to_string(), "");
        }
    }

    #[cfg(feature = "cluster")]
    fn check_certificates(&self, problems: &mut Problems) {
        let now = backend::clock::Clock::now(&SystemClock);
        let scylla = self.scylla.tls.files();
        for (key, tls) in [
            ("kafka.tls", &self.kafka.tls),
            ("redis.tls", &self.redis.tls),
            ("etcd.tls", &self.etcd.tls),
            ("scylla.tls", &scylla),
        ] {
            if let Err(error) = tls.check(now) {
                problems.refuse(key, "", &error.to_string(), "");
            }
        }
    }

    fn identity(&self, problems: &mut Problems) {
        if !self.identity.is_on() {
            return;
        }
        let identity = Identity::load(&self.identity, None, Arc::new(SystemClock));
        if let Err(error) = identity {
            let remedy = "Create service certificates with packetboat certs new";
            problems.refuse("identity", "", &error.to_string(), remedy);
        }
    }
}

/// Walks over all settings. A key names a file if it is `file` or ends in `_file`, and files if it
/// ends in `_files`.
fn walk(path: &str, name: &str, value: &Value, problems: &mut Problems) {
    match value {
        Value::Object(table) => {
            for (key, value) in table {
                let (path, name) = match (path, name.ends_with("_files")) {
                    (_, true) => (format!("{path}.{key:?}"), "_file"),
                    ("", _) => (key.clone(), key.as_str()),
                    _ => (format!("{path}.{key}"), key.as_str()),
                };
                walk(&path, name, value, problems);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                walk(&format!("{path}[{index}]"), name, value, problems);
            }
        }
        Value::String(file) if name == "file" || name.ends_with("_file") => {
            look(path, Path::new(file), problems)
        }
        _ => {}
    }
}

fn look(key: &str, file: &Path, problems: &mut Problems) {
    let reason = match std::fs::metadata(file) {
        Ok(metadata) if !metadata.is_file() => "not a file".into(),
        Ok(metadata) if metadata.len() == 0 => "the file is empty".into(),
        Ok(metadata) if metadata.len() > BYTES_MAX => "the file is larger than 1 MiB".into(),
        Ok(_) => match std::fs::File::open(file) {
            Ok(_) => return,
            Err(error) => format!("the file cannot be read: {error}"),
        },
        Err(error) => format!("the file cannot be read: {error}"),
    };
    let remedy = "Make it readable for this process, or set another file";
    problems.refuse(key, file.display(), &reason, remedy);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_with(change: impl FnOnce(&mut Settings)) -> String {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.file_problems().to_string()
    }

    #[test]
    fn a_file_is_there_and_holds_something() {
        let dir = tempfile::tempdir().expect("a directory");
        let empty = dir.path().join("empty");
        std::fs::write(&empty, "").expect("written");
        let missing_file = check_with(|s| s.station.auth.key_file = Some("/no/such/key".into()));
        assert!(missing_file.starts_with("station.auth.key_file is /no/such/key: the file cannot"));
        let refusal = check_with(|s| s.horn.secret_file = Some(empty.clone()));
        assert!(refusal.contains("the file is empty"), "{refusal}");
        let refusal = check_with(|s| s.horn.secret_file = Some(dir.path().into()));
        assert!(refusal.contains("not a file"), "{refusal}");
        let short = dir.path().join("short");
        std::fs::write(&short, "0123456789").expect("written");
        let refusal = check_with(|s| s.station.auth.key_file = Some(short));
        assert!(refusal.starts_with("station.auth.key_file: "), "{refusal}");
        assert!(!refusal.contains("0123456789"), "{refusal}");
    }

    #[test]
    fn keys_at_a_url_are_nobody_s_business_before_a_start() {
        let provider = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        provider.set_nonblocking(true).expect("a socket");
        let address = provider.local_addr().expect("bound");
        let issuer = |url: &str| {
            let issuer = serde_json::json!({
                "issuer": "id", "algorithms": ["EdDSA"], "jwks_url": url, "lifetime_max": "1h",
            });
            serde_json::from_value(issuer).expect("an issuer")
        };
        let url = format!("http://{address}/keys");
        let file = tempfile::NamedTempFile::new().expect("a file");
        let with = |cache_dir: Option<&Path>| {
            check_with(|s| {
                s.station.auth.issuers = vec![issuer(&url)];
                s.station.auth.cache_dir = cache_dir.map(Path::to_owned);
            })
        };
        let folder = tempfile::tempdir().expect("a directory");
        let not_yet = folder.path().join("keys");
        for cache_dir in [None, Some(folder.path()), Some(&*not_yet)] {
            assert_eq!(with(cache_dir), "");
        }
        assert!(!not_yet.exists(), "a check makes no folder");
        let refusal = with(Some(file.path()));
        assert!(refusal.contains("not a directory"), "{refusal}");
        assert!(provider.accept().is_err(), "nobody was dialled");
    }

    #[cfg(feature = "otlp")]
    #[test]
    fn headers_for_the_collector_are_names_and_values() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("headers");
        std::fs::write(&file, "authorization: Bearer x\nhunter2\n").expect("written");
        let refusal = check_with(|s| s.log.otlp.headers_file = Some(file));
        assert!(refusal.starts_with("log.otlp.headers_file: "), "{refusal}");
        assert!(
            refusal.contains("line 2") && !refusal.contains("hunter2"),
            "{refusal}"
        );
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn roots_of_a_part_are_certificates() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "hunter2").expect("written");
        let path = Some(file.path().to_owned());
        let refusal = check_with(|s| {
            s.redis.tls.ca_file = path.clone();
            s.scylla.tls.ca_file = path;
        });
        assert_eq!(refusal.lines().count(), 2, "{refusal}");
        assert!(refusal.starts_with("redis.tls: "), "{refusal}");
        assert!(refusal.contains("holds no certificate in PEM"), "{refusal}");
        assert!(!refusal.contains("hunter2"), "{refusal}");
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn each_of_several_files_is_named() {
        let refusal = check_with(|s| {
            let name = "ssl.key.password".to_owned();
            s.kafka.property_files.insert(name, "/no/such".into());
            s.redis.password_file = Some("/no/such".into());
        });
        assert!(refusal.contains("kafka.property_files.\"ssl.key.password\" is /no/such"));
        assert!(
            refusal.contains("redis.password_file is /no/such"),
            "{refusal}"
        );
    }
}
