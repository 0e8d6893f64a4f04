// SPDX-License-Identifier: Apache-2.0
//! Loopback addresses for clusters on one machine.

use std::net::Ipv4Addr;

use crate::{Error, random_nonce};

/// Draws an address of 127.64.0.0/10, one for each cluster, so that its ports are its own. On
/// 127.0.0.1 anybody who asks the kernel for some port may be given one that is free at the moment:
/// one that was chosen and isn't bound yet, or one whose node is down.
pub fn draw() -> Result<Ipv4Addr, Error> {
    let random = random_nonce()? as u32;
    Ok(Ipv4Addr::from(0x7f40_0000 | random & 0x003f_ffff))
}
