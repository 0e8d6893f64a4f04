//! What the roles' status documents have in common (docs/operations.md describes them).

use paxos::Instance;
use serde_json::{Value, json};

use crate::cluster_file::Node;
use crate::plane::UdpPlane;

/// The beginning of every status document.
pub(crate) fn document(node: &Node) -> Value {
    json!({
        "node": node.id,
        "name": node.name,
        "role": node.role.name(),
    })
}

/// Warnings about the data plane.
pub(crate) fn plane_warnings(plane: &UdpPlane) -> Vec<String> {
    let refused = plane.counters().refused;
    let warning = || format!("the kernel refused {refused} datagrams: check routes and filters");
    (refused > 0).then(warning).into_iter().collect()
}

/// Says so before the ring of a partition is full and everything stops.
pub(crate) fn ring_warning(
    what: &str,
    group: u16,
    pid: usize,
    used: Instance,
    room: u64,
) -> Option<String> {
    let percent = used.saturating_mul(100) / room.max(1);
    let warning = || {
        format!(
            "group {group}, partition {pid}: {what} is {percent}% full: trim is held back; \
             too few replicas make checkpoints"
        )
    };
    (percent >= 90).then(warning)
}
