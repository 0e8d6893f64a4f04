// SPDX-License-Identifier: Apache-2.0
//! Shows the checkers what the controller has stored.

use control::{EpochRecord, EpochState};
use paxos::nopaxos::Session;
use paxos::{Header, Packet};

use super::ControllerHost;
use crate::cluster::mutation::members::as_of_today;
use crate::cluster::world::World;
use crate::observe::Observed;

impl ControllerHost {
    /// Returns a range promise that hides what wasn't read ahead, for a mutation.
    pub fn hide_the_rest(&mut self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        self.ahead_ends
            .hide_the_rest(&self.store.0.borrow().state, packet)
    }

    /// Returns a vote that is read ahead as if it were a new one, for a mutation.
    pub fn as_of_today(&self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        as_of_today(&self.store.0.borrow().state, packet)
    }

    /// Returns the last session that replicas may have been told.
    pub fn last_session(&self) -> Option<Session> {
        let stored = self.store.0.borrow();
        let mut newest_first = stored.state.epochs.iter().rev();
        let begun = newest_first.find(|e| e.state != EpochState::Issued);
        begun?.session(0)
    }

    /// Shows an epoch that was stored, or moved on, before any node can have heard of it.
    pub(super) fn show_epoch(&self, world: &mut World, record: &EpochRecord) {
        let configuration = record.configuration();
        let observed = match record.state {
            EpochState::Issued => Observed::Issued(&configuration),
            EpochState::Writing => Observed::Writing(record.epoch),
            EpochState::Active => Observed::Active(record.epoch),
        };
        world.observe(self.host.at, observed);
        if let Some(session) = record.session(0) {
            return self.show_session(world, record, &session);
        }
        if record.state == EpochState::Issued {
            world.votes.epoch(&configuration, &mut world.findings);
            world.issued.push(record.epoch);
        }
    }

    fn show_session(&self, world: &mut World, record: &EpochRecord, session: &Session) {
        match record.state {
            EpochState::Issued => {
                world.observe(self.host.at, Observed::Session(record.epoch, session.lead));
                world.note(|_| format!("session  {session:?}"));
                world.ordered.session(session);
            }
            EpochState::Writing => {
                if let Some(begin) = &record.anew {
                    world.ordered.begin_anew(session, begin);
                }
            }
            EpochState::Active => {
                let stored = self.store.0.borrow();
                if let Some(handed) = &stored.state.handed {
                    world.ordered.begins(record.epoch, handed.next.clone());
                }
            }
        }
    }
}
