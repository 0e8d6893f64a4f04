// SPDX-License-Identifier: Apache-2.0
//! The possible memories of an acceptor.
//!
//! A durable one that was killed may have lost the end of its log, as far as nobody has seen an
//! answer to it. So after a restart there are several possible memories, one for each place where
//! the log may end. The acceptor's later answers show which of them are wrong.

use std::collections::VecDeque;

use paxos::acceptor::Start;
use paxos::wire::value::ProbeReport;
use paxos::{Enable, MsgType, Packet};

use super::acceptor::Acceptor;
use super::answer::Sender;

pub(super) struct Memory {
    sender: Sender,
    /// Never empty, while nothing was sent that isn't allowed.
    ideas: Vec<Idea>,
    /// An old copy of it was put back: it may show what it likes to PROBE, and must never go on.
    forgot: bool,
}

struct Idea {
    now: Acceptor,
    /// Answers earned and not yet sent, each with the number of the input that earned it.
    earned: Vec<(u64, Vec<u8>)>,
    /// How many inputs there were.
    inputs: u64,
    /// The memory as it must be at least: after the last input to which an answer was sent.
    shown: Acceptor,
    /// The inputs after that one.
    since: VecDeque<Input>,
}

enum Input {
    Packet(Vec<u8>),
    Enable(Enable),
    Resume(Start),
}

impl Memory {
    /// Creates the memory of a stranger.
    pub fn empty(sender: Sender, nonce: u64, start: Start) -> Memory {
        let stranger = Acceptor::stranger(nonce, start, sender.settings.slots);
        Memory {
            sender,
            ideas: vec![Idea::of(stranger)],
            forgot: false,
        }
    }

    /// Returns its boot nonce.
    pub fn nonce(&self) -> u64 {
        self.ideas[0].now.nonce()
    }

    /// Lets a new process continue with what is stored.
    pub fn restart(&mut self, start: Start) {
        self.forgot |= start.count() <= self.ideas[0].now.start().count();
        let ideas = std::mem::take(&mut self.ideas);
        let restarted = ideas.into_iter().flat_map(|idea| idea.restarted(start));
        self.ideas = restarted.collect();
    }

    /// Notes that the controller lets the memory go on.
    pub fn resume(&mut self, start: Start) -> Result<(), String> {
        if self.forgot {
            return Err("a memory that has forgotten is let go on".to_owned());
        }
        for idea in &mut self.ideas {
            idea.now.resume(start);
            idea.note(Input::Resume(start), None);
        }
        Ok(())
    }

    /// Notes that an order has arrived.
    pub fn enable(&mut self, enable: &Enable) {
        for idea in &mut self.ideas {
            idea.now.enable(enable);
            idea.note(Input::Enable(enable.clone()), None);
        }
    }

    /// Notes that a packet has arrived, which came as `datagram`.
    pub fn receive(&mut self, packet: &Packet<'_>, datagram: &[u8]) {
        for idea in &mut self.ideas {
            let answer = idea.now.answer(packet);
            let answer = answer.map(|answer| self.sender.datagram(packet, answer));
            idea.note(Input::Packet(datagram.to_vec()), answer);
        }
    }

    /// Returns whether it may send this now. If not, there is nothing more to say about it.
    pub fn may_send(&mut self, datagram: &[u8]) -> bool {
        let earned = |idea: &Idea| idea.earned.iter().any(|(_, bytes)| bytes == datagram);
        if shows_mute(datagram) && !self.ideas.iter().any(earned) {
            self.forgot = true;
            return true;
        }
        self.ideas.retain_mut(|idea| idea.may_send(datagram));
        !self.ideas.is_empty()
    }
}

/// Returns whether this is what a mute memory answers to PROBE.
fn shows_mute(datagram: &[u8]) -> bool {
    let packet = Packet::parse(datagram).ok();
    let packet = packet.filter(|p| p.header.msgtype == MsgType::ProbeAck);
    let report = packet.and_then(|p| ProbeReport::parse(p.value).ok());
    let start = report.and_then(|report| Start::from_shown(report.start));
    start.is_some_and(|(_, mute)| mute)
}

impl Idea {
    fn of(memory: Acceptor) -> Idea {
        Idea {
            now: memory.clone(),
            earned: Vec::new(),
            inputs: 0,
            shown: memory,
            since: VecDeque::new(),
        }
    }

    fn note(&mut self, input: Input, answer: Option<Vec<u8>>) {
        self.inputs += 1;
        self.since.push_back(input);
        self.earned.extend(answer.map(|bytes| (self.inputs, bytes)));
    }

    fn may_send(&mut self, datagram: &[u8]) -> bool {
        let Some(at) = self.earned.iter().position(|(_, bytes)| bytes == datagram) else {
            return false;
        };
        let (input, _) = self.earned.remove(at);
        while self.inputs - (self.since.len() as u64) < input {
            let next = self.since.pop_front().expect("as many as inputs");
            next.give_to(&mut self.shown);
        }
        true
    }

    /// Returns what may be left of it.
    fn restarted(self, start: Start) -> Vec<Idea> {
        let mut memories = vec![self.shown];
        for input in self.since {
            let mut longer = memories[memories.len() - 1].clone();
            input.give_to(&mut longer);
            if memories.last() != Some(&longer) {
                memories.push(longer);
            }
        }
        for memory in &mut memories {
            memory.restart(start);
        }
        memories.into_iter().map(Idea::of).collect()
    }
}

impl Input {
    fn give_to(&self, acceptor: &mut Acceptor) {
        match self {
            Input::Packet(datagram) => {
                let packet = Packet::parse(datagram).expect("it was received");
                acceptor.answer(&packet);
            }
            Input::Enable(enable) => acceptor.enable(enable),
            Input::Resume(start) => acceptor.resume(*start),
        }
    }
}
