// SPDX-License-Identifier: Apache-2.0
//! Where nodes send from. Nothing in a packet proves who has made it; but what only nodes send counts only
//! if it comes from the address of the node in whose name it is. [M-SENDER]

use std::net::{IpAddr, SocketAddr};

use paxos::{NodeId, Packet, Reason};

use crate::cluster_file::ClusterFile;

/// The addresses of a cluster's nodes.
#[derive(Clone, Debug)]
pub struct Senders {
    cluster: u32,
    /// In ascending order.
    nodes: Vec<(NodeId, IpAddr)>,
}

impl Senders {
    /// As the cluster file has them.
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
        }
    }

    /// All nodes with their addresses, in ascending order.
    pub fn nodes(&self) -> &[(NodeId, IpAddr)] {
        &self.nodes
    }

    /// A datagram's packet, if it may come from where it comes from. Another cluster's packet is
    /// let through here: that it is another cluster's is the better reason to drop it.
    #[inline]
    pub fn parse<'a>(&self, datagram: &'a [u8], from: &SocketAddr) -> Result<Packet<'a>, Reason> {
        let packet = Packet::parse(datagram)?;
        let header = &packet.header;
        if !header.msgtype.is_of_nodes()
            || header.cluster != self.cluster
            || self.is_at(header.swid, from)
        {
            Ok(packet)
        } else {
            Err(Reason::ForeignAddress)
        }
    }

    #[inline]
    fn is_at(&self, node: NodeId, from: &SocketAddr) -> bool {
        let found = self.nodes.binary_search_by_key(&node, |(id, _)| *id);
        found.is_ok_and(|at| match (&self.nodes[at].1, from) {
            (IpAddr::V4(known), SocketAddr::V4(from)) => known == from.ip(),
            (known, from) => *known == from.ip().to_canonical(),
        })
    }
}

#[cfg(test)]
mod tests {
    use paxos::{Header, MsgType};

    use super::*;

    /// [M-SENDER]
    #[test]
    fn nodes_are_believed_at_their_own_addresses() {
        let senders = Senders {
            cluster: 0xc1,
            nodes: vec![(1, [10, 0, 0, 1].into()), (2, [10, 0, 0, 2].into())],
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
            let elsewhere = if msgtype.is_of_nodes() {
                foreign
            } else {
                Ok(())
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
