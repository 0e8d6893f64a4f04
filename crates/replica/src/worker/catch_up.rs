// SPDX-License-Identifier: Apache-2.0
//! Copies of the whole state: for a replica that fell behind, and from one that is ahead.

use super::{Restored, Worker, load};
use crate::application::{Application, Error, Snapshot};
use crate::identity::{Named, read_name};
use crate::record::Position;
use paxos::{Instance, Time};
use std::io;

impl<A: Application> Worker<A> {
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

    /// The next instance, and the digest of the application's contents there.
    pub fn digest(&mut self) -> Result<(Instance, [u8; 32]), Error> {
        self.commit()?;
        Ok((self.committed, self.app.digest()?))
    }

    /// Replaces the whole state by a snapshot of another replica whose next instance was announced
    /// as `position`. Never goes backwards: what this replica reported as covered may be forgotten
    /// everywhere else. Not while a checkpoint is under way, whose end would put an older state in the
    /// place of this one. An `Err` is final. [X-CATCHUP]
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
            let error = Error("a checkpoint of its own is under way".into());
            return Ok(Restored::Failed(error));
        }
        if let Err(error) = self.check_name(position, from) {
            return Ok(Restored::Failed(error));
        }
        let result = self.app.restore(from);
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
        self.check_beginning();
        self.drain(now);
        Ok(Restored::To(restored))
    }

    /// Before anything changes: the snapshot is of this partition, and where it was announced.
    /// [X-NAME]
    fn check_name(&self, position: Instance, from: &mut dyn io::Read) -> Result<(), Error> {
        let (of, stands) = read_name(from)?;
        let own = self.identity();
        if of != own {
            return Err(Error(format!(
                "it is a checkpoint of {of}, and this is {own}"
            )));
        }
        if stands != position {
            return Err(Error(format!(
                "announced at instance {position}, it stands at {stands}"
            )));
        }
        Ok(())
    }
}
