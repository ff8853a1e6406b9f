//! Costs of proof: for a send from a boat to the log, over TLS with tickets and without either; for
//! a sign-in with a token and with a resume ticket. `scripts/costs` counts the first one.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use api::station::{Admission, Connect, ResumeSession};
use api::transport::{Connector, Identity};
use api::v1;
use api::v1::station_service_client::StationServiceClient;
use backend::cache::CacheConfig;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::verify;
use jsonwebtoken::{DecodingKey, EncodingKey, Header};
use protocol::access::{Caller, Role};
use protocol::session::Submit;
use protocol::ticket::{KeyFile, ResumeTicket, Ticket};
use protocol::{Platform, Refusal, SendId};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_ECDSA_P256_SHA256,
    PublicKeyData,
};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::Instant;

use super::world::*;
use crate::auth::{self, Algorithm, Issuer};
use crate::{Config, tickets};

const ISSUER: &str = "https://id.example";
/// Sends in one call, as a boat collects them under load.
const BATCH: usize = 16;
/// Sessions that send or sign in by turns.
const USERS: i64 = 16;
/// Limit of the difference between a sign-in with a token and one with a ticket, in checks of one
/// signature of ES256: the check itself, and the reading around it.
const SIGNATURES_MAX: u32 = 3;

/// Services with certificates of one root, in TLS 1.3 without resumption.
struct Proof {
    server_config: Arc<ServerConfig>,
    client_config: Arc<ClientConfig>,
}

impl Proof {
    fn new(root: &CertifiedIssuer<'static, KeyPair>, role: Role) -> Arc<Proof> {
        let params = CertificateParams::new([role.name().to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let leaf = params.signed_by(&key, root).expect("a certificate");
        let mut roots = RootCertStore::empty();
        roots.add(root.der().clone()).expect("a root");
        let roots = Arc::new(roots);
        let provider = Arc::new(aws_lc_rs::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone()).build();
        let private = || PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_client_cert_verifier(clients.expect("a verifier"))
            .with_single_cert(vec![leaf.der().clone()], private())
            .expect("a certificate");
        server.alpn_protocols = vec![b"h2".to_vec()];
        let mut client = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![leaf.der().clone()], private())
            .expect("a certificate");
        client.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(Proof {
            server_config: Arc::new(server),
            client_config: Arc::new(client),
        })
    }
}

impl Identity for Proof {
    fn accepting(&self) -> Arc<ServerConfig> {
        self.server_config.clone()
    }

    fn calling(&self, _: Role) -> Arc<ClientConfig> {
        self.client_config.clone()
    }

    fn peer(&self, _: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        Some((Caller::new(Role::Boat, "boat-1"), Duration::from_secs(3600)))
    }

    fn trusts(&self, _: &[CertificateDer<'_>]) -> bool {
        true
    }

    fn required(&self) -> bool {
        true
    }
}

/// A station on a port, its boat, and the files of its keys.
struct Bench {
    world: World,
    client: Client,
    _dir: TempDir,
}

fn many() -> NonZeroU32 {
    NonZeroU32::new(1_000_000).expect("positive")
}

impl Bench {
    /// `is_proved`: over TLS with certificates, and with tickets.
    async fn new(is_proved: bool, auth: auth::Config) -> Bench {
        let dir = tempfile::tempdir().expect("a folder");
        let keys = dir.path().join("keys");
        std::fs::write(&keys, KeyFile::new(1, [7; 32]).to_text()).expect("written");
        let config = Config {
            listen: Some(([127, 0, 0, 1], 0).into()),
            auth,
            tickets: tickets::Config {
                keys_file: is_proved.then_some(keys),
                required: is_proved,
            },
            user_sign_ins_per_minute: many(),
            user_sign_ins_burst: many(),
            user_sends_per_second: many(),
            user_sends_burst: many(),
            private_sends_per_second: many(),
            private_sends_burst: many(),
            ..Config::default()
        };
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let root = CertifiedIssuer::self_signed(params, key).expect("a root");
        let connector = |role| {
            if is_proved {
                Connector::default().with_identity(Proof::new(&root, role))
            } else {
                Connector::default()
            }
        };
        let (station, boat) = (connector(Role::Station), connector(Role::Boat));
        let world = world_through(config, CacheConfig::default(), station).await;
        let channel = boat.channel(Role::Station, &world.station.instance().address);
        Bench {
            world,
            client: StationServiceClient::new(channel),
            _dir: dir,
        }
    }

    async fn connect(&self, connect: &Connect) -> Admission {
        let request = v1::ConnectRequest::from(connect);
        let answer = self.client.clone().connect(request).await;
        let admission: Result<Admission, Refusal> =
            (answer.expect("answered").into_inner().try_into()).expect("whole");
        admission.expect("admitted")
    }

    /// Sends batches of messages, all of which the log takes.
    async fn send(&self, tickets: &[Option<Ticket>], batches: usize) {
        let mut number = 0_u128;
        for _ in 0..batches {
            let items = (0..BATCH).map(|index| {
                let from = index as i64 % USERS + 1;
                number += 1;
                let mut words = send(100, 0, "a message of some words, as people write them");
                words.send_id = SendId::from_bytes(number.to_be_bytes());
                let item = Submit {
                    ticket: tickets[index % tickets.len()],
                    ..item(from, words)
                };
                v1::SendItem::from(&item)
            });
            let request = v1::SendBatchRequest {
                life: Some((&self.world.life).into()),
                items: items.collect(),
            };
            let answer = self.client.clone().send_batch(request).await;
            let answers = answer.expect("answered").into_inner().answers;
            assert_eq!(answers.len(), BATCH);
            for answer in answers {
                assert!(answer.refusal.is_none(), "{:?}", answer.refusal);
            }
        }
    }
}

// The numbers of PACKETBOAT_COSTS: `plain` or `proved`, and how many batches of 16.
#[tokio::test]
#[ignore = "a measurement: scripts/costs"]
async fn sends_to_be_counted() {
    let costs = std::env::var("PACKETBOAT_COSTS").unwrap_or_else(|_| "proved 10".to_owned());
    let (kind, batches) = costs.split_once(' ').expect("a kind and a number");
    let is_proved = match kind {
        "proved" => true,
        "plain" => false,
        kind => panic!("{kind:?} is no kind"),
    };
    let bench = Bench::new(is_proved, auth::Config::default()).await;
    let mut tickets = Vec::new();
    for number in 1..=USERS {
        let connect = bench.world.connect_request(number, Platform::Ios, number);
        tickets.push(bench.connect(&connect).await.ticket);
    }
    assert!(tickets.iter().all(|ticket| ticket.is_some() == is_proved));
    bench
        .send(&tickets, batches.parse().expect("a number"))
        .await;
}

/// Both halves of a provider's key, and the file with its public one.
fn provider(dir: &TempDir) -> (auth::Config, EncodingKey, DecodingKey) {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
    let public = pair.der_bytes();
    let text = |bytes: &[u8]| BASE64_URL_SAFE_NO_PAD.encode(bytes);
    // SEC 1: 4, x, y.
    let (x, y) = (text(&public[1..33]), text(&public[33..]));
    let verifying_key = DecodingKey::from_ec_components(&x, &y).expect("its key");
    let key = json!({"kty": "EC", "crv": "P-256", "kid": "a", "x": x, "y": y});
    let file = dir.path().join("keys.json");
    std::fs::write(&file, json!({ "keys": [key] }).to_string()).expect("written");
    let issuer = Issuer {
        issuer: ISSUER.to_owned(),
        audience: "boats".to_owned(),
        algorithms: vec![Algorithm::ES256],
        jwks_file: Some(file),
        jwks_url: None,
        secrets: Vec::new(),
        lifetime_max: Duration::from_secs(24 * 3600),
    };
    let config = auth::Config {
        issuers: vec![issuer],
        ..auth::Config::default()
    };
    let signing_key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes());
    (config, signing_key.expect("its key"), verifying_key)
}

#[tokio::test]
#[ignore = "a measurement: run it alone, in release"]
#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
async fn a_sign_in_with_a_ticket_to_resume_costs_no_signature() {
    const ROUNDS: u32 = 20;
    let dir = tempfile::tempdir().expect("a folder");
    let (auth, signing_key, verifying_key) = provider(&dir);
    let bench = Bench::new(true, auth).await;
    let issued_at = BEGIN.millis() / 1000;
    let mut header = Header::new(jsonwebtoken::Algorithm::ES256);
    header.kid = Some("a".to_owned());
    let (mut by_token, mut by_ticket) = (Vec::new(), Vec::new());
    for number in 1..=50 {
        let claims = json!({"sub": number.to_string(), "aud": "boats", "iss": ISSUER,
            "iat": issued_at, "exp": issued_at + 3600});
        let token = jsonwebtoken::encode(&header, &claims, &signing_key).expect("signable");
        let connect = Connect {
            token,
            ..bench.world.connect_request(number, Platform::Ios, number)
        };
        let ticket = bench.connect(&connect).await.ticket;
        let session = ResumeSession {
            user: user(number),
            session: session(number),
            platform: Platform::Ios,
            device: connect.device.clone(),
            ticket,
        };
        let request = v1::ResumeTicketsRequest {
            sessions: vec![session.into()],
        };
        let answer = bench.client.clone().resume_tickets(request).await;
        let offers: Vec<Option<ResumeTicket>> =
            (answer.expect("answered").into_inner().try_into()).expect("whole");
        by_ticket.push(Connect {
            token: String::new(),
            resume: offers[0],
            ..connect.clone()
        });
        by_token.push(connect);
    }
    let mut totals = [Duration::ZERO; 2];
    for round in 0..=ROUNDS {
        for (kind, connects) in [&by_token, &by_ticket].into_iter().enumerate() {
            let started_at = Instant::now();
            for connect in connects {
                bench.connect(connect).await;
            }
            // The first round warms up.
            totals[kind] += if round > 0 {
                started_at.elapsed()
            } else {
                Duration::ZERO
            };
        }
    }
    let [token, ticket] = totals.map(|time| time / (ROUNDS * 50));
    let started_at = Instant::now();
    for connect in by_token.iter().cycle().take(ROUNDS as usize * 50) {
        let (message, signature) = connect.token.rsplit_once('.').expect("signed");
        let algorithm = jsonwebtoken::Algorithm::ES256;
        let is_good = verify(signature, message.as_bytes(), &verifying_key, algorithm);
        assert!(is_good.expect("checked"));
    }
    let signature_time = started_at.elapsed() / (ROUNDS * 50);
    let difference = token.saturating_sub(ticket);
    let ratio = token.as_secs_f64() / ticket.as_secs_f64();
    println!(
        "sign-in: ES256 {token:?}, resume ticket {ticket:?}, {difference:?} more, ratio {ratio:.2}; \
         the signature alone {signature_time:?}"
    );
    assert!(
        difference <= SIGNATURES_MAX * signature_time,
        "{difference:?}"
    );
}
