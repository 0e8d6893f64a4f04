// SPDX-License-Identifier: Apache-2.0
//! Numbers by which an asker proves that it receives packets at its address. [E-CHALLENGE]
//!
//! No state is kept for an asker: its number is computed from its address, the time, and this
//! process's secret.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use keys::{KEY_LEN, mac};

use crate::{Error, random_nonce};

/// A number is valid for at least this long, and for at most twice as long.
const PERIOD: Duration = Duration::from_secs(60);

/// The challenge numbers of one process.
pub struct Challenges {
    secret: [u8; KEY_LEN],
    started: Instant,
}

impl Challenges {
    /// Draws a new secret, so that no number of an earlier process is valid.
    pub fn draw() -> Result<Challenges, Error> {
        let mut secret = [0; KEY_LEN];
        for bytes in secret.chunks_exact_mut(8) {
            bytes.copy_from_slice(&random_nonce()?.to_be_bytes());
        }
        Ok(Challenges {
            secret,
            started: Instant::now(),
        })
    }

    /// Returns the number for an asker.
    pub fn number(&self, asker: SocketAddr) -> u64 {
        self.number_of(asker, self.period())
    }

    /// Returns whether an asker has recently been told this number.
    pub fn accepts(&self, asker: SocketAddr, number: u64) -> bool {
        let now = self.period();
        let lately = [Some(now), now.checked_sub(1)];
        let mut lately = lately.into_iter().flatten();
        lately.any(|period| self.number_of(asker, period) == number)
    }

    fn period(&self) -> u64 {
        self.started.elapsed().as_secs() / PERIOD.as_secs()
    }

    /// Returns the number of a period. It is never 0, which stands for no number.
    fn number_of(&self, asker: SocketAddr, period: u64) -> u64 {
        let ip = match asker.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let parts: [&[u8]; 3] = [
            &ip.octets(),
            &asker.port().to_be_bytes(),
            &period.to_be_bytes(),
        ];
        let mac = mac(&self.secret, &parts);
        let (number, _) = mac.split_at(8);
        let number = number.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        number.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A number is valid only at the address and the process that it was made for, and only for a
    /// while. [E-CHALLENGE]
    #[test]
    fn a_number_is_for_one_address_of_one_process_and_for_a_while() {
        let asker: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        let mut here = Challenges::draw().unwrap();
        let number = here.number(asker);
        assert!(here.accepts(asker, number));
        assert!(!here.accepts(asker, 0));
        assert!(!here.accepts(asker, number ^ 1));
        for other in ["127.0.0.1:7001", "127.0.0.2:7000", "[::1]:7000"] {
            assert!(!here.accepts(other.parse().unwrap(), number));
        }
        assert!(!Challenges::draw().unwrap().accepts(asker, number));
        for (periods, counts) in [(1, true), (2, false)] {
            let earlier = Challenges::draw().unwrap();
            let since = earlier.started.checked_sub(periods * PERIOD).unwrap();
            here = Challenges {
                started: since,
                ..earlier
            };
            let first = here.number_of(asker, 0);
            assert_eq!(here.accepts(asker, first), counts, "{periods}");
        }
    }
}
