// SPDX-License-Identifier: Apache-2.0
//! Checks the properties that must hold, by what replicas commit and clients see alone.

use std::collections::BTreeMap;

use paxos::wire::value::packed_items;
use paxos::{Flags, Instance, NodeId, Time, mix};
use replica::Decided;

/// The state of the application: how many commands have taken effect, and which, in which order.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    pub total: u64,
    pub chain: u64,
}

impl Tally {
    pub fn execute(&mut self, command: &[u8]) {
        let number = u64::from_be_bytes(command.try_into().expect("commands are numbers"));
        self.total += 1;
        self.chain = mix(self.chain ^ number.rotate_left(17));
    }

    /// Returns what the command that led here is answered.
    pub fn answer(&self) -> Vec<u8> {
        [self.total.to_be_bytes(), self.chain.to_be_bytes()].concat()
    }
}

/// A value with its place.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Value {
    flags: u16,
    client: u64,
    request: u64,
    bytes: Vec<u8>,
}

/// The judge of a run, as this module describes.
#[derive(Default)]
pub struct Judge {
    committed: Vec<Value>,
    /// How far each replica was looked at.
    seen: BTreeMap<NodeId, Instance>,
    state: Tally,
    /// Sessions by the number that named their opening.
    sessions: BTreeMap<u64, u64>,
    answers: BTreeMap<(u64, u64), Tally>,
    /// For each finished command: when it was sent, when it was answered, and its place in the
    /// order.
    finished: Vec<(Time, Time, u64)>,
    to_check: Vec<(Time, Time, u64, u64, Vec<u8>)>,
}

impl Judge {
    pub fn seen(&self, replica: NodeId) -> Instance {
        self.seen.get(&replica).copied().unwrap_or(0)
    }

    /// Returns how many slots are committed.
    pub fn slots(&self) -> usize {
        self.committed.len()
    }

    /// Returns how many commands took effect.
    pub fn total(&self) -> Tally {
        self.state
    }

    /// Notes that a replica holds this for committed: all that say anything of that slot must
    /// agree.
    pub fn committed(&mut self, replica: NodeId, value: &Decided<'_>) {
        assert_eq!(value.inst, self.seen(replica));
        self.seen.insert(replica, value.inst + 1);
        let here = Value {
            flags: value.flags.0,
            client: value.client,
            request: value.request,
            bytes: value.value.to_vec(),
        };
        match self.committed.get(value.inst as usize) {
            Some(known) => assert_eq!(*known, here, "slot {} at {replica}", value.inst),
            None => {
                self.execute(value);
                self.committed.push(here);
            }
        }
    }

    fn execute(&mut self, value: &Decided<'_>) {
        if value.flags.has(Flags::PACKED) {
            for (index, item) in packed_items(value.value).flatten().enumerate() {
                self.command(value.inst, index, item.client, item.request, item.bytes);
            }
        } else {
            self.command(value.inst, 0, value.client, value.request, value.value);
        }
    }

    fn command(&mut self, inst: Instance, index: usize, client: u64, request: u64, bytes: &[u8]) {
        if request == 0 {
            let id = (inst + 1) << 16 | index as u64;
            self.sessions.entry(client).or_insert(id);
            return;
        }
        let is_open = self.sessions.values().any(|id| *id == client);
        assert!(
            is_open,
            "a client used session {client:x}, which the log doesn't open"
        );
        if self.answers.contains_key(&(client, request)) {
            return;
        }
        self.state.execute(bytes);
        self.answers.insert((client, request), self.state);
    }

    /// Notes that a client was told a session's id.
    pub fn opened(&mut self, nonce: u64, id: u64) {
        if let Some(known) = self.sessions.get(&nonce) {
            assert_eq!(*known, id, "another session than the log's");
        }
    }

    /// Notes that a client was answered.
    pub fn answered(&mut self, call: Time, now: Time, client: u64, request: u64, answer: &[u8]) {
        self.to_check
            .push((call, now, client, request, answer.to_vec()));
    }

    /// Concludes the checks at the end, when everything that was asked for is committed.
    pub fn conclude(&mut self) {
        for (call, end, client, request, answer) in std::mem::take(&mut self.to_check) {
            let state = self.answers.get(&(client, request));
            let state =
                state.unwrap_or_else(|| panic!("{client:x} {request} was answered and is lost"));
            assert_eq!(state.answer(), answer, "{client:x} {request}");
            self.finished.push((call, end, state.total));
        }
        // Real time: who is asked for after another was answered comes behind it.
        let mut by_end = self.finished.clone();
        by_end.sort_by_key(|(_, end, _)| *end);
        let mut by_call = self.finished.clone();
        by_call.sort_by_key(|(call, ..)| *call);
        let (mut latest, mut ended) = (0, by_end.iter().peekable());
        for (call, _, place) in by_call {
            while let Some((_, _, before)) = ended.next_if(|(_, end, _)| *end < call) {
                latest = latest.max(*before);
            }
            assert!(
                place > latest,
                "place {place} was asked for after {latest} was answered"
            );
        }
    }
}
