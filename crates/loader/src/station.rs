// SPDX-License-Identifier: Apache-2.0
//! Where a role's program runs: at the interface that has the node's address, or at a switch.

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
    /// They come in and go out by all of a switch's ports.
    Switch(Switch),
}

/// How packets for an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// By this interface; 0 while that isn't known.
    pub port: u32,
    /// Their source.
    pub mac_from: [u8; 6],
    /// Their destination; `None` while it isn't known.
    pub mac_to: Option<[u8; 6]>,
    /// To a role of this switch whose program there is: 1 + its entry in `roles`; otherwise 0.
    pub role: u16,
}

impl Hop {
    /// It isn't known by which port somebody is reached.
    pub(crate) const UNKNOWN: Hop = Hop {
        port: 0,
        mac_from: [0; 6],
        mac_to: None,
        role: 0,
    };
}

impl Station {
    /// For messages.
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
