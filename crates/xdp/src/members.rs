//! Who a role's multicast goes to: the entries of `multicast` and `links`, kept up to date with the
//! kernel's neighbours.

use std::net::{IpAddr, SocketAddr};

use crate::interface::Interface;
use crate::layout::{Link, LinkKey, MAX_MEMBERS, MulticastMember};
use crate::neighbour::next_hop;
use crate::object::{Object, Result};

/// One receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it listens; of a replica, partition 0.
    pub address: SocketAddr,
    /// Partition p listens on the p-th port from there.
    pub port_per_partition: bool,
}

/// The receivers of each group's multicast, all behind the node's own interface.
#[derive(Debug)]
pub struct Members {
    interface: Interface,
    from: SocketAddr,
    groups: Vec<(u16, Vec<Member>)>,
    /// Hardware addresses written last.
    written: Vec<Vec<Option<[u8; 6]>>>,
}

impl Members {
    /// Receivers by group; copies leave `interface` in the name of `from`.
    pub fn new(
        interface: Interface,
        from: SocketAddr,
        groups: Vec<(u16, Vec<Member>)>,
    ) -> Result<Members> {
        if let Some((group, members)) = groups.iter().find(|(_, m)| m.len() > MAX_MEMBERS) {
            return Err(format!(
                "group {group} has {} members behind {}, and the XDP programs send to {MAX_MEMBERS} behind one port: use the udp plane",
                members.len(),
                interface.name
            ));
        }
        Ok(Members {
            interface,
            from,
            written: Vec::new(),
            groups,
        })
    }

    /// In whose name copies leave.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Fills the devmaps: once, after loading.
    pub fn open(&self, object: &mut Object) -> Result<()> {
        let ports = vec![self.interface.index; self.entries() as usize];
        object.multicast_to(&ports, true)
    }

    /// Asks the kernel for the members' hardware addresses and writes what has changed. Gives back
    /// those that it doesn't know: they get no copies until a later call finds them.
    pub fn refresh(&mut self, object: &mut Object) -> Result<Vec<IpAddr>> {
        let mut found = Vec::new();
        for (_, members) in &self.groups {
            let hops = members
                .iter()
                .map(|m| next_hop(&self.interface, m.address.ip()));
            found.push(hops.collect::<Result<Vec<_>>>()?);
        }
        if found != self.written {
            for (at, (group, members)) in self.groups.iter().enumerate() {
                let key = LinkKey {
                    ifindex: self.interface.index,
                    group: (*group).into(),
                };
                object.insert("links", &key, &self.link(members, &found[at]))?;
            }
            self.written = found;
        }
        Ok(self.unknown())
    }

    fn unknown(&self) -> Vec<IpAddr> {
        let members = self.groups.iter().flat_map(|(_, members)| members);
        let hops = self.written.iter().flatten();
        let unknown = members.zip(hops).filter(|(_, hop)| hop.is_none());
        unknown.map(|(member, _)| member.address.ip()).collect()
    }

    /// Entries of the port in `multicast`: as many as the largest group needs.
    fn entries(&self) -> u32 {
        let most = self.groups.iter().map(|(_, members)| members.len()).max();
        most.unwrap_or(0) as u32
    }

    fn link(&self, members: &[Member], hops: &[Option<[u8; 6]>]) -> Link {
        let mut link = Link {
            entries: self.entries(),
            ..Link::default()
        };
        for (member, hop) in members.iter().zip(hops) {
            let Some(mac) = hop else { continue };
            link.member[link.members as usize] = MulticastMember {
                mac_to: *mac,
                mac_from: self.interface.mac,
                family: if member.address.is_ipv4() { 4 } else { 6 },
                ip_to: octets(member.address.ip()),
                ip_from: octets(self.from.ip()),
                port_to: member.address.port(),
                port_from: self.from.port(),
                port_per_partition: member.port_per_partition.into(),
            };
            link.members += 1;
        }
        link
    }
}

/// As the maps have addresses: IPv4 in the first four bytes.
pub fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&v4.octets());
            bytes
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
