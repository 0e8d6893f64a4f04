// SPDX-License-Identifier: Apache-2.0
//! The P4 plane's edge: what a node's process says to the programs of `programs/p4/`, and how they
//! are compiled and run in BMv2, the software switch.
//!
//! A program and its process talk in [orders](Order), a packet each, by the switch's CPU port. That
//! works on every target, and what an order changes changes at once (`programs/p4/README.md`).

pub mod bmv2;
pub mod cpu_port;
pub mod order;
pub mod packet_socket;
pub mod programs;
pub mod role;
pub mod tables;

pub use order::{Op, Order};
pub use role::{About, Port, Role};

/// A result whose error is a text for people.
pub type Result<T> = std::result::Result<T, String>;
