// SPDX-License-Identifier: Apache-2.0
//! TLS 1.3 by rustls, without sockets: for Redis clients, where bytes come in and go out, and between nodes, over any stream.
//!
//! Nothing older is spoken, so there is no renegotiation. A session is never resumed: each connection proves anew who
//! it is. The files may be replaced while it runs.
//!
//! The cargo feature `rustls` builds it. Without it, as in what `./dev demo` builds, the same functions say that it isn't there.

#[cfg(feature = "rustls")]
mod certificates;
mod failure;
#[cfg(feature = "rustls")]
mod followed;
#[cfg(feature = "rustls")]
mod peers;
#[cfg_attr(not(feature = "rustls"), path = "left_out.rs")]
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
pub use session::{Server, Session};

/// The most bytes that leave in one record.
pub const RECORD_LEN: usize = 16 << 10;

/// What a server shows its clients, and what they must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Files {
    /// Its certificate, and behind it those that lead to an authority which clients know; PEM.
    pub certificate: PathBuf,
    /// The private key of the certificate; PEM. Nobody but its owner may read it.
    pub key: PathBuf,
    /// The authorities of which clients must show a certificate; PEM. None: clients show none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_ca: Option<PathBuf>,
}

/// What a node shows others, and what they must show.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PeerFiles {
    /// Its certificate, and behind it those that lead to the authority; PEM. It names the address that others connect to.
    pub certificate: PathBuf,
    /// The private key of the certificate; PEM. Nobody but its owner may read it.
    pub key: PathBuf,
    /// The authorities of which others must show a certificate; PEM.
    pub ca: PathBuf,
}
