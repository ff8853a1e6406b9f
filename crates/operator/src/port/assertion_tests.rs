//! Operators whom a proxy signs in: what an assertion has to be, and what it allows.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use axum::Json;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::routing::get;
use backend::clock::{Clock, Entropy, SystemClock};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use metrics_exporter_prometheus::PrometheusBuilder;
use protocol::{Refusal, Timestamp};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use serde_json::{Map, Value, json};
use station::auth::{Assertions, Issuer};
use tempfile::TempDir;

use super::operators::Role;
use super::*;

const HEADER: &str = "x-assertion";
const TOKEN: &str = "a-token-of-some-length";
/// Far more than anything here takes.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Provers of the program, which stations lend.
pub(super) struct StationProvers;

impl Provers for StationProvers {
    fn problems(&self, config: &AssertionConfig) -> Problems {
        issuer(config).problems()
    }

    fn open(&self, config: &AssertionConfig, bytes_max: usize) -> Result<Arc<dyn Prover>> {
        let assertions = Assertions::open(&issuer(config), bytes_max)?;
        Ok(Arc::new(KeptAssertions(Arc::new(assertions))))
    }
}

fn issuer(config: &AssertionConfig) -> Issuer {
    Issuer {
        issuer: config.issuer.clone(),
        audience: config.audience.clone(),
        algorithms: config.algorithms.clone(),
        jwks_file: config.jwks_file.clone(),
        jwks_url: config.jwks_url.clone(),
        secrets: Vec::new(),
        lifetime_max: config.lifetime_max,
    }
}

struct KeptAssertions(Arc<Assertions>);

#[async_trait]
impl Prover for KeptAssertions {
    async fn keep(&self, clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) {
        self.0.clone().keep(clock, entropy).await;
    }

    async fn prove(&self, assertion: &str, now: Timestamp) -> Result<Map<String, Value>, Refusal> {
        self.0.prove(assertion, now).await
    }
}

/// A proxy's key.
struct Key {
    kid: &'static str,
    pair: KeyPair,
}

impl Key {
    fn new(kid: &'static str) -> Key {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        Key { kid, pair }
    }

    fn jwks(&self) -> Value {
        // SEC 1: 4, x, y.
        let point = self.pair.der_bytes();
        let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
        json!({"keys": [{"kty": "EC", "crv": "P-256", "kid": self.kid,
            "x": text(&point[1..33]), "y": text(&point[33..])}]})
    }

    fn sign(&self, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = Some(self.kid.to_owned());
        let key = EncodingKey::from_ec_pem(self.pair.serialize_pem().as_bytes());
        jsonwebtoken::encode(&header, claims, &key.expect("a key")).expect("signed")
    }
}

fn claims() -> Value {
    let now = SystemClock.now().millis() / 1000;
    json!({
        "iss": "https://proxy.example", "aud": "desk", "sub": "ann@example", "iat": now, "exp": now + 600,
        "groups": ["staff", "oncall"], "email": "ann@example.com",
    })
}

/// Claims with one of them changed; `null` removes it.
fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    match value {
        Value::Null => drop(claims.as_object_mut().expect("claims").remove(name)),
        value => claims[name] = value,
    }
    claims
}

fn config(dir: &Path, key: &Key) -> Config {
    let file = dir.join("proxy.jwks");
    std::fs::write(&file, key.jwks().to_string()).expect("written");
    let token_file = dir.join("bob");
    std::fs::write(&token_file, TOKEN).expect("written");
    Config {
        operators: vec![OperatorConfig {
            name: "bob".to_owned(),
            token_file,
            roles: vec![Role::View, Role::Edit],
        }],
        assertion: AssertionConfig {
            header: Some(HEADER.to_owned()),
            issuer: "https://proxy.example".to_owned(),
            audience: "desk".to_owned(),
            jwks_file: Some(file),
            roles: BTreeMap::from([
                ("oncall".to_owned(), vec![Role::View, Role::Redrive]),
                ("lead".to_owned(), vec![Role::View, Role::Discard]),
                ("blind".to_owned(), vec![Role::Redrive]),
            ]),
            ..AssertionConfig::default()
        },
        ..Config::default()
    }
}

struct Port {
    operators: Operators,
    key: Key,
    _dir: TempDir,
}

impl Port {
    fn new(change: impl FnOnce(&mut Config)) -> Port {
        let dir = tempfile::tempdir().expect("a directory");
        let key = Key::new("one");
        let mut config = config(dir.path(), &key);
        change(&mut config);
        assert_eq!(config.problems(&StationProvers).to_string(), "");
        Port {
            operators: Operators::open(&config, &StationProvers).expect("opens"),
            key,
            _dir: dir,
        }
    }

    /// Name and roles of the operator, or status and text of a refusal.
    async fn ask(
        &self,
        header_values: &[(&str, &str)],
    ) -> Result<(String, Vec<Role>), (u16, String)> {
        let mut headers = HeaderMap::new();
        for (name, value) in header_values {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        let peer = [192, 0, 2, 7].into();
        match self.operators.sign_in(peer, &headers).await {
            Ok(operator) => Ok((operator.name, operator.roles)),
            Err(refusal) => Err((refusal.status.as_u16(), refusal.error.message)),
        }
    }

    async fn assert(&self, claims: &Value) -> Result<(String, Vec<Role>), (u16, String)> {
        self.ask(&[(HEADER, &self.key.sign(claims))]).await
    }
}

#[tokio::test]
async fn assertions_give_the_roles_of_all_groups() {
    let port = Port::new(|_| {});
    let signed_in = port.assert(&claims()).await.expect("ann");
    assert_eq!(
        signed_in,
        ("ann@example".to_owned(), vec![Role::View, Role::Redrive])
    );
    let mixed_claims = with("groups", json!(["lead", 7, "oncall"]));
    let (_, roles) = port.assert(&mixed_claims).await.expect("ann");
    assert_eq!(roles, [Role::View, Role::Redrive, Role::Discard]);
    let text = with("groups", json!("oncall"));
    port.assert(&text).await.expect("text is a list of one");
    let far = Port::new(|config| {
        config.assertion.roles_claim = "realm.roles".to_owned();
        config.assertion.name_claim = "email".to_owned();
    });
    let nested_claims = with("realm", json!({"roles": ["oncall"]}));
    let (name, _) = far.assert(&nested_claims).await.expect("ann");
    assert_eq!(name, "ann@example.com");
    let mut unverified_claims = nested_claims;
    unverified_claims["email_verified"] = false.into();
    let (status, text) = far
        .assert(&unverified_claims)
        .await
        .expect_err("not verified");
    assert!(
        status == 403 && text.contains("verified"),
        "{status} {text}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_assertion_that_proves_nothing_signs_nobody_in() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let port = Port::new(|_| {});
    let now = SystemClock.now().millis() / 1000;
    let good = port.key.sign(&claims());
    let (other, unknown) = (Key::new("one"), Key::new("two"));
    let none = |alg: &str| {
        let encode = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let head = encode(&json!({"alg": alg, "kid": "one"}));
        format!("{head}.{}.", encode(&claims()))
    };
    let by_public_key = {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("one".to_owned());
        let public = port.key.pair.public_key_pem();
        let key = EncodingKey::from_secret(public.as_bytes());
        jsonwebtoken::encode(&header, &claims(), &key).expect("signed")
    };
    let sign = |name, value| port.key.sign(&with(name, value));
    let cases = [
        (
            "another issuer",
            sign("iss", "https://other.example".into()),
        ),
        ("another audience", sign("aud", "shop".into())),
        ("over", sign("exp", (now - 60).into())),
        ("not yet", sign("nbf", (now + 120).into())),
        ("of tomorrow", sign("iat", (now + 120).into())),
        ("too long", sign("exp", (now + 25 * 3600).into())),
        ("no iss", sign("iss", Value::Null)),
        ("no aud", sign("aud", Value::Null)),
        ("no sub", sign("sub", Value::Null)),
        ("no exp", sign("exp", Value::Null)),
        ("no iat", sign("iat", Value::Null)),
        ("alg none", none("none")),
        ("alg ES256 without a signature", none("ES256")),
        ("HS256 with the public key", by_public_key),
        ("another key of that kid", other.sign(&claims())),
        ("an unknown kid", unknown.sign(&claims())),
        ("a bare name", "ann@example".to_owned()),
        ("nothing", String::new()),
        ("too many bytes", format!("{good}{}", "a".repeat(12 * 1024))),
    ];
    let count = cases.len();
    for (case, assertion) in cases {
        let (status, text) = port.ask(&[(HEADER, &assertion)]).await.expect_err(case);
        assert_eq!(status, 401, "{case}: {text}");
        assert!(text.contains("assertion was refused"), "{case}: {text}");
    }
    let double_answer = port.ask(&[(HEADER, &good), (HEADER, &good)]).await;
    let (status, text) = double_answer.expect_err("twice");
    assert!(
        status == 401 && text.contains("duplicate"),
        "{status} {text}"
    );
    port.ask(&[(HEADER, &good)])
        .await
        .expect("the right one, after all of them");
    let (status, text) = port.ask(&[]).await.expect_err("nothing is shown");
    assert!(status == 429, "the address is not heard: {text}");
    let scrape = recorder.handle().render();
    let expected_line = format!("admin_sign_ins_total{{result=\"refused\"}} {}", count + 1);
    assert!(scrape.contains(&expected_line), "{scrape}");
}

#[tokio::test]
async fn somebody_without_roles_is_told_which_groups_were_seen() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let port = Port::new(|_| {});
    let groups: Vec<String> = (0..8).map(|number| format!("team-{number}")).collect();
    for (claims, words) in [
        (with("groups", json!(groups)), "3 more"),
        (with("groups", json!(["staff"])), "admin.assertion.roles"),
        (with("groups", Value::Null), "nothing in \"groups\""),
        (with("groups", json!({"oncall": true})), "nothing in"),
        (with("groups", json!(["blind"])), "\"view\""),
        (with("sub", json!(" ")), "admin.assertion.name_claim"),
        (with("sub", json!("ann\nbob")), "admin.assertion.name_claim"),
    ] {
        let (status, text) = port.assert(&claims).await.expect_err(words);
        assert_eq!(status, 403, "{text}");
        assert!(text.contains(words), "{words}: {text}");
    }
    let scrape = recorder.handle().render();
    assert!(
        scrape.contains("admin_sign_ins_total{result=\"forbidden\"} 6"),
        "{scrape}"
    );
}

#[tokio::test]
async fn a_token_wins_and_is_judged_alone() {
    let port = Port::new(|_| {});
    let good = port.key.sign(&claims());
    let token = ("authorization", &*format!("Bearer {TOKEN}"));
    let (name, _) = port.ask(&[token]).await.expect("bob");
    assert_eq!(name, "bob");
    let (name, roles) = port.ask(&[token, (HEADER, &good)]).await.expect("bob");
    assert_eq!((&*name, roles), ("bob", vec![Role::View, Role::Edit]));
    let guess = ("authorization", "Bearer a-guess");
    let refusal = port.ask(&[guess, (HEADER, &good)]).await;
    assert_eq!(refusal.expect_err("a guess").0, 401);
    let refusal = port.ask(&[token, token]).await;
    assert_eq!(refusal.expect_err("twice").0, 401);

    // A proxy that has no other header for it.
    let port = Port::new(|config| config.assertion.header = Some("Authorization".to_owned()));
    let bearer = format!("Bearer {}", port.key.sign(&claims()));
    let (name, _) = port.ask(&[("authorization", &bearer)]).await.expect("ann");
    assert_eq!(name, "ann@example");
    let (name, _) = port.ask(&[token]).await.expect("bob");
    assert_eq!(name, "bob");
    let refusal = port.ask(&[guess]).await.expect_err("a guess");
    assert_eq!(refusal.0, 401);
}

#[tokio::test]
async fn without_operators_of_tokens_nobody_else_gets_in() {
    let port = Port::new(|config| config.operators.clear());
    let (status, text) = port.ask(&[]).await.expect_err("nobody");
    assert!(status == 401 && text.contains(HEADER), "{status} {text}");
    let guess = port.ask(&[("authorization", "Bearer ")]).await;
    assert_eq!(guess.expect_err("nobody").0, 401);
    port.assert(&claims()).await.expect("ann");
    port.operators.renew(&[]).expect("a proxy signs in");
}

async fn at_url(url: String) -> (Port, CancellationToken) {
    let port = Port::new(|config| {
        config.assertion.jwks_file = None;
        config.assertion.jwks_url = Some(url.as_str().into());
    });
    let stop = CancellationToken::new();
    port.operators.keep(stop.clone());
    (port, stop)
}

#[tokio::test]
async fn keys_come_from_a_url_and_sign_ins_fail_without_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let (port, _stop) = at_url(format!("http://{address}/keys")).await;
    let set = port.key.jwks();
    let router = Router::new().route("/keys", get(async move || Json(set)));
    tokio::spawn(async move { axum::serve(listener, router).await });
    let start = tokio::time::Instant::now();
    while let Err((status, text)) = port.assert(&claims()).await {
        assert_eq!(status, 503, "{text}");
        assert!(start.elapsed() < TEST_TIMEOUT, "{text}");
    }

    let recorder = PrometheusBuilder::new().build_recorder();
    let _counts = metrics::set_default_local_recorder(&recorder);
    let nobody = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = nobody.local_addr().expect("bound");
    drop(nobody);
    let (port, _stop) = at_url(format!("http://{address}/keys")).await;
    let (status, text) = port.assert(&claims()).await.expect_err("away");
    assert_eq!(status, 503, "{text}");
    let token = format!("Bearer {TOKEN}");
    let bob = port.ask(&[("authorization", &token)]).await;
    bob.expect("tokens need no keys");
    let scrape = recorder.handle().render();
    assert!(
        scrape.contains("admin_sign_ins_total{result=\"unanswered\"} 1"),
        "{scrape}"
    );
}

#[test]
fn settings_that_believe_too_much_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let key = Key::new("one");
    let refusal_text = |change: &dyn Fn(&mut AssertionConfig)| {
        let mut config = config(dir.path(), &key);
        change(&mut config.assertion);
        config.problems(&StationProvers).to_string()
    };
    type Change = dyn Fn(&mut AssertionConfig);
    let cases: [(&Change, &str); 9] = [
        (
            &|it| it.algorithms = vec![station::auth::Algorithm::HS256],
            "algorithms is HS256",
        ),
        (&|it| it.algorithms.clear(), "algorithms"),
        (&|it| it.issuer.clear(), "assertion.issuer"),
        (&|it| it.audience.clear(), "assertion.audience"),
        (&|it| it.jwks_file = None, "assertion.jwks_file"),
        (
            &|it| it.jwks_url = Some("http://proxy.example/keys".into()),
            "assertion.jwks_url",
        ),
        (
            &|it| it.header = Some("no header".to_owned()),
            "assertion.header",
        ),
        (&|it| it.header = None, "assertion.header"),
        (&|it| it.roles.clear(), "assertion.roles"),
    ];
    for (change, word) in cases {
        let text = refusal_text(change);
        assert!(text.contains(word), "{word}: {text}");
    }
    assert_eq!(refusal_text(&|_| {}), "");
    let open = Config {
        listen: ([0, 0, 0, 0], 9190).into(),
        operators: Vec::new(),
        ..config(dir.path(), &key)
    };
    let text = open.problems(&StationProvers).to_string();
    assert!(
        text.contains("has no TLS") && text.lines().count() == 1,
        "{text}"
    );
}
