// SPDX-License-Identifier: Apache-2.0
//! What was decided while another replica's state was on its way, as that replica has kept it.

use super::Worker;
use crate::agreement::Agreement;
use crate::application::{Application, Error};
use crate::log::Values;
use crate::reply::Output;
use paxos::Time;

/// What came of [`Worker::replay`].
#[derive(Debug)]
pub enum Replayed {
    /// So many bytes were taken; what follows isn't whole, or can't be executed yet.
    Taken(usize),
    /// The values are damaged, or one is missing: what came before it was taken.
    Broken(Error),
}

impl<A: Application, G: Agreement> Worker<A, G> {
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
            if self.is_installing() || value.inst > self.next() {
                let error = Error(format!(
                    "instance {} comes before its turn, which is that of {}",
                    value.inst,
                    self.next()
                ));
                return self.replayed(now, out, Replayed::Broken(error));
            }
            if value.inst == self.next() {
                self.agreement.keep(&value);
                self.run(now);
            }
            if !self.execution.has_room() || self.next() <= value.inst {
                self.flush(now, out)?;
            }
            if self.next() <= value.inst {
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
