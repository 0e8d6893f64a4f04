// SPDX-License-Identifier: Apache-2.0
//! The checkers of everything that must hold after every step.
//!
//! They keep their own record of what was sent, voted, executed and acknowledged, and judge by
//! that. They see packets as they leave, what the harness's own application executes and stores,
//! the records that the controller's store takes, and what clients were told. They never look into
//! a role.

mod epoch_beginnings;
mod execution;
mod order;
mod ordered;
mod promises;
mod spanning;
mod stamps;
mod votes;

use std::fmt;

use paxos::Time;

pub use epoch_beginnings::Beginnings;
pub use execution::{ClientKnowledge, Executions, OpInfo, Read};
pub use order::has_no_circle;
pub use ordered::Ordered;
pub use promises::Promises;
pub use votes::{Memory, Trigger, Votes};

/// The invariants. The numbers are those of docs/invariants.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Invariant {
    /// 1: no instance is decided with two values.
    Agreement,
    /// 2: a vote is remembered until trimmed, and a node that forgot doesn't vote.
    Remembered,
    /// 3: a round has one proposer, and one value per instance.
    OneProposer,
    /// 4: a replica executes in order, without gaps, and every command once.
    InOrderOnce,
    /// 4: acknowledged commands were executed, are stored, and stay.
    Acknowledged,
    /// 5: a command over several partitions takes effect in all of them or in none.
    AllOrNothing,
    /// 5: the order of commands has no circle, including what clients know of it.
    Order,
    /// 6: nothing is trimmed that g+1 replicas have not stored durably.
    Trim,
    /// 7: the operations that clients saw are linearizable.
    Linearizable,
    /// 8: a damaged packet changes nothing.
    BadPacket,
    /// 4: a replica that has executed what an active epoch doesn't know of stops when it is told.
    Alarm,
    /// 4: an install that was begun can be completed.
    Installed,
    /// 9: nobody repairs an instance that was never begun.
    Ahead,
    /// 10: committed entries stay.
    Committed,
    /// 11: a view starts with one log.
    OneStart,
    /// 12: stable entries never change.
    Stable,
    /// 13: nothing is stored before it is stable.
    Speculation,
    /// 15: no slot of a session is stamped twice.
    OneStamp,
    /// After all faults have ended, everything outstanding completes in bounded time.
    Liveness,
    /// At the end the replicas' contents are equal.
    Convergence,
}

impl Invariant {
    /// Returns the id in messages and in `docs/invariants.md`.
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
    /// The invariant that is broken.
    pub invariant: Invariant,
    /// The virtual time.
    pub at: Time,
    /// A description of the violation.
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

/// The violations that checkers have found.
#[derive(Default, Debug)]
pub struct Findings {
    /// The time of the current step.
    pub now: Time,
    /// The violations in order; at most [`Findings::MAX`].
    pub violations: Vec<Violation>,
    /// The only invariant that counts, in a run whose faults break the others on purpose.
    pub only: Option<Invariant>,
    /// The search for an order that explains what clients saw was given up.
    pub undecided: bool,
}

impl Findings {
    /// A violation breaks everything after it, too, so more of them would say nothing new.
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
