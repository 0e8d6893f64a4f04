// SPDX-License-Identifier: Apache-2.0
//! Replay of values that another replica has kept, because they were decided while its state was
//! being copied.

use super::Worker;
use crate::agreement::Agreement;
use crate::application::{Application, Error};
use crate::log::Values;
use crate::reply::Output;
use paxos::Time;

/// The result of [`Worker::replay`].
#[derive(Debug)]
pub enum Replayed {
    /// This many bytes were taken; the values behind them aren't whole, or can't be executed yet.
    Taken(usize),
    /// The values are damaged, or one is missing; those before that were taken.
    Broken(Error),
}

impl<A: Application, G: Agreement> Worker<A, G> {
    /// Executes values that another replica has kept behind the state that was taken over from it;
    /// they are as trustworthy as that state. It skips values that this replica has executed, and
    /// takes fewer than all if other partitions have to catch up first. `Err` is final. [X-CATCHUP]
    pub fn replay(
        &mut self,
        now: Time,
        log: &[u8],
        out: &mut impl Output,
    ) -> Result<Replayed, Error> {
        let mut values = Values::new(log);
        loop {
            let taken = log.len() - values.left();
            if self.execution.waits_for_siblings() {
                // Sending the mail lets the siblings answer; replay goes on when they have come as
                // far.
                self.flush(now, out)?;
                if self.execution.waits_for_siblings() {
                    return self.replayed(now, out, Replayed::Taken(taken));
                }
            }
            let value = match values.next() {
                Ok(Some(value)) => value,
                Ok(None) => return self.replayed(now, out, Replayed::Taken(taken)),
                Err(error) => return self.replayed(now, out, Replayed::Broken(error)),
            };
            if self.execution.is_installing() || value.inst > self.next() {
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
