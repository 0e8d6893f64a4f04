// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state, and the install of another replica's.
//!
//! All partitions of a replica catch up together, since a command over several of them must have taken
//! effect in all or in none. Whoever hands a state out *holds* all partitions, opens the copies one after
//! the other, and releases them. [X-HOLD] Whoever takes one *installs* it: see [`crate::Install`].

use super::Worker;
use crate::agreement::Agreement;
use crate::application::{Application, Error, Link, Reader, Restore, Snapshot};
use crate::execution::Restored;
use paxos::{Instance, Time};
use std::io;

impl<A: Application, G: Agreement> Worker<A, G> {
    // ---- Handing a state out

    /// From now on, until it is released as often, this partition forgets nothing that the copy of
    /// another partition may need, one that was opened before this one's. [X-HOLD]
    pub fn hold(&mut self) {
        self.execution.hold();
    }

    /// The copies of all partitions are open, or given up.
    pub fn release(&mut self) {
        self.execution.release();
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.execution.is_held()
    }

    /// A consistent copy of the committed state, with the next instance after it, for a replica
    /// that fell behind.
    pub fn snapshot(&mut self) -> Result<(Instance, Box<dyn Snapshot>), Error> {
        let taken = self.execution.snapshot();
        self.tell_position();
        taken
    }

    /// Reads the state, with all that was executed before, once that is stable; nothing until then: ask again after the
    /// next batch or tick. [X-READ]
    pub fn reader(&mut self) -> Option<Result<Box<dyn Reader>, Error>> {
        let reader = self.execution.reader();
        self.tell_position();
        reader
    }

    /// A copy by links, if the application makes such copies, and where it stands at least: see
    /// [`Application::link`]. [X-HOLD]
    pub fn link(&mut self) -> Result<(Instance, Option<Link>), Error> {
        let link = self.execution.link();
        self.tell_position();
        link
    }

    /// Keeps each value that is executed from now on, for [`Worker::take_log`]; or no longer. [X-LOG]
    pub fn keep_log(&mut self, keep: bool) {
        self.execution.keep_log(keep);
    }

    /// What was kept since the last call, as [`Worker::replay`] takes it.
    pub fn take_log(&mut self) -> Option<Vec<u8>> {
        self.execution.take_log()
    }

    /// The next instance, and the digest of the application's contents there.
    pub fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        let digest = self.execution.digest();
        self.tell_position();
        digest
    }

    // ---- Taking a state over

    /// An install begins: from now on nothing is executed, no checkpoint begins by itself, and nothing is
    /// reported. [X-INSTALL]
    pub fn begin_install(&mut self) -> Result<(), Error> {
        let begun = self.execution.begin_install();
        self.tell_position();
        begun
    }

    /// All workers of this replica stand still in an install, and have got what they said to one another
    /// before: that is void, as some of them stand elsewhere now. They meet their copies anew. [X-INSTALL]
    pub fn meet_anew(&mut self) {
        self.execution.meet_anew();
    }

    /// The install has ended: all partitions have got where it was to bring them, and are durable.
    pub fn end_install(&mut self, now: Time) {
        self.execution.end_install();
        self.run(now);
    }

    /// Whether an install is under way.
    pub fn is_installing(&self) -> bool {
        self.execution.is_installing()
    }

    /// Makes what is committed durable, though no checkpoint is due: a part of an install. None may be
    /// under way.
    pub fn checkpoint_now(&mut self) -> Result<(), Error> {
        debug_assert!(!self.is_checkpointing());
        let begun = self.execution.checkpoint_now();
        self.tell_position();
        begun
    }

    /// Begins to take over a snapshot of another replica whose next instance was announced as
    /// `position`. What it returns reads the snapshot in another thread, and refuses one of another
    /// partition, or one that stands elsewhere. Nothing changes before [`Worker::end_restore`].
    /// [X-NAME]
    pub fn begin_restore(&mut self, position: Instance) -> Result<Restore, Error> {
        self.execution.begin_restore(position)
    }

    /// Replaces the whole state by the snapshot that was read. Never goes backwards: what this replica
    /// reported as covered may be forgotten everywhere else. Not while a checkpoint is under way, whose
    /// end would put an older state in the place of this one. An `Err` is final. [X-CATCHUP]
    pub fn end_restore(&mut self, now: Time, position: Instance) -> Result<Restored, Error> {
        let result = self.execution.end_restore(now, position);
        self.restored(now, result)
    }

    /// Begins and ends at once: for those who have the whole snapshot at hand.
    pub fn restore(
        &mut self,
        now: Time,
        position: Instance,
        from: &mut dyn io::Read,
    ) -> Result<Restored, Error> {
        let result = self.execution.restore(now, position, from);
        self.restored(now, result)
    }

    fn restored(&mut self, now: Time, result: Result<Restored, Error>) -> Result<Restored, Error> {
        if let Ok(Restored::To(next)) = result {
            self.agreement.restored(next);
            self.run(now);
        } else {
            self.tell_position();
        }
        result
    }
}
