// SPDX-License-Identifier: Apache-2.0
//! A command of the connection that waits for something to appear: it is tried, and then stands in
//! line until it can be tried again.

use replica::Status;

use crate::answer::served::Served;
use crate::answer::{Shape, lost};
use crate::connection::Connection;
use crate::connection::blocked::Blocked;
use crate::log::lane::Logged;
use crate::metrics::Metrics;
use crate::resp::Writer;
use crate::shared::Shared;
use crate::turns::LOOK_UP;
use crate::waits::waiting::{Tried, Waiting};

impl Connection {
    /// Begins the wait of a command for something to appear. If it needs the last ids of streams,
    /// it asks for those first.
    pub(super) fn begin_wait(&mut self, mut waiting: Box<Waiting>, shared: &Shared) {
        let is_shown = self.client.silence.answers();
        waiting.number = self.wait_for_answer(Shape::Served(Served::Tried), is_shown);
        let is_unknown = waiting.is_unknown();
        self.blocked = Blocked::Wait(waiting);
        match is_unknown {
            true => {
                self.try_wait(&[], shared);
            }
            false => self.stand_in_line(shared),
        }
    }

    fn stand_in_line(&mut self, shared: &Shared) {
        let Blocked::Wait(waiting) = &mut self.blocked else {
            return;
        };
        waiting.tries = false;
        let (number, waiter) = (waiting.number, self.client.waiter());
        let begun = shared.waits.borrow_mut().begin(
            waiter,
            waiting.question(),
            &waiting.keys,
            waiting.deadline,
        );
        if let Err(why) = begun {
            self.blocked = Blocked::Nothing;
            self.answer(number, shared, |writer| writer.error(why));
        }
    }

    /// Tries the waiting command once more, with the changed keys `first` before its others.
    /// Returns false if no command waits any more.
    pub fn try_wait(&mut self, first: &[Vec<u8>], shared: &Shared) -> bool {
        let (Blocked::Wait(waiting), Some(native)) = (&mut self.blocked, &shared.native) else {
            return false;
        };
        shared.turn.spend(LOOK_UP * waiting.keys.len());
        let bytes = waiting.encode(native.stamp(), first);
        shared.turn.copy(bytes.len());
        let reads = waiting.is_read && !waiting.is_unknown() && shared.without_log;
        waiting.tries = true;
        if !reads {
            Metrics::add(&shared.metrics.logged);
        }
        let logged = Logged {
            reads,
            ..Logged::new(waiting.number, waiting.partitions, bytes)
        };
        self.orders.push(logged, shared);
        true
    }

    /// Takes the answer to a try of the waiting command: the command is answered, or continues to
    /// wait.
    pub(super) fn on_tried(&mut self, answer: Result<&[u8], Option<Status>>, shared: &Shared) {
        let Blocked::Wait(waiting) = &mut self.blocked else {
            return;
        };
        let (number, client) = (waiting.number, self.client.id);
        waiting.tries = false;
        match answer.map(|bytes| waiting.tried(bytes)) {
            Ok(Tried::Ready) => self.stand_in_line(shared),
            Ok(Tried::Nothing(nothing)) => {
                shared.waits.borrow_mut().found_nothing(client, nothing);
            }
            Ok(Tried::Something(bytes)) => {
                let bytes = bytes.to_vec();
                self.end_wait(number, shared, |writer| writer.out.extend(bytes));
            }
            Err(status) => self.end_wait(number, shared, |writer| lost::show(writer, status)),
        }
    }

    fn end_wait(&mut self, number: u64, shared: &Shared, write: impl FnOnce(&mut Writer<'_>)) {
        self.blocked = Blocked::Nothing;
        shared.waits.borrow_mut().served(self.client.id);
        self.answer(number, shared, write);
    }

    /// Ends the wait with `answer`, because nothing has appeared.
    pub fn wait_is_over(&mut self, answer: &[u8], shared: &Shared) {
        if let Some(number) = self.blocked.waiting().map(|waiting| waiting.number) {
            self.blocked = Blocked::Nothing;
            self.answer(number, shared, |writer| writer.out.extend(answer));
        }
    }

    /// Returns true if a command waits for a client that is gone and isn't being tried, so that the
    /// wait can end.
    pub fn waits_in_vain(&self) -> bool {
        let is_gone = self.input.is_at_end() || self.ended;
        is_gone && self.blocked.waiting().is_some_and(|waiting| !waiting.tries)
    }
}
