// SPDX-License-Identifier: Apache-2.0
//! Decides how the detour treats frames: it duplicates them, holds them back, or delays them all.
//! There is no clock and no socket; times are arguments, in nanoseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::layout::{Handled, Wire, probability};

/// The largest number of frames that are kept at once.
const CAPACITY: usize = 65_536;

/// The frames that wait to be sent.
#[derive(Default)]
pub(super) struct Queue {
    frames: BinaryHeap<Reverse<Frame>>,
    taken: u64,
}

/// Frames are ordered by time, and at the same time by arrival.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Frame {
    due: u64,
    number: u64,
    out: u32,
    bytes: Vec<u8>,
}

impl Queue {
    /// Takes a frame that arrived at `wire`, and decides what to do with it.
    pub fn take(
        &mut self,
        now: u64,
        wire: &Wire,
        bytes: &[u8],
        random: &mut Random,
        handled: &mut Handled,
    ) {
        let (duplicate, reorder) = fate(wire, random);
        let on_time = now + u64::from(wire.delay_us) * 1_000;
        let hold = u64::from(wire.hold_us) * 1_000;
        if duplicate {
            // The copy is sent at a random time, up to `hold` later.
            let late = random.below(hold + 1);
            handled.duplicated += u64::from(self.push(on_time + late, wire.out, bytes, handled));
        }
        let late = match reorder {
            true => hold / 2 + random.below(hold / 2 + 1),
            false => 0,
        };
        if self.push(on_time + late, wire.out, bytes, handled) {
            handled.reordered += u64::from(reorder);
            handled.delayed += u64::from(!reorder && !duplicate);
        }
    }

    fn push(&mut self, due: u64, out: u32, bytes: &[u8], handled: &mut Handled) -> bool {
        if self.frames.len() >= CAPACITY {
            handled.overflowed += 1;
            return false;
        }
        self.taken += 1;
        self.frames.push(Reverse(Frame {
            due,
            number: self.taken,
            out,
            bytes: bytes.to_vec(),
        }));
        true
    }

    /// Returns when the next frame is due.
    pub fn next_due(&self) -> Option<u64> {
        self.frames.peek().map(|Reverse(frame)| frame.due)
    }

    /// Passes all frames that are due to `send`, each with its outgoing interface.
    pub fn release(&mut self, now: u64, mut send: impl FnMut(u32, &[u8])) {
        while self.next_due().is_some_and(|due| due <= now) {
            if let Some(Reverse(frame)) = self.frames.pop() {
                send(frame.out, &frame.bytes);
            }
        }
    }
}

/// Returns whether to duplicate a frame and whether to hold it back, given that it was sent here
/// for either reason, or because all frames are delayed. Each happens with the requested
/// probability, independently of the other.
fn fate(wire: &Wire, random: &mut Random) -> (bool, bool) {
    let duplicate = probability(wire.duplicate);
    let reorder = probability(wire.reorder);
    let drawn = random.fraction() * probability(wire.detour);
    if drawn < duplicate {
        (true, drawn < duplicate * reorder)
    } else {
        (false, drawn < duplicate + reorder * (1.0 - duplicate))
    }
}

/// The random generator xorshift64*, as in the program.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Returns the random stream of one end of a wire.
    pub fn new(seed: u32, stream: u32) -> Random {
        let start = u64::from(seed) << 32 | u64::from(stream);
        let mut random = Random(start.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        // Neighbouring seeds give similar first numbers, so a few are skipped.
        (0..8).for_each(|_| _ = random.draw());
        random
    }

    fn draw(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    fn fraction(&mut self) -> f64 {
        f64::from(self.draw()) / 4_294_967_296.0
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.fraction() * end as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::super::Rates;
    use super::*;

    const FRAMES: u64 = 40_000;

    /// Sends frames at regular intervals, each with its number in it.
    fn run(rates: &Rates) -> (Handled, Vec<u32>) {
        let wire = Wire::new(7, (1, 2), rates, 0, 1);
        let mut queue = Queue::default();
        let mut random = Random::new(rates.seed, 0);
        let mut handled = Handled::default();
        let mut order = Vec::new();
        for n in 0..FRAMES {
            let now = n * 10_000;
            queue.release(now, |out, bytes| {
                assert_eq!(out, 7);
                order.push(u32::from_be_bytes(bytes.try_into().unwrap()));
            });
            queue.take(
                now,
                &wire,
                &(n as u32).to_be_bytes(),
                &mut random,
                &mut handled,
            );
        }
        queue.release(u64::MAX, |_, bytes| {
            order.push(u32::from_be_bytes(bytes.try_into().unwrap()));
        });
        (handled, order)
    }

    fn rates() -> Rates {
        Rates {
            duplicate: 0.1,
            reorder: 0.2,
            delay_us: 100,
            hold_us: 1_000,
            seed: 7,
            ..Rates::default()
        }
    }

    #[test]
    fn each_fault_is_as_frequent_as_asked_for() {
        let (handled, order) = run(&rates());
        let share = |count: u64| count as f64 / FRAMES as f64;
        assert!(
            (share(handled.duplicated) - 0.1).abs() < 0.01,
            "{handled:?}"
        );
        assert!((share(handled.reordered) - 0.2).abs() < 0.01, "{handled:?}");
        assert_eq!(handled.overflowed, 0);
        assert_eq!(order.len() as u64, FRAMES + handled.duplicated);
        let mut all = order;
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len() as u64, FRAMES, "nothing is lost here");
    }

    #[test]
    fn frames_overtake_only_where_asked_for() {
        let overtaken = |order: &[u32]| order.windows(2).filter(|w| w[0] > w[1]).count();
        assert!(overtaken(&run(&rates()).1) > 1_000);
        let delay_only = Rates {
            duplicate: 0.0,
            reorder: 0.0,
            ..rates()
        };
        let (handled, order) = run(&delay_only);
        assert_eq!(overtaken(&order), 0);
        assert_eq!(handled.delayed, FRAMES);
    }

    #[test]
    fn a_seed_tells_all() {
        assert_eq!(run(&rates()), run(&rates()));
        let other = Rates { seed: 8, ..rates() };
        assert_ne!(run(&rates()).1, run(&other).1);
    }

    #[test]
    fn a_full_queue_counts_what_it_drops() {
        let wire = Wire::new(
            1,
            (1, 2),
            &Rates {
                delay_us: 1_000,
                ..Rates::default()
            },
            0,
            1,
        );
        let mut queue = Queue::default();
        let mut handled = Handled::default();
        for _ in 0..CAPACITY + 3 {
            queue.take(0, &wire, &[0], &mut Random::new(1, 1), &mut handled);
        }
        assert_eq!(handled.overflowed, 3);
    }
}
