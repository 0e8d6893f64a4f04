// SPDX-License-Identifier: Apache-2.0
//! The roles of nodes.
//!
//! | module | role | sockets | kernel | switch |
//! |---|---|---|---|---|
//! | [`leader`] | gives each value its place in the log; as a sequencer, in that of NOPaxos | one loop for all groups | an XDP program | a P4 program |
//! | [`acceptor`] | votes, and remembers its votes | one loop for all groups, memory or a log | an XDP program | a P4 program |
//! | [`learner`] | counts votes for the replicas | one loop for all groups | an XDP program | a P4 program |
//! | [`replica`] | executes what is decided | a thread a partition | the program counts the votes | never |
//! | [`controller`] | probes, and changes epochs | one loop for all groups | never | never |
//!
//! One loop drives all of them (`control_loop.rs`): it handles orders, views, status and stop, and
//! gives the role its turns. At DPDK ports the nodes of a process have their turns in one thread
//! (`rotation.rs`). Several roles share the process behind sockets (`sockets.rs`) or elsewhere
//! (`detached.rs`), the translation of a role's destinations to addresses, which also counts and
//! records everything (`links.rs`), and the log for durable state (`wal.rs`).

pub(crate) mod acceptor;
mod control_loop;
pub(crate) mod controller;
mod detached;
pub(crate) mod leader;
pub(crate) mod learner;
mod links;
pub(crate) mod members;
pub(crate) mod replica;
pub(crate) mod rotation;
mod sockets;
mod unknown_members;
mod wal;
