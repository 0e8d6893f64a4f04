// SPDX-License-Identifier: Apache-2.0
//! Draws what damaged memories and strangers say that isn't true.

use paxos::Time;

use super::BEGIN;
use crate::plan::{Action, Name, Scenario};
use crate::queue::MILLISECOND;
use crate::rng::Rng;

/// Damages an acceptor's memory in one of sixteen runs, so that it shows votes or trim points that
/// can't be.
pub fn claims(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x636c_6169_6d73);
    if !rng.chance(62_500) {
        return;
    }
    let acceptor = Name::Acceptor(rng.between(1, scenario.acceptors.into()) as u8);
    let far = *rng.pick(&[1 << 20, 1 << 38]);
    let (trim, end) = *rng.pick(&[(0, far), (far, far), (far, far + 7), (far, 2 * far)]);
    let at = BEGIN + rng.below(duration);
    actions.push((at, Action::Claim(acceptor, trim, end)));
    if rng.chance(500_000) {
        let later = at + rng.below(duration);
        actions.push((later, Action::Crash(Name::Leader(1))));
        let back = later + rng.below(600 * MILLISECOND);
        actions.push((back, Action::Restart(Name::Leader(1))));
    }
}

/// Forges messages which say that the port of a leader or sequencer is closed, in one of sixteen
/// runs.
pub fn refusals(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7265_6675_7365);
    if !rng.chance(62_500) {
        return;
    }
    for _ in 0..rng.between(1, 20) {
        let (leaders, sequencers) = (scenario.leaders, scenario.sequencers);
        let name = match leaders {
            0 => Name::Sequencer(rng.between(1, sequencers.into()) as u8),
            _ => Name::Leader(rng.between(1, leaders.into()) as u8),
        };
        let at = BEGIN + rng.below(duration);
        actions.push((at, Action::Refuse(name)));
    }
}
