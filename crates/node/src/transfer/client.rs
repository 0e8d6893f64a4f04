// SPDX-License-Identifier: Apache-2.0
//! Asks other replicas for their state.

use std::fmt;
use std::io::{self, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use paxos::{Instance, PartitionId};

use super::channel::Channel;
use super::recent::KeptRange;
use super::wire::{Trust, Wire};
use super::{Answer, Ask, PART_LEN, Patience, Question, damaged};
use crate::lock::lock;

/// How often a question is tried, with a pause in between.
const ATTEMPTS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(500);

/// The reason why a question got no answer.
#[derive(Debug)]
pub enum Failed {
    /// The replica refuses, and asking it again won't help.
    Refused(String),
    /// The connection broke, or the answer was damaged.
    Broken(io::Error),
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Failed {
        Failed::Broken(e)
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Refused(why) => f.write_str(why),
            Failed::Broken(e) => e.fmt(f),
        }
    }
}

/// Lets another thread interrupt a thread that waits for a replica's answer.
#[derive(Default)]
pub struct Interrupt {
    requested: AtomicBool,
    waiting_at: Mutex<Option<TcpStream>>,
}

impl Interrupt {
    /// Makes the current question and all later ones fail.
    pub fn request(&self) {
        self.requested.store(true, Ordering::Release);
        if let Some(stream) = lock(&self.waiting_at).take() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Returns an error once the interrupt was requested.
    pub fn check(&self) -> io::Result<()> {
        match self.requested.load(Ordering::Acquire) {
            true => Err(io::Error::other("stopping")),
            false => Ok(()),
        }
    }
}

/// Another replica. The connection is made when it is needed, and again after it broke.
pub struct Peer {
    /// The `control` address.
    pub address: SocketAddr,
    patience: Patience,
    interrupt: Arc<Interrupt>,
    trust: Trust,
    connection: Option<Connection>,
}

struct Connection {
    wire: Wire,
    channel: Channel,
}

impl Peer {
    /// Returns the replica with this `control` address.
    pub fn new(
        address: SocketAddr,
        patience: Patience,
        interrupt: Arc<Interrupt>,
        trust: Trust,
    ) -> Peer {
        Peer {
            address,
            patience,
            interrupt,
            trust,
            connection: None,
        }
    }

    /// Returns the replica's positions if its state can help.
    fn willing(&mut self, question: &Question) -> Result<Vec<Instance>, Failed> {
        match self.once(&Ask::Willing(question.clone()), self.patience.answer)? {
            (Answer::Willing(positions), _) => Ok(positions),
            _ => Err(unexpected()),
        }
    }

    /// Asks the replica to open its state. Returns the state's number and its positions.
    pub fn hold(&mut self, question: &Question) -> Result<(u64, Vec<Instance>), Failed> {
        let partitions = question.needs.len();
        match self.once(&Ask::Hold(question.clone()), self.patience.stream)? {
            (Answer::Held { state, positions }, _) if positions.len() == partitions => {
                Ok((state, positions))
            }
            _ => Err(unexpected()),
        }
    }

    /// Returns a part of a partition's state, and whether it is the last one.
    pub fn part(
        &mut self,
        state: u64,
        pid: PartitionId,
        number: u64,
    ) -> Result<(Vec<u8>, bool), Failed> {
        match self.ask(&Ask::Part { state, pid, number })? {
            (Answer::Part { last, .. }, bytes) => Ok((bytes, last)),
            _ => Err(unexpected()),
        }
    }

    /// Returns the values that the replica has decided in a partition after its state, from a byte
    /// on, and its current position.
    pub fn log(
        &mut self,
        state: u64,
        pid: PartitionId,
        from: u64,
    ) -> Result<(Vec<u8>, Instance), Failed> {
        match self.ask(&Ask::Log { state, pid, from })? {
            (Answer::Log { next, .. }, bytes) => Ok((bytes, next)),
            _ => Err(unexpected()),
        }
    }

    /// Returns what the replica has executed in a partition from an instance on, as records of an
    /// archive, and the next instance; or which instances it has.
    pub fn decided(
        &mut self,
        question: &Question,
        pid: PartitionId,
        from: Instance,
    ) -> Result<Result<(Vec<u8>, Instance), KeptRange>, Failed> {
        let question = question.clone();
        let ask = Ask::Decided {
            question,
            pid,
            from,
        };
        match self.once(&ask, self.patience.answer)? {
            (Answer::Decided { next, .. }, records) => Ok(Ok((records, next))),
            (Answer::Kept { first, end }, _) => Ok(Err(KeptRange { first, end })),
            _ => Err(unexpected()),
        }
    }

    /// Asks the replica to keep the state open.
    pub fn stay(&mut self, state: u64) -> Result<(), Failed> {
        match self.ask(&Ask::Stay { state })? {
            (Answer::Staying, _) => Ok(()),
            _ => Err(unexpected()),
        }
    }

    /// Lets the replica close the state. If this message is lost, the replica closes the state by
    /// itself after a while.
    pub fn release(&mut self, state: u64) {
        let _ = self.once(&Ask::Release { state }, self.patience.answer);
    }

    /// Repeats a question until there is an answer, which is safe for every question.
    fn ask(&mut self, ask: &Ask) -> Result<(Answer, Vec<u8>), Failed> {
        let mut attempt = 1;
        loop {
            match self.once(ask, self.patience.stream) {
                Err(Failed::Broken(_)) if attempt < ATTEMPTS => {
                    attempt += 1;
                    self.interrupt.check()?;
                    std::thread::sleep(PAUSE);
                }
                answered => return answered,
            }
        }
    }

    fn once(&mut self, ask: &Ask, patience: Duration) -> Result<(Answer, Vec<u8>), Failed> {
        self.interrupt.check()?;
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        // A stop that is requested meanwhile either finds this connection, or is noticed by the
        // check below.
        let Connection { wire, channel } = &mut connection;
        *lock(&self.interrupt.waiting_at) = Some(wire.socket().try_clone()?);
        self.interrupt.check()?;
        wire.socket().set_read_timeout(Some(patience))?;
        channel.write_line(wire, ask)?;
        wire.flush()?;
        let answer: Answer = channel.read_line(wire)?;
        let bytes = match answer {
            Answer::Part { length, crc, .. }
            | Answer::Log { length, crc, .. }
            | Answer::Decided { length, crc, .. } => connection.read_bytes(length, crc)?,
            _ => Vec::new(),
        };
        // After an error the next question uses a new connection.
        self.connection = Some(connection);
        match answer {
            Answer::Refused(why) => Err(Failed::Refused(why)),
            answer => Ok((answer, bytes)),
        }
    }

    fn connect(&self) -> io::Result<Connection> {
        let stream = TcpStream::connect_timeout(&self.address, self.patience.answer)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(self.patience.answer))?;
        stream.set_read_timeout(Some(self.patience.answer))?;
        let mut wire = Wire::ask(&self.trust, stream)?;
        let channel = Channel::asker(&self.trust.keys, &mut wire)?;
        Ok(Connection { wire, channel })
    }
}

impl Connection {
    fn read_bytes(&mut self, length: u32, crc: u32) -> io::Result<Vec<u8>> {
        let length = length as usize;
        if length > PART_LEN {
            return Err(damaged("a part is too long"));
        }
        let bytes = self.channel.read_bytes(&mut self.wire, length)?;
        if crc32fast::hash(&bytes) != crc {
            return Err(damaged("the checksum does not match"));
        }
        Ok(bytes)
    }
}

fn unexpected() -> Failed {
    Failed::Broken(damaged("another answer than was asked for"))
}

/// Asks all replicas at once, and returns those that can help: first those that help in all
/// partitions that need it, in the order of their answers, then those that help in some.
pub struct Search {
    answers: mpsc::Receiver<(Peer, Result<Vec<Instance>, Failed>)>,
    question: Question,
    partly: Vec<(usize, Peer)>,
    why: Vec<String>,
}

impl Search {
    /// Begins to ask all replicas.
    pub fn begin(
        peers: &[SocketAddr],
        question: &Question,
        patience: Patience,
        interrupt: &Arc<Interrupt>,
        trust: &Trust,
    ) -> io::Result<Search> {
        let (tell, answers) = mpsc::channel();
        for &address in peers {
            let (tell, question) = (tell.clone(), question.clone());
            let (interrupt, trust) = (interrupt.clone(), trust.clone());
            std::thread::Builder::new()
                .name("transfer-ask".into())
                .spawn(move || {
                    let mut peer = Peer::new(address, patience, interrupt, trust);
                    let willing = peer.willing(&question);
                    // Sending fails if the search has ended already.
                    let _ = tell.send((peer, willing));
                })?;
        }
        Ok(Search {
            answers,
            question: question.clone(),
            partly: Vec::new(),
            why: Vec::new(),
        })
    }

    /// Notes that a replica that was returned didn't help after all.
    pub fn failed(&mut self, address: SocketAddr, why: &Failed) {
        self.why.push(format!("{address}: {why}"));
    }

    /// Returns the reasons why no replica is left.
    pub fn why(mut self) -> String {
        self.why.sort();
        self.why.join("; ")
    }
}

impl Iterator for Search {
    type Item = Peer;

    fn next(&mut self) -> Option<Peer> {
        for (peer, willing) in &self.answers {
            match willing.map(|positions| self.question.helped(&positions)) {
                Ok(helped) if helped == self.question.wanted() => return Some(peer),
                Ok(helped) => self.partly.push((helped, peer)),
                Err(e) => self.why.push(format!("{}: {e}", peer.address)),
            }
        }
        self.partly.sort_by_key(|(helped, _)| *helped);
        self.partly.pop().map(|(_, peer)| peer)
    }
}
