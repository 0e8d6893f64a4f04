// SPDX-License-Identifier: Apache-2.0
//! A node that runs an acceptor, with its memory in the process or on a disk.
//!
//! A durable acceptor keeps a snapshot and a log of the packets that changed something. The packets
//! of a step wait until everything before it in the log is synced, by the same rules as in a node
//! ([`GroupCommit`]), and the next packets are taken during a sync. Both files have checksums. A
//! process that starts with a damaged file refuses it until an operator gives the file up; a
//! running one finds the damage, and stores its state again.

mod mistakes;

use control::{EarlierStartRequest, Message, Views};
use paxos::group_commit::Turn;
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{
    Acceptor, Enable, Epoch, Flags, GroupCommit, Header, Instance, MsgType, NodeId, Packet, Verdict,
};

use super::host::Host;
use super::layout::{Endpoint, NodeIndex};
use super::mutation::{self, Mutation};
use super::world::{Event, Outgoing, Sender, World};
use crate::check::{Memory, Trigger};
use crate::disk::{Disk, Full};
use crate::observe::Observed;
use crate::queue::MICROSECOND;
use crate::rng::hash;
use mistakes::{accept_stale, exaggerated, promise_again};

const LOG: &str = "log";
const SNAPSHOT: &str = "snapshot";
/// The file that an orderly stop of a volatile acceptor leaves, which is read once.
const DUMP: &str = "dump";
/// A log of this size is replaced by a snapshot.
const LOG_LIMIT: usize = 8 << 10;

/// Packets that wait for a sync.
struct Waiting {
    sender: Endpoint,
    asked: Trigger,
    out: Outgoing,
}

/// An acceptor.
pub struct AcceptorHost {
    /// The machine.
    pub host: Host,
    role: Option<Acceptor>,
    nonce: u64,
    /// An epoch has enabled this memory.
    member: bool,
    memory: u16,
    /// The memories that were on this machine by boot nonce, with their numbers in the checkers.
    memories: Vec<(u64, u16)>,
    /// The disk.
    pub disk: Disk,
    log_len: usize,
    commit: GroupCommit<Vec<Waiting>>,
    /// The length of the log that the sync in progress covers.
    syncing: usize,
    /// Something on the disk was damaged, and hasn't been replaced yet.
    rotten: bool,
    spare: Vec<Outgoing>,
    /// A copy of the disk, which may be put back later.
    backup: Option<Disk>,
    /// The acceptor tells replicas a false `end`.
    exaggerates: bool,
    /// The `trim` and `end` in its range promises and PROBE_ACKs, if they are false.
    claims: Option<(Instance, Instance)>,
    /// For a mutation, the order that first made it a member.
    first_enable: Option<Enable>,
}

impl AcceptorHost {
    /// Returns a machine without a process.
    pub fn new(host: Host) -> AcceptorHost {
        AcceptorHost {
            host,
            role: None,
            nonce: 0,
            member: false,
            memory: 0,
            memories: Vec::new(),
            disk: Disk::default(),
            log_len: 0,
            commit: GroupCommit::default(),
            syncing: 0,
            rotten: false,
            spare: Vec::new(),
            backup: None,
            exaggerates: false,
            claims: None,
            first_enable: None,
        }
    }

    /// Returns whether a process runs.
    pub fn is_up(&self) -> bool {
        self.role.is_some()
    }

    /// Returns the boot nonce of the memory, running or on disk, if an epoch has enabled it. A
    /// member that isn't enabled yet can't promise anything, so it counts as failed.
    pub fn memory_nonce(&self) -> Option<u64> {
        let on_disk = || [SNAPSHOT, DUMP].iter().any(|f| self.disk.read(f).is_some());
        let is_there = self.is_up() || on_disk();
        (self.member && !self.rotten && is_there).then_some(self.nonce)
    }

    /// Starts a process, with the memory on the disk or an empty one.
    pub fn start(&mut self, world: &mut World) {
        if self.is_up() || !world.members.is_in(self.host.at) {
            return;
        }
        self.host.start(world);
        match self.load(world, &self.disk) {
            Ok(Some(acceptor)) => self.go_on_with(world, acceptor),
            Ok(None) => self.empty_memory(world),
            Err(Damaged) => world.note(|w| format!("damaged  {}", w.name(self.host.endpoint(0)))),
        }
        self.observe_start(world);
    }

    /// Returns the memory on a disk.
    fn load(&self, world: &World, disk: &Disk) -> Result<Option<Acceptor>, Damaged> {
        let Some(image) = disk.read(DUMP).or_else(|| disk.read(SNAPSHOT)) else {
            return Ok(None);
        };
        let image = without_sum(image)?;
        let deployment = self.host.deployment(world);
        let slots = world.scenario.slots.into();
        let mut acceptor = Acceptor::load(deployment, slots, image).expect("our own snapshot");
        let replayed = replay(&mut acceptor, disk.read(LOG).unwrap_or_default());
        match replayed {
            Err(Damaged) if !world.mutated(Mutation::DamageIsTheEnd) => Err(Damaged),
            _ => Ok(Some(acceptor)),
        }
    }

    /// Flips a bit of a stored file.
    pub fn rot(&mut self, world: &mut World) {
        let rng = &mut world.rng;
        self.rotten |= self.disk.rot(LOG, rng) || self.disk.rot(SNAPSHOT, rng);
    }

    /// Lets an operator give up a log with which no process starts, so that it counts as lost like
    /// an empty one.
    pub fn forget_log(&mut self, world: &mut World) {
        if !self.is_up() && self.load(world, &self.disk).is_err() {
            self.wipe(world);
        }
    }

    /// Returns the memory that the next power failure leaves on a disk that lies about syncs.
    pub fn after_lies(&self, world: &World) -> Option<Acceptor> {
        self.load(world, &self.disk.truth()?).ok()?
    }

    /// Lets the power fail on a disk that lies about syncs.
    pub fn lose_lies(&mut self, world: &mut World) {
        self.crash(world, true);
        self.member = false;
    }

    /// Starts a process with an existing memory.
    fn go_on_with(&mut self, world: &mut World, mut acceptor: Acceptor) {
        acceptor.restarted(world.rng.next() as u32);
        if world.mutated(Mutation::RestartedIsNotMute) {
            let _ = acceptor.resume(acceptor.nonce(), acceptor.start());
        }
        self.nonce = acceptor.nonce();
        let mut known = self.memories.iter();
        let known = known.find(|(nonce, _)| *nonce == self.nonce);
        self.memory = known.expect("it was empty once").1;
        self.role = Some(acceptor);
        // Later votes are not in the dump, so it must never be loaded again.
        self.disk.remove(DUMP);
        // The start must be on disk before anybody is told of it.
        if world.scenario.durable && self.snapshot().is_err() {
            self.role = None;
        }
    }

    fn observe_start(&self, world: &mut World) {
        let Some(acceptor) = &self.role else { return };
        let (nonce, start) = (acceptor.nonce(), acceptor.start());
        world.observe(self.host.at, Observed::AcceptorStarted { nonce, start });
    }

    /// Returns whether a copy of the disk was made, which may be put back.
    pub fn has_backup(&self) -> bool {
        self.backup.is_some()
    }

    /// Copies the disk.
    pub fn back_up(&mut self) {
        self.backup = Some(self.disk.clone());
    }

    /// Returns the memory in the copy of the disk.
    pub fn backup(&self, world: &World) -> Option<Acceptor> {
        self.load(world, self.backup.as_ref()?).ok()?
    }

    /// Puts the copy in place of the disk, so that everything since is forgotten.
    pub fn restore(&mut self, world: &mut World) {
        let Some(backup) = self.backup.clone() else {
            return;
        };
        self.crash(world, false);
        self.disk = backup;
        self.member = false;
    }

    /// Makes the acceptor tell replicas from now on that it has voted further than it has.
    pub fn exaggerate(&mut self) {
        self.exaggerates = true;
    }

    /// Makes its range promises and PROBE_ACKs from now on show these values.
    pub fn claim(&mut self, trim: Instance, end: Instance) {
        self.claims = Some((trim, end));
    }

    /// Returns whether its memory is damaged so that it shows false values.
    pub fn lies(&self) -> bool {
        self.claims.is_some()
    }

    /// Returns a range promise or PROBE_ACK with the false values, if it must lie. The checkers see
    /// the true one.
    pub fn claimed(&self, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
        let (trim, end) = self.claims?;
        if packet.header.msgtype == MsgType::ProbeAck {
            let report = ProbeReport::parse(packet.value).ok()?;
            let header = Header {
                inst: end,
                ..packet.header
            };
            return Some((header, ProbeReport { trim, ..report }.emit().to_vec()));
        }
        let range = packet.header.flags.has(Flags::RANGE);
        let report = RangeReport::parse(packet.value).ok().filter(|_| range)?;
        let report = RangeReport {
            trim,
            end,
            ..report
        };
        Some((packet.header, report.emit().to_vec()))
    }

    fn empty_memory(&mut self, world: &mut World) {
        let forgets = world.mutated(Mutation::AcceptorForgets) && self.nonce != 0;
        if !forgets {
            self.nonce = world.rng.nonce();
            self.member = false;
            self.claims = None;
        }
        let slots = world.scenario.slots.into();
        let mut acceptor = Acceptor::new(self.host.deployment(world), slots, self.nonce);
        if let Some(enable) = self.first_enable.as_ref().filter(|_| forgets) {
            let _ = acceptor.enable(enable);
        } else {
            let node = acceptor.deployment().node;
            let nonce = self.nonce;
            self.memory = world.votes.memory(Memory { node, nonce });
            self.memories.push((nonce, self.memory));
        }
        self.role = Some(acceptor);
        if world.scenario.durable && self.snapshot().is_err() {
            self.role = None;
        }
    }

    /// Kills the process. With `power` the machine also loses what wasn't synced.
    pub fn crash(&mut self, world: &mut World, power: bool) {
        self.role = None;
        self.commit = GroupCommit::default();
        if power {
            self.disk.lose_power(&mut world.rng);
        }
    }

    /// Replaces the disk by an empty one.
    pub fn wipe(&mut self, world: &mut World) {
        self.crash(world, false);
        self.disk.wipe();
        world.members.wipe(self.host.at);
        self.host.kept = Views::default();
        self.rotten = false;
    }

    /// Stops in good order; a volatile memory is dumped.
    pub fn stop(&mut self, world: &mut World) {
        if world.scenario.durable {
            while self.role.is_some() && self.commit.is_open() {
                self.turn(world);
                self.flush(world);
            }
        } else if let Some(acceptor) = &self.role {
            let mut dump = Vec::new();
            acceptor.save(&mut dump);
            add_sum(&mut dump);
            // Without room for the dump the memory is lost, which costs an epoch, but no vote that
            // counts.
            let _ = self.disk.replace(DUMP, &dump);
        }
        self.role = None;
    }

    /// Returns whether this memory is a member in `epoch` or a later one, and counts a replica's
    /// disk of this number.
    pub fn counts_disk(&self, epoch: Epoch, replica: NodeId, pid: usize, disk: u64) -> bool {
        self.role.as_ref().is_some_and(|acceptor| {
            let reports = acceptor.reports();
            let at = reports.replicas().iter().position(|r| *r == replica);
            let report = at.map(|at| reports.of(pid as u16)[at]);
            acceptor.epoch() >= epoch && report.is_some_and(|r| r.incarnation == disk)
        })
    }

    fn note_trimmed(&self, world: &mut World) {
        let Some(acceptor) = &self.role else { return };
        for pid in world.pids() {
            let trimmed = &mut world.trimmed[usize::from(pid)];
            if acceptor.trim(pid) > *trimmed {
                *trimmed = acceptor.trim(pid);
                world.members.trimmed(pid, acceptor.reports().g());
            }
        }
    }

    /// Handles an arriving packet.
    pub fn packet(
        &mut self,
        world: &mut World,
        from: Endpoint,
        packet: &Packet<'_>,
        bytes: &[u8],
        damaged: bool,
    ) -> Option<Verdict> {
        let acceptor = self.role.as_mut()?;
        world.observe(self.host.at, Observed::Received(packet));
        let watched = damaged || world.steps % 256 == 0;
        let hash_before = watched.then(|| acceptor.state_hash());
        let kept = mutation::not_remembered(world, &packet.header).then(|| acceptor.clone());
        let mut out = self.spare.pop().unwrap_or_default();
        let verdict = acceptor.step(packet, &mut out);
        if let Some(hash) = hash_before {
            let at = self.host.endpoint(0);
            world.judge(at, damaged, verdict, || acceptor.state_hash() == hash);
        }
        if let Some(kept) = kept {
            *acceptor = kept;
        }
        if world.mutated(Mutation::PromisesToAnyone) {
            promise_again(acceptor, packet, verdict, &mut out);
        }
        if self.exaggerates && packet.header.msgtype == MsgType::Query {
            out = exaggerated(&out);
        }
        if packet.header.msgtype == MsgType::Trim {
            self.note_trimmed(world);
        }
        if world.mutated(Mutation::StaleRoundAccepted) {
            accept_stale(packet, verdict, &mut out);
        }
        if verdict == Verdict::Changed && world.scenario.durable && self.log(bytes).is_err() {
            world.note(|w| format!("full     {}", w.name(self.host.endpoint(0))));
            self.crash(world, false);
            return Some(verdict);
        }
        let asked = Trigger::By(packet.header);
        if !world.scenario.durable {
            self.release(world, from, asked, out);
            return Some(verdict);
        }
        if verdict == Verdict::Changed {
            self.commit.changed();
        }
        if world.mutated(Mutation::AnswersBeforeSync) {
            self.release(world, from, asked, out);
        } else if !out.is_empty() {
            self.commit.answers().push(Waiting {
                sender: from,
                asked,
                out,
            });
        }
        self.turn(world);
        Some(verdict)
    }

    fn release(&mut self, world: &mut World, sender: Endpoint, asked: Trigger, mut out: Outgoing) {
        let who = Sender::Acceptor(self.memory, asked);
        let leader = self.host.leader;
        world.post(self.host.endpoint(0), who, Some(sender), leader, &out);
        out.clear();
        self.spare.push(out);
    }

    fn release_all(&mut self, world: &mut World, answers: Vec<Waiting>) {
        for waiting in answers {
            self.release(world, waiting.sender, waiting.asked, waiting.out);
        }
    }

    /// Sends the answers that wait for nothing, and begins a sync if one is due.
    fn turn(&mut self, world: &mut World) {
        match self.commit.turn() {
            Turn::Leave(answers) => {
                let answers = std::mem::take(answers);
                self.release_all(world, answers);
            }
            Turn::Sync => {
                self.syncing = self.log_len;
                self.flush_later(world);
            }
            Turn::Wait => {}
        }
    }

    fn flush_later(&mut self, world: &mut World) {
        let mut delay = world.rng.between(20 * MICROSECOND, 300 * MICROSECOND);
        let mistakes = [Mutation::AnswersBeforeSync, Mutation::SyncCoversLater];
        if mistakes.into_iter().any(|m| world.mutated(m)) {
            // For a mutation: an acceptor that doesn't wait for the sync doesn't hurry with it
            // either.
            delay *= 100;
        }
        let at = self.host.endpoint(0);
        let process = self.host.process;
        world.queue.after(delay, Event::Flush { at, process });
    }

    /// Ends a sync, and sends the answers that waited for it.
    pub fn flush(&mut self, world: &mut World) {
        if self.role.is_none() || !self.commit.is_syncing() {
            return;
        }
        self.disk.sync_up_to(LOG, self.syncing);
        let answers = std::mem::take(self.commit.synced());
        self.release_all(world, answers);
        if world.mutated(Mutation::SyncCoversLater) {
            let later = std::mem::take(self.commit.answers());
            self.release_all(world, later);
        }
        let is_damaged = self.rotten && self.load(world, &self.disk).is_err();
        if self.log_len > LOG_LIMIT || is_damaged {
            // Without room for a snapshot the old log stays, which is complete.
            let _ = self.snapshot();
        }
        self.turn(world);
    }

    /// Handles an arriving control message.
    pub fn control(&mut self, world: &mut World, from: NodeIndex, message: &Message) {
        if let Message::View(view) = message {
            // An acceptor counts nothing by configurations, so it ignores a view that contradicts
            // another.
            let _ = self.host.take_view(world, view);
        }
        if let Some(request) = message.earlier_start_request() {
            self.answer(world, from, &request);
            return;
        }
        let Some(acceptor) = self.role.as_mut() else {
            return;
        };
        if let Message::RecordRequest { group } = message {
            self.host.tell_record(world, from, *group);
            return;
        }
        if let Some((_, nonce, start)) = message.resume() {
            if acceptor.resume(nonce, start) == Ok(true) {
                self.member = !acceptor.is_stranger();
                world.observe(self.host.at, Observed::Resumed(start));
            }
            return;
        }
        if let Some((_, nonce, start)) = message.discard() {
            let is_meant = (acceptor.nonce(), acceptor.start()) == (nonce, start);
            if acceptor.is_mute() && is_meant {
                self.disk.wipe();
                self.empty_memory(world);
                self.observe_start(world);
            }
            return;
        }
        let Some((_, enable)) = message.enable() else {
            return;
        };
        if acceptor.enable(&enable).is_err() {
            return;
        }
        self.member = true;
        self.note_trimmed(world);
        world.observe(self.host.at, Observed::Enabled(&enable));
        self.first_enable.get_or_insert(enable);
        if world.scenario.durable && self.snapshot().is_err() {
            self.crash(world, false);
        }
    }

    /// Answers whether this memory was at an earlier start, once the question is on disk.
    fn answer(&mut self, world: &mut World, from: NodeIndex, request: &EarlierStartRequest) {
        let Some(acceptor) = self.role.as_mut() else {
            return;
        };
        let Ok(changed) = acceptor.asked(request.nonce, request.start) else {
            return;
        };
        let known = acceptor.was_at(request.earlier) || world.mutated(Mutation::AnyStartIsKnown);
        let answer = request.answer(acceptor.deployment().node, known);
        if changed && world.scenario.durable && self.snapshot().is_err() {
            self.crash(world, false);
            return;
        }
        world.control(self.host.at, from, answer);
    }

    fn log(&mut self, packet: &[u8]) -> Result<(), Full> {
        let mut record = Vec::with_capacity(packet.len() + HEAD);
        record.extend_from_slice(&(packet.len() as u32).to_be_bytes());
        record.extend_from_slice(&hash(0, packet).to_be_bytes());
        add_sum(&mut record);
        record.extend_from_slice(packet);
        self.disk.append(LOG, &record)?;
        self.log_len += record.len();
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), Full> {
        let Some(acceptor) = &self.role else {
            return Ok(());
        };
        let mut bytes = Vec::new();
        acceptor.save(&mut bytes);
        add_sum(&mut bytes);
        self.disk.replace(SNAPSHOT, &bytes)?;
        self.disk.remove(LOG);
        (self.log_len, self.syncing) = (0, 0);
        self.rotten = false;
        Ok(())
    }
}

/// The error that a stored file is damaged.
struct Damaged;

fn add_sum(bytes: &mut Vec<u8>) {
    let sum = hash(1, bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
}

fn without_sum(bytes: &[u8]) -> Result<&[u8], Damaged> {
    let (bytes, sum) = bytes.split_last_chunk::<8>().ok_or(Damaged)?;
    match hash(1, bytes) == u64::from_be_bytes(*sum) {
        true => Ok(bytes),
        false => Err(Damaged),
    }
}

/// The length of what precedes a record: its length, its checksum, and a checksum of both.
const HEAD: usize = 20;

/// Replays a log through the same code that wrote it, up to its last whole record.
fn replay(acceptor: &mut Acceptor, mut log: &[u8]) -> Result<(), Damaged> {
    let mut void = Outgoing::default();
    while let Some((head, rest)) = log.split_at_checked(HEAD) {
        let head = without_sum(head)?;
        let len = u32::from_be_bytes(head[..4].try_into().expect("four bytes")) as usize;
        let sum = u64::from_be_bytes(head[4..].try_into().expect("eight bytes"));
        let Some((record, rest)) = rest.split_at_checked(len) else {
            break;
        };
        if hash(0, record) != sum {
            return Err(Damaged);
        }
        if let Ok(packet) = Packet::parse(record) {
            let _ = acceptor.step(&packet, &mut void);
        }
        void.clear();
        log = rest;
    }
    Ok(())
}
