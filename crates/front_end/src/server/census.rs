// SPDX-License-Identifier: Apache-2.0
//! Measures for INFO once a second: asks the partitions how many keys they have, and computes how
//! many commands come per second.

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use apps::kv::{Command, Reply};

use crate::log::reads::ReadQueue;
use crate::metrics::Metrics;
use crate::native;
use crate::shared::Shared;

const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Census {
    due: Instant,
    since: Instant,
    commands: u64,
    /// The number of the read that was sent last, for each partition.
    asked: Vec<u64>,
}

impl Census {
    pub fn new(partitions: u16) -> Census {
        let now = Instant::now();
        Census {
            due: now,
            since: now,
            commands: 0,
            asked: vec![0; partitions.into()],
        }
    }

    /// Returns how long it is until the next measurement.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Asks for the number of keys and computes the rate of commands, if a measurement is due.
    pub fn measure(&mut self, reads: &mut ReadQueue, shared: &Shared) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        self.due = now + INTERVAL;
        let commands = Metrics::get(&shared.metrics.commands);
        let passed = now.duration_since(self.since).as_secs_f64();
        let rate = (commands - self.commands) as f64 / passed.max(f64::MIN_POSITIVE);
        let rate = if passed > 0.0 { rate as u64 } else { 0 };
        shared.metrics.commands_per_second.store(rate, Relaxed);
        (self.since, self.commands) = (now, commands);
        let mut command = Vec::new();
        let encoded = match &shared.native {
            Some(_) => {
                native::count_keys(&mut command);
                Ok(())
            }
            None => Command::Dbsize.encode(&mut command),
        };
        if !reads.is_open || encoded.is_err() {
            return;
        }
        for (pid, asked) in self.asked.iter_mut().enumerate() {
            *asked = reads.push_own(pid as u16, &command);
        }
    }

    /// Takes the answer to a read. No answer, as from another program than the store, leaves the
    /// number of keys unknown.
    pub fn take(&mut self, number: u64, answer: Option<&[u8]>, shared: &Shared) {
        let keys = match (answer, &shared.native) {
            (Some(answer), Some(_)) => native::keys_counted(answer),
            (Some(answer), None) => match Reply::parse(answer) {
                Ok(Reply::Int(keys)) => Some(keys as u64),
                _ => None,
            },
            (None, _) => None,
        };
        let Some(keys) = keys else { return };
        if let Some(pid) = self.asked.iter().position(|asked| *asked == number) {
            shared.keys[pid].store(keys, Relaxed);
        }
    }
}
