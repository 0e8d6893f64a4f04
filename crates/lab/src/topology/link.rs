// SPDX-License-Identifier: Apache-2.0
//! A link between two hosts.

/// A link between two hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The host's name, or `trunk` between switches.
    pub name: String,
    /// The host's end.
    pub near: End,
    /// The switch's end.
    pub far: End,
}

impl Link {
    /// Returns the interfaces of the link's wire: the one that faces `near`, and the one that faces
    /// `far`.
    pub fn wire(&self) -> [String; 2] {
        [format!("{}-n", self.name), format!("{}-f", self.name)]
    }
}

/// An end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// The host that has this end.
    pub host: String,
    /// The name of the interface on that host.
    pub interface: String,
    /// The hardware address of the interface.
    pub mac: String,
}
