// SPDX-License-Identifier: Apache-2.0
//! The reasons why a connection isn't, or is no longer, a TLS connection.

use std::fmt;

/// The reason why a connection failed, in words for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The first bytes were no TLS.
    Plain,
    /// One side has refused the other.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Plain => f.write_str("the client doesn't speak TLS (redis-cli --tls does)"),
            Failure::Refused(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for Failure {}

#[cfg(feature = "rustls")]
pub(crate) use of_rustls::of_peer;

#[cfg(feature = "rustls")]
mod of_rustls {
    use std::io;

    use rustls::{AlertDescription, CertificateError, Error};

    use super::Failure;

    impl From<Error> for Failure {
        fn from(e: Error) -> Failure {
            Failure::Refused(match &e {
                Error::AlertReceived(alert) => of_alert(*alert),
                Error::NoCertificatesPresented => {
                    "the client shows no certificate, and `client_ca` asks for one (redis-cli \
                     --cert, --key)"
                        .into()
                }
                Error::InvalidCertificate(e) => of_certificate(e),
                Error::PeerIncompatible(_) => format!("the client doesn't speak TLS 1.3 ({e})"),
                _ => e.to_string(),
            })
        }
    }

    /// Returns why another node isn't the expected one, or refuses this one.
    pub fn of_peer(e: Error) -> io::Error {
        let why = match &e {
            Error::AlertReceived(alert) => format!(
                "the other node doesn't take this one's certificate ({alert:?}): look at \
                 `state_tls` there and here"
            ),
            Error::NoCertificatesPresented => "the other side shows no certificate".into(),
            Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            ) => "the other node's certificate isn't for its `control` address".into(),
            Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                "the other node's certificate isn't signed by the `ca` of `state_tls`".into()
            }
            Error::InvalidCertificate(
                CertificateError::Expired | CertificateError::ExpiredContext { .. },
            ) => "the other node's certificate has expired".into(),
            Error::InvalidCertificate(e) => {
                format!("the other node's certificate doesn't count: {e}")
            }
            Error::InvalidMessage(_) => {
                "the other side doesn't speak TLS: `state_tls` must be in the cluster file of both"
                    .into()
            }
            _ => e.to_string(),
        };
        io::Error::new(io::ErrorKind::PermissionDenied, why)
    }

    /// Explains the alert that a client sent before it disconnected.
    fn of_alert(alert: AlertDescription) -> String {
        match alert {
            AlertDescription::UnknownCA => {
                "the client doesn't know who has signed this server's certificate: give it the \
                 authority's (redis-cli --cacert)"
                    .into()
            }
            AlertDescription::CertificateExpired => {
                "the client says that this server's certificate has expired: replace it".into()
            }
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                "the client doesn't accept this server's certificate: look at the names and \
                 addresses in it"
                    .into()
            }
            alert => format!("the client has ended it: {alert:?}"),
        }
    }

    fn of_certificate(e: &CertificateError) -> String {
        match e {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the client's certificate has expired".into()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the client's certificate isn't valid yet: look at both clocks".into()
            }
            CertificateError::UnknownIssuer => {
                "the client's certificate isn't signed by any of `client_ca`".into()
            }
            e => format!("the client's certificate doesn't count: {e}"),
        }
    }
}
