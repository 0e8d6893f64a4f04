// SPDX-License-Identifier: Apache-2.0
//! Transfers of checkpoints from one replica to another.

use super::layout::NodeIndex;
use super::protocol::Protocol;
use super::world::{Event, Transfer};
use super::{Cluster, Kind};
use crate::queue::{MICROSECOND, MILLISECOND};

impl<G: Protocol> Cluster<G> {
    pub(super) fn begin_transfers(&mut self) {
        while let Some(to) = self.world.fetches.pop() {
            let Kind::Replica(fetcher) = self.kind(to.0) else {
                continue;
            };
            let others: Vec<usize> = (0..self.replicas.len())
                .filter(|&n| n != fetcher && self.can_talk(to.0, self.replicas[n].host.at))
                .filter(|&n| self.replicas[n].is_up() && !self.replicas[n].host.paused)
                .filter(|&n| !self.replicas[n].is_installing())
                .collect();
            if others.is_empty() {
                continue;
            }
            let from = *self.world.rng.pick(&others);
            self.replicas[fetcher].fetching(true);
            self.replicas[from].hold(to.0);
            let from = (
                self.replicas[from].host.at,
                self.replicas[from].host.process,
            );
            self.open_copy(Box::new(Transfer {
                to,
                from,
                copies: Vec::new(),
            }));
        }
    }

    /// Opens a source's copies one after the other; the source continues in between.
    pub(super) fn open_copy(&mut self, mut transfer: Box<Transfer>) {
        let ((to, _), (from, process)) = (transfer.to, transfer.from);
        let (Kind::Replica(fetcher), Kind::Replica(n)) = (self.kind(to), self.kind(from)) else {
            return;
        };
        let w = &mut self.world;
        let source = &mut self.replicas[n];
        let copy = match source.host.process == process {
            true => source.snapshot(w, to, transfer.copies.len()),
            false => None,
        };
        let Some(copy) = copy else {
            return self.replicas[fetcher].fetching(false);
        };
        transfer.copies.push(copy);
        let all = transfer.copies.len() == w.pids().count();
        if all {
            source.release();
        }
        let (delay, event) = match all {
            true => {
                let delay = w.rng.between(200 * MICROSECOND, 20 * MILLISECOND);
                (delay, Event::Transfer(transfer))
            }
            false => (w.rng.below(2 * MILLISECOND), Event::Open(transfer)),
        };
        w.queue.after(delay, event);
    }

    pub(super) fn transfer(&mut self, transfer: Transfer) {
        let (to, process) = transfer.to;
        if self.host(to).process != process {
            return;
        }
        if let Kind::Replica(n) = self.kind(to) {
            let w = &mut self.world;
            let whole = !w.rng.chance(100_000);
            self.replicas[n].take(w, transfer, whole);
        }
    }

    /// Brings the values that the source has executed after its copies.
    pub(super) fn log_comes(&mut self, transfer: Transfer) {
        let ((to, asked), (from, answers)) = (transfer.to, transfer.from);
        let (Kind::Replica(fetcher), Kind::Replica(source)) = (self.kind(to), self.kind(from))
        else {
            return;
        };
        let lasts = self.host(to).process == asked && self.host(from).process == answers;
        let logs = self.replicas[source].take_logs(to);
        if lasts && self.can_talk(to, from) {
            self.replicas[fetcher].replay(&mut self.world, &logs);
        }
    }

    /// Returns whether two nodes can talk over a connection, which needs both directions.
    fn can_talk(&self, a: NodeIndex, b: NodeIndex) -> bool {
        let network = &self.world.network;
        let members = &self.world.members;
        !network.is_blocked(a.into(), b.into())
            && !network.is_blocked(b.into(), a.into())
            && members.knows(a, b)
            && members.knows(b, a)
    }
}
