// SPDX-License-Identifier: Apache-2.0
//! Messages: those that clients get, and those of the front ends to one another.

use std::time::Instant;

use apps::redis::{Event, Message, put_call};
use paxos::PartitionId;

use crate::log::Plane;
use crate::mailbox::Mail;
use crate::metrics::Metrics;
use crate::pubsub::channels::Round;
use crate::pubsub::jobs::Job;
use crate::pubsub::{channels, survey};
use crate::server::Server;
use crate::server::peer::Peer;
use crate::state::client::Client;
use crate::state::waiter::Waiter;
use crate::turns::LOOK_UP;

impl<P: Plane> Server<P> {
    pub(super) fn on_news(&mut self, pid: PartitionId, event: &Event) {
        match event {
            Event::Changed(key) => self.shared.waits.borrow_mut().changed(key),
            Event::AnyChanged => self.shared.waits.borrow_mut().any_changed(pid, false),
            Event::Message(message) if message.is_of_front_ends() => {}
            Event::Message(message) => self.deliver(message),
            Event::Leapt => {
                self.shared.waits.borrow_mut().any_changed(pid, true);
                self.end_subscribers();
            }
        }
    }

    fn deliver(&mut self, message: &Message) {
        let job = Job::Deliver {
            message: message.clone(),
            round: Round::default(),
        };
        self.push_message(job);
    }

    fn push_message(&mut self, job: Job) {
        let has_room = self.shared.jobs.borrow_mut().push(job);
        if !has_room {
            self.end_subscribers();
            self.shared.channels.borrow_mut().audience().leapt();
        }
    }

    /// Hands a message out until the turn is over; returns true if everybody has got it.
    pub(super) fn hand_out(&mut self, message: &Message, round: &mut Round) -> bool {
        let Server {
            peers,
            again,
            shared,
            ..
        } = self;
        let (channels, turn) = (shared.channels.borrow(), &shared.turn);
        let to = (message.channel.as_slice(), message.is_sharded);
        channels.go_on(round, to, turn, |mut found| {
            while !turn.is_over() {
                let Some(waiter) = found.next() else {
                    return true;
                };
                turn.spend(LOOK_UP);
                let Some(peer) = peers.of(waiter).filter(|peer| peer.is_there()) else {
                    continue;
                };
                let connection = &mut peer.connection;
                let resp3 = connection.client.resp3;
                let frame = channels::frame(found.kind, found.pattern, message, resp3);
                turn.copy(2 * frame.len());
                connection.push_message(frame);
                if connection.answer_bytes() > connection.output_limit(shared) {
                    Metrics::add(&shared.metrics.output_limit_reached);
                    peer.abandon();
                }
                if again.last() != Some(&waiter.index) {
                    again.push(waiter.index);
                }
            }
            false
        })
    }

    /// Ends the connections of all subscribers, because messages were missed. A broken connection
    /// tells them so, as with any other server.
    fn end_subscribers(&mut self) {
        for (index, peer) in self.peers.iter_mut() {
            if !peer.connection.client.subscriptions.is_empty() {
                peer.abandon();
                self.again.push(index);
            }
        }
    }

    /// Queues the other front ends' messages before any answer is taken: a client that asks for
    /// counts relies on what was said before. [S-AUDIENCE]
    pub(super) fn hear(&mut self, mail: &Mail) {
        for (pid, event) in &mail.news {
            match event {
                Event::Message(message) if message.is_of_front_ends() => {
                    let text = message.text.clone();
                    self.push_message(Job::Hear { text, at: 0 });
                }
                Event::Leapt if *pid == 0 => self.shared.channels.borrow_mut().audience().leapt(),
                _ => {}
            }
        }
    }

    /// Sends the message that is due to the other front ends, over the front end's own connection.
    pub(super) fn tell_others(&mut self, now: Instant) {
        let confirmed = self.herald.take_confirmed(&self.shared, now);
        self.again.extend(confirmed);
        let (Some(native), None) = (&self.shared.native, self.stop_at) else {
            return;
        };
        self.shared.turn.begin();
        let mut channels = self.shared.channels.borrow_mut();
        let Some(text) = channels.say(now, &self.shared.turn) else {
            return;
        };
        drop(channels);
        let mut bytes = Vec::new();
        let message = survey::message(&text);
        put_call(&mut bytes, native.stamp(), false, &message);
        let own = self.own_place();
        let peer = self.peers.of(own).expect("it is told when it ends");
        peer.connection.say(bytes, &self.shared);
        self.pump(own.index);
    }

    /// Returns the place of the front end's own connection, which is made if there is none.
    fn own_place(&mut self) -> Waiter {
        if let Some(own) = self.herald.place() {
            return own;
        }
        let index = self.peers.place();
        self.last_client += 1;
        let client = self.last_client;
        let here = self.shared.this.address;
        let own = Waiter { index, client };
        let client = Client::new(client, index, here, here);
        self.peers.put(index, Box::new(Peer::new(client, None)));
        self.herald.begin(own);
        own
    }
}
