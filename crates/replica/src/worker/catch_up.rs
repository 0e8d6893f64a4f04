// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state: for a replica that fell behind, and from one that is ahead; and what was
//! decided since.
//!
//! All partitions of a replica catch up together, since a command over several of them must have taken
//! effect in all or in none. Whoever hands a state out *holds* all partitions, opens the copies one after
//! the other, and releases them. [X-HOLD] Whoever takes one *installs* it: see [`crate::Install`].

use super::{MAX_BATCH, MAX_REPLIES, Replayed, Restored, Worker, load};
use crate::application::{Application, Error, Restore, Snapshot};
use crate::identity::{Identity, Named, read_name};
use crate::log::Values;
use crate::record::Position;
use crate::reply::Output;
use paxos::{Deployment, Instance, PartitionId, Time};
use std::io;

impl<A: Application> Worker<A> {
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
        self.commit()?;
        let named = Named {
            identity: self.identity(),
            position: self.committed,
            snapshot: self.app.snapshot()?,
        };
        Ok((self.committed, Box::new(named)))
    }

    /// Keeps each value that is executed from now on, for [`Worker::take_log`]; or no longer. [X-LOG]
    pub fn keep_log(&mut self, keep: bool) {
        if keep {
            self.kept.get_or_insert_default();
        } else {
            self.kept = None;
        }
    }

    /// What was kept since the last call, as [`Worker::replay`] takes it.
    pub fn take_log(&mut self) -> Option<Vec<u8>> {
        let kept = self.kept.as_mut().filter(|kept| !kept.is_empty())?;
        Some(std::mem::take(kept))
    }

    /// The next instance, and the digest of the application's contents there.
    pub fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        self.commit()?;
        Ok((self.committed, self.app.digest()?))
    }

    // ---- Taking a state over

    /// An install begins: from now on nothing is executed, no checkpoint begins by itself, and nothing is
    /// reported. [X-INSTALL]
    pub fn begin_install(&mut self) -> Result<(), Error> {
        self.commit()?;
        self.installing = true;
        Ok(())
    }

    /// The install has ended: all partitions have got where it was to bring them, and are durable.
    pub fn end_install(&mut self, now: Time) {
        self.installing = false;
        self.answer_siblings();
        self.drain(now);
    }

    /// Whether an install is under way.
    pub fn is_installing(&self) -> bool {
        self.installing
    }

    /// Makes what is committed durable, though no checkpoint is due: a part of an install. None may be
    /// under way.
    pub fn checkpoint_now(&mut self) -> Result<(), Error> {
        debug_assert!(!self.is_checkpointing());
        self.begin_checkpoint()
    }

    /// Begins to take over a snapshot of another replica whose next instance was announced as
    /// `position`. What it returns reads the snapshot in another thread, and refuses one of another
    /// partition, or one that stands elsewhere. Nothing changes before [`Worker::end_restore`].
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
        self.commit()?;
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
        let Position {
            next: restored,
            marker,
        } = loaded.position;
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
        self.sessions = loaded.sessions;
        self.journal = loaded.journal;
        self.next = restored;
        self.committed = restored;
        self.marker = marker;
        if let Some(incarnation) = self.incarnation {
            self.store_incarnation(incarnation)?;
        }
        self.checkpoints.made(now, restored);
        self.ring.forget(&(0..restored));
        self.recover.forget_below(restored);
        self.leap();
        self.replace_outcomes(loaded.outcomes);
        self.check_beginning();
        self.drain(now);
        Ok(Restored::To(restored))
    }

    /// Begins and ends at once: for those who have the whole snapshot at hand.
    pub fn restore(
        &mut self,
        now: Time,
        position: Instance,
        from: &mut dyn io::Read,
    ) -> Result<Restored, Error> {
        self.commit()?;
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

    /// Executes values that another replica has kept, behind a state of its that was taken over: they are
    /// as good as that state. Those that this replica has executed are passed over. Fewer than all whole ones
    /// are taken if other partitions have to come as far first. `Err` is final. [X-CATCHUP]
    pub fn replay(
        &mut self,
        now: Time,
        log: &[u8],
        out: &mut impl Output,
    ) -> Result<Replayed, Error> {
        let mut values = Values::new(log);
        loop {
            let taken = log.len() - values.left();
            if self.waits_for_siblings() {
                // It goes on when they have come as far.
                self.flush(now, out)?;
                if self.waits_for_siblings() {
                    return self.replayed(now, out, Replayed::Taken(taken));
                }
            }
            let value = match values.next() {
                Ok(Some(value)) => value,
                Ok(None) => return self.replayed(now, out, Replayed::Taken(taken)),
                Err(error) => return self.replayed(now, out, Replayed::Broken(error)),
            };
            if self.installing || value.inst > self.next {
                let error = Error(format!(
                    "instance {} comes before its turn, which is that of {}",
                    value.inst, self.next
                ));
                return self.replayed(now, out, Replayed::Broken(error));
            }
            if value.inst == self.next && !self.learned(now, &value) {
                self.drain(now);
            }
            let full = self.next - self.committed >= MAX_BATCH;
            if full || self.replies.weight() >= MAX_REPLIES || self.next <= value.inst {
                self.flush(now, out)?;
            }
            if self.next <= value.inst {
                return self.replayed(now, out, Replayed::Taken(taken));
            }
        }
    }

    fn replayed(
        &mut self,
        now: Time,
        out: &mut impl Output,
        replayed: Replayed,
    ) -> Result<Replayed, Error> {
        self.finish_batch(now, out)?;
        Ok(replayed)
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
