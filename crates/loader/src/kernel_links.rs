// SPDX-License-Identifier: Apache-2.0
//! Links, bridges and their neighbours, as `ip` and `bridge` show them. All of it is about the
//! calling thread's network namespace.

use std::net::IpAddr;
use std::process::Command;

use serde_json::Value;

use crate::ip;
use crate::neighbour::parse_mac;
use crate::object::Result;

/// An interface of any kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelLink {
    pub name: String,
    pub index: u32,
    pub is_up: bool,
    /// The bridge, or the like, that it belongs to.
    pub master: Option<String>,
    pub alias: Option<String>,
    /// The addresses with their network lengths, without those that every link has by itself.
    pub addresses: Vec<(IpAddr, u8)>,
}

/// Returns all links of this machine, with aliases and other details.
pub(crate) fn all() -> Result<Vec<KernelLink>> {
    let shown = ip::batch(&["-json", "-details"], &["address show".to_owned()])?;
    let shown: Value = serde_json::from_slice(&shown).map_err(|e| format!("ip -json: {e}"))?;
    Ok(shown
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(link_of)
        .collect())
}

fn link_of(shown: &Value) -> Option<KernelLink> {
    let text = |key: &str| shown[key].as_str().map(str::to_owned);
    let addresses = shown["addr_info"].as_array().into_iter().flatten();
    let addresses = addresses.filter(|address| address["scope"] != "link");
    Some(KernelLink {
        name: text("ifname")?,
        index: u32::try_from(shown["ifindex"].as_u64()?).ok()?,
        is_up: shown["operstate"] == "UP",
        master: text("master"),
        alias: text("ifalias"),
        addresses: addresses
            .filter_map(|address| {
                let ip = address["local"].as_str()?.parse().ok()?;
                Some((ip, address["prefixlen"].as_u64()? as u8))
            })
            .collect(),
    })
}

/// The port behind which an address is, beyond a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostLocation {
    pub port: String,
    pub mac: [u8; 6],
}

/// Returns where addresses are, as far as the kernel knows, and whether what it knows is fresh.
pub(crate) fn places(bridge: &str, of: &[IpAddr]) -> Result<Vec<(Option<HostLocation>, bool)>> {
    let shown = ip::batch(&["-json"], &[format!("neigh show dev {bridge}")])?;
    let neighbours = json("ip -json neigh", &shown)?;
    let forwarded = json("bridge -json fdb", &forwarding(bridge)?)?;
    Ok(of
        .iter()
        .map(|address| place(&neighbours, &forwarded, *address))
        .collect())
}

fn place(neighbours: &Value, forwarded: &Value, of: IpAddr) -> (Option<HostLocation>, bool) {
    let entries = |value| Value::as_array(value).into_iter().flatten();
    let mut neighbours = entries(neighbours);
    let is_it = |n: &&Value| n["dst"].as_str().and_then(|dst| dst.parse().ok()) == Some(of);
    let Some(found) = neighbours.find(is_it) else {
        return (None, false);
    };
    let states = entries(&found["state"]);
    let is_fresh = states
        .filter_map(Value::as_str)
        .any(|state| state == "REACHABLE" || state == "PERMANENT");
    let Some(mac) = found["lladdr"].as_str().and_then(parse_mac) else {
        return (None, false);
    };
    // Permanent entries are the addresses of the ports themselves.
    let is_of = |entry: &&Value| {
        entry["mac"].as_str().and_then(parse_mac) == Some(mac) && entry["state"] != "permanent"
    };
    let port = entries(forwarded).find(is_of);
    let port = port.and_then(|entry| entry["ifname"].as_str());
    match port {
        Some(port) => {
            let port = port.to_owned();
            (Some(HostLocation { port, mac }), is_fresh)
        }
        None => (None, false),
    }
}

fn forwarding(bridge: &str) -> Result<Vec<u8>> {
    let output = Command::new("bridge")
        .args(["-json", "fdb", "show", "br", bridge])
        .output()
        .map_err(|e| format!("bridge: {e}; apt-get install iproute2"))?;
    match output.status.success() {
        true => Ok(output.stdout),
        false => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("bridge fdb show br {bridge}: {}", said.trim()))
        }
    }
}

/// Parses JSON; empty text counts as an empty list.
fn json(what: &str, printed: &[u8]) -> Result<Value> {
    match printed.trim_ascii() {
        [] => Ok(Value::Array(Vec::new())),
        text => serde_json::from_slice(text).map_err(|e| format!("{what}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_behind_the_port_where_its_hardware_was_seen() {
        let neighbours = serde_json::json!([
            { "dst": "10.0.0.1", "lladdr": "02:00:00:00:00:01", "state": ["REACHABLE"] },
            { "dst": "10.0.0.2", "lladdr": "02:00:00:00:00:02", "state": ["STALE"] },
            { "dst": "10.0.0.3", "state": ["FAILED"] },
            { "dst": "10.0.0.4", "lladdr": "02:00:00:00:00:04", "state": ["REACHABLE"] },
        ]);
        let forwarded = serde_json::json!([
            { "mac": "02:00:00:00:00:01", "ifname": "eth1" },
            { "mac": "02:00:00:00:00:02", "ifname": "eth2" },
            { "mac": "02:00:00:00:00:04", "ifname": "eth1", "state": "permanent" },
        ]);
        let of = |address: &str| place(&neighbours, &forwarded, address.parse().unwrap());
        let at = |port: &str, last| {
            Some(HostLocation {
                port: port.to_owned(),
                mac: [2, 0, 0, 0, 0, last],
            })
        };
        assert_eq!(of("10.0.0.1"), (at("eth1", 1), true));
        assert_eq!(of("10.0.0.2"), (at("eth2", 2), false));
        for unknown in ["10.0.0.3", "10.0.0.4", "10.0.0.5"] {
            assert_eq!(of(unknown), (None, false), "{unknown}");
        }
        assert_eq!(json("nothing", b" \n"), Ok(Value::Array(Vec::new())));
    }
}
