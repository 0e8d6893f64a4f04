// SPDX-License-Identifier: Apache-2.0
//! What a role behind orders shows of its memory, in the words of role scripts.

use p4::order::PLACES;
use p4::role::{Port, Role, round_shown};
use paxos::learner::SlotView;
use paxos::{Flags, Instance, PartitionId, Round};
use sim::script::{self, Setup, SlotState, State};

pub fn state<P: Port>(role: &mut Role<P>, kind: script::Role, pid: PartitionId) -> Option<State> {
    let look = role.look(pid).expect("an answer");
    match kind {
        script::Role::Acceptor => Some(State::Acceptor {
            epoch: look.epoch,
            floor: look.round,
            trim: look.a,
            end: look.b,
        }),
        script::Role::Leader | script::Role::Sequencer => Some(State::Leader {
            rnd: round_shown(&look),
            next: look.a,
            trimmed: look.b,
        }),
        _ => None,
    }
}

pub fn slot<P: Port>(
    role: &mut Role<P>,
    kind: script::Role,
    pid: PartitionId,
    inst: Instance,
) -> Option<SlotState> {
    let (slot, value) = role.slot(pid, inst).expect("an answer");
    if slot.a != inst || slot.round.is_none() {
        return None;
    }
    if kind == script::Role::Learner {
        return Some(SlotState::Learner(SlotView {
            inst,
            rnd: slot.round,
            votes: (slot.d >> 16) as u32,
            client: slot.b,
            request: slot.c,
            noop: slot.d >> 8 & 0xff != 0,
            delivered: slot.d & 0xff != 0,
        }));
    }
    let trim = role.look(pid).expect("an answer").a;
    (inst >= trim).then_some(SlotState::Acceptor {
        rnd: slot.round,
        vrnd: Round(slot.epoch),
        flags: Flags((slot.d >> 16) as u16),
        client: slot.b,
        request: slot.c,
        value,
    })
}

/// Returns all of the memory as text, to compare.
pub fn fingerprint<P: Port>(role: &mut Role<P>, setup: &Setup) -> String {
    let (mut seen, mut reports) = (Vec::new(), Vec::new());
    for pid in 0..setup.deployment.partitions {
        seen.push((role.look(pid).expect("an answer"), Vec::new()));
        if setup.role != script::Role::Learner {
            for place in 0..PLACES {
                reports.push(role.report(pid, place).expect("an answer"));
            }
        }
        if matches!(setup.role, script::Role::Acceptor | script::Role::Learner) {
            for slot in 0..setup.slots {
                seen.push(role.slot(pid, slot as u64).expect("an answer"));
            }
        }
    }
    format!("{seen:?} {reports:?}")
}
