// SPDX-License-Identifier: Apache-2.0
//! What a node does, by its role.
//!
//! | module | role | sockets | kernel | switch |
//! |---|---|---|---|---|
//! | [`leader`] | gives each value its place in the log; as a sequencer, in that of NOPaxos | one loop for all groups | an XDP program | a P4 program |
//! | [`acceptor`] | votes, and remembers its votes | one loop for all groups, memory or a log | an XDP program | a P4 program |
//! | [`learner`] | counts votes for the replicas | one loop for all groups | an XDP program | a P4 program |
//! | [`replica`] | executes what is decided | a thread a partition | the program counts the votes | never |
//! | [`controller`] | probes, and changes epochs | one loop for all groups | never | never |
//!
//! One loop drives all of them (`control_loop.rs`): orders, views, status and stop are handled there, and
//! the rest is a turn of the role. At ports of DPDK the nodes of a process have their turns in one thread (`rotation.rs`). What several share is the process of a role behind sockets
//! (`sockets.rs`) or elsewhere (`detached.rs`), and the way from a role's destinations to addresses,
//! by which everything is counted and recorded (`links.rs`); and the log in which what is durable is (`wal.rs`).

pub(crate) mod acceptor;
mod control_loop;
pub(crate) mod controller;
mod detached;
pub(crate) mod leader;
pub(crate) mod learner;
mod links;
pub(crate) mod replica;
pub(crate) mod rotation;
mod sockets;
mod unknown_members;
mod wal;
