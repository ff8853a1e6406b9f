//! Certificates of boats that a test starts.

use std::path::Path;

use backend::tls::CertificateFiles;

/// Creates a certificate for 127.0.0.1 and its key, as files of this name.
pub fn certificate(folder: &Path, stem: &str) -> CertificateFiles {
    let names = ["127.0.0.1".to_owned()];
    let certified_key = rcgen::generate_simple_self_signed(names).expect("a certificate");
    let files = CertificateFiles::within(folder, stem);
    let result = files.write(
        &certified_key.cert.pem(),
        &certified_key.signing_key.serialize_pem(),
    );
    result.expect("files");
    files
}

/// Setting of a boat that uses the certificate.
pub fn tls(files: &CertificateFiles) -> String {
    format!("boat.tls.certificates = {}", files.setting())
}
