// SPDX-License-Identifier: Apache-2.0
//! Faults on links. A link with faults leads through a wire: a pair of interfaces in a separate
//! namespace, with the program `programs/xdp/fault.bpf.c` at both. So both ends of the link stay
//! free for programs of the roles, and frames that those send meet the faults like all others.
//!
//! The program loses and corrupts frames. It can neither copy a frame nor keep one, so frames that
//! must be duplicated, held back or delayed pass through a process, the detour, and return when
//! user space sends them; meanwhile all others overtake them in the kernel.

mod detour;
mod layout;
mod maps;
mod queue;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use loader::veth;
use serde::Serialize;

use self::layout::Wire;
use self::maps::Maps;
use crate::topology::{CLUSTER_PORTS, Link, WIRES};
use crate::{Error, Lab, Result, Shape, interface, namespace, up};

pub(crate) use maps::unmount;

const DETOUR_TIMEOUT: Duration = Duration::from_secs(10);

/// The faults, as probabilities from 0 to 1. All apply to each direction separately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// The frame never arrives.
    pub loss: f64,
    /// The frame arrives twice; the copy up to `hold_us` later.
    pub duplicate: f64,
    /// The frame is held back for between half and all of `hold_us`, while others overtake it.
    pub reorder: f64,
    /// The frame arrives with one bit of its payload flipped, which its checksum reveals.
    pub corrupt: f64,
    /// The longest time for which a frame is held back, in microseconds.
    pub hold_us: u32,
    /// The delay that is added to every frame, in microseconds, before `hold_us`.
    pub delay_us: u32,
    /// The seed: the same frames in the same order on the same CPUs meet the same faults.
    pub seed: u32,
}

impl Rates {
    fn check(&self) -> Result<()> {
        let named = [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        match named.iter().find(|(_, rate)| !(0.0..=1.0).contains(rate)) {
            Some((name, rate)) => Err(Error::new(format!("{name} {rate}: take 0% to 100%"))),
            None => Ok(()),
        }
    }

    fn need_the_detour(&self) -> bool {
        self.duplicate > 0.0 || self.reorder > 0.0 || self.delay_us > 0
    }
}

/// One direction of a wired link, with its faults, and their effects since they were set.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// The link.
    pub link: String,
    /// The host or switch from which the frames come.
    pub from: String,
    /// The faults of this direction.
    pub rates: Rates,
    /// The cluster's datagrams that came in.
    pub datagrams: u64,
    /// Datagrams that were lost.
    pub lost: u64,
    /// Datagrams in which a bit was flipped.
    pub corrupted: u64,
    /// Datagrams that arrived twice.
    pub duplicated: u64,
    /// Datagrams that were held back.
    pub reordered: u64,
    /// Datagrams that were delayed with all others.
    pub delayed: u64,
    /// Datagrams that the detour had no room for, which is no requested fault.
    pub overflowed: u64,
    /// Frames of others than the cluster, which are never touched.
    pub others: u64,
}

impl Lab {
    /// Sets faults on links, which are named after their hosts; `all` stands for all links.
    /// `program` is a `wirepaxos`, which runs the detour.
    pub fn set_faults(&self, program: &Path, names: &[String], rates: &Rates) -> Result<()> {
        let state = self.state_when_up()?;
        rates.check()?;
        let links = self.links_named(&state.shape, names)?;
        let _lock = self.lock()?;
        for link in &links {
            self.wire(link)?;
        }
        if rates.need_the_detour() {
            self.ensure_detour(program)?;
        }
        let mut maps = self.maps()?;
        let all = state.shape.links();
        for link in &links {
            self.set_rates(&mut maps, &all, link, rates)?;
        }
        Ok(())
    }

    /// Returns the faults on wired links, and their effects.
    pub fn faults(&self) -> Result<Vec<Direction>> {
        let state = self.state_when_up()?;
        let Some(maps) = Maps::open(&self.bpffs())? else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for link in state.shape.links() {
            let Some([near, far]) = self.wire_indices(&link)? else {
                continue;
            };
            for (index, from) in [(near, &link.near.host), (far, &link.far.host)] {
                if let Some(wire) = maps.wire(index) {
                    found.push(direction(&maps, index, &wire, &link.name, from));
                }
            }
        }
        Ok(found)
    }

    fn links_named(&self, shape: &Shape, names: &[String]) -> Result<Vec<Link>> {
        let links = shape.links();
        if names.iter().any(|name| name == "all") {
            return Ok(links);
        }
        if let Some(unknown) = names.iter().find(|n| links.iter().all(|l| l.name != **n)) {
            let known: Vec<&str> = links.iter().map(|l| l.name.as_str()).collect();
            return Err(Error::new(format!(
                "lab {} has no link {unknown}; it has {}, and all",
                self.name,
                known.join(", ")
            )));
        }
        Ok(links
            .into_iter()
            .filter(|l| names.contains(&l.name))
            .collect())
    }

    /// Leads every link through a wire.
    pub(crate) fn wire_all(&self, shape: &Shape) -> Result<()> {
        let links = shape.links();
        links.iter().try_for_each(|link| self.wire(link))
    }

    /// Leads a link through a wire without faults, unless it does so already. The host's end stays
    /// unchanged, and the switch gets a new port of the same name; an interrupted attempt is
    /// continued.
    fn wire(&self, link: &Link) -> Result<()> {
        maps::load(&self.bpffs())?;
        let wires = self.namespace(WIRES);
        let switch = self.namespace(&link.far.host);
        let port = &link.far.interface;
        let [near, far] = link.wire();
        let (has_near, has_far) = namespace::inside(&wires, || {
            Ok((
                interface::index(&near).is_ok(),
                interface::index(&far).is_ok(),
            ))
        })?;
        if !has_near {
            self.must_have_no_program(link)?;
            let line = format!("link set {port} netns {wires} name {near}");
            namespace::ip(Some(&switch), &[line])?;
        }
        if !has_far {
            let queues = veth::queues();
            let line = format!(
                "link add name {far} {queues} netns {wires} type veth peer name {port} {queues} \
                 netns {switch} address {}",
                link.far.mac
            );
            namespace::ip(None, &[line])?;
        }
        let mut maps = self.maps()?;
        let indices = self.wire_indices(link)?;
        let unset = indices.is_none_or(|both| both.iter().any(|&i| maps.wire(i).is_none()));
        if has_near && has_far && !unset {
            return Ok(());
        }
        namespace::inside(&switch, || veth::prepare_for_xdp(port).map_err(Error::new))?;
        namespace::ip(Some(&switch), &[up::port_line(port)])?;
        let all = self.shape()?.links();
        self.set_rates(&mut maps, &all, link, &Rates::default())?;
        let program = maps::program(&self.bpffs());
        let lines = [&near, &far].map(|end| {
            format!(
                "link set {end} addrgenmode none xdpdrv pinned {} up",
                program.display()
            )
        });
        namespace::ip(Some(&wires), &lines)
    }

    /// Returns an error if there is a program at the port, since it would vanish with the port, and
    /// its owner wouldn't know.
    fn must_have_no_program(&self, link: &Link) -> Result<()> {
        let switch = self.namespace(&link.far.host);
        let shown = namespace::ip_json(&switch, &["link", "show", &link.far.interface])?;
        if shown[0].get("xdp").is_none() {
            return Ok(());
        }
        Err(Error::new(format!(
            "there is an XDP program on port {} of {}, and leading the link through a wire \
             replaces the port: take the program off first, or make the lab with --wires",
            link.far.interface, link.far.host
        )))
    }

    fn set_rates(&self, maps: &mut Maps, all: &[Link], link: &Link, rates: &Rates) -> Result<()> {
        let Some([near, far]) = self.wire_indices(link)? else {
            return Err(Error::new(format!("link {} has no wire", link.name)));
        };
        let number = all.iter().position(|l| l.name == link.name).unwrap_or(0) as u32;
        for (side, index, out) in [(0, near, far), (1, far, near)] {
            let generation = maps.wire(index).map_or(1, |wire| wire.generation + 1);
            let stream = 2 * number + side;
            let wire = Wire::new(out, CLUSTER_PORTS, rates, stream, generation);
            maps.set_wire(index, &wire)?;
        }
        Ok(())
    }

    /// Returns the indices of the wire's interfaces, if the link has a wire.
    fn wire_indices(&self, link: &Link) -> Result<Option<[u32; 2]>> {
        let [near, far] = link.wire();
        namespace::inside(&self.namespace(WIRES), || {
            let both = interface::index(&near).and_then(|n| Ok([n, interface::index(&far)?]));
            Ok(both.ok())
        })
    }

    fn maps(&self) -> Result<Maps> {
        Maps::open(&self.bpffs())?.ok_or_else(|| Error::new("the fault injector isn't loaded"))
    }

    fn ensure_detour(&self, program: &Path) -> Result<()> {
        let is_detour = |p: &crate::process::Process| {
            p.host == WIRES && p.command.iter().any(|word| word == "detour")
        };
        if self.processes().iter().any(is_detour) {
            return Ok(());
        }
        let mut command = Command::new(program);
        command.args(["lab", "detour", "--name", &self.name]);
        self.spawn(WIRES, "detour", command)?;
        // Frames that come before its socket is there would be lost.
        let deadline = Instant::now() + DETOUR_TIMEOUT;
        while !self.detour_listens()? {
            if Instant::now() > deadline {
                return Err(Error::new(format!(
                    "the detour doesn't start; see {}",
                    self.directory().join("detour.log").display()
                )));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn detour_listens(&self) -> Result<bool> {
        namespace::inside(&self.namespace(WIRES), || {
            let path = "/proc/thread-self/net/packet";
            let sockets = std::fs::read_to_string(path).map_err(Error::at(path))?;
            // The first line has the names of the columns; the fourth column is the protocol.
            let bound = |line: &str| line.split_whitespace().nth(3) == Some("0003");
            Ok(sockets.lines().skip(1).any(bound))
        })
    }
}

fn direction(maps: &Maps, index: u32, wire: &Wire, link: &str, from: &str) -> Direction {
    let states = maps.states(index, wire.generation);
    let handled = maps.handled(index, wire.generation);
    let sum = |field: fn(&layout::WireState) -> u64| states.iter().map(field).sum();
    Direction {
        link: link.to_string(),
        from: from.to_string(),
        rates: wire.rates(),
        datagrams: sum(|s| s.datagrams),
        lost: sum(|s| s.lost),
        corrupted: sum(|s| s.corrupted),
        duplicated: handled.duplicated,
        reordered: handled.reordered,
        delayed: handled.delayed,
        overflowed: handled.overflowed,
        others: sum(|s| s.others),
    }
}
