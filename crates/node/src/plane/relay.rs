// SPDX-License-Identifier: Apache-2.0
//! Passes datagrams between a DPDK port and a thread other than the one that polls it, such as a
//! front end beside a replica. That thread can't use sockets, since the kernel doesn't know the
//! port's addresses.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DataPlane, DpdkPlane, SendBatch, Sends};
use crate::Error;
use crate::host::Bell;

/// How many datagrams may wait in one of the queues. Further ones are lost, as on any network.
const MAX_WAITING: usize = 1024;
/// How many datagrams are sent in one turn.
const MAX_LEAVING: usize = 32;

type Datagram = (SocketAddr, Vec<u8>);

/// Returns both ends of a new relay.
pub fn relay() -> io::Result<(RelayEnd, Relay)> {
    let (out, leaving) = sync_channel(MAX_WAITING);
    let (come, came) = sync_channel(MAX_WAITING);
    let bell = Arc::new(Bell::new()?);
    let end = RelayEnd {
        out,
        came,
        bell: bell.clone(),
    };
    let at_port = AtPort {
        leaving,
        come,
        bell,
    };
    Ok((end, Relay(Arc::new(Mutex::new(at_port)))))
}

/// The end of the other thread.
pub struct RelayEnd {
    out: SyncSender<Datagram>,
    came: Receiver<Datagram>,
    bell: Arc<Bell>,
}

impl RelayEnd {
    /// Queues a datagram that the port will send.
    pub fn send(&self, to: SocketAddr, datagram: Vec<u8>) {
        // The sender repeats a lost datagram.
        let _ = self.out.try_send((to, datagram));
    }

    /// Returns the next received datagram and its sender, without waiting.
    pub fn receive(&self) -> Option<(SocketAddr, Vec<u8>)> {
        let next = || self.came.try_recv().ok();
        next().or_else(|| {
            self.bell.hush();
            // A datagram may have come before the bell was silenced.
            next()
        })
    }
}

impl AsFd for RelayEnd {
    /// Returns a descriptor that is readable when a datagram has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The end of the thread that polls the port. Clones share the same queues.
#[derive(Clone)]
pub struct Relay(Arc<Mutex<AtPort>>);

struct AtPort {
    leaving: Receiver<Datagram>,
    come: SyncSender<Datagram>,
    bell: Arc<Bell>,
}

impl Relay {
    fn at_port(&self) -> MutexGuard<'_, AtPort> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes on the datagrams that have come to the port, and sends those that wait. Returns
    /// whether there were any.
    pub(crate) fn pass(&self, port: &mut DpdkPlane, batch: &mut SendBatch) -> Result<bool, Error> {
        let at_port = self.at_port();
        let came = port.receive()?;
        if came {
            for arrival in port.arrivals() {
                for datagram in arrival.datagrams() {
                    let _ = at_port.come.try_send((arrival.from, datagram.to_vec()));
                }
            }
            at_port.bell.ring();
        }
        for (to, datagram) in at_port.leaving.try_iter().take(MAX_LEAVING) {
            batch.push_signed(&[to], &datagram, &[]);
        }
        let leaves = !batch.is_empty();
        port.send(batch);
        Ok(came || leaves)
    }
}
