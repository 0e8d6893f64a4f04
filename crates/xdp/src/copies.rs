//! Which ports a role's multicast leaves by: the devmaps of the broadcast redirects.

use aya::maps::{Array, DevMapHash};

use crate::layout::{DEVICE_FEW_COPIES, Device};
use crate::object::{Object, Result, Role, whole};

/// The devmaps, and how many times every port stands in each: the last two are for commands over
/// several partitions, and a leader has them.
const MAPS: [(&str, usize); 3] = [
    ("multicast", 1),
    ("multicast_few", 4),
    ("multicast_many", 16),
];
/// Room of `multicast_small`.
const SMALL: usize = 4;

impl Object {
    /// Lets one copy of each multicast packet leave by each of these ports; a port with several
    /// members behind it is named that often. With `egress` each copy gets the address of one
    /// member; without, it leaves as it is. In the ports' namespace.
    pub fn multicast_to(&mut self, ports: &[u32], egress: bool) -> Result<()> {
        let few = ports.len() <= SMALL;
        // The only copy gets its address before it leaves.
        let only = if egress && ports.len() == 1 {
            ports[0]
        } else {
            0
        };
        let small = if few { ports } else { &[] };
        self.fill("multicast_small", small, 1, egress && only == 0)?;
        for (name, times) in MAPS {
            if times == 1 || self.role() == Role::Leader {
                self.fill(name, ports, times, egress)?;
            }
        }
        self.change_device(|device| {
            device.only_port = only;
            device.flags &= !DEVICE_FEW_COPIES;
            device.flags |= if few { DEVICE_FEW_COPIES } else { 0 };
        })
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
            map.insert(key, *port, egress.as_ref(), 0).map_err(|e| {
                format!(
                    "interface {port}: redirects to it are refused: {}",
                    whole(&e)
                )
            })?;
        }
        // What an earlier process with more members has left.
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
