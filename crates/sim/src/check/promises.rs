// SPDX-License-Identifier: Apache-2.0
//! Checks, if nothing goes wrong, that answers of a NOPaxos leader become final soon because its
//! followers acknowledge them. A client that waits too long sends the command again and then gets
//! an answer, so a mistake shows only in the time. [N-ACK] [N-CROWD]

use std::collections::BTreeMap;

use paxos::Time;

use super::{Findings, Invariant};
use crate::queue::MICROSECOND;

/// Acknowledgements take less time than this, even of a follower that must ask for what it lacks,
/// and no client repeats a command so soon.
const SOON: Time = 900 * MICROSECOND;

/// Answers that count once they are acknowledged.
#[derive(Default, Debug)]
pub struct Promises {
    is_calm: bool,
    /// The time when each command's first answer left.
    answered: BTreeMap<u64, Time>,
}

impl Promises {
    /// Notes that nothing goes wrong in this run.
    pub fn expect_calm(&mut self) {
        self.is_calm = true;
    }

    /// Notes an answer of a leader that isn't final yet.
    pub fn answers(&mut self, command: u64, now: Time) {
        if self.is_calm {
            self.answered.entry(command).or_insert(now);
        }
    }

    /// Checks how long it took until the client knows that the answer is final.
    pub fn is_final(&mut self, command: u64, now: Time, findings: &mut Findings) {
        let answered = self.answered.remove(&command);
        let waited = answered.map_or(0, |at| now - at);
        if waited > SOON {
            findings.report(Invariant::Liveness, || {
                let waited = waited / MICROSECOND;
                format!(
                    "nothing goes wrong, and command {command} is final {waited} us after it \
                         was answered"
                )
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_final_late_is_noticed_where_nothing_goes_wrong() {
        let waits = |is_calm, waited| {
            let (mut promises, mut findings) = (Promises::default(), Findings::default());
            if is_calm {
                promises.expect_calm();
            }
            promises.answers(1, 100);
            promises.answers(1, 100 + SOON);
            promises.is_final(1, 100 + waited, &mut findings);
            promises.is_final(2, Time::MAX, &mut findings);
            findings.violations.len()
        };
        assert_eq!((waits(true, SOON), waits(true, SOON + 1)), (0, 1));
        assert_eq!(waits(false, SOON + 1), 0);
    }
}
