// SPDX-License-Identifier: Apache-2.0
//! Digests of the replicas' contents. A replica must read all its contents to make one, so the
//! caller waits for it as long as it gives signs of life, and no longer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use client::ControlClient;
use control::Message;
use node::{ClusterFile, random_nonce};
use paxos::GroupId;

use crate::Error;

/// A replica that is silent for this long isn't waited for.
const PATIENCE: Duration = Duration::from_secs(3);
const ASK_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
const ASK_DIGEST_INTERVAL: Duration = Duration::from_secs(5);

/// The answers of the replicas.
#[derive(Default)]
pub struct Digests {
    /// The position of each replica and the digest of its contents there: (name, next instance,
    /// hex), partitions one after the other.
    pub found: Vec<(String, u64, String)>,
    /// The names of the replicas that didn't answer.
    pub silent: Vec<String>,
}

struct AskedReplica<'a> {
    name: &'a str,
    group: GroupId,
    heard: Instant,
}

/// Asks all replicas at the same time. This takes as long as they need to read their contents.
///
/// # Errors
/// [`Error::System`] if there is no socket.
pub fn digests(cluster: &ClusterFile) -> Result<Digests, Error> {
    let mut socket = ControlClient::new(cluster)?;
    for group in &cluster.groups {
        socket.check_order(&Message::DigestRequest { group: group.id })?;
    }
    let start = Instant::now();
    let mut open = BTreeMap::new();
    for group in &cluster.groups {
        for node in cluster.replicas(group.id) {
            let asked = AskedReplica {
                name: &node.name,
                group: group.id,
                heard: start,
            };
            open.insert(node.control, asked);
        }
    }
    let mut result = Digests::default();
    let mut next_digest = start;
    // Any answer to this shows that the replica is alive.
    let alive = Message::StatusRequest {
        id: random_nonce()?,
        part: 0,
    };
    while !open.is_empty() {
        let now = Instant::now();
        if now >= next_digest {
            if let Some(text) =
                who_is_waited_for(open.values().map(|asked| asked.name), now - start)
            {
                tracing::info!("{text}");
            }
            for (&to, asked) in &open {
                let group = asked.group;
                socket.send(to, &Message::DigestRequest { group });
            }
            next_digest = now + ASK_DIGEST_INTERVAL;
        }
        for &to in open.keys() {
            socket.send(to, &alive);
        }
        receive(
            &mut socket,
            &mut open,
            &mut result,
            now + ASK_ALIVE_INTERVAL,
        );
        open.retain(|_, asked| {
            let alive = asked.heard.elapsed() < PATIENCE;
            if !alive {
                result.silent.push(asked.name.to_owned());
            }
            alive
        });
    }
    result.found.sort_by(|a, b| a.0.cmp(&b.0));
    result.silent.sort();
    Ok(result)
}

/// Takes the answers that come until `until`, or until every replica has answered.
fn receive(
    socket: &mut ControlClient,
    open: &mut BTreeMap<SocketAddr, AskedReplica<'_>>,
    result: &mut Digests,
    until: Instant,
) {
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if open.is_empty() {
            return;
        }
        let Some((from, message)) = socket.receive(left) else {
            return;
        };
        let Some(asked) = open.get_mut(&from) else {
            continue;
        };
        asked.heard = Instant::now();
        match message {
            Message::Digest { group, partitions } if group == asked.group => {
                let name = asked.name;
                let named = |(next, digest)| (name.to_owned(), next, digest);
                result.found.extend(partitions.into_iter().map(named));
                open.remove(&from);
            }
            _ => {}
        }
    }
}

/// Returns who still reads its contents, unless all were asked a moment ago.
fn who_is_waited_for<'a>(names: impl Iterator<Item = &'a str>, waited: Duration) -> Option<String> {
    let names: Vec<&str> = names.collect();
    let (names, seconds) = (names.join(", "), waited.as_secs());
    let is_long = waited >= ASK_DIGEST_INTERVAL;
    is_long.then(|| format!("after {seconds} s still reading its contents: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_waited_for_who_was_asked_a_moment_ago() {
        let names = || ["replica-1", "replica-2"].into_iter();
        assert_eq!(who_is_waited_for(names(), Duration::from_micros(1)), None);
        assert_eq!(
            who_is_waited_for(names(), ASK_DIGEST_INTERVAL).as_deref(),
            Some("after 5 s still reading its contents: replica-1, replica-2")
        );
    }
}
