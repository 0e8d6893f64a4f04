// SPDX-License-Identifier: Apache-2.0
//! All bounds that are explored.

use paxos::NodeId;

use super::{Bounds, Local};

/// Returns the second epoch with all first memories, led by leader 1.
fn failover() -> Local {
    Local::Issue {
        leader: 1,
        members: vec![(0, 1), (1, 1), (2, 1)],
    }
}

/// Returns the second epoch with acceptor 2's second memory, led by leader 1.
fn rejoin() -> Local {
    Local::Issue {
        leader: 1,
        members: vec![(0, 1), (1, 1), (2, 2)],
    }
}

fn repair() -> Vec<Local> {
    vec![
        Local::Recover {
            repairer: 0,
            inst: 0,
        },
        Local::TickRepairer { repairer: 0 },
    ]
}

fn trim(replica: NodeId) -> Local {
    Local::Trim { replica, to: 1 }
}

/// Returns what `cargo test` explores, each to its end.
pub fn everyday() -> Vec<Bounds> {
    vec![
        Bounds {
            learners: 1,
            clients: 2,
            window: 2,
            ..Bounds::small(
                "stamping",
                "one epoch, two commands, two instances, a real learner",
            )
        },
        Bounds {
            leaders: 2,
            clients: 2,
            locals: vec![failover()],
            reaches: &["votes in later epochs", "later epochs handed over"],
            ..Bounds::small(
                "failover",
                "a second epoch takes over from a leader that goes on",
            )
        },
        Bounds {
            repairers: 1,
            clients: 2,
            locals: repair(),
            reaches: &["votes in repair rounds"],
            ..Bounds::small("repair", "an instance is repaired while the leader goes on")
        },
        Bounds {
            slots: 1,
            clients: 2,
            learners: 1,
            replicas: vec![21, 22, 23],
            g: 1,
            locals: vec![trim(21), trim(22)],
            reaches: &["votes in slots used again"],
            ..Bounds::small(
                "trim",
                "two of three replicas trim the only slot, which is used again",
            )
        },
        Bounds {
            locals: vec![Local::Crash { acceptor: 2 }, rejoin()],
            reaches: &["votes of re-joined memories", "votes in later epochs"],
            ..Bounds::small(
                "rejoin",
                "a volatile acceptor loses its memory and then joins the next epoch",
            )
        },
        Bounds {
            locals: vec![
                Local::CrashLeader { leader: 0 },
                Local::Issue {
                    leader: 0,
                    members: vec![(0, 1), (1, 1), (2, 1)],
                },
            ],
            reaches: &["later epochs handed over"],
            ..Bounds::small(
                "leader-crash",
                "the leader loses its memory, and a new epoch names the old one",
            )
        },
        Bounds {
            unborn: true,
            clients: 2,
            slots: 3,
            window: 3,
            locals: vec![Local::Issue {
                leader: 0,
                members: vec![(0, 1), (1, 1), (2, 1)],
            }],
            ..Bounds::small(
                "birth",
                "the first epoch of all, from strangers to commands",
            )
        },
    ]
}

/// Returns what takes longer, for `./dev check --long`. Not all of it can be explored to its end.
pub fn long() -> Vec<Bounds> {
    vec![
        Bounds {
            leaders: 2,
            clients: 2,
            rejects_to_leaders: true,
            locals: vec![failover()],
            reaches: &["rejected as preempted"],
            ..Bounds::small(
                "failover-rejects",
                "same, and leaders learn that they are replaced",
            )
        },
        Bounds {
            slots: 1,
            locals: vec![trim(21), failover()],
            reaches: &[
                "votes in slots used again",
                "votes in later epochs",
                "rejected as trimmed",
            ],
            ..Bounds::small(
                "trim-failover",
                "the only slot is trimmed and used again, then an epoch changes",
            )
        },
        Bounds {
            locals: vec![rejoin(), Local::Crash { acceptor: 2 }],
            reaches: &["votes of re-joined memories"],
            ..Bounds::small(
                "rejoin-any-time",
                "same, but the memory may be lost at any moment of the epoch change",
            )
        },
        Bounds {
            repairers: 2,
            slots: 1,
            locals: vec![
                Local::Recover {
                    repairer: 0,
                    inst: 0,
                },
                Local::Recover {
                    repairer: 1,
                    inst: 0,
                },
            ],
            reaches: &["votes in repair rounds", "rejected as preempted"],
            ..Bounds::small("two-repairs", "two hosts repair one instance")
        },
        Bounds {
            repairers: 1,
            locals: vec![
                Local::Recover {
                    repairer: 0,
                    inst: 0,
                },
                failover(),
            ],
            reaches: &["votes in repair rounds", "votes in later epochs"],
            ..Bounds::small(
                "repair-failover",
                "an instance is repaired while an epoch changes",
            )
        },
        Bounds {
            slots: 3,
            window: 2,
            locals: vec![failover()],
            reaches: &["votes in later epochs", "later epochs handed over"],
            ..Bounds::small(
                "failover-2-slots",
                "two instances are open when an epoch changes",
            )
        },
        Bounds {
            locals: vec![Local::Crash { acceptor: 2 }, rejoin(), rejoin()],
            reaches: &["votes of re-joined memories", "later epochs handed over"],
            ..Bounds::small(
                "enabled-late",
                "a re-joined memory is enabled at any moment, also while a third epoch comes",
            )
        },
        Bounds {
            locals: vec![failover(), failover()],
            reaches: &["votes in later epochs", "later epochs handed over"],
            ..Bounds::small(
                "three-epochs",
                "a candidate is overtaken by the next one at any moment",
            )
        },
    ]
}
