// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state: for a replica that fell behind, and from one that is ahead; and what was
//! decided since.
//!
//! All partitions of a replica catch up together, since a command over several of them must have taken
//! effect in all or in none. Whoever hands a state out *holds* all partitions, opens the copies one after
//! the other, and releases them. [X-HOLD] Whoever takes one *installs* it: see [`crate::Install`].

use super::{Execution, load};
use crate::application::{Application, Error, Link, Reader, Restore, Snapshot};
use crate::identity::{Identity, Named, read_name};
use paxos::{Deployment, Instance, PartitionId, Time};
use std::io;

/// What came of a restore.
#[derive(Debug)]
pub enum Restored {
    /// The worker goes on at this instance.
    To(Instance),
    /// The snapshot is no newer than this instance, where the worker stands; it was not read.
    NotNewer(Instance),
    /// Reading it failed, and nothing has changed.
    Failed(Error),
}

impl<A: Application> Execution<A> {
    // ---- Handing a state out

    /// From now on, until it is released as often, this partition forgets nothing that the copy of
    /// another partition may need, one that was opened before this one's. [X-HOLD]
    pub fn hold(&mut self) {
        self.holds += 1;
    }

    /// The copies of all partitions are open, or given up.
    pub fn release(&mut self) {
        self.holds = self.holds.saturating_sub(1);
        self.forget_outcomes();
    }

    /// Whether it is held.
    pub fn is_held(&self) -> bool {
        self.holds > 0
    }

    /// A consistent copy of the committed state, with the next instance after it, for a replica
    /// that fell behind.
    pub fn snapshot(&mut self) -> Result<(Instance, Box<dyn Snapshot>), Error> {
        self.settle()?;
        let named = Named {
            identity: self.identity(),
            position: self.committed,
            snapshot: self.app.snapshot()?,
        };
        Ok((self.committed, Box::new(named)))
    }

    /// Reads the state, with all that was executed before. Nothing of that may be taken back: until all of it is stable
    /// there is no reader, and nothing more is executed ahead. Who wants one asks again. [X-READ]
    pub fn reader(&mut self) -> Option<Result<Box<dyn Reader>, Error>> {
        self.reader_waits = self.next > self.stable && self.failed.is_none();
        if self.reader_waits {
            return None;
        }
        Some(self.commit().and_then(|()| self.app.reader()))
    }

    /// A copy by links, if the application makes such copies, and where it stands at least: see
    /// [`Application::link`]. [X-HOLD]
    pub fn link(&mut self) -> Result<(Instance, Option<Link>), Error> {
        self.settle()?;
        Ok((self.committed, self.app.link()))
    }

    /// Keeps each value that is executed from now on, for [`Execution::take_log`]; or no longer. [X-LOG]
    pub fn keep_log(&mut self, keep: bool) {
        if keep {
            self.kept.get_or_insert_default();
        } else {
            self.kept = None;
        }
    }

    /// What was kept since the last call, as another replica's worker replays it.
    pub fn take_log(&mut self) -> Option<Vec<u8>> {
        let kept = self.kept.as_mut().filter(|kept| !kept.is_empty())?;
        Some(std::mem::take(kept))
    }

    /// The next instance, and the digest of the application's contents there.
    pub fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        self.settle()?;
        Ok((self.committed, self.app.digest()?))
    }

    // ---- Taking a state over

    /// An install begins: from now on nothing is executed, no checkpoint begins by itself, and nothing is
    /// reported. [X-INSTALL]
    pub fn begin_install(&mut self) -> Result<(), Error> {
        self.settle()?;
        self.installing = true;
        Ok(())
    }

    /// The install has ended: all partitions have got where it was to bring them, and are durable.
    pub fn end_install(&mut self) {
        self.installing = false;
        self.leap();
        self.answer_siblings();
    }

    /// Whether an install is under way.
    pub fn is_installing(&self) -> bool {
        self.installing
    }

    /// Makes what is committed durable, though no checkpoint is due: a part of an install. None may be
    /// under way.
    pub fn checkpoint_now(&mut self) -> Result<(), Error> {
        self.rewind(self.stable);
        self.begin_checkpoint()
    }

    /// Begins to take over a snapshot of another replica whose next instance was announced as
    /// `position`. What it returns reads the snapshot in another thread, and refuses one of another
    /// partition, or one that stands elsewhere. Nothing changes before [`Execution::end_restore`].
    /// [X-NAME]
    pub fn begin_restore(&mut self, position: Instance) -> Result<Restore, Error> {
        let own = self.identity();
        let read = self.app.begin_restore()?;
        Ok(Box::new(move |from| {
            check_name(own, position, from)?;
            read(from)
        }))
    }

    /// Replaces the whole state by the snapshot that was read. Never goes backwards: what this replica
    /// reported as covered may be forgotten everywhere else. Not while a checkpoint is under way, whose
    /// end would put an older state in the place of this one. An `Err` is final. [X-CATCHUP]
    pub fn end_restore(&mut self, now: Time, position: Instance) -> Result<Restored, Error> {
        self.settle()?;
        if position <= self.next {
            self.app.forget_restore();
            return Ok(Restored::NotNewer(self.next));
        }
        if self.is_checkpointing() {
            return Ok(Restored::Failed(under_way()));
        }
        let result = self.app.end_restore();
        let loaded = load(&self.settings, &mut self.app, now);
        let loaded = self.final_error(loaded)?;
        let restored = loaded.position.next;
        match result {
            Err(error) if restored == self.next => return Ok(Restored::Failed(error)),
            Err(error) => return self.final_error(Err(error)),
            Ok(()) if restored <= self.next => {
                let error = Error(format!(
                    "a snapshot announced at instance {position} holds instance {restored}, but \
                     this replica has executed everything below {}",
                    self.next
                ));
                return self.final_error(Err(error));
            }
            Ok(()) => {}
        }
        self.adopt(loaded)?;
        self.checkpoints.made(now, restored);
        Ok(Restored::To(restored))
    }

    /// Begins and ends at once: for those who have the whole snapshot at hand.
    pub fn restore(
        &mut self,
        now: Time,
        position: Instance,
        from: &mut dyn io::Read,
    ) -> Result<Restored, Error> {
        self.settle()?;
        if position <= self.next {
            return Ok(Restored::NotNewer(self.next));
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

fn under_way() -> Error {
    Error("a checkpoint of its own is under way".into())
}

/// An error unless a snapshot is of this partition of this deployment. [X-NAME]
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

/// Before anything is read: the snapshot is of this partition, and where it was announced. [X-NAME]
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
