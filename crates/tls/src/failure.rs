// SPDX-License-Identifier: Apache-2.0
//! Why a connection isn't, or is no longer, a TLS connection.

use std::fmt;

/// Why, in words for who looks after the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// What came first is no TLS.
    Plain,
    /// One of both sides has refused the other one.
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
mod of_rustls {
    use rustls::{AlertDescription, CertificateError, Error};

    use super::Failure;

    impl From<Error> for Failure {
        fn from(e: Error) -> Failure {
            Failure::Refused(match &e {
                Error::AlertReceived(alert) => of_alert(*alert),
                Error::NoCertificatesPresented => {
                    "the client shows no certificate, and `client_ca` asks for one (redis-cli --cert, --key)".into()
                }
                Error::InvalidCertificate(e) => of_certificate(e),
                Error::PeerIncompatible(_) => format!("the client doesn't speak TLS 1.3 ({e})"),
                _ => e.to_string(),
            })
        }
    }

    /// What the client has said before it left.
    fn of_alert(alert: AlertDescription) -> String {
        match alert {
            AlertDescription::UnknownCA => {
                "the client doesn't know who has signed this server's certificate: give it the authority's \
                 (redis-cli --cacert)"
                    .into()
            }
            AlertDescription::CertificateExpired => {
                "the client says that this server's certificate has expired: replace it".into()
            }
            AlertDescription::BadCertificate | AlertDescription::CertificateUnknown => {
                "the client doesn't accept this server's certificate: look at the names and addresses in it".into()
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
