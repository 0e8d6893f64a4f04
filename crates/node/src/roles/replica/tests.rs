// SPDX-License-Identifier: Apache-2.0
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpListener;

use control::GivenUp;
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
