//! Where frames for an address go: its next hop's hardware address, as the kernel's tables have it.
//!
//! Asked of `ip`, which every machine with a configured network has: the answer is needed once a
//! second at most, never for a packet.

use std::net::{IpAddr, UdpSocket};
use std::process::Command;

use serde_json::Value;

use crate::interface::Interface;
use crate::object::Result;

/// The hardware address that frames for `to` go to when they leave by `interface`. `None` while the
/// kernel doesn't know it: the question makes it ask, so a later one is answered.
pub fn next_hop(interface: &Interface, to: IpAddr) -> Result<Option<[u8; 6]>> {
    let routes = ip(&["route", "get", &to.to_string()])?;
    let route = routes.get(0).unwrap_or(&Value::Null);
    if route["dev"] != interface.name.as_str() {
        return Err(format!(
            "{to} is reached by {}, not by {}, where the node's own address is",
            route["dev"].as_str().unwrap_or("no interface"),
            interface.name
        ));
    }
    let hop = match route["gateway"].as_str() {
        Some(gateway) => gateway.parse().map_err(|e| format!("{gateway}: {e}"))?,
        None => to,
    };
    let known = ip(&["neigh", "show", &hop.to_string(), "dev", &interface.name])?;
    let entry = known.get(0).unwrap_or(&Value::Null);
    let mac = entry["lladdr"].as_str().and_then(parse_mac);
    if mac.is_none() {
        make_known(to);
    }
    Ok(mac)
}

/// An empty datagram to the discard port: nobody needs to get it, but to send it the kernel has to
/// find the next hop.
fn make_known(to: IpAddr) {
    let any: IpAddr = match to {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    if let Ok(socket) = UdpSocket::bind((any, 0)) {
        let _ = socket.send_to(&[], (to, 9));
    }
}

fn ip(arguments: &[&str]) -> Result<Value> {
    let shown = || format!("ip -json {}", arguments.join(" "));
    let output = Command::new("ip").arg("-json").args(arguments).output();
    let output = output.map_err(|e| format!("{}: {e}; install package iproute2", shown()))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{}: {}", shown(), why.trim()));
    }
    // No entry is shown as nothing at all by some versions.
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("{}: {e}", shown()))
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_addresses() {
        assert_eq!(
            parse_mac("02:77:00:00:0a:ff"),
            Some([2, 0x77, 0, 0, 0x0a, 0xff])
        );
        for bad in ["", "02:77", "02:77:00:00:0a:ff:00", "x2:77:00:00:0a:ff"] {
            assert_eq!(parse_mac(bad), None, "{bad}");
        }
    }
}
