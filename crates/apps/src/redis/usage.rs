// SPDX-License-Identifier: Apache-2.0
//! The memory that a server has. It differs between replicas, so no command's effect depends on it:
//! front ends refuse commands by it before they are ordered.

use std::time::{Duration, Instant};

use super::server::Info;
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
    /// Asks the server how much memory it has, unless that was asked a moment ago. Nothing may be
    /// in flight.
    pub fn measure(&mut self) {
        let now = Instant::now();
        if self.usage.asked.is_some_and(|at| now < at + INTERVAL) {
            return;
        }
        self.usage.asked = Some(now);
        // A server that is dead is noticed by the next command.
        if let Ok(info) = self.server.info(b"memory") {
            self.usage.bytes = used(&info).unwrap_or(self.usage.bytes);
        }
    }

    /// Returns how many bytes of memory the server had when it was asked last.
    pub fn memory(&self) -> u64 {
        self.usage.bytes
    }
}

fn used(info: &Info) -> Option<u64> {
    info.field("used_memory")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_exact_line_counts() {
        let info =
            "# Memory\r\nused_memory_rss:5\r\nused_memory:1234567\r\nused_memory_human:1M\r\n";
        assert_eq!(used(&Info(info.into())), Some(1_234_567));
        assert_eq!(used(&Info("used_memory:many\r\n".into())), None);
    }
}
