// SPDX-License-Identifier: Apache-2.0
//! A worker that may run ahead of the stable log, on a log that the test writes.

use super::*;
use paxos::{Epoch, Reason};
use replica::{
    Agreement, AgreementStatus, Decided, Event, Log, News, Rules, Speculative, Stepped, Wanted,
};

/// A log that packets write: a PHASE2A puts a value at its instance, in place of what was there and
/// behind it, and a DELIVER says that everything below its instance is stable.
pub struct Written {
    log: Vec<(Header, Vec<u8>)>,
    stable: Instance,
    changed: Option<Instance>,
}

impl Log for Written {
    fn entry(&self, inst: Instance) -> Option<Decided<'_>> {
        let (header, value) = self.log.get(inst as usize)?;
        Some(Decided {
            inst,
            flags: header.flags,
            client: header.client,
            request: header.request,
            value,
        })
    }

    fn ready(&self) -> Instance {
        self.log.len() as Instance
    }

    fn stable(&self) -> Instance {
        self.stable
    }
}

impl Agreement for Written {
    type EpochView = ();
    const RULES: Rules = Rules {
        has_markers: false,
        spans: true,
        bounds_reads: false,
        trim_to: &[],
    };

    fn open(_: &Settings, _: u64, _: Instance, _: Time) -> Written {
        Written {
            log: Vec::new(),
            stable: 0,
            changed: None,
        }
    }

    fn step<'p>(&mut self, _: Time, packet: &Packet<'p>, _: &mut impl Outbox) -> Stepped<'p> {
        let h = packet.header;
        match h.msgtype {
            MsgType::Phase2a => {
                assert!(h.inst >= self.stable && h.inst <= self.ready());
                if h.inst < self.ready() {
                    self.log.truncate(h.inst as usize);
                    self.changed = Some(h.inst);
                }
                self.log.push((h, packet.value.to_vec()));
            }
            MsgType::Deliver => self.stable = self.stable.max(h.inst),
            _ => return Stepped::dropped(Reason::NotForRole),
        }
        Stepped {
            verdict: Verdict::Changed,
            news: News::Kept,
        }
    }

    fn keep(&mut self, _: &Decided<'_>) {
        panic!("none was handed over");
    }

    fn executed(&mut self, _: Instance) {}

    fn end_batch(&mut self, _: Time, _: bool, _: &mut impl Outbox) -> bool {
        false
    }

    fn tick(&mut self, _: Time, _: &mut impl Outbox) -> bool {
        false
    }

    fn next_deadline(&self) -> Option<Time> {
        None
    }

    fn configure(&mut self, _: Time, _: &[()], _: Epoch) -> bool {
        false
    }

    fn epoch(&self) -> Option<Epoch> {
        None
    }

    fn replicas(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn on_event(&mut self, _: Event) {}

    fn wanted(&self) -> Wanted {
        Wanted::default()
    }

    fn status(&self) -> AgreementStatus {
        AgreementStatus::default()
    }

    fn speculative(&mut self) -> Option<&mut impl Speculative> {
        Some(self)
    }
}

impl Speculative for Written {
    fn take_rewind(&mut self) -> Option<Instance> {
        self.changed.take()
    }
}

// ---- A worker on it

pub struct Ahead<A> {
    pub worker: Worker<A, Written>,
    pub settings: Settings,
    /// The contents of the worker's log, and the instance up to which it is stable.
    pub log: Vec<Value>,
    pub stable: Instance,
    pub now: Time,
    pub out: Out,
}

impl<A: Application> Ahead<A> {
    pub fn new(settings: Settings, app: A) -> Ahead<A> {
        Ahead {
            worker: Worker::open_in(settings.clone(), app, 1, 0).unwrap(),
            settings,
            log: Vec::new(),
            stable: 0,
            now: 0,
            out: Out::default(),
        }
    }

    /// Starts a new process with the same log.
    pub fn restart(&mut self, app: A) {
        self.worker = Worker::open_in(self.settings.clone(), app, 1, self.now).unwrap();
        for (at, value) in self.log.clone().iter().enumerate() {
            self.write(at, value);
        }
        self.show_stable();
    }

    fn write(&mut self, at: usize, (flags, client, request, bytes): &Value) {
        let header = Header {
            msgtype: MsgType::Phase2a,
            pid: self.settings.pid,
            inst: at as Instance,
            flags: *flags,
            client: *client,
            request: *request,
            ..deliver_header()
        };
        self.step(&header, bytes);
    }

    fn step(&mut self, header: &Header, bytes: &[u8]) {
        let datagram = header.datagram(bytes);
        let packet = Packet::parse(&datagram).unwrap();
        let verdict = self.worker.step(self.now, &packet, &mut self.out);
        assert_eq!(verdict, Verdict::Changed);
    }

    /// Puts a value at `at`, in place of everything from there on.
    pub fn put(&mut self, at: usize, value: Value) {
        self.write(at, &value);
        self.log.truncate(at);
        self.log.push(value);
    }

    pub fn push(&mut self, client: u64, request: u64, bytes: &[u8]) {
        let value = (Flags::NONE, client, request, bytes.to_vec());
        self.put(self.log.len(), value);
    }

    pub fn noop(&mut self) {
        self.put(self.log.len(), (Flags::NOOP, 0, 0, Vec::new()));
    }

    pub fn stable_below(&mut self, end: Instance) {
        self.stable = end;
        self.show_stable();
    }

    fn show_stable(&mut self) {
        let header = Header {
            pid: self.settings.pid,
            inst: self.stable,
            flags: Flags::NOOP,
            ..deliver_header()
        };
        self.step(&header, &[]);
    }

    pub fn finish(&mut self) -> Vec<Reply> {
        self.worker.finish_batch(self.now, &mut self.out).unwrap();
        std::mem::take(&mut self.out.replies)
    }

    /// Does everything that is due by time, including the commit.
    pub fn tick(&mut self) {
        self.now += SECOND;
        self.worker.tick(self.now, &mut self.out).unwrap();
    }
}

pub fn ahead_settings() -> Settings {
    Settings {
        answers_wait: false,
        checkpoint_every: 16,
        ..settings(REPLICAS[0])
    }
}
