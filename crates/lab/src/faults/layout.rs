// SPDX-License-Identifier: Apache-2.0
//! The structures of `programs/xdp/include/fault.h`.
#![allow(unsafe_code)]

use aya::Pod;

use super::Rates;

/// struct fault_wire: the faults for frames that arrive at one end of a wire.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Wire {
    pub out: u32,
    pub first_port: u16,
    pub last_port: u16,
    pub loss: u32,
    pub corrupt: u32,
    pub detour: u32,
    pub duplicate: u32,
    pub reorder: u32,
    pub hold_us: u32,
    pub delay_us: u32,
    pub seed: u32,
    pub stream: u32,
    pub generation: u32,
}

/// struct fault_state: the counters of these frames on one CPU.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct WireState {
    pub random: u64,
    pub datagrams: u64,
    pub lost: u64,
    pub corrupted: u64,
    pub detoured: u64,
    pub others: u64,
    pub generation: u32,
    pub unused: u32,
}

/// struct fault_handled: the counters of the detour.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Handled {
    pub duplicated: u64,
    pub reordered: u64,
    /// Frames that were only delayed.
    pub delayed: u64,
    /// Frames lost because there was no room; they don't count as requested faults.
    pub overflowed: u64,
    pub generation: u32,
    pub unused: u32,
}

const _: () = assert!(size_of::<Handled>() == 40);
const _: () = assert!(size_of::<Wire>() == 48);
const _: () = assert!(size_of::<WireState>() == 56);

// SAFETY: the fields are plain integers without padding between them.
unsafe impl Pod for Handled {}
// SAFETY: the fields are plain integers without padding between them.
unsafe impl Pod for Wire {}
// SAFETY: the fields are plain integers without padding between them.
unsafe impl Pod for WireState {}

impl Wire {
    /// Returns the end that forwards to `out` with these faults.
    pub fn new(out: u32, ports: (u16, u16), rates: &Rates, stream: u32, generation: u32) -> Wire {
        // A frame takes the detour if any fault there may apply to it.
        let detour = match rates.delay_us {
            0 => 1.0 - (1.0 - rates.duplicate) * (1.0 - rates.reorder),
            _ => 1.0,
        };
        Wire {
            out,
            first_port: ports.0,
            last_port: ports.1,
            loss: likelihood(rates.loss),
            corrupt: likelihood(rates.corrupt),
            detour: likelihood(detour),
            duplicate: likelihood(rates.duplicate),
            reorder: likelihood(rates.reorder),
            hold_us: rates.hold_us,
            delay_us: rates.delay_us,
            seed: rates.seed,
            stream,
            generation,
        }
    }

    /// Returns the faults.
    pub fn rates(&self) -> Rates {
        Rates {
            loss: probability(self.loss),
            duplicate: probability(self.duplicate),
            reorder: probability(self.reorder),
            corrupt: probability(self.corrupt),
            hold_us: self.hold_us,
            delay_us: self.delay_us,
            seed: self.seed,
        }
    }
}

const WHOLE: f64 = 4_294_967_296.0;

/// Returns a probability in the form of fault.h: p * 2^32 - 1, and 0 for never.
fn likelihood(probability: f64) -> u32 {
    (probability * WHOLE - 1.0).clamp(0.0, WHOLE - 1.0) as u32
}

pub(super) fn probability(likelihood: u32) -> f64 {
    match likelihood {
        0 => 0.0,
        _ => (f64::from(likelihood) + 1.0) / WHOLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_and_always_are_exact() {
        assert_eq!(likelihood(0.0), 0);
        assert_eq!(likelihood(1.0), u32::MAX);
        assert_eq!(probability(u32::MAX), 1.0);
        assert!((probability(likelihood(0.01)) - 0.01).abs() < 1e-9);
    }

    #[test]
    fn the_detour_is_for_all_that_needs_it() {
        let end = |rates| Wire::new(1, (1, 2), &rates, 0, 1);
        let loss = Rates {
            loss: 1.0,
            corrupt: 1.0,
            ..Rates::default()
        };
        assert_eq!(end(loss).detour, 0);
        let both = Rates {
            duplicate: 0.5,
            reorder: 0.5,
            ..Rates::default()
        };
        assert!((probability(end(both).detour) - 0.75).abs() < 1e-6);
        let delay = Rates {
            delay_us: 1,
            ..Rates::default()
        };
        assert_eq!(end(delay).detour, u32::MAX);
    }
}
