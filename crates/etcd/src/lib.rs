// SPDX-License-Identifier: Apache-2.0
//! A small client of etcd: single keys, compare-and-swap by value, and leases. It speaks the JSON
//! gateway that every etcd serves at its client port since 3.4 (`/v3/kv/txn` and others), so
//! neither gRPC nor HTTP/2 is needed.
//!
//! A [`Client`] asks one endpoint after the other until one answers, within a time that the caller
//! gives. An answer counts only if it is whole, has etcd's header, and isn't longer than
//! [`MAX_ANSWER`].
//!
//! The cargo feature `client` builds it. Without it [`Client::open`] returns an error that says so.

#[cfg(feature = "client")]
mod answers;
#[cfg_attr(not(feature = "client"), path = "without_client.rs")]
mod client;
#[cfg(feature = "client")]
mod connection;
#[cfg(all(test, feature = "client"))]
mod tests;

use std::fmt;
use std::path::PathBuf;

pub use client::Client;

/// The longest answer that is read, in bytes.
pub const MAX_ANSWER: u64 = 4 << 20;

/// Where etcd is, and what it wants to be shown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The URLs of its members, such as `http://10.0.0.1:2379`, in the order in which they are
    /// asked first.
    pub endpoints: Vec<String>,
    /// The user, if etcd asks for one.
    pub user: Option<String>,
    /// The file that holds that user's password in one line.
    pub password_file: Option<PathBuf>,
    /// The authorities of etcd's certificates; PEM. `https` needs them.
    pub ca: Option<PathBuf>,
    /// The certificate that this side shows, and its private key; PEM.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// The reason why etcd did not do what it was asked for. After [`Failure::Unanswered`] the request
/// may still have taken effect, or take effect later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// No endpoint gave a whole answer in time.
    Unanswered(String),
    /// etcd refuses the request.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Unanswered(why) => write!(f, "etcd doesn't answer: {why}"),
            Failure::Refused(why) => write!(f, "etcd refuses: {why}"),
        }
    }
}

impl std::error::Error for Failure {}

/// The end of a compare-and-swap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The new value is stored.
    Done,
    /// Another value was there, or none, and it stays.
    Other(Option<Vec<u8>>),
}

/// A lease. Keys that were put with it are removed when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The number by which etcd knows it.
    pub id: i64,
    /// It ends so many seconds after it was granted or renewed.
    pub ttl_s: u64,
}
