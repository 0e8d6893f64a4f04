// SPDX-License-Identifier: Apache-2.0
//! Model checker of the roles that ship, and validation of recorded traces. No node uses it; the
//! program has it for its commands `check-trace` and `torture`.
//!
//! **Model checking.** The actors are the very roles of `paxos` ([`actor`]), the store of epochs is
//! the one of `control`, and the network is the set of all messages ever sent ([`network`]): any of
//! them may arrive at any time, any number of times, in any order, or never. [`cluster`] puts them
//! together within the bounds of a configuration ([`bounds`]), [`explore`] visits every state that
//! can be reached, and [`judge`] looks at each. [`mutation`] makes deliberate mistakes, from
//! outside, so that every property is seen to fail. That is Paxos's; NOPaxos has actors, bounds, a
//! judge and mistakes of its own ([`systems::nopaxos`]), and shares the rest.
//!
//! **Traces.** [`spec`] is the protocol once more, written from `docs/protocol.md` and not from the
//! roles, as plain as can be: given what a node received, what may it send? Each step of a recorded
//! run ([`trace`]) is held against it, whether the simulator recorded it ([`record`]) or the nodes
//! of a real cluster did ([`merge`]).
//!
//! # Why there is an explorer of our own
//!
//! `stateright`, the usual choice, clones and hashes whole actors for every transition, keeps
//! 64-bit fingerprints and brings a web server along. Roles are deterministic, and within small
//! bounds each has only some thousand different states, while their combinations run into tens of
//! millions. So here a cluster's state is a tuple of numbers of role states; each (role state,
//! input) runs the real code once and its result is looked up afterwards. That makes a state a
//! hundred bytes and a transition a fraction of a microsecond, and fingerprints have 128 bits.

pub mod actor;
pub mod bounds;
pub mod cluster;
pub mod explore;
pub mod judge;
pub mod merge;
pub mod mutation;
pub mod network;
pub mod record;
pub mod spec;
pub mod systems;
pub mod trace;
pub mod verdict;
