// SPDX-License-Identifier: Apache-2.0
//! A peer as what keeps a worker's log.

use paxos::{Epoch, Instance, NodeId, Outbox, Packet, Round, Time, Verdict};
use replica::{
    Agreement, AgreementStatus, Answers, Decided, Event, Log, News, Rules, Settings, Speculative,
    Stepped, Wanted,
};

use crate::message::Order;
use crate::peer::{Peer, PeerGroup, Protocol, Status};

/// The only epoch of a group.
const EPOCH: Epoch = 1;

impl Peer {
    fn speculates(&self) -> bool {
        self.protocol() == Protocol::SpecPaxos
            && self.order == Order::Free
            && self.status == Status::Normal
    }
}

impl Log for Peer {
    fn entry(&self, inst: Instance) -> Option<Decided<'_>> {
        let entry = self.log.get(inst)?;
        Some(Decided {
            inst,
            flags: entry.flags,
            client: entry.client,
            request: entry.request,
            value: &entry.value,
        })
    }

    fn ready(&self) -> Instance {
        match self.speculates() {
            true => self.log.end(),
            false => self.commit,
        }
    }

    fn stable(&self) -> Instance {
        self.commit
    }

    fn answers(&self) -> Answers {
        match self.speculates() || self.leads() {
            true => Answers::Here(Round(self.view)),
            false => Answers::Elsewhere,
        }
    }
}

impl Agreement for Peer {
    type EpochView = PeerGroup;
    const RULES: Rules = Rules {
        has_markers: false,
        // Commands over several partitions don't exist here, and no epoch follows that would end
        // the wait for one.
        spans: false,
        bounds_reads: false,
        // The members' logs are all there is.
        trim_to: &[],
    };

    fn open(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Peer {
        Peer::new(settings, nonce, next, now)
    }

    fn step<'p>(&mut self, now: Time, packet: &Packet<'p>, out: &mut impl Outbox) -> Stepped<'p> {
        let verdict = match self.take(now, packet, out) {
            Ok(verdict) => verdict,
            Err(reason) => return Stepped::dropped(reason),
        };
        let news = match verdict {
            Verdict::Changed => News::Kept,
            _ => News::Nothing,
        };
        Stepped { verdict, news }
    }

    /// Nothing reaches execution except through the log.
    fn keep(&mut self, _: &Decided<'_>) {}

    fn executed(&mut self, next: Instance) {
        self.executed = next;
    }

    fn on_event(&mut self, event: Event) {
        match event {
            // Peers take no state from other replicas.
            Event::Restored(next) => self.executed = next,
            Event::Durable(durable) => {
                self.durable = durable;
                self.trim();
            }
            // There are no operator's orders, markers, lanes or commands over several partitions.
            Event::GivenUp(_) | Event::Begins(_) | Event::Stamped(..) | Event::Lane(..) => {}
        }
    }

    fn end_batch(&mut self, now: Time, waits: bool, out: &mut impl Outbox) -> bool {
        self.now = now;
        if self.status != Status::Normal {
            return false;
        }
        let has_news = std::mem::take(&mut self.has_news);
        if self.leads() {
            let before = self.commit;
            self.propose_if_idle(out);
            self.sync_if_full(waits, out);
            if has_news && self.order == Order::Free {
                self.count_votes(out);
            }
            return self.commit > before;
        }
        if has_news {
            if self.order == Order::Ordered || self.commit < self.base {
                self.show_filled(out);
            }
            if self.order == Order::Free && self.protocol() == Protocol::FastPaxos {
                self.vote(self.log.end(), out);
            }
        }
        false
    }

    fn tick(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        self.now = now;
        if self.group.is_none() {
            return false;
        }
        let before = (self.view, self.commit);
        match self.status {
            Status::Lost => return false,
            Status::Changing => self.tick_change(out),
            Status::Normal if self.leads() => {
                if now >= self.sync_deadline() {
                    self.tell_start_again(out);
                    self.sync(out);
                }
                self.tick_votes(out);
            }
            Status::Normal if now >= self.give_up_at() => self.change_to(self.view + 1, out),
            Status::Normal => {
                if let Some(first) = self.early.keys().next().copied() {
                    self.fetch_missing(first, out);
                }
            }
        }
        (self.view, self.commit) != before || self.rewind.is_some()
    }

    fn next_deadline(&self) -> Option<Time> {
        self.group.as_ref()?;
        match self.status {
            Status::Lost => None,
            Status::Changing => Some(self.change_deadline()),
            Status::Normal if self.leads() => {
                let sync = self.sync_deadline();
                Some(self.votes_deadline().map_or(sync, |votes| votes.min(sync)))
            }
            Status::Normal => {
                let again = self.asked_at + crate::peer::FETCH_AGAIN;
                let gap = (!self.early.is_empty()).then_some(again);
                let deadlines = [Some(self.give_up_at()), gap];
                deadlines.into_iter().flatten().min()
            }
        }
    }

    fn configure(&mut self, now: Time, groups: &[PeerGroup], _: Epoch) -> bool {
        groups.last().is_some_and(|group| self.join(now, group))
    }

    fn epoch(&self) -> Option<Epoch> {
        self.group.as_ref().map(|_| EPOCH)
    }

    fn replicas(&self) -> Vec<NodeId> {
        let mut members = self.members().to_vec();
        members.sort_unstable();
        members
    }

    fn wanted(&self) -> Wanted {
        Wanted::default()
    }

    fn status(&self) -> AgreementStatus {
        AgreementStatus {
            waiting: self.log.end().saturating_sub(self.executed) as usize,
            repaired: self.counters.fetched,
            ..AgreementStatus::default()
        }
    }

    fn speculative(&mut self) -> Option<&mut impl Speculative> {
        Some(self)
    }
}

impl Speculative for Peer {
    fn take_rewind(&mut self) -> Option<Instance> {
        self.rewind.take()
    }
}
