// SPDX-License-Identifier: Apache-2.0
//! Decides whether a packet may come from its sender. Messages that only nodes send count only from
//! the address of the node that they name [M-SENDER], and if packets are signed, only signed
//! packets count [M-SIGNED]. If they aren't signed, commands count only from the addresses of nodes
//! and clients. [M-ASKER]

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use paxos::{NodeId, Packet, Reason};

use crate::auth::Keyring;
use crate::cluster_file::{ClusterFile, Network};

/// The addresses of a cluster's nodes, and the keys.
#[derive(Clone, Debug)]
pub struct Senders {
    cluster: u32,
    /// The nodes in ascending order.
    nodes: Vec<(NodeId, IpAddr)>,
    /// The networks from which commands may come; `None` means any.
    askers: Option<Vec<Network>>,
    keyring: Option<Arc<Keyring>>,
}

impl Senders {
    /// Returns the senders of a cluster file, without keys.
    pub fn of(cluster: &ClusterFile) -> Senders {
        let mut nodes: Vec<_> = cluster
            .nodes
            .iter()
            .map(|n| (n.id, n.address.ip()))
            .collect();
        nodes.sort_unstable();
        Senders {
            cluster: cluster.cluster,
            nodes,
            askers: cluster.askers(),
            keyring: None,
        }
    }

    /// Returns these senders with keys, so that packets count only if they are signed with one of
    /// them.
    pub fn with(self, keyring: Option<Arc<Keyring>>) -> Senders {
        Senders { keyring, ..self }
    }

    /// Replaces the keys.
    pub fn use_keys(&mut self, keyring: Arc<Keyring>) {
        self.keyring = Some(keyring);
    }

    /// Returns all nodes with their addresses, in ascending order.
    pub fn nodes(&self) -> &[(NodeId, IpAddr)] {
        &self.nodes
    }

    /// Returns a datagram's packet if it may come from this address. If packets aren't signed,
    /// packets of another cluster pass here, since the next check drops them for the better reason.
    #[inline]
    pub fn parse<'a>(&self, datagram: &'a [u8], from: &SocketAddr) -> Result<Packet<'a>, Reason> {
        let packet = Packet::parse(datagram)?;
        let header = &packet.header;
        let is_ours = header.cluster == self.cluster;
        let may_come = match header.msgtype.is_of_nodes() {
            true => self.is_at(header.swid, from),
            false => self.may_ask(from),
        };
        if is_ours && !may_come {
            return Err(Reason::ForeignAddress);
        }
        match &self.keyring {
            None => {}
            Some(_) if !is_ours => return Err(Reason::WrongCluster),
            Some(keyring) => keyring.check(&packet, datagram)?,
        }
        Ok(packet)
    }

    #[inline]
    fn is_at(&self, node: NodeId, from: &SocketAddr) -> bool {
        let found = self.nodes.binary_search_by_key(&node, |(id, _)| *id);
        found.is_ok_and(|at| match (&self.nodes[at].1, from) {
            (IpAddr::V4(known), SocketAddr::V4(from)) => known == from.ip(),
            (known, from) => *known == from.ip().to_canonical(),
        })
    }

    #[inline]
    fn may_ask(&self, from: &SocketAddr) -> bool {
        let from = from.ip().to_canonical();
        let mut askers = self.askers.iter().flatten();
        self.askers.is_none() || askers.any(|network| network.has(from))
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use paxos::{Header, MsgType};

    use super::*;
    use crate::cluster_file::{self, ApplicationKind, Auth, Draft, GroupDraft, Role};

    fn on_three_machines() -> ClusterFile {
        let group = GroupDraft::new(0, ApplicationKind::Echo);
        let mut draft = Draft::new(7, "data", group);
        for host in [1, 2, 3].map(|last| IpAddr::from([10, 0, 0, last])) {
            draft.add_nodes(&[(Role::Acceptor, 1), (Role::Replica, 1)], host);
        }
        draft.add_nodes(
            &[(Role::Leader, 1), (Role::Controller, 1)],
            [10, 0, 0, 1].into(),
        );
        draft.check().unwrap()
    }

    /// Commands count only from the addresses of nodes and clients. [M-ASKER]
    #[test]
    fn commands_come_from_nodes_and_clients() {
        let mut cluster = on_three_machines();
        let verdict = |cluster: &ClusterFile, msgtype, from: &str| {
            let header = Header {
                cluster: cluster.cluster,
                ..Header::new(msgtype)
            };
            let datagram = header.datagram(b"x");
            let senders = Senders::of(cluster);
            senders.parse(&datagram, &from.parse().unwrap()).map(drop)
        };
        let foreign = Err(Reason::ForeignAddress);
        for auth in [Auth::Off, Auth::Control, Auth::SipHash] {
            cluster.auth = auth;
            cluster.clients = vec!["10.9.0.0/16".parse().unwrap(), "fd77::7".parse().unwrap()];
            let elsewhere = if auth == Auth::SipHash {
                Ok(())
            } else {
                foreign
            };
            for msgtype in [MsgType::Request, MsgType::Read] {
                for (from, expected) in [
                    ("10.0.0.1:9", Ok(())),
                    ("10.0.0.3:7031", Ok(())),
                    ("10.9.255.1:9", Ok(())),
                    ("[::ffff:10.9.0.1]:9", Ok(())),
                    ("[fd77::7]:9", Ok(())),
                    ("10.0.0.4:9", elsewhere),
                    ("10.10.0.1:9", elsewhere),
                    ("[fd77::8]:9", elsewhere),
                    ("127.0.0.1:9", elsewhere),
                ] {
                    let said = verdict(&cluster, msgtype, from);
                    assert_eq!(said, expected, "{auth:?} {msgtype:?} {from}");
                }
            }
        }
        // A cluster on loopback accepts no other askers.
        let sample = include_str!("../../../testdata/cluster.toml");
        let cluster = cluster_file::parse(sample, "cluster.toml").unwrap();
        for (from, expected) in [("127.9.0.1:9", Ok(())), ("10.0.0.1:9", foreign)] {
            assert_eq!(
                verdict(&cluster, MsgType::Request, from),
                expected,
                "{from}"
            );
        }
    }

    /// Messages of a node count only from that node's address. [M-SENDER]
    #[test]
    fn nodes_are_believed_at_their_own_addresses() {
        let senders = Senders {
            cluster: 0xc1,
            nodes: vec![(1, [10, 0, 0, 1].into()), (2, [10, 0, 0, 2].into())],
            askers: None,
            keyring: None,
        };
        let verdict = |msgtype, cluster, swid, from: &str| {
            let header = Header {
                cluster,
                swid,
                ..Header::new(msgtype)
            };
            let datagram = header.datagram(b"");
            senders
                .parse(&datagram, &from.parse().expect("an address"))
                .map(drop)
        };
        let foreign = Err(Reason::ForeignAddress);
        for msgtype in MsgType::ALL {
            // Answers to questions also go to nodes: the answers of an acceptor are values.
            let elsewhere = match msgtype {
                MsgType::Request | MsgType::Read => Ok(()),
                _ => foreign,
            };
            for (swid, from, expected) in [
                (1, "10.0.0.1:9", Ok(())),
                (1, "[::ffff:10.0.0.1]:9", Ok(())),
                (1, "10.0.0.2:9", elsewhere),
                (1, "10.0.0.3:9", elsewhere),
                (3, "10.0.0.1:9", elsewhere),
                (0, "10.0.0.1:9", elsewhere),
            ] {
                assert_eq!(
                    verdict(msgtype, 0xc1, swid, from),
                    expected,
                    "{msgtype:?} {swid} {from}"
                );
                assert_eq!(
                    verdict(msgtype, 0xc2, swid, from),
                    Ok(()),
                    "another cluster's"
                );
            }
        }
    }
}
