// SPDX-License-Identifier: Apache-2.0
//! Execution ahead of what is stable: nothing of it is stored, and a change of the log takes it back, with
//! position, sessions and outcomes.

mod common;

use common::siblings::{Replica, SESSION, stamped};
use common::*;
use paxos::{
    Epoch, Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, PartitionId, Reason, Round,
    Time, To, Verdict,
};
use replica::protocol::ReplyAddress;
use replica::{
    Agreement, Application, Decided, Log, News, Restored, Settings, SiblingMessage, Stepped,
    Wanted, Worker,
};
use std::ops::Range;

// ---- A log that the test writes

/// A PHASE2A puts a value at its instance, in place of what was there and of everything behind. A DELIVER says that
/// everything below its instance is stable.
struct Written {
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
    const HAS_MARKERS: bool = true;
    const TRIM_TO: &'static [To] = &[];

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

    fn deliver<'p>(&mut self, _: Time, _: &Packet<'p>) -> Stepped<'p> {
        Stepped::dropped(Reason::NotForRole)
    }

    fn wants_votes(&self) -> bool {
        false
    }

    fn keep(&mut self, _: &Decided<'_>) {
        panic!("none was handed over");
    }

    fn executed(&mut self, _: Instance) {}

    fn go_on(&mut self, _: Time, _: &mut impl Outbox) {}

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

    fn set_lane(&mut self, _: Time, _: Epoch, _: u8) {}

    fn begins(&mut self, _: Instance) {}

    fn begun_by(&mut self, _: Round, _: Instance) {}

    fn give_up(&mut self, _: Range<Instance>) {}

    fn restored(&mut self, _: Instance) {}

    fn wanted(&self) -> Wanted {
        Wanted::default()
    }

    fn floor(&self) -> Instance {
        0
    }

    fn take_rewind(&mut self) -> Option<Instance> {
        self.changed.take()
    }

    fn waiting(&self) -> usize {
        0
    }

    fn repaired(&self) -> u64 {
        0
    }
}

// ---- A worker on it

struct Ahead<A> {
    worker: Worker<A, Written>,
    settings: Settings,
    /// What its log holds, and how far it is stable.
    log: Vec<Value>,
    stable: Instance,
    now: Time,
    out: Out,
}

impl<A: Application> Ahead<A> {
    fn new(settings: Settings, app: A) -> Ahead<A> {
        Ahead {
            worker: Worker::open_in(settings.clone(), app, 1, 0).unwrap(),
            settings,
            log: Vec::new(),
            stable: 0,
            now: 0,
            out: Out::default(),
        }
    }

    /// A new process with the same log.
    fn restart(&mut self, app: A) {
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
    fn put(&mut self, at: usize, value: Value) {
        self.write(at, &value);
        self.log.truncate(at);
        self.log.push(value);
    }

    fn push(&mut self, client: u64, request: u64, bytes: &[u8]) {
        let value = (Flags::NONE, client, request, bytes.to_vec());
        self.put(self.log.len(), value);
    }

    fn noop(&mut self) {
        self.put(self.log.len(), (Flags::NOOP, 0, 0, Vec::new()));
    }

    fn stable_below(&mut self, end: Instance) {
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

    fn finish(&mut self) -> Vec<Reply> {
        self.worker.finish_batch(self.now, &mut self.out).unwrap();
        std::mem::take(&mut self.out.replies)
    }

    /// Everything that is due by time, the commit included.
    fn tick(&mut self) {
        self.now += SECOND;
        self.worker.tick(self.now, &mut self.out).unwrap();
    }
}

fn ahead_settings() -> Settings {
    Settings {
        answers_wait: false,
        checkpoint_every: 16,
        ..settings(REPLICAS[0])
    }
}

// ---- Random logs

fn draw(rng: &mut Rng, at: usize, number: u64) -> Value {
    let session = |rng: &mut Rng| (rng.below(at as u64 + 1) + 1) << 16;
    let request = |rng: &mut Rng| 1 + rng.below(12);
    match rng.below(10) {
        0 | 1 => {
            let op = open(rng.below(2) == 0, 8, ReplyAddress::default());
            (Flags::NONE, number, 0, op.to_bytes())
        }
        2 => {
            let close = replica::protocol::SessionOp::Close.to_bytes();
            (Flags::NONE, session(rng), 0, close)
        }
        3 => (Flags::NOOP, 0, 0, Vec::new()),
        4 => {
            let items: Vec<_> = (0..3)
                .map(|n| (session(rng), request(rng), command(3 * number + n)))
                .collect();
            (Flags::PACKED, 55, 1, pack(&items))
        }
        _ => (Flags::NONE, session(rng), request(rng), command(3 * number)),
    }
}

fn random_logs<K: Kept>(seed: u64) {
    let mut rng = Rng::new(seed);
    let kept = K::default();
    let mut ahead = Ahead::new(ahead_settings(), kept.open());
    let mut model = Model::new(ahead_settings());
    let mut writing = None;
    let mut taken_back = 0;
    for number in 1..=400 {
        let (stable, ready) = (ahead.stable as usize, ahead.log.len());
        match rng.below(16) {
            0..=7 => {
                let value = draw(&mut rng, ready, number);
                ahead.put(ready, value);
            }
            8 if stable < ready => {
                let at = stable + rng.below((ready - stable) as u64) as usize;
                let before = ahead.worker.next();
                let value = draw(&mut rng, at, number);
                ahead.put(at, value);
                taken_back += u64::from(ahead.worker.next() < before);
            }
            9 | 10 => {
                let end = stable as u64 + rng.below((ready - stable) as u64 + 1);
                for value in &ahead.log[stable..end as usize] {
                    model.log(value);
                }
                ahead.stable_below(end);
            }
            11 => ahead.tick(),
            12 => drop(ahead.worker.digest().unwrap()),
            13 => {
                let (position, _) = ahead.worker.snapshot().unwrap();
                assert!(
                    position <= ahead.stable,
                    "seed {seed}: a copy of what isn't stable"
                );
            }
            14 if rng.below(4) == 0 => {
                writing = None;
                ahead.restart(kept.open());
            }
            _ => drop(ahead.finish()),
        }
        writing = writing.or_else(|| ahead.worker.take_checkpoint());
        if rng.below(4) == 0 {
            if let Some(write) = writing.take() {
                ahead.worker.end_checkpoint(ahead.now, write()).unwrap();
            }
        }
        // Whatever moment a kill or a power failure comes at.
        let stored = Worker::<_, Written>::open_in(ahead.settings.clone(), kept.open(), 1, 0);
        let mut stored = stored.unwrap();
        let next = stored.next();
        assert!(next <= ahead.stable, "seed {seed}: {next} is stored");
        let expected = &model.behind[next as usize];
        assert_eq!(K::tally(stored.application()), expected, "seed {seed}");
    }
    assert!(taken_back > 0, "seed {seed} takes nothing back");

    // All of it becomes stable. Then the sessions answer as if nothing had ever been taken back.
    for value in &ahead.log[ahead.stable as usize..] {
        model.log(value);
    }
    ahead.stable_below(ahead.log.len() as Instance);
    while ahead.worker.next() < ahead.stable {
        ahead.finish();
    }
    ahead.finish();
    assert_eq!(ahead.worker.sessions(), model.fed.worker.sessions());
    for session in 1..=ahead.log.len() as u64 {
        for request in 1..=12 {
            let again = (Flags::NONE, session << 16, request, command(9_999_999));
            ahead.put(ahead.log.len(), again.clone());
            ahead.stable_below(ahead.log.len() as Instance);
            assert_eq!(ahead.finish(), model.log(&again), "seed {seed}");
        }
    }
    let counted = K::tally(ahead.worker.application());
    assert_eq!(Some(counted), model.behind.last(), "seed {seed}");
}

#[test]
fn what_is_stored_is_stable_and_what_is_taken_back_never_was() {
    for seed in 0..40 {
        random_logs::<Disk>(seed);
        random_logs::<MemoryDisk>(seed);
    }
}

// ---- One at a time

#[test]
fn replies_of_what_is_taken_back_do_not_leave() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    r.push(SESSION, 1, &command(1));
    r.stable_below(1);
    let other = (Flags::NONE, SESSION, 2, command(2));
    r.put(1, other);
    let requests: Vec<u64> = r.finish().iter().map(|reply| reply.request).collect();
    assert_eq!(requests, [0, 2]);
}

#[test]
fn who_can_take_nothing_back_executes_only_what_is_stable() {
    let disk = Disk::default();
    disk.with(|d| d.cannot_discard = true);
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    for _ in 0..5 {
        r.noop();
    }
    r.finish();
    assert_eq!(r.worker.next(), 0);
    r.stable_below(3);
    r.finish();
    assert_eq!(r.worker.next(), 3);
}

#[test]
fn answers_that_wait_for_their_commit_wait_until_that_is_possible() {
    let settings = Settings {
        answers_wait: true,
        ..ahead_settings()
    };
    let mut r = Ahead::new(settings, Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    assert_eq!(r.finish(), []);
    r.stable_below(1);
    assert_eq!(r.finish().len(), 1);
}

#[test]
fn a_full_batch_and_a_due_checkpoint_hold_execution_until_all_of_it_is_stable() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    for _ in 0..3_000 {
        r.noop();
    }
    r.finish();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (1_024, 0));
    assert_eq!(r.worker.statistics().commit_holds, 1);
    assert_eq!(
        r.worker.next_deadline(),
        None,
        "nothing can be done by time"
    );
    r.stable_below(1_000);
    r.finish();
    assert_eq!((r.worker.next(), disk.with(|d| d.commits)), (1_024, 0));
    r.stable_below(1_030);
    r.finish();
    // A checkpoint is due: what isn't stable waits until it has begun.
    assert_eq!(r.worker.next(), 1_030);
    assert_eq!(r.worker.checkpointing(), Some(1_030));
    r.finish();
    assert!(r.worker.next() > 1_030);
    let write = r.worker.take_checkpoint().unwrap();
    r.worker.end_checkpoint(r.now, write()).unwrap();
    assert_eq!(r.worker.checkpointed(), 1_030);
}

/// Its checkpoint waits, too, for as long as it takes: time alone brings nothing, so nothing is due.
#[test]
fn an_overdue_checkpoint_keeps_nobody_awake_who_is_ahead() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    r.noop();
    r.stable_below(1);
    r.tick();
    assert_eq!(disk.with(|d| d.commits), 1);
    r.noop();
    r.finish();
    r.now += 2 * r.settings.checkpoint_interval;
    r.worker.tick(r.now, &mut r.out).unwrap();
    assert_eq!(r.worker.checkpointing(), None, "not all of it is stable");
    let due = r.worker.next_deadline();
    assert!(due.is_none_or(|at| at > r.now), "{due:?} at {}", r.now);
    r.noop();
    r.finish();
    assert_eq!(r.worker.next(), 2, "it is overdue");
    assert_eq!(r.worker.statistics().commit_holds, 1);
    r.stable_below(2);
    r.finish();
    assert_eq!(r.worker.checkpointing(), Some(2));
    r.finish();
    assert_eq!(r.worker.next(), 3, "it goes on");
}

/// A leader that always has more than is stable answers who reads its state, too. Until then it executes no further.
/// [X-READ]
#[test]
fn who_reads_the_state_waits_until_what_was_executed_is_stable() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    assert!(r.worker.reader().is_none(), "some of it may be taken back");
    r.push(SESSION, 1, &command(1));
    r.finish();
    assert_eq!(r.worker.next(), 1);
    r.stable_below(1);
    assert!(r.worker.reader().is_some());
    r.finish();
    assert_eq!(r.worker.next(), 2, "it runs ahead again");
}

/// A number that the disk gets is there, and nothing with it that isn't stable.
#[test]
fn a_number_for_the_disk_brings_nothing_that_is_not_stable() {
    let disk = Disk::default();
    let mut r = Ahead::new(ahead_settings(), Durable::open(&disk));
    r.push(1, 0, &open(false, 8, ReplyAddress::default()).to_bytes());
    r.push(SESSION, 1, &command(1));
    r.worker.set_incarnation(1 << 32).unwrap();
    assert_eq!(disk.committed().tally.total, 0);
    r.finish();
    assert_eq!(r.worker.next(), 2, "it comes again");
    r.stable_below(2);
    r.tick();
    r.restart(Durable::open(&disk));
    assert_eq!(r.worker.incarnation(), Some(1 << 32));
    assert_eq!(r.worker.application().tally.total, 1);
}

/// A number that the disk got behind its last checkpoint goes with what is taken back, and comes again. [T-DISK]
#[test]
fn a_program_in_memory_keeps_the_number_of_its_disk() {
    let disk = MemoryDisk::default();
    let mut r = Ahead::new(ahead_settings(), Kept::open(&disk));
    r.worker.set_incarnation(1 << 32).unwrap();
    r.noop();
    r.put(0, (Flags::NOOP, 0, 0, Vec::new()));
    r.stable_below(1);
    r.worker.checkpoint(r.now).unwrap();
    r.restart(Kept::open(&disk));
    assert_eq!(r.worker.incarnation(), Some(1 << 32));
}

/// The commits of what was taken back are gone, and those that follow are numbered anew.
#[test]
fn commits_follow_on_what_is_left_where_something_was_taken_back() {
    let mut r = Ahead::new(ahead_settings(), Kept::open(&MemoryDisk::default()));
    for number in 0..3 {
        r.noop();
        r.stable_below(number + 1);
        r.tick();
    }
    r.noop();
    r.put(3, (Flags::NOOP, 0, 0, Vec::new()));
    r.stable_below(4);
    r.finish();
    let (position, mut snapshot) = r.worker.snapshot().unwrap();
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes).unwrap();
    let settings = ahead_settings();
    let mut other = Ahead::new(settings, Kept::open(&MemoryDisk::default()));
    let restored = other.worker.restore(0, position, &mut &bytes[..]).unwrap();
    assert!(matches!(restored, Restored::To(4)), "{restored:?}");
}

/// What is kept for another replica is theirs for good. [X-LOG]
#[test]
fn nothing_is_kept_for_another_replica_that_is_not_stable() {
    let mut r = Ahead::new(ahead_settings(), Durable::open(&Disk::default()));
    r.worker.keep_log(true);
    r.noop();
    let session = open(false, 8, ReplyAddress::default()).to_bytes();
    r.put(0, (Flags::NONE, 1, 0, session));
    r.push(SESSION, 1, &command(1));
    r.stable_below(1);
    r.finish();
    let log = r.worker.take_log().unwrap();
    let mut other = Fed::new(settings(REPLICAS[1]));
    other.worker.replay(0, &log, &mut other.out).unwrap();
    assert_eq!((other.worker.next(), other.worker.sessions()), (1, 1));
    assert_eq!(r.worker.next(), 1);
}

/// What siblings are told can't be taken back; and outcomes are what the records say.
#[test]
fn a_copy_waits_until_it_is_stable_and_its_outcome_goes_with_what_is_taken_back() {
    let mut zero = Replica::new(2);
    let vector = [(0, 1), (1, 1)];
    let copy = stamped(1, &vector, &command(5));
    zero.at(0).give(1, Flags::MULTI, (SESSION, 5), &copy);

    let disk = Disk::default();
    disk.with(|d| d.spans = true);
    let mut settings = ahead_settings();
    settings.deployment.partitions = 2;
    settings.pid = 1;
    let mut one = Ahead::new(settings, Durable::open(&disk));
    let op = open(false, 64, ReplyAddress::default()).to_bytes();
    one.push(7, 0, &op);
    one.put(1, (Flags::MULTI, SESSION, 5, copy));
    assert_eq!(says_to_zero(&mut one), 0, "it isn't stable");
    one.stable_below(2);
    one.push(SESSION, 9, &command(9));

    // Passed, but not committed: both parts of it go.
    exchange(&mut zero, &mut one);
    assert_eq!((one.worker.next(), one.worker.kept_outcomes()), (3, 1));
    one.put(2, (Flags::NOOP, 0, 0, Vec::new()));
    assert_eq!((one.worker.next(), one.worker.kept_outcomes()), (1, 0));
    assert_eq!(one.worker.application().tally, Tally::default());
    exchange(&mut zero, &mut one);
    assert_eq!((one.worker.next(), one.worker.kept_outcomes()), (3, 1));

    // Committed: it stays, and nobody is asked again.
    one.stable_below(3);
    one.tick();
    one.push(SESSION, 9, &command(9));
    one.put(3, (Flags::NOOP, 0, 0, Vec::new()));
    assert_eq!((one.worker.next(), one.worker.kept_outcomes()), (4, 1));
    assert_eq!(says_to_zero(&mut one), 0);
    assert_eq!(one.worker.application().tally.by_command[&5], 1);
    assert_eq!(zero.at(0).times(5), 1);
}

/// How many messages partition 1 has for partition 0, but for how far it is on disk.
fn says_to_zero(one: &mut Ahead<Durable>) -> usize {
    one.finish();
    let mail = std::mem::take(&mut one.out.mail);
    let says = |(_, message): &&(PartitionId, SiblingMessage)| {
        !matches!(message, SiblingMessage::Synced(_))
    };
    mail.iter().filter(says).count()
}

/// Hands messages to and fro until there are none.
fn exchange(zero: &mut Replica, one: &mut Ahead<Durable>) {
    loop {
        one.finish();
        zero.finish(0);
        let (to_zero, to_one) = (&mut one.out.mail, &mut zero.mail[0][1]);
        if to_zero.is_empty() && to_one.is_empty() {
            return;
        }
        let zero = &mut zero.partitions[0];
        for (_, message) in to_zero.drain(..) {
            zero.worker.sibling(zero.now, 1, message);
        }
        for message in to_one.drain(..) {
            one.worker.sibling(one.now, 0, message);
        }
    }
}
