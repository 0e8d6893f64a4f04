// SPDX-License-Identifier: Apache-2.0
//! What other threads have of a worker's: its jobs, its mail and its bell.

use std::net::SocketAddr;
use std::sync::{Arc, mpsc};

use control::View;
use paxos::acceptor::Start;
use paxos::{Epoch, Instance, PartitionId};
use replica::{AskedReads, SiblingMessage};
use serde_json::Value;

use super::super::Services;
use super::super::checkpoint_mark::CheckpointMark;
use super::super::control_thread::Ask;
use super::super::mailbox::{Mailbox, Siblings};
use super::super::node_protocol::NodeProtocol;
use super::super::orders::Order;
use super::super::outbox::WorkerOutbox;
use super::super::partition::Partition;
use super::super::shared_position::SharedPosition;
use super::super::waker::Wake;
use super::super::worker_plane::WorkerIo;
use super::super::writer::Writer;
use super::WorkerThread;
use crate::Error;
use crate::transfer::recent::Recent;

/// A request of another thread to a worker.
pub enum Job {
    /// A newer view, with the address of the leader (or sequencer) if an epoch is active.
    View {
        view: Arc<View>,
        leader: Option<SocketAddr>,
    },
    /// Gives the worker a repair lane.
    Lane { epoch: Epoch, lane: u8 },
    /// Gives the worker the number of its disk.
    Incarnation(u64),
    /// Lets this start of a stored memory continue.
    LetGoOn { nonce: u64, start: Start },
    /// Stops execution until this epoch is active.
    StopExecution(Epoch),
    /// Passes on a message of another partition's worker.
    Sibling {
        from: PartitionId,
        message: SiblingMessage,
    },
    /// Reads without the log that the front end of this process asks for.
    Read(AskedReads),
    /// An order of those who read the replica's state, hand it out, or install another replica's.
    Order(Order),
    /// Tells the worker that the command before which this partition waits takes no effect, by an
    /// operator's order.
    Skip(Instance),
    /// Asks for the digest of the contents, which takes as long as reading all of them.
    Digest(Box<dyn FnOnce(Instance, String) + Send>),
    /// Asks for a status document.
    Status(mpsc::Sender<Value>),
}

/// A worker's connection to the control thread.
pub struct Link {
    pub ask: mpsc::Sender<Ask>,
    pub wake_control: Wake,
    /// Tells the catch-up thread that a state is needed.
    pub is_behind: mpsc::Sender<()>,
}

impl Link {
    pub(super) fn ask(&self, ask: Ask) {
        if self.ask.send(ask).is_ok() {
            self.wake_control.wake();
        }
    }
}

/// The mailboxes of all partitions' workers, and the receiving side of one of them.
pub struct Mail {
    pub inbox: mpsc::Receiver<Job>,
    pub mailboxes: Arc<[Mailbox]>,
}

/// Another thread's access to a worker.
pub struct WorkerHandle {
    mailbox: Mailbox,
    pub position: Arc<SharedPosition>,
    /// What it has executed last, if the cluster has an archive.
    pub recent: Option<Arc<Recent>>,
}

impl WorkerHandle {
    /// Opens the application, and returns an error if that fails. The thread that the mailbox wakes
    /// must serve the worker.
    pub(in crate::roles::replica) fn open<G: NodeProtocol>(
        partition: Partition<'_>,
        services: &Services,
        io: WorkerIo,
        link: Link,
        mail: Mail,
    ) -> Result<(WorkerHandle, WorkerThread<G>), Error> {
        let Mail { inbox, mailboxes } = mail;
        let mailbox = mailboxes[usize::from(partition.pid)].clone();
        let siblings = Siblings::of(partition.pid, mailboxes);
        let outbox = WorkerOutbox::new(partition, services, siblings)?;
        let writer = Writer::start(
            format!("checkpoint-{}", partition.pid),
            CheckpointMark::among(&partition.directory()?, partition.group.partitions),
            mailbox.wake.clone(),
        )?;
        let worker = WorkerThread::open(partition, services, io, outbox, link, inbox, writer)?;
        let handle = WorkerHandle {
            mailbox,
            position: worker.position.clone(),
            recent: worker.receivers.recent.clone(),
        };
        Ok((handle, worker))
    }

    /// Gives the worker a job, and returns false if the worker has ended.
    pub fn give(&self, job: Job) -> bool {
        self.mailbox.give(job)
    }
}
