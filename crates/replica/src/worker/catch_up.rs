// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state, and the install of another replica's state.
//!
//! All partitions of a replica catch up together, since a command over several partitions must have
//! taken effect in all of them or in none. A replica that hands its state out *holds* all
//! partitions, opens the copies one after the other, and releases the partitions. [X-HOLD] A
//! replica that takes a state over *installs* it, as [`crate::Install`] describes.

use super::Worker;
use crate::agreement::{Agreement, Event};
use crate::application::{Application, Error, Link, Reader, Snapshot};
use crate::execution::Restored;
use paxos::{Instance, Time};
use std::io;

impl<A: Application, G: Agreement> Worker<A, G> {
    // ---- Handing a state out

    /// Returns a consistent copy of the committed state, and the next instance after it, for a
    /// replica that fell behind.
    pub fn snapshot(&mut self) -> Result<(Instance, Box<dyn Snapshot>), Error> {
        let taken = self.execution.snapshot();
        self.tell_position();
        taken
    }

    /// Returns a reader of the state with everything that has been executed so far. It returns
    /// `None` until all of that is stable; ask again after the next batch or tick. [X-READ]
    pub fn reader(&mut self) -> Option<Result<Box<dyn Reader>, Error>> {
        let reader = self.execution.reader();
        self.tell_position();
        reader
    }

    /// Returns a copy by links, if the application makes such copies (see [`Application::link`]),
    /// and the lowest position that the copy can have. [X-HOLD]
    pub fn link(&mut self) -> Result<(Instance, Option<Link>), Error> {
        let link = self.execution.link();
        self.tell_position();
        link
    }

    /// Returns the next instance, and the digest of the application's contents there.
    pub fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        let digest = self.execution.digest();
        self.tell_position();
        digest
    }

    // ---- Taking a state over

    /// Begins an install: until it ends nothing is executed, no checkpoint begins by itself, and
    /// nothing is reported. [X-INSTALL]
    pub fn begin_install(&mut self) -> Result<(), Error> {
        let begun = self.execution.begin_install();
        self.tell_position();
        begun
    }

    /// Ends the install, after all partitions have reached the installed position durably.
    pub fn end_install(&mut self, now: Time) {
        self.execution.end_install();
        self.run(now);
    }

    /// Begins a checkpoint of what is committed, though none is due, as a part of an install. No
    /// other checkpoint may be under way.
    pub fn checkpoint_now(&mut self) -> Result<(), Error> {
        debug_assert!(!self.execution.is_checkpointing());
        let begun = self.execution.checkpoint_now();
        self.tell_position();
        begun
    }

    /// Replaces the whole state by the snapshot that was read. It never goes backwards, since
    /// everything this replica reported as covered may be forgotten elsewhere, and it is refused
    /// during a checkpoint, whose end would put an older state in its place. An `Err` is final.
    /// [X-CATCHUP]
    pub fn end_restore(&mut self, now: Time, position: Instance) -> Result<Restored, Error> {
        let result = self.execution.end_restore(now, position);
        self.restored(now, result)
    }

    /// Begins and ends a restore at once, for callers that have the whole snapshot at hand.
    pub fn restore(
        &mut self,
        now: Time,
        position: Instance,
        from: &mut dyn io::Read,
    ) -> Result<Restored, Error> {
        let result = self.execution.restore(now, position, from);
        self.restored(now, result)
    }

    /// Makes the state one with which another cluster can begin, and ends: the state is stored so,
    /// and must be opened anew.
    pub fn move_to(mut self, cluster: u32) -> Result<(), Error> {
        self.execution.move_to(cluster)
    }

    fn restored(&mut self, now: Time, result: Result<Restored, Error>) -> Result<Restored, Error> {
        if let Ok(Restored::To(next)) = result {
            self.agreement.on_event(Event::Restored(next));
            self.run(now);
        } else {
            self.tell_position();
        }
        result
    }
}
