// SPDX-License-Identifier: Apache-2.0
//! The memory that a server has. It differs between replicas, so no command's effect depends on it: front ends refuse commands
//! by it before they are ordered.

use std::time::{Duration, Instant};

use super::state::Replicated;

/// The least time between two questions to the server.
const INTERVAL: Duration = Duration::from_millis(200);

/// The memory that a server had when it was asked last.
#[derive(Default)]
pub(super) struct Usage {
    bytes: u64,
    asked: Option<Instant>,
}

impl Replicated {
    /// Asks the server how much memory it has, unless that was asked a moment ago. Nothing may be in flight.
    pub fn measure(&mut self) {
        let now = Instant::now();
        if self.usage.asked.is_some_and(|at| now < at + INTERVAL) {
            return;
        }
        self.usage.asked = Some(now);
        // A server that is dead is noticed by the next command.
        if let Ok(info) = self.server.order(&[b"INFO", b"memory"]) {
            let info = String::from_utf8_lossy(&info);
            self.usage.bytes = used(&info).unwrap_or(self.usage.bytes);
        }
    }

    /// Returns how many bytes of memory the server had when it was asked last.
    pub fn memory(&self) -> u64 {
        self.usage.bytes
    }
}

fn used(info: &str) -> Option<u64> {
    let mut lines = info.lines();
    lines
        .find_map(|line| line.strip_prefix("used_memory:"))?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_line_counts() {
        let info =
            "# Memory\r\nused_memory_rss:5\r\nused_memory:1234567\r\nused_memory_human:1M\r\n";
        assert_eq!(used(info), Some(1_234_567));
        assert_eq!(used("used_memory:many\r\n"), None);
    }
}
