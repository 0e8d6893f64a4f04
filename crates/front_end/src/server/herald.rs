// SPDX-License-Identifier: Apache-2.0
//! The front end's own connection, which has no client: it writes the messages about subscribers
//! for the other front ends.
//!
//! The answer to SUBSCRIBE leaves once the other front ends can know of it, or after a moment if
//! the log takes longer. [S-AUDIENCE]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::shared::Shared;
use crate::state::client::Client;
use crate::state::waiter::Waiter;

/// The answer to SUBSCRIBE waits no longer than this.
const LONGEST: Duration = Duration::from_secs(1);

/// The wait of one connection's answers, if they wait: until when, and for how many changes to be
/// in the log. `done` is the number of changes for which the wait is over.
#[derive(Default)]
pub(crate) struct Confirmation {
    until: Option<Instant>,
    awaited: u64,
    done: u64,
}

/// The place of the front end's own connection, and the connections whose answers wait for its
/// messages.
#[derive(Default)]
pub(crate) struct Herald {
    place: Option<Waiter>,
    /// The connections whose answers wait, each with the end of its wait. All wait equally long, so
    /// the first one ends first.
    waiting: VecDeque<(Instant, u64, Waiter)>,
}

impl Herald {
    /// Returns true if the front end has its own connection now.
    pub fn is_there(&self) -> bool {
        self.place.is_some()
    }

    /// Returns the place of the front end's own connection.
    pub fn place(&self) -> Option<Waiter> {
        self.place
    }

    /// Notes the place of the front end's own connection.
    pub fn begin(&mut self, place: Waiter) {
        self.place = Some(place);
    }

    /// Notes that a connection is gone; returns true if it was the front end's own.
    pub fn ends(&mut self, whose: Waiter) -> bool {
        let is_it = self.place == Some(whose);
        if is_it {
            self.place = None;
        }
        is_it
    }

    /// Returns true if a client's answers must still wait, because the other front ends may not
    /// know yet what it has subscribed to.
    pub fn keeps(&mut self, client: &Client, of: &mut Confirmation, shared: &Shared) -> bool {
        let (changes, now) = (client.changes, Instant::now());
        let is_over = of.until.is_some_and(|until| until <= now);
        if changes <= of.done || is_over || shared.channels.borrow_mut().audience().knows(changes) {
            *of = Confirmation {
                done: changes,
                ..Confirmation::default()
            };
            return false;
        }
        let until = *of.until.get_or_insert(now + LONGEST);
        if of.awaited != changes {
            of.awaited = changes;
            self.waiting.push_back((until, changes, client.waiter()));
        }
        true
    }

    /// Removes and returns the connections whose answers need wait no longer.
    pub fn take_confirmed(&mut self, shared: &Shared, now: Instant) -> Vec<usize> {
        let mut channels = shared.channels.borrow_mut();
        let audience = channels.audience();
        let mut taken = Vec::new();
        while let Some((until, changes, whose)) = self.waiting.front() {
            if now < *until && !audience.knows(*changes) {
                break;
            }
            taken.push(whose.index);
            self.waiting.pop_front();
        }
        taken
    }

    /// Returns when [`take_confirmed`](Self::take_confirmed) or
    /// [`say`](crate::pubsub::channels::Channels::say) next has something to do.
    pub fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(until, ..)| *until);
        let says = shared.channels.borrow().deadline();
        waiting.into_iter().chain(says).min()
    }
}
