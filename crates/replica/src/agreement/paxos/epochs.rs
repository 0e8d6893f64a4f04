// SPDX-License-Identifier: Apache-2.0
//! The epochs that a worker knows.

use crate::settings::EpochView;
use paxos::{Configuration, Epoch, NodeId};

/// The number of configurations that are kept, which are the newest ones.
const MAX_CONFIGURATIONS: usize = 32;

/// The epochs of the newest view, the lane in the last of them, and what packets say of later ones.
#[derive(Default)]
pub struct Epochs {
    /// The configurations, oldest first.
    configurations: Vec<Configuration>,
    /// True if the last configuration is active.
    active: bool,
    /// The repair lane of this process, and the epoch of the lane.
    lane: Option<(Epoch, u8)>,
    /// The last epoch that a packet mentioned.
    seen: Epoch,
}

impl Epochs {
    /// Takes a view's epochs, oldest first. It returns whether the last one is another one than
    /// before, or has become active; a view that is older than the last one, or isn't sound, is
    /// ignored and gives `None`.
    pub fn take(&mut self, epochs: &[EpochView]) -> Option<bool> {
        let last = epochs.last()?;
        let before = (self.known(), self.active);
        let told = (last.configuration.epoch, last.active);
        let sorted = epochs
            .windows(2)
            .all(|w| w[0].configuration.epoch < w[1].configuration.epoch);
        let sound = epochs.iter().all(|e| e.configuration.invalid().is_none());
        if told < before || !sorted || !sound {
            return None;
        }
        let first = epochs.len().saturating_sub(MAX_CONFIGURATIONS);
        let kept = epochs[first..].iter();
        self.configurations = kept.map(|e| e.configuration.clone()).collect();
        self.active = last.active;
        Some(told != before)
    }

    /// Returns all configurations, oldest first.
    pub fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    /// Returns the last epoch's configuration.
    pub fn last(&self) -> Option<&Configuration> {
        self.configurations.last()
    }

    /// Returns the last epoch if it is active.
    pub fn active(&self) -> Option<Epoch> {
        self.last().filter(|_| self.active).map(|c| c.epoch)
    }

    /// Returns the lane in the last epoch.
    pub fn lane(&self) -> Option<u8> {
        let last = self.last()?.epoch;
        self.lane
            .filter(|(of, _)| *of == last)
            .map(|(_, lane)| lane)
    }

    /// Returns the active epoch while there is no lane in it.
    pub fn without_lane(&self) -> Option<Epoch> {
        self.active().filter(|_| self.lane().is_none())
    }

    /// Takes a lane. It returns false if the lane is for another epoch than the active one, or if
    /// there is one already.
    pub fn set_lane(&mut self, epoch: Epoch, lane: u8) -> bool {
        let lacking = self.without_lane() == Some(epoch);
        if lacking {
            self.lane = Some((epoch, lane));
        }
        lacking
    }

    /// Notes that a packet has mentioned an epoch.
    pub fn mentioned(&mut self, epoch: Epoch) {
        self.seen = self.seen.max(epoch);
    }

    /// Returns an epoch later than all known ones that a packet has mentioned, here or to a repair.
    pub fn unknown(&self, to_repair: Option<Epoch>) -> Option<Epoch> {
        let seen = self.seen.max(to_repair.unwrap_or(0));
        (seen > self.known()).then_some(seen)
    }

    /// Returns whether this start of an acceptor is a member of a known epoch.
    pub fn have_acceptor(&self, node: NodeId, nonce: u64) -> bool {
        let mut acceptors = self.configurations.iter().flat_map(|c| &c.acceptors);
        acceptors.any(|m| m.node == node && m.nonce == nonce)
    }

    /// Returns the last epoch; 0 before the first view.
    fn known(&self) -> Epoch {
        self.last().map_or(0, |c| c.epoch)
    }
}
