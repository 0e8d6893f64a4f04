// SPDX-License-Identifier: Apache-2.0
//! An acceptor's files after something has happened to them: the log of a durable one, and what a
//! volatile one leaves when it stops. It refuses to start and names the file, or comes back with
//! all that it knew, since all of it was synced. Only without any file it is a stranger. What it
//! then stores is there again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::input::Input;
use super::scratch::Scratch;
use control::Message;
use node::ClusterFile;
use node::stored::{Stored, cluster};
use paxos::{Acceptor, Header, MsgType, Round};

/// Steps before the damage.
const MAX_STEPS: usize = 60;

/// Runs what `data` spells.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let dir = Scratch::new();
    let storage = match input.small() {
        0..200 => "durable",
        _ => "volatile",
    };
    let cluster = cluster(&dir.0, storage);
    let known = write(&cluster, &mut input, storage == "volatile");

    let node = cluster.node("acceptor-1").expect("the example's acceptor");
    let own = cluster.node_dir(node);
    for _ in 0..1 + input.small() % 3 {
        damage(&own, &mut input);
    }
    let expected = match files(&own).is_empty() {
        true => Votes::new(),
        false => known,
    };
    let mut acceptor = match Stored::open(&cluster) {
        Ok(acceptor) => acceptor,
        Err(error) => {
            let error = error.to_string();
            return assert!(error.contains(&own.display().to_string()), "{error}");
        }
    };
    assert_eq!(votes(acceptor.acceptor()), expected);
    // The acceptor goes on from there, over the next start too.
    resume(&mut acceptor);
    acceptor.order(&enabled(acceptor.acceptor(), 2));
    acceptor.take(&vote(acceptor.acceptor(), 2, 3, b"later"));
    let later = votes(acceptor.acceptor());
    if storage == "volatile" {
        acceptor.stop();
    } else {
        drop(acceptor);
    }
    let again = Stored::open(&cluster).expect("what it stored itself");
    assert_eq!(votes(again.acceptor()), later);
}

/// Votes by instance: round, client, request, value; and floor, trim and end under the last key.
type Votes = BTreeMap<u64, (u32, u64, u64, Vec<u8>)>;

fn votes(acceptor: &Acceptor) -> Votes {
    let (trim, end) = (acceptor.trim(0), acceptor.end(0));
    let slots = (trim..end).filter_map(|inst| acceptor.slot(0, inst));
    let vote = |s: paxos::acceptor::SlotView<'_>| {
        (s.inst, (s.vrnd.0, s.client, s.request, s.value.to_vec()))
    };
    let mut votes: Votes = slots.filter(|s| !s.vrnd.is_none()).map(vote).collect();
    if !acceptor.is_stranger() {
        votes.insert(u64::MAX, (acceptor.floor(0).0, trim, end, Vec::new()));
    }
    votes
}

/// Lets an acceptor live for a while, and returns what it knew in the end.
fn write(cluster: &ClusterFile, input: &mut Input<'_>, volatile: bool) -> Votes {
    let mut acceptor = Stored::open(cluster).expect("an empty directory");
    let order = enabled(acceptor.acceptor(), 1);
    acceptor.order(&order);
    for _ in 0..MAX_STEPS {
        match input.byte() {
            None => break,
            Some(0..10) => {
                match volatile {
                    true => acceptor.stop(),
                    false => drop(acceptor),
                }
                acceptor = Stored::open(cluster).expect("its own files");
                resume(&mut acceptor);
                acceptor.order(&order);
            }
            Some(n @ 10..20) => {
                let header = Header {
                    cluster: cluster.cluster,
                    inst: acceptor.acceptor().trim(0) + u64::from(n % 4),
                    swid: [31, 32, 33][usize::from(n % 3)],
                    ..Header::new(MsgType::Trim)
                };
                acceptor.take(&header.datagram(&[]));
            }
            Some(n) => {
                let value = input.bytes(255).repeat(1 + usize::from(n % 3));
                let datagram = vote(acceptor.acceptor(), 1, u64::from(n % 8), &value);
                acceptor.take(&datagram);
            }
        }
    }
    let known = votes(acceptor.acceptor());
    if volatile {
        acceptor.stop();
    }
    known
}

/// Lets the acceptor go on, as a controller does that has no other knowledge of it.
fn resume(acceptor: &mut Stored) {
    let question = Message::EarlierStartRequest {
        group: 0,
        nonce: acceptor.acceptor().nonce(),
        start: acceptor.acceptor().start().number(),
        earlier: 1 << 32,
    };
    acceptor.answer(&question).expect("its own start");
    let order = Message::ResumeAcceptor {
        group: 0,
        nonce: acceptor.acceptor().nonce(),
        start: acceptor.acceptor().start().number(),
    };
    acceptor.order(&order);
}

fn enabled(acceptor: &Acceptor, epoch: u32) -> Message {
    Message::EnableAcceptor {
        group: 0,
        epoch,
        nonce: acceptor.nonce(),
        trim: vec![0],
        end: vec![0],
        replicas: vec![31, 32, 33],
        g: 1,
    }
}

fn vote(acceptor: &Acceptor, epoch: u32, above: u64, value: &[u8]) -> Vec<u8> {
    let header = Header {
        cluster: acceptor.deployment().cluster,
        inst: acceptor.trim(0) + above,
        rnd: Round::base(epoch),
        client: 7,
        request: above + 1,
        ..Header::new(MsgType::Phase2a)
    };
    header.datagram(value)
}

// ---- Damage

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).expect("its own directory") {
            let path = entry.expect("its own directory").path();
            match path.is_dir() {
                true => directories.push(path),
                false => files.push(path),
            }
        }
    }
    files.sort();
    files
}

/// Something happens to one of the files.
fn damage(directory: &Path, input: &mut Input<'_>) {
    let files = files(directory);
    if files.is_empty() {
        return;
    }
    let file = &files[usize::from(input.small()) % files.len()];
    let other = &files[usize::from(input.small()) % files.len()];
    let mut bytes = fs::read(file).expect("a file");
    match input.small() {
        0..130 => input.damage(&mut bytes),
        // Damage goes where something was written, because most of a segment is zeros.
        130..190 => {
            let written: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at] != 0).collect();
            if !written.is_empty() {
                let at = usize::from(u16::from_be_bytes([input.small(), input.small()]));
                bytes[written[at % written.len()]] ^= input.small();
            }
        }
        190..210 => bytes.clear(),
        210..230 => return fs::remove_file(file).expect("a file"),
        230..240 => bytes = input.0.to_vec(),
        _ => bytes = fs::read(other).expect("a file"),
    }
    fs::write(file, bytes).expect("a file");
}
