// SPDX-License-Identifier: Apache-2.0
//! Turns files into the configurations of rustls.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use keys::Error;
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, WebPkiClientVerifier};
use rustls::{InconsistentKeys, RootCertStore, version};

use crate::{Files, PeerFiles};

/// The parts of the documentation that explain how to make the files for Redis clients, and for
/// other nodes.
const FOR_CLIENTS: &str =
    "docs/operations/redis-and-tls.md (\"TLS for Redis clients\") says how to make one";
const FOR_NODES: &str =
    "docs/operations/redis-and-tls.md (\"TLS for states\") says how to make one";

/// Returns the configuration of a server for Redis clients.
pub fn config(files: &Files) -> Result<Arc<ServerConfig>, Error> {
    server_config(files, FOR_CLIENTS)
}

fn server_config(files: &Files, how: &'static str) -> Result<Arc<ServerConfig>, Error> {
    let provider = Arc::new(ring::default_provider());
    let chain = certificates(&files.certificate, how)?;
    let key = private_key(&files.key, how)?;
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&version::TLS13])
        .expect("the provider has TLS 1.3");
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(authorities(path, provider, how)?),
    };
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|e| unfit(&files.certificate, &files.key, e, how))?;
    // A client that resumes a session would not show its certificate again, which may have expired.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the configurations of a node for incoming and for outgoing connections.
pub fn peer_configs(files: &PeerFiles) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), Error> {
    let how = FOR_NODES;
    let shown = Files {
        certificate: files.certificate.clone(),
        key: files.key.clone(),
        client_ca: Some(files.ca.clone()),
    };
    let source = server_config(&shown, how)?;
    let mut asker = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&version::TLS13])
        .expect("the provider has TLS 1.3")
        .with_root_certificates(roots(&files.ca, how)?)
        .with_client_auth_cert(
            certificates(&files.certificate, how)?,
            private_key(&files.key, how)?,
        )
        .map_err(|e| unfit(&files.certificate, &files.key, e, how))?;
    asker.resumption = Resumption::disabled();
    Ok((source, Arc::new(asker)))
}

/// Returns all certificates of a file, which must be at least one.
fn certificates(path: &Path, how: &'static str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let bytes = fs::read(path).map_err(|e| {
        let problem = format_args!("the certificate can't be read: {e}").to_string();
        Error::of(path, problem, how)
    })?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    match read {
        Ok(all) if all.is_empty() => Err(Error::of(path, "holds no certificate in PEM", how)),
        Ok(all) => Ok(all),
        Err(e) => Err(Error::of(path, format!("is no certificate: {e}"), how)),
    }
}

fn private_key(path: &Path, how: &'static str) -> Result<PrivateKeyDer<'static>, Error> {
    let text = keys::private_key(path)?;
    let read = PrivateKeyDer::from_pem_slice(text.as_bytes());
    read.map_err(|e| match text.contains("ENCRYPTED") {
        true => Error::of(
            path,
            "the private key is encrypted, and nobody is there to say the passphrase",
            "take it off: `openssl pkey -in OLD -out NEW`",
        ),
        false => Error::of(path, format!("holds no private key in PEM: {e}"), how),
    })
}

/// Returns the check that a client's certificate is signed by one of the authorities.
fn authorities(
    path: &Path,
    provider: Arc<CryptoProvider>,
    how: &'static str,
) -> Result<Arc<dyn ClientCertVerifier>, Error> {
    let roots = Arc::new(roots(path, how)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
    let verifier = verifier.map_err(|e| no_authority(path, &e, how))?;
    Ok(verifier)
}

fn roots(path: &Path, how: &'static str) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, how)? {
        let added = roots.add(certificate);
        added.map_err(|e| no_authority(path, &e, how))?;
    }
    Ok(roots)
}

fn no_authority(path: &Path, e: &dyn Display, how: &'static str) -> Error {
    Error::of(
        path,
        format_args!("can't be used as an authority: {e}"),
        how,
    )
}

/// Returns the error of a certificate and a key that can't be used together.
fn unfit(certificate: &Path, key: &Path, e: rustls::Error, how: &'static str) -> Error {
    match e {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => Error::of(
            key,
            format_args!(
                "isn't the private key of the certificate {}",
                certificate.display()
            ),
            "name two files that belong together; the server's own certificate comes first in its \
             file",
        ),
        rustls::Error::InvalidCertificate(e) => Error::of(
            certificate,
            format_args!("the first certificate can't be used: {e}"),
            how,
        ),
        e => Error::of(
            key,
            format_args!("can't be used as private key: {e}"),
            "take one for ECDSA on P-256 or P-384, Ed25519, or RSA of 2,048 to 4,096 bits",
        ),
    }
}
