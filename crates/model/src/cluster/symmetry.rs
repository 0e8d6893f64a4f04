// SPDX-License-Identifier: Apache-2.0
//! States that differ by an exchange of equal acceptors: their fingerprints.

use super::{Cluster, FIRST, MAX_SYMMETRIES, NOTHING, Origin, State};
use crate::explore::{Fingerprint, Mixer};
use crate::network::{ActorId, MessageId};
use crate::systems::System;

impl<S: System> Cluster<S> {
    fn exchanged_place(&self, symmetry: usize, place: ActorId) -> ActorId {
        let way = &self.symmetries[symmetry];
        way.get(usize::from(place)).copied().unwrap_or(place)
    }

    /// Returns the number of the exchanged form of an actor's state.
    fn exchanged_actor(&mut self, symmetry: usize, number: u32) -> u32 {
        if symmetry == 0 {
            return number;
        }
        if let Some(&known) = self.exchanged_actors[symmetry].get(&number) {
            return known;
        }
        let (place, origin) = self.origins[number as usize];
        let place = self.exchanged_place(symmetry, place);
        let exchanged = match origin {
            // Actors begin in the order of their places.
            Origin::Start => u32::from(place),
            Origin::Message(from, id) => {
                let from = self.exchanged_actor(symmetry, from);
                let id = self.exchanged_message(symmetry, id);
                let step = self.deliver(place, from, id);
                self.next_of(step, from)
            }
            Origin::Local(from, at) => {
                let from = self.exchanged_actor(symmetry, from);
                let step = self.happen(at, from);
                self.next_of(step, from)
            }
        };
        self.exchanged_actors[symmetry].insert(number, exchanged);
        exchanged
    }

    pub(super) fn next_of(&self, step: u32, before: u32) -> u32 {
        match step {
            NOTHING => before,
            step => self.steps[(step - FIRST) as usize].next,
        }
    }

    fn exchanged_message(&mut self, symmetry: usize, id: MessageId) -> MessageId {
        if symmetry == 0 {
            return id;
        }
        let known = self.exchanged_messages[symmetry].get(usize::from(id));
        if let Some(&known) = known.filter(|known| **known != MessageId::MAX) {
            return known;
        }
        let message = self.messages.get(id).clone();
        let message = self.system.exchanged(&self.symmetries[symmetry], message);
        let exchanged = self.post(message);
        let row = &mut self.exchanged_messages[symmetry];
        if row.len() <= usize::from(id) {
            row.resize(usize::from(id) + 1, MessageId::MAX);
        }
        row[usize::from(id)] = exchanged;
        exchanged
    }

    pub(super) fn print_of_message(&mut self, symmetry: usize, id: MessageId) -> Fingerprint {
        let at = usize::from(id);
        if let Some(&known) = self.message_prints[symmetry].get(at).filter(|p| **p != 0) {
            return known;
        }
        let exchanged = self.exchanged_message(symmetry, id);
        remember(
            &mut self.message_prints[symmetry],
            at,
            print(1, exchanged.into()),
        )
    }

    pub(super) fn print_of_actor(&mut self, symmetry: usize, number: u32) -> Fingerprint {
        let at = number as usize;
        if let Some(&known) = self.actor_prints[symmetry].get(at).filter(|p| **p != 0) {
            return known;
        }
        let exchanged = self.exchanged_actor(symmetry, number);
        remember(
            &mut self.actor_prints[symmetry],
            at,
            print(2, exchanged.into()),
        )
    }

    /// Returns the fingerprints after a step.
    pub(super) fn prints_after(
        &mut self,
        state: &State,
        place: ActorId,
        step: u32,
        used: u32,
    ) -> [Fingerprint; MAX_SYMMETRIES] {
        let before = state.actors[usize::from(place)];
        let next = self.next_of(step, before);
        let mut prints = state.prints;
        for (symmetry, print_of) in prints.iter_mut().enumerate().take(self.symmetries.len()) {
            let mut sum = *print_of;
            if next != before {
                let removed = self.print_of_actor(symmetry, before);
                let added = self.print_of_actor(symmetry, next);
                sum = sum.wrapping_sub(removed).wrapping_add(added);
            }
            if used != state.used {
                sum = sum
                    .wrapping_sub(print(3, state.used.into()))
                    .wrapping_add(print(3, used.into()));
            }
            if step != NOTHING {
                for at in 0..self.steps[(step - FIRST) as usize].sends.len() {
                    let id = self.steps[(step - FIRST) as usize].sends[at];
                    if state.sent.binary_search(&id).is_err() {
                        sum = sum.wrapping_add(self.print_of_message(symmetry, id));
                    }
                }
            }
            *print_of = sum;
        }
        prints
    }

    pub(super) fn least(&self, prints: &[Fingerprint; MAX_SYMMETRIES]) -> Fingerprint {
        let prints = prints[..self.symmetries.len()].iter();
        prints.copied().min().expect("the identity is there")
    }
}

fn remember(row: &mut Vec<Fingerprint>, at: usize, print: Fingerprint) -> Fingerprint {
    if row.len() <= at {
        row.resize(at + 1, 0);
    }
    row[at] = print;
    print
}

/// Returns the number of one part of a state.
pub(super) fn print(kind: u64, part: u64) -> Fingerprint {
    let mut mixer = Mixer::default();
    mixer.word(kind << 32 | part);
    mixer.word(part);
    mixer.finish()
}
