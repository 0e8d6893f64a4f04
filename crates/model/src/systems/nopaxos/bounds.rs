// SPDX-License-Identifier: Apache-2.0
//! Configurations of NOPaxos: how much of the world a search looks at.

use std::ops::Range;

use paxos::nopaxos::{Session, Stage, view};
use paxos::{Deployment, Epoch, Instance, Member, NodeId, Round};

use crate::network::ActorId;

/// An event without a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Local {
    /// A replica does what is due. Any number of times.
    Tick(ActorId),
    /// ... a while later: a leader gives up what it has asked for. Any number of times.
    GiveUp(ActorId),
    /// A replica goes to a view: its leader is silent, the store shows it, or somebody asks for it.
    Go(ActorId, Round),
    /// The controller opens the second session.
    Open,
    /// A replica loses its memory and starts again as a stranger.
    Crash(ActorId),
}

/// A configuration: one partition; session 1 begins active and unused, with all replicas normal in
/// its first view.
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
    pub replicas: u8,
    /// Slots of a log.
    pub slots: u64,
    /// The last leader number of each session.
    pub views: Vec<u32>,
    /// The first leader of each session.
    pub leads: [u16; 2],
    /// True if leaders synchronise.
    pub syncs: bool,
    /// True if leaders give up what nobody seems to have.
    pub gives_up: bool,
    /// Whose memory is lost; session 2 names the next one.
    pub crashes: Option<ActorId>,
    /// True if a client counts as the role does. Without it answers are still judged by what any
    /// client could see.
    pub client: bool,
    /// True if the first session's sequencer stamps while the search goes on. Otherwise it has
    /// stamped all slots before.
    pub stamps: bool,
}

/// How many sequencers there are: one a session.
const SEQUENCERS: u8 = 2;

impl Bounds {
    /// Returns small bounds: three replicas, one session, one view, two slots; nothing else
    /// happens.
    pub fn small(name: &'static str, about: &'static str) -> Bounds {
        Bounds {
            name,
            about,
            reaches: &["answers committed"],
            replicas: 3,
            slots: 2,
            views: vec![0],
            leads: [0, 0],
            syncs: false,
            gives_up: false,
            crashes: None,
            client: false,
            stamps: false,
        }
    }

    /// Returns how many replicas may fail.
    pub fn f(&self) -> u8 {
        (self.replicas - 1) / 2
    }

    /// Places of the replicas.
    pub fn replica_places(&self) -> Range<ActorId> {
        0..self.replicas
    }

    /// Returns the place of a session's sequencer.
    pub fn sequencer_place(&self, session: Epoch) -> ActorId {
        self.replicas + session as ActorId - 1
    }

    /// Returns the place of the controller.
    pub fn control_place(&self) -> ActorId {
        self.replicas + SEQUENCERS
    }

    /// Returns the place of the client.
    pub fn client_place(&self) -> ActorId {
        self.control_place() + 1
    }

    /// Returns the number of places.
    pub fn places(&self) -> usize {
        usize::from(self.client_place()) + 1
    }

    /// Returns the node at a place: replicas from 11 on.
    pub fn node(&self, place: ActorId) -> NodeId {
        11 + NodeId::from(place)
    }

    /// Returns where a node is.
    pub fn place_of(&self, node: NodeId) -> Option<ActorId> {
        (0..self.places() as ActorId).find(|place| self.node(*place) == node)
    }

    /// Returns where the role at a place stands.
    pub fn deployment(&self, place: ActorId) -> Deployment {
        Deployment {
            cluster: 1,
            group: 1,
            partitions: 1,
            // Lists of no-ops must fit: of two slots they have two ranges at most.
            max_value: 64,
            node: self.node(place),
        }
    }

    /// Returns a replica's memory: 1 is the first, 2 the one after a crash.
    pub fn member(&self, place: ActorId, incarnation: u64) -> Member {
        Member {
            node: self.node(place),
            nonce: 0xa00 + u64::from(place) * 0x10 + incarnation,
        }
    }

    /// Returns the boot nonce of a session's sequencer.
    pub fn sequencer_nonce(&self, session: Epoch) -> u64 {
        0x5e00 + u64::from(session)
    }

    /// Returns a session as it is when it is issued.
    pub fn session(&self, number: Epoch) -> Session {
        let incarnation = |place| 1 + u64::from(number == 2 && self.crashes == Some(place));
        let members = self.replica_places();
        Session {
            number,
            sequencer: self.node(self.sequencer_place(number)),
            nonce: self.sequencer_nonce(number),
            members: members.map(|p| self.member(p, incarnation(p))).collect(),
            f: self.f(),
            lead: self.leads[number as usize - 1],
            stage: Stage::Issued,
            anew: None,
        }
    }

    /// Returns who leads a view.
    pub fn leader(&self, view: Round) -> NodeId {
        self.session(view.epoch()).leader(view, 0).node
    }

    /// Returns all events that happen without a message.
    pub fn locals(&self) -> Vec<Local> {
        let mut locals: Vec<Local> = self.replica_places().map(Local::Tick).collect();
        if self.gives_up {
            locals.extend(self.replica_places().map(Local::GiveUp));
        }
        for (at, last) in self.views.iter().enumerate() {
            let session = at as Epoch + 1;
            for number in u32::from(session == 1)..=*last {
                let view = Round(view::first(session).0 + number);
                locals.extend(self.replica_places().map(|place| Local::Go(place, view)));
            }
        }
        if self.views.len() > 1 {
            locals.push(Local::Open);
        }
        locals.extend(self.crashes.map(Local::Crash));
        locals
    }

    /// Returns the last slot's end.
    pub fn end(&self) -> Instance {
        self.slots
    }
}

/// Returns what `cargo test` explores, each to its end.
pub fn everyday() -> Vec<Bounds> {
    vec![
        Bounds {
            slots: 1,
            stamps: true,
            client: true,
            reaches: &["answers committed", "answers that a client counts"],
            ..Bounds::small(
                "ordered",
                "a request is stamped, answered, and counted by a client",
            )
        },
        Bounds {
            slots: 1,
            gives_up: true,
            syncs: true,
            reaches: &["answers committed", "stable slots"],
            ..Bounds::small("stable", "a slot becomes stable, with a request or without")
        },
        Bounds {
            slots: 1,
            views: vec![1],
            reaches: &["answers committed", "answers of later views"],
            ..Bounds::small("view-change", "another member leads at any moment")
        },
        Bounds {
            views: vec![0, 0],
            crashes: Some(2),
            slots: 1,
            reaches: &["answers committed", "slots of later sessions"],
            ..Bounds::small(
                "session",
                "a follower loses its memory, and another session names the new one",
            )
        },
        Bounds {
            gives_up: true,
            reaches: &["answers committed", "no-ops agreed"],
            ..Bounds::small("gap", "a request may be lost at any of the replicas")
        },
        Bounds {
            views: vec![1],
            syncs: true,
            slots: 1,
            reaches: &["stable slots", "answers of later views"],
            ..Bounds::small(
                "stable-view-change",
                "another member leads while a slot becomes stable",
            )
        },
        Bounds {
            views: vec![0, 0],
            crashes: Some(2),
            slots: 1,
            leads: [0, 1],
            syncs: true,
            reaches: &["slots of later sessions", "stable slots"],
            ..Bounds::small(
                "session-leader",
                "the same, and another member leads the later session",
            )
        },
    ]
}

/// Returns bounds with two sessions, three replicas, two slots, gaps, view changes, and a memory
/// that joins again. They are too large to be explored to their end.
pub fn whole() -> Bounds {
    Bounds {
        views: vec![1, 1],
        crashes: Some(2),
        gives_up: true,
        syncs: true,
        leads: [0, 1],
        ..Bounds::small(
            "whole",
            "two sessions, two slots, gaps, view changes, and a memory that is lost and re-joins",
        )
    }
}

/// Returns what takes longer, for `./dev check --long`. Not all of it can be explored to its end.
pub fn long() -> Vec<Bounds> {
    vec![
        Bounds {
            stamps: true,
            client: true,
            reaches: &["answers committed", "answers that a client counts"],
            ..Bounds::small("ordered-2", "the same with two requests and two slots")
        },
        Bounds {
            gives_up: true,
            syncs: true,
            reaches: &["no-ops agreed", "stable slots"],
            ..Bounds::small("gap-stable", "a gap while slots become stable")
        },
        Bounds {
            views: vec![1],
            reaches: &["answers of later views"],
            ..Bounds::small("view-change-2", "another member leads, two slots")
        },
        Bounds {
            views: vec![1],
            gives_up: true,
            reaches: &["no-ops agreed", "answers of later views"],
            ..Bounds::small(
                "gap-view-change",
                "a request is lost while another member comes to lead",
            )
        },
        Bounds {
            views: vec![2],
            slots: 1,
            reaches: &["answers of later views"],
            ..Bounds::small("three-views", "a view is overtaken by the next one")
        },
        Bounds {
            views: vec![0, 1],
            crashes: Some(2),
            slots: 1,
            syncs: true,
            leads: [0, 1],
            reaches: &["slots of later sessions", "re-joined memories"],
            ..Bounds::small(
                "session-views",
                "another session in two views, one of them led by the new memory",
            )
        },
        whole(),
    ]
}
