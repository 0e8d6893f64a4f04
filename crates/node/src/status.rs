// SPDX-License-Identifier: Apache-2.0
//! The common parts of the roles' status documents, which docs/operations.md describes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use control::{Assembler, Message, Progress};
use paxos::Instance;
use serde_json::{Value, json};

use crate::cluster_file::Node;
use crate::control_peers::{ControlPeers, open_socket_to};
use crate::host::is_due;
use crate::log;
use crate::random_nonce;

/// A part that hasn't come after this time counts as lost.
const RESEND_AFTER: Duration = Duration::from_millis(200);

/// The version of the program.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The commit that the program was built from, where the build says it.
pub(crate) const COMMIT: Option<&str> = option_env!("WIREPAXOS_COMMIT");

/// Returns the beginning of every status document.
pub(crate) fn document(node: &Node, started: Instant) -> Value {
    json!({
        "node": node.id,
        "name": node.name,
        "role": node.role.name(),
        "version": VERSION,
        "commit": COMMIT,
        "uptime_s": started.elapsed().as_secs(),
        "lines_left_out": log::left_out(),
    })
}

/// Returns a warning if a partition's ring is nearly full, since a full one stops everything.
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

/// Returns a warning if a round has two values or two proposers, which no fault in the model can
/// cause.
pub(crate) fn conflict_warning(document: &Value) -> Option<String> {
    let conflicts = conflicts(document);
    (conflicts > 0).then(|| {
        format!(
            "conflict: {conflicts} packets showed a second proposer or a second value in one \
             round: two controllers, or a restored store or memory. Stop the other one, keep all \
             data directories"
        )
    })
}

/// Asks nodes for their status documents over a new socket. The result lacks nodes that don't
/// answer.
pub fn ask(
    peers: &ControlPeers,
    nodes: &[SocketAddr],
    timeout: Duration,
) -> io::Result<BTreeMap<SocketAddr, Value>> {
    ask_for(peers, nodes, timeout, &Assembler::new)
}

/// Asks the controllers for the last events after one with a number, at most `limit`. Returns
/// `None` if none answers, and otherwise the answer of the one that acts, if that is among them.
pub fn ask_events(
    peers: &ControlPeers,
    (after, limit): (u64, u32),
    timeout: Duration,
) -> io::Result<Option<Value>> {
    let question = |id| Assembler::of_events(id, after, limit);
    let answers = ask_for(peers, peers.controllers(), timeout, &question)?;
    Ok(of_acting(answers.into_values()))
}

/// Returns the document of the controller that acts, or any if none of them does.
pub fn of_acting(documents: impl IntoIterator<Item = Value>) -> Option<Value> {
    let documents = documents.into_iter();
    documents.max_by_key(|document| document["acts"] != false)
}

fn ask_for(
    peers: &ControlPeers,
    nodes: &[SocketAddr],
    timeout: Duration,
    question: &dyn Fn(u64) -> Assembler,
) -> io::Result<BTreeMap<SocketAddr, Value>> {
    peers.check_keys().map_err(io::Error::other)?;
    let socket = peers.open_socket()?;
    socket.set_read_timeout(Some(RESEND_AFTER))?;
    let send = |node, request: &Message| {
        // A message to a node that is down is lost.
        let _ = socket.send_to(&peers.seal(node, request)?, node);
        io::Result::Ok(())
    };
    let mut open = BTreeMap::new();
    for node in nodes {
        let id = random_nonce().map_err(io::Error::other)?;
        open.insert(*node, question(id));
    }
    let mut answers = BTreeMap::new();
    let mut buffer = vec![0; 65_536];
    let (begun, mut asked) = (Instant::now(), None);
    while !open.is_empty() && begun.elapsed() < timeout {
        if is_due(asked, RESEND_AFTER) {
            for (node, assembler) in &open {
                send(*node, &assembler.request())?;
            }
            asked = Some(Instant::now());
        }
        let Ok((n, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let (Some(assembler), Ok(message)) = (open.get_mut(&from), peers.open(&buffer[..n], from))
        else {
            continue;
        };
        if let Message::Challenge { .. } = message {
            send(from, &assembler.request())?;
            continue;
        }
        match assembler.take(message) {
            Progress::None => {}
            Progress::Part => send(from, &assembler.request())?,
            Progress::Whole(json) => {
                answers.insert(from, serde_json::from_str(&json).unwrap_or_default());
                open.remove(&from);
            }
        }
    }
    Ok(answers)
}

/// Returns true if a node's machine answers that nothing listens at its control address. False says
/// nothing: the machine may be off, the packets may be lost, or the node may ignore them.
pub fn is_refused(peers: &ControlPeers, node: SocketAddr, timeout: Duration) -> io::Result<bool> {
    let question = Message::StatusRequest {
        id: random_nonce().map_err(io::Error::other)?,
        part: 0,
    };
    let socket = open_socket_to(node)?;
    // Only a connected socket hears of such an answer.
    socket.connect(node)?;
    socket.set_read_timeout(Some(timeout))?;
    let asked = socket.send(&peers.seal(node, &question)?);
    let answer = asked.and_then(|_| socket.recv(&mut [0; 2_048]));
    Ok(answer.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused))
}

/// Returns the sum of all conflict counters in the document, whichever role it belongs to.
fn conflicts(document: &Value) -> u64 {
    match document {
        Value::Object(members) => {
            let count = |(key, value): (&String, &Value)| match key.as_str() {
                "conflict" => value.as_u64().unwrap_or(0),
                _ => conflicts(value),
            };
            members.iter().map(count).sum()
        }
        Value::Array(entries) => entries.iter().map(conflicts).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, UdpSocket};

    #[test]
    fn a_machine_without_the_node_is_told_from_a_node_that_is_silent() {
        let sample = include_str!("../../../testdata/cluster.toml");
        let mut cluster = crate::cluster_file::parse(sample, "test").unwrap();
        cluster.auth = crate::cluster_file::Auth::Off;
        let peers = ControlPeers::new(&cluster, control::OUTSIDE);
        let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = silent.local_addr().unwrap();
        let is_refused = || is_refused(&peers, at, Duration::from_millis(100)).unwrap();
        assert!(!is_refused(), "it may have another key");
        drop(silent);
        assert!(is_refused(), "nothing listens");
    }

    #[test]
    fn a_conflict_is_a_warning_wherever_it_is_counted() {
        assert_eq!(
            conflict_warning(&json!({ "dropped": { "stale": 3 } })),
            None
        );
        let document = json!({
            "counters": { "dropped": { "conflict": 2 }, "rejected": { "conflict": 1 } },
            "partitions": [{ "dropped": { "conflict": 4 } }],
        });
        let warning = conflict_warning(&document).unwrap();
        assert!(warning.starts_with("conflict: 7 packets"), "{warning}");
    }
}
