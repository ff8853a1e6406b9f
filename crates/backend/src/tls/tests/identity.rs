//! Services that verify each other: both callers and called accept or refuse a certificate.

use protocol::access::{Caller, Role};
use rcgen::{
    BasicConstraints, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, PKCS_ECDSA_P256_SHA256,
    SanType,
};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio::time::Instant;

use super::super::certificates::RENEWAL_PAUSE;
use super::*;

const BOAT: &str = "spiffe://packetboat/packetboat/boat/boat-1";
const STATION: &str = "spiffe://packetboat/packetboat/station/station-1";
const CARRIER: &str = "spiffe://packetboat/packetboat/carrier/carrier-1";

struct Root(CertifiedIssuer<'static, KeyPair>);

/// Contents of a leaf, valid or not.
struct Leaf<'a> {
    uris: &'a [&'a str],
    uses: &'a [ExtendedKeyUsagePurpose],
    end_year: i32,
}

const BOTH: &[ExtendedKeyUsagePurpose] = &[
    ExtendedKeyUsagePurpose::ServerAuth,
    ExtendedKeyUsagePurpose::ClientAuth,
];

impl Root {
    fn new(name: &str) -> Root {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        (params.distinguished_name).push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        Root(CertifiedIssuer::self_signed(params, key).expect("a root"))
    }

    fn sign(&self, files: &Files, stem: &str, leaf: &Leaf<'_>) {
        let mut params = CertificateParams::default();
        params.not_after = rcgen::date_time_ymd(leaf.end_year, 1, 1);
        let uri = |uri: &&str| SanType::URI((*uri).try_into().expect("a URI"));
        params.subject_alt_names = leaf.uris.iter().map(uri).collect();
        params.extended_key_usages = leaf.uses.to_vec();
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        let result = (files.pair(stem)).write(&certificate.pem(), &key.serialize_pem());
        result.expect("files");
    }

    fn service(&self, files: &Files, stem: &str, uri: &str) {
        let leaf = Leaf {
            uris: &[uri],
            uses: BOTH,
            end_year: 2100,
        };
        self.sign(files, stem, &leaf);
    }
}

fn trust(files: &Files, roots: &[&Root]) {
    files.write(
        "ca.crt",
        &roots.iter().map(|root| root.0.pem()).collect::<String>(),
    );
}

fn load(files: &Files, stem: &str, role: Role) -> Result<Identity, IdentityError> {
    let config = IdentityConfig::within(files.0.path(), stem);
    Identity::load(&config, Some(role), Arc::new(SystemClock))
}

/// Calls a service of `role` at `called` from `caller`.
fn call(caller: &Identity, callee: &Identity, role: Role) -> Result<Pair, rustls::Error> {
    Pair::connect(&callee.accepting(), &caller.calling(role), "any")
}

fn fleet() -> (Files, Root) {
    let (files, root) = (Files::new(), Root::new("root"));
    trust(&files, &[&root]);
    root.service(&files, "boat", BOAT);
    root.service(&files, "station", STATION);
    root.service(&files, "carrier", CARRIER);
    (files, root)
}

#[test]
fn services_of_one_root_know_each_other_by_role_and_name() {
    let (files, _root) = fleet();
    let boat = load(&files, "boat", Role::Boat).expect("a boat");
    let station = load(&files, "station", Role::Station).expect("a station");
    assert_eq!(boat.own(), Caller::new(Role::Boat, "boat-1"));
    for _ in 0..2 {
        let mut pair = call(&boat, &station, Role::Station).expect("a handshake");
        pair.echo(b"ahoy");
        let version = pair.server.protocol_version();
        assert_eq!(version, Some(ProtocolVersion::TLSv1_3));
        // A resumed session would not look at the chain again.
        let kind = pair.server.handshake_kind();
        assert_ne!(kind, Some(HandshakeKind::Resumed));
        assert_eq!(pair.server.alpn_protocol(), Some(&b"h2"[..]));
        let chain = pair.server.peer_certificates().expect("a certificate");
        let (caller, rest) = station.peer(&chain[0]).expect("a service");
        assert_eq!(caller, Caller::new(Role::Boat, "boat-1"));
        assert!(rest > Duration::from_secs(70 * 365 * 86_400), "{rest:?}");
    }
}

#[test]
fn a_caller_wants_the_role_that_it_calls() {
    let (files, _root) = fleet();
    let boat = load(&files, "boat", Role::Boat).expect("a boat");
    let carrier = load(&files, "carrier", Role::Carrier).expect("a carrier");
    let error = call(&boat, &carrier, Role::Station)
        .err()
        .expect("no station");
    let text = error.to_string();
    assert!(
        text.contains("carrier carrier-1") && text.contains("a station was called"),
        "{text}"
    );
}

/// A certificate that `sign` leaves in place of a good one is refused by all: its own process, the
/// services it calls, and its callers.
#[test]
fn malformed_service_certificates_are_refused_by_all() {
    let cases: [(&str, Leaf<'_>); 7] = [
        (
            "no URI",
            Leaf {
                uris: &[],
                uses: BOTH,
                end_year: 2100,
            },
        ),
        (
            "two URIs",
            Leaf {
                uris: &[BOAT, STATION],
                uses: BOTH,
                end_year: 2100,
            },
        ),
        (
            "no role",
            Leaf {
                uris: &["spiffe://packetboat/a"],
                uses: BOTH,
                end_year: 2100,
            },
        ),
        (
            "other domain",
            Leaf {
                uris: &["spiffe://other/packetboat/boat/boat-1"],
                uses: BOTH,
                end_year: 2100,
            },
        ),
        (
            "no client",
            Leaf {
                uris: &[BOAT],
                uses: &BOTH[..1],
                end_year: 2100,
            },
        ),
        (
            "no server",
            Leaf {
                uris: &[BOAT],
                uses: &BOTH[1..],
                end_year: 2100,
            },
        ),
        (
            "expired",
            Leaf {
                uris: &[BOAT],
                uses: BOTH,
                end_year: 2020,
            },
        ),
    ];
    for (case, leaf) in cases {
        let (files, root) = fleet();
        let station = load(&files, "station", Role::Station).expect("a station");
        root.sign(&files, "boat", &leaf);
        assert!(load(&files, "boat", Role::Boat).is_err(), "{case}");
        // A peer that does not check its own certificate, as another setup of rustls.
        let forged = ForgedPeer::new(&files, "boat");
        let incoming_result = call_forged(&station, &forged);
        let outgoing_result = forged.call(&station);
        match case {
            "no client" => assert!(
                incoming_result.is_ok() && outgoing_result.is_err(),
                "{case}"
            ),
            "no server" => assert!(
                incoming_result.is_err() && outgoing_result.is_ok(),
                "{case}"
            ),
            _ => assert!(
                incoming_result.is_err() && outgoing_result.is_err(),
                "{case}"
            ),
        }
    }
}

#[test]
fn a_certificate_of_another_root_is_refused_by_all() {
    let (files, _root) = fleet();
    let station = load(&files, "station", Role::Station).expect("a station");
    Root::new("root").service(&files, "boat", BOAT);
    let error = load(&files, "boat", Role::Boat).expect_err("another root");
    assert!(
        error.to_string().contains("other services would refuse"),
        "{error}"
    );
    let forged = ForgedPeer::new(&files, "boat");
    assert!(call_forged(&station, &forged).is_err());
    assert!(forged.call(&station).is_err());
}

#[test]
fn callers_without_certificate_are_refused() {
    let (files, _root) = fleet();
    let station = load(&files, "station", Role::Station).expect("a station");
    let mut nobody = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .expect("a version")
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Blind))
        .with_no_client_auth();
    nobody.alpn_protocols = vec![b"h2".to_vec()];
    let result = Pair::connect(&station.accepting(), &Arc::new(nobody), "any");
    let error = result.err().expect("no certificate");
    assert_eq!(error, rustls::Error::NoCertificatesPresented);
}

#[test]
fn a_process_has_the_certificate_of_its_own_role() {
    let (files, _root) = fleet();
    let error = load(&files, "boat", Role::Station).expect_err("a boat's");
    let text = error.to_string();
    assert!(
        text.contains("is for boat boat-1, but this process is a station"),
        "{text}"
    );
}

// Threat 26: certificate and root change while connections live.
#[test]
fn renewals_and_new_roots_end_no_connection() {
    let (files, root) = fleet();
    let boat = load(&files, "boat", Role::Boat).expect("a boat");
    let station = load(&files, "station", Role::Station).expect("a station");
    let mut pair = call(&boat, &station, Role::Station).expect("a handshake");
    let chain = pair.server.peer_certificates().expect("a certificate");
    let chain = chain.to_vec();
    assert_eq!(boat.reload().expect("the same"), Reload::Unchanged);

    let new = Root::new("new root");
    trust(&files, &[&root, &new]);
    for identity in [&boat, &station] {
        assert_eq!(identity.reload().expect("two roots"), Reload::Reloaded);
    }
    new.service(&files, "boat", BOAT);
    assert_eq!(boat.reload().expect("renewed"), Reload::Reloaded);
    call(&boat, &station, Role::Station).expect("old and new together");
    call(&station, &boat, Role::Boat).expect("old and new together");
    new.service(&files, "station", STATION);
    assert_eq!(station.reload().expect("renewed"), Reload::Reloaded);
    assert!(station.trusts(&chain), "both roots are there");
    trust(&files, &[&new]);
    for identity in [&boat, &station] {
        assert_eq!(identity.reload().expect("one root"), Reload::Reloaded);
    }
    call(&boat, &station, Role::Station).expect("new alone");
    pair.echo(b"stay");
    // A later look at the old chain refuses it.
    assert!(!station.trusts(&chain) && !station.trusts(&[]));
}

// A look between the renames of a renewal used to count as a refusal, and raised an alarm.
#[test]
fn a_look_in_the_middle_of_a_renewal_waits_for_the_rest() {
    let (files, root) = fleet();
    let boat = load(&files, "boat", Role::Boat).expect("a boat");
    let new = Root::new("new root");
    let try_renewal = |root: &Root, trusted_roots: &[&Root], late_file: &str| {
        let content = || std::fs::read_to_string(files.path(late_file)).expect("a file");
        let old_content = content();
        root.service(&files, "boat", BOAT);
        trust(&files, trusted_roots);
        let new_content = content();
        files.write(late_file, &old_content);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let look = scope.spawn(|| boat.reload());
            std::thread::sleep(Duration::from_millis(100));
            files.write(late_file, &new_content);
            let is_late = start.elapsed() >= RENEWAL_PAUSE;
            let result = look.join().expect("no panic");
            (!is_late).then_some(result)
        })
    };
    // A renewal that this machine did not end in time is none.
    let renew = |root: &Root, trusted_roots: &[&Root], late_file: &str| {
        (0..20).find_map(|_| try_renewal(root, trusted_roots, late_file))
    };
    let result = renew(&root, &[&root], "boat.key").expect("in time");
    assert_eq!(result.expect("in the end"), Reload::Reloaded);
    let result = renew(&new, &[&root, &new], "ca.crt").expect("in time");
    assert_eq!(result.expect("in the end"), Reload::Reloaded);
    // A key of another certificate stays refused.
    let key = std::fs::read_to_string(files.path("station.key")).expect("a key");
    files.write("boat.key", &key);
    let error = boat.reload().expect_err("another's").to_string();
    assert!(error.contains("is not the key of"), "{error}");
}

#[test]
fn files_that_cannot_be_used_change_nothing() {
    let (files, root) = fleet();
    let boat = load(&files, "boat", Role::Boat).expect("a boat");
    let station = load(&files, "station", Role::Station).expect("a station");
    let wrongs: [(&str, &dyn Fn()); 5] = [
        ("another role", &|| root.service(&files, "boat", STATION)),
        ("another root", &|| {
            Root::new("other").service(&files, "boat", BOAT)
        }),
        ("no certificate", &|| files.write("boat.crt", "rubbish")),
        ("no key", &|| files.write("boat.key", "rubbish")),
        ("no root", &|| files.write("ca.crt", "rubbish")),
    ];
    for (case, make) in wrongs {
        make();
        let error = boat.reload().expect_err(case).to_string();
        assert!(!error.contains("rubbish"), "{error}");
        call(&boat, &station, Role::Station).expect(case);
        trust(&files, &[&root]);
        root.service(&files, "boat", BOAT);
        assert_eq!(boat.reload().expect(case), Reload::Reloaded);
    }
}

#[test]
fn an_identity_has_three_files_and_unlike_roles() {
    let files = Files::new();
    let whole = IdentityConfig::within(files.0.path(), "boat");
    assert!(whole.problems().is_empty());
    assert!(IdentityConfig::default().problems().is_empty());
    let incomplete = IdentityConfig {
        trust_file: None,
        ..whole.clone()
    };
    let problems = incomplete.problems().to_string();
    assert!(problems.contains("three files"), "{problems}");
    let problems_with = |role, pattern: &str| {
        let roles = [(role, pattern.to_owned())].into();
        let config = IdentityConfig {
            roles,
            ..whole.clone()
        };
        config.problems().to_string()
    };
    assert!(problems_with(Role::Boat, "boat").starts_with("roles.boat is boat"));
    let problems_both = problems_with(Role::Boat, "spiffe://packetboat/packetboat/station/*");
    assert!(
        problems_both.contains("boat and station have the same URI"),
        "{problems_both}"
    );
    assert_eq!(problems_with(Role::Boat, "spiffe://a/ns/b/sa/c"), "");
}

/// Peer that shows its files whatever they hold, and accepts any certificate.
struct ForgedPeer {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl ForgedPeer {
    fn new(files: &Files, stem: &str) -> ForgedPeer {
        use rustls::pki_types::pem::PemObject;
        let chain = certificates::read_certificates(&files.pair(stem).cert_file);
        let chain = chain.expect("a certificate");
        let key = || PrivateKeyDer::from_pem_file(files.pair(stem).key_file).expect("a key");
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key())
            .expect("a certificate");
        let client = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("a version")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Blind))
            .with_client_auth_cert(chain, key())
            .expect("a certificate");
        let mut forged = ForgedPeer {
            server: Arc::new(server),
            client: Arc::new(client),
        };
        let h2 = vec![b"h2".to_vec()];
        Arc::get_mut(&mut forged.server)
            .expect("one")
            .alpn_protocols = h2.clone();
        Arc::get_mut(&mut forged.client)
            .expect("one")
            .alpn_protocols = h2;
        forged
    }

    fn call(&self, callee: &Identity) -> Result<Pair, rustls::Error> {
        Pair::connect(&callee.accepting(), &self.client, "any")
    }
}

fn call_forged(caller: &Identity, callee: &ForgedPeer) -> Result<Pair, rustls::Error> {
    Pair::connect(&callee.server, &caller.calling(Role::Boat), "any")
}

/// Verifier that accepts every server.
#[derive(Debug)]
struct Blind;

impl rustls::client::danger::ServerCertVerifier for Blind {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}
