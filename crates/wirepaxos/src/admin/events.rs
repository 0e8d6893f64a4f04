// SPDX-License-Identifier: Apache-2.0
//! What happened to a cluster.

use std::time::Duration;

use control::OUTSIDE;
use node::{ClusterFile, ControlPeers};
use serde_json::Value;

use crate::Error;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the last events that the controller has noted after the one numbered `after`: at most
/// `limit`, and at most 1,000. `events` has them, oldest first, each with `n`, `at_ms`, `kind`,
/// `text` and what else is known, and `newest` is the number of the last one. `None` if the
/// controller is silent for a second.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn events(cluster: &ClusterFile, after: u64, limit: u32) -> Result<Option<Value>, Error> {
    let peers = ControlPeers::new(cluster, OUTSIDE);
    Ok(node::ask_events(&peers, (after, limit), ANSWER_TIMEOUT)?)
}
