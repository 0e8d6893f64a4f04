// SPDX-License-Identifier: Apache-2.0
//! Tests of a sequencer as a process, on both planes. The test plays the controller, a client and
//! the replicas.

mod clusters;
#[path = "../testlab/mod.rs"]
mod testlab;

use std::cell::Cell;
use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Client, ClientOptions};
use control::{EpochRecord, EpochState, Message, View};
use lab::Lab;
use loader::pins::Pins;
use node::ControlPeers;
use node::cluster_file::{ApplicationKind, ClusterFile, Draft, GroupDraft, Node, Protocol, Role};
use paxos::nopaxos::receiver::{Delivery, Receiver, ReceiverSettings};
use paxos::wire::value::{Probe, ProbeReport, Rejection};
use paxos::{Configuration, Epoch, Header, Instance, Member, MsgType, Packet, Reason, Round, Time};
use testlab::{PROGRAM, REPLICAS, TestLab, digests, eventually, ready, serving, status};
use wirepaxos::Application;

/// The time after which a question is repeated.
const PATIENCE: Duration = Duration::from_millis(100);

/// The processes around the sequencer.
struct World {
    cluster: ClusterFile,
    sequencer: Node,
    controller: UdpSocket,
    client: UdpSocket,
    replicas: Vec<Replica>,
    /// The number of the last request.
    request: u64,
    /// The number of the last question, far above those of requests.
    question: Cell<u64>,
}

/// A replica's socket, and what it has received.
struct Replica {
    socket: UdpSocket,
    receiver: Receiver,
    begun: Instant,
    /// Slots and request numbers, in the order of their delivery.
    heard: Vec<(Instance, u64)>,
}

impl World {
    /// Opens the sockets; `bind` opens a socket on a node's machine.
    fn new(cluster: ClusterFile, bind: impl Fn(&str, SocketAddr) -> UdpSocket) -> World {
        let replicas = cluster.replicas(0).len();
        World::beside(cluster, replicas, bind)
    }

    /// Opens the sockets, but plays only `replicas` of the replicas.
    fn beside(
        cluster: ClusterFile,
        replicas: usize,
        bind: impl Fn(&str, SocketAddr) -> UdpSocket,
    ) -> World {
        let sequencer = cluster.with_role(Role::Sequencer).next();
        let sequencer = sequencer.unwrap().clone();
        let bind = |node: &str, at| {
            let socket = bind(node, at);
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        };
        let controller = cluster.controller_node();
        let group = &cluster.groups[0];
        let replica = |node: &Node| Replica {
            socket: bind(&node.name, node.address),
            receiver: Receiver::new(ReceiverSettings {
                deployment: cluster.deployment(node, group),
                pid: 0,
                slots: 256,
                reorder_wait: 0,
            }),
            begun: Instant::now(),
            heard: Vec::new(),
        };
        let any = SocketAddr::new(controller.address.ip(), 0);
        World {
            controller: bind(&controller.name, controller.control),
            client: bind(&controller.name, any),
            replicas: cluster
                .replicas(group.id)
                .into_iter()
                .take(replicas)
                .map(replica)
                .collect(),
            sequencer,
            request: 0,
            question: Cell::new(1 << 32),
            cluster,
        }
    }

    fn members(&self) -> Vec<u16> {
        let replicas = self.cluster.replicas(0);
        replicas.iter().map(|node| node.id).collect()
    }

    fn header(&self, msgtype: MsgType) -> Header {
        Header {
            cluster: self.cluster.cluster,
            // All nodes have one address here.
            swid: self.cluster.controller_node().id,
            client: 5,
            request: self.request,
            ..Header::new(msgtype)
        }
    }

    /// Sends a packet to the sequencer and returns its answer.
    fn ask(&self, header: &Header, value: &[u8]) -> Option<(Header, Vec<u8>)> {
        self.ask_at(self.sequencer.address, header, value)
    }

    fn ask_at(
        &self,
        address: SocketAddr,
        header: &Header,
        value: &[u8],
    ) -> Option<(Header, Vec<u8>)> {
        // Late answers to earlier questions, perhaps of a memory that is lost, have other numbers.
        self.question.set(self.question.get() + 1);
        let numbered = Header {
            request: self.question.get(),
            ..*header
        };
        let datagram = numbered.datagram(value);
        self.client.send_to(&datagram, address).unwrap();
        let mut buffer = [0; 2048];
        loop {
            let n = self.client.recv(&mut buffer).ok()?;
            let answer = Packet::parse(&buffer[..n]).unwrap();
            if answer.header.request == numbered.request {
                return Some((answer.header, answer.value.to_vec()));
            }
        }
    }

    /// Returns the round in which the sequencer stamps, and its boot nonce.
    fn probe(&self) -> (Round, u64) {
        self.probe_at(self.sequencer.address, Probe::Sequencer)
    }

    /// Checks that answers come promptly, also while nothing else passes.
    fn is_prompt(&self) {
        self.client
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        for _ in 0..5 {
            let question = self.header(MsgType::Probe);
            let answer = self.ask(&question, &Probe::Sequencer.emit());
            assert_eq!(answer.unwrap().0.msgtype, MsgType::ProbeAck);
        }
        self.client.set_read_timeout(Some(PATIENCE)).unwrap();
    }

    fn probe_at(&self, address: SocketAddr, role: Probe) -> (Round, u64) {
        eventually("an answer to PROBE", || {
            let (answer, value) =
                self.ask_at(address, &self.header(MsgType::Probe), &role.emit())?;
            let shown = (answer.rnd, ProbeReport::parse(&value).ok()?.nonce);
            (answer.msgtype == MsgType::ProbeAck).then_some(shown)
        })
    }

    fn say(&self, message: &Message, to: SocketAddr) {
        let peers = ControlPeers::new(&self.cluster, self.cluster.controller_node().id);
        let bytes = peers.seal(to, message).unwrap();
        self.controller.send_to(&bytes, to).unwrap();
    }

    /// Begins a session with the sequencer's present memory.
    fn program(&mut self, session: Epoch, next: Instance) {
        let (_, nonce) = self.probe();
        let order = Message::ProgramLeader {
            group: 0,
            epoch: session,
            nonce,
            next: vec![next],
            trimmed: vec![next],
            window: self.cluster.groups[0].window,
            acceptors: self.members(),
            f: 1,
            replicas: self.members(),
            g: 1,
        };
        eventually("a session", || {
            self.say(&order, self.sequencer.control);
            (self.probe() == (Round::base(session), nonce)).then_some(())
        });
        for replica in &mut self.replicas {
            replica.receiver.listen(session, self.sequencer.id, next);
        }
    }

    /// Sends a request, and waits until all replicas have it at the same place.
    fn request(&mut self) {
        self.request += 1;
        let datagram = self.header(MsgType::Request).datagram(b"hello");
        let number = self.request;
        eventually("all replicas get it", || {
            self.client
                .send_to(&datagram, self.sequencer.address)
                .unwrap();
            let mut all = self.replicas.iter_mut();
            all.all(|replica| replica.hears(number)).then_some(())
        });
        let heard = |replica: &Replica| {
            let mut heard = replica.heard.iter();
            heard.find(|(_, request)| *request == number).copied()
        };
        let first = heard(&self.replicas[0]);
        assert!(self.replicas.iter().all(|r| heard(r) == first));
    }

    /// Checks that a request is refused, since nobody has programmed the sequencer.
    fn is_mute(&mut self) {
        let request = self.header(MsgType::Request);
        let reason = eventually("a refusal", || {
            let (answer, value) = self.ask(&request, b"hello")?;
            let rejection = Rejection::parse(&value).ok()?;
            (answer.msgtype == MsgType::Reject).then_some(rejection.reason)
        });
        assert_eq!(reason, Reason::NotLeader);
        assert_eq!(self.probe().0, Round::NONE);
    }

    fn status(&self, wanted: impl Fn(&serde_json::Value) -> bool) {
        let peers = ControlPeers::new(&self.cluster, control::OUTSIDE);
        let control = self.sequencer.control;
        eventually("its status", || {
            let mut answers = node::ask_status(&peers, &[control], Duration::from_secs(1)).ok()?;
            wanted(&answers.remove(&control)?).then_some(())
        });
    }
}

impl Replica {
    /// Waits for a packet, and returns whether this request has been delivered.
    fn hears(&mut self, request: u64) -> bool {
        let mut buffer = [0; 2048];
        while let Ok(n) = self.socket.recv(&mut buffer) {
            let packet = Packet::parse(&buffer[..n]).unwrap();
            assert_eq!(packet.header.msgtype, MsgType::Ordered);
            let now = self.begun.elapsed().as_nanos() as Time;
            let _ = self.receiver.take(now, &packet);
            while let Some(delivery) = self.receiver.next(now) {
                match delivery {
                    Delivery::Message(m) => self.heard.push((m.slot, m.request)),
                    Delivery::Dropped(_) => self.receiver.skip(),
                    Delivery::Terminated(_) => break,
                }
            }
            if self.heard.iter().any(|heard| heard.1 == request) {
                return true;
            }
        }
        false
    }
}

/// A cluster of NOPaxos on loopback, whose files are removed with it.
struct OnLoopback {
    directory: PathBuf,
    cluster: ClusterFile,
}

impl OnLoopback {
    fn new(test: &str) -> OnLoopback {
        let name = format!("wirepaxos-sequencer-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        let group = GroupDraft {
            protocol: Some(Protocol::NoPaxos),
            ..GroupDraft::new(0, ApplicationKind::Echo)
        };
        let mut draft = Draft::new(0x5eed_0015, "data", group);
        let host = node::loopback::draw().unwrap().into();
        let roles = [
            (Role::Controller, 1),
            (Role::Sequencer, 2),
            (Role::Replica, 3),
        ];
        draft.add_nodes(&roles, host);
        let cluster = draft.write(&directory.join("cluster.toml")).unwrap();
        OnLoopback { directory, cluster }
    }

    fn start(&self) -> Child {
        let mut command = Command::new(PROGRAM);
        let file = self.directory.join("cluster.toml");
        command.arg("node").arg("-c").arg(file);
        command.args(["--name", "sequencer-1"]);
        command.stderr(Stdio::null()).spawn().unwrap()
    }
}

impl Drop for OnLoopback {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A sequencer that has lost its memory stamps nothing before it is programmed again. [Q-PROGRAM]
#[test]
fn a_sequencer_behind_sockets_stamps_once_it_is_programmed_and_is_mute_after_a_kill() {
    let bed = OnLoopback::new("kill");
    let mut world = World::new(bed.cluster.clone(), |_, at| UdpSocket::bind(at).unwrap());
    let mut child = bed.start();
    world.is_mute();
    let (_, nonce) = world.probe();
    world.program(1, 7);
    for _ in 0..5 {
        world.request();
    }
    assert_eq!(world.replicas[0].heard[0].0, 7, "where the session begins");
    world.status(|status| {
        let group = &status["groups"][0];
        group["leading"] == true && group["epoch"] == 1
    });
    child.kill().unwrap();
    child.wait().unwrap();

    let mut child = bed.start();
    world.is_mute();
    assert_ne!(world.probe().1, nonce, "its memory is another one");
    world.program(2, 100);
    world.request();
    assert!(world.replicas[0].heard.last().unwrap().0 >= 100);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The client learns the sequencer from the view, as it would a leader. A later session that is
/// *writing* retires the sequencer. [Q-RETIRE]
#[test]
fn requests_go_to_the_sequencer_that_the_view_names() {
    let bed = OnLoopback::new("view");
    let mut world = World::new(bed.cluster.clone(), |_, at| UdpSocket::bind(at).unwrap());
    let mut child = bed.start();
    world.program(1, 0);
    let session = |epoch, state| {
        let member = |node| Member { node, nonce: 1 };
        let members = world.members();
        let configuration = Configuration {
            epoch,
            leader: member(world.sequencer.id),
            acceptors: members.iter().copied().map(member).collect(),
            f: 1,
            replicas: members.clone(),
            g: 1,
        };
        EpochRecord::new(&configuration, state)
    };
    let mut view = View {
        group: 0,
        version: 1,
        epochs: vec![session(1, EpochState::Active)],
        given_up: None,
        begins: None,
    };
    let retiring = session(2, EpochState::Writing);

    let cluster = world.cluster.clone();
    let client = std::thread::spawn(move || {
        let options = ClientOptions {
            open_timeout: Duration::from_secs(20),
            ..ClientOptions::default()
        };
        // Nobody executes this client's request.
        Client::open(&cluster, options).map(drop)
    });
    let (peers, mut buffer) = (ControlPeers::new(&world.cluster, 1), [0; 65_536]);
    eventually("a replica gets its request", || {
        if let Ok((n, from)) = world.controller.recv_from(&mut buffer) {
            if let Ok(Message::ViewRequest { .. }) = peers.open(&buffer[..n], from) {
                world.say(&Message::View(view.clone()), from);
            }
        }
        let n = world.replicas[2].socket.recv(&mut buffer).ok()?;
        let packet = Packet::parse(&buffer[..n]).unwrap();
        (packet.header.msgtype == MsgType::Ordered).then_some(())
    });
    view.version += 1;
    view.epochs.push(retiring);
    eventually("it retires", || {
        world.say(&Message::View(view.clone()), world.sequencer.control);
        (world.probe().0 == Round::NONE).then_some(())
    });
    world.is_mute();
    assert!(client.join().unwrap().is_err());
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The test plays the controller, which shows the replicas a session until one of them has begun a
/// view with the others, and shows the sequencer where that view begins. [F-REPORT]
#[test]
fn replicas_execute_what_a_sequencer_has_ordered() {
    let bed = OnLoopback::new("replicas");
    let cluster = bed.cluster.clone();
    let mut world = World::beside(cluster, 0, |_, at| UdpSocket::bind(at).unwrap());
    let mut child = bed.start();
    let stop = node::Stop::new().unwrap();
    let names = ["replica-1", "replica-2", "replica-3"];
    let replicas = names.map(|name| {
        let (cluster, stop) = (bed.cluster.clone(), stop.clone());
        std::thread::spawn(move || {
            let open = |_, directory: &Path| -> Result<Box<dyn Application>, apps::Error> {
                Ok(Box::new(apps::Echo::open(directory)?))
            };
            let services = node::Services::new(Arc::new(open));
            node::run_replica(&cluster, cluster.node(name).unwrap(), &services, &stop)
        })
    });
    let nodes: Vec<Node> = bed.cluster.replicas(0).into_iter().cloned().collect();
    let member = |node: &Node| Member {
        node: node.id,
        nonce: world.probe_at(node.address, Probe::Replica).1,
    };
    let configuration = Configuration {
        epoch: 1,
        leader: Member {
            node: world.sequencer.id,
            nonce: world.probe().1,
        },
        acceptors: nodes.iter().map(member).collect(),
        f: 1,
        replicas: world.members(),
        g: 1,
    };
    let mut view = View {
        group: 0,
        version: 1,
        epochs: vec![EpochRecord::of(
            &configuration,
            Some(0),
            EpochState::Writing,
        )],
        given_up: None,
        begins: None,
    };
    let peers = ControlPeers::new(&world.cluster, 1);
    let show = |world: &World, view: &View| {
        let mut buffer = [0; 65_536];
        for node in &nodes {
            world.say(&Message::View(view.clone()), node.control);
        }
        let (n, from) = world.controller.recv_from(&mut buffer).ok()?;
        let message = peers.open(&buffer[..n], from).ok()?;
        if let Message::ViewRequest { .. } = message {
            world.say(&Message::View(view.clone()), from);
        }
        message.started()
    };
    let (pid, leader, started) = eventually("a view has begun", || show(&world, &view));
    assert_eq!((pid, leader), (0, configuration.acceptors[0]));
    assert!(started.members.len() >= 2 && started.end == 0);
    view.version += 1;
    view.epochs[0].state = EpochState::Active;
    view.epochs[0].by = vec![started.view.0];
    world.program(1, started.end);

    let cluster = bed.cluster.clone();
    let client = std::thread::spawn(move || {
        let mut client = Client::open(&cluster, ClientOptions::default()).unwrap();
        for n in 0..100u32 {
            client.submit(0, &n.to_be_bytes()).unwrap();
            let answer = client.poll(Duration::from_secs(60)).unwrap();
            assert_eq!(answer.unwrap().bytes, n.to_be_bytes());
        }
    });
    while !client.is_finished() {
        show(&world, &view);
    }
    client.join().unwrap();
    let control_of = |node: &Node| node.control;
    let controls: Vec<SocketAddr> = nodes.iter().map(control_of).collect();
    let outside = ControlPeers::new(&world.cluster, control::OUTSIDE);
    eventually("all have executed all", || {
        show(&world, &view);
        let answers = node::ask_status(&outside, &controls, Duration::from_secs(1)).ok()?;
        let commands = |status: &serde_json::Value| status["partitions"][0]["commands"].as_u64();
        let all = answers.values().filter_map(commands);
        (all.filter(|n| *n >= 100).count() == 3).then_some(())
    });
    stop.request();
    for replica in replicas {
        replica.join().unwrap().unwrap();
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The program goes on stamping while its process is away, and is replaced in place; a machine that
/// dies loses its memory. [Q-PROGRAM]
fn outlives_its_process_and_is_mute_after_its_machine(letter: char, up: &[&str]) {
    // The test has no keys, so packets aren't signed.
    let unsigned = ["--protocol", "nopaxos", "--auth", "off"];
    let Some(lab) = serving(letter, &[&unsigned, up].concat()) else {
        return;
    };
    let file = PathBuf::from(format!("/run/wirepaxos/{}/cluster.toml", lab.name));
    let cluster = ClusterFile::load(&file).unwrap();
    let hosts = Lab::named(&lab.name).unwrap();
    let mut world = World::new(cluster, |node, at| {
        let bind = || {
            hosts.enter(node).unwrap();
            UdpSocket::bind(at).unwrap()
        };
        std::thread::scope(|scope| scope.spawn(bind).join().unwrap())
    });
    let name = world.sequencer.name.clone();
    let start = |lab: &TestLab| lab.json(&["start", &name, "--json"]);
    start(&lab);
    world.is_mute();
    let plane = status(&lab, &name)["plane"].clone();
    assert_eq!(plane["name"], "xdp");
    assert_eq!(plane["switch"].as_str(), world.sequencer.switch.as_deref());
    assert_eq!(world.sequencer.switch.is_some(), !up.is_empty());
    world.is_prompt();
    world.program(1, 7);
    for _ in 0..5 {
        world.request();
    }
    let shown = world.probe();
    lab.kill(&name);
    world.request();
    start(&lab);
    let log = file.with_file_name(format!("{name}.log"));
    eventually("another process is there", || {
        let log = std::fs::read_to_string(&log).ok()?;
        log.contains("the sequencer is replaced in place")
            .then_some(())
    });
    world.request();
    assert_eq!(world.probe(), shown, "the same memory");
    let heard: Vec<Instance> = world.replicas[0]
        .heard
        .iter()
        .map(|heard| heard.0)
        .collect();
    assert_eq!(heard[0], 7);
    assert!(heard.is_sorted_by(|a, b| a < b), "no slot twice: {heard:?}");

    lab.kill(&name);
    let of = &world.cluster;
    let pins = Pins::of_node(&of.bpffs, of.cluster, &name).unwrap();
    pins.remove().unwrap();
    start(&lab);
    world.is_mute();
    assert_ne!(world.probe().1, shown.1);
    world.program(2, 100);
    world.request();
    assert!(world.replicas[0].heard.last().unwrap().0 >= 100);
}

#[test]
fn a_sequencer_in_the_kernel_outlives_its_process_and_is_mute_after_its_machine() {
    outlives_its_process_and_is_mute_after_its_machine('q', &[]);
}

/// Requests are ordered on their way: the switch's forwarder calls the sequencer, whichever port
/// they come in by.
#[test]
fn a_sequencer_in_a_switch_outlives_its_process_and_is_mute_after_its_machine() {
    outlives_its_process_and_is_mute_after_its_machine('s', &["--in-switch"]);
}
