//! TLS clients: the certificates that are accepted, and the one that is shown.
//!
//! rustls takes a listed certificate for an authority only. A server whose only certificate is self-signed, as the
//! usual commands make it, has an authority's certificate as its own. Such a certificate is accepted if it is listed
//! byte for byte. Its name and its time of validity must be correct, as for every other one.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};
use rustls_platform_verifier::Verifier;

pub use rustls;

/// The certificates of servers that are accepted.
#[derive(Debug)]
pub enum Trust {
    /// Every certificate.
    Any,
    /// What an authority of the system or of `listed` has issued, and the listed certificates themselves.
    Verified {
        /// The listed certificates.
        listed: Vec<CertificateDer<'static>>,
    },
}

/// The certificate of a client, with its chain, and its key.
#[derive(Debug)]
pub struct ClientCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl ClientCertificate {
    /// Reads a PEM text with both.
    pub fn from_pem(pem: &[u8]) -> Result<Self, pem::Error> {
        let chain = certificates(pem)?;
        if chain.is_empty() {
            return Err(pem::Error::NoItemsFound);
        }
        Ok(Self { chain, key: PrivateKeyDer::from_pem_slice(pem)? })
    }
}

/// The certificates in a PEM text.
pub fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem).collect()
}

/// The configuration of a client.
pub fn config(trust: Trust, client: Option<ClientCertificate>) -> Result<ClientConfig, Error> {
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let verifier: Arc<dyn ServerCertVerifier> = match trust {
        Trust::Any => Arc::new(Unverified(provider.clone())),
        Trust::Verified { listed } => {
            let authorities = Verifier::new_with_extra_roots(listed.iter().cloned(), provider.clone())?;
            Arc::new(Verified { authorities, listed })
        }
    };
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    match client {
        Some(ClientCertificate { chain, key }) => builder.with_client_auth_cert(chain, key),
        None => Ok(builder.with_no_client_auth()),
    }
}

/// The verifier of [`Trust::Verified`].
#[derive(Debug)]
struct Verified {
    authorities: Verifier,
    listed: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verified {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let issued = self.authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match issued {
            Err(refused) if is_about_the_issuer(&refused) && self.listed.iter().any(|listed| listed == end_entity) => {
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                Ok(ServerCertVerified::assertion())
            }
            issued => issued,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.authorities.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.authorities.supported_verify_schemes()
    }
}

/// Whether a certificate was refused only because of its issuer. The time of validity is checked before that: an
/// expired certificate has another error.
fn is_about_the_issuer(refused: &Error) -> bool {
    match refused {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => true,
        // The type belongs to webpki, which rustls does not name in its interface.
        Error::InvalidCertificate(CertificateError::Other(cause)) => cause.0.to_string() == "CaUsedAsEndEntity",
        _ => false,
    }
}

/// The verifier of [`Trust::Any`].
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    // The certificate is not verified, so a signature by its key proves nothing.
    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
