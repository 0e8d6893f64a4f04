// SPDX-License-Identifier: Apache-2.0
//! Faults on links. A link that shall have some leads through a wire: a pair of interfaces in a
//! namespace of its own, with the program `programs/xdp/fault.bpf.c` at both. So both ends of the link stay
//! free for programs of the roles, and frames that those send meet the faults like any other.
//!
//! The program loses and corrupts. It can neither copy a frame nor keep one, so those that are to
//! be duplicated, held back or delayed go past a process, the detour, and come back in user space's
//! own time; all others overtake them in the kernel.

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

/// Which faults, as probabilities from 0 to 1. All apply to each direction by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Never arrives.
    pub loss: f64,
    /// Arrives twice; the copy up to `hold_us` later.
    pub duplicate: f64,
    /// Held back for half of `hold_us` to all of it, while others overtake.
    pub reorder: f64,
    /// Arrives with one bit of its payload flipped, which its checksum tells.
    pub corrupt: f64,
    /// How long a frame is held back at most, in microseconds.
    pub hold_us: u32,
    /// Added to every frame, in microseconds, before `hold_us`.
    pub delay_us: u32,
    /// The same frames in the same order on the same CPUs meet the same faults.
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

/// One direction of a wired link: its faults, and what they have done since they were set.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// The link.
    pub link: String,
    /// Where these frames come from: a host or switch.
    pub from: String,
    /// Its faults.
    pub rates: Rates,
    /// Datagrams of the cluster that came in.
    pub datagrams: u64,
    /// Those that were lost,
    pub lost: u64,
    /// had a bit flipped,
    pub corrupted: u64,
    /// arrived twice,
    pub duplicated: u64,
    /// were held back,
    pub reordered: u64,
    /// or came late, with all others.
    pub delayed: u64,
    /// Those that the detour had no room for, which nobody asked for.
    pub overflowed: u64,
    /// Frames that aren't the cluster's: never touched.
    pub others: u64,
}

impl Lab {
    /// Sets faults on links, by the names of their hosts; `all` is all of them. `program` is a
    /// `wirepaxos`, which runs the detour.
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

    /// What there is on wired links.
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

    /// Leads a link through a wire, without faults so far, unless it does already. The host's end
    /// stays what it is; the switch gets a new port of the same name. Takes up where an interrupted
    /// one has left off.
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
                "link add name {far} {queues} netns {wires} type veth peer name {port} {queues} netns {switch} address {}",
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

    /// It would be gone with the port, and everything that its owner knows of it.
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

    /// The indices of the wire's interfaces, where the link has one.
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
            // The first line names the columns; the fourth one is the protocol.
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
