// SPDX-License-Identifier: Apache-2.0
//! Configurations: how much of the world a search looks at.

mod all;

use std::ops::Range;

use paxos::{Configuration, Deployment, Epoch, Instance, Member, NodeId};

pub use self::all::{everyday, long};
use crate::network::ActorId;

/// Which memory of an acceptor's node: 1 is the first, 2 the one after a crash.
pub type Incarnation = u64;

/// An event that happens at most once, at any time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Local {
    /// The store issues the next epoch, and its candidate begins. Earlier candidates go on. Only
    /// after all that is listed before it.
    Issue {
        /// Which leader.
        leader: u8,
        /// Which memories, in ascending order of acceptors.
        members: Vec<(u8, Incarnation)>,
    },
    /// A volatile acceptor loses its memory and starts again with the next incarnation.
    Crash {
        /// Which.
        acceptor: u8,
    },
    /// A leader loses its memory.
    CrashLeader {
        /// Which.
        leader: u8,
    },
    /// A repairing host begins to repair an instance.
    Recover {
        /// Which host.
        repairer: u8,
        /// The instance.
        inst: Instance,
    },
    /// A replica has stored a checkpoint of everything below, and says so. Happens only when all
    /// that is decided.
    Trim {
        /// Which replica.
        replica: NodeId,
        /// The trim point.
        to: Instance,
    },
    /// A long time passes for a repairing host: all that waits is due.
    TickRepairer {
        /// Which.
        repairer: u8,
    },
    /// A long time passes for the candidates.
    TickCandidates,
}

/// A configuration of the model. Always one partition; epoch 1 begins active and unused, with all
/// acceptors' first memories as members and leader 0, unless `unborn`.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// The name in tests and reports.
    pub name: &'static str,
    /// A description of what the search contains.
    pub about: &'static str,
    /// The events that a search must reach, because a search that never gets to its subject proves
    /// nothing.
    pub reaches: &'static [&'static str],
    /// 2f+1.
    pub acceptors: u8,
    /// Leaders.
    pub leaders: u8,
    /// Hosts that repair.
    pub repairers: u8,
    /// Learners that count votes as the real role does. Without one, decisions are still judged by
    /// the votes on the wire, which is what any learner could see.
    pub learners: u8,
    /// Slots of a ring.
    pub slots: u64,
    /// The leaders' window.
    pub window: u64,
    /// Clients; each has one command, sent to all leaders.
    pub clients: u64,
    /// Replicas, of which g+1 must cover what is trimmed.
    pub replicas: Vec<NodeId>,
    /// The number of replicas that may fail.
    pub g: u8,
    /// The events without a message that may happen once.
    pub locals: Vec<Local>,
    /// True if REJECT reaches leaders. It can only make one retire, that is do less.
    pub rejects_to_leaders: bool,
    /// True if members that go on are enabled again, as the controller does.
    pub enables_all: bool,
    /// True if even epoch 1 has to be made first.
    pub unborn: bool,
}

impl Bounds {
    /// Returns small bounds: three acceptors, one leader, one client, two slots; nothing else
    /// happens.
    pub fn small(name: &'static str, about: &'static str) -> Bounds {
        Bounds {
            name,
            about,
            reaches: &["decisions"],
            acceptors: 3,
            leaders: 1,
            repairers: 0,
            learners: 0,
            slots: 2,
            window: 1,
            clients: 1,
            replicas: vec![21],
            g: 0,
            locals: Vec::new(),
            rejects_to_leaders: false,
            enables_all: false,
            unborn: false,
        }
    }

    /// Returns how many acceptors may fail.
    pub fn f(&self) -> u8 {
        (self.acceptors - 1) / 2
    }

    /// Places of the acceptors.
    pub fn acceptor_places(&self) -> Range<ActorId> {
        0..self.acceptors
    }

    /// Places of the leaders.
    pub fn leader_places(&self) -> Range<ActorId> {
        let start = self.acceptors;
        start..start + self.leaders
    }

    /// Returns the place of the controller: store and candidates.
    pub fn control_place(&self) -> ActorId {
        self.leader_places().end
    }

    /// Places of the repairing hosts.
    pub fn repairer_places(&self) -> Range<ActorId> {
        let start = self.control_place() + 1;
        start..start + self.repairers
    }

    /// Places of the learners.
    pub fn learner_places(&self) -> Range<ActorId> {
        let start = self.repairer_places().end;
        start..start + self.learners
    }

    /// Returns the number of places.
    pub fn places(&self) -> usize {
        self.learner_places().end.into()
    }

    /// Returns the node at a place.
    pub fn node(&self, place: ActorId) -> NodeId {
        let within = |range: &Range<ActorId>, base: NodeId| {
            let inside = range.contains(&place);
            inside.then(|| base + NodeId::from(place - range.start))
        };
        within(&self.acceptor_places(), 11)
            .or(within(&self.leader_places(), 1))
            .or(within(&self.repairer_places(), 41))
            .or(within(&self.learner_places(), 51))
            .unwrap_or(90)
    }

    /// Returns where a node is.
    pub fn place_of(&self, node: NodeId) -> Option<ActorId> {
        (0..self.places() as ActorId).find(|&place| self.node(place) == node)
    }

    /// Returns where the role at a place stands.
    pub fn deployment(&self, place: ActorId) -> Deployment {
        Deployment {
            cluster: 1,
            group: 1,
            partitions: 1,
            // Answers of acceptors, too, must fit: a range report has 24 bytes.
            max_value: 32,
            node: self.node(place),
        }
    }

    /// Returns the ways to exchange acceptors that leave these bounds as they are, the identity
    /// first: each says where every acceptor goes.
    pub fn symmetries(&self) -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        for _ in 0..self.acceptors {
            let longer = |way: Vec<u8>| {
                let unused = (0..self.acceptors).filter(move |a| !way.contains(a));
                unused.collect::<Vec<_>>()
            };
            all = all
                .into_iter()
                .flat_map(|way| {
                    let next = longer(way.clone());
                    next.into_iter().map(move |a| [&way[..], &[a]].concat())
                })
                .collect();
        }
        all.retain(|way| self.locals.iter().all(|local| is_fixed(local, way)));
        all
    }

    /// Returns the first memories of all acceptors.
    pub fn first_members(&self) -> Vec<(u8, Incarnation)> {
        (0..self.acceptors).map(|a| (a, 1)).collect()
    }

    /// Returns the configuration of an epoch. Fixed beforehand: epochs are issued in the order of
    /// `locals`.
    pub fn configuration(&self, epoch: Epoch) -> Option<Configuration> {
        let mut issues = self.locals.iter().filter_map(|local| match local {
            Local::Issue { leader, members } => Some((*leader, members.clone())),
            _ => None,
        });
        let (leader, members) = match (epoch as usize, self.unborn) {
            (0, _) => None,
            (1, false) => Some((0, self.first_members())),
            (n, false) => issues.nth(n - 2),
            (n, true) => issues.nth(n - 1),
        }?;
        let member = |&(acceptor, incarnation): &(u8, Incarnation)| Member {
            node: self.node(acceptor),
            nonce: memory_nonce(acceptor, incarnation),
        };
        Some(Configuration {
            epoch,
            leader: Member {
                // A leader beyond the bounds is a node of which nothing is seen.
                node: 1 + NodeId::from(leader),
                nonce: leader_nonce(leader, 1),
            },
            acceptors: members.iter().map(member).collect(),
            f: self.f(),
            replicas: self.replicas.clone(),
            g: self.g,
        })
    }
}

fn is_fixed(local: &Local, way: &[u8]) -> bool {
    match local {
        Local::Crash { acceptor } => way[usize::from(*acceptor)] == *acceptor,
        Local::Issue { members, .. } => members.iter().all(|&(acceptor, incarnation)| {
            members.contains(&(way[usize::from(acceptor)], incarnation))
        }),
        _ => true,
    }
}

/// Returns the boot nonce of an acceptor's memory.
pub fn memory_nonce(acceptor: u8, incarnation: Incarnation) -> u64 {
    0xa00 + u64::from(acceptor) * 0x10 + incarnation
}

/// Returns the boot nonce of a leader's memory.
pub fn leader_nonce(leader: u8, incarnation: Incarnation) -> u64 {
    0x1e00 + u64::from(leader) * 0x10 + incarnation
}
