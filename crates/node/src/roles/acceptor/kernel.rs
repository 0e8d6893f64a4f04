// SPDX-License-Identifier: Apache-2.0
//! An acceptor in the kernel. Its votes are in pinned maps.
//!
//! When the process ends by a signal, or is killed, the acceptor keeps voting, and the next process
//! finds it; a new version of the program replaces it without losing a vote. An order to stop
//! removes it and leaves its memory in `acceptor.state`, like that of a software acceptor, for the
//! next start on any plane.

use std::path::PathBuf;

use control::Message;
use loader::acceptor::Acceptor;
use loader::object;
use paxos::GroupId;
use paxos::acceptor::Start;
use serde_json::Value;

use super::memory::{
    memory_on_disk, put_aside_as, read_dump, remove_dump, say_what_was_put_aside, write_dump,
};
use super::{AcceptorStatus, PartitionStatus, image};
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::plane::xdp::XdpPlane;
use crate::roles::control_loop::{Refusals, of_group};
use crate::roles::detached::{Detached, listeners};
use crate::{Error, random_nonce};

pub(super) struct KernelAcceptor {
    plane: XdpPlane,
    /// The acceptor of each group, in the order of the cluster file.
    acceptors: Vec<Acceptor>,
    /// The file in which an orderly stop leaves the memory.
    dump: PathBuf,
    refusals: Refusals,
}

impl Detached for KernelAcceptor {
    type Plane = XdpPlane;

    fn open(cluster: &ClusterFile, node: &Node) -> Result<Self, Error> {
        let dump = memory_on_disk(cluster, node)?;
        // An interrupted start had not taken over the whole file, and an interrupted stop had
        // completed it.
        if dump.exists() {
            XdpPlane::forget_unless_attached(cluster, node)?;
        }
        let members = cluster
            .groups
            .iter()
            .map(|g| (g.id, listeners(cluster, node, g.id)));
        let mut plane = XdpPlane::load(cluster, node, object::Role::Acceptor, members.collect())?;
        let acceptor = |place| Ok(Acceptor::new(plane.object(), place, random_nonce()?)?);
        let acceptors = plane.places().iter().copied().map(acceptor);
        let acceptors = acceptors.collect::<Result<Vec<_>, Error>>()?;
        if plane.is_new() {
            let mut dumped = read_dump(cluster, node, &dump)?;
            for saved in dumped.iter_mut().flatten() {
                saved.restarted(random_nonce()? as u32);
            }
            for (acceptor, saved) in acceptors.iter().zip(&dumped) {
                if let Some(saved) = saved {
                    acceptor.restore(saved);
                }
            }
        }
        // The file goes before the first vote, because a later start from it would have forgotten
        // that vote.
        remove_dump(&dump)?;
        plane.attach(0)?;
        Ok(KernelAcceptor {
            plane,
            acceptors,
            dump,
            refusals: Refusals::default(),
        })
    }

    fn plane(&self) -> &XdpPlane {
        &self.plane
    }

    fn plane_mut(&mut self) -> &mut XdpPlane {
        &mut self.plane
    }

    fn order(&mut self, order: &Message) -> Result<(), Error> {
        if let Some((group, nonce, start)) = order.resume() {
            self.resume(group, nonce, start);
        } else if let Some((group, nonce, start)) = order.discard() {
            self.discard(group, nonce, start)?;
        }
        let Some((group, enable)) = order.enable() else {
            return Ok(());
        };
        let id = |acceptor: &Acceptor| acceptor.place().deployment.group;
        let Some(acceptor) = of_group(&mut self.acceptors, group, id) else {
            return Ok(());
        };
        if let Err(why) = acceptor.enable(&enable) {
            let node = acceptor.place().deployment.node;
            let order = format!("enabling in epoch {} of group {group}", enable.epoch);
            self.refusals.say(node, order, why);
        }
        Ok(())
    }

    fn answer(&mut self, question: &Message) -> Result<Option<Message>, Error> {
        let Some(request) = question.earlier_start_request() else {
            return Ok(None);
        };
        let Some(acceptor) = self.of_group(request.group) else {
            return Ok(None);
        };
        let node = acceptor.place().deployment.node;
        if let Err(why) = acceptor.asked(request.nonce, request.start) {
            let order = "saying which starts it knows".to_owned();
            self.refusals.say(node, order, why);
            return Ok(None);
        }
        Ok(Some(request.answer(node, acceptor.was_at(request.earlier))))
    }

    fn status(&self, document: &mut Value, warnings: &mut Vec<String>) {
        let groups = self.acceptors.iter().map(|acceptor| {
            let place = acceptor.place();
            let partitions = 0..place.deployment.partitions;
            let shown = AcceptorStatus {
                group: place.deployment.group,
                epoch: acceptor.epoch(),
                nonce: acceptor.nonce(),
                start: acceptor.start().0,
                mute: acceptor.start().1,
                storage: Storage::Volatile,
                slots: place.slots,
                partitions: partitions
                    .map(|pid| PartitionStatus {
                        floor: acceptor.floor(pid),
                        trim: acceptor.trim(pid),
                        end: acceptor.end(pid),
                        reports: acceptor.reports(pid),
                    })
                    .collect(),
            };
            shown.to_json(warnings)
        });
        document["groups"] = groups.collect();
    }

    /// Leaves the memory on disk.
    fn leave(&mut self) -> Result<(), Error> {
        self.plane.detach()?;
        let saved = self
            .acceptors
            .iter()
            .map(|acceptor| (acceptor.place().deployment, acceptor.save()));
        write_dump(&self.dump, &image::of_saved(&saved.collect::<Vec<_>>()))?;
        self.plane.forget()
    }
}

impl KernelAcceptor {
    fn of_group(&self, group: GroupId) -> Option<&Acceptor> {
        let mut acceptors = self.acceptors.iter();
        acceptors.find(|a| a.place().deployment.group == group)
    }

    /// Lets this start of a memory continue, after the controller has compared it.
    fn resume(&self, group: GroupId, nonce: u64, start: Start) {
        let Some(acceptor) = self.of_group(group) else {
            return;
        };
        if let Err(why) = acceptor.resume(nonce, start) {
            let node = acceptor.place().deployment.node;
            self.refusals.say(node, "going on".to_owned(), why);
        }
    }

    /// Sets a memory aside and begins with an empty one, since the controller has seen more of it
    /// than there is.
    fn discard(&self, group: GroupId, nonce: u64, start: Start) -> Result<(), Error> {
        let Some(acceptor) = self.of_group(group) else {
            return Ok(());
        };
        let deployment = acceptor.place().deployment;
        if (acceptor.nonce(), acceptor.start()) != (nonce, (start, true)) {
            let why = "it is meant for another memory, or another start of it";
            let order = "giving up its memory".to_owned();
            self.refusals.say(deployment.node, order, why);
            return Ok(());
        }
        let aside = put_aside_as(&self.dump, nonce);
        write_dump(&aside, &image::of_saved(&[(deployment, acceptor.save())]))?;
        say_what_was_put_aside(&deployment, &aside);
        acceptor.discard(random_nonce()?).map_err(Error::new)
    }
}
