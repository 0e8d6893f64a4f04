// SPDX-License-Identifier: Apache-2.0
//! Loopback addresses for clusters on one machine.

use std::net::Ipv4Addr;

use crate::{Error, random_nonce};

/// Draws an address of 127.64.0.0/10 for a cluster, so that it has all ports for itself. On
/// 127.0.0.1 the kernel may give another process a port that was chosen but isn't bound yet, or
/// whose node is down.
pub fn draw() -> Result<Ipv4Addr, Error> {
    let random = random_nonce()? as u32;
    Ok(Ipv4Addr::from(0x7f40_0000 | random & 0x003f_ffff))
}
