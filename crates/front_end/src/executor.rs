// SPDX-License-Identifier: Apache-2.0
//! Who executes a command where Redis itself is replicated.

/// Who executes a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// The front end executes it, as it concerns the connection; this is its place in the
    /// [table](crate::table).
    Own(usize),
    /// The front end executes SUBSCRIBE and its like.
    Subscription,
    /// The front end answers PUBSUB.
    PubSub,
    /// The front end answers WAIT.
    Replicas,
    /// A server executes SCAN, one partition after the other.
    Scan,
    Server,
}
