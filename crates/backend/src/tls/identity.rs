//! Certificate of a service's identity, and mutual verification between services.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use protocol::Timestamp;
use protocol::access::{Caller, Role, Roles, is_pattern};
use protocol::settings::Problems;
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{
    ClientConfig, DigitallySignedStruct, DistinguishedName, Error as RustlsError, RootCertStore,
    ServerConfig, SignatureScheme,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::certificates::{Certificate, look_twice, parse_certificates, read_file, uris_and_end};
use super::{CertificateError, CertificateFiles, provider};
use crate::clock::Clock;
use crate::files::{Reload, digest};

const HTTP2: &[u8] = b"h2";

/// Section `identity`: proof of identity between services.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct IdentityConfig {
    /// PEM file with this service's certificate, whose one URI names its role, followed by its
    /// intermediates. Read again when it changes, as are the other two files. Unset: services show
    /// no certificates.
    #[schemars(extend("examples" = ["/etc/packetboat/identity/tls.crt"]))]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the private key of `cert_file`, without a passphrase.
    #[schemars(extend("examples" = ["/etc/packetboat/identity/tls.key"]))]
    pub key_file: Option<PathBuf>,
    /// PEM file with the roots that sign other services' certificates; while roots change, the old
    /// and the new one.
    #[schemars(extend("examples" = ["/etc/packetboat/identity/ca.crt"]))]
    pub trust_file: Option<PathBuf>,
    /// `DOMAIN` in `spiffe://DOMAIN/packetboat/ROLE/NAME`, the URI of a service.
    pub trust_domain: String,
    /// URIs of roles that have another form, such as
    /// `boat = "spiffe://cluster.local/ns/packetboat/sa/packetboat-boat"`. The last segment may be
    /// `*`, for the service's name.
    pub roles: BTreeMap<Role, String>,
    /// Refuses services that show no certificate. `false` with files: services without one are
    /// accepted, too, while a cluster changes over. `false` without files: anyone who reaches a
    /// service's address is trusted, for a mesh that protects it.
    pub required: bool,
}

impl Default for IdentityConfig {
    fn default() -> IdentityConfig {
        IdentityConfig {
            cert_file: None,
            key_file: None,
            trust_file: None,
            trust_domain: "packetboat".into(),
            roles: BTreeMap::new(),
            required: true,
        }
    }
}

impl IdentityConfig {
    pub fn is_on(&self) -> bool {
        self.cert_file.is_some()
    }

    /// Paths of the files that `packetboat certs new` writes.
    #[must_use]
    pub fn within(folder: &Path, stem: &str) -> IdentityConfig {
        let CertificateFiles {
            cert_file,
            key_file,
        } = CertificateFiles::within(folder, stem);
        IdentityConfig {
            cert_file: Some(cert_file),
            key_file: Some(key_file),
            trust_file: Some(folder.join("ca.crt")),
            ..IdentityConfig::default()
        }
    }

    /// Settings that cannot work, by names of this section.
    #[must_use]
    pub fn problems(&self) -> Problems {
        let mut problems = Problems::default();
        let files = [&self.cert_file, &self.key_file, &self.trust_file];
        let file_count = files.iter().filter(|file| file.is_some()).count();
        if file_count != 0 && file_count != files.len() {
            let remedy = "Set all of cert_file, key_file and trust_file, or none";
            problems.refuse("cert_file", "", "an identity needs three files", remedy);
        }
        for (role, pattern) in &self.roles {
            if !is_pattern(pattern) {
                let key = format!("roles.{role}");
                let remedy = "Such as spiffe://cluster.local/ns/packetboat/sa/packetboat-boat";
                problems.refuse(&key, pattern, "not a service URI", remedy);
            }
        }
        if let Some((one, other)) = self.patterns().ambiguity() {
            let reason = format!("{one} and {other} have the same URI");
            problems.refuse("roles", "", &reason, "Give each role a URI of its own");
        }
        problems
    }

    fn patterns(&self) -> Roles {
        Roles::new(&self.trust_domain, &self.roles)
    }
}

/// Reason why a service has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("cert_file, key_file and trust_file are all needed")]
    Incomplete,
    #[error("{path} is not a service certificate: {reason}")]
    NoService { path: PathBuf, reason: String },
    #[error("{path} is for {found}, but this process is a {wanted}")]
    OtherRole {
        path: PathBuf,
        found: Caller,
        wanted: Role,
    },
    #[error("other services would refuse {path}: {reason}")]
    Untrusted { path: PathBuf, reason: RustlsError },
}

impl IdentityError {
    /// Whether one file may be renewed and another not yet: the key, or the roots.
    fn is_half(&self) -> bool {
        match self {
            IdentityError::Certificate(error) => error.is_half(),
            IdentityError::Untrusted { .. } => true,
            _ => false,
        }
    }
}

/// Certificate, key and roots of a service, reread when their files change. Live connections keep
/// what they began with.
pub struct Identity {
    files: IdentityFiles,
    role: Option<Role>,
    is_required: bool,
    roles: Arc<Roles>,
    clock: Arc<dyn Clock>,
    current: ArcSwap<Current>,
}

#[derive(Clone, Debug)]
struct IdentityFiles {
    pair: CertificateFiles,
    trust: PathBuf,
}

struct Current {
    digest: [u8; 32],
    own: Caller,
    end: Timestamp,
    verifier: Verifier,
    server_config: Arc<ServerConfig>,
    /// Configurations by role called, in the order of `Role::ALL`.
    client_configs: Vec<Arc<ClientConfig>>,
}

impl Identity {
    /// Reads the files of a process of this role, or of any, and verifies them as a peer would.
    ///
    /// # Errors
    /// Unusable files, a certificate of another role, or one that its own roots do not verify.
    pub fn load(
        config: &IdentityConfig,
        role: Option<Role>,
        clock: Arc<dyn Clock>,
    ) -> Result<Identity, IdentityError> {
        let (Some(cert_file), Some(key_file), Some(trust)) =
            (&config.cert_file, &config.key_file, &config.trust_file)
        else {
            return Err(IdentityError::Incomplete);
        };
        let pair = CertificateFiles {
            cert_file: cert_file.clone(),
            key_file: key_file.clone(),
        };
        let files = IdentityFiles {
            pair,
            trust: trust.clone(),
        };
        let roles = Arc::new(config.patterns());
        let contents = files.read()?;
        let current = Current::build(&files, &contents, role, &roles, clock.now())?;
        Ok(Identity {
            files,
            role,
            is_required: config.required,
            roles,
            clock,
            current: ArcSwap::from_pointee(current),
        })
    }

    /// Looks at the files again. Unusable files change nothing. Blocks for three small files, and
    /// for half a second if they do not match: a renewal changes one after the other.
    ///
    /// # Errors
    /// As for [`Identity::load`].
    pub fn reload(&self) -> Result<Reload, IdentityError> {
        look_twice(|| self.look(), IdentityError::is_half)
    }

    fn look(&self) -> Result<Reload, IdentityError> {
        let contents = self.files.read()?;
        if self.current.load().digest == digest(&contents) {
            return Ok(Reload::Unchanged);
        }
        let now = self.clock.now();
        let current = Current::build(&self.files, &contents, self.role, &self.roles, now)?;
        self.current.store(Arc::new(current));
        Ok(Reload::Reloaded)
    }

    /// Configuration for a connection opened by a peer.
    pub fn accepting(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.current.load().server_config)
    }

    /// Configuration for a connection to a peer of `role`.
    pub fn calling(&self, role: Role) -> Arc<ClientConfig> {
        Arc::clone(&self.current.load().client_configs[role as usize])
    }

    /// Service behind a certificate, and the time left until its end.
    pub fn peer(&self, certificate: &CertificateDer<'_>) -> Option<(Caller, Duration)> {
        let (caller, end) = caller_and_end(certificate, &self.roles).ok()?;
        Some((caller, end.since(self.clock.now())))
    }

    /// Whether a chain verified earlier would be accepted today, from a caller or a called service:
    /// its root may be retired.
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((leaf, intermediates)) = chain.split_first() else {
            return false;
        };
        let (at, current) = (unix_time(self.clock.now()), self.current.load());
        let clients = &current.verifier.clients;
        current.verifier.verify(leaf, intermediates, at).is_ok()
            || clients.verify_client_cert(leaf, intermediates, at).is_ok()
    }

    /// Identity of this process as its peers see it.
    pub fn own(&self) -> Caller {
        self.current.load().own.clone()
    }

    pub fn required(&self) -> bool {
        self.is_required
    }

    /// Time until this process's own certificate ends; zero once it is over.
    pub fn expires_in(&self) -> Duration {
        self.current.load().end.since(self.clock.now())
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("files", &self.files)
            .field("own", &self.own())
            .finish_non_exhaustive()
    }
}

impl IdentityFiles {
    /// Reads certificate, key and roots.
    fn read(&self) -> Result<[Vec<u8>; 3], CertificateError> {
        Ok([
            read_file(&self.pair.cert_file)?,
            read_file(&self.pair.key_file)?,
            read_file(&self.trust)?,
        ])
    }
}

impl Current {
    fn build(
        files: &IdentityFiles,
        contents: &[Vec<u8>; 3],
        role: Option<Role>,
        roles: &Arc<Roles>,
        now: Timestamp,
    ) -> Result<Current, IdentityError> {
        let [cert, key, trust] = contents;
        let Certificate { key, end, .. } =
            Certificate::parse(&files.pair, cert, key, digest(contents), now)?;
        let path = || files.pair.cert_file.clone();
        let mut roots = RootCertStore::empty();
        for certificate in parse_certificates(&files.trust, trust)? {
            let outcome = roots.add(certificate);
            outcome.map_err(|error| CertificateError::malformed(&files.trust, &error))?;
        }
        let verifier = Verifier::new(Arc::new(roots), Arc::clone(roles))
            .map_err(|error| CertificateError::malformed(&files.trust, &error))?;
        let (leaf, intermediates) = key
            .cert
            .split_first()
            .ok_or_else(|| CertificateError::NoCertificate(path()))?;
        let (own, _) = caller_and_end(leaf, roles).map_err(|reason| IdentityError::NoService {
            path: path(),
            reason,
        })?;
        if let Some(expected_role) = role.filter(|role| *role != own.role) {
            return Err(IdentityError::OtherRole {
                path: path(),
                found: own,
                wanted: expected_role,
            });
        }
        let at = unix_time(now);
        let result = verifier.verify(leaf, intermediates, at).and_then(|_| {
            verifier
                .clients
                .verify_client_cert(leaf, intermediates, at)?;
            Ok(())
        });
        result.map_err(|reason| IdentityError::Untrusted {
            path: path(),
            reason,
        })?;
        Ok(Current {
            digest: digest(contents),
            own,
            end,
            server_config: accepting(&verifier, &key).map_err(CertificateError::from)?,
            client_configs: (Role::ALL.iter())
                .map(|role| calling(&verifier, *role, &key))
                .collect::<Result<_, _>>()
                .map_err(CertificateError::from)?,
            verifier,
        })
    }
}

fn unix_time(at: Timestamp) -> UnixTime {
    let seconds = u64::try_from(at.millis() / 1000).unwrap_or_default();
    UnixTime::since_unix_epoch(Duration::from_secs(seconds))
}

/// Configuration for accepted connections: TLS 1.3 without resumption, since a resumed session
/// would not look at the chain again.
fn accepting(
    verifier: &Verifier,
    key: &Arc<CertifiedKey>,
) -> Result<Arc<ServerConfig>, RustlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(Arc::new(verifier.clone()))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.cert_compressors = Vec::new();
    Ok(Arc::new(config))
}

fn calling(
    verifier: &Verifier,
    role: Role,
    key: &Arc<CertifiedKey>,
) -> Result<Arc<ClientConfig>, RustlsError> {
    let verifier = Verifier {
        expected_role: Some(role),
        ..verifier.clone()
    };
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(key))));
    config.alpn_protocols = vec![HTTP2.to_vec()];
    config.resumption = Resumption::disabled();
    // Services are identified by role, and no certificate names their address.
    config.enable_sni = false;
    config.cert_decompressors = Vec::new();
    Ok(Arc::new(config))
}

fn caller_and_end(
    certificate: &CertificateDer<'_>,
    roles: &Roles,
) -> Result<(Caller, Timestamp), String> {
    let (uris, end) = uris_and_end(certificate)?;
    let uris: Vec<&str> = uris.iter().map(String::as_str).collect();
    let caller = roles.caller(&uris).map_err(|error| error.to_string())?;
    Ok((caller, end))
}

/// Verifies chains against the roots, and the role in a URI in place of a host name.
#[derive(Clone, Debug)]
struct Verifier {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    algorithms: WebPkiSupportedAlgorithms,
    roles: Arc<Roles>,
    /// Role of the called peer; unset where peers call.
    expected_role: Option<Role>,
}

impl Verifier {
    fn new(
        roots: Arc<RootCertStore>,
        roles: Arc<Roles>,
    ) -> Result<Verifier, rustls::server::VerifierBuilderError> {
        let provider = provider();
        let algorithms = provider.signature_verification_algorithms;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), provider).build()?;
        Ok(Verifier {
            roots,
            clients,
            algorithms,
            roles,
            expected_role: None,
        })
    }

    /// Verifies a chain as that of a server.
    fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<Caller, RustlsError> {
        let certificate = ParsedCertificate::try_from(leaf)?;
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(
            &certificate,
            &self.roots,
            intermediates,
            now,
            algorithms,
        )?;
        self.caller(leaf)
    }

    fn caller(&self, leaf: &CertificateDer<'_>) -> Result<Caller, RustlsError> {
        let caller = caller_and_end(leaf, &self.roles);
        let (caller, _) = caller.map_err(RustlsError::General)?;
        match self.expected_role {
            Some(expected_role) if expected_role != caller.role => Err(RustlsError::General(
                format!("its certificate is for {caller}, but a {expected_role} was called"),
            )),
            _ => Ok(caller),
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, RustlsError> {
        self.verify(leaf, intermediates, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.clients.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, RustlsError> {
        let assertion = self.clients.verify_client_cert(leaf, intermediates, now)?;
        self.caller(leaf)?;
        Ok(assertion)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.clients
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, RustlsError> {
        self.clients
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.clients.supported_verify_schemes()
    }
}
