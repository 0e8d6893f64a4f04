// SPDX-License-Identifier: Apache-2.0
//! Data planes: how packets reach a role and leave it.
//!
//! The seam is two functions over batches of buffers that the caller owns:
//! [`UdpPlane::receive`] fills a [`RecvBatch`], [`UdpPlane::send`] empties a [`SendBatch`]. Both
//! batches are made once and used again, so the path of a packet allocates nothing. Packets may be
//! lost, repeated and reordered by every plane; no role relies on more.
//!
//! Where a role's process handles packets, it has them by a [`DataPlane`]: sockets (`sockets.rs`), or a port of DPDK
//! (`dpdk.rs`), which is looked at all the time.
//!
//! On the XDP plane (`xdp.rs`) the roles themselves are in the kernel, and on the P4 plane (`p4.rs`) in a switch; a
//! node's process only controls them.

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
use std::os::fd::BorrowedFd;

use loader::run::{counter, verdict_of};
use paxos::Verdict;
use paxos::auth::Keyring;
use paxos::wire::ReasonCounters;
use serde_json::{Map, Value, json};

use crate::Error;

/// How datagrams leave.
pub trait Sends {
    /// Sends the batch, without waiting, and clears it. What can't be sent is dropped and counted.
    fn send(&mut self, batch: &mut SendBatch);
}

/// How datagrams reach a role that is in this process, and leave it.
pub trait DataPlane: Sends {
    /// Readable when something is there; nothing if it is to be looked at all the time.
    fn as_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Takes what is there, without waiting. False if there is nothing.
    fn receive(&mut self) -> io::Result<bool>;

    /// What was received last, in order.
    fn arrivals(&self) -> impl Iterator<Item = Arrival<'_>>;

    /// Whether more may be there than was received last.
    fn may_have_more(&self) -> bool;

    /// What arrives must be signed with these keys: whoever receives checks it, and the plane may before.
    fn use_keys(&mut self, _keyring: &Keyring) {}

    /// What the plane has dropped.
    fn dropped(&self) -> ReasonCounters {
        ReasonCounters::default()
    }

    /// What became of sends so far.
    fn counters(&self) -> SendCounters;

    /// The plane's part of a status document.
    fn status(&self, warnings: &mut Vec<String>) -> Value;
}

/// What handles a role's packets in its process's place.
pub(crate) trait Handler {
    /// Readable when something was passed to the process.
    fn as_fd(&self) -> BorrowedFd<'_>;

    /// Takes what was passed.
    fn take_passed(&mut self) -> Result<(), Error>;

    /// Follows what changes without a message.
    fn refresh(&mut self);

    /// The plane's part of a status document.
    fn status(&self, document: &mut Value, warnings: &mut Vec<String>);

    /// At the end of a process that wasn't told to stop the node.
    fn say_what_stays(&self);
}

/// As behind sockets, as far as programs count: they count verdicts, not types of messages. `of` tells where a counter
/// stands.
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
