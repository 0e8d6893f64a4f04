// SPDX-License-Identifier: Apache-2.0
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use control::{GivenUp, View};
use paxos::wire::value::{Probe, packed_items};
use paxos::{Configuration, Flags, Header, Instance, Member, MsgType, Packet, Round, Verdict};
use replica::storage::CheckpointFile;
use replica::{
    Application, Basis, EpochView, InMemory, Install, Output, Paxos, ReplyTo, SiblingMessage,
    StateMachine, Worker,
};

use super::mailbox::Siblings;
use super::outbox::WorkerOutbox;
use super::worker_thread::Job;
use super::*;
use crate::cluster_file::parse;
use crate::test_dir::TestDir;
use crate::transfer::incoming::{Head, Incoming};

/// An application without state.
pub(super) struct Nothing;

impl StateMachine for Nothing {
    fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}

    fn save(&self, _: &mut dyn Write) -> io::Result<()> {
        Ok(())
    }

    fn load(_: &mut dyn Read) -> io::Result<Nothing> {
        Ok(Nothing)
    }
}

fn services() -> Services {
    Services::new(Arc::new(|_, directory| {
        let file = CheckpointFile::new(directory.join("checkpoint"));
        Ok(Box::new(InMemory::open(file, Nothing)?))
    }))
}

fn by_socket(partition: Partition<'_>) -> WorkerIo {
    WorkerIo {
        plane: WorkerPlane::open(partition, None).unwrap(),
        decisions: None,
    }
}

/// A packet that comes to the socket of a thread's first partition is handed on to its partition,
/// so all partitions of the thread send from there. A packet for no partition of the thread changes
/// nothing.
#[test]
fn a_thread_receives_for_all_its_partitions_at_one_socket() {
    let directory = TestDir::new();
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../testdata/cluster.toml")
        .replace("127.0.0.1:703", "127.0.0.1:17030 # ")
        .replace("127.0.0.1", &host);
    let sample = sample
        .replace("17030 # 1\"", "17031\"")
        .replace("17030 # 2\"", "17041\"")
        .replace("17030 # 3\"", "17051\"")
        .replace("partitions = 1 ", "partitions = 3 ");
    let file = directory.path().join("cluster.toml");
    let cluster = parse(&sample, &file.display().to_string()).unwrap();
    let node = cluster.node("replica-1").unwrap();
    let group = &cluster.groups[0];
    let (ask, _asked) = mpsc::channel();
    let (wake_control, _woken) = waker_pair().unwrap();
    let stop = Stop::new().unwrap();
    let (wake, woken) = waker_pair().unwrap();
    let (mailboxes, inboxes): (Vec<_>, Vec<_>) = (0..3).map(|_| mailbox(wake.clone())).unzip();
    let mailboxes: Arc<[Mailbox]> = mailboxes.into();
    let open = |(inbox, pid)| {
        let partition = partition(&cluster, pid, false);
        let link = worker_thread::Link {
            ask: ask.clone(),
            wake_control: wake_control.clone(),
            is_behind: mpsc::channel().0,
        };
        let mailboxes = mailboxes.clone();
        let mail = worker_thread::Mail { inbox, mailboxes };
        WorkerHandle::open::<Paxos>(partition, &services(), by_socket(partition), link, mail)
            .unwrap()
    };
    // Partition 2 belongs to another thread.
    let (_handles, mut served): (Vec<_>, Vec<_>) = inboxes.into_iter().zip(0..).map(open).unzip();
    served.truncate(2);
    let crew = Crew::new(served, woken, stop.clone(), Duration::ZERO).unwrap();
    let crew = crew.start("worker".to_owned(), None).unwrap();

    let socket = UdpSocket::bind((host.as_str(), 0)).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    for (pid, request) in [(2, 1), (1, 2), (7, 3), (0, 4)] {
        let header = Header {
            cluster: cluster.cluster,
            group: group.id,
            pid,
            swid: node.id,
            client: 9,
            request,
            value_len: Probe::Replica.emit().len() as u16,
            ..Header::new(MsgType::Probe)
        };
        let datagram = header.datagram(&Probe::Replica.emit());
        socket.send_to(&datagram, node.address).unwrap();
    }
    let mut buffer = [0; 2048];
    let mut answers: Vec<_> = (0..2)
        .map(|_| {
            let (len, from) = socket.recv_from(&mut buffer).unwrap();
            let packet = Packet::parse(&buffer[..len]).unwrap();
            assert_eq!(packet.header.msgtype, MsgType::ProbeAck);
            (packet.header.pid, packet.header.request, from.port())
        })
        .collect();
    answers.sort_unstable();
    let port = node.address.port();
    assert_eq!(answers, [(0, 4, port), (1, 2, port)]);
    stop.request();
    crew.join().unwrap();
}

/// Answers to one client that leave together share a packet if they are final, or of the same view,
/// and the packet names the last slot. [N-ANSWER]
#[test]
fn answers_of_a_view_share_a_packet() {
    let directory = TestDir::new();
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../testdata/cluster.toml").replace("127.0.0.1", &host);
    let file = directory.path().join("cluster.toml");
    let cluster = parse(&sample, &file.display().to_string()).unwrap();
    let partition = partition(&cluster, 0, false);
    let (wake, _woken) = waker_pair().unwrap();
    let (mailbox, _inbox) = mailbox(wake);
    let siblings = Siblings::of(0, [mailbox].into());
    let mut outbox = WorkerOutbox::new(partition, &services(), siblings).unwrap();
    let client = UdpSocket::bind((host.as_str(), 0)).unwrap();
    client
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let to = ReplyTo::Address(client.local_addr().unwrap(), 0);
    let of = |view, slot| {
        let view = Round(view);
        Some(Basis { view, slot })
    };
    let bases = [of(7, 3), of(7, 5), None, of(7, 4), of(8, 1), None];
    for (basis, request) in bases.into_iter().zip(1..) {
        outbox.reply(&to, basis, 9, request, 0, b"answer");
    }
    let mut plane = WorkerPlane::open(partition, None).unwrap();
    outbox.flush(&mut plane).unwrap();

    let mut buffer = [0; 2048];
    let mut told: Vec<_> = (0..3)
        .map(|_| {
            let len = client.recv(&mut buffer).unwrap();
            let Packet {
                header: h, value, ..
            } = Packet::parse(&buffer[..len]).unwrap();
            assert_eq!(h.msgtype, MsgType::Reply);
            let requests = match h.flags.has(Flags::PACKED) {
                true => packed_items(value)
                    .map(|item| item.unwrap().request)
                    .collect(),
                false => vec![h.request],
            };
            (h.rnd.0, h.inst, requests)
        })
        .collect();
    told.sort();
    let expected = [(0, 0, vec![3, 6]), (7, 5, vec![1, 2, 4]), (8, 1, vec![5])];
    assert_eq!(told, expected);
}

/// A worker keeps answering while a peer that hands out a state falls silent.
#[test]
fn a_worker_that_waits_for_a_state_goes_on() {
    let directory = TestDir::new();
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../testdata/cluster.toml").replace("127.0.0.1", &host);
    let file = directory.path().join("cluster.toml");
    let cluster = parse(&sample, &file.display().to_string()).unwrap();
    let node = cluster.node("replica-1").unwrap();
    let peer = cluster.node("replica-2").unwrap();
    let peer = TcpListener::bind(peer.control).unwrap();

    let (ask, _asked) = mpsc::channel();
    let (is_behind, told) = mpsc::channel();
    let (wake_control, _woken) = waker_pair().unwrap();
    let stop = Stop::new().unwrap();
    let partition = partition(&cluster, 0, false);
    let link = worker_thread::Link {
        ask,
        wake_control,
        is_behind,
    };
    let (wake, woken) = waker_pair().unwrap();
    let (mailbox, inbox) = mailbox(wake);
    let mail = worker_thread::Mail {
        inbox,
        mailboxes: [mailbox].into(),
    };
    let (worker, served) =
        WorkerHandle::open::<Paxos>(partition, &services(), by_socket(partition), link, mail)
            .unwrap();
    let crew = Crew::new(vec![served], woken, stop.clone(), Duration::ZERO).unwrap();
    let crew = crew.start("worker".to_owned(), None).unwrap();
    let workers = Arc::new(vec![worker]);
    let _catch_up = CatchUp::start(catch_up::Needs {
        trust: Trust::default(),
        deployment: cluster.deployment(node, &cluster.groups[0]),
        directory: directory.path().to_owned(),
        peers: vec![peer.local_addr().unwrap()],
        workers: workers.clone(),
        whole: Arc::default(),
        told,
        begun: None,
    })
    .unwrap();
    let worker = &workers[0];
    let (from, to) = (vec![100], vec![1 << 32]);
    let view = View {
        group: 0,
        version: 1,
        epochs: Vec::new(),
        given_up: Some(GivenUp { from, to }),
        begins: None,
    };
    worker.give(Job::View {
        view: Arc::new(view),
        leader: None,
    });

    let (stream, _) = peer.accept().unwrap();
    let mut input = BufReader::new(&stream);
    let mut asked = |answer: &str| {
        let mut said = String::new();
        input.read_line(&mut said).unwrap();
        writeln!(&stream, "{answer}").unwrap();
        said
    };
    let said = asked(r#"{"willing":[5000000000]}"#);
    assert!(said.contains("4294967296"), "{said}");
    asked(r#"{"held":{"state":7,"positions":[5000000000]}}"#);
    // The answer begins, and never ends.
    let said = asked(r#"{"part":{"length":9,"crc":1,"last":false}}"#);
    assert!(said.contains("part") && said.contains('7'), "{said}");

    let (answer, answers) = mpsc::channel();
    worker.give(Job::Status(answer));
    let status = answers.recv().unwrap();
    assert_eq!(status["catching_up"], 1u64 << 32);
    // The state is given up only now, if at all.
    stream.set_nonblocking(true).unwrap();
    let still = (&stream).read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
    stop.request();
    crew.join().unwrap();
}

// ---- The notes that siblings rely on

/// Checks that a store that ends below `upto` would be refused.
fn assert_noted(partition: Partition<'_>, upto: Instance) {
    let mark = CheckpointMark::new(&partition.directory().unwrap());
    mark.check(upto).unwrap();
    let why = mark.check(upto - 1).unwrap_err().0;
    assert!(why.contains("a checkpoint had reached"), "{why}");
}

/// Siblings are told only of checkpoints that are noted, since they forget outcomes after that,
/// however soon the next checkpoint follows. [T-REACHED] [V-FORGET]
#[test]
fn siblings_are_told_only_what_is_noted() {
    let directory = TestDir::new();
    let cluster = cluster_of_two_partitions(&directory);
    let partition = partition(&cluster, 0, false);
    let (ask, _asked) = mpsc::channel();
    let (is_behind, _told) = mpsc::channel();
    let (wake, _woken) = waker_pair().unwrap();
    let link = worker_thread::Link {
        ask,
        wake_control: wake.clone(),
        is_behind,
    };
    let (own, inbox) = mailbox(wake.clone());
    let (sibling, told) = mailbox(wake);
    let mailboxes = [own, sibling].into();
    let mail = worker_thread::Mail { inbox, mailboxes };
    let (_handle, mut thread) =
        WorkerHandle::open::<Paxos>(partition, &services(), by_socket(partition), link, mail)
            .unwrap();
    for upto in [10, 20, 30] {
        execute_below(partition, &mut thread.worker, upto);
        thread.finish(0).unwrap();
        thread.worker.checkpoint_now().unwrap();
        while thread.worker.checkpointed() < upto {
            thread.follow_checkpoint(0).unwrap();
            std::thread::yield_now();
        }
        thread.finish(0).unwrap();
        let synced = told.try_iter().filter_map(|job| match job {
            Job::Sibling { message, .. } => Some(message),
            _ => None,
        });
        let last = synced.last();
        assert!(
            matches!(last, Some(SiblingMessage::Synced(at)) if at == upto),
            "{last:?}"
        );
        assert_noted(partition, upto);
    }
}

// ---- An install that was begun

fn cluster_of_two_partitions(directory: &TestDir) -> ClusterFile {
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../testdata/cluster.toml").replace("127.0.0.1", &host);
    let sample = sample.replace("partitions = 1 ", "partitions = 2 ");
    let sample = sample.replace(":7032", ":7052").replace(":7033", ":7072");
    let lines = sample.lines().filter(|line| !line.starts_with("redis"));
    let sample: String = lines.map(|line| format!("{line}\n")).collect();
    let file = directory.path().join("cluster.toml");
    parse(&sample, &file.display().to_string()).unwrap()
}

fn partition(cluster: &ClusterFile, pid: PartitionId, installing: bool) -> Partition<'_> {
    Partition {
        cluster,
        node: cluster.node("replica-1").unwrap(),
        group: &cluster.groups[0],
        pid,
        nonce: 1,
        memory: None,
        installing,
    }
}

/// Returns the state of a partition that has executed everything below `position`.
fn state_at(cluster: &ClusterFile, pid: PartitionId, position: Instance) -> Vec<u8> {
    let directory = TestDir::new();
    let file = CheckpointFile::new(directory.path().join("checkpoint"));
    let partition = partition(cluster, pid, false);
    let application = InMemory::open(file, Nothing).unwrap();
    let mut worker = Worker::open(partition.settings(), application, 1, 0).unwrap();
    execute_below(partition, &mut worker, position);
    let mut state = Vec::new();
    let (at, mut copy) = worker.snapshot().unwrap();
    copy.write_to(&mut state).unwrap();
    assert_eq!(at, position);
    state
}

/// Has a worker execute no-ops up to `position`.
fn execute_below<A: Application>(
    partition: Partition<'_>,
    worker: &mut Worker<A, Paxos>,
    position: Instance,
) {
    let deployment = partition
        .cluster
        .deployment(partition.node, partition.group);
    let member = |node| Member { node, nonce: 1 };
    let configuration = Configuration {
        epoch: 1,
        leader: member(1),
        acceptors: [11, 12, 13].map(member).into(),
        f: 1,
        replicas: vec![31],
        g: 0,
    };
    let active = true;
    worker.configure(
        0,
        &[EpochView {
            configuration,
            active,
        }],
    );
    for inst in worker.next()..position {
        let header = Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: partition.pid,
            inst,
            rnd: Round::base(1),
            vrnd: Round::base(1),
            flags: Flags::NOOP,
            ..Header::new(MsgType::Deliver)
        };
        let datagram = header.datagram(&[]);
        let verdict = worker.deliver(0, &Packet::parse(&datagram).unwrap());
        assert_eq!(verdict, Verdict::Changed);
    }
}

struct Begun {
    directory: TestDir,
    cluster: ClusterFile,
    note: PathBuf,
    incoming: PathBuf,
}

/// Leaves the files of a process that was killed between the replacements of the first and the
/// second partition.
fn killed_in_the_middle() -> Begun {
    let directory = TestDir::new();
    let cluster = cluster_of_two_partitions(&directory);
    let node = cluster.node("replica-1").unwrap();
    let of_node = cluster.node_dir(node);
    private_directory(&of_node).unwrap();
    let incoming = of_node.join("incoming");
    let positions = vec![30, 20];
    let head = Head {
        from: "127.0.0.1:1".parse().unwrap(),
        state: 5,
        positions: positions.clone(),
    };
    let mut come = Incoming::begin(&incoming, head).unwrap();
    for pid in [0, 1] {
        let state = state_at(&cluster, pid, positions[usize::from(pid)]);
        come.add(pid, &state, true).unwrap();
        if pid == 0 {
            let mut worker =
                open_worker::<Paxos>(partition(&cluster, 0, false), &services()).unwrap();
            worker.restore(0, 30, &mut &state[..]).unwrap();
        }
    }
    let deployment = cluster.deployment(node, &cluster.groups[0]);
    let install = Install::new(positions);
    Note::new(&of_node, deployment).write(&install).unwrap();
    Begun {
        note: of_node.join("install"),
        incoming,
        directory,
        cluster,
    }
}

struct Started {
    /// The partitions whose local sessions were told, in order.
    told: Arc<Mutex<Vec<PartitionId>>>,
    workers: Arc<Vec<WorkerHandle>>,
    catch_up: CatchUp,
    stop: Arc<Stop>,
    crew: Working,
}

/// Starts the replica's workers and its catch-up thread, with no other replica to ask.
fn start(begun: &Begun) -> Started {
    let cluster = &begun.cluster;
    let node = cluster.node("replica-1").unwrap();
    let deployment = cluster.deployment(node, &cluster.groups[0]);
    let directory = cluster.node_dir(node);
    let noted = Note::new(&directory, deployment).read().unwrap();
    assert!(noted.is_some());
    let told_sessions = Arc::<Mutex<Vec<_>>>::default();
    let to = told_sessions.clone();
    let services = Services {
        on_local_sessions: Arc::new(move |pid, _| to.lock().unwrap().push(pid)),
        ..services()
    };
    let (is_behind, told) = mpsc::channel();
    let stop = Stop::new().unwrap();
    let (wake, woken) = waker_pair().unwrap();
    let (mailboxes, inboxes): (Vec<_>, Vec<_>) =
        [0, 1].map(|_| mailbox(wake.clone())).into_iter().unzip();
    let mailboxes: Arc<[_]> = mailboxes.into();
    let open = |(inbox, pid)| {
        let mail = worker_thread::Mail {
            inbox,
            mailboxes: mailboxes.clone(),
        };
        let link = worker_thread::Link {
            ask: mpsc::channel().0,
            wake_control: waker_pair().unwrap().0,
            is_behind: is_behind.clone(),
        };
        let partition = partition(cluster, pid, true);
        WorkerHandle::open::<Paxos>(partition, &services, by_socket(partition), link, mail).unwrap()
    };
    let (workers, served): (Vec<_>, Vec<_>) = inboxes.into_iter().zip(0..).map(open).unzip();
    let crew = Crew::new(served, woken, stop.clone(), Duration::ZERO).unwrap();
    let crew = crew.start("worker".to_owned(), None).unwrap();
    let workers = Arc::new(workers);
    let catch_up = CatchUp::start(catch_up::Needs {
        trust: Trust::default(),
        deployment,
        directory,
        peers: Vec::new(),
        workers: workers.clone(),
        whole: Arc::default(),
        told,
        begun: noted,
    });
    Started {
        told: told_sessions,
        workers,
        catch_up: catch_up.unwrap(),
        stop,
        crew,
    }
}

/// A replica that was killed during an install completes it without another replica, since the
/// whole state is here. The front end hears of the sessions that came with a partition. [X-INSTALL]
/// [S-ANEW]
#[test]
fn a_replica_that_was_killed_in_an_install_ends_it() {
    let begun = killed_in_the_middle();
    // A process that was putting a copy there was killed, too.
    let of_node = begun.note.with_file_name("");
    let half_put = ["incoming.unfinished", "opened"].map(|name| of_node.join(name));
    for path in &half_put {
        private_directory(&path.join("partition-0")).unwrap();
    }
    let Started {
        told,
        workers,
        catch_up: _catch_up,
        stop,
        crew,
    } = start(&begun);
    while begun.incoming.exists() || workers.iter().any(|w| w.position.get().is_installing) {
        std::thread::yield_now();
    }
    assert_eq!(
        [0, 1].map(|pid: usize| workers[pid].position.get().next),
        [30, 20]
    );
    assert!(!begun.note.exists());
    assert!(!half_put.iter().any(|path| path.exists()));
    stop.request();
    crew.join().unwrap();
    // Partition 0 had been replaced before.
    assert_eq!(*told.lock().unwrap(), [0, 1, 1]);
    for (pid, next) in [(0, 30), (1, 20)] {
        // Siblings were told of it, too. [T-REACHED]
        assert_noted(partition(&begun.cluster, pid, false), next);
        let worker =
            open_worker::<Paxos>(partition(&begun.cluster, pid, false), &services()).unwrap();
        assert_eq!(worker.next(), next, "durable");
    }
}

/// If the fetched state is damaged the replica needs another one, and until then it executes
/// nothing and keeps its note. [X-INSTALL]
#[test]
fn a_replica_that_cannot_end_an_install_executes_nothing() {
    let begun = killed_in_the_middle();
    let state = begun.incoming.join("state-1");
    let mut bytes = std::fs::read(&state).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let Started {
        workers,
        catch_up,
        stop,
        crew,
        ..
    } = start(&begun);
    // The replica gives up the state that can't be used.
    while begun.incoming.exists() {
        std::thread::yield_now();
    }
    assert!(workers.iter().all(|w| w.position.get().is_installing));
    assert_eq!(workers[1].position.get().next, 0);
    // No copy is opened, either, since one partition is from before the install and the other from
    // after it. [X-HOLD]
    let handing_out = HandingOut {
        workers: workers.clone(),
        whole: Arc::default(),
    };
    let refused = handing_out.link(|_| Ok(())).unwrap_err();
    assert_eq!(refused, "installing a state myself");
    drop(catch_up);
    assert!(begun.note.exists());
    stop.request();
    crew.join().unwrap();
    // An unreadable note isn't ignored.
    std::fs::write(&begun.note, b"WPinst").unwrap();
    let node = begun.cluster.node("replica-1").unwrap();
    let deployment = begun.cluster.deployment(node, &begun.cluster.groups[0]);
    let directory = begun.cluster.node_dir(node);
    let refused = Note::new(&directory, deployment).read().unwrap_err();
    assert!(
        refused.to_string().contains(replica::MOVE_AWAY),
        "{refused}"
    );
    drop(begun.directory);
}
