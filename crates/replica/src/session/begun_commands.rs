// SPDX-License-Identifier: Apache-2.0
//! Commands that the application has begun and answers later. [X-GATHER]

use super::reply_route::first;
use super::window::Judgement;
use super::{At, Sessions};
use crate::application::{Application, Error};
use crate::parts;
use crate::protocol::CommandPlace;
use crate::reply::{Dependency, Replies};

/// A command that was begun and isn't recorded yet.
pub(super) struct Begun {
    at: At,
    client: u64,
    request: u64,
    /// The command was passed, so the application doesn't answer it.
    is_passed: bool,
}

impl Sessions {
    /// Begins a command if it is whole and takes effect now; its answer comes by
    /// [`Sessions::answered`], but it counts as executed at once. Any other command gives `None`:
    /// call [`Sessions::command`] for it once everything that was begun is answered. [X-GATHER]
    pub fn begin(
        &mut self,
        at: At,
        (client, request): (u64, u64),
        bytes: &[u8],
        app: &mut impl Application,
    ) -> Option<Result<(), Error>> {
        let session = self.open.get_mut(&client)?;
        let is_whole = parts::split(request).1.is_none();
        let slot = session.request(request);
        if !is_whole || !matches!(session.judge(slot), Judgement::Execute) {
            return None;
        }
        self.book.touch(client, session, at.inst, at.now);
        session.head.max = session.head.max.max(request);
        session.slot_mut(slot).request = request;
        let passed = match session.is_answered_elsewhere(self.node) {
            true => app.pass(bytes),
            false => Ok(false),
        };
        let begun = passed.and_then(|is_passed| {
            self.begun.push_back(Begun {
                at,
                client,
                request,
                is_passed,
            });
            self.passed += usize::from(is_passed);
            if is_passed {
                return Ok(());
            }
            app.begin(bytes)
        });
        Some(begun)
    }

    /// Returns the place of the command that was given to the application behind `before` other
    /// ones whose answers weren't taken.
    pub fn begun_at(&self, before: usize) -> Option<CommandPlace> {
        let mut given = self.begun.iter().filter(|begun| !begun.is_passed);
        given.nth(before).map(|begun| begun.at.place())
    }

    /// Returns how many commands were begun, or passed behind such commands, and aren't recorded.
    pub fn begun(&self) -> usize {
        self.begun.len()
    }

    /// Returns how many of the begun commands the application has to answer.
    pub fn awaited(&self) -> usize {
        self.begun.len() - self.passed
    }

    /// Records the commands that were passed, up to the next one that the application answers.
    pub fn record_passed(&mut self) {
        while self.begun.front().is_some_and(|begun| begun.is_passed) {
            let Some(begun) = self.begun.pop_front() else {
                return;
            };
            self.passed -= 1;
            let session = self.open.get_mut(&begun.client);
            let session = session.expect("nothing is closed while a command of it waits");
            let slot = session.request(begun.request);
            self.book.record_pass(begun.client, session, begun.at, slot);
        }
    }

    /// Records the application's answer to the first command that was begun, and sends it. It
    /// returns false if no command was begun. [X-GATHER]
    pub fn answered(&mut self, reply: &[u8], replies: &mut Replies) -> bool {
        let Some(Begun {
            at,
            client,
            request,
            ..
        }) = self.begun.pop_front()
        else {
            return false;
        };
        let session = self.open.get_mut(&client);
        let session = session.expect("nothing is closed while a command of it waits");
        replies.dependency = Dependency::Slot(at.inst);
        let slot = session.request(request);
        self.book.record(client, session, at, slot, reply);
        if let Some(to) = first(&session.head.reply_to, self.node, replies.answers) {
            self.book
                .answer(session, to, (client, request), reply, replies);
        }
        self.record_passed();
        true
    }
}
