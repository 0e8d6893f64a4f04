// SPDX-License-Identifier: Apache-2.0
//! The front end's own connection, which has no client: by it the other front ends get to know who has subscribed to what.
//!
//! The answer to SUBSCRIBE leaves when they can know, or a moment later if the log takes longer. [S-AUDIENCE]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::names::Waiter;
use crate::settings::Shared;

/// How long the answer to SUBSCRIBE waits at most.
const LONGEST: Duration = Duration::from_secs(1);

/// What the answers of one connection wait for, if they do: until when, and for how many changes to be known. So many have
/// been waited for.
#[derive(Default)]
pub(crate) struct Confirmation {
    until: Option<Instant>,
    awaited: u64,
    done: u64,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Herald {
    place: Option<Waiter>,
    /// Connections whose answers wait, and until when; all wait for the same time.
    waiting: VecDeque<(Instant, u64, Waiter)>,
}

impl Herald {
    /// Whether there is such a connection.
    pub fn is_there(&self) -> bool {
        self.place.is_some()
    }

    /// Where it is.
    pub fn place(&self) -> Option<Waiter> {
        self.place
    }

    /// It is there from now on.
    pub fn begin(&mut self, place: Waiter) {
        self.place = Some(place);
    }

    /// A connection is gone; whether that was the one.
    pub fn ends(&mut self, whose: Waiter) -> bool {
        let is_it = self.place == Some(whose);
        if is_it {
            self.place = None;
        }
        is_it
    }

    /// Whether a client's answers wait for others to know what it has subscribed to.
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

    /// Those that need wait no longer.
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

    /// When [`take_confirmed`](Self::take_confirmed) or [`say`](crate::channels::Channels::say) has something to do.
    pub fn next_deadline(&self, shared: &Shared) -> Option<Instant> {
        let waiting = self.waiting.front().map(|(until, ..)| *until);
        let says = shared.channels.borrow().deadline();
        waiting.into_iter().chain(says).min()
    }
}
