// SPDX-License-Identifier: Apache-2.0
//! The HTTP connections, with TLS where an endpoint is `https`.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use keys::{Error, Passwords, Stamp};
use rustls::crypto::ring;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};

use crate::{MAX_ANSWER, Settings};

/// How long an idle connection is kept.
const IDLE: Duration = Duration::from_secs(10);
const HOW: &str = "see [controller.etcd] in docs/operations/cluster-file.md";

/// What follows from the files of the settings.
pub(crate) struct Connection {
    agent: Agent,
    /// The user's password.
    pub password: Option<String>,
    stamps: Vec<Option<Stamp>>,
}

/// An answer of HTTP.
pub(crate) struct HttpAnswer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Connection {
    pub fn open(settings: &Settings) -> Result<Connection, Error> {
        let stamps = stamps(settings);
        let password = match &settings.password_file {
            None => None,
            Some(path) => match keys::passwords(path)? {
                Passwords::One(password) => Some(password),
                Passwords::OfUsers(_) => {
                    let problem = "the password file has users";
                    return Err(Error::of(path, problem, "write one password into it"));
                }
            },
        };
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            // Proxies of the environment are for the way out of a network.
            .proxy(None)
            .no_delay(true)
            .max_idle_age(IDLE)
            .user_agent("")
            .tls_config(tls_config(settings)?)
            .build();
        Ok(Connection {
            agent: config.into(),
            password,
            stamps,
        })
    }

    /// Returns whether a file has been replaced since it was read.
    pub fn is_outdated(&self, settings: &Settings) -> bool {
        stamps(settings) != self.stamps
    }

    /// Sends a request, and waits so long for the whole answer.
    pub fn post(
        &self,
        url: &str,
        token: Option<&str>,
        body: &[u8],
        timeout: Duration,
    ) -> Result<HttpAnswer, String> {
        let request = self
            .agent
            .post(url)
            .header("Content-Type", "application/json");
        let request = match token {
            Some(token) => request.header("Authorization", token),
            None => request,
        };
        let request = request.config().timeout_global(Some(timeout)).build();
        let mut answer = request.send(body).map_err(|e| in_words(&e))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MAX_ANSWER);
        let body = body.read_to_vec().map_err(|e| in_words(&e))?;
        Ok(HttpAnswer { status, body })
    }
}

fn in_words(e: &ureq::Error) -> String {
    match e {
        ureq::Error::Timeout(_) => "no whole answer in time".to_owned(),
        ureq::Error::BodyExceedsLimit(limit) => format!("the answer has more than {limit} bytes"),
        ureq::Error::Io(e) => e.to_string(),
        e => e.to_string(),
    }
}

fn stamps(settings: &Settings) -> Vec<Option<Stamp>> {
    let shown = settings.certificate.iter();
    let shown = shown.flat_map(|(certificate, key)| [certificate, key]);
    let files = settings
        .password_file
        .iter()
        .chain(&settings.ca)
        .chain(shown);
    files.map(|path| Stamp::of(path)).collect()
}

fn tls_config(settings: &Settings) -> Result<TlsConfig, Error> {
    let roots = match &settings.ca {
        Some(path) => certificates(path)?,
        None => Vec::new(),
    };
    let shown = match &settings.certificate {
        Some((certificate, key)) => {
            let chain = certificates(certificate)?;
            Some(ClientCert::new_with_certs(&chain, private_key(key)?))
        }
        None => None,
    };
    let config = TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(shown)
        .unversioned_rustls_crypto_provider(Arc::new(ring::default_provider()));
    Ok(config.build())
}

/// Returns all certificates of a file, which must be at least one.
fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, Error> {
    let unusable = |why: &dyn Display| Error::of(path, format_args!("can't be used: {why}"), HOW);
    let bytes = fs::read(path).map_err(|e| unusable(&e))?;
    let mut all = Vec::new();
    for item in ureq::tls::parse_pem(&bytes) {
        match item.map_err(|e| unusable(&e))? {
            PemItem::Certificate(certificate) => all.push(certificate),
            _ => continue,
        }
    }
    match all.is_empty() {
        true => Err(unusable(&"it holds no certificate in PEM")),
        false => Ok(all),
    }
}

fn private_key(path: &Path) -> Result<PrivateKey<'static>, Error> {
    let text = keys::private_key(path)?;
    let read = PrivateKey::from_pem(text.as_bytes());
    read.map_err(|e| Error::of(path, format_args!("holds no private key in PEM: {e}"), HOW))
}
