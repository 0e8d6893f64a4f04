// SPDX-License-Identifier: Apache-2.0
//! Views: `session << 12 | number of the leader`, a [`Round`] in a header's `rnd`.
//!
//! Views are ordered as integers, so each view of a session is above all views of earlier ones. The
//! number of a session is its epoch in the control plane's store.

use crate::{Epoch, Round};

/// The largest number of a leader in one session; the first is 0. After it a new session is needed.
pub const MAX_LEADER: u32 = (1 << LEADER_BITS) - 1;

const LEADER_BITS: u32 = 12;
const _: () = assert!(Round::base(1).0 == 1 << LEADER_BITS);

/// Returns the first view of a session, which is also the round that its sequencer stamps with.
pub fn first(session: Epoch) -> Round {
    Round::base(session)
}

/// Returns the last view that a session can have.
pub fn last(session: Epoch) -> Round {
    Round(first(session).0 | MAX_LEADER)
}

/// Returns the number of a view's leader.
pub fn number(view: Round) -> u32 {
    view.0 & MAX_LEADER
}

/// Returns the round that the sequencer of a view's session stamps with.
pub fn stamp(view: Round) -> Round {
    Round(view.0 & !MAX_LEADER)
}

/// Returns the view of the same session's next leader, or `None` if the numbers are used up.
pub fn next(view: Round) -> Option<Round> {
    (number(view) < MAX_LEADER).then_some(Round(view.0 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_session_is_above_every_leader_of_an_earlier_one() {
        let last = last(2);
        assert!(last < first(3) && first(2) < last);
        assert_eq!((number(last), stamp(last)), (MAX_LEADER, first(2)));
        assert_eq!(next(first(2)).map(number), Some(1));
        assert_eq!(next(last), None);
    }
}
