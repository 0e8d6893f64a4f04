// SPDX-License-Identifier: Apache-2.0
//! Tests damage to every file of every role that has files: flipped bits, cuts, loss, old copies,
//! and files of other nodes. Each damage ends in a refusal that names the file or its directory and
//! the remedy, or without any loss of data.
//!
//! | files | flips, cuts, loss of one | another cluster's, another node's | old copies |
//! |---|---|---|---|
//! | controller: `epochs.json`, `epochs.json.lock` | here | here | of the first *unnoticed* here |
//! | acceptor: `acceptor.state` | here, `roles/acceptor/tests.rs` | here | noticed, as said below |
//! | acceptor: `log/*` | `roles/wal/tests.rs` | here, there | of one there; of all, below |
//! | acceptor, replica: `view-N.json` | `store/kept_views.rs` | there | count as little as none |
//! | replica: `partition-N/*` | here, and below | here, and below | with `reached` *unnoticed* |
//!
//! The controller notices old copies of an acceptor's memory, and of all of its `log/*`. The
//! damages of a replica's store are here (all files of another cluster, and an old copy of the
//! store), in `roles/replica/checkpoint_mark.rs` and in `apps/tests/stores`.
//!
//! Some damage can't be noticed where it happens, since each file fits the others as it did at that
//! time:
//!
//! - An old copy of `epochs.json`, or a controller's whole directory that is gone: nobody but a
//!   newer store knows which epochs were issued. Nodes that remember a newer epoch warn or stop
//!   (docs/operations.md).
//! - An old copy of a volatile acceptor's `acceptor.state` or of a durable one's whole `log`. So
//!   what is read from a disk is silent until the controller has compared it with what it had shown
//!   (`control::memory`).
//! - An old copy of a durable replica's whole `log`, likewise. One of a file of it is refused, or
//!   noticed by the controller (`roles/replica/memory.rs`, `cli/tests/nopaxos.rs`).
//! - `acceptor.state` that is gone, or a whole `log`: a stranger, as after a crash, which joins as
//!   a new member.
//! - An old copy of a replica's whole partition, `reached` included, or an old store when `reached`
//!   is gone or as old.
//! - A table or a log of another store of the same library in place of one of the same name and
//!   size: their formats don't say whose they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use control::Store;
use paxos::{Configuration, Header, Member, MsgType, Round};
use replica::{MOVE_AWAY, Paxos};

use crate::cluster_file::ClusterFile;
use crate::roles::replica::{CheckpointMark, Partition, Services, open_worker};
use crate::store::FileStore;
use crate::stored::{Stored, cluster};
use crate::test_dir::TestDir;

/// The contents of files, by their names relative to the directory.
type Files = BTreeMap<PathBuf, Vec<u8>>;

fn read_all(directory: &Path) -> Files {
    let mut files = Files::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                let name = path.strip_prefix(directory).unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

fn write_all(directory: &Path, files: &Files) {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).unwrap();
    for (name, bytes) in files {
        let path = directory.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A description of the damage to one file, and all files with that damage.
type Damaged = (String, Files);

/// Returns the files with one bit flipped, for a bit of each `step`-th byte of every file.
fn flips(files: &Files, step: usize) -> Vec<Damaged> {
    let mut all = Vec::new();
    for (name, bytes) in files {
        for at in (0..bytes.len()).step_by(step.max(bytes.len() / 500)) {
            let mut damaged = files.clone();
            damaged.get_mut(name).unwrap()[at] ^= 1 << (at % 8);
            all.push((format!("{}: flipped at {at}", name.display()), damaged));
        }
    }
    all
}

/// Returns the files with one file cut, emptied, zeroed or removed, for every file.
fn losses(files: &Files) -> Vec<Damaged> {
    let mut all = Vec::new();
    for (name, bytes) in files {
        let mut with = |what: &str, bytes: Option<Vec<u8>>| {
            let mut damaged = files.clone();
            match bytes {
                Some(bytes) => damaged.insert(name.clone(), bytes),
                None => damaged.remove(name),
            };
            all.push((format!("{}: {what}", name.display()), damaged));
        };
        for len in [0, bytes.len() / 2, bytes.len().saturating_sub(3)] {
            with(&format!("cut to {len}"), Some(bytes[..len].to_vec()));
        }
        with("zeroed", Some(vec![0; bytes.len()]));
        with("gone", None);
    }
    all
}

/// Returns the files with an older version of one file, for every file that has changed.
fn old_copies(files: &Files, older: &Files) -> Vec<Damaged> {
    let changed = files.iter().filter_map(|(name, bytes)| {
        let old = older.get(name).filter(|old| *old != bytes)?;
        let mut damaged = files.clone();
        damaged.insert(name.clone(), old.clone());
        Some((format!("{}: an old copy", name.display()), damaged))
    });
    changed.collect()
}

/// Checks that a refusal names the file or its directory, and the remedy.
#[track_caller]
fn assert_helpful(text: &str, path: &Path, ways_out: &[&str], what: &str) {
    assert!(text.contains(&path.display().to_string()), "{what}: {text}");
    let has_way_out = ways_out.iter().any(|way| text.contains(way));
    assert!(has_way_out, "{what}: {text}");
}

// ---- Controller

fn configuration() -> Configuration {
    let member = |node| Member { node, nonce: 7 };
    Configuration {
        epoch: 0,
        leader: member(11),
        acceptors: [21, 22, 23].map(member).to_vec(),
        f: 1,
        replicas: vec![31, 32, 33],
        g: 1,
    }
}

/// Issues `epochs` epochs in a new directory, and returns its files.
fn controller(directory: &Path, epochs: u32) -> Files {
    let mut store = FileStore::open(&directory.join("epochs.json"), 7).unwrap();
    for _ in 0..epochs {
        let mut state = store.load(0).unwrap();
        let version = state.version;
        state.issue(&configuration()).unwrap();
        store.swap(0, version, &state).unwrap();
    }
    drop(store);
    read_all(directory)
}

#[test]
fn a_controller_issues_no_epoch_again() {
    let dir = TestDir::new();
    let own = dir.path().join("controller");
    fs::create_dir(&own).unwrap();
    let path = own.join("epochs.json");
    let older = controller(&own, 2);
    let files = controller(&own, 1);
    let all = FileStore::open(&path, 7).unwrap().load(0).unwrap();
    assert_eq!(files.len(), 2, "{:?}", files.keys());

    let damaged = flips(&files, 1).into_iter().chain(losses(&files));
    let mut refused = 0;
    for (what, files) in damaged {
        write_all(&own, &files);
        match FileStore::open(&path, 7) {
            Ok(mut store) => assert_eq!(store.load(0).unwrap(), all, "{what}"),
            Err(why) => {
                refused += 1;
                assert_eq!(
                    read_all(&own).get(Path::new("epochs.json")),
                    files.get(Path::new("epochs.json")),
                    "{what}"
                );
                assert_helpful(
                    &why.to_string(),
                    &path,
                    &["wirepaxos controller rebuild", "use the version"],
                    &what,
                );
            }
        }
    }
    assert!(refused > 100, "{refused}");

    write_all(&own, &files);
    let why = FileStore::open(&path, 0xc1)
        .err()
        .expect("another cluster's");
    let why = why.to_string();
    assert!(
        why.contains("cluster 00000007") && why.contains("000000c1"),
        "{why}"
    );
    assert_helpful(&why, &path, &["use the cluster file"], "another cluster's");

    // Old copies go unnoticed, as the module's description says.
    for (what, files) in old_copies(&files, &older) {
        write_all(&own, &files);
        let found = FileStore::open(&path, 7).unwrap().load(0).unwrap();
        assert!(found.version < all.version, "{what}");
    }
}

// ---- Acceptor

/// Starts an acceptor, lets it continue as the controller would, votes for `inst`, stops it, and
/// returns its files.
fn acceptor(cluster: &ClusterFile, inst: u64) -> Files {
    let mut acceptor = Stored::open(cluster).unwrap();
    let memory = acceptor.acceptor();
    match memory.is_mute() && !memory.is_stranger() {
        true => acceptor.resume(),
        false => acceptor.enable(1),
    }
    let _ = acceptor.vote(inst);
    assert!(acceptor.acceptor().slot(0, inst).is_some());
    acceptor.stop();
    read_all(&own_of(cluster))
}

fn own_of(cluster: &ClusterFile) -> PathBuf {
    cluster.node_dir(cluster.node("acceptor-1").unwrap())
}

/// A damaged file never makes an acceptor vote with less memory than it had. [A-DURABLE]
#[test]
fn an_acceptor_never_votes_with_less_than_it_had() {
    for storage in ["volatile", "durable"] {
        let dir = TestDir::new();
        let cluster = cluster(dir.path(), storage);
        let own = own_of(&cluster);
        let older = acceptor(&cluster, 0);
        let files = acceptor(&cluster, 1);
        let path = match storage {
            "volatile" => own.join("acceptor.state"),
            _ => own.join("log"),
        };

        let damaged = flips(&files, 7).into_iter().chain(losses(&files));
        for (what, files) in damaged.chain(old_copies(&files, &older)) {
            write_all(&own, &files);
            match Stored::open(&cluster) {
                Ok(acceptor) if storage == "volatile" && files.len() != 1 => {
                    assert!(acceptor.acceptor().is_stranger(), "{what}");
                }
                Ok(mut acceptor) => {
                    // An old `acceptor.state`, like a whole old directory, waits for the
                    // controller.
                    let is_old = files == older;
                    let _ = acceptor.vote(2);
                    let memory = acceptor.acceptor();
                    assert!(memory.is_mute() && memory.slot(0, 2).is_none(), "{what}");
                    assert_eq!(memory.slot(0, 1).is_none(), is_old, "{what}");
                }
                Err(why) => {
                    let why = why.to_string();
                    assert_helpful(&why, &path, &["remove it", "move the whole"], &what);
                }
            }
        }

        // With all files from an earlier moment, the start has a number that was used before.
        write_all(&own, &files);
        let newest = Stored::open(&cluster).unwrap().acceptor().start().count();
        write_all(&own, &older);
        let mut old = Stored::open(&cluster).unwrap();
        assert!(old.acceptor().start().count() < newest);
        let _ = old.vote(1);
        assert!(old.acceptor().slot(0, 1).is_none(), "it is silent");
    }
}

/// Another version's files are refused by name, and stay as they are. [E-LEVEL]
#[test]
fn an_acceptors_files_are_of_one_version() {
    for (storage, name) in [("volatile", "acceptor.state"), ("durable", "log/key")] {
        let dir = TestDir::new();
        let cluster = cluster(dir.path(), storage);
        let own = own_of(&cluster);
        let mut files = acceptor(&cluster, 0);
        let bytes = files.get_mut(Path::new(name)).unwrap();
        bytes[5] = 9;
        let body = bytes.len() - 4;
        // The log's checksums begin with its key, which is 0 for the file of the key itself.
        let key: &[u8] = if storage == "durable" { &[0; 8] } else { &[] };
        let crc = crc32fast::hash(&[key, &bytes[..body]].concat());
        bytes[body..].copy_from_slice(&crc.to_be_bytes());
        write_all(&own, &files);
        let why = Stored::open(&cluster).err().expect("a refusal").to_string();
        assert!(why.contains("it has format 9, and this"), "{why}");
        assert_eq!(read_all(&own), files, "nothing changed");
    }
}

#[test]
fn an_acceptors_files_are_of_one_node_of_one_cluster() {
    for storage in ["volatile", "durable"] {
        let dir = TestDir::new();
        let cluster = cluster(dir.path(), storage);
        let own = own_of(&cluster);
        let files = acceptor(&cluster, 0);
        let mut foreign = cluster.clone();
        foreign.cluster = 0xc1;
        let mut neighbour = cluster.clone();
        let node = neighbour.nodes.iter_mut().find(|n| n.name == "acceptor-1");
        node.unwrap().id = 99;
        for (other, named) in [
            (&foreign, "of cluster 000000c1"),
            (&neighbour, "node 99 of"),
        ] {
            write_all(&own, &files);
            let why = Stored::open(other).err().expect("a refusal").to_string();
            assert!(why.contains("node 21 of cluster 5eed0001"), "{why}");
            assert!(why.contains(named), "{why}");
            assert_helpful(&why, &own, &["look at `data`"], named);
            assert_eq!(read_all(&own), files, "nothing changed");
        }
        Stored::open(&cluster).unwrap();
    }
}

// ---- Replica

const NOOPS: u64 = 5;

fn partition(cluster: &ClusterFile) -> Partition<'_> {
    Partition {
        cluster,
        node: cluster.node("replica-1").unwrap(),
        group: &cluster.groups[0],
        pid: 0,
        nonce: 1,
        memory: None,
        installing: false,
    }
}

struct Nowhere;

impl paxos::Outbox for Nowhere {
    fn send(&mut self, _: paxos::To, _: &Header, _: &[u8]) {}
}

impl replica::Output for Nowhere {
    fn reply(
        &mut self,
        _: &replica::ReplyTo,
        _: Option<replica::Basis>,
        _: u64,
        _: u64,
        _: u8,
        _: &[u8],
    ) {
    }

    fn ack(&mut self, _: &replica::ReplyTo, _: &paxos::Header) {}

    fn sibling(&mut self, _: paxos::PartitionId, _: replica::SiblingMessage) {}
}

/// Executes some no-ops and takes a checkpoint. Returns the replica's files and its next instance.
fn replica(cluster: &ClusterFile, services: &Services) -> (Files, u64) {
    let partition = partition(cluster);
    let directory = partition.directory().unwrap();
    let mut worker = open_worker::<Paxos>(partition, services).unwrap();
    let configuration = Configuration {
        epoch: 1,
        ..configuration()
    };
    let active = true;
    let epoch = replica::EpochView {
        configuration,
        active,
    };
    worker.configure(0, &[epoch]);
    for inst in worker.next()..worker.next() + NOOPS {
        let header = Header {
            cluster: cluster.cluster,
            inst,
            rnd: Round::base(1),
            flags: paxos::Flags::NOOP,
            ..Header::new(MsgType::Deliver)
        };
        let (tag, value) = (None, &[][..]);
        let packet = paxos::Packet { header, tag, value };
        assert_eq!(worker.deliver(0, &packet), paxos::Verdict::Changed);
    }
    worker.finish_batch(0, &mut Nowhere).unwrap();
    match worker.take_checkpoint() {
        Some(write) => worker.end_checkpoint(0, write()).unwrap(),
        None => worker.checkpoint(0).unwrap(),
    }
    let next = worker.next();
    drop(worker);
    CheckpointMark::new(&directory).note(next).unwrap();
    (read_all(&directory), next)
}

/// Checks that a replica of an application has all that it reported, whatever file is damaged.
fn a_replica_has_all_that_it_reported(name: &'static str) {
    let dir = TestDir::new();
    let cluster = cluster(dir.path(), "volatile");
    let services = Services::new(Arc::new(move |_, dir| apps::open(name, dir)));
    let directory = partition(&cluster).directory().unwrap();
    let (older, before) = replica(&cluster, &services);
    let (files, next) = replica(&cluster, &services);
    assert_eq!((before, next), (NOOPS, 2 * NOOPS));
    let open = |files: &Files| {
        write_all(&directory, files);
        let worker = open_worker::<Paxos>(partition(&cluster), &services);
        worker.map(|w| w.next()).map_err(|e| e.to_string())
    };
    let refused = |why: &str, what: &str| assert_helpful(why, &directory, &[MOVE_AWAY], what);

    let few = |files: &Files| {
        let large = files.values().map(Vec::len).max().unwrap();
        flips(files, large / 6)
    };
    let damaged = few(&files).into_iter().chain(losses(&files));
    for (what, files) in damaged.chain(old_copies(&files, &older)) {
        match open(&files) {
            Ok(found) => assert_eq!(found, next, "{what}"),
            Err(why) => refused(&why, &what),
        }
    }

    let reached = PathBuf::from("reached");
    let with_reached = |mut store: Files, bytes: Option<&Vec<u8>>| {
        store.remove(&reached);
        store.extend(bytes.map(|bytes| (reached.clone(), bytes.clone())));
        store
    };
    let noted = &files[&reached];
    refused(
        &open(&with_reached(older.clone(), Some(noted))).unwrap_err(),
        "an old store",
    );
    refused(
        &open(&with_reached(Files::new(), Some(noted))).unwrap_err(),
        "no store",
    );

    // A start reports its state as durable, so it notes that state in `reached`, too.
    assert_eq!(open(&with_reached(files.clone(), None)), Ok(next));
    assert_eq!(read_all(&directory).get(&reached), Some(noted));

    // Old copies go unnoticed, as the module's description says.
    assert_eq!(open(&older), Ok(before));
    assert_eq!(open(&with_reached(older.clone(), None)), Ok(before));

    let mut foreign = cluster.clone();
    foreign.cluster = 0xc1;
    write_all(&directory, &files);
    let why = open_worker::<Paxos>(partition(&foreign), &services)
        .err()
        .expect("a refusal");
    let why = why.to_string();
    assert!(why.contains("cluster 5eed0001"), "{why}");
    assert_helpful(&why, &directory, &["cluster file"], "another cluster's");
    assert_eq!(open(&files), Ok(next));
}

/// A replica whose application is in memory has all that it reported. [T-REACHED]
#[test]
fn a_replica_in_memory_has_all_that_it_reported() {
    a_replica_has_all_that_it_reported("echo");
}

#[test]
fn a_replica_on_rocksdb_has_all_that_it_reported() {
    a_replica_has_all_that_it_reported("rocksdb");
}

#[test]
fn a_replica_on_leveldb_has_all_that_it_reported() {
    a_replica_has_all_that_it_reported("leveldb");
}
