// SPDX-License-Identifier: Apache-2.0
//! The `recover` of the papers (P4xos, Figure 4): finds out what an instance decided, and closes it
//! if it decided nothing.

use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use control::{Message, Protocol};
use node::Senders;
use node::auth::{Keys, Signer};
use node::cluster_file::{ClusterFile, Node, Role};
use node::host::wait;
use node::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use paxos::recover::{Filler, Outcome, Recover, RecoverSettings};
use paxos::{
    Deployment, GroupId, Header, Instance, NodeId, Outbox, PartitionId, Reason, Time, To, Verdict,
};

use crate::control::ControlClient;
use crate::error::Error;
use crate::session::{deployment, known_group, random_nonce};

/// The decided contents of an instance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// The flags, client and request of the value, and the round of its votes.
    pub header: Header,
    /// The value, which is empty for a no-op.
    pub value: Vec<u8>,
}

/// Recovers instances of one partition, in its own repair lane.
pub struct Recovery {
    start: Instant,
    plane: UdpPlane,
    senders: Senders,
    inbox: RecvBatch,
    outbox: AcceptorOutbox,
    recover: Recover,
    /// The acceptors that have said that the instance lies beyond their windows.
    beyond: BTreeSet<NodeId>,
    quorum: usize,
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_AFTER: Time = 20_000_000;

impl Recovery {
    /// Asks the control plane for the active epoch and for a lane in it.
    pub fn open(
        cluster: &ClusterFile,
        group: GroupId,
        pid: PartitionId,
    ) -> Result<Recovery, Error> {
        let known = known_group(cluster, group)?;
        let quorum = usize::from(known.f) + 1;
        if known.protocol == Protocol::NoPaxos {
            return Err(Error::configuration(
                format!(
                    "group {group} has protocol \"nopaxos\": no acceptors know what an instance \
                     holds"
                ),
                "ask a group with protocol \"paxos\"",
            ));
        }
        let node = node_here(cluster)?;
        let deployment = Deployment {
            node: node.id,
            ..deployment(cluster, group)?
        };
        if pid >= deployment.partitions {
            return Err(Error::configuration(
                format!("there is no partition {pid} in group {group}"),
                format!("choose 0 to {}", deployment.partitions - 1),
            ));
        }
        let nonce = random_nonce()?;
        let keyring = Keys::of_node(cluster)?.keyring();
        let mut recovery = Recovery {
            start: Instant::now(),
            plane: UdpPlane::bind((node.address.ip(), 0).into(), PlaneOptions::default())?,
            senders: Senders::of(cluster).with(keyring.clone()),
            inbox: RecvBatch::new(),
            outbox: AcceptorOutbox::new(cluster, Signer::new(keyring)),
            recover: Recover::new(RecoverSettings {
                deployment,
                pid,
                retry_after: RETRY_AFTER,
                propose_after: 0,
                max_open: 1,
                nonce,
            }),
            beyond: BTreeSet::new(),
            quorum,
        };
        recovery.enter_epoch(cluster, group, nonce)?;
        Ok(recovery)
    }

    fn enter_epoch(
        &mut self,
        cluster: &ClusterFile,
        group: GroupId,
        nonce: u64,
    ) -> Result<(), Error> {
        // Votes are counted by the view's configuration, so only the controller's view is used.
        let peers: Vec<_> = cluster.controllers().map(|n| n.control).collect();
        let mut control = ControlClient::new(cluster)?;
        let ask_view = Message::ViewRequest { group };
        let view = control.ask(
            &peers,
            &ask_view,
            ANSWER_TIMEOUT,
            |from, message| match message {
                Message::View(view)
                    if from == peers[0] && view.group == group && view.active().is_some() =>
                {
                    Some(view)
                }
                _ => None,
            },
        )?;
        let epoch = view.active().map_or(0, |e| e.epoch);
        let ask_lane = Message::LaneRequest {
            group,
            epoch,
            node: 0,
            nonce,
        };
        control.check_order(&ask_lane)?;
        let lane = control
            .ask(
                &peers,
                &ask_lane,
                ANSWER_TIMEOUT,
                |_, message| match message {
                    Message::Lane {
                        group: g,
                        epoch: e,
                        nonce: n,
                        lane,
                    } if (g, e, n) == (group, epoch, nonce) => Some(lane),
                    _ => None,
                },
            )
            .map_err(|e| {
                Error::TimedOut(format!(
                    "no repair lane: {e}; or `refused_lanes` in the controller's status: then \
                     `wirepaxos failover` begins an epoch with others"
                ))
            })?;
        for record in view.begun_epochs() {
            self.recover.learn(&record.configuration());
        }
        let active = view.active().map(|e| e.configuration());
        self.recover
            .set_epoch(0, active.as_ref().map(|c| (c, Some(lane))));
        Ok(())
    }

    /// Returns what `inst` decided; if it decided nothing, `filler` is proposed first.
    ///
    /// # Errors
    /// [`Error::Denied`] if the instance has been trimmed, or lies beyond the log;
    /// [`Error::NoQuorum`] if no majority of the acceptors answers within `timeout`.
    pub fn recover(
        &mut self,
        inst: Instance,
        filler: Filler<'_>,
        timeout: Duration,
    ) -> Result<Decided, Error> {
        self.recover
            .recover(self.now(), inst, filler)
            .map_err(|reason| Error::Denied(format!("instance {inst}: {}", reason.name())))?;
        self.beyond.clear();
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline && self.beyond.len() < self.quorum {
            self.advance()?;
            match self.recover.poll() {
                Some(Outcome::Decided { header, value }) => return Ok(Decided { header, value }),
                Some(Outcome::Trimmed { trim, .. }) => {
                    return Err(Error::Denied(format!(
                        "instance {inst} is forgotten: everything below {trim} is in the replicas' \
                         checkpoints"
                    )));
                }
                None => {}
            }
            if self.recover.needs_epoch() {
                let text = "this lane has no attempts left for the instance; try again";
                return Err(Error::Denied(text.to_owned()));
            }
        }
        Err(undecided(inst, timeout, self.beyond.len() >= self.quorum))
    }

    /// Recovers an instance with `bytes` as the filler. They belong to no client, so replicas
    /// deliver them nowhere.
    pub fn recover_with(
        &mut self,
        inst: Instance,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<Decided, Error> {
        // No client has opened the session, so the replicas don't execute its requests.
        let client = random_nonce()?;
        let filler = Filler::Command {
            client,
            request: 1,
            bytes,
        };
        self.recover(inst, filler, timeout)
    }

    fn advance(&mut self) -> Result<(), Error> {
        let now = self.now();
        self.recover.tick(now, &mut self.outbox);
        self.plane.send(&mut self.outbox.batch);
        let until = self
            .recover
            .next_deadline()
            .map_or(RETRY_AFTER, |at| at.saturating_sub(now));
        wait(
            &[self.plane.as_fd()],
            Some(Duration::from_nanos(until.min(RETRY_AFTER))),
        )?;
        let now = self.now();
        while self.plane.receive(&mut self.inbox)? {
            for arrival in self.inbox.iter() {
                for datagram in arrival.datagrams() {
                    if let Ok(packet) = self.senders.parse(datagram, &arrival.from) {
                        let verdict = self.recover.step(now, &packet, &mut self.outbox);
                        // Other packets that are dropped are late or aren't ours, which doesn't
                        // matter here.
                        if verdict == Verdict::Dropped(Reason::Window) {
                            self.beyond.insert(packet.header.swid);
                        }
                    }
                }
            }
        }
        self.plane.send(&mut self.outbox.batch);
        Ok(())
    }

    fn now(&self) -> Time {
        self.start.elapsed().as_nanos() as Time
    }
}

/// Returns why nothing was found out about an instance.
fn undecided(inst: Instance, timeout: Duration, is_beyond: bool) -> Error {
    match is_beyond {
        true => Error::Denied(format!(
            "instance {inst} lies beyond the acceptors' window, where nothing can be decided yet: \
             the log goes up to the leader's `next` in wirepaxos status"
        )),
        false => Error::NoQuorum(format!(
            "no quorum of acceptors answered for instance {inst} within {} s; see wirepaxos status",
            timeout.as_secs()
        )),
    }
}

/// Returns the node in whose name this host may propose, since acceptors accept proposals from
/// nodes' addresses only. This is a replica if there is one, since replicas propose anyway.
fn node_here(cluster: &ClusterFile) -> Result<&Node, Error> {
    let replicas = cluster.with_role(Role::Replica);
    let is_here = |node: &&Node| UdpSocket::bind((node.address.ip(), 0)).is_ok();
    replicas.chain(&cluster.nodes).find(is_here).ok_or_else(|| {
        Error::configuration(
            "no node of the cluster file has an address of this machine, and acceptors take \
             proposals from nodes' addresses only",
            "recover on the machine of a node",
        )
    })
}

struct AcceptorOutbox {
    acceptors: Vec<(paxos::NodeId, SocketAddr)>,
    signer: Signer,
    batch: SendBatch,
}

impl AcceptorOutbox {
    fn new(cluster: &ClusterFile, signer: Signer) -> AcceptorOutbox {
        AcceptorOutbox {
            signer,
            acceptors: cluster
                .acceptors()
                .iter()
                .map(|n| (n.id, n.address))
                .collect(),
            batch: SendBatch::new(),
        }
    }
}

impl Outbox for AcceptorOutbox {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        for (id, address) in &self.acceptors {
            if to == To::Acceptors || to == To::Node(*id) {
                let to = std::slice::from_ref(address);
                self.signer
                    .push_all(&mut self.batch, to, header, value, keys::NODES);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error for a client that asks for an instance of group 0, in a cluster of these
    /// roles.
    fn said_to(name: &str, group: &str, roles: &[&str]) -> String {
        // These addresses are reserved for documentation (RFC 5737).
        let node = |id: u16, role: &str| {
            format!(
                "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\n\
                 address = \"203.0.113.{id}:7000\"\ncontrol = \"203.0.113.{id}:7001\"\n"
            )
        };
        let nodes: String = (1..).zip(roles).map(|(id, role)| node(id, role)).collect();
        let text = format!(
            "cluster = \"0badcafe\"\ndata = \"data\"\n[[group]]\nid = 0\napplication \
             = \"echo\"\n{group}{nodes}"
        );
        let directory = format!("wirepaxos-recover-{name}-{}", std::process::id());
        let directory = std::env::temp_dir().join(directory);
        std::fs::create_dir_all(&directory).unwrap();
        let file = directory.join("cluster.toml");
        std::fs::write(&file, text).unwrap();
        let cluster = ClusterFile::load(&file);
        std::fs::remove_dir_all(&directory).unwrap();
        let Err(refused) = Recovery::open(&cluster.unwrap(), 0, 0) else {
            panic!("nobody has these addresses");
        };
        refused.to_string()
    }

    #[test]
    fn who_is_on_no_nodes_machine_is_told_so() {
        let roles = ["controller", "leader", "acceptor", "replica"];
        let said = said_to("elsewhere", "", &roles);
        assert!(said.contains("on the machine of a node"), "{said}");
    }

    #[test]
    fn who_asks_a_group_without_acceptors_is_told_so() {
        let roles = ["controller", "sequencer", "replica"];
        let said = said_to("ordered", "protocol = \"nopaxos\"\n", &roles);
        assert!(said.contains("no acceptors know"), "{said}");
    }
}
