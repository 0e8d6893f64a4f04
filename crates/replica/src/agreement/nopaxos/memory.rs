// SPDX-License-Identifier: Apache-2.0
//! A replica's memory that is stored, and what a PROBE_ACK shows of it. [N-RESTART]

use super::{NoPaxos, looped, replica_settings};
use crate::agreement::ShownMemory;
use crate::application::Error;
use paxos::acceptor::Start;
use paxos::nopaxos::{Loaded, Replica, Status, view};
use paxos::outbox::Sent;
use paxos::{Round, Time};

impl NoPaxos {
    /// Returns the replica role mutably, so that its memory can be stored.
    pub fn replica_mut(&mut self) -> &mut Replica {
        &mut self.replica
    }

    /// Goes on with the memory that was read from a disk, at another `start` of it, and stays mute
    /// until [`resume`](Self::resume). The application may be behind what is stable there, which is
    /// executed again, or ahead, if it had stored more than the log. The memory is refused if
    /// entries are missing between the two that nobody has given up. [N-RESTART]
    pub fn remember(&mut self, loaded: Loaded, start: Start) -> Result<(), Error> {
        let settings = replica_settings(&self.settings, self.nonce);
        let replica = loaded.into_replica(settings, start);
        let replica = replica.map_err(|why| Error(why.into()))?;
        let mut replica = replica.ok_or_else(|| Error("it is empty".into()))?;
        // The application's position doesn't prove that this log is the newest one.
        self.found = (replica.view(), replica.stable());
        let (position, floor) = (self.executed, replica.floor());
        // Below the end of an accepted loss there are no entries: once the loss is told again,
        // execution leaps, or another replica's state is fetched. [F-ANEW]
        if position < floor && floor > replica.sessions().begin() {
            return Err(Error(format!(
                "it begins at slot {floor}, and the application has executed no more than what is \
                 below slot {position}: one of the two is an old copy, or was removed"
            )));
        }
        if position > replica.stable() {
            // The replica is mute, so it sends nothing here.
            replica.restored(self.now, position, &mut Sent::default());
            let _ = replica.take_rewind();
        }
        self.replica = replica;
        Ok(())
    }

    /// Lets this start of this memory go on, as the controller allows. Returns true if that changed
    /// anything. [N-RESTART]
    pub fn resume(&mut self, now: Time, nonce: u64, start: Start) -> Result<bool, &'static str> {
        let mut out = looped(&self.settings, &mut self.to_self, &mut self.unsent);
        let resumed = self.replica.resume(now, nonce, start, &mut out);
        self.is_due = true;
        resumed
    }

    /// Returns the replica's view or, if the replica isn't in normal operation, the session to
    /// which it goes, since the number of a view that may never begin says nothing. A mute replica
    /// shows the view of its stored memory, to be compared with what it has shown before.
    /// [N-RESTART]
    pub(super) fn shown(&self) -> Round {
        let view = self.replica.view();
        match self.replica.status() {
            _ if self.replica.is_mute() => self.found.0,
            Status::Normal => view,
            Status::ViewChange | Status::Stranger => view::stamp(view),
        }
    }

    pub(super) fn memory(&self) -> ShownMemory {
        let (replica, is_mute) = (&self.replica, self.replica.is_mute());
        ShownMemory {
            start: replica.start().map_or(0, |start| start.shown(is_mute)),
            stable: is_mute.then_some(self.found.1),
        }
    }
}
