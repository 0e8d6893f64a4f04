// SPDX-License-Identifier: Apache-2.0
//! The kernel plane. A role runs as an XDP program at the interface that has the node's address, or
//! is called by a switch program that has it. Its memory and its link are pinned, so it keeps
//! serving while the node's process is away.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use loader::attach::{Attachment, Mode};
use loader::clone::Cloning;
use loader::features;
use loader::interface::Interface;
use loader::keyring::KernelKeyring;
use loader::layout::{DEVICE_KNOWS_ASKERS, DEVICE_KNOWS_NODES, DEVICE_SIGNED, Device};
use loader::map_place::{self, MapPlace};
use loader::members::{Member, Members, octets};
use loader::object::{self, Object, Role, Sizes};
use loader::pins::Pins;
use loader::station::Station;
use loader::switch::Switch;
use loader::user_space_program::{Outcome, UserSpaceProgram, copies};
use paxos::Packet;
use serde_json::{Value, json};
use tracing::{info, warn};

use super::{Handler, counters};
use crate::auth::{Keyring, Keys, Signer};
use crate::cluster_file::{ClusterFile, Node};
use crate::{Error, Senders, listen};

/// A role's programs and the places of its groups in their maps.
pub(crate) struct XdpPlane {
    object: Object,
    places: Vec<MapPlace>,
    /// No earlier process has left any memory.
    is_new: bool,
    device: Device,
    station: Station,
    pins: Pins,
    members: Members,
    /// The link to an interface, unless a switch calls the program.
    attachment: Option<Attachment>,
    /// Present if the interface doesn't take redirected frames.
    cloning: Option<Cloning>,
    /// Members that receive nothing because their hardware address is unknown.
    unreachable: Vec<IpAddr>,
    /// The error of the last look-up of these addresses.
    trouble: Option<String>,
    /// The program passes packets here that it has no room to answer; packets that no program sees
    /// arrive here, too.
    socket: UdpSocket,
    program: UserSpaceProgram,
    buffer: Vec<u8>,
    senders: Senders,
    keys: KernelKeys,
    signer: Signer,
    here: Here,
}

/// The keys with which a role in the kernel checks and signs packets, if packets are signed.
pub(crate) struct KernelKeys {
    keys: Keys,
    keyring: Option<KernelKeyring>,
}

impl KernelKeys {
    /// Reads the keys of the key file and gives them to a loaded role.
    pub fn of_node(cluster: &ClusterFile, object: &Object) -> Result<KernelKeys, Error> {
        let keys = Keys::of_node(cluster)?;
        let keyring = match keys.keyring() {
            None => None,
            Some(keys) => {
                let keyring = KernelKeyring::of(object)?;
                keyring.set(&keys)?;
                Some(keyring)
            }
        };
        Ok(KernelKeys { keys, keyring })
    }

    /// Follows the key file. Returns the new keys if the file was replaced.
    pub fn reload(&mut self) -> Result<Option<Arc<Keyring>>, Error> {
        let (Some(newer), Some(keyring)) = (self.keys.newer(), &self.keyring) else {
            return Ok(None);
        };
        keyring.set(&newer)?;
        Ok(Some(newer))
    }

    /// Returns the keys' part of a status document.
    pub fn shown(&self) -> Value {
        self.keys.shown()
    }
}

/// Counters of the packets that the process has handled instead of the program.
#[derive(Default)]
struct Here {
    /// Answers that were sent, and messages that were sent to all members.
    answered: u64,
    multicast: u64,
    /// Datagrams that the kernel refused or had no room for.
    unsent: u64,
}

impl XdpPlane {
    /// Loads a role with the memory that an earlier process left, or with new memory, without
    /// attaching it to the interface yet. `members` are the receivers of the role's multicast, by
    /// group.
    pub fn load(
        cluster: &ClusterFile,
        node: &Node,
        role: Role,
        members: Vec<(u16, Vec<Member>)>,
    ) -> Result<XdpPlane, Error> {
        refuse_traces(cluster)?;
        let station = station(cluster, node)?;
        let directory = object::directory()?;
        let is_new = !Pins::are_left(&cluster.bpffs, cluster.cluster, &node.name);
        let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, &node.name)?;
        let places = places(cluster, node);
        pins.claim(role, &places)?;
        if let Station::Switch(switch) = &station {
            switch.lend_roles(pins.path())?;
        }
        let mut object = Object::load_kept(&directory, role, &sizes(&places), pins.path())?;
        // This must come before any program runs that looks up the senders.
        tell_senders(&mut object, cluster)?;
        let keys = KernelKeys::of_node(cluster, &object)?;
        let keyring = keys.keys.keyring();
        Ok(XdpPlane {
            socket: listen::udp(node.address, "address")?,
            program: UserSpaceProgram::new(&object)?,
            buffer: vec![0; 2048],
            senders: Senders::of(cluster).with(keyring.clone()),
            keys,
            signer: Signer::new(keyring),
            here: Here::default(),
            object,
            device: device(cluster, node, 1),
            places,
            is_new,
            station,
            pins,
            members: Members::new(node.address, members, listeners(cluster, role)),
            attachment: None,
            cloning: None,
            unreachable: Vec::new(),
            trouble: None,
        })
    }

    /// Removes memory that no program uses.
    pub fn forget_unless_attached(cluster: &ClusterFile, node: &Node) -> Result<(), Error> {
        let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, &node.name)?;
        match pins.is_attached() {
            true => Ok(()),
            false => Ok(pins.remove()?),
        }
    }

    /// Returns the loaded object.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Returns the place of each group in the maps, in the order of the cluster file.
    pub fn places(&self) -> &[MapPlace] {
        &self.places
    }

    /// Returns whether the memory is empty because no earlier process has left any.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Begins to serve; the role's own maps must be ready. `flags` are the options of its groups
    /// for the program.
    pub fn attach(&mut self, flags: u32) -> Result<(), Error> {
        self.refresh();
        if let Some(trouble) = self.trouble.take() {
            return Err(trouble.into());
        }
        for place in &self.places {
            map_place::open(&mut self.object, place, flags, &self.device)?;
        }
        match &self.station {
            Station::Interface(interface) => {
                let interface = interface.clone();
                self.attach_to_interface(&interface)
            }
            Station::Switch(switch) => {
                let own = self.members.from().ip();
                let replaced = switch.attach(&mut self.object, own, self.pins.path())?;
                say_what_is_attached(
                    self.object.role(),
                    switch.name(),
                    replaced,
                    "by its forwarder",
                );
                Ok(())
            }
        }
    }

    fn attach_to_interface(&mut self, interface: &Interface) -> Result<(), Error> {
        let attached = self.object.attach_kept(interface, self.pins.path())?;
        say_what_is_at_interface(self.object.role(), interface, &attached);
        if let Some(why) = why_clones(interface, attached.mode) {
            warn!(why, "plane: copies leave as clones in TC, so slower");
            let pins = Some(self.pins.path());
            let ports = [interface.index];
            let cloning = self.object.multicast_by_clones(interface, &ports, pins)?;
            self.cloning = Some(cloning);
        }
        self.attachment = Some(attached);
        Ok(())
    }

    /// Handles the packets that have arrived at the node's socket, as the program would: those that
    /// the program has passed on, and those from this machine, which no program sees. `look` first
    /// sees each packet that may count.
    pub fn handle_passed(&mut self, mut look: impl FnMut(&Packet<'_>)) -> Result<(), Error> {
        for _ in 0..MAX_PASSED {
            let Ok((n, from)) = self.socket.recv_from(&mut self.buffer) else {
                // Either no packet is left, or the error is about an earlier send and doesn't
                // concern the next packet.
                return Ok(());
            };
            let datagram = &self.buffer[..n];
            if let Ok(packet) = self.senders.parse(datagram, &from) {
                look(&packet);
            }
            match self.program.handle(datagram, from, self.members.from())? {
                Outcome::Nothing => {}
                Outcome::Answer(answer) => {
                    self.here.answered += 1;
                    self.here.send(&self.socket, answer, from);
                }
                Outcome::Multicast(packet) => {
                    self.here.multicast += 1;
                    for copy in copies(&packet) {
                        let signed = self.signer.datagram(&copy, packet.value);
                        let datagram = signed.unwrap_or_else(|| copy.datagram(packet.value));
                        for to in self.members.receivers(copy.group, copy.pid) {
                            self.here.send(&self.socket, &datagram, to);
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Detaches the program from the interface; its memory stays until [`XdpPlane::forget`].
    pub fn detach(&mut self) -> Result<(), Error> {
        (self.attachment, self.cloning) = (None, None);
        Ok(self.pins.detach()?)
    }

    /// Detaches the program and removes its memory.
    pub fn forget(&mut self) -> Result<(), Error> {
        (self.attachment, self.cloning) = (None, None);
        Ok(self.pins.remove()?)
    }

    fn interface(&self) -> Option<&Interface> {
        match &self.station {
            Station::Interface(interface) => Some(interface),
            Station::Switch(_) => None,
        }
    }

    fn switch(&self) -> Option<&Switch> {
        match &self.station {
            Station::Switch(switch) => Some(switch),
            Station::Interface(_) => None,
        }
    }
}

impl Handler for XdpPlane {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn take_passed(&mut self) -> Result<(), Error> {
        self.handle_passed(|_| {})
    }

    /// Follows changes of the key file and of the members' hardware addresses.
    fn refresh(&mut self) {
        match self.keys.reload() {
            Ok(None) => {}
            Ok(Some(keyring)) => {
                self.senders.use_keys(keyring.clone());
                self.signer.use_keys(keyring);
            }
            Err(why) => warn!("plane: the program has its old keys: {why}"),
        }
        match self.members.refresh(&self.station, &mut self.object) {
            Ok(unreachable) => {
                self.unreachable = unreachable;
                self.trouble = None;
            }
            Err(why) => self.trouble = Some(why),
        }
    }

    fn say_what_stays(&self) {
        info!(
            "plane: xdp; the {} serves on at {}; start the node again to control it, and \
             `wirepaxos stop` to take it off",
            self.object.role().name(),
            self.station.name()
        );
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        if !self.unreachable.is_empty() {
            warnings.push(format!(
                "no hardware address is known for {}: nothing is sent there",
                list(&self.unreachable)
            ));
        }
        warnings.extend(self.trouble.clone());
        let attachment = self.attachment.as_ref();
        document["counters"] = counters(|which| self.object.counter(which));
        document["auth"] = self.keys.shown();
        document["plane"] = json!({
            "name": "xdp",
            "interface": self.interface().map(|i| &i.name),
            "switch": self.switch().map(Switch::name),
            "mode": attachment.map(|a| a.mode.name()),
            "why_generic": attachment.and_then(|a| a.why_generic.as_deref()),
            "multicast": if self.cloning.is_some() { "clones" } else { "redirect" },
            "unreachable": self.unreachable,
            "answered_by_process": self.here.answered,
            "multicast_by_process": self.here.multicast,
            "unsent_by_process": self.here.unsent,
        });
    }
}

impl Here {
    /// Sends a datagram. One that can't be sent is lost, as every packet may be.
    fn send(&mut self, socket: &UdpSocket, datagram: &[u8], to: SocketAddr) {
        self.unsent += u64::from(socket.send_to(datagram, to).is_err());
    }
}

/// Returns the receivers of a role's multicast.
fn listeners(cluster: &ClusterFile, role: Role) -> Vec<IpAddr> {
    if role != Role::Leader {
        return Vec::new();
    }
    let mut listeners = Vec::new();
    for acceptor in cluster.acceptors() {
        for group in &cluster.groups {
            let nodes = cluster.listeners(acceptor, group.id);
            listeners.extend(nodes.iter().map(|node| node.address.ip()));
        }
    }
    listeners
}

/// Returns an error if the cluster file asks for traces, since programs in the kernel record
/// nothing.
pub(crate) fn refuse_traces(cluster: &ClusterFile) -> Result<(), Error> {
    match &cluster.trace {
        None => Ok(()),
        Some(_) => Err(Error::new(
            "`trace` in the cluster file: programs in the kernel record nothing; remove it, or use \
             the udp plane",
        )),
    }
}

/// How many packets one turn handles at most, so that orders don't wait behind a flood.
const MAX_PASSED: usize = 256;

/// Returns why copies can't be redirected to an interface, or `None` if they can.
fn why_clones(interface: &Interface, mode: Mode) -> Option<&'static str> {
    match (mode, features::takes_redirects(interface)) {
        (Mode::Generic, _) => Some("the program isn't in the driver"),
        (Mode::Native, Some(false)) => Some("the driver takes no redirected frames"),
        (Mode::Native, None) => Some(
            "this kernel, older than 6.3, doesn't say whether the driver takes redirected frames",
        ),
        (Mode::Native, Some(true)) => None,
    }
}

/// Returns the place where the node's packets arrive.
fn station(cluster: &ClusterFile, node: &Node) -> Result<Station, Error> {
    Ok(match &node.switch {
        Some(switch) => Station::Switch(Switch::open(&cluster.bpffs, switch)?),
        None => Station::Interface(Interface::with_address(node.address.ip())?),
    })
}

/// Prints which role is attached where.
fn say_what_is_attached(role: Role, place: &str, replaced: bool, how: &str) {
    let done = if replaced {
        "replaced in place"
    } else {
        "attached"
    };
    info!(
        "plane: xdp; the {} is {done} at {place} ({how})",
        role.name()
    );
}

pub(crate) fn say_what_is_at_interface(role: Role, interface: &Interface, attached: &Attachment) {
    say_what_is_attached(
        role,
        &interface.name,
        attached.replaced,
        attached.mode.name(),
    );
    if let (Mode::Generic, Some(why)) = (attached.mode, &attached.why_generic) {
        warn!(why, "plane: not in the driver, so slower");
    }
}

fn list(addresses: &[IpAddr]) -> String {
    let all: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
    all.join(", ")
}

/// Returns the place of each group in a role's maps.
pub(crate) fn places(cluster: &ClusterFile, node: &Node) -> Vec<MapPlace> {
    let (mut first_partition, mut first_slot) = (0, 0);
    let place = |(index, group): (usize, &crate::cluster_file::Group)| {
        let place = MapPlace {
            deployment: cluster.deployment(node, group),
            slots: group.slots as u64,
            index: index as u32,
            first_partition,
            first_slot,
        };
        first_partition += u32::from(group.partitions);
        first_slot += u64::from(group.partitions) * group.slots as u64;
        place
    };
    cluster.groups.iter().enumerate().map(place).collect()
}

fn sizes(places: &[MapPlace]) -> Sizes {
    let partitions = places.iter().map(|p| u32::from(p.deployment.partitions));
    let slots = places
        .iter()
        .map(|p| u32::from(p.deployment.partitions) * p.slots as u32);
    Sizes {
        groups: places.len() as u32,
        partitions: partitions.sum(),
        slots: slots.sum(),
        ring_bytes: 0,
        rings: 0,
    }
}

/// Tells the program from which addresses packets may come. [M-SENDER] [M-ASKER]
pub(crate) fn tell_senders(object: &mut Object, cluster: &ClusterFile) -> Result<(), Error> {
    object.set_nodes(Senders::of(cluster).nodes())?;
    let askers = cluster.askers().unwrap_or_default();
    let askers: Vec<_> = askers.iter().map(|n| (n.address, n.bits)).collect();
    Ok(object.set_askers(&askers)?)
}

/// Returns the device record of a node. The program takes `ports` ports, starting with the node's
/// own.
pub(crate) fn device(cluster: &ClusterFile, node: &Node, ports: u16) -> Device {
    let own = octets(node.address.ip());
    let mut device = Device {
        cluster: cluster.cluster,
        node: node.id,
        port: node.address.port(),
        ports,
        flags: match cluster.auth.of_packets() {
            Some(_) => DEVICE_KNOWS_NODES | DEVICE_SIGNED,
            None => DEVICE_KNOWS_NODES | DEVICE_KNOWS_ASKERS,
        },
        ..Device::default()
    };
    match node.address {
        SocketAddr::V4(_) => device.ip4.copy_from_slice(&own[..4]),
        SocketAddr::V6(_) => device.ip6 = own,
    }
    device
}
