// SPDX-License-Identifier: Apache-2.0
//! Data planes: how packets reach a role and leave it.
//!
//! A plane has two functions over batches of buffers that the caller owns: [`UdpPlane::receive`]
//! fills a [`RecvBatch`], and [`UdpPlane::send`] empties a [`SendBatch`]. Both batches are made
//! once and reused, so a packet's path allocates nothing. Every plane may lose, repeat and reorder
//! packets, and no role relies on more.
//!
//! A role whose process handles the packets receives them through a [`DataPlane`]: either sockets
//! (`sockets.rs`), or a DPDK port (`dpdk.rs`), which is polled all the time.
//!
//! On the XDP plane (`xdp.rs`) the roles themselves run in the kernel, and on the P4 plane
//! (`p4.rs`) in a switch; a node's process only controls them.

mod choice;
pub mod dpdk;
pub(crate) mod p4;
mod relay;
mod send_batch;
mod sockets;
pub mod udp;
pub(crate) mod xdp;

pub use self::dpdk::DpdkPlane;
pub(crate) use self::dpdk::{PortOut, Ports};
pub(crate) use choice::{in_kernel, refuse_deafness};
pub use relay::{Relay, RelayEnd, relay};
pub use send_batch::SendBatch;
pub(crate) use sockets::Sockets;
pub use udp::{Arrival, PlaneOptions, RecvBatch, SendCounters, UdpPlane};

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use loader::run::{counter, verdict_of};
use paxos::Verdict;
use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;
use serde_json::{Map, Value, json};

use crate::Error;

/// A way to send datagrams.
pub trait Sends {
    /// Sends the batch without waiting, and clears it. Datagrams that can't be sent are dropped and
    /// counted.
    fn send(&mut self, batch: &mut SendBatch);
}

/// A way to receive and send datagrams for a role in this process.
pub trait DataPlane: Sends {
    /// Returns a descriptor that is readable when datagrams are there, or `None` if the plane must
    /// be polled all the time.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Receives the datagrams that are there, without waiting. Returns false if there are none.
    fn receive(&mut self) -> io::Result<bool>;

    /// Returns the addresses that answered a datagram with ICMP port unreachable.
    fn refused(&mut self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Returns the datagrams of the last receive, in order.
    fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>>;

    /// Returns whether there may be more datagrams than the last receive returned.
    fn may_have_more(&self) -> bool;

    /// Sets the keys with which arriving packets must be signed. The receiver checks each packet;
    /// the plane may check it before.
    fn use_keys(&mut self, _keyring: &Keyring) {}

    /// Returns how many packets the plane has dropped, by reason.
    fn dropped(&self) -> ReasonCounters {
        ReasonCounters::default()
    }

    /// Returns the counters of sends.
    fn counters(&self) -> SendCounters;

    /// Returns the plane's part of a status document.
    fn status(&self, warnings: &mut Vec<String>) -> Value;
}

/// A program outside the process that handles a role's packets.
pub(crate) trait Handler {
    /// Returns a descriptor that is readable when the program has passed packets to the process.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Handles the packets that the program has passed.
    fn take_passed(&mut self) -> Result<(), Error>;

    /// Follows changes that no message announces, such as new keys.
    fn refresh(&mut self);

    /// Adds the plane's part to a status document.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);

    /// Called when a process ends that wasn't told to stop the node: prints what keeps running.
    fn say_what_stays(&self);
}

/// Returns a program's counters in the form that the socket plane uses. Programs count verdicts but
/// not types of messages; `of` returns the value of a counter.
pub(crate) fn counters(of: impl Fn(usize) -> u64) -> Value {
    let mut dropped = Map::new();
    let mut rejected = Map::new();
    for which in 1..counter::CHANGED {
        let n = of(which);
        match verdict_of(which).filter(|_| n > 0) {
            Some(Verdict::Dropped(reason)) => {
                dropped.insert(reason.name().to_owned(), n.into());
            }
            Some(Verdict::Rejected(reason)) => {
                rejected.insert(reason.name().to_owned(), n.into());
            }
            _ => {}
        }
    }
    json!({
        "dropped": dropped,
        "rejected": rejected,
        "changed": of(counter::CHANGED),
        "answered": of(counter::ANSWERED),
        "passed": of(counter::PASSED),
        "unsent": of(counter::UNSENT),
    })
}
