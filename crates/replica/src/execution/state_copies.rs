// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state, for a replica that fell behind and from one that is ahead, and the
//! values that were decided while a copy was being made.
//!
//! All partitions of a replica catch up together, since a command over several partitions must have
//! taken effect in all of them or in none. A replica that hands its state out *holds* all
//! partitions, opens the copies one after the other, and releases the partitions. [X-HOLD] A
//! replica that takes a state over *installs* it, as [`crate::Install`] describes.

use super::{Execution, load};
use crate::agreement::Decided;
use crate::application::{Application, Error, Link, Reader, Restore, Snapshot};
use crate::identity::{Identity, Named, read_name};
use crate::log;
use crate::record::{Position, Records};
use paxos::{Deployment, Instance, PartitionId, Time};
use std::io;

/// The result of a restore.
#[derive(Debug)]
pub enum Restored {
    /// The worker goes on at this instance.
    To(Instance),
    /// The snapshot is no newer than this instance, where the worker stands, and wasn't read.
    NotNewer(Instance),
    /// Reading the snapshot failed, and nothing has changed.
    Failed(Error),
}

/// The copies of the state that are being opened or taken over.
#[derive(Default)]
pub(super) struct StateCopies {
    /// Another replica's state is being installed, so that nothing is executed.
    installing: bool,
    /// The number of holds while copies of the replica's state are being opened.
    holds: u32,
    /// A reader of the state was asked for and waits until everything executed is stable.
    reader_waits: bool,
    /// The executed values that are kept for a replica which takes over this one's state; `None` =
    /// none are kept.
    kept: Option<Vec<u8>>,
}

impl StateCopies {
    /// Returns whether another replica's state is being installed.
    #[inline]
    pub fn are_installing(&self) -> bool {
        self.installing
    }

    /// Returns whether a reader waits until everything executed is stable.
    #[inline]
    pub fn reader_waits(&self) -> bool {
        self.reader_waits
    }

    /// Returns whether executed values are kept.
    #[inline]
    pub fn keeps_log(&self) -> bool {
        self.kept.is_some()
    }

    /// Keeps an executed value, if values are kept.
    #[inline]
    pub fn keep(&mut self, value: &Decided<'_>) {
        if let Some(kept) = &mut self.kept {
            log::append(kept, value);
        }
    }
}

impl<A: Application> Execution<A> {
    // ---- Handing a state out

    /// Makes this partition keep everything that copies of other partitions may need, which may
    /// have been opened before this one's. The hold ends when it was released as often as it was
    /// taken. [X-HOLD]
    pub fn hold(&mut self) {
        self.copies.holds += 1;
    }

    /// Ends one hold, after the copies of all partitions have been opened or given up.
    pub fn release(&mut self) {
        self.copies.holds = self.copies.holds.saturating_sub(1);
        self.forget_outcomes();
    }

    /// Returns whether the partition is held.
    pub fn is_held(&self) -> bool {
        self.copies.holds > 0
    }

    /// Returns a consistent copy of the committed state, and the next instance after it, for a
    /// replica that fell behind.
    pub(crate) fn snapshot(&mut self) -> Result<(Instance, Box<dyn Snapshot>), Error> {
        self.settle()?;
        let named = Named {
            identity: self.identity(),
            position: self.progress.committed(),
            snapshot: self.app.snapshot()?,
        };
        Ok((self.progress.committed(), Box::new(named)))
    }

    /// Returns a reader of the state with everything that has been executed so far. Returns `None`
    /// while some of that isn't stable; then nothing more is executed ahead, and the caller asks
    /// again. [X-READ]
    pub(crate) fn reader(&mut self) -> Option<Result<Box<dyn Reader>, Error>> {
        self.copies.reader_waits = self.progress.is_ahead() && self.failed.is_none();
        if self.copies.reader_waits {
            return None;
        }
        Some(self.commit().and_then(|()| self.app.reader()))
    }

    /// Returns a copy by links, if the application makes such copies (see [`Application::link`]),
    /// and the lowest position that the copy can have. [X-HOLD]
    pub(crate) fn link(&mut self) -> Result<(Instance, Option<Link>), Error> {
        self.settle()?;
        Ok((self.progress.committed(), self.app.link()))
    }

    /// Turns on or off that each executed value is kept for
    /// [`Execution::take_log`]. [X-LOG]
    pub fn keep_log(&mut self, keep: bool) {
        if keep {
            self.copies.kept.get_or_insert_default();
        } else {
            self.copies.kept = None;
        }
    }

    /// Returns the values that were kept since the last call, in the form that
    /// [`Worker::replay`](crate::Worker::replay) takes.
    pub fn take_log(&mut self) -> Option<Vec<u8>> {
        let kept = self.copies.kept.as_mut().filter(|kept| !kept.is_empty())?;
        Some(std::mem::take(kept))
    }

    /// Returns the next instance, and the digest of the application's contents there.
    pub(crate) fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        self.settle()?;
        Ok((self.progress.committed(), self.app.digest()?))
    }

    // ---- Taking a state over

    /// Begins an install: until it ends nothing is executed, no checkpoint begins by itself, and
    /// nothing is reported. [X-INSTALL]
    pub(crate) fn begin_install(&mut self) -> Result<(), Error> {
        self.settle()?;
        self.copies.installing = true;
        Ok(())
    }

    /// Ends the install, after all partitions have reached the installed position durably.
    pub(crate) fn end_install(&mut self) {
        self.copies.installing = false;
        self.leap();
        self.answer_siblings();
    }

    /// Returns whether an install is under way.
    pub fn is_installing(&self) -> bool {
        self.copies.installing
    }

    /// Begins a checkpoint of what is committed, though none is due, as a part of an install. No
    /// other checkpoint may be under way.
    pub(crate) fn checkpoint_now(&mut self) -> Result<(), Error> {
        self.rewind(self.progress.stable());
        self.begin_checkpoint()
    }

    /// Begins to take over a snapshot of another replica whose next instance was announced as
    /// `position`. The returned function reads the snapshot in another thread and refuses one of
    /// another partition or of another position; nothing changes before
    /// [`Worker::end_restore`](crate::Worker::end_restore). [X-NAME]
    pub fn begin_restore(&mut self, position: Instance) -> Result<Restore, Error> {
        let own = self.identity();
        let read = self.app.begin_restore()?;
        Ok(Box::new(move |from| {
            check_name(own, position, from)?;
            read(from)
        }))
    }

    /// Replaces the whole state by the snapshot that was read; an `Err` is final. The state never
    /// goes backwards, since others may have forgotten what this replica reported as covered, and
    /// it isn't replaced during a checkpoint, whose end would put an older state in its place.
    /// [X-CATCHUP]
    pub(crate) fn end_restore(&mut self, now: Time, position: Instance) -> Result<Restored, Error> {
        self.settle()?;
        if position <= self.progress.next() {
            self.app.forget_restore();
            return Ok(Restored::NotNewer(self.progress.next()));
        }
        if self.is_checkpointing() {
            return Ok(Restored::Failed(under_way()));
        }
        let result = self.app.end_restore();
        let loaded = load(&self.settings, &mut self.app, now);
        let loaded = self.final_error(loaded)?;
        let restored = loaded.position.next;
        match result {
            Err(error) if restored == self.progress.next() => return Ok(Restored::Failed(error)),
            Err(error) => return self.final_error(Err(error)),
            Ok(()) if restored <= self.progress.next() => {
                let error = Error(format!(
                    "a snapshot announced at instance {position} holds instance {restored}, but \
                     this replica has executed everything below {}",
                    self.progress.next()
                ));
                return self.final_error(Err(error));
            }
            Ok(()) => {}
        }
        self.adopt(loaded)?;
        self.progress.durable_below(restored);
        self.commits.restored(now);
        Ok(Restored::To(restored))
    }

    /// Begins and ends a restore at once, for callers that have the whole snapshot at hand.
    pub(crate) fn restore(
        &mut self,
        now: Time,
        position: Instance,
        from: &mut dyn io::Read,
    ) -> Result<Restored, Error> {
        self.settle()?;
        if position <= self.progress.next() {
            return Ok(Restored::NotNewer(self.progress.next()));
        }
        if self.is_checkpointing() {
            return Ok(Restored::Failed(under_way()));
        }
        let read = self.begin_restore(position).and_then(|read| read(from));
        match read {
            Err(error) => Ok(Restored::Failed(error)),
            Ok(()) => self.end_restore(now, position),
        }
    }
}

impl<A: Application> Execution<A> {
    /// Makes the state one with which another cluster, with a number of its own, can begin: at the
    /// same position, and with the outcomes of commands over several partitions, which other
    /// partitions may not have passed. The sessions end, so that no command of theirs counts there;
    /// no epoch was met, and the disk has no number. The state is stored so, and must be opened
    /// anew.
    pub(crate) fn move_to(&mut self, cluster: u32) -> Result<(), Error> {
        self.settle()?;
        let mut keys = Vec::new();
        self.app.records(&mut |key, _| keys.push(key.to_vec()))?;
        let mut records = Records::default();
        for key in keys {
            records.delete_if_of_cluster(&key);
        }
        self.settings.deployment.cluster = cluster;
        records.put_identity(&self.identity());
        records.put_position(Position {
            next: self.progress.committed(),
            marker: 0,
        });
        self.app.commit(records.as_slice())?;
        self.app.checkpoint()?()
    }
}

fn under_way() -> Error {
    Error("a checkpoint of its own is under way".into())
}

/// Reads the name of a snapshot and returns an error unless it is of this partition of this
/// deployment. [X-NAME]
pub fn is_state_of(
    deployment: &Deployment,
    pid: PartitionId,
    from: &mut dyn io::Read,
) -> Result<(), Error> {
    let own = Identity::of(deployment, pid);
    let (of, _) = read_name(from)?;
    match of == own {
        true => Ok(()),
        false => Err(another(of, own)),
    }
}

fn another(of: Identity, own: Identity) -> Error {
    Error(format!("it is a checkpoint of {of}, and this is {own}"))
}

/// Checks, before anything else is read, that the snapshot is of this partition and has the
/// announced position. [X-NAME]
fn check_name(own: Identity, position: Instance, from: &mut dyn io::Read) -> Result<(), Error> {
    let (of, stands) = read_name(from)?;
    if of != own {
        return Err(another(of, own));
    }
    if stands != position {
        return Err(Error(format!(
            "announced at instance {position}, it stands at {stands}"
        )));
    }
    Ok(())
}
