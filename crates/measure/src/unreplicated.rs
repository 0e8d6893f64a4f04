// SPDX-License-Identifier: Apache-2.0
//! The yardstick of `bench e2e --baseline unreplicated`: one process that answers requests itself,
//! over the same socket plane, to the same client, with the same packing, from the same
//! application, which stores a batch's effects before its answers leave. What replication costs is
//! the difference.

use std::os::fd::AsFd;
use std::path::PathBuf;

use apps::Application;
use control::{EpochRecord, EpochState, Message, View};
use node::cluster_file::{Node, Role};
use node::host::Spinner;
use node::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use node::{ClusterFile, ControlPeers};
use paxos::wire::value::{PackedItem, append_packed, packed_items};
use paxos::{Configuration, Flags, GroupId, Header, Member, MsgType, NodeId, Packet};

use crate::application;
use local_cluster::processes::Processes;
use local_cluster::{Error, LocalCluster, programs};

/// Starts the process `name` of a server in a cluster's place, and returns its cluster file.
pub(crate) fn start(local: &LocalCluster, name: &str) -> Result<(ClusterFile, Processes), Error> {
    let (file, host) = local.file_for_server()?;
    let program = programs::own()?;
    let mut command = std::process::Command::new(&program);
    command
        .args(["bench", "unreplicated-server", "-c"])
        .arg(&file);
    local.place(&mut command, &host)?;
    let mut processes = Processes::new(program);
    processes.start(command, local.directory(), name)?;
    Ok((ClusterFile::load(&file)?, processes))
}

/// Serves at the addresses of the cluster's first leader, or sequencer, until killed.
pub fn serve(cluster: &ClusterFile) -> Result<(), Error> {
    let stamps = |node: &&Node| matches!(node.role, Role::Leader | Role::Sequencer);
    let leader = cluster.nodes.iter().find(stamps);
    let leader = leader.ok_or_else(|| Error::new("the cluster file has no leader"))?;
    if let Some(cpu) = leader.cpu {
        node::host::pin_to_cpu(cpu)?;
    }
    // The server takes the controller's place, too.
    let controller = cluster.controller_node();
    let peers = ControlPeers::new(cluster, controller.id);
    let control = std::net::UdpSocket::bind(controller.control)?;
    control.set_nonblocking(true)?;
    let mut plane = UdpPlane::bind(leader.address, PlaneOptions::default())?;
    let (mut inbox, mut outgoing) = (RecvBatch::new(), SendBatch::new());
    let mut server = Server::open(cluster, leader.id)?;
    let mut spinner = Spinner::new(leader.spin);
    let mut more = false;
    loop {
        let ready = if more {
            None
        } else {
            let fds = [plane.as_fd(), control.as_fd()];
            Some(spinner.wait_for(fds.into_iter(), None)?)
        };
        if ready.is_none_or(|r| r.has(0)) {
            more = plane.receive(&mut inbox)? && inbox.is_full();
            for arrival in inbox.iter() {
                for packet in arrival.datagrams().flat_map(Packet::parse) {
                    let (header, value) = server.answer(&packet)?;
                    outgoing.push(&arrival.from, &header, value);
                }
            }
            server.commit()?;
            plane.send(&mut outgoing);
        }
        if ready.is_some_and(|r| r.has(1)) {
            answer_view_requests(&control, &peers, leader.id)?;
        }
    }
}

/// Returns where the server keeps its data.
pub(super) fn data(cluster: &ClusterFile) -> PathBuf {
    cluster.data.join("unreplicated")
}

struct Server {
    /// The application of each partition.
    apps: Vec<Box<dyn Application>>,
    reply: Vec<u8>,
    item: Vec<u8>,
    sessions: u64,
    node: NodeId,
}

impl Server {
    fn open(cluster: &ClusterFile, node: NodeId) -> Result<Server, Error> {
        let group = &cluster.groups[0];
        let open = |pid| {
            let directory = data(cluster).join(format!("partition-{pid}"));
            application::open(group.application, &directory)
        };
        Ok(Server {
            apps: (0..group.partitions).map(open).collect::<Result<_, _>>()?,
            reply: Vec::new(),
            item: Vec::new(),
            sessions: 0,
            node,
        })
    }

    /// Executes what a REQUEST asks: commands, or opening a session.
    fn answer(&mut self, request: &Packet<'_>) -> Result<(Header, &[u8]), Error> {
        self.reply.clear();
        let pid = usize::from(request.header.pid);
        let packed = request.header.flags.has(Flags::PACKED);
        if packed {
            for item in packed_items(request.value).flatten() {
                self.execute(pid, item.request, item.bytes)?;
                let item = PackedItem {
                    bytes: &self.item,
                    ..item
                };
                append_packed(&mut self.reply, &item);
            }
        } else {
            self.execute(pid, request.header.request, request.value)?;
            self.reply.extend_from_slice(&self.item);
        }
        let header = Header {
            msgtype: MsgType::Reply,
            value_len: self.reply.len() as u16,
            swid: self.node,
            flags: if packed { Flags::PACKED } else { Flags::NONE },
            ..request.header
        };
        Ok((header, &self.reply))
    }

    fn execute(&mut self, pid: usize, request: u64, command: &[u8]) -> Result<(), Error> {
        self.item.clear();
        self.item.push(replica::Status::Ok as u8);
        if request == 0 {
            self.sessions += 1;
            self.item.extend_from_slice(&self.sessions.to_be_bytes());
            return Ok(());
        }
        let unknown = || Error::new(format!("there is no partition {pid}"));
        let app = self.apps.get_mut(pid).ok_or_else(unknown)?;
        app.execute(command, &mut self.item)
            .map_err(|e| Error::new(e.0))
    }

    /// Commits before the answers leave, as replicas do.
    fn commit(&mut self) -> Result<(), Error> {
        let mut apps = self.apps.iter_mut();
        apps.try_for_each(|app| app.commit(&[]))
            .map_err(|e| Error::new(e.0))
    }
}

/// Tells clients that this process leads.
pub(crate) fn answer_view_requests(
    control: &std::net::UdpSocket,
    peers: &ControlPeers,
    leader: NodeId,
) -> Result<(), Error> {
    let mut buffer = [0; 4096];
    while let Ok((n, from)) = control.recv_from(&mut buffer) {
        if let Ok(Message::ViewRequest { group }) = peers.open(&buffer[..n], from) {
            let answer = peers.seal(from, &Message::View(view(group, leader)))?;
            control.send_to(&answer, from)?;
        }
    }
    Ok(())
}

fn view(group: GroupId, leader: NodeId) -> View {
    let configuration = Configuration {
        epoch: 1,
        leader: Member {
            node: leader,
            nonce: 1,
        },
        acceptors: Vec::new(),
        f: 0,
        replicas: Vec::new(),
        g: 0,
    };
    View {
        version: 1,
        epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
        ..View::nothing(group)
    }
}

#[cfg(test)]
mod tests {
    use apps::kv::{Command, Reply};

    use super::*;
    use local_cluster::{LocalCluster, Shape};

    fn server(application: &str) -> (LocalCluster, Server) {
        let shape = Shape {
            replicas: 1,
            partitions: 2,
            slots: 64,
            ..Shape::of(application)
        };
        let local = LocalCluster::create(&std::env::temp_dir(), &shape).unwrap();
        let cluster = ClusterFile::load(&local.file).unwrap();
        let server = Server::open(&cluster, 1).unwrap();
        (local, server)
    }

    fn answer(server: &mut Server, pid: u16, request: u64, command: &[u8]) -> Vec<u8> {
        let header = Header {
            pid,
            request,
            ..Header::new(MsgType::Request)
        };
        let datagram = header.datagram(command);
        let packet = Packet::parse(&datagram).unwrap();
        let (header, value) = server.answer(&packet).unwrap();
        assert_eq!((header.msgtype, value[0]), (MsgType::Reply, 0));
        value[1..].to_vec()
    }

    #[test]
    fn it_runs_the_application_of_the_cluster_file() {
        let (_local, mut server) = server("echo");
        assert_eq!(answer(&mut server, 1, 1, b"some bytes"), b"some bytes");

        let (local, mut server) = super::tests::server("leveldb");
        let encoded = |command: &Command<'_>| {
            let mut bytes = Vec::new();
            command.encode(&mut bytes).unwrap();
            bytes
        };
        let mset = Command::Mset {
            pairs: vec![(b"k", b"v")],
        };
        let get = encoded(&Command::Get { key: b"k" });
        let stored = answer(&mut server, 1, 1, &encoded(&mset));
        assert_eq!(Reply::parse(&stored), Ok(Reply::Ok));
        let found = answer(&mut server, 1, 2, &get);
        assert_eq!(Reply::parse(&found), Ok(Reply::Bulk(b"v")));
        let elsewhere = answer(&mut server, 0, 1, &get);
        assert_eq!(Reply::parse(&elsewhere), Ok(Reply::Nil));

        server.commit().unwrap();
        drop(server);
        let mut server = Server::open(&ClusterFile::load(&local.file).unwrap(), 1).unwrap();
        let found = answer(&mut server, 1, 3, &get);
        assert_eq!(Reply::parse(&found), Ok(Reply::Bulk(b"v")));
    }
}
