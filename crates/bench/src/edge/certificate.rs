//! Certificate for this machine's own address, for the run.

use std::path::Path;

use anyhow::{Context, Result};
use backend::tls::CertificateFiles;

/// Creates a self-signed certificate with an ECDSA P-256 key.
pub(super) fn make(folder: &Path) -> Result<CertificateFiles> {
    let names = ["127.0.0.1".to_owned()];
    let certificate = rcgen::generate_simple_self_signed(names).context("making a certificate")?;
    let folder = folder.canonicalize().context("the folder of the data")?;
    let files = CertificateFiles::within(&folder, "edge");
    files.write(
        &certificate.cert.pem(),
        &certificate.signing_key.serialize_pem(),
    )?;
    Ok(files)
}
