//! Tokens of an external issuer, whose keys change while users are online.

use std::fs::DirEntry;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use backend::clock::{Clock, SystemClock};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use protocol::Code;
use protocol::frame::ServerFrame;
use rcgen::{KeyPair, PKCS_ED25519, PublicKeyData};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::all::{All, Dir, addresses};
use crate::process::{WAIT_TIMEOUT, packetboat, run, within};
use crate::raw::{RawClient, hello_with, message};
use crate::rotation::{runbook, type_line};

const ISSUER: &str = "https://id.example";

/// A key of the issuer.
struct Key {
    kid: &'static str,
    pair: KeyPair,
}

impl Key {
    fn new(kid: &'static str) -> Key {
        let pair = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        Key { kid, pair }
    }

    fn public(&self) -> Value {
        let x = BASE64_URL_SAFE_NO_PAD.encode(self.pair.der_bytes());
        json!({"kty": "OKP", "crv": "Ed25519", "use": "sig", "kid": self.kid, "x": x})
    }

    fn token(&self, user: i64) -> String {
        let now = SystemClock.now().millis() / 1000;
        let claims = json!({"sub": user.to_string(), "aud": "packetboat", "iss": ISSUER, "iat": now, "exp": now + 3600});
        let mut header = Header::new(Algorithm::EdDSA);
        header.kid = Some(self.kid.into());
        let key = EncodingKey::from_ed_pem(self.pair.serialize_pem().as_bytes()).expect("its key");
        encode(&header, &claims, &key).expect("signable")
    }
}

fn publish(file: &Path, keys: &[&Key]) {
    let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
    std::fs::write(file, json!({ "keys": keys }).to_string()).expect("written");
}

fn settings(file: &Path) -> String {
    format!(
        "[[station.auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"EdDSA\"]\njwks_file = {:?}",
        file.display().to_string()
    )
}

/// Outcome of a sign-in: a session, or a code.
fn sign_in(all: &All, token: String) -> Result<RawClient, Code> {
    let mut client = RawClient::tcp(all.tcp());
    client.send(&hello_with(token));
    match client.next() {
        Some(ServerFrame::Welcome(_)) => Ok(client),
        Some(ServerFrame::Closing { refusal, .. }) => Err(refusal.code),
        other => panic!("{other:?}"),
    }
}

// Follows the runbook of docs/operations/security.md: both keys, then tokens by the new one, then
// the new one alone.
#[test]
fn a_key_that_changes_ends_no_session_and_refuses_no_send() {
    let files = tempfile::tempdir().expect("a folder");
    let [file, both, alone] =
        ["keys.json", "both.json", "new.json"].map(|name| files.path().join(name));
    let (old, new) = (Key::new("2026-10"), Key::new("2026-11"));
    publish(&file, &[&old]);
    publish(&both, &[&old, &new]);
    publish(&alone, &[&new]);
    let lines = runbook("New keys of an issuer");
    let [first, second] = lines[..] else {
        panic!("{lines:?}");
    };
    let all = All::with(&settings(&file));
    let mut session = sign_in(&all, old.token(1)).expect("a good token");
    let mut sent_count = 0_u8;
    let mut goes_on = || {
        sent_count += 1;
        session.send(&message(3, [sent_count; 16], 10));
        loop {
            match session.next().expect("it lives") {
                ServerFrame::Accepted(_) => return,
                ServerFrame::Refused { refusal, .. } => panic!("{refusal:?}"),
                _ => {}
            }
        }
    };
    let is_welcome = |key: &Key| sign_in(&all, key.token(2)).map(drop);
    goes_on();
    assert_eq!(is_welcome(&new), Err(Code::Unauthenticated));
    // A foreign signature proves nobody, whatever its key id.
    let forged_key = Key::new("2026-10");
    assert_eq!(is_welcome(&forged_key), Err(Code::Unauthenticated));

    type_line(files.path(), first);
    within(WAIT_TIMEOUT, || is_welcome(&new).is_ok());
    assert_eq!(is_welcome(&old), Ok(()));
    goes_on();

    // A broken file changes nothing, and is counted.
    std::fs::write(&file, "{").expect("written");
    let refused_series =
        format!("station_token_key_reloads_total{{issuer=\"{ISSUER}\",result=\"refused\"}}");
    within(WAIT_TIMEOUT, || all.metric(&refused_series) >= 1);
    assert_eq!((is_welcome(&old), is_welcome(&new)), (Ok(()), Ok(())));

    type_line(files.path(), second);
    within(WAIT_TIMEOUT, || {
        is_welcome(&old) == Err(Code::Unauthenticated)
    });
    assert_eq!(is_welcome(&new), Ok(()));
    goes_on();
}

/// A provider that publishes one answer, or is down.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<Option<String>>>);

impl Provider {
    /// Starts a provider; returns its URL and a handle.
    fn start() -> (String, Provider) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/keys", listener.local_addr().expect("bound"));
        let provider = Provider::default();
        let present = provider.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that leaves is no error.
                let _ = present.answer(stream.expect("a connection"));
            }
        });
        (url, provider)
    }

    fn publish(&self, keys: &[&Key]) {
        let keys: Vec<_> = keys.iter().map(|key| key.public()).collect();
        self.be(Some(json!({ "keys": keys }).to_string()));
    }

    fn be(&self, set: Option<String>) {
        *self.0.lock().expect("nobody panics with it") = set;
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut line = String::new();
        let mut request = BufReader::new(stream.try_clone()?);
        while request.read_line(&mut line)? > 2 {
            line.clear();
        }
        let set = self.0.lock().expect("nobody panics with it").clone();
        let status = if set.is_some() { "200 OK" } else { "503 Away" };
        let body = set.unwrap_or_default();
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes())
    }
}

#[test]
fn a_station_starts_without_its_provider_and_again_with_its_keys_of_before() {
    let (url, provider) = Provider::start();
    let key = Key::new("2026-10");
    let dir = Dir::new();
    let cache = dir.path("keys");
    let settings = format!(
        "station.auth.cache_dir = {:?}\n[[station.auth.issuers]]\nissuer = \"{ISSUER}\"\nalgorithms = [\"EdDSA\"]\n\
         jwks_url = \"{url}\"",
        cache.display().to_string()
    );
    let [websocket, tcp, admin] = addresses();
    let all = All::over(dir, [&websocket, &tcp, &admin], &settings);
    let code = |all: &All| sign_in(all, key.token(1)).err();
    assert_eq!(code(&all), Some(Code::Unavailable));
    let published_at = Instant::now();
    provider.publish(&[&key]);
    within(WAIT_TIMEOUT, || code(&all).is_none());
    let forged_key = Key::new("2026-10");
    let error = sign_in(&all, forged_key.token(1)).err();
    assert_eq!(error, Some(Code::Unauthenticated));
    let series = |name: &str, result: &str| {
        let result = match result {
            "" => String::new(),
            result => format!(",result=\"{result}\""),
        };
        all.metric(&format!("{name}{{issuer=\"{ISSUER}\"{result}}}"))
    };
    assert!(series("station_token_key_reloads_total", "unanswered") >= 1);
    assert_eq!(series("station_token_key_reloads_total", "reloaded"), 1);
    within(WAIT_TIMEOUT, || {
        series("station_jwks_age_seconds", "") <= published_at.elapsed().as_secs()
    });
    // While it is written, the file has a temporary name.
    let is_copy = |file: DirEntry| file.path().extension().is_some_and(|it| it == "jwks");
    within(WAIT_TIMEOUT, || {
        std::fs::read_dir(&cache).is_ok_and(|mut files| files.any(|file| file.is_ok_and(is_copy)))
    });

    provider.be(None);
    let second_run = all.restart(&settings);
    assert_eq!(code(&second_run), None);
}

#[test]
fn commands_sign_with_a_configured_secret_or_name_its_absence() {
    let all = All::start();
    let [public, secret] = ["public", "secret"].map(|name| all.dir.path(name));
    publish(&public, &[&Key::new("1")]);
    let file = all.dir.path("other.toml");
    let token = |settings: &str, more: &[&str]| {
        std::fs::write(&file, settings).expect("written");
        let config = file.display().to_string();
        let arguments = ["--config", &config, "token", "--user", "1"];
        run(packetboat(&arguments).args(more))
    };
    let output = token(&settings(&public), &[]);
    assert_eq!(output.code, Some(1), "{}", output.stdout);
    assert!(
        output.stderr.contains("public keys only"),
        "{}",
        output.stderr
    );

    std::fs::write(&secret, [b's'; 32]).expect("written");
    let with_secret = format!(
        "[[station.auth.issuers]]\nissuer = \"desk\"\nalgorithms = [\"HS256\"]\nlifetime_max = \"1h\"\n\
         secrets = [{{ kid = \"1\", file = {:?} }}]",
        secret.display().to_string()
    );
    let signed_token = token(&with_secret, &[]).ok().stdout;
    let payload = signed_token.trim().split('.').nth(1).expect("three parts");
    let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).expect("base64url");
    let claims: Value = serde_json::from_slice(&payload).expect("claims");
    assert_eq!(claims["iss"], "desk");
    let life = claims["exp"].as_i64().zip(claims["iat"].as_i64());
    assert_eq!(life.map(|(end, begin)| end - begin), Some(3600));
    let longer = token(&with_secret, &["--for", "2h"]);
    assert_eq!(longer.code, Some(1), "{}", longer.stdout);
    assert!(
        longer.stderr.contains("lifetime_max = 1h"),
        "{}",
        longer.stderr
    );
}
