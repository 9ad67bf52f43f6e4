//! How a server shows that it is the one: whom to trust, and whether its name is looked at.
//!
//! Once TLS is asked for, the certificate is always checked: encryption to somebody unknown protects from nobody who can
//! stand in the way. Only `verify-ca` leaves the name aside, for servers that are reached by an address.

use std::sync::Arc;

use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use super::connect::unusable;
use crate::Result;

/// Trusts the authorities in a file, or the public ones. `is_name_checked` says whether the certificate must be for the name by
/// which the server is reached.
pub(super) fn client_config(root: Option<&str>, is_name_checked: bool) -> Result<ClientConfig> {
    let provider = Arc::new(ring::default_provider());
    let roots = Arc::new(roots(root)?);
    let wrong = |error: &dyn std::fmt::Display| unusable(error.to_string());
    let known = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
    let known = known.map_err(|error| wrong(&error))?;
    let verifier: Arc<dyn ServerCertVerifier> =
        if is_name_checked { known } else { Arc::new(AnyName(known)) };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| wrong(&error))?;
    Ok(config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn roots(path: Option<&str>) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let Some(path) = path else {
        roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(roots);
    };
    let unreadable = |error: String| unusable(format!("cannot read the certificates in {path}: {error}"));
    let found = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(error.to_string()))?;
    for certificate in found {
        let certificate = certificate.map_err(|error| unreadable(error.to_string()))?;
        roots.add(certificate).map_err(|error| unreadable(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(unreadable("there are none".to_owned()));
    }
    Ok(roots)
}

/// Looks at everything but the name, which is looked at last.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        match self.0.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
