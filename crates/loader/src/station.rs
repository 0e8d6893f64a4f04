// SPDX-License-Identifier: Apache-2.0
//! The place where a role's program runs: at the interface with the node's address, or at a switch.

use std::net::IpAddr;

use crate::interface::Interface;
use crate::neighbour::next_hops;
use crate::object::Result;
use crate::switch::Switch;

/// A place of a role.
#[derive(Debug)]
pub enum Station {
    /// A host's: packets come in and go out by one interface.
    Interface(Interface),
    /// The program is at a switch; its packets come in and go out by all ports of the switch.
    Switch(Switch),
}

/// How packets for an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The interface by which they leave; 0 while that isn't known.
    pub port: u32,
    /// The hardware address of their source.
    pub mac_from: [u8; 6],
    /// The hardware address of their destination; `None` while it isn't known.
    pub mac_to: Option<[u8; 6]>,
    /// If the destination is a role of this switch whose program runs there: 1 + its entry in
    /// `roles`; otherwise 0.
    pub role: u16,
}

impl Hop {
    /// The hop to an address whose port isn't known.
    pub(crate) const UNKNOWN: Hop = Hop {
        port: 0,
        mac_from: [0; 6],
        mac_to: None,
        role: 0,
    };
}

impl Station {
    /// Returns the interface's or switch's name, for messages.
    pub fn name(&self) -> &str {
        match self {
            Station::Interface(interface) => &interface.name,
            Station::Switch(switch) => switch.name(),
        }
    }

    /// Returns how packets for each of these addresses leave.
    pub fn hops(&self, to: &[IpAddr]) -> Result<Vec<Hop>> {
        match self {
            Station::Interface(interface) => {
                let macs = next_hops(interface, to)?.into_iter();
                let hop = |mac_to| Hop {
                    port: interface.index,
                    mac_from: interface.mac,
                    mac_to,
                    role: 0,
                };
                Ok(macs.map(hop).collect())
            }
            Station::Switch(switch) => to.iter().map(|to| switch.hop(*to)).collect(),
        }
    }
}
