// SPDX-License-Identifier: Apache-2.0
//! The checkers: what must hold after every step.
//!
//! They keep a record of their own of what was sent, voted, executed and acknowledged, and judge by
//! that. They see packets as they leave, what the harness's own application executes and stores,
//! the records that the controller's store takes, and what clients were told. They never look into
//! a role.

mod beginnings;
mod execution;
mod order;
mod ordered;
mod promises;
mod spanning;
mod stamps;
mod votes;

use std::fmt;

use paxos::Time;

pub use beginnings::Beginnings;
pub use execution::{Executions, Known, OpInfo, READS, Read};
pub use order::has_no_circle;
pub use ordered::Ordered;
pub use promises::Promises;
pub use votes::{Asked, Memory, Votes};

/// What was violated. The numbers are those of docs/invariants.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Invariant {
    /// 1: no instance is decided with two values.
    Agreement,
    /// 2: a vote is remembered until trimmed, and a node that forgot doesn't vote.
    Remembered,
    /// 3: a round has one proposer, and one value per instance.
    OneProposer,
    /// 4: in order, without gaps, every command once.
    InOrderOnce,
    /// 4: what was acknowledged was executed, is stored, and stays.
    Acknowledged,
    /// 5: a command over several partitions takes effect in all of them or in none.
    AllOrNothing,
    /// 5: the order of commands has no circle, also with what clients know of it.
    Order,
    /// 6: nothing is trimmed that g+1 replicas have not stored durably.
    Trim,
    /// 7: what clients saw is linearizable.
    Linearizable,
    /// 8: a bad packet changes nothing.
    BadPacket,
    /// 4: a replica that has executed what an active epoch doesn't know of stops when it is told.
    Alarm,
    /// 4: an install that was begun can be ended.
    Installed,
    /// 9: nobody repairs what was never begun.
    Ahead,
    /// 10: what is committed stays.
    Committed,
    /// 11: a view starts with one log.
    OneStart,
    /// 12: what is stable never changes.
    Stable,
    /// 13: nothing that isn't stable is stored.
    Speculation,
    /// 15: no slot of a session is stamped twice.
    OneStamp,
    /// When all faults have ended, everything outstanding completes in bounded time.
    Liveness,
    /// When all is done, the replicas' contents are equal.
    Convergence,
}

impl Invariant {
    /// The id in messages and in `docs/invariants.md`.
    pub const fn id(self) -> &'static str {
        match self {
            Invariant::Agreement => "I1 agreement",
            Invariant::Remembered => "I2 votes remembered",
            Invariant::OneProposer => "I3 one proposer, one value",
            Invariant::InOrderOnce => "I4 in order, once",
            Invariant::Acknowledged => "I4 acknowledged means kept",
            Invariant::AllOrNothing => "I5 all or nothing",
            Invariant::Order => "I5 order without circles",
            Invariant::Trim => "I6 trim",
            Invariant::Linearizable => "I7 linearizable",
            Invariant::BadPacket => "I8 bad packet",
            Invariant::Alarm => "I4 alarm",
            Invariant::Installed => "I4 install",
            Invariant::Ahead => "I9 nothing ahead of the leader",
            Invariant::Committed => "I10 committed stays",
            Invariant::OneStart => "I11 one start",
            Invariant::Stable => "I12 stable",
            Invariant::Speculation => "I13 speculation",
            Invariant::OneStamp => "I15 one stamp",
            Invariant::Liveness => "L1 completion",
            Invariant::Convergence => "L2 convergence",
        }
    }
}

/// A broken invariant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// When, in virtual time.
    pub at: Time,
    /// What happened.
    pub message: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation {
            invariant,
            at,
            message,
        } = self;
        write!(
            f,
            "{} at {:.6} s: {message}",
            invariant.id(),
            *at as f64 / 1e9
        )
    }
}

/// Where checkers put what they find.
#[derive(Default, Debug)]
pub struct Findings {
    /// The time of the step in hand.
    pub now: Time,
    /// What was found, in order; at most [`Findings::MAX`].
    pub violations: Vec<Violation>,
    /// The only invariant that counts, in a run whose faults break the others on purpose.
    pub only: Option<Invariant>,
    /// Whether the search for an order that explains what clients saw was given up.
    pub undecided: bool,
}

impl Findings {
    /// One broken run breaks everything after it too; more would say nothing new.
    pub const MAX: usize = 16;

    /// Notes a violation.
    pub fn report(&mut self, invariant: Invariant, message: impl FnOnce() -> String) {
        let counts = self.only.is_none_or(|only| only == invariant);
        if counts && self.violations.len() < Self::MAX {
            let message = message();
            self.violations.push(Violation {
                invariant,
                at: self.now,
                message,
            });
        }
    }
}
