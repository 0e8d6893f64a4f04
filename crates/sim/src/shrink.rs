// SPDX-License-Identifier: Apache-2.0
//! Reduces a failing plan to a smaller one that still fails.
//!
//! This is delta debugging (Zeller and Hildebrandt's ddmin): chunks of the list of actions are
//! deleted while the same invariant is still violated, with smaller and smaller chunks. After that
//! the network's faults are switched off one by one, if the violation survives that.

use crate::check::Violation;
use crate::network::Rates;
use crate::plan::{Action, Plan};
use crate::run::{Options, run_plan};

/// The number of runs that shrinking may take.
const BUDGET: u32 = 2_000;

/// Returns a smaller plan with the same violation.
pub fn shrink(plan: &Plan, violation: &Violation, options: &Options) -> Plan {
    let mut shrinker = Shrinker {
        violation,
        options: Options {
            trace: false,
            ..*options
        },
        budget: BUDGET,
        best: plan.clone(),
    };
    shrinker.calm();
    shrinker.delete_chunks();
    shrinker.calm();
    shrinker.best
}

struct Shrinker<'a> {
    violation: &'a Violation,
    options: Options,
    budget: u32,
    best: Plan,
}

impl Shrinker<'_> {
    /// Takes a plan if it fails in the same way.
    fn accept(&mut self, plan: Plan) -> bool {
        if self.budget == 0 {
            return false;
        }
        self.budget -= 1;
        let outcome = run_plan(&plan, &self.options);
        let first = outcome.violations.first();
        let alike = first.is_some_and(|v| v.invariant == self.violation.invariant);
        if alike {
            self.best = plan;
        }
        alike
    }

    fn delete_chunks(&mut self) {
        let mut size = self.best.actions.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            let mut deleted = false;
            while at < self.best.actions.len() {
                let mut plan = self.best.clone();
                let end = (at + size).min(plan.actions.len());
                plan.actions.drain(at..end);
                if self.accept(plan) {
                    deleted = true;
                } else {
                    at += size;
                }
            }
            if size == 1 && !deleted {
                break;
            }
            size = if deleted {
                size.min(self.best.actions.len())
            } else {
                size / 2
            };
            if self.budget == 0 {
                break;
            }
        }
    }

    /// Switches faults of the network off.
    fn calm(&mut self) {
        let mut plan = self.best.clone();
        plan.scenario.rates = Rates::PERFECT;
        plan.actions
            .retain(|(_, a)| !matches!(a, Action::Network(_)));
        if self.best.scenario.rates == Rates::PERFECT || self.accept(plan) {
            return;
        }
        let switches: [fn(&mut Rates); 6] = [
            |r| r.loss = 0,
            |r| r.duplicate = 0,
            |r| r.slow = 0,
            |r| r.late = 0,
            |r| r.hour = 0,
            |r| r.corrupt = 0,
        ];
        for switch in switches {
            let mut plan = self.best.clone();
            switch(&mut plan.scenario.rates);
            if plan != self.best {
                self.accept(plan);
            }
        }
    }
}
