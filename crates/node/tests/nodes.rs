// SPDX-License-Identifier: Apache-2.0
//! Nodes on loopback sockets, started as the command line starts them. The test plays the
//! controller, the client and the replicas.

use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::{EpochRecord, EpochState, Message, OUTSIDE, View};
use node::{ClusterFile, ControlPeers, Stop};
use paxos::acceptor::Start;
use paxos::wire::value::{Probe, ProbeReport, Rejection};
use paxos::{Configuration, Flags, Header, Member, MsgType, Packet, Reason, Round};

const CLUSTER: u32 = 0x00c0_ffee;
/// Names the cluster file to the child process of `a_killed_durable_acceptor_forgets_nothing`.
const CHILD: &str = "WIREPAXOS_TEST_CHILD";

/// Held by tests that start processes or bind an address again: a process that another thread
/// starts holds, between fork and exec, copies of this one's sockets, also of those closed since.
static PROCESSES: Mutex<()> = Mutex::new(());

/// A cluster file on an address of its own, and the sockets that the test itself holds.
struct Bed {
    dir: PathBuf,
    cluster: ClusterFile,
    /// The replica's data plane: where votes arrive.
    replica: UdpSocket,
    /// The controller's control plane.
    controller: UdpSocket,
    client: UdpSocket,
}

impl Bed {
    fn new(test: &str, storage: &str) -> Bed {
        let dir = std::env::temp_dir().join(format!("wirepaxos-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let host = node::loopback::draw().unwrap();
        let at = |i: u16| SocketAddr::from((host, 7000 + i));
        let socket = |at: SocketAddr| {
            let socket = UdpSocket::bind(at).unwrap();
            let patience = Some(Duration::from_millis(100));
            socket.set_read_timeout(patience).unwrap();
            socket
        };
        let text = format!(
            "cluster = \"{CLUSTER:08x}\"\ndata = \"data\"\n\
             [[group]]\nid = 0\napplication = \"echo\"\nslots = 64\nwindow = 8\ncheckpoint_every = \
             4\n\
             [[node]]\nname = \"controller\"\nid = 1\nrole = \"controller\"\n\
             address = \"{}\"\ncontrol = \"{}\"\n\
             [[node]]\nname = \"leader\"\nid = 2\nrole = \"leader\"\n\
             address = \"{}\"\ncontrol = \"{}\"\n\
             [[node]]\nname = \"acceptor\"\nid = 3\nrole = \"acceptor\"\nstorage = \"{storage}\"\n\
             address = \"{}\"\ncontrol = \"{}\"\n\
             [[node]]\nname = \"replica\"\nid = 4\nrole = \"replica\"\n\
             address = \"{}\"\ncontrol = \"{}\"\n",
            at(0),
            at(1),
            at(2),
            at(3),
            at(4),
            at(5),
            at(6),
            at(7)
        );
        let file = dir.join("cluster.toml");
        std::fs::write(&file, text).unwrap();
        Bed {
            cluster: ClusterFile::load(&file).unwrap(),
            controller: socket(at(1)),
            replica: socket(at(6)),
            client: socket(at(8)),
            dir,
        }
    }

    fn start(&self, name: &'static str) -> (Arc<Stop>, JoinHandle<Result<(), node::Error>>) {
        let (stop, cluster) = (Stop::new().unwrap(), self.cluster.clone());
        let handle = stop.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let run = move || {
            let ended = node::run(&cluster, name, None, &handle);
            if let Err(error) = &ended {
                println!("{name}: {error}");
            }
            ended
        };
        (stop, thread.spawn(run).unwrap())
    }

    fn address(&self, name: &str) -> SocketAddr {
        self.cluster.node(name).unwrap().address
    }

    fn control(&self, name: &str) -> SocketAddr {
        self.cluster.node(name).unwrap().control
    }

    /// Sends a control message until something that `wanted` takes comes back.
    fn ask<T>(&self, name: &str, message: &Message, wanted: impl Fn(Message) -> Option<T>) -> T {
        let peers = ControlPeers::new(&self.cluster, OUTSIDE);
        let mut buffer = vec![0; 65_536];
        repeat(|| {
            let bytes = peers.seal(self.control(name), message).unwrap();
            self.client.send_to(&bytes, self.control(name)).unwrap();
            let n = self.client.recv(&mut buffer).ok()?;
            wanted(peers.open(&buffer[..n], self.control(name)).ok()?)
        })
    }

    fn status(&self, name: &str) -> serde_json::Value {
        let (peers, control) = (
            ControlPeers::new(&self.cluster, OUTSIDE),
            self.control(name),
        );
        repeat(|| {
            let answers = node::ask_status(&peers, &[control], Duration::from_secs(1));
            answers.unwrap().remove(&control)
        })
    }

    fn order(&self, name: &str, order: &Message) {
        let peers = ControlPeers::new(&self.cluster, 1);
        let bytes = peers.seal(self.control(name), order).unwrap();
        self.controller.send_to(&bytes, self.control(name)).unwrap();
    }

    /// Probes a role: the round it shows, and its boot nonce.
    fn probe(&self, name: &str, role: Probe) -> (Round, u64) {
        let header = Header {
            request: 1,
            ..header(MsgType::Probe)
        };
        let (answer, value) = self.packets(&self.client, name, &header, &role.emit(), |h| {
            h.msgtype == MsgType::ProbeAck
        });
        (answer.rnd, ProbeReport::parse(&value).unwrap().nonce)
    }

    /// Sends a packet until one that is `wanted` arrives at `socket`.
    fn packets(
        &self,
        socket: &UdpSocket,
        name: &str,
        header: &Header,
        value: &[u8],
        wanted: impl Fn(&Header) -> bool,
    ) -> (Header, Vec<u8>) {
        let mut buffer = vec![0; 65_536];
        repeat(|| {
            self.client
                .send_to(&header.datagram(value), self.address(name))
                .unwrap();
            let n = socket.recv(&mut buffer).ok()?;
            let packet = Packet::parse(&buffer[..n]).unwrap();
            wanted(&packet.header).then(|| (packet.header, packet.value.to_vec()))
        })
    }

    fn enable(&self, epoch: u32) {
        let (_, nonce) = self.probe("acceptor", Probe::Acceptor);
        let order = Message::EnableAcceptor {
            group: 0,
            epoch,
            nonce,
            trim: vec![0],
            end: vec![0],
            replicas: vec![4],
            g: 0,
        };
        repeat(|| {
            self.order("acceptor", &order);
            let (floor, _) = self.probe("acceptor", Probe::Acceptor);
            (floor == Round::base(epoch)).then_some(())
        });
    }

    /// Lets the acceptor go on after a restart.
    fn resume(&self) {
        repeat(|| {
            let (nonce, start, mute) = self.start_of_acceptor();
            assert!(start.count() > 1);
            let order = Message::ResumeAcceptor {
                group: 0,
                nonce,
                start: start.number(),
            };
            self.order("acceptor", &order);
            (!mute).then_some(())
        });
    }

    fn start_of_acceptor(&self) -> (u64, Start, bool) {
        // Answers of the process before may still be waiting.
        self.client.set_nonblocking(true).unwrap();
        while self.client.recv(&mut [0; 2048]).is_ok() {}
        self.client.set_nonblocking(false).unwrap();
        let probe = header(MsgType::Probe);
        let value = Probe::Acceptor.emit();
        let is_ack = |h: &Header| h.msgtype == MsgType::ProbeAck;
        let (_, value) = self.packets(&self.client, "acceptor", &probe, &value, is_ack);
        let report = ProbeReport::parse(&value).unwrap();
        let (start, mute) = Start::from_shown(report.start).unwrap();
        (report.nonce, start, mute)
    }

    fn program(&self, epoch: u32) {
        let (_, nonce) = self.probe("leader", Probe::Leader);
        let order = Message::ProgramLeader {
            group: 0,
            epoch,
            nonce,
            next: vec![0],
            trimmed: vec![0],
            window: 8,
            acceptors: vec![3],
            f: 0,
            replicas: vec![4],
            g: 0,
        };
        repeat(|| {
            self.order("leader", &order);
            let (round, _) = self.probe("leader", Probe::Leader);
            (round == Round::base(epoch)).then_some(())
        });
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Returns a header in the name of the leader.
fn header(msgtype: MsgType) -> Header {
    Header {
        cluster: CLUSTER,
        swid: 2,
        ..Header::new(msgtype)
    }
}

fn proposal(inst: u64) -> Header {
    Header {
        inst,
        rnd: Round::base(1),
        client: 5,
        request: inst + 1,
        ..header(MsgType::Phase2a)
    }
}

/// Repeats what may be lost. The limit is there only so that a failing test ends.
fn repeat<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no answer");
    }
}

#[test]
fn a_request_is_stamped_voted_for_and_seen_by_the_replica() {
    let bed = Bed::new("request", "volatile");
    let (_, acceptor) = bed.start("acceptor");
    let (_, leader) = bed.start("leader");

    // Neither of them has been told anything yet.
    assert_eq!(bed.probe("acceptor", Probe::Acceptor).0, Round::NONE);
    let request = Header {
        client: 5,
        request: 1,
        ..header(MsgType::Request)
    };
    let is_reject = |h: &Header| h.msgtype == MsgType::Reject;
    let (_, value) = bed.packets(&bed.client, "leader", &request, b"hello", is_reject);
    assert_eq!(Rejection::parse(&value).unwrap().reason, Reason::NotLeader);

    bed.enable(1);
    bed.program(1);
    let is_vote = |h: &Header| h.msgtype == MsgType::Phase2b;
    let (vote, value) = bed.packets(&bed.replica, "leader", &request, b"hello", is_vote);
    assert_eq!(
        (vote.rnd, vote.vrnd, vote.swid),
        (Round::base(1), Round::base(1), 3)
    );
    assert_eq!(
        (vote.client, vote.request, value.as_slice()),
        (5, 1, &b"hello"[..])
    );

    // The window closes, a checkpoint opens it again.
    let (_, value) = bed.packets(&bed.client, "leader", &request, b"hello", |h| {
        h.msgtype == MsgType::Reject
    });
    assert_eq!(Rejection::parse(&value).unwrap().reason, Reason::Window);
    let status = bed.status("leader");
    let warnings = status["warnings"].to_string();
    assert!(warnings.contains("the window is 100% full"), "{warnings}");
    let trim = Header {
        inst: 8,
        swid: 4,
        client: 1,
        request: 1,
        ..header(MsgType::Trim)
    };
    for name in ["leader", "acceptor"] {
        let datagram = trim.datagram(&[]);
        bed.client.send_to(&datagram, bed.address(name)).unwrap();
    }
    bed.packets(&bed.replica, "leader", &request, b"hello", |h| h.inst == 8);

    // A later epoch that may be writing retires the leader.
    let configuration = Configuration {
        epoch: 2,
        leader: Member { node: 2, nonce: 1 },
        acceptors: vec![Member { node: 3, nonce: 1 }],
        f: 0,
        replicas: vec![4],
        g: 0,
    };
    let view = View {
        group: 0,
        version: 9,
        epochs: vec![EpochRecord::new(&configuration, EpochState::Writing)],
        given_up: None,
        begins: None,
    };
    bed.order("leader", &Message::View(view.clone()));
    // Rejections for the full window may still be waiting.
    repeat(|| {
        let (_, value) = bed.packets(&bed.client, "leader", &request, b"hello", is_reject);
        (Rejection::parse(&value).unwrap().reason == Reason::NotLeader).then_some(())
    });
    let newest = bed.ask(
        "leader",
        &Message::ViewRequest { group: 0 },
        |answer| match answer {
            Message::View(view) => Some(view),
            _ => None,
        },
    );
    assert_eq!(newest, view);

    // Datagrams that are no packets are counted.
    bed.client
        .send_to(b"nonsense", bed.address("acceptor"))
        .unwrap();
    repeat(|| {
        let status = bed.status("acceptor");
        let dropped = &status["counters"]["dropped"];
        (dropped["truncated"] == 1).then_some(())
    });
    for (name, thread) in [("acceptor", acceptor), ("leader", leader)] {
        bed.ask(name, &Message::Stop, |answer| match answer {
            Message::Stopping { .. } => Some(()),
            _ => None,
        });
        thread.join().unwrap().unwrap();
    }
}

#[test]
fn a_volatile_acceptor_is_a_member_after_a_stop_and_a_stranger_after_a_kill() {
    let _alone = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("volatile", "volatile");
    let (stop, thread) = bed.start("acceptor");
    bed.enable(1);
    let before = bed.probe("acceptor", Probe::Acceptor);
    stop.request();
    thread.join().unwrap().unwrap();

    let mut child = spawn_acceptor(&bed);
    assert_eq!(bed.probe("acceptor", Probe::Acceptor), before);
    child.kill().unwrap();
    child.wait().unwrap();

    let (stop, thread) = bed.start("acceptor");
    let (floor, nonce) = bed.probe("acceptor", Probe::Acceptor);
    assert_eq!(floor, Round::NONE);
    assert_ne!(nonce, before.1);
    stop.request();
    thread.join().unwrap().unwrap();
}

/// Packets prove nothing about their sender, but a stranger must at least forge an address.
/// [M-SENDER]
#[test]
fn what_is_in_a_nodes_name_counts_from_its_address_alone() {
    let bed = Bed::new("foreign", "volatile");
    let (stop, acceptor) = bed.start("acceptor");
    bed.enable(1);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    let trim = Header {
        inst: 8,
        swid: 4,
        ..header(MsgType::Trim)
    };
    let promise = Header {
        rnd: Round::base(2),
        swid: 1,
        flags: Flags::RANGE,
        ..header(MsgType::Phase1a)
    };
    let unnamed = Header {
        swid: 0,
        ..proposal(0)
    };
    for forged in [trim, promise, proposal(0)] {
        let datagram = forged.datagram(&[]);
        stranger
            .send_to(&datagram, bed.address("acceptor"))
            .unwrap();
    }
    let datagram = unnamed.datagram(&[]);
    bed.client
        .send_to(&datagram, bed.address("acceptor"))
        .unwrap();
    repeat(|| {
        let dropped = &bed.status("acceptor")["counters"]["dropped"];
        (dropped["foreign_address"] == 4).then_some(())
    });
    let partition = &bed.status("acceptor")["groups"][0]["partitions"][0];
    let found = [&partition["floor"], &partition["trim"], &partition["end"]];
    assert_eq!(found, [1, 0, 0]);
    stop.request();
    acceptor.join().unwrap().unwrap();
}

/// A durable acceptor that is killed and restarted still has its votes and promises. [A-DURABLE]
#[test]
fn a_killed_durable_acceptor_forgets_nothing() {
    let _alone = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("durable", "durable");
    let mut child = spawn_acceptor(&bed);
    bed.enable(1);
    let before = bed.probe("acceptor", Probe::Acceptor);
    let is_vote = |inst| move |h: &Header| h.msgtype == MsgType::Phase2b && h.inst == inst;
    for inst in 0..40 {
        let value = [inst as u8; 20];
        bed.packets(
            &bed.replica,
            "acceptor",
            &proposal(inst),
            &value,
            is_vote(inst),
        );
        if inst % 8 == 7 {
            // Shown, hence stored.
            child.kill().unwrap();
            child.wait().unwrap();
            child = spawn_acceptor(&bed);
            assert_eq!(bed.probe("acceptor", Probe::Acceptor), before);
            bed.resume();
            for known in 0..=inst {
                let query = Header {
                    inst: known,
                    ..header(MsgType::Query)
                };
                let (vote, value) =
                    bed.packets(&bed.client, "acceptor", &query, &[], is_vote(known));
                assert_eq!((vote.vrnd, vote.flags), (Round::base(1), Flags::NONE));
                assert_eq!(value, [known as u8; 20]);
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_terminal_that_is_closed_costs_no_votes() {
    let _alone = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("hangup", "volatile");
    let mut child = spawn_acceptor(&bed);
    bed.enable(1);
    let before = bed.probe("acceptor", Probe::Acceptor);
    let pid = child.id().to_string();
    let hangup = Command::new("kill").args(["-HUP", &pid]).status();
    assert!(hangup.unwrap().success());
    assert!(child.wait().unwrap().success(), "it stops in order");
    let mut child = spawn_acceptor(&bed);
    assert_eq!(bed.probe("acceptor", Probe::Acceptor), before);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// The reader of the node's log has gone, such as a pager or a service manager that restarts.
#[test]
fn a_node_whose_log_nobody_reads_goes_on() {
    let _alone = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let bed = Bed::new("unread", "volatile");
    let mut child = acceptor_process(&bed)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stderr.take());
    bed.enable(1);
    let is_vote = |inst| move |h: &Header| h.msgtype == MsgType::Phase2b && h.inst == inst;
    let vote = |inst| {
        bed.packets(
            &bed.replica,
            "acceptor",
            &proposal(inst),
            b"1",
            is_vote(inst),
        )
    };
    vote(0);
    // A conflict is worth a line.
    let second = Header {
        request: 9,
        ..proposal(0)
    };
    let acceptor = bed.address("acceptor");
    bed.client
        .send_to(&second.datagram(b"2"), acceptor)
        .unwrap();
    vote(1);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Runs the acceptor in a process of its own, so that it can be killed.
fn spawn_acceptor(bed: &Bed) -> Child {
    acceptor_process(bed).spawn().unwrap()
}

fn acceptor_process(bed: &Bed) -> Command {
    // Under `nohup` it would inherit that SIGHUP is ignored.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "the_child_process", "--nocapture"])
        .env(CHILD, bed.dir.join("cluster.toml"))
        .stdout(std::process::Stdio::null());
    command
}

/// This isn't a test of its own: `spawn_acceptor` runs it.
#[test]
fn the_child_process() {
    let Some(file) = std::env::var_os(CHILD) else {
        return;
    };
    let cluster = ClusterFile::load(file.as_ref()).unwrap();
    let stop = Stop::new().unwrap();
    stop.on_signals().unwrap();
    node::log::to_stderr().unwrap();
    node::run(&cluster, "acceptor", None, &stop).unwrap();
}

#[test]
fn nodes_end_without_leaving_a_thread_and_refuse_to_run_twice() {
    let _alone = PROCESSES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut bed = Bed::new("threads", "durable");
    // The controller needs its control address itself.
    bed.controller = UdpSocket::bind("127.0.0.1:0").unwrap();
    bed.controller
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let names = ["controller", "leader", "acceptor"];
    let running: Vec<_> = names.into_iter().map(|name| bed.start(name)).collect();
    for name in names {
        assert_eq!(bed.status(name)["name"], name);
        let second = bed.start(name).1.join().unwrap().unwrap_err().to_string();
        assert!(second.contains("the node runs already"), "{second}");
    }
    for (stop, thread) in running {
        stop.request();
        thread.join().unwrap().unwrap();
    }
    let alive = std::fs::read_dir("/proc/self/task").unwrap();
    let of_this_test: Vec<_> = alive
        .filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok())
        .filter(|name| name.trim() == "controller" || name.trim() == "snapshot")
        .collect();
    assert_eq!(of_this_test, Vec::<String>::new());
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let bed = Bed::new("unknown", "volatile");
    let error = node::run(&bed.cluster, "nobody", None, &Stop::new().unwrap()).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("controller, leader, acceptor, replica"),
        "{error}"
    );
}
