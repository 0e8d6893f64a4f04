// SPDX-License-Identifier: Apache-2.0
//! The secrets of a cluster: key files, and the keys that are derived from them. What is signed with them, and why,
//! `docs/protocol/authentication.md` says.
//!
//! A key file is TOML, has mode 0600, and is one of two kinds:
//!
//! | kind | who has it | what it holds |
//! |---|---|---|
//! | `nodes` | every node | the cluster's secrets, from which every key follows, and the names of clients |
//! | `client` | one client | what follows for this client alone |
//!
//! A *holder* is who has a key: number 0 is all nodes together, 1 to [`MAX_CLIENTS`] are clients. A file holds the
//! secrets of one *generation* or, while they are replaced, of two that follow each other; one of them signs, and
//! both are accepted.
//!
//! ```text
//! secret of a generation --(cluster, number)--> holder's secret --(purpose)--> key
//! ```
//!
//! Each arrow is HMAC-SHA256, so no key tells anything about the one before it, or beside it.

mod derive;
mod error;
mod file;
mod mac;
mod secret;
mod stamp;
mod text;

pub use derive::Purpose;
pub use error::Error;
pub use file::{Holder, KeyFile, Rotation};
pub use mac::{is_mac, mac};
pub use secret::{password, private_key};
pub use stamp::Stamp;

/// Bytes of a secret, and of a key.
pub const KEY_LEN: usize = 32;

/// Clients with keys of their own. Their numbers have five bits wherever they are written.
pub const MAX_CLIENTS: u8 = 31;

/// The number of the nodes.
pub const NODES: u8 = 0;
