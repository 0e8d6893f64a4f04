// SPDX-License-Identifier: Apache-2.0
//! Networks of IP addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// All addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Network {
    /// The first address.
    pub address: IpAddr,
    /// The number of bits that all addresses share.
    pub bits: u8,
}

impl Network {
    /// The networks over which a machine reaches itself.
    pub const LOOPBACK: [Network; 2] = [
        Network {
            address: IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)),
            bits: 8,
        },
        Network {
            address: IpAddr::V6(Ipv6Addr::LOCALHOST),
            bits: 128,
        },
    ];

    /// Returns the network of a single address.
    pub fn only(address: IpAddr) -> Network {
        Network {
            address,
            bits: width(address),
        }
    }

    /// Returns whether the network contains this address.
    #[inline]
    pub fn has(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differ = u32::from(own) ^ u32::from(other);
                differ.leading_zeros() >= self.bits.into()
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differ = u128::from(own) ^ u128::from(other);
                differ.leading_zeros() >= self.bits.into()
            }
            _ => false,
        }
    }
}

/// Parses an IP address, or one followed by `/` and a number of bits. All later bits of the address
/// must be zero.
impl FromStr for Network {
    type Err = ();

    fn from_str(text: &str) -> Result<Network, ()> {
        let Some((address, bits)) = text.split_once('/') else {
            return text.parse().map(Network::only).map_err(drop);
        };
        let address: IpAddr = address.parse().map_err(drop)?;
        let bits: u8 = bits.parse().map_err(drop)?;
        let zeros = match address {
            IpAddr::V4(v4) => u32::from(v4).trailing_zeros(),
            IpAddr::V6(v6) => u128::from(v6).trailing_zeros(),
        };
        let fits = bits <= width(address) && u32::from(width(address) - bits) <= zeros;
        fits.then_some(Network { address, bits }).ok_or(())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

fn width(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_read_and_have_their_addresses() {
        let has = |network: &str, address: &str| {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.to_string().parse(), Ok(network));
            network.has(address.parse().unwrap())
        };
        for (network, inside, outside) in [
            ("10.1.2.0/23", "10.1.3.255", "10.1.4.0"),
            ("10.1.2.3", "10.1.2.3", "10.1.2.2"),
            ("0.0.0.0/0", "255.0.0.1", "::1"),
            ("fd77::/64", "fd77::ffff:1", "fd77:0:0:1::"),
            ("::/0", "fd77::", "10.0.0.1"),
        ] {
            assert!(has(network, inside), "{network} {inside}");
            assert!(!has(network, outside), "{network} {outside}");
        }
        for bad in [
            "",
            "10.0.0",
            "10.0.0.1/24",
            "10.0.0.0/33",
            "fd77::1/64",
            "a/8",
            "10.0.0.0/",
        ] {
            assert_eq!(bad.parse::<Network>(), Err(()), "{bad:?}");
        }
    }
}
