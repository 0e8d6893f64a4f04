// SPDX-License-Identifier: Apache-2.0
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, UdpSocket};
use std::time::Duration;

use control::GivenUp;
use paxos::wire::value::Probe;
use paxos::{Header, MsgType, Packet};
use replica::storage::CheckpointFile;
use replica::{InMemory, StateMachine};

use super::*;
use crate::cluster_file::parse;
use crate::test_dir::TestDir;

/// Has no state.
struct Nothing;

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

/// What comes for a partition to the socket of its thread's first one is handed on; what no partition of
/// the thread takes changes nothing.
#[test]
fn a_thread_receives_for_all_its_partitions_at_one_socket() {
    let directory = TestDir::new();
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../examples/cluster.toml")
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
        let partition = Partition {
            cluster: &cluster,
            node,
            group,
            pid,
            nonce: 1,
        };
        let link = worker_thread::Link {
            ask: ask.clone(),
            wake_control: wake_control.clone(),
        };
        let mailboxes = mailboxes.clone();
        let mail = worker_thread::Mail { inbox, mailboxes };
        WorkerHandle::open(partition, &services(), None, link, mail).unwrap()
    };
    // Partition 2 is another thread's.
    let (_handles, mut served): (Vec<_>, Vec<_>) = inboxes.into_iter().zip(0..).map(open).unzip();
    served.truncate(2);
    let crew = Crew::new(served, woken, stop.clone());
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
    assert_eq!(answers, [(0, 4, port), (1, 2, port + 1)]);
    stop.request();
    crew.join().unwrap().unwrap();
}

/// A peer begins to hand out a state and falls silent: the worker answers meanwhile.
#[test]
fn a_worker_that_waits_for_a_state_goes_on() {
    let directory = TestDir::new();
    let host = crate::loopback::draw().unwrap().to_string();
    let sample = include_str!("../../../../../examples/cluster.toml").replace("127.0.0.1", &host);
    let file = directory.path().join("cluster.toml");
    let cluster = parse(&sample, &file.display().to_string()).unwrap();
    let node = cluster.node("replica-1").unwrap();
    let peer = cluster.node("replica-2").unwrap();
    let peer = TcpListener::bind(peer.control).unwrap();

    let (ask, _asked) = mpsc::channel();
    let (wake_control, _woken) = waker_pair().unwrap();
    let stop = Stop::new().unwrap();
    let partition = Partition {
        cluster: &cluster,
        node,
        group: &cluster.groups[0],
        pid: 0,
        nonce: 1,
    };
    let link = worker_thread::Link { ask, wake_control };
    let (wake, woken) = waker_pair().unwrap();
    let (mailbox, inbox) = mailbox(wake);
    let mail = worker_thread::Mail {
        inbox,
        mailboxes: [mailbox].into(),
    };
    let (worker, served) = WorkerHandle::open(partition, &services(), None, link, mail).unwrap();
    let crew = Crew::new(vec![served], woken, stop.clone());
    let crew = crew.start("worker".to_owned(), None).unwrap();
    let (from, to) = (vec![100], vec![1 << 32]);
    worker.give(Job::View {
        epochs: Arc::new([]),
        given_up: Some(GivenUp { from, to }),
        begins: None,
        leader: None,
    });

    let (stream, _) = peer.accept().unwrap();
    let mut input = BufReader::new(&stream);
    let mut said = String::new();
    input.read_line(&mut said).unwrap();
    writeln!(&stream, r#"{{"willing":5000000000}}"#).unwrap();
    input.read_line(&mut said).unwrap();
    assert!(
        said.contains("4294967296") && said.ends_with("\"go\"\n"),
        "{said}"
    );
    writeln!(&stream, r#"{{"position":5000000000}}"#).unwrap();

    let (answer, answers) = mpsc::channel();
    worker.give(Job::Status(answer));
    let status = answers.recv().unwrap();
    assert_eq!(status["catching_up"], 1u64 << 32);
    // Only now, if at all, the state is given up.
    stream.set_nonblocking(true).unwrap();
    let still = (&stream).read(&mut [0]).unwrap_err();
    assert_eq!(still.kind(), io::ErrorKind::WouldBlock);
    drop(stream);
    stop.request();
    crew.join().unwrap().unwrap();
}
