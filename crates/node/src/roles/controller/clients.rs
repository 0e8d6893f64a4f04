// SPDX-License-Identifier: Apache-2.0
//! The clients, besides nodes, to which the controller's answers go.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// The number of clients whose questions may still be answered.
const MAX_CLIENTS: usize = 256;

/// Numbers for the addresses of clients. The oldest ones are forgotten, and those clients ask
/// again.
#[derive(Default)]
pub struct Clients {
    addresses: VecDeque<SocketAddr>,
    forgotten: u64,
}

impl Clients {
    pub fn number(&mut self, address: SocketAddr) -> u64 {
        if let Some(at) = self.addresses.iter().position(|a| *a == address) {
            return self.forgotten + at as u64;
        }
        if self.addresses.len() == MAX_CLIENTS {
            self.addresses.pop_front();
            self.forgotten += 1;
        }
        self.addresses.push_back(address);
        self.forgotten + self.addresses.len() as u64 - 1
    }

    pub fn address(&self, number: u64) -> Option<SocketAddr> {
        let at = usize::try_from(number.checked_sub(self.forgotten)?).ok()?;
        self.addresses.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_keep_their_numbers_until_they_are_forgotten() {
        let mut clients = Clients::default();
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        assert_eq!(clients.number(address(1)), 0);
        assert_eq!(clients.number(address(2)), 1);
        assert_eq!(clients.number(address(1)), 0);
        for port in 3..=MAX_CLIENTS as u16 + 1 {
            clients.number(address(port));
        }
        assert_eq!(clients.address(0), None);
        assert_eq!(clients.address(1), Some(address(2)));
        assert_eq!(clients.number(address(1)), MAX_CLIENTS as u64 + 1);
        assert_eq!(clients.address(u64::MAX), None);
    }
}
