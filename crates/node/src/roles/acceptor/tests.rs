// SPDX-License-Identifier: Apache-2.0
use std::fs;
use std::net::UdpSocket;
use std::path::Path;

use control::Message;
use paxos::acceptor::Start;
use paxos::{Header, MsgType, Verdict};

use super::stored::{self, Stored};
use crate::Error;
use crate::cluster_file::ClusterFile;
use crate::test_dir::TestDir;

fn cluster(dir: &TestDir, storage: &str) -> ClusterFile {
    stored::cluster(dir.path(), storage)
}

fn open(cluster: &ClusterFile) -> Result<Stored, Error> {
    Stored::open(cluster)
}

/// Returns everything that the acceptor remembers except for the number of its start.
fn remembered(role: &Stored) -> String {
    let a = role.acceptor();
    let slots: Vec<_> = (0..64)
        .map(|inst| format!("{:?}", a.slot(0, inst)))
        .collect();
    let state = (a.nonce(), a.epoch(), a.floor(0), a.trim(0), a.end(0), slots);
    format!("{state:?} {:?}", a.reports())
}

/// Lets the acceptor continue, as the controller does after it has compared the memory.
fn resume(role: &mut Stored) {
    role.resume();
    assert!(!role.acceptor().is_mute());
}

fn discard(role: &mut Stored, start: u64) {
    let order = Message::DiscardMemory {
        group: 0,
        nonce: role.acceptor().nonce(),
        start,
    };
    role.order(&order);
}

/// Asks whether the memory was at an earlier start.
fn was_at(role: &mut Stored, earlier: Start) -> Option<bool> {
    let memory = role.acceptor();
    let question = Message::EarlierStartRequest {
        group: 0,
        nonce: memory.nonce(),
        start: memory.start().number(),
        earlier: earlier.number(),
    };
    let node = memory.deployment().node;
    match role.answer(&question)? {
        Message::EarlierStart { node: n, known, .. } if n == node => Some(known),
        other => panic!("{other:?}"),
    }
}

fn refusal(cluster: &ClusterFile) -> String {
    open(cluster).map(|_| ()).unwrap_err().to_string()
}

/// An orderly stop keeps a volatile memory for one start. [A-MUTE]
#[test]
fn an_orderly_stop_keeps_a_volatile_memory_for_one_start() {
    let dir = TestDir::new();
    let cluster = cluster(&dir, "volatile");
    let mut role = open(&cluster).unwrap();
    role.enable(1);
    assert_eq!(role.vote(0), Verdict::Changed);
    let (nonce, state) = (role.acceptor().nonce(), remembered(&role));
    role.stop();
    let mut back = open(&cluster).unwrap();
    assert_eq!(remembered(&back), state);
    let silent = back.vote(1);
    assert_eq!(silent, Verdict::Dropped(paxos::Reason::Restarted));
    resume(&mut back);
    assert_eq!(back.vote(1), Verdict::Changed);
    drop(back);
    // After a kill the dump is used up, so this is a stranger with a new nonce.
    let stranger = open(&cluster).unwrap();
    assert!(stranger.acceptor().is_stranger());
    assert_ne!(stranger.acceptor().nonce(), nonce);
}

/// A durable memory survives without an orderly stop. [A-DURABLE] [A-MUTE]
#[test]
fn a_durable_memory_survives_without_a_stop() {
    let dir = TestDir::new();
    let cluster = cluster(&dir, "durable");
    let mut role = open(&cluster).unwrap();
    let nonce = role.acceptor().nonce();
    drop(role);
    role = open(&cluster).unwrap();
    assert_eq!(
        role.acceptor().nonce(),
        nonce,
        "a stranger's nonce is durable too"
    );
    resume(&mut role);
    role.enable(1);
    for inst in 0..10 {
        assert_eq!(role.vote(inst), Verdict::Changed);
    }
    let trim = Header {
        cluster: cluster.cluster,
        inst: 4,
        swid: 31,
        client: 1,
        request: 1,
        ..Header::new(MsgType::Trim)
    };
    assert_eq!(role.step(&trim.datagram(&[])), Verdict::Changed);
    role.enable(2);
    let state = remembered(&role);
    for starts in [3, 4] {
        drop(role);
        role = open(&cluster).unwrap();
        assert_eq!(remembered(&role), state);
        assert_eq!(role.acceptor().start().count(), starts);
    }
    resume(&mut role);
    assert!(matches!(role.vote(3), Verdict::Rejected(_)));
}

/// A memory that has gone backwards is set aside and replaced by an empty one. [A-DISCARD]
#[test]
fn a_memory_that_has_forgotten_is_put_aside_for_an_empty_one() {
    for storage in ["durable", "volatile"] {
        let dir = TestDir::new();
        let cluster = cluster(&dir, storage);
        let mut role = open(&cluster).unwrap();
        role.enable(1);
        assert_eq!(role.vote(0), Verdict::Changed);
        role.stop();
        let mut role = open(&cluster).unwrap();
        let (nonce, state) = (role.acceptor().nonce(), remembered(&role));
        let start = role.acceptor().start().number();
        discard(&mut role, start + 1);
        assert_eq!(remembered(&role), state, "meant for another start");
        discard(&mut role, start);
        let fresh = role.acceptor().nonce();
        assert!(role.acceptor().is_stranger() && fresh != nonce);
        let name = match storage {
            "durable" => "log",
            _ => "acceptor.state",
        };
        let aside = format!("data/acceptor-1/{name}.forgotten-{nonce:016x}");
        assert!(dir.path().join(&aside).exists(), "{aside}");
        role.enable(2);
        assert!(
            !role.acceptor().is_stranger(),
            "a first start needs no order to go on"
        );
        role.stop();
        let mut role = open(&cluster).unwrap();
        assert_eq!(
            (role.acceptor().nonce(), role.acceptor().epoch()),
            (fresh, 2)
        );
        let start = role.acceptor().start().number();
        resume(&mut role);
        discard(&mut role, start);
        assert_eq!(
            role.acceptor().nonce(),
            fresh,
            "what votes is never emptied"
        );
    }
}

/// A start that the controller was told is on disk, even if the process is killed right then, and
/// an old copy doesn't have it. [A-TOLD]
#[test]
fn a_start_that_was_told_is_known_to_later_ones_and_to_no_copy() {
    for storage in ["durable", "volatile"] {
        let dir = TestDir::new();
        let cluster = cluster(&dir, storage);
        let own = dir.path().join("data/acceptor-1");
        let restart = |role: Stored| {
            match storage {
                "volatile" => role.stop(),
                _ => drop(role),
            }
            open(&cluster).unwrap()
        };
        let mut role = open(&cluster).unwrap();
        role.enable(1);
        role.stop();
        let copy = dir.path().join("copy");
        copy_all(&own, &copy);
        role = open(&cluster).unwrap();
        let told = role.acceptor().start();
        assert_eq!(was_at(&mut role, Start::FIRST), Some(true));
        role = restart(role);
        let silent = role.acceptor().start();
        role = restart(role);
        assert_eq!(was_at(&mut role, told), Some(true));
        assert_eq!(was_at(&mut role, silent), Some(false), "nobody was told");
        resume(&mut role);
        role = restart(role);
        assert_eq!(was_at(&mut role, told), Some(true));
        drop(role);

        fs::remove_dir_all(&own).unwrap();
        copy_all(&copy, &own);
        role = open(&cluster).unwrap();
        for _ in 0..3 {
            role = restart(role);
            assert_eq!(was_at(&mut role, told), Some(false));
        }
        let question = Message::EarlierStartRequest {
            group: 0,
            nonce: role.acceptor().nonce(),
            start: told.number(),
            earlier: Start::FIRST.number(),
        };
        assert_eq!(role.answer(&question), None, "another start");
    }
}

fn copy_all(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        match path.is_dir() {
            true => copy_all(&path, &to.join(name)),
            false => drop(fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

/// An operator can give up a damaged log, and no other one. [A-DISCARD]
#[test]
fn an_operator_gives_up_a_damaged_log_and_no_other() {
    let dir = TestDir::new();
    let mut cluster = cluster(&dir, "durable");
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut nodes = cluster.nodes.iter_mut();
    nodes.find(|n| n.name == "acceptor-1").unwrap().control = other.local_addr().unwrap();
    let node = cluster.node("acceptor-1").unwrap();
    let forget = || crate::forget_log(&cluster, node).map_err(|e| e.to_string());
    assert!(forget().unwrap_err().contains("control"), "it runs");
    drop(other);
    assert!(forget().unwrap_err().contains("nothing to forget"));
    let mut role = open(&cluster).unwrap();
    role.enable(1);
    assert_eq!(role.vote(0), Verdict::Changed);
    let nonce = role.acceptor().nonce();
    drop(role);
    assert!(forget().unwrap_err().contains("isn't damaged"));
    let segment = dir.path().join("data/acceptor-1/log/segment-0000000000");
    let mut bytes = fs::read(&segment).unwrap();
    bytes[40] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    assert!(refusal(&cluster).contains("wirepaxos forget-log"));
    let aside = forget().unwrap();
    assert_eq!(fs::read(aside.join("segment-0000000000")).unwrap(), bytes);
    let role = open(&cluster).unwrap();
    assert!(role.acceptor().is_stranger() && role.acceptor().nonce() != nonce);
    let volatile = stored::cluster(dir.path(), "volatile");
    let refused = crate::forget_log(&volatile, volatile.node("acceptor-1").unwrap());
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("no durable acceptor")
    );
}

/// The controller repeats its orders twice a second, so repeated ones must not fill the log.
#[test]
fn an_order_that_changes_nothing_is_not_logged() {
    let dir = TestDir::new();
    let cluster = cluster(&dir, "durable");
    let mut role = open(&cluster).unwrap();
    role.enable(1);
    let logged = |after: &str| {
        let segment = dir.path().join("data/acceptor-1/log/segment-0000000000");
        let bytes = fs::read(segment).expect(after);
        bytes.iter().rposition(|b| *b != 0)
    };
    let first = logged("the first order");
    assert!(first.is_some());
    role.enable(1);
    assert_eq!(logged("the same again"), first);
    role.enable(2);
    assert!(logged("another one") > first);
}

#[test]
fn a_memory_of_other_storage_is_refused_not_revived() {
    let dir = TestDir::new();
    let (volatile, durable) = (cluster(&dir, "volatile"), cluster(&dir, "durable"));
    drop(open(&durable).unwrap());
    let error = refusal(&volatile);
    assert!(
        error.contains("log can't be used") && error.contains("remove it"),
        "{error}"
    );
    fs::remove_dir_all(dir.path().join("data/acceptor-1/log")).unwrap();
    open(&volatile).unwrap().stop();
    let error = refusal(&durable);
    assert!(error.contains("acceptor.state can't be used"), "{error}");
}

#[test]
fn a_damaged_or_foreign_dump_is_refused() {
    let dir = TestDir::new();
    let cluster = cluster(&dir, "volatile");
    let mut role = open(&cluster).unwrap();
    role.enable(1);
    assert_eq!(role.vote(0), Verdict::Changed);
    role.stop();
    let path = dir.path().join("data/acceptor-1/acceptor.state");
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        assert!(refusal(&cluster).contains("checksum"), "byte {at}");
        fs::write(&path, &good[..at]).unwrap();
        let error = refusal(&cluster);
        assert!(error.contains("can't be used"), "{error}");
    }
    fs::write(&path, &good).unwrap();
    let mut other = cluster.clone();
    other.groups[0].slots = 128;
    assert!(refusal(&other).contains("another number of slots"));
    other.groups[0].id = 5;
    assert!(refusal(&other).contains("group 0, which the cluster file doesn't have"));
    open(&cluster).unwrap();
}
