//! `packetboat certs`: issues certificates for services from a root in a folder.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use backend::clock::{Clock, SystemClock};
use backend::files::digest;
use clap::{Args, Subcommand};
use protocol::access::{Role, Roles};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tempfile::NamedTempFile;

use super::terminal::outln;

const ROOTS: &str = "ca.crt";
const ROOT_KEY: &str = "ca.key";
/// A root is replaced by hand, and without hurry.
const ROOT_LIFE: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Certificates are valid from a little before now: clocks differ.
const BEGIN: Duration = Duration::from_secs(3600);

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  packetboat certs new identity
  packetboat certs new identity --service boat/boat-1 --service boat/boat-2 --days 7
  packetboat certs root identity && packetboat certs new identity && packetboat certs retire identity

A service reads its files again within ten seconds. Where roots change, wait between the steps until every
service has the new files.")]
pub struct Certs {
    #[command(subcommand)]
    verb: CertsCommand,
}

#[derive(Debug, Subcommand)]
enum CertsCommand {
    /// Create certificates, and a root for them if the folder has none.
    New(New),
    /// Create a new root, and keep trusting the old ones.
    Root(Folder),
    /// Trust only the newest root from now on.
    Retire(Folder),
}

#[derive(Debug, Args)]
struct New {
    #[command(flatten)]
    folder: Folder,
    /// Service to issue for; its files are NAME.crt and NAME.key. Default: one for each role, named
    /// after it.
    #[arg(long = "service", value_name = "ROLE/NAME")]
    services: Vec<Service>,
    /// Trust domain in the certificates' URIs (settings: identity.trust_domain).
    #[arg(long, default_value = "packetboat")]
    domain: String,
    /// Validity of a certificate, in days.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=825))]
    days: u32,
}

#[derive(Debug, Args)]
struct Folder {
    /// Folder of root and certificates. Its ca.key can impersonate any service: keep it away from
    /// all of them.
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

#[derive(Clone, Debug)]
struct Service {
    role: Role,
    name: String,
}

impl FromStr for Service {
    type Err = String;

    fn from_str(text: &str) -> Result<Service, String> {
        let (role, name) = text.split_once('/').unwrap_or((text, text));
        let matching_role = Role::ALL
            .into_iter()
            .find(|candidate| candidate.name() == role);
        let role = matching_role.ok_or_else(|| {
            let names = Role::ALL.map(Role::name).join(", ");
            format!("unknown role {role}: use one of {names}")
        })?;
        let name = name.to_owned();
        // The root's files must not be overwritten.
        if name == "ca" {
            return Err("the name ca is reserved for the root's files".into());
        }
        Ok(Service { role, name })
    }
}

impl Certs {
    pub(super) fn run(self) -> Result<ExitCode> {
        let output_lines = match self.verb {
            CertsCommand::New(new) => new.run()?,
            CertsCommand::Root(folder) => vec![folder.add_root()?],
            CertsCommand::Retire(folder) => vec![folder.retire()?],
        };
        // A reader of standard output who leaves must not keep a file from being written.
        for line in output_lines {
            outln!("{line}")?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

impl New {
    /// Writes the files. Returns a line for each certificate.
    fn run(self) -> Result<Vec<String>> {
        let services = if self.services.is_empty() {
            Role::ALL
                .map(|role| Service {
                    role,
                    name: role.name().into(),
                })
                .to_vec()
        } else {
            self.services
        };
        // Otherwise the settings would not recognize them.
        let roles = Roles::new(&self.domain, &Default::default());
        let mut names = BTreeSet::new();
        for Service { role, name } in &services {
            let uri = uri(&self.domain, *role, name);
            roles.caller(&[&uri]).with_context(|| {
                format!(
                    "{name:?} is not a valid service name: use letters, digits, '.', '_' and '-'"
                )
            })?;
            if !names.insert(name) {
                bail!("two services are named {name}: their files would overwrite each other");
            }
        }
        let mut output_lines = Vec::new();
        if !self.folder.file(ROOT_KEY).exists() {
            output_lines.push(self.folder.add_root()?);
        }
        let root = self.folder.root()?;
        let life = Duration::from_secs(u64::from(self.days) * 86_400);
        for Service { role, name } in services {
            let uri = uri(&self.domain, role, &name);
            let (certificate, key) = issue(&root, &uri, life)?;
            self.folder.write(&format!("{name}.key"), &key, false)?;
            self.folder
                .write(&format!("{name}.crt"), &certificate, true)?;
            let file = self.folder.file(&format!("{name}.crt"));
            output_lines.push(format!("{} {uri}", file.display()));
        }
        Ok(output_lines)
    }
}

fn uri(domain: &str, role: Role, name: &str) -> String {
    format!("spiffe://{domain}/packetboat/{role}/{name}")
}

/// Issues a certificate for a service, with its key, both in PEM.
fn issue(root: &Issuer<'_, KeyPair>, uri: &str, life: Duration) -> Result<(String, String)> {
    let mut params = params_for_lifetime(life);
    params.subject_alt_names = vec![SanType::URI(uri.try_into()?)];
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ServerAuth,
        ExtendedKeyUsagePurpose::ClientAuth,
    ];
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, root)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

fn params_for_lifetime(life: Duration) -> CertificateParams {
    let now = u64::try_from(SystemClock.now().millis()).unwrap_or_default();
    let now = rcgen::date_time_ymd(1970, 1, 1) + Duration::from_millis(now);
    let mut params = CertificateParams::default();
    params.not_before = now - BEGIN;
    params.not_after = now + life;
    // Without a name of its own it would carry the library's.
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
}

/// The root of this key: its name derives from the key, so that the key alone can sign for it.
fn root_of(key: &KeyPair) -> CertificateParams {
    let mut params = params_for_lifetime(ROOT_LIFE);
    let mark: String = digest([key.public_key_raw()])[..4]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let name = format!("Packetboat services {mark}");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Folder {
    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn root(&self) -> Result<Issuer<'static, KeyPair>> {
        let path = self.file(ROOT_KEY);
        let text = std::fs::read_to_string(&path);
        let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
        // The parser's error is left out: it could quote the key.
        let Ok(key) = KeyPair::from_pem(&text) else {
            bail!("{} holds no private key in PEM", path.display());
        };
        Ok(Issuer::new(root_of(&key), key))
    }

    /// Adds a new root in front of the others. Returns the file of roots.
    fn add_root(&self) -> Result<String> {
        std::fs::create_dir_all(&self.path)
            .with_context(|| format!("cannot create {}", self.path.display()))?;
        let key = KeyPair::generate()?;
        let mut roots = root_of(&key).self_signed(&key)?.pem();
        roots.push_str(&self.roots()?);
        // The certificate is written before the key: a crash in between leaves a trusted root that
        // nobody can use.
        self.write(ROOTS, &roots, true)?;
        self.write(ROOT_KEY, &key.serialize_pem(), false)?;
        Ok(self.file(ROOTS).display().to_string())
    }

    /// Keeps only the root of the present key, whatever stands first. Returns the file of roots.
    fn retire(&self) -> Result<String> {
        const END: &str = "-----END CERTIFICATE-----\n";
        let roots = self.roots()?;
        let root = self.root()?;
        let key = root.key().public_key_raw();
        let is_of_key = |pem: &&str| {
            let der = CertificateDer::from_pem_slice(pem.as_bytes());
            der.is_ok_and(|der| der.windows(key.len()).any(|bytes| bytes == key))
        };
        let Some(present) = roots.split_inclusive(END).find(is_of_key) else {
            let (roots, key) = (self.file(ROOTS), self.file(ROOT_KEY));
            bail!(
                "{} does not contain the root of {}",
                roots.display(),
                key.display()
            );
        };
        self.write(ROOTS, present, true)?;
        Ok(self.file(ROOTS).display().to_string())
    }

    /// The trusted roots; empty if there is no file.
    fn roots(&self) -> Result<String> {
        let path = self.file(ROOTS);
        if path.exists() {
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
            Ok(text.replace("\r\n", "\n"))
        } else {
            Ok(String::new())
        }
    }

    /// Writes a file atomically, and a key readable by its owner only.
    fn write(&self, name: &str, text: &str, is_public: bool) -> Result<()> {
        let path = self.file(name);
        let result = write(&self.path, &path, text, is_public);
        result.with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Writes a file atomically; one that is not public, readable by its owner only.
pub(super) fn write(folder: &Path, path: &Path, text: &str, is_public: bool) -> Result<()> {
    let mut file = NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    if is_public {
        use std::os::unix::fs::PermissionsExt;
        let everybody = std::fs::Permissions::from_mode(0o644);
        file.as_file().set_permissions(everybody)?;
    }
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;

    use backend::tls::{Identity, IdentityConfig};

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("identity");
        (dir, Folder { path })
    }

    fn new(folder: &Folder, services: &[&str]) -> Result<()> {
        let services = services
            .iter()
            .map(|text| text.parse().map_err(anyhow::Error::msg))
            .collect::<Result<_>>()?;
        let folder = Folder {
            path: folder.path.clone(),
        };
        let new = New {
            folder,
            services,
            domain: "packetboat".into(),
            days: 30,
        };
        new.run().map(drop)
    }

    fn load(folder: &Folder, stem: &str, role: Role) -> Result<Identity> {
        let config = IdentityConfig::within(&folder.path, stem);
        Ok(Identity::load(&config, Some(role), Arc::new(SystemClock))?)
    }

    #[test]
    fn each_role_gets_what_a_process_of_it_takes() {
        let (_dir, folder) = folder();
        new(&folder, &[]).expect("made");
        for role in Role::ALL {
            let identity = load(&folder, role.name(), role).expect("an identity");
            assert_eq!(
                identity.own(),
                protocol::access::Caller::new(role, role.name())
            );
            let days = identity.expires_in().as_secs() / 86_400;
            assert!((29..=30).contains(&days), "{days}");
        }
        assert!(load(&folder, "boat", Role::Station).is_err());
        for (name, mode) in [("ca.key", 0o600), ("boat.key", 0o600), ("ca.crt", 0o644)] {
            let metadata = std::fs::metadata(folder.file(name)).expect("a file");
            assert_eq!(metadata.permissions().mode() & 0o777, mode, "{name}");
        }
    }

    #[test]
    fn the_same_root_signs_again() {
        let (_dir, folder) = folder();
        new(&folder, &["boat/boat-1"]).expect("made");
        let root = folder.roots().expect("a root");
        new(&folder, &["boat/boat-2", "carrier"]).expect("made");
        assert_eq!(folder.roots().expect("a root"), root);
        for (stem, role) in [
            ("boat-1", Role::Boat),
            ("boat-2", Role::Boat),
            ("carrier", Role::Carrier),
        ] {
            load(&folder, stem, role).expect(stem);
        }
    }

    #[test]
    fn roots_change_in_three_steps_and_each_of_them_works() {
        let (_dir, folder) = folder();
        new(&folder, &["boat/old", "boat/new"]).expect("made");
        folder.add_root().expect("a second root");
        load(&folder, "old", Role::Boat).expect("of the old root");
        new(&folder, &["boat/new"]).expect("of the new root");
        load(&folder, "new", Role::Boat).expect("of the new root");
        load(&folder, "old", Role::Boat).expect("of the old root");
        folder.retire().expect("one root");
        load(&folder, "new", Role::Boat).expect("of the new root");
        let error = load(&folder, "old", Role::Boat).expect_err("its root is gone");
        assert!(
            error.to_string().contains("other services would refuse"),
            "{error}"
        );
    }

    #[test]
    fn invalid_service_names_are_refused_before_any_write() {
        let (_dir, folder) = folder();
        assert!(new(&folder, &["boat/a", "station/a"]).is_err());
        for service in [
            "boat/",
            "boat/a b",
            "boat/a/b",
            "boat/../ca",
            "captain/a",
            "boat/ca",
        ] {
            assert!(new(&folder, &[service]).is_err(), "{service}");
        }
        assert!(!folder.path.exists());
    }
}
