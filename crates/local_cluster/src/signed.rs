// SPDX-License-Identifier: Apache-2.0
//! Tells people which packets a cluster signs.

use node::ClusterFile;
use node::cluster_file::{Auth, Plane};

/// Returns what is signed, and where the keys are.
pub fn signed(cluster: &ClusterFile) -> String {
    let keys = cluster.keys.display();
    let in_switches = cluster.nodes.iter().any(|node| node.plane == Plane::P4);
    match cluster.auth {
        Auth::Off => "nothing".to_string(),
        Auth::Control if in_switches => {
            format!(
                "control messages alone, as P4 switches sign packets only if they are told to; \
                 keys: {keys}"
            )
        }
        Auth::Control => format!("control messages alone; keys: {keys}"),
        Auth::SipHash | Auth::HalfSipHash => format!("packets and control messages; keys: {keys}"),
    }
}
