// SPDX-License-Identifier: Apache-2.0
//! Counts the outcomes of the values that were handed over.

use wirepaxos::Outcome;

use crate::paxos_outcome::{self, PAXOS_REFUSED, PAXOS_UNKNOWN};

/// The reason why a call fails, and the outcome for its values.
#[derive(PartialEq, Eq, Debug)]
pub struct Failure {
    pub outcome: paxos_outcome,
    pub text: String,
}

impl Failure {
    /// Returns the failure of a call that has done nothing.
    pub fn refused(text: impl ToString) -> Failure {
        Failure {
            outcome: PAXOS_REFUSED,
            text: text.to_string(),
        }
    }

    /// Returns the failure of a call that may have done something.
    pub fn unknown(text: impl ToString) -> Failure {
        Failure {
            outcome: PAXOS_UNKNOWN,
            text: text.to_string(),
        }
    }
}

/// Counts the outcomes of values.
#[derive(Default)]
pub struct Tally {
    all: u64,
    refused: u64,
    unknown: u64,
    /// The reason why the first value with the worst outcome isn't acknowledged.
    why: String,
}

impl Tally {
    /// Notes one more.
    pub fn note(&mut self, outcome: &Outcome<&[u8]>) {
        self.all += 1;
        match outcome {
            // Nobody waits for the answer's bytes, so it doesn't matter if they are missing.
            Outcome::Executed(_) => {}
            Outcome::Refused(why) => {
                if self.refused == 0 && self.unknown == 0 {
                    self.why = why.to_string();
                }
                self.refused += 1;
            }
            Outcome::Unknown(why) => {
                if self.unknown == 0 {
                    self.why = why.to_string();
                }
                self.unknown += 1;
            }
        }
    }

    /// Returns the result since the last call.
    pub fn take(&mut self) -> Result<(), Failure> {
        let Tally {
            all,
            refused,
            unknown,
            why,
        } = std::mem::take(self);
        if unknown > 0 {
            Err(Failure::unknown(format!(
                "the outcome of {unknown} of {all} values is unknown, {refused} are refused: {why}"
            )))
        } else if refused > 0 {
            Err(Failure::refused(format!(
                "{refused} of {all} values are refused: {why}"
            )))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wirepaxos::{Doubt, Refusal};

    #[test]
    fn one_value_in_doubt_leaves_all_in_doubt_and_an_answer_that_is_lost_leaves_none() {
        let mut tally = Tally::default();
        assert_eq!(tally.take(), Ok(()));
        tally.note(&Outcome::Executed(Some(b"")));
        tally.note(&Outcome::Executed(None));
        assert_eq!(tally.take(), Ok(()));
        let refusal = Outcome::Refused(Refusal::Answered("unsupported"));
        tally.note(&Outcome::Executed(None));
        tally.note(&refusal);
        let text = "1 of 2 values are refused: unsupported";
        assert_eq!(tally.take(), Err(Failure::refused(text)));
        tally.note(&refusal);
        tally.note(&Outcome::Unknown(Doubt::SessionLost));
        tally.note(&Outcome::Unknown(Doubt::Forgotten));
        let failure = tally.take().unwrap_err();
        assert_eq!(failure.outcome, PAXOS_UNKNOWN);
        assert!(failure.text.contains("expired"), "{}", failure.text);
        assert_eq!(tally.take(), Ok(()));
    }
}
