// SPDX-License-Identifier: Apache-2.0
//! The P4 plane. A role runs as a program of a switch, and the node's process runs beside that
//! switch: the interface that has the node's address leads to the switch's CPU port. The process
//! fills the program's tables, carries out the controller's orders, and reads the switch's memory;
//! the switch keeps serving while the process is away.
//!
//! A switch that was restarted has empty registers and tables. It sends nothing until its process
//! has given its memory a new name, a boot nonce that no node has seen; so no node relies on what
//! the switch has forgotten. [A-STRANGER] [L-PROGRAM]

use std::cell::{RefCell, RefMut};
use std::net::{IpAddr, UdpSocket};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use loader::interface::Interface;
use loader::members::Member;
use loader::neighbour::next_hops;
use loader::run::counter;
use p4::bmv2::Tables;
use p4::cpu_port::CpuPort;
use p4::tables::{self, Copy, RegisterPlace};
use p4::{Role, order};
use paxos::wire::value::Probe;
use paxos::{GroupId, PartitionId};
use serde_json::{Value, json};
use tracing::info;

use super::choice::refuse_kernel;
use super::{Handler, counters};
use crate::auth::Keys;
use crate::cluster_file::{self, ClusterFile, Node};
use crate::{Error, Senders, listen, random_nonce};

/// A role's program in its switch.
pub(crate) struct P4Plane {
    node: Node,
    cluster: u32,
    interface: Interface,
    tables: Tables,
    nodes: Vec<(u16, IpAddr)>,
    /// The networks from which commands may come; `None` means any.
    askers: Option<Vec<(IpAddr, u8)>>,
    groups: Vec<SwitchGroup>,
    /// Members that receive nothing because their hardware address is unknown.
    unreachable: Vec<IpAddr>,
    /// The error of the last look at the switch.
    trouble: Option<String>,
    /// Holds the node's port, so that packets that the switch passes by don't cause ICMP errors. It
    /// normally receives nothing.
    socket: UdpSocket,
    /// The lines that the role itself adds to its tables.
    own_lines: Vec<String>,
    /// The keys with which packets are signed, if they are.
    keys: Keys,
    /// The switch may still have other keys.
    has_old_keys: bool,
    /// The tables are complete, as far as is known.
    is_filled: bool,
}

/// One group of the node.
struct SwitchGroup {
    place: RegisterPlace,
    role: RefCell<Role<Rc<RefCell<CpuPort>>>>,
    members: Vec<Member>,
    /// The copies that the tables contain.
    copies: Vec<Copy>,
}

impl P4Plane {
    /// Finds the switch, looks whether it runs the node's program, and begins its memory or goes on
    /// with it. `members` are the receivers of the role's multicast, by group.
    pub fn open(
        cluster: &ClusterFile,
        node: &Node,
        members: impl Fn(GroupId) -> Vec<Member>,
    ) -> Result<P4Plane, Error> {
        refuse_kernel(cluster, node)?;
        let interface = Interface::with_address(node.address.ip())?;
        let port = Rc::new(RefCell::new(CpuPort::open(interface.index)?));
        let group = |place: RegisterPlace| SwitchGroup {
            place,
            role: RefCell::new(Role::new(port.clone(), place.deployment)),
            members: members(place.deployment.group),
            copies: Vec::new(),
        };
        let mut plane = P4Plane {
            cluster: cluster.cluster,
            tables: Tables::at(node.p4_control)?,
            nodes: Senders::of(cluster).nodes().to_vec(),
            askers: askers(cluster),
            groups: places(cluster, node).into_iter().map(group).collect(),
            unreachable: Vec::new(),
            trouble: None,
            socket: listen::udp(node.address, "address")?,
            own_lines: Vec::new(),
            keys: Keys::of_node(cluster)?,
            has_old_keys: true,
            is_filled: false,
            interface,
            node: node.clone(),
        };
        plane.refuse_missing_port()?;
        plane.fill()?;
        info!(
            "plane: p4; the {} is in the switch at {}",
            node.role, node.p4_control
        );
        Ok(plane)
    }

    /// Returns the groups' roles, in the order of the cluster file.
    pub fn groups(&self) -> impl Iterator<Item = OfGroup<'_>> {
        self.groups.iter().map(OfGroup)
    }

    /// Returns the role of a group.
    pub fn of_group(&self, group: GroupId) -> Option<OfGroup<'_>> {
        self.groups().find(|g| g.place().deployment.group == group)
    }

    /// Sets the lines that the role itself adds to its tables, now and whenever they are filled.
    pub fn set_own_lines(&mut self, lines: Vec<String>) {
        if let Err(why) = self.tables.run(&lines) {
            self.trouble = Some(why);
            self.is_filled = false;
        }
        self.own_lines = lines;
    }

    /// Passes packets for the node's address to the switch's own machine from now on. The memory
    /// stays unchanged.
    pub fn take_off(&self) -> Result<(), Error> {
        Ok(self.tables.run(&tables::take_off()).map(drop)?)
    }

    fn refuse_missing_port(&self) -> Result<(), Error> {
        let ports = self.tables.ports()?;
        let wanted = self.node.p4_port;
        if ports.iter().any(|(port, _)| *port == wanted) {
            return Ok(());
        }
        let there: Vec<_> = ports.iter().map(|(port, _)| port.to_string()).collect();
        Err(Error::configuration(
            format!(
                "the switch at {} has no port {wanted} (`p4_port`); it has {}",
                self.node.p4_control,
                there.join(", ")
            ),
            format!("name one of these, or start it with `-i {wanted}@INTERFACE`"),
        ))
    }

    /// Fills the tables of a switch, whatever they contain, and names its memory if it has no name.
    /// The role receives packets only when everything else is ready.
    fn fill(&mut self) -> Result<(), Error> {
        self.is_filled = false;
        let (node, port) = (&self.node, self.node.p4_port);
        let own_order = tables::own_order(node.id, self.cluster, node.address.port());
        self.run(&[tables::clear(), vec![own_order]].concat())?;
        self.refuse_other_program()?;
        let dump = self.run(&["mc_dump".into()])?;
        self.run(&tables::remove_multicast(&dump))?;

        let mut lines = vec![tables::beside(port), "set_queue_depth 4096".into()];
        lines.extend(self.nodes.iter().copied().map(tables::node));
        lines.extend(match &self.askers {
            Some(askers) => askers.iter().copied().map(tables::asker).collect(),
            None => tables::any_asker(),
        });
        lines.extend(self.groups.iter().map(|g| tables::group(&g.place)));
        lines.extend(self.own_lines.clone());
        self.run(&lines)?;
        for group in &self.groups {
            let members = group.members.len() as u8;
            tables::make_multicast(&group.place, members, port, |lines| self.tables.run(lines))?;
        }
        self.groups.iter_mut().for_each(|g| g.copies.clear());
        self.refresh_copies()?;
        self.tell_keys()?;
        if self.has_memory() {
            for group in self.groups() {
                group.begin()?;
            }
        }
        let own = tables::own(self.node.id, self.cluster, self.node.address);
        self.run(&[own])?;
        self.is_filled = true;
        Ok(())
    }

    /// Gives the program the current keys, which are the same for all groups.
    fn tell_keys(&mut self) -> Result<(), Error> {
        if let (Some(keyring), Some(group)) = (self.keys.keyring(), self.groups().next()) {
            group.role().use_keys(&keyring)?;
        }
        self.has_old_keys = false;
        Ok(())
    }

    /// Returns the number of the signature algorithm as it stands in a tag; 0 means that packets
    /// aren't signed.
    fn signs(&self) -> u8 {
        let keyring = self.keys.keyring();
        keyring.map_or(0, |keyring| keyring.algorithm().number())
    }

    fn run(&self, lines: &[String]) -> Result<String, Error> {
        Ok(self.tables.run(lines)?)
    }

    /// Returns whether the role's memory needs a name. A learner's doesn't, since what it forgets
    /// is repaired.
    fn has_memory(&self) -> bool {
        self.node.role != cluster_file::Role::Learner
    }

    fn refuse_other_program(&self) -> Result<(), Error> {
        let Some(group) = self.groups.first() else {
            return Ok(());
        };
        let about = group.role.borrow_mut().about()?;
        let (role, wanted) = (&self.node.role, role_number(self.node.role));
        let signed = if self.signs() == 0 { "" } else { ", -DSIGNED" };
        let problem = if about.orders != order::VERSION {
            format!(
                "takes orders of version {}, and this node gives those of version {}",
                about.orders,
                order::VERSION
            )
        } else if about.role != wanted {
            format!("runs another role's program, and not the {role}'s")
        } else if about.signs != self.signs() {
            match about.signs {
                0 => "was made without -DSIGNED, and the cluster file asks for signed packets"
                    .to_owned(),
                _ => "takes signed packets only, and the cluster file has none".to_owned(),
            }
        } else {
            let last = self.groups.last().expect("there is one");
            let partitions =
                last.place.first_partition + u32::from(last.place.deployment.partitions);
            let slots = match self.node.role {
                cluster_file::Role::Acceptor | cluster_file::Role::Learner => {
                    last.place.first_slot
                        + u64::from(last.place.deployment.partitions) * last.place.slots
                }
                _ => 1,
            };
            let groups = self.groups.len() as u64;
            let fits = slots <= about.slots
                && u64::from(partitions) <= about.partitions
                && groups <= about.groups;
            if fits {
                return Ok(());
            }
            format!(
                "has room for {} slots, {} partitions and {} groups, and the cluster file asks for \
                 {slots}, {partitions} and {groups}",
                about.slots, about.partitions, about.groups
            )
        };
        Err(Error::configuration(
            format!(
                "the program of the switch at {} {problem}",
                self.node.p4_control
            ),
            format!(
                "compile this version's programs/p4/v1model/{role}.p4, with -DSLOTS, -DPARTITIONS \
                 and -DGROUPS as large as that{signed}, and start the switch with it"
            ),
        ))
    }

    /// Follows changes of the members' hardware addresses.
    fn refresh_copies(&mut self) -> Result<(), Error> {
        let all = self.groups.iter().flat_map(|g| &g.members);
        let mut addresses: Vec<_> = all.map(|member| member.address.ip()).collect();
        addresses.sort();
        addresses.dedup();
        let macs = next_hops(&self.interface, &addresses)?;
        let known = || addresses.iter().zip(&macs);
        let mac_of = |ip| known().find(|(known, _)| **known == ip)?.1.to_owned();
        let (from, mac_from) = (self.node.address, self.interface.mac);
        let copies = |group: &SwitchGroup| -> Vec<Copy> {
            let copy = |(number, member): (u8, &Member)| {
                Some(Copy {
                    number,
                    to: member.address,
                    from,
                    mac_to: mac_of(member.address.ip())?,
                    mac_from,
                    port_per_partition: member.port_per_partition,
                })
            };
            (0..).zip(&group.members).filter_map(copy).collect()
        };
        let new: Vec<_> = self.groups.iter().map(copies).collect();
        self.unreachable = known()
            .filter(|(_, mac)| mac.is_none())
            .map(|(ip, _)| *ip)
            .collect();
        if self.groups.iter().map(|g| &g.copies).eq(&new) {
            return Ok(());
        }
        let mut lines = vec![
            "table_clear egress.members4".to_owned(),
            "table_clear egress.members6".to_owned(),
        ];
        for (group, copies) in self.groups.iter().zip(&new) {
            lines.extend(copies.iter().map(|copy| tables::copy(&group.place, copy)));
        }
        self.run(&lines)?;
        for (group, copies) in self.groups.iter_mut().zip(new) {
            group.copies = copies;
        }
        Ok(())
    }

    /// Returns whether the switch has this role and its memory has a name.
    fn is_there(&self) -> bool {
        self.groups().all(|group| match self.has_memory() {
            true => group.role().look(0).is_ok_and(|look| look.nonce != 0),
            false => group.role().look(0).is_ok(),
        })
    }

    fn look_after(&mut self) -> Result<(), Error> {
        self.has_old_keys |= self.keys.newer().is_some();
        if !self.is_filled || !self.is_there() {
            info!(
                "plane: the switch at {} doesn't answer, or has forgotten; its tables are filled \
                 anew",
                self.node.p4_control
            );
            self.fill()?;
        }
        if self.has_old_keys {
            self.tell_keys()?;
        }
        self.refresh_copies()
    }

    fn counters(&self) -> Result<Vec<u64>, String> {
        let mut all = Vec::new();
        if let Some(group) = self.groups().next() {
            for first in (0..=counter::UNSENT as u16).step_by(4) {
                all.extend(group.role().counters(first)?);
            }
        }
        Ok(all)
    }

    /// Returns the value of a counter, or 0 if the switch doesn't answer.
    pub fn counter(&self, which: usize) -> u64 {
        let asked = self.groups().next().map(|group| {
            let four = group.role().counters(which as u16 / 4 * 4);
            four.map_or(0, |four| four[which % 4])
        });
        asked.unwrap_or(0)
    }
}

impl Handler for P4Plane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Discards packets that reached the socket while the tables were empty.
    fn take_passed(&mut self) -> Result<(), Error> {
        let mut buffer = [0; 1];
        while self.socket.recv_from(&mut buffer).is_ok() {}
        Ok(())
    }

    fn refresh(&mut self) {
        self.trouble = self.look_after().err().map(|why| why.to_string());
    }

    fn say_what_stays(&self) {
        info!(
            "plane: p4; the {} serves on in the switch at {}; start the node again to control it, \
             and `wirepaxos stop` to take it off",
            self.node.role, self.node.p4_control
        );
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        if !self.unreachable.is_empty() {
            warnings.push(format!(
                "no hardware address is known for {}: nothing is sent there",
                self.unreachable
                    .iter()
                    .map(IpAddr::to_string)
                    .collect::<Vec<_>>()
                    .join(", ")
            ));
        }
        warnings.extend(self.trouble.clone());
        match self.counters() {
            Ok(all) => {
                document["counters"] = counters(|which| all.get(which).copied().unwrap_or(0))
            }
            Err(why) if self.trouble.is_none() => warnings.push(why),
            Err(_) => {}
        }
        document["auth"] = self.keys.shown();
        document["plane"] = json!({
            "name": "p4",
            "interface": self.interface.name,
            "switch": self.node.p4_control.to_string(),
            "port": self.node.p4_port,
            "unreachable": self.unreachable,
        });
    }
}

/// A group's role in the switch.
pub(crate) struct OfGroup<'a>(&'a SwitchGroup);

impl<'a> OfGroup<'a> {
    /// Returns the place of the group.
    pub fn place(&self) -> RegisterPlace {
        self.0.place
    }

    /// Returns the role, to give it orders.
    pub fn role(&self) -> RefMut<'a, Role<Rc<RefCell<CpuPort>>>> {
        self.0.role.borrow_mut()
    }

    /// Names a memory that has no name.
    fn begin(&self) -> Result<(), Error> {
        let mut role = self.role();
        if role.look(0)?.nonce == 0 {
            role.begin(random_nonce()?)?;
        }
        Ok(())
    }

    /// Returns all partitions of the group.
    pub fn partitions(&self) -> Range<PartitionId> {
        0..self.0.place.deployment.partitions
    }
}

fn role_number(role: cluster_file::Role) -> u16 {
    match role {
        cluster_file::Role::Leader => Probe::Leader as u16,
        cluster_file::Role::Acceptor => Probe::Acceptor as u16,
        cluster_file::Role::Sequencer => Probe::Sequencer as u16,
        _ => order::LEARNER,
    }
}

/// Returns the networks of askers in the form of the program's tables. [M-ASKER]
fn askers(cluster: &ClusterFile) -> Option<Vec<(IpAddr, u8)>> {
    let askers = cluster.askers()?;
    Some(askers.iter().map(|n| (n.address, n.bits)).collect())
}

/// Returns the place of each group. Leaders and sequencers have no slots, so their groups get a
/// single one.
fn places(cluster: &ClusterFile, node: &Node) -> Vec<RegisterPlace> {
    let has_slots = matches!(
        node.role,
        cluster_file::Role::Acceptor | cluster_file::Role::Learner
    );
    let of_kernel = super::xdp::places(cluster, node).into_iter();
    let place = |place: loader::map_place::MapPlace| RegisterPlace {
        deployment: place.deployment,
        slots: if has_slots { place.slots } else { 1 },
        index: place.index as u16,
        first_partition: place.first_partition,
        first_slot: if has_slots { place.first_slot } else { 0 },
    };
    of_kernel.map(place).collect()
}
