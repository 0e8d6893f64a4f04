// SPDX-License-Identifier: Apache-2.0
//! Cuts the power at every moment of a log's life: after any prefix of the operations on the disk,
//! with any of the unsynced sectors written and any prefix of the unsynced names. After each cut
//! every state that was shown must be restored, and the log must not be refused, since the disk is
//! honest.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use paxos::group_commit::Turn;
use paxos::{Acceptor, Flags, GroupCommit, Header, MsgType, Packet, Round, Verdict};
use test_world::rng::Rng;

use super::files::{Contents, Files, Handle};
use super::*;
use crate::cluster_file::ClusterFile;
use crate::roles::acceptor::logged::{LoggedMemory, slot_of};
use crate::roles::acceptor::stored;

// ---- A disk that remembers all operations on it

#[derive(Clone)]
enum Op {
    Create(String, usize),
    Write(usize, u64, Vec<u8>),
    Sync(usize),
    /// A small file, whole and synced.
    Replace(String, Vec<u8>),
    Rename(String, String),
    Remove(String),
    SyncNames,
    /// All states up to the `n`-th have been shown to others.
    Shown(usize),
}

#[derive(Default)]
struct State {
    files: Vec<Vec<u8>>,
    names: BTreeMap<String, usize>,
    /// The files at the beginning; `ops` apply to them.
    before: BTreeMap<String, Vec<u8>>,
    ops: Vec<Op>,
    /// Frames are written but not synced, since the process is killed in between.
    kills_before_sync: bool,
}

#[derive(Clone, Default)]
struct Disk(Arc<Mutex<State>>);

struct OnDisk(Disk, usize);

impl Disk {
    fn of(contents: BTreeMap<String, Vec<u8>>) -> Disk {
        let mut state = State::default();
        for (name, bytes) in &contents {
            state.names.insert(name.clone(), state.files.len());
            state.files.push(bytes.clone());
        }
        state.before = contents;
        Disk(Arc::new(Mutex::new(state)))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn does(&self, op: Op) {
        let state = &mut *self.state();
        match &op {
            Op::Create(name, file) => {
                assert_eq!(*file, state.files.len());
                state.files.push(Vec::new());
                state.names.insert(name.clone(), *file);
            }
            Op::Write(file, offset, bytes) => write(&mut state.files[*file], *offset, bytes),
            Op::Replace(name, bytes) => {
                state.names.insert(name.clone(), state.files.len());
                state.files.push(bytes.clone());
            }
            Op::Rename(from, to) => {
                let file = state.names.remove(from).unwrap();
                state.names.insert(to.clone(), file);
            }
            Op::Remove(name) => drop(state.names.remove(name).unwrap()),
            Op::Sync(_) | Op::SyncNames | Op::Shown(_) => {}
        }
        state.ops.push(op);
    }

    fn file(&self, name: &str) -> io::Result<usize> {
        let file = self.state().names.get(name).copied();
        file.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns whether this is the name of a finished segment.
fn numbered(name: &str) -> bool {
    let number = name.strip_prefix("segment-");
    number.is_some_and(|n| n.parse::<u32>().is_ok())
}

fn write(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let offset = offset as usize;
    if file.len() < offset + bytes.len() {
        file.resize(offset + bytes.len(), 0);
    }
    file[offset..][..bytes.len()].copy_from_slice(bytes);
}

impl Files for Disk {
    fn path(&self) -> &Path {
        Path::new("log")
    }

    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        Ok(self.state().files[file].clone())
    }

    fn open(&self, name: &str) -> io::Result<Handle> {
        Ok(Arc::new(OnDisk(self.clone(), self.file(name)?)))
    }

    fn create(&self, name: &str, bytes: u64) -> io::Result<Handle> {
        let file = self.state().files.len();
        self.does(Op::Create(name.to_owned(), file));
        self.does(Op::Write(file, 0, vec![0; bytes as usize]));
        self.open(name)
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.does(Op::Replace(name.to_owned(), bytes.to_vec()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.does(Op::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.does(Op::Remove(name.to_owned()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.does(Op::SyncNames);
        Ok(())
    }
}

impl Contents for OnDisk {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.does(Op::Write(self.1, offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let is_lost = {
            let state = self.0.state();
            let name = state.names.iter().find(|(_, file)| **file == self.1);
            let in_use = name.is_some_and(|(name, _)| numbered(name));
            state.kills_before_sync && in_use
        };
        if is_lost {
            return Err(io::Error::other("the process is killed"));
        }
        self.0.does(Op::Sync(self.1));
        Ok(())
    }

    fn read_from_disk(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let state = self.0.state();
        let file = state.files[self.1].get(offset as usize..).unwrap_or(&[]);
        let read = file.len().min(bytes.len());
        bytes[..read].copy_from_slice(&file[..read]);
        Ok(read)
    }
}

// ---- The disk after a power cut

/// How the disk treats writes that were not synced.
#[derive(Clone, Copy)]
enum Unsynced {
    Lost,
    Written,
    /// Each sector is written or lost by chance.
    Some,
}

/// Returns the files after the first `ops` operations, and the last state that was shown by then.
fn cut(
    state: &State,
    ops: usize,
    unsynced: Unsynced,
    rng: &mut Rng,
) -> (BTreeMap<String, Vec<u8>>, usize) {
    let mut files: Vec<Vec<u8>> = state.before.values().cloned().collect();
    let names = state.before.keys().cloned();
    let mut names: BTreeMap<String, usize> = names.zip(0..).collect();
    let mut dirty: Vec<(usize, u64, Vec<u8>)> = Vec::new();
    let mut renames: Vec<&Op> = Vec::new();
    let mut shown = 0;
    let rename = |names: &mut BTreeMap<String, usize>, op: &Op| match op {
        Op::Create(name, file) => drop(names.insert(name.clone(), *file)),
        Op::Rename(from, to) => {
            let file = names.remove(from).unwrap();
            names.insert(to.clone(), file);
        }
        Op::Remove(name) => drop(names.remove(name)),
        _ => unreachable!("it names nothing"),
    };
    for op in &state.ops[..ops] {
        match op {
            Op::Create(..) => {
                files.push(Vec::new());
                renames.push(op);
            }
            Op::Rename(..) | Op::Remove(_) => renames.push(op),
            Op::Write(file, offset, bytes) => {
                let sectors = (*offset..)
                    .step_by(segment::SECTOR)
                    .zip(bytes.chunks(segment::SECTOR));
                dirty.extend(sectors.map(|(at, sector)| (*file, at, sector.to_vec())));
            }
            Op::Sync(file) => {
                for (of, at, sector) in &dirty {
                    if of == file {
                        write(&mut files[*of], *at, sector);
                    }
                }
                dirty.retain(|(of, ..)| of != file);
            }
            Op::Replace(name, bytes) => {
                renames.drain(..).for_each(|op| rename(&mut names, op));
                names.insert(name.clone(), files.len());
                files.push(bytes.clone());
            }
            Op::SyncNames => renames.drain(..).for_each(|op| rename(&mut names, op)),
            Op::Shown(state) => shown = *state,
        }
    }
    let mut happens = || match unsynced {
        Unsynced::Lost => false,
        Unsynced::Written => true,
        Unsynced::Some => rng.chance(500_000),
    };
    for (file, at, sector) in &dirty {
        if happens() {
            write(&mut files[*file], *at, sector);
        }
    }
    for op in renames {
        if !happens() {
            break;
        }
        rename(&mut names, op);
    }
    let contents = names
        .into_iter()
        .map(|(name, file)| (name, files[file].clone()));
    (contents.collect(), shown)
}

// ---- An acceptor's life

const SLOTS: u64 = 6;

fn cluster() -> ClusterFile {
    let mut cluster = stored::cluster(&PathBuf::from("/none"), "durable");
    let group = &mut cluster.groups[0];
    (group.slots, group.partitions) = (SLOTS as usize, 2);
    cluster
}

fn read<'a>(cluster: &'a ClusterFile, disk: &Disk) -> Result<(Read, LoggedMemory<'a>), Error> {
    let node = cluster.node("acceptor-1").unwrap();
    let owner = Owner {
        cluster: cluster.cluster,
        node: node.id,
    };
    let sizes = Sizes {
        segment_bytes: 4 * segment::BLOCK as u64,
        segments: 4,
    };
    let mut memory = LoggedMemory::new(cluster, node);
    let read = Read::open(Arc::new(disk.clone()), owner, sizes, &mut memory)?;
    Ok((read, memory))
}

/// Returns the index of the state that a log holds, among `states` from `from` on.
fn state_in(memory: &LoggedMemory<'_>, states: &[Vec<u8>], from: usize) -> Option<usize> {
    let found = without_start(&image_of(&memory.found()?));
    let at = states[from..]
        .iter()
        .position(|s| without_start(s) == found)?;
    Some(from + at)
}

fn image_of(acceptor: &Acceptor) -> Vec<u8> {
    let mut image = Vec::new();
    acceptor.save(&mut image);
    image
}

/// Returns a datagram that mostly changes the acceptor.
fn datagram(acceptor: &Acceptor, rng: &mut Rng) -> Vec<u8> {
    // One partition is busy, and the other one holds back the log.
    let pid = u16::from(rng.chance(100_000));
    let (trim, epoch) = (acceptor.trim(pid), acceptor.floor(pid).epoch());
    let inst = trim + rng.below(SLOTS);
    let rnd = Round::base(epoch);
    let base = Header {
        cluster: acceptor.deployment().cluster,
        pid,
        inst,
        rnd,
        ..Header::new(MsgType::Phase2a)
    };
    let (header, value) = match rng.below(20) {
        n @ 0..5 if pid == 0 => {
            let inst = trim + 1 + n / 4 * rng.below(4);
            let msgtype = MsgType::Trim;
            (
                Header {
                    msgtype,
                    inst,
                    ..base
                },
                vec![],
            )
        }
        5 => {
            let range = Header {
                msgtype: MsgType::Phase1a,
                flags: Flags::RANGE,
                rnd: Round::base(epoch + 1),
                inst: 0,
                client: 5,
                ..base
            };
            (range, vec![])
        }
        6..8 => {
            let rnd = Round(rnd.0 + 128 + rng.below(3) as u32);
            let msgtype = MsgType::Phase1a;
            (
                Header {
                    msgtype,
                    rnd,
                    ..base
                },
                vec![],
            )
        }
        n => {
            let (client, request) = (1 + inst, 1);
            let value = vec![n as u8; rng.below(700) as usize];
            (
                Header {
                    client,
                    request,
                    ..base
                },
                value,
            )
        }
    };
    header.datagram(&value)
}

/// A running log with its acceptors, and the saved image of each state that they were in.
struct Life {
    wal: Wal,
    acceptors: Vec<Acceptor>,
    commit: GroupCommit<Vec<usize>>,
    states: Vec<Vec<u8>>,
}

impl Life {
    fn lives(&mut self, disk: &Disk, rng: &mut Rng, steps: usize) {
        for _ in 0..steps {
            match rng.below(10) {
                0..7 => self.step(rng),
                7 | 8 => self.turn(),
                _ => self.stored(disk),
            }
        }
    }

    fn step(&mut self, rng: &mut Rng) {
        let datagram = datagram(&self.acceptors[0], rng);
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = self.acceptors[0].step(&packet, &mut Nowhere);
        if verdict == Verdict::Changed {
            let slot = slot_of(&packet.header);
            self.wal.append(RecordKind::Packet, &datagram, slot);
            self.commit.changed();
            self.states.push(image_of(&self.acceptors[0]));
        }
        let shows = self.states.len() - 1;
        self.commit.answers().push(shows);
    }

    fn turn(&mut self) {
        if self.wal.tend(&self.acceptors) {
            self.commit.changed();
        }
        match self.commit.turn() {
            Turn::Leave(answers) => answers.clear(),
            Turn::Sync => self.wal.begin(&self.acceptors).unwrap(),
            Turn::Wait => {}
        }
    }

    fn stored(&mut self, disk: &Disk) {
        if self.commit.is_syncing() && self.wal.synced(true).unwrap() {
            let last = self.commit.synced().drain(..).max();
            if let Some(shown) = last {
                disk.does(Op::Shown(shown));
            }
        }
    }
}

struct Nowhere;

impl paxos::Outbox for Nowhere {
    fn send(&mut self, _: paxos::To, _: &Header, _: &[u8]) {}
}

fn enabled(cluster: &ClusterFile, disk: &Disk) -> Life {
    let (read, memory) = read(cluster, disk).unwrap();
    let mut acceptors = memory.restarted().unwrap();
    let enable = paxos::Enable {
        epoch: 1,
        nonce: acceptors[0].nonce(),
        trim: vec![0; 2],
        end: vec![0; 2],
        replicas: vec![31, 32, 33],
        g: 1,
    };
    acceptors[0].enable(&enable).unwrap();
    let wal = read.go_on(&acceptors).unwrap();
    disk.does(Op::Shown(0));
    Life {
        wal,
        states: vec![image_of(&acceptors[0])],
        acceptors,
        commit: GroupCommit::default(),
    }
}

/// Starts another process on the same disk, or on a disk after a power cut.
fn again(cluster: &ClusterFile, disk: &Disk, states: &[Vec<u8>]) -> Life {
    let (read, memory) = read(cluster, disk).unwrap();
    let at = state_in(&memory, states, 0).expect("it was one of them");
    let mut acceptors = memory.restarted().unwrap();
    let (nonce, start) = (acceptors[0].nonce(), acceptors[0].start());
    acceptors[0].resume(nonce, start).unwrap();
    let wal = read.go_on(&acceptors).unwrap();
    disk.does(Op::Shown(at));
    Life {
        wal,
        states: states[..=at].to_vec(),
        acceptors,
        commit: GroupCommit::default(),
    }
}

/// Cuts the power after every prefix of the disk's operations from `from` on. Returns the files
/// after one of the cuts.
fn cut_everywhere(
    cluster: &ClusterFile,
    disk: &Disk,
    states: &[Vec<u8>],
    from: usize,
    rng: &mut Rng,
) -> BTreeMap<String, Vec<u8>> {
    use Unsynced::{Lost, Some, Written};
    let state = disk.state();
    let all = state.ops.len();
    let chosen = from + rng.below((all - from) as u64) as usize;
    let mut left = BTreeMap::new();
    for ops in from..=all {
        for unsynced in [Lost, Written, Some, Some] {
            let (contents, shown) = cut(&state, ops, unsynced, rng);
            let (_, memory) = read(cluster, &Disk::of(contents.clone()))
                .unwrap_or_else(|why| panic!("after {ops} of {all}: {why}"));
            let found = state_in(&memory, states, shown);
            assert!(found.is_some(), "after {ops} of {all}: less than was shown");
            if ops == chosen {
                left = contents;
            }
        }
    }
    left
}

/// Returns a saved acceptor without its start (bytes 34 to 42), which every start increments.
fn without_start(image: &[u8]) -> Vec<u8> {
    let mut image = image.to_vec();
    if let Some(start) = image.get_mut(34..42) {
        start.fill(0);
    }
    image
}

/// No state that was shown is lost by a power cut. [A-DURABLE]
#[test]
fn a_power_cut_at_any_moment_takes_nothing_that_was_shown() {
    let cluster = cluster();
    let mut reused = 0;
    for seed in 0..12 {
        let mut rng = Rng::new(seed);
        let mut disk = Disk::default();
        let mut life = enabled(&cluster, &disk);
        let mut from = disk.state().ops.len();
        for _ in 0..2 {
            life.lives(&disk, &mut rng, 120);
            // The process is killed after it has written a frame and before it has synced that
            // frame. Another process continues before the power fails, and shows the state that it
            // read.
            while life.commit.is_open() {
                life.turn();
                life.stored(&disk);
            }
            disk.state().kills_before_sync = true;
            while !life.commit.is_syncing() {
                life.step(&mut rng);
                life.turn();
            }
            let states = life.states;
            drop((life.wal, life.commit));
            disk.state().kills_before_sync = false;
            life = again(&cluster, &disk, &states);
            life.lives(&disk, &mut rng, 40);
            let states = life.states;
            drop((life.wal, life.commit));
            let left = cut_everywhere(&cluster, &disk, &states, from, &mut rng);
            let is_reuse =
                |op: &&Op| matches!(op, Op::Rename(from, _) if from.starts_with("spare"));
            reused += disk.state().ops.iter().filter(is_reuse).count();

            disk = Disk::of(left);
            life = again(&cluster, &disk, &states);
            from = 0;
        }
    }
    assert!(reused > 20, "old segments were used again {reused} times");
}
