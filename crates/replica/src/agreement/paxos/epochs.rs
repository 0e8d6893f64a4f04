// SPDX-License-Identifier: Apache-2.0
//! What a worker knows of epochs.

use crate::settings::EpochView;
use paxos::{Configuration, Epoch, NodeId};

/// Configurations kept, the newest ones.
const MAX_CONFIGURATIONS: usize = 32;

/// The epochs of the newest view, the lane in the last of them, and what packets say of later ones.
#[derive(Default)]
pub struct Epochs {
    /// Oldest first.
    configurations: Vec<Configuration>,
    /// Whether the last configuration is active.
    active: bool,
    /// The repair lane of this process, and the epoch that it is of.
    lane: Option<(Epoch, u8)>,
    /// The last epoch that a packet mentioned.
    seen: Epoch,
}

impl Epochs {
    /// Takes a view's epochs, oldest first. Returns whether the last one is another than before, or has
    /// become active; `None` if the view is older than one before, or isn't sound: it is ignored.
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

    /// All of them, oldest first.
    pub fn configurations(&self) -> &[Configuration] {
        &self.configurations
    }

    /// The last one's configuration.
    pub fn last(&self) -> Option<&Configuration> {
        self.configurations.last()
    }

    /// The active epoch.
    pub fn active(&self) -> Option<Epoch> {
        self.last().filter(|_| self.active).map(|c| c.epoch)
    }

    /// The lane in the last epoch.
    pub fn lane(&self) -> Option<u8> {
        let last = self.last()?.epoch;
        self.lane
            .filter(|(of, _)| *of == last)
            .map(|(_, lane)| lane)
    }

    /// The active epoch, while there is no lane in it.
    pub fn without_lane(&self) -> Option<Epoch> {
        self.active().filter(|_| self.lane().is_none())
    }

    /// Takes a lane; false if it is of another epoch than the active one, or there is one.
    pub fn set_lane(&mut self, epoch: Epoch, lane: u8) -> bool {
        let lacking = self.without_lane() == Some(epoch);
        if lacking {
            self.lane = Some((epoch, lane));
        }
        lacking
    }

    /// A packet has mentioned an epoch.
    pub fn mentioned(&mut self, epoch: Epoch) {
        self.seen = self.seen.max(epoch);
    }

    /// An epoch later than all known that a packet has mentioned, here or to a repair.
    pub fn unknown(&self, to_repair: Option<Epoch>) -> Option<Epoch> {
        let seen = self.seen.max(to_repair.unwrap_or(0));
        (seen > self.known()).then_some(seen)
    }

    /// Whether this start of an acceptor is a member of one of them.
    pub fn have_acceptor(&self, node: NodeId, nonce: u64) -> bool {
        let mut acceptors = self.configurations.iter().flat_map(|c| &c.acceptors);
        acceptors.any(|m| m.node == node && m.nonce == nonce)
    }

    /// The last epoch; 0 before the first view.
    fn known(&self) -> Epoch {
        self.last().map_or(0, |c| c.epoch)
    }
}
