// SPDX-License-Identifier: Apache-2.0
//! A deterministic simulator of the roles, the replicas and the controller. No node uses it; the
//! program has it for its command `sim`, and `torture` for its random numbers and its checker of
//! histories.
//!
//! A seed determines a run: the cluster, the clients' commands, every fault and every packet's fate
//! follow from it. The simulated code is the code that ships: leaders, acceptors, workers,
//! controllers and proposers, on simulated clocks, disks and links. Packets travel as bytes.
//!
//! | module | what it has |
//! |---|---|
//! | [`plan`], [`draw`] | what happens in a run, as text; how a seed draws it |
//! | [`cluster`] | nodes on machines that crash, lose power, pause, fill up and drift |
//! | [`network`], [`disk`], [`queue`], [`rng`] | the simulated world |
//! | [`application`] | the replicated program |
//! | [`check`] | the invariants, checked after every step by records of their own |
//! | [`linearizability`] | Wing and Gong's algorithm with Lowe's memoisation, by key |
//! | [`cluster::mutation`] | deliberate mistakes of the harness, to prove that checkers bite |
//! | [`run`], [`shrink`], [`cli`] | seeds by the thousand; ddmin; the command line |
//! | [`cluster_script`], [`script`] | `testdata/cluster`, and packets in and out for one role |

pub mod application;
pub mod check;
pub mod cli;
pub mod cluster;
pub mod cluster_script;
pub mod disk;
pub mod draw;
pub mod linearizability;
pub mod observe;
pub mod plan;
pub mod run;
pub mod script;
pub mod shrink;

pub use test_world::{network, queue, rng};
