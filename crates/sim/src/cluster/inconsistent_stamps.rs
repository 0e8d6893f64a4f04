// SPDX-License-Identifier: Apache-2.0
//! A deliberate mistake of a leader or sequencer: it stamps commands over several partitions in
//! each of them separately, so that two commands lie crosswise.

use paxos::wire::value::Vector;
use paxos::{Flags, Header, Instance, MsgType, Outbox, PartitionId, Round};

use super::world::Outgoing;

/// A stamped command that waits for the next one.
#[derive(Default)]
pub struct InconsistentStamps {
    held: Outgoing,
}

type Places = Vec<(PartitionId, Instance)>;

impl InconsistentStamps {
    /// Changes packets so that two commands over the same partitions exchange their places in the
    /// last one.
    pub fn spoil(&mut self, out: &mut Outgoing) {
        let Some((round, second)) = stamped(out) else {
            return;
        };
        let earlier =
            stamped(&self.held).filter(|(of, first)| *of == round && fits(first, &second));
        let Some((_, first)) = earlier else {
            return std::mem::swap(&mut self.held, out);
        };
        let mut crossed = Outgoing::default();
        exchange(&self.held, &second, &mut crossed);
        exchange(out, &first, &mut crossed);
        self.held.clear();
        *out = crossed;
    }
}

/// Returns the round and the places of a command over several partitions, if one is sent.
fn stamped(out: &Outgoing) -> Option<(Round, Places)> {
    let is_copy = |h: &Header| {
        matches!(h.msgtype, MsgType::Phase2a | MsgType::Ordered) && h.flags.has(Flags::MULTI)
    };
    let (_, header, value) = out.iter().find(|(_, header, _)| is_copy(header))?;
    Some((header.rnd, Vector::parse(value).ok()?.iter().collect()))
}

fn fits(first: &Places, second: &Places) -> bool {
    let pids = |places: &Places| -> Vec<PartitionId> { places.iter().map(|(p, _)| *p).collect() };
    pids(first) == pids(second)
}

/// Returns the copies of one command, with the other one's place in the last partition.
fn exchange(copies: &Outgoing, other: &Places, to: &mut Outgoing) {
    let (last, inst) = other[other.len() - 1];
    let places = stamped(copies).map_or(Places::new(), |(_, places)| places);
    let place = |of: PartitionId| match of == last {
        true => inst,
        false => places.iter().find(|(pid, _)| *pid == of).map_or(0, |p| p.1),
    };
    for (receiver, header, value) in copies.iter() {
        let (mut header, mut value) = (*header, value.to_vec());
        Vector::stamp(&mut value, header.rnd, place);
        header.inst = place(header.pid);
        to.send(receiver, &header, &value);
    }
}
