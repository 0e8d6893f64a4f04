// SPDX-License-Identifier: Apache-2.0
//! What a server tells beside its answers: messages that its scripts publish, and [events of
//! keys](super::notifications). One connection, the ear, gets them all.

use replica::Error;

use super::catalogue::Spec;
use super::news::Message;
use super::notifications::{Notifications, SETTING};
use super::replay_log::Batch;
use super::resp::put_error;
use super::server::{Dead, Server};
use super::state::Replicated;

impl Server {
    /// Says which events of keys are wanted from now on. Events of before are dropped.
    pub(super) fn notify(&mut self, wanted: Notifications) -> Result<(), Dead> {
        if wanted == self.notifies {
            return Ok(());
        }
        self.order(&[b"CONFIG", b"SET", SETTING.as_bytes(), &wanted.letters()])?;
        self.notifies = wanted;
        self.hear(|_| {})?;
        self.listens = true;
        Ok(())
    }

    /// Returns whether the server tells of keys.
    pub(super) fn notifies(&self) -> bool {
        self.notifies != Notifications::default()
    }

    /// Says whether messages that are published from now on are wanted.
    pub(super) fn listen(&mut self, listens: bool) -> Result<(), Dead> {
        match (self.listens, listens) {
            (true, true) => Ok(()),
            (_, false) => {
                self.listens = false;
                self.ear.drop_arrived()
            }
            (false, true) => self.hear(|_| {}).map(|()| self.listens = true),
        }
    }

    /// Shows all messages that have been published since the last call.
    pub(super) fn hear(&mut self, mut show: impl FnMut(&[u8])) -> Result<(), Dead> {
        // The server has sent all messages when it answers this.
        self.ear.put(b"PING\r\n");
        self.ear.send()?;
        let mut told = Vec::new();
        loop {
            told.clear();
            self.ear.receive(&mut told)?;
            if told.starts_with(b"*2\r\n$4\r\npong") {
                return Ok(());
            }
            show(&told);
        }
    }
}

impl Replicated {
    /// Executes CONFIG SET of the flags.
    pub(super) fn configure(
        &mut self,
        asked: Result<Notifications, &str>,
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match asked {
            Ok(flags) => {
                self.notifications = flags;
                self.show_notifications();
                reply.extend_from_slice(b"+OK\r\n");
                self.follow_listeners()
            }
            Err(why) => {
                put_error(reply, why);
                Ok(())
            }
        }
    }

    /// Shows the flags to the front end and to the other partitions.
    pub(super) fn show_notifications(&self) {
        if self.voice.home.pid == 0 {
            self.voice.news.notify(self.notifications);
        }
    }

    /// Lets the server tell what is wanted at present.
    pub(super) fn follow_listeners(&mut self) -> Result<(), Error> {
        if self.voice.wanted() == self.server.notifies {
            return Ok(());
        }
        self.settle()?;
        self.surviving(|state| state.server.notify(state.voice.wanted()))
    }

    /// Tells the events of keys that the server has reported. They have no effect on what is
    /// executed, so those of a server that dies are lost.
    pub(super) fn tell_of_keys(&mut self) -> Result<(), Error> {
        if !self.server.notifies() {
            return Ok(());
        }
        // Nothing is in flight. Reports move the clock without the server, and keys must expire.
        let (server, voice) = (&mut self.server, &self.voice);
        let heard = server
            .set_clock(self.clock.ms)
            .and_then(|()| server.hear(|told| voice.heard(told)));
        match heard {
            Ok(()) => Ok(()),
            Err(_) => self.revive(),
        }
    }

    /// Executes a message of a client without the server. Each front end counts for itself how many
    /// clients get it.
    pub(super) fn publish(&self, spec: &Spec, args: &[&[u8]], reply: &mut Vec<u8>) {
        self.voice.publish(Message {
            channel: args[1].to_vec(),
            is_sharded: spec.name == "spublish",
            text: args[2].to_vec(),
        });
        reply.extend_from_slice(b":0\r\n");
    }

    /// Executes the requests once, and returns the messages that the server has reported meanwhile.
    pub(super) fn attempt(
        &mut self,
        given: &Batch,
        room: u64,
        reply: &mut Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, Dead> {
        let server = &mut self.server;
        let hears = given.speaks && (self.voice.is_listened_to() || server.notifies());
        if given.speaks {
            server.listen(hears)?;
        }
        server.execute(given, room, reply)?;
        let mut messages = Vec::new();
        if hears {
            server.hear(|told| messages.push(told.to_vec()))?;
        }
        Ok(messages)
    }
}
