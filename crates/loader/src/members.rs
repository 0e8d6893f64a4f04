// SPDX-License-Identifier: Apache-2.0
//! The receivers of a role's multicast: keeps the entries of `multicast` and `port_links` up to
//! date with what the kernel, or the switch, knows of their addresses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use paxos::{GroupId, PartitionId};

use crate::layout::{DEVICE_WITHIN, Link, MAX_LINKS, MAX_MEMBERS, MulticastMember, PORT_WITHIN};
use crate::object::{Object, Result};
use crate::station::{Hop, Station};

/// One receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// The address at which the member listens; for a replica, that of partition 0.
    pub address: SocketAddr,
    /// Partition p listens on the p-th port from there.
    pub port_per_partition: bool,
}

impl Member {
    /// Returns where it listens for what is about a partition; `None` where there is no such port.
    fn listens_at(&self, pid: PartitionId) -> Option<SocketAddr> {
        let mut address = self.address;
        if self.port_per_partition {
            address.set_port(address.port().checked_add(pid)?);
        }
        Some(address)
    }
}

/// The receivers of each group's multicast.
#[derive(Debug)]
pub struct Members {
    from: SocketAddr,
    groups: Vec<(GroupId, Vec<Member>)>,
    /// Whom members send to, each once.
    listeners: Vec<IpAddr>,
    /// How each of them was reached when that was last looked up.
    hops: BTreeMap<IpAddr, Hop>,
    /// True if members are called in turn; `None` before the first look, as an earlier process may
    /// have said so.
    within: Option<bool>,
    /// The ports, each as often as the largest group has members behind it.
    ports: Vec<u32>,
}

impl Members {
    /// Creates the members from the receivers of each group, and the receivers of the packets that
    /// these send for a copy. Copies leave in the name of `from`.
    pub fn new(
        from: SocketAddr,
        groups: Vec<(GroupId, Vec<Member>)>,
        mut listeners: Vec<IpAddr>,
    ) -> Members {
        listeners.sort();
        listeners.dedup();
        Members {
            from,
            groups,
            listeners,
            hops: BTreeMap::new(),
            within: None,
            ports: Vec::new(),
        }
    }

    /// Returns in whose name copies leave.
    pub fn from(&self) -> SocketAddr {
        self.from
    }

    /// Returns where a group's members listen for what is about a partition.
    pub fn receivers(
        &self,
        group: GroupId,
        pid: PartitionId,
    ) -> impl Iterator<Item = SocketAddr> + '_ {
        let of_group = self.groups.iter().filter(move |(id, _)| *id == group);
        let members = of_group.flat_map(|(_, members)| members);
        members.filter_map(move |member| member.listens_at(pid))
    }

    /// Looks up how members are reached, and writes what has changed. Returns those whose hardware
    /// address isn't known: they get no copies until a later call finds them.
    pub fn refresh(&mut self, station: &Station, object: &mut Object) -> Result<Vec<IpAddr>> {
        let addresses = self.addresses();
        let hops = station.hops(&addresses)?;
        let hops: BTreeMap<IpAddr, Hop> = addresses.into_iter().zip(hops).collect();
        let within = self.are_within(&hops, station);
        if hops != self.hops || self.within != Some(within) {
            self.write(&hops, within, station, object)?;
            self.hops = hops;
            self.within = Some(within);
        }
        let unknown = self.hops.iter().filter(|(_, hop)| hop.mac_to.is_none());
        Ok(unknown.map(|(address, _)| *address).collect())
    }

    /// Returns the members' addresses, each once.
    fn addresses(&self) -> Vec<IpAddr> {
        let members = self.groups.iter().flat_map(|(_, members)| members);
        let mut addresses: Vec<_> = members.map(|member| member.address.ip()).collect();
        addresses.sort();
        addresses.dedup();
        addresses
    }

    fn write(
        &mut self,
        hops: &BTreeMap<IpAddr, Hop>,
        within: bool,
        station: &Station,
        object: &mut Object,
    ) -> Result<()> {
        let most = self.most_behind(hops);
        self.refuse_too_many(&most, station)?;
        object.set_links(&self.links(&most, within, hops))?;
        let ports = most
            .iter()
            .flat_map(|(&port, &n)| std::iter::repeat_n(port, n));
        let ports: Vec<u32> = ports.collect();
        if ports != self.ports {
            object.multicast_to(&ports, true)?;
            self.ports = ports;
        }
        object.change_device(|device| {
            device.flags &= !DEVICE_WITHIN;
            device.flags |= if within { DEVICE_WITHIN } else { 0 };
        })
    }

    /// Returns who is behind each port, for each group; and who are roles of this switch, if all
    /// are.
    fn links(
        &self,
        most: &BTreeMap<u32, usize>,
        within: bool,
        hops: &BTreeMap<IpAddr, Hop>,
    ) -> Vec<Link> {
        let mut links = Vec::new();
        for (group, members) in &self.groups {
            let ports = most.iter().map(|(port, entries)| (*port, *entries));
            let within = within.then_some((PORT_WITHIN, 0));
            for (index, (port, entries)) in (0..).zip(ports.chain(within)) {
                let mut link = Link {
                    ifindex: port,
                    group: (*group).into(),
                    entries: entries as u32,
                    index,
                    ..Link::default()
                };
                for member in members {
                    let hop = &hops[&member.address.ip()];
                    if port == PORT_WITHIN || hop.port == port {
                        link.add(member, hop, self.from);
                    }
                }
                links.push(link);
            }
        }
        links
    }

    /// Returns whether all members can be called in turn: they are programs of this switch, too,
    /// and all that they send goes to one program here, since only one frame leaves in a run.
    fn are_within(&self, hops: &BTreeMap<IpAddr, Hop>, station: &Station) -> bool {
        let few = |(_, members): &(u16, Vec<Member>)| members.len() <= MAX_MEMBERS;
        let listener_is_here = match (station, &self.listeners[..]) {
            (Station::Switch(switch), [only]) => switch.hop(*only).is_ok_and(|hop| hop.role != 0),
            _ => false,
        };
        listener_is_here && self.groups.iter().all(few) && hops.values().all(|hop| hop.role != 0)
    }

    /// Returns how many members the largest group has behind each port.
    fn most_behind(&self, hops: &BTreeMap<IpAddr, Hop>) -> BTreeMap<u32, usize> {
        let mut most = BTreeMap::new();
        for (_, members) in &self.groups {
            let mut behind: BTreeMap<u32, usize> = BTreeMap::new();
            let ports = members.iter().map(|member| hops[&member.address.ip()].port);
            for port in ports.filter(|port| *port != Hop::UNKNOWN.port) {
                *behind.entry(port).or_default() += 1;
            }
            for (port, n) in behind {
                let most = most.entry(port).or_default();
                *most = n.max(*most);
            }
        }
        most
    }

    fn refuse_too_many(&self, most: &BTreeMap<u32, usize>, station: &Station) -> Result<()> {
        if let Some(n) = most.values().find(|n| **n > MAX_MEMBERS) {
            return Err(format!(
                "a group has {n} members behind one port of {}, and the XDP programs send to \
                 {MAX_MEMBERS} behind one: use the udp plane",
                station.name()
            ));
        }
        if most.len() > MAX_LINKS || most.values().sum::<usize>() > MAX_LINKS {
            return Err(format!(
                "members are behind {} ports of {}, and the XDP programs send {MAX_LINKS} copies: \
                 use the udp plane",
                most.len(),
                station.name()
            ));
        }
        Ok(())
    }
}

impl Link {
    /// Notes a member, if its hardware address is known.
    fn add(&mut self, member: &Member, hop: &Hop, from: SocketAddr) {
        let Some(mac_to) = hop.mac_to else { return };
        self.member[self.members as usize] = MulticastMember {
            mac_to,
            mac_from: hop.mac_from,
            family: if member.address.is_ipv4() { 4 } else { 6 },
            ip_to: octets(member.address.ip()),
            ip_from: octets(from.ip()),
            port_to: member.address.port(),
            port_from: from.port(),
            partitions: if member.port_per_partition {
                u16::MAX
            } else {
                0
            },
            role: hop.role,
        };
        self.members += 1;
    }
}

/// Returns an address as the maps store it: IPv4 is in the first four bytes.
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
