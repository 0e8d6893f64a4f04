// SPDX-License-Identifier: Apache-2.0
//! An acceptor behind sockets, with its memory in a log or, after an orderly stop, in a file.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use control::Message;
use paxos::acceptor::Start;
use paxos::{Acceptor, Enable, GroupId, Packet, Verdict, trace};
use serde_json::Value;

use super::logged::{slot_of, strangers_for_none};
use super::memory::{
    keep_log_as, memory_on_disk, put_aside_as, read_dump, read_log, remove_dump,
    say_what_was_put_aside, write_dump,
};
use super::{AcceptorStatus, PartitionStatus, image};
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::roles::control_loop::{Refusals, of_group};
use crate::roles::links::Links;
use crate::roles::sockets::Role;
use crate::roles::wal::{RecordKind, Wal};
use crate::{Error, random_nonce};

pub(super) struct AcceptorRole {
    /// The acceptor of each group, in the order of the cluster file.
    pub acceptors: Vec<Acceptor>,
    keeping: Keeping,
    refusals: Refusals,
}

enum Keeping {
    /// The file in which an orderly stop leaves the memory.
    Volatile(PathBuf),
    Durable(Box<Wal>),
}

impl AcceptorRole {
    pub fn open(cluster: &ClusterFile, node: &Node, links: &mut Links) -> Result<Self, Error> {
        let mine = memory_on_disk(cluster, node)?;
        let (acceptors, keeping) = match node.storage {
            Storage::Volatile => Self::open_volatile(cluster, node, &mine)?,
            Storage::Durable => Self::open_durable(cluster, node, &mine)?,
        };
        let role = AcceptorRole {
            acceptors,
            keeping,
            refusals: Refusals::default(),
        };
        for acceptor in &role.acceptors {
            note_start(acceptor, links);
        }
        Ok(role)
    }

    fn open_volatile(
        cluster: &ClusterFile,
        node: &Node,
        dump: &Path,
    ) -> Result<(Vec<Acceptor>, Keeping), Error> {
        let mut dumped = read_dump(cluster, node, dump)?;
        for acceptor in dumped.iter_mut().flatten() {
            acceptor.restarted(random_nonce()? as u32);
        }
        let acceptors = strangers_for_none(dumped, cluster, node)?;
        // The file goes before the first vote, because a later start from it would have forgotten
        // that vote.
        remove_dump(dump)?;
        Ok((acceptors, Keeping::Volatile(dump.to_owned())))
    }

    fn open_durable(
        cluster: &ClusterFile,
        node: &Node,
        log: &Path,
    ) -> Result<(Vec<Acceptor>, Keeping), Error> {
        let (read, memory) = read_log(cluster, node, log)?;
        let acceptors = memory.restarted()?;
        // A memory's boot nonce and the number of its starts are stored before they are shown.
        // [A-MUTE]
        let wal = read.go_on(&acceptors)?;
        Ok((acceptors, Keeping::Durable(Box::new(wal))))
    }
}

pub(super) fn id(acceptor: &Acceptor) -> GroupId {
    acceptor.deployment().group
}

fn note_start(acceptor: &Acceptor, links: &mut Links) {
    let (nonce, start) = (acceptor.nonce(), acceptor.start().number());
    links.record(id(acceptor), |trace| {
        trace.started(trace::Role::Acceptor, nonce, start);
    });
}

impl Role for AcceptorRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        datagram: &[u8],
        links: &mut Links,
    ) -> Result<Verdict, Error> {
        let verdict = self.acceptors[group].step(packet, links);
        if let (Verdict::Changed, Keeping::Durable(wal)) = (verdict, &mut self.keeping) {
            wal.append(RecordKind::Packet, datagram, slot_of(&packet.header));
            links.changed();
        }
        Ok(verdict)
    }

    fn commit(&mut self, links: &mut Links) -> Result<(), Error> {
        if let Keeping::Durable(wal) = &mut self.keeping {
            if wal.tend(&self.acceptors) {
                links.changed();
            }
        }
        Ok(())
    }

    /// Begins to store the votes of a durable acceptor. [A-DURABLE]
    fn store(&mut self) -> Result<(), Error> {
        match &mut self.keeping {
            Keeping::Durable(wal) => wal.begin(&self.acceptors),
            Keeping::Volatile(_) => Ok(()),
        }
    }

    fn stored(&mut self, wait: bool) -> Result<bool, Error> {
        match &mut self.keeping {
            Keeping::Durable(wal) => {
                let wait = wait || wal.is_full();
                wal.synced(wait)
            }
            Keeping::Volatile(_) => Ok(true),
        }
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        match &self.keeping {
            Keeping::Durable(wal) => Some(wal.bell().as_fd()),
            Keeping::Volatile(_) => None,
        }
    }

    fn message(
        &mut self,
        message: &Message,
        _from: SocketAddr,
        links: &mut Links,
    ) -> Result<(), Error> {
        if let Some((group, nonce, start)) = message.resume() {
            self.resume(group, nonce, start, links);
        } else if let Some((group, nonce, start)) = message.discard() {
            self.discard(group, nonce, start, links)?;
        } else if let Some((group, enable)) = message.enable() {
            self.enable(group, &enable, message, links)?;
        }
        Ok(())
    }

    /// Answers a question about an earlier start. A start that the controller is told must be known
    /// to all later ones, so it is stored first. [A-TOLD]
    fn answer(&mut self, question: &Message, links: &mut Links) -> Result<Option<Message>, Error> {
        let Some(request) = question.earlier_start_request() else {
            return Ok(None);
        };
        let Some(acceptor) = of_group(&mut self.acceptors, request.group, id) else {
            return Ok(None);
        };
        let node = acceptor.deployment().node;
        let changed = match acceptor.asked(request.nonce, request.start) {
            Ok(changed) => changed,
            Err(why) => {
                let order = "saying which starts it knows".to_owned();
                self.refusals.say(node, order, why);
                return Ok(None);
            }
        };
        let answer = request.answer(node, acceptor.was_at(request.earlier));
        if changed {
            self.append(RecordKind::Asked, question, links)?;
        }
        Ok(Some(answer))
    }

    fn stop(&mut self) -> Result<(), Error> {
        match &mut self.keeping {
            Keeping::Durable(_) => Ok(()),
            Keeping::Volatile(dump) => write_dump(dump, &image::encode(&self.acceptors)),
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let storage = match self.keeping {
            Keeping::Volatile(_) => Storage::Volatile,
            Keeping::Durable(_) => Storage::Durable,
        };
        let status = |acceptor: &Acceptor| {
            let partitions = 0..acceptor.deployment().partitions;
            let shown = AcceptorStatus {
                group: acceptor.deployment().group,
                epoch: acceptor.epoch(),
                nonce: acceptor.nonce(),
                start: acceptor.start(),
                mute: acceptor.is_mute(),
                storage,
                slots: acceptor.slots(),
                partitions: partitions.map(|pid| of_partition(acceptor, pid)).collect(),
            };
            shown.to_json(warnings)
        };
        self.acceptors.iter().map(status).collect()
    }

    fn show(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let Keeping::Durable(wal) = &self.keeping else {
            return;
        };
        let log = wal.shown();
        warnings.extend(log.warning("acceptor"));
        document["log"] = log.to_json();
    }
}

impl AcceptorRole {
    fn enable(
        &mut self,
        group: GroupId,
        enable: &Enable,
        order: &Message,
        links: &mut Links,
    ) -> Result<(), Error> {
        let Some(acceptor) = of_group(&mut self.acceptors, group, id) else {
            return Ok(());
        };
        links.record(group, |trace| trace.enabled(enable));
        let changed = match acceptor.enable(enable) {
            Ok(changed) => changed,
            Err(why) => {
                // Orders that come late, or are repeated for a memory that is gone, are routine.
                let node = acceptor.deployment().node;
                let order = format!("enabling in epoch {} of group {group}", enable.epoch);
                self.refusals.say(node, order, why);
                false
            }
        };
        // The controller keeps repeating its orders, so only changes are stored.
        match changed {
            true => self.append(RecordKind::Enable, order, links),
            false => Ok(()),
        }
    }

    fn append(
        &mut self,
        kind: RecordKind,
        order: &Message,
        links: &mut Links,
    ) -> Result<(), Error> {
        if let Keeping::Durable(wal) = &mut self.keeping {
            let bytes = serde_json::to_vec(order).map_err(|e| Error::new(e.to_string()))?;
            wal.append(kind, &bytes, None);
            links.changed();
        }
        Ok(())
    }

    /// Lets this start of a memory continue, after the controller has compared it. [A-MUTE]
    fn resume(&mut self, group: GroupId, nonce: u64, start: Start, links: &mut Links) {
        let Some(acceptor) = of_group(&mut self.acceptors, group, id) else {
            return;
        };
        match acceptor.resume(nonce, start) {
            Ok(true) => links.record(group, |trace| trace.resumed(start)),
            Ok(false) => {}
            Err(why) => {
                let node = acceptor.deployment().node;
                self.refusals.say(node, "going on".to_owned(), why);
            }
        }
    }

    /// Sets a memory aside and begins with an empty one, since the controller has seen more of it
    /// than there is. [A-DISCARD]
    fn discard(
        &mut self,
        group: GroupId,
        nonce: u64,
        start: Start,
        links: &mut Links,
    ) -> Result<(), Error> {
        let mut acceptors = self.acceptors.iter();
        let Some(at) = acceptors.position(|a| a.deployment().group == group) else {
            return Ok(());
        };
        let acceptor = &self.acceptors[at];
        let is_meant = (acceptor.nonce(), acceptor.start()) == (nonce, start);
        if !is_meant || !acceptor.is_mute() {
            let why = "it is meant for another memory, or another start of it";
            let order = "giving up its memory".to_owned();
            self.refusals.say(acceptor.deployment().node, order, why);
            return Ok(());
        }
        let empty = Acceptor::new(
            *acceptor.deployment(),
            acceptor.slots() as usize,
            random_nonce()?,
        );
        match &mut self.keeping {
            Keeping::Volatile(dump) => {
                let aside = put_aside_as(dump, nonce);
                write_dump(&aside, &image::encode(std::slice::from_ref(acceptor)))?;
                say_what_was_put_aside(acceptor.deployment(), &aside);
                self.acceptors[at] = empty;
            }
            Keeping::Durable(wal) => {
                let aside = put_aside_as(wal.files().path(), nonce);
                keep_log_as(wal, &aside)?;
                say_what_was_put_aside(acceptor.deployment(), &aside);
                self.acceptors[at] = empty;
                // No other change is open, since the process made sure of that before it took the
                // order.
                wal.append_heads(&self.acceptors);
                wal.begin(&self.acceptors)?;
                wal.synced(true)?;
            }
        }
        note_start(&self.acceptors[at], links);
        Ok(())
    }
}

fn of_partition(acceptor: &Acceptor, pid: u16) -> PartitionStatus {
    let replicas = acceptor.reports().replicas().iter().copied();
    let reports = acceptor.reports().of(pid).iter().copied();
    PartitionStatus {
        floor: acceptor.floor(pid),
        trim: acceptor.trim(pid),
        end: acceptor.end(pid),
        reports: replicas.zip(reports).collect(),
    }
}
