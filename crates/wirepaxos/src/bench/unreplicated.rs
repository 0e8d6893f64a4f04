//! The yardstick of `bench e2e --baseline unreplicated`: one process that answers requests itself,
//! over the same socket plane, to the same client, with the same packing. What replication costs is
//! the difference.

use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::Args;
use control::{EpochRecord, EpochState, Message, View};
use node::cluster_file::Role;
use node::host::wait;
use node::plane::{PlaneOptions, RecvBatch, SendBatch, UdpPlane};
use node::{ClusterFile, ControlPeers};
use paxos::wire::value::{PackedItem, append_packed, packed_items};
use paxos::{Configuration, Flags, GroupId, Header, Member, MsgType, NodeId, Packet};

use crate::error::Error;

/// Options of the server process.
#[derive(Args)]
pub struct Options {
    /// The cluster file; its first leader's addresses are served
    #[arg(short, long)]
    cluster: PathBuf,
}

/// Serves until killed.
pub fn run(options: &Options) -> Result<(), Error> {
    let cluster = ClusterFile::load(&options.cluster)?;
    let leader = cluster
        .with_role(Role::Leader)
        .next()
        .ok_or_else(|| Error::new("the cluster file has no leader"))?;
    if let Some(cpu) = leader.cpu {
        node::host::pin_to_cpu(cpu)?;
    }
    // It takes the controller's place, too.
    let controller = cluster.controller_node();
    let peers = ControlPeers::new(&cluster, controller.id);
    let control = std::net::UdpSocket::bind(controller.control)?;
    control.set_nonblocking(true)?;
    let mut plane = UdpPlane::bind(leader.address, PlaneOptions::default())?;
    let (mut inbox, mut outgoing) = (RecvBatch::new(), SendBatch::new());
    let mut server = Server {
        reply: Vec::new(),
        item: Vec::new(),
        sessions: 0,
        node: leader.id,
    };
    let mut more = false;
    loop {
        let ready = if more {
            None
        } else {
            Some(wait(&[plane.as_fd(), control.as_fd()], None)?)
        };
        if ready.is_none_or(|r| r.has(0)) {
            more = plane.receive(&mut inbox)? && inbox.is_full();
            for (datagram, from) in inbox.iter() {
                if let Ok(packet) = Packet::parse(datagram) {
                    let (header, value) = server.answer(&packet);
                    outgoing.push(&from, &header, value);
                }
            }
            plane.send(&mut outgoing);
        }
        if ready.is_some_and(|r| r.has(1)) {
            answer_view_requests(&control, &peers, leader.id)?;
        }
    }
}

struct Server {
    reply: Vec<u8>,
    item: Vec<u8>,
    sessions: u64,
    /// In whose name it answers.
    node: NodeId,
}

impl Server {
    /// Executes what a REQUEST asks: an echo, or opening a session.
    fn answer(&mut self, request: &Packet<'_>) -> (Header, &[u8]) {
        self.reply.clear();
        let packed = request.header.flags.has(Flags::PACKED);
        if packed {
            for item in packed_items(request.value).flatten() {
                self.execute(item.request, item.bytes);
                let item = PackedItem {
                    bytes: &self.item,
                    ..item
                };
                append_packed(&mut self.reply, &item);
            }
        } else {
            self.execute(request.header.request, request.value);
            self.reply.extend_from_slice(&self.item);
        }
        let header = Header {
            msgtype: MsgType::Reply,
            swid: self.node,
            value_len: self.reply.len() as u16,
            flags: if packed { Flags::PACKED } else { Flags::NONE },
            ..request.header
        };
        (header, &self.reply)
    }

    fn execute(&mut self, request: u64, command: &[u8]) {
        self.item.clear();
        self.item.push(0); // status: ok
        if request == 0 {
            self.sessions += 1;
            self.item.extend_from_slice(&self.sessions.to_be_bytes());
        } else {
            self.item.extend_from_slice(command);
        }
    }
}

/// Tells clients that this process leads.
fn answer_view_requests(
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
