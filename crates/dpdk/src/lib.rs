// SPDX-License-Identifier: Apache-2.0
//! The DPDK plane's edge: datagrams in and out by a port that DPDK drives, without the kernel.
//!
//! DPDK itself is reached through a small library of our own (`programs/dpdk`), which is built
//! where DPDK is installed and opened when a node wants it ([`Eal::start`]). So no build needs
//! DPDK, and a program runs where there is none.
//!
//! A [`Port`] takes and sends frames in bursts. A [`Station`] makes datagrams of them: it has an
//! address there, says so to who asks for it, and knows whom it can reach. Several of one thread
//! share a port by a [`Link`].

pub mod frame;
mod library;
mod link;
pub mod neighbours;
mod port;
mod station;

pub use library::{Eal, LIBRARY};
pub use link::{Link, Shared};
pub use port::{BURST, Frame, Port, ROOM};
pub use station::{Counters, Outlet, Station, View};

/// A result whose error is a text that says what went wrong and what to do.
pub type Result<T> = std::result::Result<T, String>;
