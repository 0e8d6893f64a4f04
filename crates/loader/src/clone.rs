// SPDX-License-Identifier: Apache-2.0
//! Multicast for devices that take no redirected frames: by clones in TC
//! (`programs/xdp/include/clone.h`).

use std::path::Path;

use aya::maps::Array;
use aya::programs::links::{FdLink, PinnedLink};
use aya::programs::tc::{self, SchedClassifierLink};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::util::KernelVersion;

use crate::interface::Interface;
use crate::layout::{ClonePorts, DEVICE_CLONES, MAX_LINKS};
use crate::object::{Object, Result, whole};

/// The program that clones, at an interface.
#[derive(Debug)]
pub struct Cloning(#[allow(dead_code)] Link);

/// Ends with the value, unless it is pinned.
#[derive(Debug)]
enum Link {
    Own(#[allow(dead_code)] SchedClassifierLink),
    Pinned(#[allow(dead_code)] PinnedLink),
}

impl Object {
    /// From now on multicast leaves by clones instead of a broadcast redirect, until the result is
    /// dropped, or for good where the link is pinned in `pins`.
    ///
    /// `interface` is where the role's program is attached, `ports` are the interfaces of the map
    /// `multicast`, whose members are looked up in `links` as ever. In the interfaces' namespace.
    /// Before kernel 6.6 nothing is pinned: a
    /// restarted process calls it again.
    pub fn multicast_by_clones(
        &mut self,
        interface: &Interface,
        ports: &[u32],
        pins: Option<&Path>,
    ) -> Result<Cloning> {
        self.set_clone_ports(ports)?;
        let link = self.attach_clones(interface, pins)?;
        self.change_device(|device| device.flags |= DEVICE_CLONES)?;
        Ok(Cloning(link))
    }

    fn set_clone_ports(&mut self, ports: &[u32]) -> Result<()> {
        if ports.len() > MAX_LINKS {
            return Err(format!(
                "{} ports, and clones leave by {MAX_LINKS}",
                ports.len()
            ));
        }
        let mut all = ClonePorts {
            count: ports.len() as u32,
            ..ClonePorts::default()
        };
        all.ifindex[..ports.len()].copy_from_slice(ports);
        let map = self.ebpf().map_mut("clone_ports");
        let map = map.ok_or("a forwarder has no multicast of its own")?;
        let mut map: Array<_, ClonePorts> = map.try_into().map_err(|e| whole(&e))?;
        map.set(0, all, 0).map_err(|e| whole(&e))
    }

    fn attach_clones(&mut self, interface: &Interface, pins: Option<&Path>) -> Result<Link> {
        let program = self.loaded("clones")?;
        let program: &mut SchedClassifier = program.try_into().map_err(|e| whole(&e))?;
        let has_links = KernelVersion::current().is_ok_and(|v| v >= KernelVersion::new(6, 6, 0));
        let pins = pins.filter(|_| has_links);
        let path = pins.map(|pins| pins.join(format!("clones-{}", interface.index)));
        if let Some(pinned) = path.as_ref().and_then(|p| PinnedLink::from_pin(p).ok()) {
            let link = SchedClassifierLink::try_from(FdLink::from(pinned));
            let id = program.attach_to_link(link.map_err(|e| whole(&e))?);
            let link = id.and_then(|id| program.take_link(id));
            return link.map(Link::Own).map_err(|e| whole(&e));
        }
        // Kernels before 6.6 attach programs to this queueing discipline, which may exist already.
        let _ = tc::qdisc_add_clsact(&interface.name);
        let id = program.attach(&interface.name, TcAttachType::Ingress);
        let link = id.and_then(|id| program.take_link(id)).map_err(|e| {
            format!(
                "{}: no program at TC's ingress: {}; the kernel needs CONFIG_NET_CLS_BPF and \
                 CONFIG_NET_SCH_INGRESS, or use the udp plane",
                interface.name,
                whole(&e)
            )
        })?;
        let Some(path) = path else {
            return Ok(Link::Own(link));
        };
        match FdLink::try_from(link) {
            Ok(link) => link
                .pin(&path)
                .map(Link::Pinned)
                .map_err(|e| format!("{}: {}", path.display(), whole(&e))),
            Err(error) => Err(whole(&error)),
        }
    }
}
