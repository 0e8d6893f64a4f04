// SPDX-License-Identifier: Apache-2.0
//! How a transaction is finished by somebody else than its client: ask all shards how they have
//! voted, tell them what follows from that, and let them forget it.

use crate::coordinator::{Coordinator, Event, Phase};
use crate::rule::{Rule, keeps};
use crate::wire::{Answer, Command, Transaction};

/// A transaction that is being finished.
pub(crate) struct Resolution {
    transaction: Transaction,
    step: Step,
    /// True if all shards that have answered voted yes.
    all_yes: bool,
    /// True if it is this client's own transaction.
    own: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Ask,
    Finish,
    Forget,
}

impl Resolution {
    pub fn take(&mut self, answer: Answer) {
        if self.step == Step::Ask && answer != Answer::Yes {
            self.all_yes = false;
        }
    }
}

impl Coordinator {
    /// A shard that doesn't exist, which only a client that breaks the rules names, votes no.
    pub(crate) fn start_resolution(&mut self, mut transaction: Transaction, own: bool) {
        let named = transaction.participants.len();
        let shards = self.shards();
        transaction.participants.retain(|at| at.shard < shards);
        let all_yes = transaction.participants.len() == named;
        let asks = keeps(self.broken, Rule::AsksForVotes);
        self.do_step(Resolution {
            transaction,
            step: if asks { Step::Ask } else { Step::Finish },
            all_yes: all_yes && asks,
            own,
        });
    }

    pub(crate) fn is_resolving(&self) -> bool {
        matches!(self.phase, Phase::Resolving(_))
    }

    /// Takes the next step when all shards have answered.
    pub(crate) fn go_on(&mut self, resolution: Resolution) -> Option<Event> {
        let step = match resolution.step {
            Step::Ask => Step::Finish,
            Step::Finish => Step::Forget,
            Step::Forget => {
                return Some(match (resolution.own, resolution.all_yes) {
                    (false, _) => Event::Resolved,
                    (true, true) => Event::Committed,
                    (true, false) => Event::InDoubt,
                });
            }
        };
        self.do_step(Resolution { step, ..resolution });
        None
    }

    fn do_step(&mut self, resolution: Resolution) {
        let number = resolution.transaction.number;
        for at in &resolution.transaction.participants {
            let client = at.client;
            let command = match resolution.step {
                Step::Ask => Command::Resolve { client, number },
                Step::Finish => Command::Finish {
                    client,
                    number,
                    commit: resolution.all_yes,
                },
                Step::Forget => Command::Forget { client, number },
            };
            self.ask(at.shard, command);
        }
        self.phase = Phase::Resolving(resolution);
    }
}
