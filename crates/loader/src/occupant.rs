// SPDX-License-Identifier: Apache-2.0
//! Whose XDP program is at an interface, or called by a switch: what comes for a socket there meets
//! it first.

use std::net::{IpAddr, SocketAddr};

use aya::maps::{Array, Map, MapData, MapInfo};
use aya::programs::{ProgramInfo, loaded_programs};
use serde_json::Value;

use crate::interface::Interface;
use crate::ip;
use crate::layout::Device;
use crate::members::octets;
use crate::object::Result;

/// A program that meets packets first.
#[derive(Clone, Debug)]
pub struct Occupant {
    id: u32,
    name: String,
    /// The device as the program itself describes it, if it is one of ours.
    device: Option<Device>,
}

impl Occupant {
    /// Returns who is at an interface, as far as this process may know.
    pub fn of(interface: &Interface) -> Result<Option<Occupant>> {
        let lines = [format!("link show dev {}", interface.name)];
        let shown = ip::batch(&["-json"], &lines)?;
        let shown: Value = serde_json::from_slice(&shown).map_err(|e| format!("ip -json: {e}"))?;
        Ok(program_in(&shown[0]["xdp"]).map(|(id, name)| Occupant {
            id,
            name,
            device: program(id).as_ref().and_then(device_of),
        }))
    }

    /// Returns the program of this number.
    pub(crate) fn numbered(id: u32) -> Occupant {
        let program = program(id);
        let name = program.as_ref().and_then(ProgramInfo::name_as_str);
        Occupant {
            id,
            name: name.unwrap_or("unnamed").to_owned(),
            device: program.as_ref().and_then(device_of),
        }
    }

    /// Returns whether it is an earlier version of the program that stands there.
    pub(crate) fn is_of(&self, own: &Device) -> bool {
        self.device
            .is_some_and(|device| (device.cluster, device.node) == (own.cluster, own.node))
    }

    /// Returns whether it takes what is sent to any of these ports. `None` = that isn't known.
    pub fn takes(&self, first: SocketAddr, ports: u16) -> Option<bool> {
        let device = self.device?;
        let own = match first.ip() {
            IpAddr::V4(v4) => device.ip4 == [0; 4] || device.ip4 == v4.octets(),
            v6 @ IpAddr::V6(_) => device.ip6 == [0; 16] || device.ip6 == octets(v6),
        };
        let end = |first: u16, ports: u16| u32::from(first) + u32::from(ports);
        let overlap = u32::from(device.port) < end(first.port(), ports)
            && u32::from(first.port()) < end(device.port, device.ports);
        Some(own && overlap)
    }

    /// Describes the program in words.
    pub fn described(&self) -> String {
        let program = format!("an XDP program, `{}` (number {})", self.name, self.id);
        match self.device {
            Some(device) => format!(
                "{program}, of node {} of cluster {:08x} for port {}",
                device.node, device.cluster, device.port
            ),
            None => program,
        }
    }
}

/// Returns the number and name of the first program that `ip` shows.
fn program_in(shown: &Value) -> Option<(u32, String)> {
    let several = shown["attached"].as_array().and_then(|all| all.first());
    let program = &several.unwrap_or(shown)["prog"];
    let id = u32::try_from(program["id"].as_u64()?).ok()?;
    Some((id, program["name"].as_str().unwrap_or("unnamed").to_owned()))
}

fn program(id: u32) -> Option<ProgramInfo> {
    let mut all = loaded_programs().flatten();
    all.find(|program| program.id() == id)
}

/// Returns its map `device`.
fn device_of(program: &ProgramInfo) -> Option<Device> {
    let maps = program.map_ids().ok()??;
    let found = maps.into_iter().find(|id| {
        let info = MapInfo::from_id(*id);
        info.is_ok_and(|info| {
            info.name_as_str() == Some("device")
                && info.value_size() as usize == size_of::<Device>()
        })
    })?;
    let map: Array<_, Device> = Map::Array(MapData::from_id(found).ok()?).try_into().ok()?;
    map.get(&0, 0).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_occupant_takes_its_own_ports() {
        let mut occupant = Occupant {
            id: 7,
            name: "acceptor".to_owned(),
            device: Some(Device {
                cluster: 0xc1,
                node: 21,
                port: 7000,
                ports: 4,
                ip4: [10, 0, 0, 1],
                ..Device::default()
            }),
        };
        let takes = |occupant: &Occupant, address: &str, ports| {
            occupant.takes(address.parse().expect("an address"), ports)
        };
        for (address, ports, taken) in [
            ("10.0.0.1:7000", 1, true),
            ("10.0.0.1:7003", 1, true),
            ("10.0.0.1:7004", 1, false),
            ("10.0.0.1:6999", 1, false),
            ("10.0.0.1:6999", 2, true),
            ("10.0.0.2:7000", 1, false),
            ("[fd00::1]:7000", 1, true),
        ] {
            assert_eq!(takes(&occupant, address, ports), Some(taken), "{address}");
        }
        assert!(occupant.described().contains("node 21 of cluster 000000c1"));
        occupant.device = None;
        assert_eq!(takes(&occupant, "10.0.0.1:7000", 1), None);
    }

    #[test]
    fn programs_are_found_in_what_ip_shows() {
        let one = r#"{"mode":1,"prog":{"id":12,"name":"leader"}}"#;
        let several = format!(r#"{{"mode":4,"attached":[{one}]}}"#);
        for text in [one, &several] {
            let shown = serde_json::from_str(text).expect("JSON");
            assert_eq!(program_in(&shown), Some((12, "leader".to_owned())));
        }
        assert_eq!(program_in(&Value::Null), None);
    }
}
