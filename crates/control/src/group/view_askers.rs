// SPDX-License-Identifier: Apache-2.0
//! Remembers who has lately asked for the view, and tells them the next one without being asked
//! again. [E-ASKED]

use super::GroupControl;
use crate::{ControlOutbox, Message, Peer};
use paxos::Time;
use std::collections::VecDeque;

/// How many askers are remembered; the one who asked longest ago is forgotten first.
const MAX_ASKED: usize = 256;
const REMEMBERED_FOR: Time = 1_000_000_000;

/// The askers, in the order in which they asked last.
#[derive(Default)]
pub(super) struct ViewAskers(VecDeque<(Time, Peer)>);

impl ViewAskers {
    /// Notes an asker, unless it is a node, since nodes are told every view anyway.
    pub fn note(&mut self, now: Time, peer: Peer) {
        if let Peer::Node(_) = peer {
            return;
        }
        self.0.retain(|&(_, other)| other != peer);
        if self.0.len() == MAX_ASKED {
            self.0.pop_front();
        }
        self.0.push_back((now, peer));
    }

    fn lately(&self, now: Time) -> impl Iterator<Item = Peer> {
        let is_recent = move |&&(at, _): &&(Time, Peer)| now.saturating_sub(at) < REMEMBERED_FOR;
        self.0.iter().filter(is_recent).map(|&(_, peer)| peer)
    }
}

impl GroupControl {
    /// Tells the new view to those who asked lately, since the view that they got may have named a
    /// dead leader.
    pub(super) fn tell_who_asked(&self, now: Time, out: &mut impl ControlOutbox) {
        let view = self.state.view(self.id());
        for peer in self.view_askers.lately(now) {
            out.control(peer, Message::View(view.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lately(askers: &ViewAskers, now: Time) -> Vec<Peer> {
        askers.lately(now).collect()
    }

    /// An asker is remembered once, and for a second. [E-ASKED]
    #[test]
    fn who_asks_is_remembered_once_and_for_a_second() {
        let mut askers = ViewAskers::default();
        askers.note(0, Peer::Client(1));
        askers.note(5, Peer::Client(2));
        askers.note(9, Peer::Client(1));
        askers.note(9, Peer::Node(3));
        assert_eq!(lately(&askers, 10), [Peer::Client(2), Peer::Client(1)]);
        assert_eq!(lately(&askers, REMEMBERED_FOR + 5), [Peer::Client(1)]);
        assert!(lately(&askers, REMEMBERED_FOR + 9).is_empty());
    }

    #[test]
    fn a_flood_of_askers_pushes_out_the_oldest() {
        let mut askers = ViewAskers::default();
        for n in 0..=MAX_ASKED as u64 {
            askers.note(n, Peer::Client(n));
        }
        let told = lately(&askers, 300);
        assert_eq!(told.len(), MAX_ASKED);
        assert!(!told.contains(&Peer::Client(0)));
    }
}
