// SPDX-License-Identifier: Apache-2.0
//! Which ports a role's multicast leaves by: the devmaps of the broadcast redirects.

use std::sync::atomic::{Ordering::SeqCst, fence};

use aya::maps::{Array, DevMap, DevMapHash, xdp::XdpMapError};

use crate::layout::{DEVICE_FEW_COPIES, Device, LINK_PLACES, LINK_TRIES, Link};
use crate::object::{Object, Result, whole};

/// The devmaps, and how many times each port is entered in them. The last two are for commands over
/// several partitions, and only a leader has them.
const MAPS: [(&str, usize); 3] = [
    ("multicast", 1),
    ("multicast_few", 4),
    ("multicast_many", 16),
];
/// Room of `multicast_small`.
const SMALL: usize = 4;

/// Returns where each link lies, as `link_of` in `programs/xdp/include/multicast.h` looks for it.
fn placed(links: &[Link]) -> Result<Vec<Link>> {
    let mut places = vec![Link::default(); LINK_PLACES];
    for link in links {
        let first = link.ifindex.wrapping_mul(31).wrapping_add(link.group) as usize;
        let mut tried = (first..first + LINK_TRIES).map(|at| at % LINK_PLACES);
        let free = tried.find(|at| places[*at].ifindex == 0).ok_or_else(|| {
            format!(
                "{} links of ports to groups are more than the XDP programs keep: use the udp \
                 plane",
                links.len()
            )
        })?;
        places[free] = *link;
    }
    Ok(places)
}

impl Object {
    /// Lets one copy of each multicast packet leave by each of these ports; a port with several
    /// members behind it is named that often. With `egress` each copy gets the address of one
    /// member; without, it leaves as it is. In the ports' namespace.
    pub fn multicast_to(&mut self, ports: &[u32], egress: bool) -> Result<()> {
        let few = ports.len() <= SMALL;
        // The only copy gets its address before it leaves.
        let only = match ports {
            [port] if egress => Some(*port),
            _ => None,
        };
        if let Some(port) = only {
            self.fill_only(port)?;
        }
        self.fill("multicast_small", if few { ports } else { &[] }, 1, egress)?;
        for (name, times) in MAPS {
            if times == 1 || self.role().stamps() {
                self.fill(name, ports, times, egress)?;
            }
        }
        self.change_device(|device| {
            device.only_port = only.unwrap_or(0);
            device.flags &= !DEVICE_FEW_COPIES;
            device.flags |= if few { DEVICE_FEW_COPIES } else { 0 };
        })
    }

    /// Says who is behind each port: `links` and nobody else. Programs may be running meanwhile.
    ///
    /// # Errors
    /// If there are more links than places for them near each other.
    pub fn set_links(&mut self, links: &[Link]) -> Result<()> {
        let table = self.memory::<Link>("port_links")?;
        for (at, link) in placed(links)?.into_iter().enumerate() {
            let before = table.get(at);
            if before == link {
                continue;
            }
            // Found under no key while it changes: copies are lost then, and go nowhere else.
            table.set(
                at,
                Link {
                    ifindex: 0,
                    ..before
                },
            );
            fence(SeqCst);
            table.set(at, Link { ifindex: 0, ..link });
            fence(SeqCst);
            table.set(at, link);
        }
        Ok(())
    }

    /// Lets a forwarder's frames leave by a port, which is its key in `ports`. In the port's
    /// namespace.
    pub fn forward_by(&mut self, port: u32) -> Result<()> {
        let map = self.ebpf().map_mut("ports").ok_or("no map ports")?;
        let mut map: DevMapHash<_> = map.try_into().map_err(|e| whole(&e))?;
        map.insert(port, port, None, 0)
            .map_err(|e| refused(port, &e))
    }

    fn fill_only(&mut self, port: u32) -> Result<()> {
        let map = self.ebpf().map_mut("multicast_only");
        let map = map.ok_or("no map multicast_only")?;
        let mut map: DevMap<_> = map.try_into().map_err(|e| whole(&e))?;
        map.set(0, port, None, 0).map_err(|e| refused(port, &e))
    }

    fn fill(&mut self, name: &str, ports: &[u32], times: usize, egress: bool) -> Result<()> {
        let egress = egress.then(|| self.program("egress")).transpose()?;
        let map = self.ebpf().map_mut(name);
        let map = map.ok_or_else(|| format!("no map {name}"))?;
        let mut map: DevMapHash<_> = map.try_into().map_err(|e| whole(&e))?;
        let entries = ports
            .iter()
            .flat_map(|port| std::iter::repeat_n(port, times));
        for (key, port) in (0..).zip(entries) {
            map.insert(key, *port, egress.as_ref(), 0)
                .map_err(|e| refused(*port, &e))?;
        }
        // An earlier process with more members has left these entries.
        let beyond: Vec<u32> = map
            .keys()
            .flatten()
            .filter(|key| *key as usize >= ports.len() * times)
            .collect();
        for key in beyond {
            map.remove(key).map_err(|e| whole(&e))?;
        }
        Ok(())
    }

    /// Changes what the programs know of this node.
    pub(crate) fn change_device(&mut self, change: impl FnOnce(&mut Device)) -> Result<()> {
        let map = self.ebpf().map_mut("device").ok_or("no map device")?;
        let mut map: Array<_, Device> = map.try_into().map_err(|e| whole(&e))?;
        let mut device = map.get(&0, 0).map_err(|e| whole(&e))?;
        change(&mut device);
        map.set(0, device, 0).map_err(|e| whole(&e))
    }
}

fn refused(port: u32, error: &XdpMapError) -> String {
    format!(
        "interface {port}: redirects to it are refused: {}",
        whole(error)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_near_their_place() {
        let link = |ifindex, group| Link {
            ifindex,
            group,
            ..Link::default()
        };
        // Neighbours in both, and keys of one place.
        let mut links: Vec<Link> = (1..9)
            .flat_map(|i| (0..4).map(move |g| link(i, g)))
            .collect();
        links.extend((0..LINK_TRIES as u32).map(|n| link(2000, 256 * n)));
        let places = placed(&links).unwrap();
        let found = |wanted: &Link| {
            let first = (wanted.ifindex * 31 + wanted.group) as usize;
            (first..first + LINK_TRIES).any(|at| places[at % LINK_PLACES] == *wanted)
        };
        assert!(links.iter().all(found));
        links.push(link(2000, 256 * 99));
        assert!(placed(&links).is_err());
    }
}
