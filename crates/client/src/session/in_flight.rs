// SPDX-License-Identifier: Apache-2.0
//! The session in one partition, and its requests that are not answered yet.

use std::collections::VecDeque;

use replica::parts;
use replica::parts::{MAX_COMMAND_LEN, Progress, Sending};
use replica::protocol::Status;

use crate::outcome::Refusal;

#[derive(Clone, Default)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) last_request: u64,
    /// For each request from the oldest outstanding one to the last, true if it is answered. The
    /// replicas' window limits the length of this queue, not the number outstanding: a request that
    /// is further behind the largest would be refused as stale.
    pub(super) answered: VecDeque<bool>,
    pub(super) outstanding: usize,
    /// Reads without the log that are in progress.
    pub(super) reading: usize,
    /// A command that is longer than a value and is being sent.
    pub(super) large: Option<Large>,
}

/// A command that is sent in parts, one at a time in a session. [S-PARTS]
#[derive(Clone)]
pub(super) struct Large {
    pub(super) command: Vec<u8>,
    pub(super) sending: Sending,
}

impl Session {
    /// Returns the request to which an answer with this number belongs, or `None` for an answer to
    /// a part before the last. If a part is refused, the other parts no longer matter, and
    /// `give_up` gets their numbers.
    pub(super) fn answered_request(
        &mut self,
        number: u64,
        status: Status,
        give_up: impl FnMut(u64),
    ) -> Option<u64> {
        let (request, part) = parts::split(number);
        if part.is_none() {
            return Some(request);
        }
        let large = self.large.as_mut()?;
        match large.sending.answered(number, status == Status::Ok) {
            Progress::Nothing | Progress::GoesOn => None,
            Progress::Answered => {
                large.sending.open().for_each(give_up);
                self.large = None;
                Some(request)
            }
        }
    }

    /// Takes a command that doesn't fit a value.
    pub(super) fn submit_large(
        &mut self,
        command: &[u8],
        max_value: usize,
    ) -> Result<u64, Refusal> {
        let (len, max) = (command.len(), MAX_COMMAND_LEN);
        if len > max {
            return Err(Refusal::TooLarge { len, max });
        }
        if self.large.is_some() {
            return Err(Refusal::WindowFull);
        }
        if self.id == 0 {
            return Err(Refusal::NoSession);
        }
        let request = self.submitted();
        self.large = Some(Large {
            command: command.to_vec(),
            sending: Sending::new(request, len, max_value),
        });
        Ok(request)
    }

    pub(super) fn submitted(&mut self) -> u64 {
        self.last_request += 1;
        self.answered.push_back(false);
        self.outstanding += 1;
        self.last_request
    }

    pub(super) fn oldest(&self) -> u64 {
        self.last_request + 1 - self.answered.len() as u64
    }

    pub(super) fn complete(&mut self, request: u64) {
        let at = request.checked_sub(self.oldest()).map(|at| at as usize);
        if let Some(answered) = at.and_then(|at| self.answered.get_mut(at)) {
            self.outstanding -= usize::from(!std::mem::replace(answered, true));
        }
        while self.answered.front() == Some(&true) {
            self.answered.pop_front();
        }
    }
}
