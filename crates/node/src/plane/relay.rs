// SPDX-License-Identifier: Apache-2.0
//! The way by a port of DPDK for another thread than the one that looks at it, such as that of a front end beside a replica:
//! the kernel doesn't know the port's addresses. Datagrams pass between the two threads in queues.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{DataPlane, DpdkPlane, SendBatch, Sends};
use crate::Error;
use crate::host::Bell;

/// Datagrams that wait in one of the queues at most. What is too much is lost, as on any network.
const MAX_WAITING: usize = 1024;
/// So many leave in one turn at most.
const MAX_LEAVING: usize = 32;

type Datagram = (SocketAddr, Vec<u8>);

/// Both ends of a new one.
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

/// The end of the thread that is elsewhere.
pub struct RelayEnd {
    out: SyncSender<Datagram>,
    came: Receiver<Datagram>,
    bell: Arc<Bell>,
}

impl RelayEnd {
    /// Sends a datagram by the port, soon.
    pub fn send(&self, to: SocketAddr, datagram: Vec<u8>) {
        // One that is lost is sent again.
        let _ = self.out.try_send((to, datagram));
    }

    /// The next one that has come, and its sender. Never waits.
    pub fn receive(&self) -> Option<(SocketAddr, Vec<u8>)> {
        let next = || self.came.try_recv().ok();
        next().or_else(|| {
            self.bell.hush();
            // It may have come before that.
            next()
        })
    }
}

impl AsFd for RelayEnd {
    /// Readable when something has come.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The end of the thread that looks at the port. Copies are of one and the same.
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

    /// Hands on what has come to the port, and what is to leave by it. Whether there was anything.
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
