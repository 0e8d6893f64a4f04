// SPDX-License-Identifier: Apache-2.0
//! The roles of nodes.
//!
//! | module | role | sockets | kernel | switch |
//! |---|---|---|---|---|
//! | [`leader`] | gives values their places in the log | one loop | XDP program | P4 program |
//! | [`acceptor`] | votes, and remembers that | one loop, or a log | XDP program | P4 program |
//! | [`learner`] | counts votes for the replicas | one loop | XDP program | P4 program |
//! | [`replica`] | executes what is decided | a thread a partition | counts the votes | never |
//! | [`controller`] | probes, and changes epochs | one loop | never | never |
//!
//! A loop is one for all groups. As a sequencer, a leader gives places in the log of NOPaxos.
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
