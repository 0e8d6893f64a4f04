// SPDX-License-Identifier: Apache-2.0
//! A cluster on this machine: its file, its addresses, its processes, and what speaks to them. For
//! the demo, the measurements, the torture and the tests.

#[macro_use]
pub mod output;

pub mod at_port;
mod cluster;
mod error;
pub mod latency;
mod narrator;
pub mod processes;
pub mod programs;
pub mod resp;
mod signed;

pub use cluster::{LocalCluster, MAX_VALUE, SLOTS, Shape, clean_up_on_signals};
pub use error::Error;
pub use narrator::Narrator;
pub use processes::Processes;
pub use signed::signed;
