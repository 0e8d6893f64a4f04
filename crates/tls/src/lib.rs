// SPDX-License-Identifier: Apache-2.0
//! TLS 1.3 by rustls, without sockets: for Redis clients, where bytes come in and go out, and
//! between nodes, over any stream.
//!
//! Older versions aren't supported, so there is no renegotiation. A session is never resumed, so
//! each connection proves its identity anew. The files may be replaced while a process runs.
//!
//! The cargo feature `rustls` builds it. Without it, as in the build of `./dev demo`, the same
//! functions return an error that says so.

#[cfg(feature = "rustls")]
mod certificates;
mod failure;
#[cfg(feature = "rustls")]
mod peers;
#[cfg(feature = "rustls")]
mod reloaded_files;
#[cfg_attr(not(feature = "rustls"), path = "without_tls.rs")]
mod session;
#[cfg(all(test, feature = "rustls"))]
mod tests;

use std::path::PathBuf;

use serde::Serialize;

pub use failure::Failure;
#[cfg(feature = "rustls")]
pub use peers::{Peers, Stream};
#[cfg(not(feature = "rustls"))]
pub use session::{Peers, Stream};
pub use session::{Server, TlsSession};

/// The largest number of bytes that one record sends.
pub const RECORD_LEN: usize = 16 << 10;

/// The certificate that a server shows its clients, and those that clients must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// The server's certificate, followed by those that lead to an authority that clients know;
    /// PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate; PEM. Only its owner may be able to read it.
    pub key: PathBuf,
    /// The authorities that must have signed clients' certificates; PEM. With `None` clients show
    /// no certificate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// The certificate that a node shows others, and those that others must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerFiles {
    /// The node's certificate, followed by those that lead to the authority; PEM. It names the
    /// address to which others connect.
    pub certificate: PathBuf,
    /// The private key of the certificate; PEM. Only its owner may be able to read it.
    pub key: PathBuf,
    /// The authorities that must have signed others' certificates; PEM.
    pub ca: PathBuf,
}
