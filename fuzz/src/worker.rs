// SPDX-License-Identifier: Apache-2.0
//! A sequence of packets and events into a replica's worker, with kills and checkpoints of others.
//! It never panics, executes every instance once and in order, answers only what is committed, and
//! a dropped packet changes nothing.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use super::disk::Disk;
use super::input::{Input, NONCE};
use super::members::{self, configuration};
use paxos::wire::value::{PackedItem, ProbeReport, RangeReport, Rejection, append_packed};
use paxos::{Flags, Header, Instance, MsgType, Outbox, Packet, Reason, Round, Time, To, Verdict};
use replica::application::{Checkpoint, Record, RecordVisitor, Restore, Snapshot};
use replica::protocol::{ReplyAddress, SessionOp, Status};
use replica::{
    Application, EpochView, Error, InMemory, Limits, Output, ReplyTo, Settings, StateMachine,
    Statistics, Worker,
};

const MAX_VALUE: u16 = 128;
const NODE: u16 = 5;
const LEARNER: u16 = 9;
/// Instances that wait at most.
const BUFFER: usize = 8;
/// Steps in one run.
const MAX_STEPS: usize = 400;

/// Runs the sequence that `data` spells.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    // The first byte decides if answers wait until what they show is stored.
    let mut world = World::new(input.small() % 2 == 0);
    for _ in 0..MAX_STEPS {
        let Some(choice) = input.byte() else { return };
        world.now += Time::from(choice) * 1_000_000;
        let next = world.worker.next();
        match choice {
            0..200 => world.deliver(&mut input),
            255 => world.kill(),
            _ => world.disturb(choice, &mut input),
        }
        if world.ended {
            return;
        }
        assert!(choice == 255 || world.worker.next() >= next);
        assert!(world.worker.checkpointed() <= world.worker.next());
        assert!(world.worker.agreement_status().waiting <= BUFFER);
    }
}

// ---- The replicated program, and what is noted of it

/// The number of executed commands, and a sum of their bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Tally(u64, u64);

impl StateMachine for Tally {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
        self.0 += 1;
        self.1 = command.iter().fold(self.1, |sum, byte| {
            sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
        });
        // Also replies that are too large to be recorded.
        reply.extend(
            command
                .iter()
                .cycle()
                .take(command.len() * command.len() / 2),
        );
    }

    fn save(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.0.to_be_bytes())?;
        out.write_all(&self.1.to_be_bytes())
    }

    fn load(from: &mut dyn Read) -> io::Result<Tally> {
        let mut bytes = [0; 16];
        from.read_exact(&mut bytes)?;
        let (executed, sum) = bytes.split_at(8);
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("eight bytes"));
        Ok(Tally(number(executed), number(sum)))
    }
}

/// True if something was executed that isn't committed.
type Uncommitted = Arc<Mutex<bool>>;

struct Watched {
    app: InMemory<Tally, Disk>,
    instance: Option<Instance>,
    uncommitted: Uncommitted,
}

impl Application for Watched {
    fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) -> Result<(), Error> {
        *self.uncommitted.lock().expect("nobody panics") = true;
        self.app.execute(command, reply)
    }

    fn at_instance(&mut self, instance: Instance) {
        assert!(self.instance.is_none_or(|last| last < instance));
        self.instance = Some(instance);
    }

    fn commit(&mut self, records: &[Record]) -> Result<(), Error> {
        *self.uncommitted.lock().expect("nobody panics") = false;
        self.app.commit(records)
    }

    fn records(&mut self, visit: &mut RecordVisitor<'_>) -> Result<(), Error> {
        self.app.records(visit)
    }

    fn checkpoint(&mut self) -> Result<Checkpoint, Error> {
        self.app.checkpoint()
    }

    fn snapshot(&mut self) -> Result<Box<dyn Snapshot>, Error> {
        self.app.snapshot()
    }

    fn begin_restore(&mut self) -> Result<Restore, Error> {
        self.app.begin_restore()
    }

    fn end_restore(&mut self) -> Result<(), Error> {
        self.app.end_restore()
    }

    fn digest(&mut self) -> Result<[u8; 32], Error> {
        self.app.digest()
    }
}

/// The packets that a worker sends, and the number of its replies.
struct Out {
    sent: Vec<(Header, Vec<u8>)>,
    replies: usize,
    /// If set, answers must wait until it is false.
    uncommitted: Option<Uncommitted>,
}

impl Outbox for Out {
    fn send(&mut self, _: To, header: &Header, value: &[u8]) {
        self.sent.push((*header, value.to_vec()));
    }
}

impl Output for Out {
    fn reply(
        &mut self,
        _: &ReplyTo,
        basis: Option<replica::Basis>,
        _: u64,
        _: u64,
        status: u8,
        bytes: &[u8],
    ) {
        assert!(basis.is_none(), "what Paxos has decided is final");
        assert!(Status::from_u8(status).is_some_and(|s| s == Status::Ok || bytes.is_empty()));
        let uncommitted = self.uncommitted.as_ref();
        assert!(uncommitted.is_none_or(|u| !*u.lock().expect("nobody panics")));
        self.replies += 1;
    }

    fn ack(&mut self, _: &ReplyTo, _: &Header) {
        panic!("Paxos acknowledges nothing");
    }

    fn sibling(&mut self, _: paxos::PartitionId, _: replica::SiblingMessage) {}
}

// ---- The worker and what surrounds it

struct World {
    now: Time,
    answers_wait: bool,
    worker: Worker<Watched>,
    disk: Disk,
    uncommitted: Uncommitted,
    checkpoint: Option<Checkpoint>,
    /// A copy of the state, as another replica may offer it.
    copy: Option<(Instance, Vec<u8>)>,
    /// The worker has stopped for good, as it may when it is told what can't be.
    ended: bool,
}

fn settings(answers_wait: bool) -> Settings {
    Settings {
        answers_wait,
        commit_every: 3,
        buffer: BUFFER,
        learners: vec![LEARNER],
        repair_after: 5_000_000,
        repair_limit: 4,
        poll_interval: 100_000_000,
        checkpoint_every: 4,
        checkpoint_interval: 1_000_000_000,
        trim_interval: 100_000_000,
        session_timeout: 2_000_000_000,
        limits: Limits {
            sessions: 6,
            slots: 40,
            reply: 40,
            last_reply: 80,
            recorded: 200,
            command: 100,
            unfinished: 150,
        },
        ..Settings::new(members::deployment(NODE, 1, MAX_VALUE), 0)
    }
}

fn epoch(epoch: u32, active: bool) -> EpochView {
    EpochView {
        configuration: configuration(epoch),
        active,
    }
}

fn open(answers_wait: bool, disk: &Disk, uncommitted: &Uncommitted, now: Time) -> Worker<Watched> {
    let app = InMemory::open(disk.clone(), Tally::default()).expect("our own checkpoint");
    let app = Watched {
        app,
        instance: None,
        uncommitted: uncommitted.clone(),
    };
    let worker = Worker::open(settings(answers_wait), app, NONCE, now);
    let mut worker = worker.expect("our own records");
    worker.configure(now, &[epoch(1, true)]);
    worker
}

impl World {
    fn new(answers_wait: bool) -> World {
        let (disk, uncommitted) = (Disk::default(), Uncommitted::default());
        World {
            now: 0,
            answers_wait,
            worker: open(answers_wait, &disk, &uncommitted, 0),
            disk,
            uncommitted,
            checkpoint: None,
            copy: None,
            ended: false,
        }
    }

    fn out(&self) -> Out {
        Out {
            sent: Vec::new(),
            replies: 0,
            uncommitted: self.answers_wait.then(|| self.uncommitted.clone()),
        }
    }

    /// Kills the worker, so that everything since the last checkpoint is gone.
    fn kill(&mut self) {
        let durable = self.worker.checkpointed();
        *self.uncommitted.lock().expect("nobody panics") = false;
        self.checkpoint = None;
        self.worker = open(self.answers_wait, &self.disk, &self.uncommitted, self.now);
        assert!(self.worker.next() >= durable);
    }

    fn deliver(&mut self, input: &mut Input<'_>) {
        let datagram = self.datagram(input);
        let Ok(packet) = Packet::parse(&datagram) else {
            return;
        };
        let mut out = self.out();
        let before = self.shown();
        let verdict = self.worker.step(self.now, &packet, &mut out);
        if let Verdict::Dropped(_) = verdict {
            assert_eq!(before, self.shown());
            assert!(out.sent.is_empty());
        }
        assert!(!matches!(verdict, Verdict::Rejected(_)));
        self.check(&out);
    }

    /// Returns what a packet may change.
    fn shown(&mut self) -> (Instance, usize, usize, usize, Statistics, Tally) {
        let worker = &mut self.worker;
        (
            worker.next(),
            worker.agreement_status().waiting,
            worker.sessions(),
            worker.pending_replies(),
            worker.statistics(),
            *worker.application().app.state(),
        )
    }

    fn check(&self, out: &Out) {
        for (header, value) in &out.sent {
            let datagram = header.datagram(value);
            let packet = Packet::parse(&datagram).expect("a worker sends well-formed packets");
            let deployment = members::deployment(NODE, 1, MAX_VALUE);
            assert_eq!(deployment.check(&packet), Ok(()), "{header:?}");
        }
    }

    /// Causes an event that doesn't come from the data plane.
    fn disturb(&mut self, choice: u8, input: &mut Input<'_>) {
        let mut out = self.out();
        let now = self.now;
        let mut result = Ok(());
        match choice % 10 {
            0..3 => result = self.worker.finish_batch(now, &mut out),
            3 => result = self.worker.tick(now, &mut out),
            4 => {
                let first = u32::from(input.small() % 4) + 1;
                let epochs = [epoch(first, true), epoch(first + 1, choice < 228)];
                self.worker.configure(now, &epochs);
            }
            5 => {
                let wanted = self.worker.wanted().lane_for;
                let epoch = wanted.unwrap_or(u32::from(input.small()));
                self.worker.set_lane(now, epoch, input.small() % 128);
            }
            6 => {
                self.checkpoint = self.checkpoint.take().or(self.worker.take_checkpoint());
            }
            7 => {
                if let Some(write) = self.checkpoint.take() {
                    result = self.worker.end_checkpoint(now, write());
                }
            }
            8 if input.small() > 200 => {
                let first = self.worker.next() + u64::from(input.small() % 8);
                let given_up = first..first + input.number() % 64;
                self.worker.give_up(now, std::slice::from_ref(&given_up));
            }
            8 if input.small() > 240 => {
                result = self.worker.stop_execution(u32::from(input.small()));
            }
            8 => {
                let mut bytes = Vec::new();
                let (position, mut copy) = self.worker.snapshot().expect("nothing fails");
                copy.write_to(&mut bytes).expect("nothing fails");
                self.copy = Some((position, bytes));
            }
            _ => result = self.restore(input),
        }
        self.check(&out);
        self.ended = result.is_err();
    }

    /// Another replica's state, perhaps damaged, perhaps announced falsely.
    fn restore(&mut self, input: &mut Input<'_>) -> Result<(), Error> {
        let Some((position, mut copy)) = self.copy.clone() else {
            return Ok(());
        };
        input.damage(&mut copy);
        let announced = match input.small() {
            0..200 => position,
            _ => input.number(),
        };
        // Whatever the result is, the state on disk can be opened again.
        let result = self.worker.restore(self.now, announced, &mut &copy[..]);
        open(
            self.answers_wait,
            &self.disk,
            &Uncommitted::default(),
            self.now,
        );
        result.map(|_| ())
    }

    /// Returns a datagram: raw, or one that passes the first checks.
    fn datagram(&mut self, input: &mut Input<'_>) -> Vec<u8> {
        if input.small() < 16 {
            return input.bytes(255).to_vec();
        }
        let choice = input.small();
        let msgtype = match choice {
            0..160 => MsgType::Deliver,
            160..200 => MsgType::Phase2b,
            n => MsgType::ALL[usize::from(n) % MsgType::ALL.len()],
        };
        let flags = match input.small() {
            0..128 => Flags::NONE,
            some => Flags(u16::from(some) & msgtype.allowed_flags().0),
        };
        let rnd = match input.small() {
            0..220 => Round::base(1),
            _ => Round(input.round()),
        };
        let (client, request) = match flags.has(Flags::NOOP) {
            true => (0, 0),
            false => (self.client(input), input.number()),
        };
        let header = Header {
            cluster: 7,
            group: 1,
            inst: match input.small() {
                0..220 => self.worker.next().wrapping_add(u64::from(choice % 4)),
                _ => input.number(),
            },
            rnd,
            vrnd: rnd,
            swid: match msgtype {
                MsgType::Deliver => LEARNER,
                _ => 1 + u16::from(input.small() % 4),
            },
            flags,
            client,
            request,
            ..Header::new(msgtype)
        };
        let value = self.value(input, msgtype, flags);
        header.datagram(&value)
    }

    /// Mostly a session: their ids are (instance + 1) << 16.
    fn client(&self, input: &mut Input<'_>) -> u64 {
        match input.small() {
            n @ 0..200 => u64::from(n % 16) << 16,
            _ => input.number(),
        }
    }

    fn value(&self, input: &mut Input<'_>, msgtype: MsgType, flags: Flags) -> Vec<u8> {
        match msgtype {
            MsgType::Reject => {
                let all = Reason::ALL;
                let rejection = Rejection {
                    reason: all[usize::from(input.small()) % all.len()],
                    round: Round(input.round()),
                    trim: input.number(),
                };
                rejection.emit().to_vec()
            }
            MsgType::Phase1b if flags.has(Flags::RANGE) => {
                let report = RangeReport {
                    end: input.number(),
                    trim: input.number(),
                    nonce: NONCE,
                };
                report.emit().to_vec()
            }
            MsgType::ProbeAck => vec![input.small(); ProbeReport::LEN],
            MsgType::Deliver | MsgType::Phase2b if flags.has(Flags::PACKED) => {
                let mut value = Vec::new();
                for _ in 0..input.small() % 4 {
                    let (client, request) = (self.client(input), input.number());
                    let bytes = command(input, request);
                    let item = PackedItem {
                        client,
                        request,
                        bytes: &bytes,
                    };
                    append_packed(&mut value, &item);
                }
                value
            }
            _ => {
                let request = u64::from(input.small() % 2);
                command(input, request)
            }
        }
    }
}

/// Returns an operation on a session, mostly, or bytes.
fn command(input: &mut Input<'_>, request: u64) -> Vec<u8> {
    let reply_to = match input.small() % 3 {
        0 => ReplyAddress::default(),
        1 => ReplyAddress {
            home: NODE,
            ..ReplyAddress::default()
        },
        _ => ReplyAddress {
            home: u16::from(input.small() % 8),
            address: Some(([127, 0, 0, 1], 9).into()),
            ..ReplyAddress::default()
        },
    };
    let op = match input.small() {
        0..140 if request == 0 => SessionOp::Open {
            ordered: input.small() % 2 == 0,
            window: u16::from(input.small() % 20) + u16::from(input.small() > 20),
            reply_to,
        },
        140..150 if request == 0 => SessionOp::Close,
        150..170 if request == 0 => SessionOp::Expire {
            last_request: input.number(),
            last_inst: input.number(),
        },
        170..190 if request == 0 => SessionOp::Move { reply_to },
        _ => return input.bytes(60).to_vec(),
    };
    op.to_bytes()
}
