// SPDX-License-Identifier: Apache-2.0
//! Checkpoint transfer: a replica that fell below the trim point fetches another one's state.
//!
//! TCP to the other replica's `control` address. Lines are JSON:
//!
//! | who | says | |
//! |---|---|---|
//! | asker | the question | whose state, and from where on |
//! | replica | `willing` with its position, or `refused` | at once, whatever its workers do; a replica that needs a checkpoint itself refuses |
//! | asker | `go` | to one of those that are willing |
//! | replica | `position`, or `refused` | then frames: `length` u32, bytes; an empty frame ends the stream and is followed by the CRC-32 of all bytes |
//!
//! All replicas are asked at once, so that one that doesn't answer holds up nobody. What comes is kept in
//! a file until it is whole. A stream that ends early or doesn't match its checksum changes nothing.
//! [X-CATCHUP]

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use paxos::{Deployment, GroupId, Instance, PartitionId};
use replica::Snapshot;
use serde::{Deserialize, Serialize};
use tracing::{Span, warn};

use crate::host::Stop;
use crate::listen::Connections;

const FRAME_LEN: usize = 256 * 1024;
const MAX_LINE_LEN: u64 = 4096;
const MAX_TRANSFERS: usize = 4;
/// In the partition's directory: name of the file of a state on its way here, while that is opened.
const INCOMING: &str = "incoming";

/// How long the other side may be silent.
#[derive(Clone, Copy)]
pub struct Patience {
    /// Until it has answered a question, which is quick.
    pub answer: Duration,
    /// In the middle of a state.
    pub stream: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            answer: Duration::from_secs(2),
            stream: Duration::from_secs(20),
        }
    }
}

/// Which partition's state is wanted, and how far it must reach.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Question {
    cluster: u32,
    group: GroupId,
    partitions: u16,
    pid: PartitionId,
    at_least: Instance,
}

impl Question {
    /// For a state of this partition that covers at least everything below `at_least`.
    pub fn new(deployment: &Deployment, pid: PartitionId, at_least: Instance) -> Question {
        Question {
            cluster: deployment.cluster,
            group: deployment.group,
            partitions: deployment.partitions,
            pid,
            at_least,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// A state from about here on can be had.
    Willing(Instance),
    /// The state before this instance follows.
    Position(Instance),
    Refused(String),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Choice {
    Go,
}

/// Where a worker stands, shown to other threads without asking it.
#[derive(Default)]
pub struct Standing {
    next: AtomicU64,
    catching_up: AtomicBool,
}

impl Standing {
    /// Shows the next instance, and whether the worker needs another replica's state.
    pub fn show(&self, next: Instance, catching_up: bool) {
        self.next.store(next, Ordering::Relaxed);
        self.catching_up.store(catching_up, Ordering::Relaxed);
    }
}

/// A worker's snapshot with its position, or why there is none.
pub type Offer = Result<(Instance, Box<dyn Snapshot>), String>;

/// Asks a worker for a snapshot; it answers through the sender. False if it has ended.
pub type Ask = Box<dyn Fn(mpsc::Sender<Offer>) -> bool + Send + Sync>;

/// The worker of a partition, as far as those see it who hand its state out.
pub struct Source {
    /// Where it stands.
    pub standing: Arc<Standing>,
    /// The way to it.
    pub ask: Ask,
}

/// Serves checkpoints until dropped.
pub struct Server {
    stop: Arc<Stop>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `address` for those who want the state of one of the partitions.
    pub fn start(
        address: SocketAddr,
        deployment: Deployment,
        partitions: Vec<Source>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let stop = Stop::new()?;
        let (stopping, span) = (stop.clone(), Span::current());
        let sources = Arc::new(Sources {
            deployment,
            partitions,
            patience: Patience::default(),
        });
        let thread = std::thread::Builder::new()
            .name("transfer".into())
            .spawn(move || {
                let _said_there = span.entered();
                accept_loop(listener, &sources, &stopping);
            })?;
        Ok(Server {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_loop(listener: TcpListener, sources: &Arc<Sources>, stop: &Stop) {
    let running = Arc::new(AtomicUsize::new(0));
    for stream in Connections::new(listener, "checkpoint transfer", stop) {
        if running.fetch_add(1, Ordering::AcqRel) >= MAX_TRANSFERS {
            running.fetch_sub(1, Ordering::AcqRel);
            continue; // closed: the other side tries elsewhere, or later
        }
        let (sources, done, span) = (sources.clone(), running.clone(), Span::current());
        let spawned = std::thread::Builder::new()
            .name("transfer-send".into())
            .spawn(move || {
                let _said_there = span.entered();
                if let Err(e) = sources.serve(stream) {
                    warn!(error = %e, "a checkpoint wasn't handed out whole");
                }
                done.fetch_sub(1, Ordering::AcqRel);
            });
        if spawned.is_err() {
            running.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// What is handed out.
struct Sources {
    deployment: Deployment,
    partitions: Vec<Source>,
    patience: Patience,
}

impl Sources {
    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(self.patience.answer))?;
        stream.set_write_timeout(Some(self.patience.stream))?;
        let mut input = BufReader::new(&stream);
        let question: Question = read_line(&mut input)?;
        let mut out = BufWriter::with_capacity(FRAME_LEN, &stream);
        let (source, next) = match self.willing(&question) {
            Ok(willing) => willing,
            Err(why) => {
                write_line(&mut out, &Answer::Refused(why))?;
                return out.flush();
            }
        };
        write_line(&mut out, &Answer::Willing(next))?;
        out.flush()?;
        // An asker that has found another replica goes without a word.
        let Ok(Choice::Go) = read_line(&mut input) else {
            return Ok(());
        };
        match self.offer(source, question.at_least) {
            Err(why) => write_line(&mut out, &Answer::Refused(why))?,
            Ok((position, mut snapshot)) => {
                write_line(&mut out, &Answer::Position(position))?;
                let mut frames = FrameWriter::new(&mut out);
                snapshot.write_to(&mut frames)?;
                frames.finish()?;
            }
        }
        out.flush()
    }

    /// The worker that can help and its position, without asking it.
    fn willing(&self, question: &Question) -> Result<(&Source, Instance), String> {
        let own = &self.deployment;
        if (question.cluster, question.group) != (own.cluster, own.group) {
            return Err("another cluster or group".into());
        }
        if question.partitions != own.partitions {
            return Err(format!("{} partitions here", own.partitions));
        }
        let source = self.partitions.get(usize::from(question.pid));
        let source = source.ok_or_else(|| format!("no partition {} here", question.pid))?;
        if source.standing.catching_up.load(Ordering::Relaxed) {
            return Err("catching up myself".into());
        }
        let next = source.standing.next.load(Ordering::Relaxed);
        enough(next, question.at_least)?;
        Ok((source, next))
    }

    fn offer(&self, source: &Source, at_least: Instance) -> Offer {
        let (answer, offered) = mpsc::channel();
        if !(source.ask)(answer) {
            return Err("stopping".into());
        }
        let offered = offered.recv_timeout(self.patience.stream);
        let (position, snapshot) = offered.map_err(|_| "the worker is busy or stopping")??;
        enough(position, at_least)?;
        Ok((position, snapshot))
    }
}

fn enough(next: Instance, at_least: Instance) -> Result<(), String> {
    if next < at_least {
        return Err(format!("only at instance {next} myself"));
    }
    Ok(())
}

/// A state that has come whole.
pub struct Fetched {
    /// Whose it was.
    pub from: SocketAddr,
    /// It is the state before this instance.
    pub position: Instance,
    /// It, from its beginning on.
    pub state: File,
}

/// Asks all `peers` at once for a state and takes it from the first one that has it. It is kept in
/// a file without a name, on the file system of `directory`.
pub fn fetch(
    peers: &[SocketAddr],
    question: Question,
    directory: &Path,
    patience: Patience,
) -> io::Result<Fetched> {
    let (tell, answers) = mpsc::channel();
    for &peer in peers {
        let tell = tell.clone();
        std::thread::Builder::new()
            .name("transfer-ask".into())
            .spawn(move || {
                // Fails if another one was quicker.
                let _ = tell.send((peer, ask(peer, &question, patience)));
            })?;
    }
    drop(tell);
    let mut why = Vec::new();
    for (from, willing) in answers {
        match willing.and_then(|stream| receive(stream, directory, patience)) {
            Ok((position, state)) => {
                return Ok(Fetched {
                    from,
                    position,
                    state,
                });
            }
            Err(e) => why.push(format!("{from}: {e}")),
        }
    }
    why.sort();
    Err(io::Error::other(why.join("; ")))
}

/// A connection to a peer that is willing.
fn ask(
    peer: SocketAddr,
    question: &Question,
    patience: Patience,
) -> io::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect_timeout(&peer, patience.answer)?;
    stream.set_read_timeout(Some(patience.answer))?;
    stream.set_write_timeout(Some(patience.answer))?;
    write_line(&mut &stream, question)?;
    let mut input = BufReader::with_capacity(FRAME_LEN, stream);
    match read_line(&mut input)? {
        Answer::Willing(_) => Ok(input),
        Answer::Refused(why) => Err(io::Error::other(why)),
        Answer::Position(_) => Err(damaged("a state that nobody chose")),
    }
}

fn receive(
    input: BufReader<TcpStream>,
    directory: &Path,
    patience: Patience,
) -> io::Result<(Instance, File)> {
    input.get_ref().set_read_timeout(Some(patience.stream))?;
    write_line(&mut input.get_ref(), &Choice::Go)?;
    let (position, mut frames) = answered(input)?;
    let mut state = nameless(directory)?;
    io::copy(&mut frames, &mut state)?;
    state.rewind()?;
    Ok((position, state))
}

/// What another replica answers in the end: a state's position and the state, or why there is none.
pub fn answered<R: BufRead>(mut input: R) -> io::Result<(Instance, FrameReader<R>)> {
    match read_line(&mut input)? {
        Answer::Position(position) => Ok((position, FrameReader::new(input))),
        Answer::Refused(why) => Err(io::Error::other(why)),
        Answer::Willing(_) => Err(damaged("the same answer twice")),
    }
}

/// A file that goes with its descriptor.
fn nameless(directory: &Path) -> io::Result<File> {
    let path = directory.join(INCOMING);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&path)?;
    fs::remove_file(&path)?;
    Ok(file)
}

fn write_line(out: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    out.write_all(&line)
}

fn read_line<T: for<'a> Deserialize<'a>>(input: &mut impl BufRead) -> io::Result<T> {
    let mut line = Vec::new();
    input.take(MAX_LINE_LEN).read_until(b'\n', &mut line)?;
    serde_json::from_slice(&line)
        .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, format!("bad request line: {e}")))
}

/// Writes a state as it travels.
pub struct FrameWriter<W> {
    out: W,
    crc: crc32fast::Hasher,
}

impl<W: Write> FrameWriter<W> {
    /// Into `out`, behind the answer's line.
    pub fn new(out: W) -> Self {
        FrameWriter {
            out,
            crc: crc32fast::Hasher::new(),
        }
    }

    /// Ends the stream: all of it was written.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&0u32.to_be_bytes())?;
        self.out.write_all(&self.crc.finalize().to_be_bytes())
    }
}

impl<W: Write> Write for FrameWriter<W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let frame = &buf[..buf.len().min(FRAME_LEN)];
        if !frame.is_empty() {
            self.crc.update(frame);
            self.out.write_all(&(frame.len() as u32).to_be_bytes())?;
            self.out.write_all(frame)?;
        }
        Ok(frame.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Reads a state as it travels: an error before its end means that all of it is void.
pub struct FrameReader<R> {
    input: R,
    crc: crc32fast::Hasher,
    left_in_frame: usize,
    ended: bool,
}

impl<R: Read> FrameReader<R> {
    fn new(input: R) -> Self {
        FrameReader {
            input,
            crc: crc32fast::Hasher::new(),
            left_in_frame: 0,
            ended: false,
        }
    }

    fn read_u32(&mut self) -> io::Result<u32> {
        let mut bytes = [0; 4];
        self.input.read_exact(&mut bytes)?;
        Ok(u32::from_be_bytes(bytes))
    }

    fn next_frame(&mut self) -> io::Result<()> {
        self.left_in_frame = self.read_u32()? as usize;
        if self.left_in_frame > FRAME_LEN {
            return Err(damaged("a frame is too long"));
        }
        if self.left_in_frame == 0 {
            let expected = self.read_u32()?;
            if self.crc.clone().finalize() != expected {
                return Err(damaged("the checksum does not match"));
            }
            self.ended = true;
        }
        Ok(())
    }
}

impl<R: Read> Read for FrameReader<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        if !self.ended && self.left_in_frame == 0 {
            self.next_frame()?;
        }
        if self.ended {
            return Ok(0);
        }
        let wanted = buf.len().min(self.left_in_frame);
        let n = self.input.read(&mut buf[..wanted])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.crc.update(&buf[..n]);
        self.left_in_frame -= n;
        Ok(n)
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("damaged checkpoint stream: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut writer = FrameWriter::new(&mut out);
        writer.write_all(bytes).unwrap();
        writer.finish().unwrap();
        out
    }

    fn unframed(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        FrameReader::new(bytes).read_to_end(&mut out)?;
        Ok(out)
    }

    /// [X-CATCHUP]
    #[test]
    fn a_stream_arrives_whole_or_not_at_all() {
        let state: Vec<u8> = (0..700_000u32).map(|i| i as u8).collect();
        let stream = framed(&state);
        assert_eq!(unframed(&stream).unwrap(), state);
        for cut in [0, 3, 4, 1000, stream.len() - 5, stream.len() - 1] {
            assert!(unframed(&stream[..cut]).is_err(), "cut at {cut}");
        }
        for at in [4, 100_000, stream.len() - 1] {
            let mut damaged = stream.clone();
            damaged[at] ^= 1;
            assert!(unframed(&damaged).is_err(), "damaged at {at}");
        }
    }

    struct Bytes(Vec<u8>);
    impl Snapshot for Bytes {
        fn write_to(&mut self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(&self.0)
        }
    }

    fn deployment() -> Deployment {
        Deployment {
            cluster: 9,
            group: 1,
            partitions: 4,
            max_value: 512,
            node: 1,
        }
    }

    fn question(pid: PartitionId, at_least: Instance) -> Question {
        Question::new(&deployment(), pid, at_least)
    }

    /// Never ends what a test waits for.
    const ENDLESS: Patience = Patience {
        answer: Duration::from_secs(86_400),
        stream: Duration::from_secs(86_400),
    };

    /// Partition 3 of 4 at `next`; the others stand nowhere.
    fn serve(host: std::net::Ipv4Addr, next: Instance, catching_up: bool) -> (SocketAddr, Server) {
        let source = |pid: u16| {
            let standing = Arc::new(Standing::default());
            standing.show(if pid == 3 { next } else { 0 }, catching_up);
            let ask = move |answer: mpsc::Sender<Offer>| {
                if catching_up {
                    // As a worker that waits for a state itself would: it never answers.
                    std::mem::forget(answer);
                    return true;
                }
                let state = Box::new(Bytes(b"state".to_vec()));
                answer.send(Ok((next, state as Box<dyn Snapshot>))).is_ok()
            };
            Source {
                standing,
                ask: Box::new(ask),
            }
        };
        let address = (host, 7100).into();
        let sources = (0..4).map(source).collect();
        let server = Server::start(address, deployment(), sources).unwrap();
        (address, server)
    }

    fn fetch_from(peers: &[SocketAddr], question: Question) -> io::Result<(Instance, Vec<u8>)> {
        let directory = crate::test_dir::TestDir::new();
        let mut fetched = fetch(peers, question, directory.path(), ENDLESS)?;
        let mut state = Vec::new();
        fetched.state.read_to_end(&mut state)?;
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
        Ok((fetched.position, state))
    }

    #[test]
    fn a_replica_fetches_from_another_one() {
        let (address, _server) = serve(crate::loopback::draw().unwrap(), 77, false);
        let (position, state) = fetch_from(&[address], question(3, 70)).unwrap();
        assert_eq!((position, &state[..]), (77, &b"state"[..]));

        let refused = |question: Question| {
            let refused = fetch_from(&[address], question).unwrap_err();
            refused.to_string()
        };
        assert!(refused(question(3, 78)).contains("only at instance 77"));
        assert!(refused(question(4, 0)).contains("no partition 4"));
        let other = |change: fn(&mut Question)| {
            let mut question = question(3, 0);
            change(&mut question);
            question
        };
        assert!(refused(other(|q| q.cluster = 8)).contains("another cluster"));
        assert!(refused(other(|q| q.group = 2)).contains("another cluster or group"));
        assert!(refused(other(|q| q.partitions = 2)).contains("4 partitions"));
    }

    /// The test ends by itself only if nobody waits for the silent ones.
    #[test]
    fn a_peer_that_never_answers_holds_up_nobody() {
        let host = crate::loopback::draw().unwrap();
        let silent: Vec<TcpListener> = (0..2)
            .map(|n| TcpListener::bind((host, 7200 + n)).unwrap())
            .collect();
        let mut peers: Vec<SocketAddr> = silent.iter().map(|s| s.local_addr().unwrap()).collect();
        let (address, _server) = serve(host, 77, false);
        peers.insert(1, address);
        assert_eq!(fetch_from(&peers, question(3, 70)).unwrap().0, 77);
    }

    /// Three replicas that need a state, each asking the others: nobody waits. [X-CATCHUP]
    #[test]
    fn who_needs_a_state_refuses_at_once() {
        let hosts: Vec<_> = (0..3).map(|_| crate::loopback::draw().unwrap()).collect();
        let servers: Vec<_> = hosts.iter().map(|host| serve(*host, 77, true)).collect();
        for of in 0..3 {
            let peers: Vec<_> = (0..3).filter(|n| *n != of).map(|n| servers[n].0).collect();
            let e = fetch_from(&peers, question(3, 70)).unwrap_err();
            assert_eq!(e.to_string().matches("catching up myself").count(), 2);
        }
        drop(servers);
        let peers: Vec<_> = [(0, true), (1, false)]
            .map(|(n, catching_up)| serve(hosts[n], 78, catching_up))
            .into();
        let addresses: Vec<_> = peers.iter().map(|(address, _)| *address).collect();
        assert_eq!(fetch_from(&addresses, question(3, 70)).unwrap().0, 78);
    }

    #[test]
    fn a_peer_that_breaks_off_is_followed_by_the_next() {
        let host = crate::loopback::draw().unwrap();
        let breaks = TcpListener::bind((host, 7200)).unwrap();
        let address = breaks.local_addr().unwrap();
        let peer = std::thread::spawn(move || {
            let (stream, _) = breaks.accept().unwrap();
            let mut input = BufReader::new(&stream);
            let _: Question = read_line(&mut input).unwrap();
            write_line(&mut &stream, &Answer::Willing(90)).unwrap();
            if read_line::<Choice>(&mut input).is_ok() {
                write_line(&mut &stream, &Answer::Position(90)).unwrap();
                (&stream).write_all(&[0, 0, 0, 9, 1, 2]).unwrap();
            }
        });
        let e = fetch_from(&[address], question(3, 70)).unwrap_err();
        assert!(e.to_string().contains(&address.to_string()), "{e}");
        peer.join().unwrap();
    }
}
