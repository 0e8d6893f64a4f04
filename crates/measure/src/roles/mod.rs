// SPDX-License-Identifier: Apache-2.0
//! Measures the cost of one message for a role on each plane.

pub mod dpdk;
pub mod p4;
pub mod tag;
pub mod udp;
pub mod xdp;

/// The measurements of one role at links, in turns with bare forwarding.
#[derive(Clone, PartialEq, Debug)]
pub struct AtLinks {
    /// `leader`, `acceptor`, `learner` or `sequencer`.
    pub role: &'static str,
    /// Frames that it sends for a message: one for each copy, and of a learner one for every other.
    pub frames_per_msg: f64,
    /// Messages that it accepted a second, turn by turn.
    pub msgs_per_s: Vec<f64>,
    /// The rates of bare forwarding in the turns before. In the kernel it makes as many frames of a
    /// message as the role, in BMv2 only one.
    pub forwarding_msgs_per_s: Vec<f64>,
    /// Messages that weren't accepted, and frames sent for them that didn't arrive, in all turns
    /// together.
    pub lost: u64,
}

impl AtLinks {
    /// Creates the measurements before the first turn.
    pub(crate) fn new(role: &'static str, frames_per_msg: f64) -> AtLinks {
        AtLinks {
            role,
            frames_per_msg,
            msgs_per_s: Vec::new(),
            forwarding_msgs_per_s: Vec::new(),
            lost: 0,
        }
    }
}
