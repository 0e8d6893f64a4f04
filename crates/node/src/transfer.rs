//! Checkpoint transfer: a replica that fell below the trim point fetches another one's state.
//!
//! TCP to the other replica's `control` address. The request is one JSON line, the answer one JSON
//! line and then frames: `length` u32, bytes; an empty frame ends the stream and is followed by the
//! CRC-32 of all bytes. A stream that ends early or doesn't match its checksum is an error to the
//! reader, who then changes nothing.

use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use paxos::{GroupId, Instance, PartitionId};
use replica::Snapshot;
use serde::{Deserialize, Serialize};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// A peer that sends nothing for so long has failed; the fetch is tried elsewhere.
const IO_TIMEOUT: Duration = Duration::from_secs(20);
const FRAME_LEN: usize = 256 * 1024;
const MAX_LINE_LEN: u64 = 4096;
const MAX_TRANSFERS: usize = 4;

#[derive(Serialize, Deserialize)]
struct Request {
    cluster: u32,
    group: GroupId,
    pid: PartitionId,
    at_least: Instance,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The state before this instance follows.
    Position(Instance),
    Refused(String),
}

/// A worker's snapshot with its position, or why there is none.
pub type Offer = Result<(Instance, Box<dyn Snapshot>), String>;

/// Asks the worker of a partition for a snapshot; the worker answers through the sender.
pub struct SnapshotRequest {
    /// Which worker.
    pub pid: PartitionId,
    /// Where the worker puts it.
    pub answer: mpsc::Sender<Offer>,
}

/// Serves checkpoints until dropped.
pub struct Server {
    stop: Arc<AtomicBool>,
    address: SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    /// Listens on `address`. `ask` hands a request to the partition's worker and wakes it.
    pub fn start(
        address: SocketAddr,
        cluster: u32,
        group: GroupId,
        ask: Arc<dyn Fn(SnapshotRequest) -> bool + Send + Sync>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new()
            .name("transfer".into())
            .spawn(move || accept_loop(&listener, cluster, group, &ask, &stopping))?;
        Ok(Server {
            stop,
            address,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the accept; the connection itself is of no use to anyone.
        let _ = TcpStream::connect_timeout(&self.address, CONNECT_TIMEOUT);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

type Ask = Arc<dyn Fn(SnapshotRequest) -> bool + Send + Sync>;

fn accept_loop(
    listener: &TcpListener,
    cluster: u32,
    group: GroupId,
    ask: &Ask,
    stop: &Arc<AtomicBool>,
) {
    let running = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let Ok(stream) = stream else { continue };
        if running.fetch_add(1, Ordering::AcqRel) >= MAX_TRANSFERS {
            running.fetch_sub(1, Ordering::AcqRel);
            continue; // closed: the other side tries elsewhere, or later
        }
        let (ask, done) = (ask.clone(), running.clone());
        let spawned = std::thread::Builder::new()
            .name("transfer-send".into())
            .spawn(move || {
                if let Err(e) = serve(stream, cluster, group, &ask) {
                    eprintln!("checkpoint transfer: {e}");
                }
                done.fetch_sub(1, Ordering::AcqRel);
            });
        if spawned.is_err() {
            running.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(stream: TcpStream, cluster: u32, group: GroupId, ask: &Ask) -> io::Result<()> {
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let request: Request = read_line(&mut BufReader::new(&stream))?;
    let mut out = BufWriter::with_capacity(FRAME_LEN, &stream);
    let offer = if request.cluster == cluster && request.group == group {
        offer(request.pid, request.at_least, ask)
    } else {
        Err("another cluster or group".to_string())
    };
    match offer {
        Err(why) => write_line(&mut out, &Answer::Refused(why)),
        Ok((position, mut snapshot)) => {
            write_line(&mut out, &Answer::Position(position))?;
            let mut frames = FrameWriter::new(&mut out);
            snapshot.write_to(&mut frames)?;
            frames.finish()
        }
    }?;
    out.flush()
}

fn offer(pid: PartitionId, at_least: Instance, ask: &Ask) -> Offer {
    let (answer, offered) = mpsc::channel();
    if !ask(SnapshotRequest { pid, answer }) {
        return Err(format!("no partition {pid} here"));
    }
    let (position, snapshot) = offered
        .recv_timeout(IO_TIMEOUT)
        .map_err(|_| "the worker is busy or stopping".to_string())??;
    if position < at_least {
        return Err(format!("only at instance {position} myself"));
    }
    Ok((position, snapshot))
}

/// A state on its way here.
pub struct Incoming {
    /// The state before this instance.
    pub position: Instance,
    frames: FrameReader<BufReader<TcpStream>>,
}

impl Read for Incoming {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.frames.read(buf)
    }
}

/// Asks the replica at `from` for a state that covers at least everything below `at_least`.
pub fn fetch(
    from: SocketAddr,
    cluster: u32,
    group: GroupId,
    pid: PartitionId,
    at_least: Instance,
) -> io::Result<Incoming> {
    let stream = TcpStream::connect_timeout(&from, CONNECT_TIMEOUT)?;
    stream.set_read_timeout(Some(IO_TIMEOUT))?;
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let request = Request {
        cluster,
        group,
        pid,
        at_least,
    };
    write_line(&mut &stream, &request)?;
    let mut input = BufReader::with_capacity(FRAME_LEN, stream);
    match read_line(&mut input)? {
        Answer::Refused(why) => Err(io::Error::other(why)),
        Answer::Position(position) => Ok(Incoming {
            position,
            frames: FrameReader::new(input),
        }),
    }
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

struct FrameWriter<W> {
    out: W,
    crc: crc32fast::Hasher,
}

impl<W: Write> FrameWriter<W> {
    fn new(out: W) -> Self {
        FrameWriter {
            out,
            crc: crc32fast::Hasher::new(),
        }
    }

    fn finish(mut self) -> io::Result<()> {
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

struct FrameReader<R> {
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

    #[test]
    fn a_replica_fetches_from_another_one() {
        let ask = Arc::new(|request: SnapshotRequest| {
            let known = request.pid == 3;
            if known {
                let offer = Ok((77, Box::new(Bytes(b"state".to_vec())) as Box<dyn Snapshot>));
                request.answer.send(offer).unwrap();
            }
            known
        });
        let server = Server::start("127.0.0.1:0".parse().unwrap(), 9, 1, ask).unwrap();
        let mut incoming = fetch(server.address, 9, 1, 3, 70).unwrap();
        assert_eq!(incoming.position, 77);
        let mut state = Vec::new();
        incoming.read_to_end(&mut state).unwrap();
        assert_eq!(state, b"state");

        let too_far = fetch(server.address, 9, 1, 3, 78).err().unwrap();
        assert!(too_far.to_string().contains("only at instance 77"));
        assert!(fetch(server.address, 9, 1, 4, 0).is_err());
        assert!(fetch(server.address, 8, 1, 3, 0).is_err());
    }
}
