// SPDX-License-Identifier: Apache-2.0
//! The store's epochs.

use std::collections::BTreeMap;

use paxos::{Configuration, Epoch};

/// How far an epoch got.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum State {
    Issued,
    Writing,
    Active,
}

#[derive(Default)]
pub(super) struct Epochs(BTreeMap<Epoch, (Configuration, State)>);

impl Epochs {
    pub fn get(&self, epoch: Epoch) -> Option<&Configuration> {
        self.0.get(&epoch).map(|(configuration, _)| configuration)
    }

    /// Returns how far it got.
    pub fn state(&self, epoch: Epoch) -> Option<State> {
        self.0.get(&epoch).map(|(_, state)| *state)
    }

    /// Takes an epoch. A store that is read again after a restart repeats what it holds.
    pub fn issue(&mut self, configuration: &Configuration) -> Result<(), String> {
        let epoch = configuration.epoch;
        if let Some(known) = self.get(epoch) {
            return match known == configuration {
                true => Ok(()),
                false => Err(format!("epoch {epoch} was another one before")),
            };
        }
        let last = self.last();
        if epoch <= last {
            return Err(format!("epoch {epoch} after {last}"));
        }
        let issued = (configuration.clone(), State::Issued);
        self.0.insert(epoch, issued);
        Ok(())
    }

    /// Moves the last epoch on; whether that is news.
    pub fn advance(&mut self, epoch: Epoch, to: State) -> Result<bool, String> {
        let last = self.last();
        let (_, state) = self.0.get_mut(&epoch).ok_or("there is no such epoch")?;
        if *state >= to {
            return Ok(false);
        }
        if epoch != last || to == State::Active && *state == State::Issued {
            return Err(format!(
                "epoch {epoch} can't become {to:?} any more, or yet"
            ));
        }
        *state = to;
        Ok(true)
    }

    /// The configurations that must promise before an epoch writes: the last active one, and every
    /// later one that is writing.
    pub fn needed_by(&self, epoch: Epoch) -> Vec<Configuration> {
        let earlier = || self.0.range(..epoch);
        let mut active = earlier().filter(|(_, (_, state))| *state == State::Active);
        let from = active.next_back().map_or(0, |(epoch, _)| *epoch);
        let needed = earlier().filter(|(e, (_, s))| **e >= from && *s >= State::Writing);
        needed
            .map(|(_, (configuration, _))| configuration.clone())
            .collect()
    }

    fn last(&self) -> Epoch {
        self.0.last_key_value().map_or(0, |(epoch, _)| *epoch)
    }
}
