// SPDX-License-Identifier: Apache-2.0
//! Records the packets that a node receives and sends and the orders that it gets, for
//! `wirepaxos-lab check-trace`. The records are lines of [`paxos::trace`], each with its time.
//!
//! Times are those of CLOCK_MONOTONIC, which all processes of a machine share, so that their files
//! can be merged. A packet is recorded as received once the kernel has handed it over, and as sent
//! before any node can see it; lines are in the file before anything leaves that depends on them.
//! So a killed process leaves no effect without its cause. If something is stored in between, the
//! order is: received, stored, sent. So an input that a kill takes from a log was not answered in
//! the trace, and an epoch is recorded before anything is proposed in it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use control::{EpochRecord, EpochState, GroupState};
use paxos::acceptor::Start;
use paxos::trace::{Event, Role, Settings};
use paxos::{Enable, Epoch, Header, NodeId, PartitionId, Program};

use crate::cluster_file::{self, ClusterFile, Group, Node, Storage};
use crate::{Error, host};

/// Records the events of one thread of a node for one group. The default does nothing.
#[derive(Default)]
pub struct Recorder(Option<Box<Recording>>);

struct Recording {
    node: NodeId,
    /// The last recorded epoch and its state.
    last: Option<(Epoch, EpochState)>,
    path: PathBuf,
    file: File,
    /// Lines that aren't in the file yet.
    lines: Vec<u8>,
    /// Sent packets are recorded after everything else since the last flush.
    stores: bool,
    sent: Vec<Event>,
    /// Packets that will be sent once something is stored.
    held: Vec<Event>,
}

impl Recorder {
    /// Returns the recorder of a node for a group (and partition, on a replica), which appends to
    /// an existing file. It does nothing if the cluster file names no directory for traces.
    pub fn open(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        pid: Option<PartitionId>,
    ) -> Result<Recorder, Error> {
        let Some(directory) = &cluster.trace else {
            return Ok(Recorder(None));
        };
        let partition = pid.map(|pid| format!(".{pid}")).unwrap_or_default();
        let path = directory.join(format!("{}.{}{partition}.trace", node.name, group.id));
        let settings = Settings {
            cluster: cluster.cluster,
            group: group.id,
            partitions: group.partitions,
            max_value: group.max_value,
            slots: group.slots as u64,
        };
        let file = fs::create_dir_all(directory)
            .and_then(|()| open(&path, &settings))
            .map_err(|e| unusable(&path, &e))?;
        Ok(Recorder(Some(Box::new(Recording {
            node: node.id,
            last: None,
            path,
            file,
            lines: Vec::new(),
            stores: node.role == cluster_file::Role::Controller || node.storage == Storage::Durable,
            sent: Vec::new(),
            held: Vec::new(),
        }))))
    }

    /// Records that a role starts with this boot nonce; for an acceptor, that its memory starts for
    /// the `start`-th time.
    pub fn started(&mut self, role: Role, nonce: u64, start: u64) {
        self.note(|node| Event::Start {
            node,
            role,
            nonce,
            start,
        });
    }

    /// Records that an acceptor may continue after this start.
    pub fn resumed(&mut self, start: Start) {
        self.note(|node| Event::Resume(node, start.number()));
    }

    /// Records a well-formed packet that has arrived and is handled next.
    #[inline]
    pub fn received(&mut self, datagram: &[u8]) {
        self.note(|node| Event::Recv(node, datagram.to_vec()));
    }

    /// Records a packet that is sent next. A multicast is recorded once.
    #[inline]
    pub fn sent(&mut self, header: &Header, value: &[u8]) {
        let Some(recording) = &mut self.0 else { return };
        let event = Event::Send(recording.node, header.datagram(value));
        match recording.stores {
            true => recording.sent.push(event),
            false => recording.append(&event),
        }
    }

    /// Records that an acceptor is told of an epoch.
    pub fn enabled(&mut self, enable: &Enable) {
        self.note(|node| Event::Enable(node, enable.clone()));
    }

    /// Records that a leader is given a round.
    pub fn programmed(&mut self, program: &Program) {
        self.note(|node| Event::Program(node, program.clone()));
    }

    /// Records that a leader is told of a later epoch.
    pub fn retired(&mut self, epoch: Epoch) {
        self.note(|node| Event::Retire(node, epoch));
    }

    /// Records the changes of the store's state; the first time, the whole state.
    pub fn stored(&mut self, state: &GroupState) {
        let Some(recording) = &mut self.0 else { return };
        for record in &state.epochs {
            recording.epoch(record);
        }
    }

    /// Writes the received packets. If that fails, none of them may go into a log.
    #[inline]
    pub fn flush_received(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Some(recording) => recording.write(),
            None => Ok(()),
        }
    }

    /// Holds back the packets sent so far, which leave once something is stored.
    #[inline]
    pub fn hold(&mut self) {
        if let Some(recording) = &mut self.0 {
            recording.held.append(&mut recording.sent);
        }
    }

    /// Writes the packets that were held back, since they leave now.
    #[inline]
    pub fn flush_held(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Some(recording) => {
                for event in std::mem::take(&mut recording.held) {
                    recording.append(&event);
                }
                recording.write()
            }
            None => Ok(()),
        }
    }

    /// Writes all that was recorded. If that fails, nothing may leave that depends on it.
    #[inline]
    pub fn flush(&mut self) -> Result<(), Error> {
        match &mut self.0 {
            Some(recording) => {
                for event in std::mem::take(&mut recording.sent) {
                    recording.append(&event);
                }
                recording.write()
            }
            None => Ok(()),
        }
    }

    #[inline]
    fn note(&mut self, event: impl FnOnce(NodeId) -> Event) {
        if let Some(recording) = &mut self.0 {
            recording.append(&event(recording.node));
        }
    }
}

impl Recording {
    #[cold]
    fn append(&mut self, event: &Event) {
        let written = writeln!(self.lines, "@{} {event}", host::monotonic_ns());
        written.expect("memory takes everything");
    }

    fn epoch(&mut self, record: &EpochRecord) {
        use EpochState::{Active, Issued, Writing};
        let epoch = record.epoch;
        for state in [Issued, Writing, Active] {
            if state > record.state || self.last >= Some((epoch, state)) {
                continue;
            }
            self.last = Some((epoch, state));
            self.append(&match state {
                Issued => Event::Epoch(record.configuration()),
                Writing => Event::Writing(epoch),
                Active => Event::Active(epoch),
            });
            if let (Issued, Some(lead)) = (state, record.lead) {
                self.append(&Event::Session(epoch, lead));
            }
        }
    }

    #[cold]
    fn write(&mut self) -> Result<(), Error> {
        let written = self.file.write_all(&self.lines);
        self.lines.clear();
        written.map_err(|e| unusable(&self.path, &e))
    }
}

/// Opens a trace to append to it, or creates it.
fn open(path: &Path, settings: &Settings) -> io::Result<File> {
    let mut file = File::options()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path)?;
    let mut there = Vec::new();
    file.read_to_end(&mut there)?;
    // A kill may have cut the last line. Its packet never left.
    let whole = there
        .iter()
        .rposition(|&b| b == b'\n')
        .map_or(0, |at| at + 1);
    file.set_len(whole as u64)?;
    file.seek(SeekFrom::End(0))?;
    let first = format!("{settings}\n");
    if whole == 0 {
        file.write_all(first.as_bytes())?;
    } else if !there.starts_with(first.as_bytes()) {
        return Err(io::Error::other(
            "it is the trace of another cluster or of other settings; remove it, or name another \
             directory (`trace`)",
        ));
    }
    Ok(file)
}

fn unusable(path: &Path, error: &io::Error) -> Error {
    Error::store(format!(
        "can't write {}: {error}; a node that can't record stops, since a trace with gaps proves \
         nothing",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;
    use paxos::MsgType;

    fn cluster(dir: &TestDir, number: u32) -> ClusterFile {
        let text = include_str!("../../../testdata/cluster.toml");
        let text = text.replace("data = ", "trace = \"traces\"\ndata = ");
        let file = dir.path().join("cluster.toml");
        let mut cluster = cluster_file::parse(&text, &file.display().to_string()).unwrap();
        cluster.cluster = number;
        cluster
    }

    fn recorder(cluster: &ClusterFile) -> Result<Recorder, Error> {
        let node = cluster.node("acceptor-1").unwrap();
        Recorder::open(cluster, node, &cluster.groups[0], None)
    }

    #[test]
    fn lines_are_written_in_order_and_a_cut_one_is_dropped() {
        let dir = TestDir::new();
        let cluster = cluster(&dir, 7);
        let path = dir.path().join("traces/acceptor-1.0.trace");
        let mut first = recorder(&cluster).unwrap();
        first.started(Role::Acceptor, 5, 1 << 32);
        first.received(&[1, 2]);
        first.sent(&Header::new(MsgType::Probe), b"x");
        first.flush().unwrap();
        // Lines that aren't flushed are lost with the process.
        first.received(&[3]);
        drop(first);
        let mut text = fs::read_to_string(&path).unwrap();
        text.push_str("@99 send 21 01");
        fs::write(&path, text).unwrap();

        let mut second = recorder(&cluster).unwrap();
        second.retired(2);
        second.flush().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        let mut lines = text.lines();
        let settings = Settings::parse(lines.next().unwrap()).unwrap();
        assert_eq!((settings.cluster, settings.slots), (7, 65536));
        let stamped = lines.map(|line| line.split_once(' ').unwrap());
        let (times, events): (Vec<&str>, Vec<&str>) = stamped.unzip();
        let node = cluster.node("acceptor-1").unwrap().id;
        let sent = Header::new(MsgType::Probe).datagram(b"x");
        let expected = [
            Event::Start {
                node,
                role: Role::Acceptor,
                nonce: 5,
                start: 1 << 32,
            },
            Event::Recv(node, vec![1, 2]),
            Event::Send(node, sent),
            Event::Retire(node, 2),
        ];
        assert_eq!(events, expected.map(|e| e.to_string()));
        let time = |text: &&str| text.strip_prefix('@').unwrap().parse::<u64>().unwrap();
        assert!(times.iter().map(time).is_sorted());
    }

    #[test]
    fn a_trace_of_another_cluster_is_not_continued() {
        let dir = TestDir::new();
        recorder(&cluster(&dir, 7)).unwrap();
        recorder(&cluster(&dir, 7)).unwrap();
        let refused = recorder(&cluster(&dir, 8)).err().unwrap().to_string();
        assert!(refused.contains("another cluster"), "{refused}");
    }

    #[test]
    fn without_a_directory_nothing_is_written() {
        let dir = TestDir::new();
        let mut cluster = cluster(&dir, 7);
        cluster.trace = None;
        let mut recorder = recorder(&cluster).unwrap();
        recorder.received(&[1]);
        recorder.flush().unwrap();
        assert!(!dir.path().join("traces").exists());
    }
}
