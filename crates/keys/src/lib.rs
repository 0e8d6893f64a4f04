// SPDX-License-Identifier: Apache-2.0
//! The secrets of a cluster: key files, and the keys that are derived from them.
//! `docs/protocol/authentication.md` says what is signed with them, and why.
//!
//! A key file is TOML, has mode 0600, and is one of two kinds:
//!
//! | kind | who has it | what it holds |
//! |---|---|---|
//! | `nodes` | every node | the cluster's secrets, from which all keys follow, and clients' names |
//! | `client` | one client | what follows for this client alone |
//!
//! A *holder* is a user of keys: number 0 stands for all nodes together, and 1 to [`MAX_CLIENTS`]
//! for clients. A file has the secrets of one *generation* or, while they are replaced, of two
//! consecutive ones; one of them signs, and both are accepted.
//!
//! ```text
//! secret of a generation --(cluster, number)--> holder's secret --(purpose)--> key
//! ```
//!
//! Each arrow is HMAC-SHA256, so no key reveals anything about the one before it, or about those
//! beside it.

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
pub use secret::{Passwords, passwords, private_key};
pub use stamp::Stamp;

/// The length of a secret, and of a key, in bytes.
pub const KEY_LEN: usize = 32;

/// The number of clients with their own keys. Their numbers take five bits wherever they are
/// written.
pub const MAX_CLIENTS: u8 = 31;

/// The number of the nodes.
pub const NODES: u8 = 0;
