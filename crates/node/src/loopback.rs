//! Loopback addresses for clusters on one machine.

use std::net::Ipv4Addr;

use crate::{Error, random_nonce};

/// Draws an address of 127.64.0.0/10, one for each cluster, so that its ports are its own: on
/// 127.0.0.1 anybody who asks the kernel for some port may be given one that is free just now, as
/// between choosing it and binding it, or while its node is down.
pub fn draw() -> Result<Ipv4Addr, Error> {
    let random = random_nonce()? as u32;
    Ok(Ipv4Addr::from(0x7f40_0000 | random & 0x003f_ffff))
}
