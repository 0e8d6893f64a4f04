// SPDX-License-Identifier: Apache-2.0
//! The events that happen at most once: crashes, repairs, trims, epochs.

use paxos::{Acceptor, Header, Leader, MsgType, To};

use super::Paxos;
use crate::actor::{Actor, Outputs};
use crate::bounds::Local;
use crate::mutation::Mutation;
use crate::network::{ActorId, Sent};

impl Paxos {
    pub(super) fn place_of(&self, local: &Local) -> ActorId {
        let b = &self.bounds;
        match local {
            Local::Crash { acceptor } => *acceptor,
            Local::CrashLeader { leader } => b.leader_places().start + leader,
            Local::Recover { repairer, .. } | Local::TickRepairer { repairer } => {
                b.repairer_places().start + repairer
            }
            Local::Issue { .. } | Local::TickCandidates | Local::Trim { .. } => b.control_place(),
        }
    }

    pub(super) fn carry_out(&self, local: &Local, actor: &mut Actor, out: &mut Outputs) {
        match (local, &mut *actor) {
            (Local::Issue { .. }, Actor::Control(control)) => {
                let epoch = control.store.last_epoch() + 1;
                let configuration = self.bounds.configuration(epoch).expect("one of the bounds");
                control.issue(&configuration, out);
            }
            (Local::TickCandidates, Actor::Control(control)) => control.tick(out),
            (Local::Trim { replica, to }, Actor::Control(_)) => {
                let header = Header {
                    cluster: 1,
                    group: 1,
                    inst: *to,
                    swid: *replica,
                    client: 1,
                    // The replica knows every epoch.
                    request: u64::MAX,
                    ..Header::new(MsgType::Trim)
                };
                for receivers in [To::Acceptors, To::Leader] {
                    out.packets.0.push((receivers, header, Vec::new()));
                }
            }
            (Local::Crash { .. }, Actor::Acceptor(acceptor)) => {
                let forgets = self.mutation == Some(Mutation::AcceptorForgets);
                let nonce = acceptor.nonce() + u64::from(!forgets);
                *acceptor =
                    Acceptor::new(*acceptor.deployment(), self.bounds.slots as usize, nonce);
                if forgets {
                    let _ = acceptor.enable(&self.first_enable(nonce));
                }
            }
            (Local::CrashLeader { .. }, Actor::Leader(leader)) => {
                let again = self.mutation == Some(Mutation::LeaderStampsAgain);
                *leader = Leader::new(*leader.deployment(), leader.nonce() + u64::from(!again));
            }
            (Local::Recover { inst, .. }, Actor::Repairer(repairer)) => {
                repairer.recover(*inst, out);
            }
            (Local::TickRepairer { .. }, Actor::Repairer(repairer)) => repairer.tick(out),
            _ => unreachable!("a local happens at its own place"),
        }
    }

    /// Returns whether it may happen now: epochs and ticks come in order, and a replica covers only
    /// what is decided.
    pub(super) fn is_possible(&self, at: usize, used: u32, sent: &Sent) -> bool {
        let local = &self.bounds.locals[at];
        let before = &self.bounds.locals[..at];
        let after_others = |same: fn(&Local) -> bool| {
            let mut earlier = before.iter().enumerate().filter(|(_, local)| same(local));
            earlier.all(|(at, _)| used >> at & 1 == 1)
        };
        match local {
            Local::Issue { .. } => after_others(|_| true),
            Local::TickCandidates => after_others(|l| *l == Local::TickCandidates),
            Local::TickRepairer { .. } => {
                let mut same = before.iter().enumerate().filter(|(_, l)| *l == local);
                same.all(|(at, _)| used >> at & 1 == 1)
            }
            Local::Trim { to, .. } => self.judge.all_decided_below(*to, sent),
            _ => true,
        }
    }
}
