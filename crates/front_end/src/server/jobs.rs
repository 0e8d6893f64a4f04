// SPDX-License-Identifier: Apache-2.0
//! Work that belongs to no connection's turn: jobs, and waits that end.

use std::time::Instant;

use crate::log::Plane;
use crate::pubsub::jobs::{Job, Jobs};
use crate::server::Server;
use crate::turns::LOOK_UP;
use crate::waits::Act;

impl<P: Plane> Server<P> {
    /// Continues the jobs that belong to no connection's turn.
    pub(super) fn do_jobs(&mut self) {
        self.shared.turn.begin();
        let mut channels = self.shared.channels.borrow_mut();
        channels.audience().forget_silent(Instant::now());
        channels.audience().tidy(&self.shared.turn);
        drop(channels);
        self.do_each(Jobs::pop, Jobs::put_back);
        self.do_each(Jobs::pop_aside, Jobs::put_aside);
    }

    fn do_each(&mut self, pop: fn(&mut Jobs) -> Option<Job>, put_back: fn(&mut Jobs, Job)) {
        self.shared.turn.begin();
        while !self.shared.turn.is_over() {
            let Some(job) = pop(&mut self.shared.jobs.borrow_mut()) else {
                return;
            };
            if let Some(job) = self.go_on_with(job) {
                put_back(&mut self.shared.jobs.borrow_mut(), job);
            }
        }
    }

    /// Continues one job; returns it if it isn't done.
    fn go_on_with(&mut self, mut job: Job) -> Option<Job> {
        let turn = &self.shared.turn;
        let is_done = match &mut job {
            Job::Deliver { message, round } => self.hand_out(message, round),
            Job::Hear { text, at } => {
                let mut channels = self.shared.channels.borrow_mut();
                channels.audience().hear(text, at, Instant::now(), turn)
            }
            Job::Count {
                asker,
                number,
                survey,
            } => {
                let peer = self.peers.of(*asker)?;
                let is_gone = !peer.is_there();
                let is_done = is_gone || survey.go_on(&self.shared.channels.borrow(), turn);
                if is_done {
                    peer.connection.on_counted(*number, survey, &self.shared);
                    self.again.push(asker.index);
                }
                is_done
            }
            Job::Fill {
                asker,
                number,
                filling,
            } => {
                let peer = self.peers.of(*asker)?;
                let is_gone = !peer.is_there();
                let is_done = is_gone || filling.go_on(&self.shared.channels.borrow(), turn);
                if is_done {
                    peer.connection.on_filled(*number, filling, &self.shared);
                    self.again.push(asker.index);
                }
                is_done
            }
            Job::Leave {
                client,
                subscriptions,
            } => {
                let mut channels = self.shared.channels.borrow_mut();
                channels.leave(subscriptions, *client, turn)
            }
        };
        (!is_done).then_some(job)
    }

    /// Lets waiting clients try again, or ends their wait.
    pub(super) fn act_on_waits(&mut self, now: Instant) {
        self.shared.turn.begin();
        let mut waits = self.shared.waits.borrow_mut();
        waits.go_on(now, &self.shared.turn);
        drop(waits);
        self.shared.turn.begin();
        while !self.shared.turn.is_over() {
            let act = self.shared.waits.borrow_mut().next_act();
            let Some((waiter, act)) = act else { return };
            self.shared.turn.spend(LOOK_UP);
            let peer = self.peers.of(waiter);
            let goes_on = match (peer, act) {
                (None, _) => false,
                (Some(peer), Act::Try(first)) => peer.connection.try_wait(&first, &self.shared),
                (Some(peer), Act::Answer(answer)) => {
                    peer.connection.wait_is_over(&answer, &self.shared);
                    true
                }
            };
            match goes_on {
                true => self.again.push(waiter.index),
                false => self.shared.waits.borrow_mut().leave(waiter.client),
            }
        }
    }
}
