// SPDX-License-Identifier: Apache-2.0
//! The transactions of Retwis, a clone of Twitter, in the mix of the measurements of TAPIR (Zhang
//! et al., SOSP 2015, Table 2): few users are much followed, so keys have a Zipf distribution.

use std::sync::Arc;

use paxos::mix;

/// The length of a value in bytes.
pub const VALUE_BYTES: usize = 64;
/// The keys that one transaction writes when keys are made.
const KEYS_AT_ONCE: u64 = 8;

/// What a transaction does: it reads all its reads, then writes all its writes.
pub struct Plan {
    /// The keys that it reads.
    pub reads: Vec<Vec<u8>>,
    /// The keys that it writes.
    pub writes: Vec<Vec<u8>>,
}

/// Keys with a Zipf distribution.
pub struct Keys {
    /// The probability of a key with this number or a lower one.
    cumulative: Vec<f64>,
}

impl Keys {
    /// Returns this many keys, of which key `n` is drawn with a probability of `n` to the power of
    /// `-exponent`.
    pub fn new(count: u64, exponent: f64) -> Keys {
        let weights = (1..=count.max(1)).map(|n| (n as f64).powf(-exponent));
        let mut sum = 0.0;
        let cumulative = weights.map(|weight| {
            sum += weight;
            sum
        });
        Keys {
            cumulative: cumulative.collect(),
        }
    }

    /// Returns the key for a random number from 0 to 1.
    fn at(&self, random: f64) -> u64 {
        let sum = self.cumulative.last().copied().unwrap_or(0.0);
        let at = self.cumulative.partition_point(|each| *each < random * sum);
        at.min(self.cumulative.len() - 1) as u64
    }

    fn count(&self) -> u64 {
        self.cumulative.len() as u64
    }
}

fn name_of(key: u64) -> Vec<u8> {
    // Shards get much used keys in no order.
    format!("{:016x}", mix(key)).into_bytes()
}

/// Transactions without end.
pub struct Workload {
    keys: Arc<Keys>,
    /// No two have the same among all that run.
    stream: u64,
    drawn: u64,
}

impl Workload {
    /// Returns the transactions of one client.
    pub fn new(keys: Arc<Keys>, stream: u64) -> Workload {
        Workload {
            keys,
            stream,
            drawn: 0,
        }
    }

    /// Returns the next transaction.
    pub fn next_plan(&mut self) -> Plan {
        let kind = self.below(100);
        let (reads, writes) = match kind {
            0..5 => (1, 3),                        // add a user
            5..20 => (2, 2),                       // follow somebody
            20..50 => (3, 5),                      // post a tweet
            _ => (1 + self.below(10) as usize, 0), // show a timeline
        };
        let mut names: Vec<Vec<u8>> = Vec::new();
        while names.len() < reads.max(writes) {
            let name = self.key();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Plan {
            reads: names[..reads].to_vec(),
            writes: names[..writes].to_vec(),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        let random = (self.draw() >> 11) as f64 / (1u64 << 53) as f64;
        name_of(self.keys.at(random))
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.stream << 40 | self.drawn)
    }
}

/// Returns the transactions that write all keys once.
pub fn filling(keys: &Keys) -> impl Iterator<Item = Plan> + use<> {
    let count = keys.count();
    let firsts = (0..count).step_by(KEYS_AT_ONCE as usize);
    firsts.map(move |first| Plan {
        reads: Vec::new(),
        writes: (first..count.min(first + KEYS_AT_ONCE))
            .map(name_of)
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_mix_and_the_keys_are_those_of_the_paper() {
        let mut workload = Workload::new(Arc::new(Keys::new(1_000, 0.75)), 1);
        let (mut kinds, mut used) = (BTreeMap::new(), BTreeMap::new());
        for _ in 0..20_000 {
            let plan = workload.next_plan();
            let timeline = plan.writes.is_empty();
            assert!(!timeline || (1..=10).contains(&plan.reads.len()));
            let kind = if timeline {
                (0, 0)
            } else {
                (plan.reads.len(), plan.writes.len())
            };
            *kinds.entry(kind).or_insert(0) += 1;
            for key in plan.reads.into_iter().chain(plan.writes) {
                *used.entry(key).or_insert(0u32) += 1;
            }
        }
        let share = |kind| f64::from(kinds[&kind]) / 20_000.0;
        for (kind, expected) in [((1, 3), 0.05), ((2, 2), 0.15), ((3, 5), 0.3), ((0, 0), 0.5)] {
            assert!(
                (share(kind) - expected).abs() < 0.02,
                "{kind:?}: {}",
                share(kind)
            );
        }
        let ratio = f64::from(used[&name_of(0)]) / f64::from(used[&name_of(99)]);
        // 100 to the power of 0.75 is 31.6; a transaction takes no key twice.
        assert!((15.0..50.0).contains(&ratio), "{ratio}");
    }

    #[test]
    fn filling_writes_every_key_once() {
        let keys = Keys::new(21, 0.75);
        let names: Vec<_> = filling(&keys).flat_map(|plan| plan.writes).collect();
        let expected: Vec<_> = (0..21).map(name_of).collect();
        assert_eq!(names, expected);
    }
}
