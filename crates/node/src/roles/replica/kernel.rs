// SPDX-License-Identifier: Apache-2.0
//! A replica's learner in the kernel. An XDP program at the interface counts the votes, and each
//! partition's worker reads the decisions in place, from its own ring. All other packets for the
//! replica go to the workers' sockets, and so do the votes while a worker repairs.
//!
//! Votes of acceptors on this machine reach the workers' sockets without passing the interface, and
//! so the program. If there are such acceptors, the program always passes on all other votes, too,
//! and workers count by themselves.
//!
//! The learner's memory belongs to the process: the program ends with it, and the next one begins
//! where the replica's execution stands.

use std::cell::RefCell;

use loader::attach::Attachment;
use loader::interface::Interface;
use loader::layout::{Decision, GROUP_PASS_OTHERS};
use loader::learner::{Learner, Windows, decision};
use loader::map_place::{self, MapPlace};
use loader::object::{self, MAX_RINGS, Object, Role, Sizes};
use loader::ring::Ring;
use paxos::{Configuration, Flags, Header, Instance, MsgType, Packet, PartitionId, Round};
use serde_json::{Value, json};
use tracing::warn;

use crate::Error;
use crate::cluster_file::{ClusterFile, Group, Node};
use crate::plane::counters;
use crate::plane::xdp::{
    KernelKeys, device, refuse_traces, say_what_is_at_interface, tell_senders,
};

/// The learner of all partitions.
pub(super) struct KernelLearner {
    object: Object,
    keys: RefCell<KernelKeys>,
    place: MapPlace,
    table: Learner,
    interface: Interface,
    attachment: Attachment,
    /// Workers get all votes.
    shows_all: bool,
}

impl KernelLearner {
    /// Loads and attaches the learner. It counts nothing until it has learned a configuration.
    pub fn open(cluster: &ClusterFile, node: &Node, group: &Group) -> Result<Self, Error> {
        if usize::from(group.partitions) > MAX_RINGS {
            return Err(Error::new(format!(
                "{} partitions: a learner in the kernel has {MAX_RINGS} rings, one a partition; \
                 use the udp plane",
                group.partitions
            )));
        }
        refuse_traces(cluster)?;
        let interface = Interface::with_address(node.address.ip())?;
        let sizes = Sizes::of(1, group.partitions, group.slots as u32);
        let mut object = Object::load(&object::directory()?, Role::Learner, &sizes)?;
        let place = MapPlace::only(cluster.deployment(node, group), group.slots as u64);
        let table = Learner::new(&object, place, 0)?;
        let learners: Vec<_> = cluster.learners().iter().map(|n| n.id).collect();
        Learner::trust(&object, &learners)?;
        tell_senders(&mut object, cluster)?;
        let keys = RefCell::new(KernelKeys::of_node(cluster, &object)?);
        let device = device(cluster, node, group.partitions);
        map_place::open(&mut object, &place, GROUP_PASS_OTHERS, &device)?;
        let attachment = object.attach(&interface)?;
        say_what_is_at_interface(Role::Learner, &interface, &attachment);
        Ok(KernelLearner {
            object,
            keys,
            place,
            table,
            interface,
            attachment,
            shows_all: has_voters_here(cluster, node, group),
        })
    }

    /// Returns a worker's end of the learner.
    pub fn worker(&self, pid: PartitionId) -> Result<Decisions, Error> {
        let windows = Windows::open(&self.object, self.place)?;
        windows.show_votes(pid, self.shows_all);
        Ok(Decisions {
            pid,
            windows,
            ring: Ring::open(&self.object, usize::from(pid))?,
            shows_all: self.shows_all,
            shown: self.shows_all,
            cluster: self.place.deployment.cluster,
        })
    }

    /// Takes new keys from the key file, if it was replaced.
    pub fn follow_keys(&self) {
        if let Err(why) = self.keys.borrow_mut().reload() {
            warn!("plane: the learner's program has its old keys: {why}");
        }
    }

    /// Learns the configurations of a view's epochs.
    pub fn learn<'a>(&self, configurations: impl Iterator<Item = &'a Configuration>) {
        if self.table.learn_all(configurations) {
            self.table.settle();
        }
    }

    /// Returns the plane's part of the status.
    pub fn status(&self) -> Value {
        json!({
            "name": "xdp",
            "interface": self.interface.name,
            "mode": self.attachment.mode.name(),
            "why_generic": self.attachment.why_generic,
            "auth": self.keys.borrow().shown(),
            "counters": counters(|which| self.object.counter(which)),
        })
    }
}

/// Returns whether acceptors on this machine vote for this replica.
fn has_voters_here(cluster: &ClusterFile, node: &Node, group: &Group) -> bool {
    let hears = |acceptor: &&Node| {
        let listeners = cluster.listeners(acceptor, group.id);
        listeners.iter().any(|listener| listener.id == node.id)
    };
    let acceptors = cluster.acceptors();
    let mut heard = acceptors.iter().copied().filter(hears);
    heard.any(|acceptor| Interface::with_address(acceptor.address.ip()).is_ok())
}

/// The decisions of one partition.
pub(super) struct Decisions {
    pid: PartitionId,
    cluster: u32,
    windows: Windows,
    ring: Ring,
    /// Votes always come to the socket, too; `shown` says whether they do now.
    shows_all: bool,
    shown: bool,
}

impl Decisions {
    /// Prepares for a wait at the socket: from now on the packet that decides comes there, too.
    /// Returns false, and changes nothing, if there is something to read.
    pub fn fall_asleep(&self) -> bool {
        self.windows.set_awake(self.pid, false);
        let empty = self.ring.is_empty();
        if !empty {
            self.wake_up();
        }
        empty
    }

    /// Must be called after a wait, since a reader that is awake needs no packet to wake it.
    pub fn wake_up(&self) {
        self.windows.set_awake(self.pid, true);
    }

    /// Passes the next decision to `take`, in place, or returns `None` if there is none.
    pub fn next<R>(&mut self, take: impl FnOnce(&Packet<'_>) -> R) -> Option<R> {
        let cluster = self.cluster;
        self.ring.next(|record| {
            let head = decision(record).expect("the program writes whole records");
            let value = &record[size_of::<Decision>()..][..usize::from(head.len)];
            take(&Packet {
                header: header(&head, cluster),
                tag: None,
                value,
            })
        })
    }

    /// Sets the instance below which votes are stale. It takes no system call.
    pub fn set_floor(&mut self, next: Instance, wants_votes: bool) {
        self.windows.set_floor(self.pid, next);
        let show = wants_votes || self.shows_all;
        if show != self.shown {
            self.windows.show_votes(self.pid, show);
            self.shown = show;
        }
    }
}

/// Returns the header of the DELIVER that a learner elsewhere would have sent.
fn header(decision: &Decision, cluster: u32) -> Header {
    Header {
        value_len: decision.len,
        group: decision.group,
        pid: decision.pid,
        inst: decision.inst,
        rnd: Round(decision.rnd),
        vrnd: Round(decision.rnd),
        flags: Flags(decision.flags),
        cluster,
        client: decision.client,
        request: decision.request,
        ..Header::new(MsgType::Deliver)
    }
}
