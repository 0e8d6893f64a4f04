// SPDX-License-Identifier: Apache-2.0
//! The thread that keeps one controller's part of the register: it answers the other controllers
//! whatever the controller itself is doing, so that two which both believe to act never wait for
//! one another.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use control::register::{Event, Register, RegisterMessage};
use control::{Message, StoreError};
use paxos::NodeId;
use tracing::warn;

use super::term::{Request, StoreThread, Term, ThreadEnd};
use crate::cluster_file::{ClusterFile, Node};
use crate::control_peers::ControlPeers;
use crate::host::wait;
use crate::store::RegisterFile;
use crate::{Error, listen, random_nonce};

/// How many datagrams are handled before the record is stored.
const BATCH: usize = 64;

/// Opens the record and the socket, and starts the thread.
pub(super) fn start(cluster: &ClusterFile, node: &Node) -> Result<StoreThread, Error> {
    let mut members: Vec<NodeId> = cluster.controllers().map(|n| n.id).collect();
    members.sort_unstable();
    let path = cluster.node_dir(node).join("epochs.json");
    let (file, found) = RegisterFile::open(&path, cluster.cluster, node.id, &members)
        .map_err(|e| Error::store(e.to_string()))?;
    let own = node
        .peer
        .ok_or_else(|| Error::new("the controller has no `peer` address"))?;
    let ways = cluster
        .controllers()
        .filter_map(|n| Some((n.id, n.peer?, n.control)));
    let ways = ways.collect();
    let (me, nonce) = (node.id, random_nonce()?);
    let socket = listen::udp(own, "peer")?;
    let peers = ControlPeers::new(cluster, node.id);
    StoreThread::start("register", move |main| {
        let mut keeper = Keeper {
            me,
            register: Register::new(me, members, found, nonce, 0),
            file,
            socket,
            peers,
            ways,
            main,
            answers: VecDeque::new(),
            trouble: None,
        };
        keeper.run();
    })
}

/// The thread's state.
struct Keeper {
    me: NodeId,
    register: Register,
    file: RegisterFile,
    socket: UdpSocket,
    peers: ControlPeers,
    /// The id, the `peer` address and the `control` address of each controller.
    ways: Vec<(NodeId, SocketAddr, SocketAddr)>,
    main: ThreadEnd,
    answers: VecDeque<SyncSender<Result<(), StoreError>>>,
    /// Why the record can't be stored.
    trouble: Option<String>,
}

impl Keeper {
    fn run(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        while !self.main.stops() {
            let due = self
                .register
                .next_deadline()
                .saturating_sub(self.main.now());
            let fds = [self.socket.as_fd(), self.main.bell()];
            // An error of poll would come again at once, and the deadlines go on in any case.
            if wait(&fds, Some(Duration::from_nanos(due))).is_err() {
                std::thread::sleep(Duration::from_millis(5));
            }
            self.register.set_alive(self.main.main_works());
            self.receive(&mut buffer);
            self.take_requests();
            let now = self.main.now();
            let is_due = now >= self.register.next_deadline();
            if is_due {
                self.register.tick(now);
            }
            self.settle();
            if is_due {
                self.show();
            }
        }
    }

    /// Tells the main thread about the other controllers.
    fn show(&self) {
        let now = self.main.now();
        let mut warnings = self.register.warnings(now);
        warnings.extend(self.trouble.clone());
        let fellows = self.register.fellows(now);
        self.main.show(self.register.acting(now), fellows, warnings);
    }

    fn receive(&mut self, buffer: &mut [u8]) {
        for _ in 0..BATCH {
            let (n, from) = match self.socket.recv_from(buffer) {
                Ok(received) => received,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                // ICMP says that another controller is down.
                Err(_) => continue,
            };
            let Some((node, _, control)) = self.ways.iter().find(|(_, peer, _)| *peer == from)
            else {
                continue;
            };
            // The message is opened as if it came from the `control` address, which keys and rules
            // know. [E-VIEW] [E-SIGNED]
            if let Ok(Message::Register(message)) = self.peers.open(&buffer[..n], *control) {
                let node = *node;
                self.register.message(self.main.now(), node, *message);
            }
        }
    }

    fn take_requests(&mut self) {
        self.main.hush();
        while let Some(request) = self.main.next_request() {
            let now = self.main.now();
            match request {
                Request::Swap(swap) => {
                    self.answers.push_back(swap.answer);
                    self.register
                        .swap(now, swap.term, swap.group, swap.expected, swap.state);
                }
                Request::Resign(term) => {
                    let why = "a change wasn't stored in time";
                    self.register.resign(now, term, why);
                }
                Request::HandOn(to) => self.register.hand_on(now, to),
            }
        }
    }

    /// Stores what has changed, then lets the messages leave. [E-BALLOT]
    fn settle(&mut self) {
        loop {
            if self.register.is_unsaved() && !self.save() {
                self.register.drop_messages();
                break;
            }
            let Some((to, message)) = self.register.poll_message() else {
                break;
            };
            match to == self.me {
                true => self.register.message(self.main.now(), to, message),
                false => self.send(to, message),
            }
        }
        while let Some(event) = self.register.poll_event() {
            self.tell(event);
        }
    }

    fn save(&mut self) -> bool {
        let Some(record) = self.register.record() else {
            return false;
        };
        match self.file.save(record) {
            Ok(()) => {
                self.register.saved();
                self.trouble = None;
                true
            }
            Err(why) => {
                let why = why.to_string();
                if self.trouble.as_ref() != Some(&why) {
                    warn!("{why}");
                }
                self.trouble = Some(why);
                false
            }
        }
    }

    fn send(&self, to: NodeId, message: RegisterMessage) {
        let Some((_, peer, control)) = self.ways.iter().find(|(id, ..)| *id == to) else {
            return;
        };
        // A lost message is repeated.
        if let Ok(bytes) = self
            .peers
            .seal(*control, &Message::Register(Box::new(message)))
        {
            let _ = self.socket.send_to(&bytes, peer);
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Acts(name, states) => {
                self.main.begin(Term { name, states });
            }
            Event::Ended(why) => self.main.end(why),
            Event::Swapped(result) => {
                if let Some(answer) = self.answers.pop_front() {
                    // The main thread may have given up.
                    let _ = answer.send(result);
                }
            }
        }
    }
}
