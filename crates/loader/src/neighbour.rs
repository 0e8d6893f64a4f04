// SPDX-License-Identifier: Apache-2.0
//! Where frames for an address go: its next hop's hardware address, as the kernel's tables have it.
//!
//! Asked of `ip`, which every machine with a configured network has: the answer is needed once a
//! second at most, never for a packet.

use std::net::{IpAddr, UdpSocket};

use serde_json::Value;

use crate::interface::Interface;
use crate::ip;
use crate::object::Result;

/// The hardware addresses that frames for each of `to` go to when they leave by `interface`. `None`
/// while the kernel doesn't know it: the question makes it ask, so a later one is answered.
pub fn next_hops(interface: &Interface, to: &[IpAddr]) -> Result<Vec<Option<[u8; 6]>>> {
    let mut questions: Vec<String> = to.iter().map(|to| format!("route get {to}")).collect();
    questions.push(format!("neigh show dev {}", interface.name));
    let answers = ask(&questions)?;
    let neighbours = answers.get(to.len()).unwrap_or(&Value::Null);
    let next_hop = |(to, routes): (&IpAddr, &Value)| {
        let hop = hop_of(interface, *to, &routes[0])?;
        let mac = hardware_address(neighbours, hop);
        if mac.is_none() {
            make_known(*to);
        }
        Ok(mac)
    };
    to.iter().zip(&answers).map(next_hop).collect()
}

/// Whom frames for `to` are given to first.
fn hop_of(interface: &Interface, to: IpAddr, route: &Value) -> Result<IpAddr> {
    if route["dev"] == "lo" {
        return Err(format!(
            "{to} is an address of this machine, and frames from {} don't come back to it: with \
             `plane = \"xdp\"` a leader and the acceptors that it sends to need addresses on \
             machines of their own, or a switch (`switch`); give the node `plane = \"udp\"` \
             otherwise",
            interface.name
        ));
    }
    if route["dev"] != interface.name.as_str() {
        return Err(format!(
            "{to} is reached by {}, not by {}, where the node's own address is",
            route["dev"].as_str().unwrap_or("no interface"),
            interface.name
        ));
    }
    match route["gateway"].as_str() {
        Some(gateway) => gateway.parse().map_err(|e| format!("{gateway}: {e}")),
        None => Ok(to),
    }
}

fn hardware_address(neighbours: &Value, of: IpAddr) -> Option<[u8; 6]> {
    let is_of = |entry: &&Value| entry["dst"].as_str().and_then(|dst| dst.parse().ok()) == Some(of);
    let entry = neighbours.as_array()?.iter().find(is_of)?;
    parse_mac(entry["lladdr"].as_str()?)
}

/// An empty datagram to the discard port: nobody needs to get it, but to send it the kernel has to
/// find the next hop.
pub(crate) fn make_known(to: IpAddr) {
    let any: IpAddr = match to {
        IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    if let Ok(socket) = UdpSocket::bind((any, 0)) {
        let _ = socket.send_to(&[], (to, 9));
    }
}

/// The answer to each line of `ip`'s language; the last one's may be missing, where there is none.
fn ask(lines: &[String]) -> Result<Vec<Value>> {
    let printed = ip::batch(&["-json"], lines)?;
    let answers = serde_json::Deserializer::from_slice(&printed).into_iter();
    let answers: serde_json::Result<Vec<Value>> = answers.collect();
    match answers {
        Ok(answers) if answers.len() + 1 >= lines.len() => Ok(answers),
        Ok(answers) => Err(format!(
            "ip -json: {} answers to {}",
            answers.len(),
            lines.join("; ")
        )),
        Err(e) => Err(format!("ip -json: {e}")),
    }
}

pub(crate) fn parse_mac(text: &str) -> Option<[u8; 6]> {
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

    #[test]
    fn a_member_on_the_same_machine_is_named_with_what_to_do() {
        let interface = Interface {
            name: "eth0".to_owned(),
            index: 2,
            mac: [2, 0, 0, 0, 0, 1],
        };
        let hop = |route| hop_of(&interface, [10, 0, 0, 1].into(), &route);
        let here = hop(serde_json::json!({ "dst": "10.0.0.1", "dev": "lo" })).unwrap_err();
        assert!(here.contains("an address of this machine"), "{here}");
        assert!(here.contains("`plane = \"udp\"`"), "{here}");
        let elsewhere = hop(serde_json::json!({ "dst": "10.0.0.1", "dev": "eth1" })).unwrap_err();
        assert!(
            elsewhere.contains("reached by eth1, not by eth0"),
            "{elsewhere}"
        );
        let gateway = hop(serde_json::json!({ "dev": "eth0", "gateway": "10.0.0.254" }));
        assert_eq!(gateway, Ok([10, 0, 0, 254].into()));
    }

    #[test]
    fn neighbours() {
        let known = serde_json::json!([
            { "dst": "10.0.0.1", "lladdr": "02:00:00:00:00:01" },
            { "dst": "10.0.0.2", "state": ["FAILED"] },
            { "dst": "fd00::1", "lladdr": "02:00:00:00:00:03" },
        ]);
        let of = |address: &str| hardware_address(&known, address.parse().unwrap());
        assert_eq!(of("10.0.0.1"), Some([2, 0, 0, 0, 0, 1]));
        assert_eq!(of("10.0.0.2"), None);
        assert_eq!(of("10.0.0.3"), None);
        assert_eq!(of("fd00:0::1"), Some([2, 0, 0, 0, 0, 3]));
        assert_eq!(hardware_address(&Value::Null, [10, 0, 0, 1].into()), None);
    }
}
