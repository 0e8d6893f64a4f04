// SPDX-License-Identifier: Apache-2.0
//! The proposer: gets commands into the log (docs/protocol/proposer.md).
//!
//! Commands are queued by [`Proposer::submit`] and leave with [`Proposer::flush`], several of them
//! packed into one REQUEST where they fit. A command is outstanding until it is answered; until
//! then it is sent again, always with its own (client, request), so that replicas recognise it
//! however often it gets into the log. What is sent again is packed anew: the value that carried a
//! command isn't its identity, and answered neighbours must not travel again. [P-AGAIN]
//!
//! In an ordered session what follows something that was lost takes no effect. It is held until what is missing is
//! answered, and isn't timed meanwhile: of all that is outstanding only that is lost. [P-EARLY]
//!
//! At most `max_open_values` values of a partition are in flight, and only two of them may be
//! less than half full. Beyond that commands wait in the queue and leave together when a value is done: an idle
//! proposer sends at once, a loaded one packs by itself. Otherwise answers that come in small
//! portions would be followed by small values for ever, above all where they are spread over
//! partitions.
//!
//! What leaves at once leaves in values of one size, as far as commands allow it: a kernel takes datagrams of one
//! size to one address, and hands them over there, as if they were one. That is so at each role on the way, whatever
//! partitions they are of.

mod flight;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use self::flight::Flight;
use crate::backoff::Backoff;
use crate::wire::value::{
    PACKED_ITEM_HEADER_LEN, PackedItem, Rejection, Vector, append_packed, packed_is_valid,
    packed_items,
};
use crate::{
    Deployment, Flags, Header, MsgType, Outbox, Packet, PartitionId, Reason, Time, To, Verdict,
};

/// One byte of status precedes an application's answer. This one says that an earlier request of the
/// ordered session is missing. It is no answer: the command took no effect, and is sent again once
/// the earlier one is through.
pub const STATUS_OUT_OF_ORDER: u8 = 3;

/// And this one that a command over several partitions takes no effect at the places of one vector. Round (u32)
/// and instance (u64) of that vector in the lowest partition follow. It is no answer either: the command is sent
/// again at once, for another vector.
pub const STATUS_DEAD: u8 = 8;

/// Where a vector lies in its lowest partition; a later one is larger.
type VectorPlace = (u32, u64);

/// The place that follows such a status.
fn dead_place(place: &[u8]) -> Option<VectorPlace> {
    let place: &[u8; 12] = place.try_into().ok()?;
    let (round, inst) = place.split_first_chunk()?;
    Some((
        u32::from_be_bytes(*round),
        u64::from_be_bytes(inst.try_into().ok()?),
    ))
}

/// Values of a partition in flight at most that are less than half full.
const MAX_SMALL: usize = 2;

/// So many of an ordered session's commands that came too early leave with each answer in it.
const FOLLOWERS: usize = 2;

/// A full window opens again soon: the proposer waits this fraction of `retry_after` for it.
const WINDOW_WAIT_DIVISOR: Time = 8;

/// How a proposer behaves.
#[derive(Clone, Copy, Debug)]
pub struct ProposerSettings {
    /// The deployment in which it proposes; a client's `node` is 0.
    pub deployment: Deployment,
    /// How long it waits for an answer as long as none has shown how long that takes.
    pub retry_after: Time,
    /// How long a command is sent in vain before [`Proposer::needs_leader`] is set.
    pub ask_after: Time,
    /// Random, never 0, of this proposer alone: names its packed values and seeds its jitter.
    pub nonce: u64,
    /// Values of one partition in flight at most.
    pub max_open_values: usize,
}

/// Why a command can't be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// It doesn't fit a value.
    TooLarge {
        /// Bytes that fit.
        max: usize,
    },
    /// The same (client, request) is still outstanding in that partition.
    Outstanding,
    /// No such partition, partitions that aren't strictly ascending or are too many, or client 0.
    Invalid,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::TooLarge { max } => write!(f, "the command is larger than {max} bytes"),
            Refused::Outstanding => f.write_str("this request is already outstanding"),
            Refused::Invalid => f.write_str("no such partition, or no session"),
        }
    }
}

impl std::error::Error for Refused {}

/// Identity of an outstanding command. Session ids are given out per partition.
type Key = (PartitionId, u64, u64);

/// A slot of the command slab; free ones keep their buffer.
#[derive(Default, Debug)]
struct Command {
    pid: PartitionId,
    client: u64,
    request: u64,
    multi: bool,
    /// Counts all commands, in the order in which they were submitted.
    age: u64,
    /// The last of its vectors that is known to be dead.
    dead: VectorPlace,
    was_sent: bool,
    /// Whether it was sent before it left in the value in which it is.
    is_copy: bool,
    /// Times it left again for being overtaken.
    overtaken: u32,
    /// Number of the last value in which it left before it was first overtaken.
    first: u64,
    /// When it was first sent to this leader, or when that one was named again since; none before that.
    since: Option<Time>,
    place: Place,
    bytes: Vec<u8>,
}

/// Where a command is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Place {
    #[default]
    Free,
    Queued,
    /// Answered while queued for a retry: the queue drops it when it gets there.
    Answered,
    /// In flight in the value in this slot.
    Sent(u32),
    /// It takes no effect before one of its session that is in flight does, and waits for that. [P-EARLY]
    Held,
}

/// A value in flight, or a free slot that keeps its buffer.
#[derive(Default, Debug)]
struct Value {
    pid: PartitionId,
    /// Number of the value; 0 = the slot is free. Also tells a slot's uses apart.
    number: u64,
    packed: bool,
    /// Commands in it that aren't answered.
    open: usize,
    commands: Vec<u32>,
    sent_at: Time,
    /// How often one of its commands has left again for being overtaken.
    overtaken: u32,
    /// Values with lower numbers than this are lost once it is answered. It is its own number, or that of an earlier
    /// value whose answer may be taken for this one's, since one of its commands was overtaken there.
    overtakes: u64,
    /// One of its commands that was sent once is answered: it is certain how long that took.
    is_sampled: bool,
    deadline: Time,
    /// It was refused for want of room, or its vector died: that is a sign of life, no failure.
    no_failure: bool,
    /// One that was sent later is answered.
    is_overtaken: bool,
}

/// One partition's commands that wait to be sent, and its values in flight.
#[derive(Default, Debug)]
struct Queue {
    /// Those that have left or waited before, by age: of a session they are older than all others here.
    again: BTreeMap<u64, u32>,
    commands: VecDeque<u32>,
    /// What those of them that aren't answered take in a packed value.
    bytes: usize,
    open_values: usize,
    /// The numbers of those that are less than half full. Once a later one is answered they don't count:
    /// what is lost must not hold up the others.
    small: Vec<u64>,
    flight: Flight,
}

impl Queue {
    fn first(&self) -> Option<u32> {
        let again = self.again.first_key_value().map(|(_, command)| *command);
        again.or_else(|| self.commands.front().copied())
    }

    fn pop(&mut self) {
        if self.again.pop_first().is_none() {
            self.commands.pop_front();
        }
    }

    fn add(&mut self, command: &Command) {
        self.bytes += PACKED_ITEM_HEADER_LEN + command.bytes.len();
    }

    fn take(&mut self, command: &Command) {
        self.bytes -= PACKED_ITEM_HEADER_LEN + command.bytes.len();
    }
}

/// See the module.
#[derive(Debug)]
pub struct Proposer {
    settings: ProposerSettings,
    packing: bool,
    backoff: Backoff,
    needs_leader: bool,
    /// Who was taken for the leader has said since that it isn't.
    is_refused: bool,
    commands: Vec<Command>,
    free_commands: Vec<u32>,
    index: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    values: Vec<Value>,
    free_values: Vec<u32>,
    /// Packed values in flight by number, for a REJECT, which names the value.
    packs: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    last_number: u64,
    last_age: u64,
    queues: Vec<Queue>,
    /// Commands that wait for one before them in their ordered session. An older one of the session is in flight or queued.
    held: BTreeSet<Key>,
    /// (deadline, slot, number); entries that match no open value's deadline are void.
    deadlines: BinaryHeap<Reverse<(Time, u32, u64)>>,
    scratch: Vec<u8>,
    due: Vec<(u64, u32)>,
}

impl Proposer {
    /// A proposer with nothing outstanding.
    pub fn new(settings: ProposerSettings) -> Proposer {
        let partitions = usize::from(settings.deployment.partitions);
        Proposer {
            settings: ProposerSettings {
                max_open_values: settings.max_open_values.max(1),
                ..settings
            },
            packing: true,
            backoff: Backoff::new(settings.nonce),
            needs_leader: false,
            is_refused: false,
            commands: Vec::new(),
            free_commands: Vec::new(),
            index: HashMap::default(),
            values: Vec::new(),
            free_values: Vec::new(),
            packs: HashMap::default(),
            last_number: 0,
            last_age: 0,
            queues: (0..partitions).map(|_| Queue::default()).collect(),
            held: BTreeSet::new(),
            deadlines: BinaryHeap::new(),
            scratch: Vec::new(),
            due: Vec::new(),
        }
    }

    /// From now on every value holds one command: for programs to which commands are delivered by
    /// instance.
    pub fn without_packing(mut self) -> Proposer {
        self.packing = false;
        self
    }

    /// Queues a command; nothing is sent before [`flush`](Self::flush). `client` is the session
    /// (or the nonce of an OPEN), never 0.
    pub fn submit(
        &mut self,
        pid: PartitionId,
        client: u64,
        request: u64,
        command: &[u8],
    ) -> Result<(), Refused> {
        let max = usize::from(self.settings.deployment.max_value);
        if command.len() > max {
            return Err(Refused::TooLarge { max });
        }
        let slot = self.enqueue((pid, client, request))?;
        let entry = &mut self.commands[slot];
        entry.bytes.extend_from_slice(command);
        self.queues[usize::from(pid)].add(entry);
        Ok(())
    }

    /// Queues a command that takes effect in all of `pids`, which are strictly ascending. It is
    /// answered under the first of them and never packed.
    pub fn submit_multi(
        &mut self,
        pids: &[PartitionId],
        client: u64,
        request: u64,
        command: &[u8],
    ) -> Result<(), Refused> {
        let partitions = self.settings.deployment.partitions;
        let ascending = pids.windows(2).all(|w| w[0] < w[1]);
        let (Some(&first), Some(&last)) = (pids.first(), pids.last()) else {
            return Err(Refused::Invalid);
        };
        if !ascending || last >= partitions || pids.len() > crate::wire::value::MAX_VECTOR {
            return Err(Refused::Invalid);
        }
        self.scratch.clear();
        Vector::reserve(pids, &mut self.scratch);
        let max =
            usize::from(self.settings.deployment.max_value).saturating_sub(self.scratch.len());
        if command.len() > max {
            return Err(Refused::TooLarge { max });
        }
        let slot = self.enqueue((first, client, request))?;
        let entry = &mut self.commands[slot];
        entry.multi = true;
        entry.bytes.extend_from_slice(&self.scratch);
        entry.bytes.extend_from_slice(command);
        self.queues[usize::from(first)].add(entry);
        Ok(())
    }

    /// Takes a slot for a command and queues it.
    fn enqueue(&mut self, key: Key) -> Result<usize, Refused> {
        let (pid, client, _) = key;
        if client == 0 || usize::from(pid) >= self.queues.len() {
            return Err(Refused::Invalid);
        }
        let vacant = match self.index.entry(key) {
            std::collections::hash_map::Entry::Occupied(_) => return Err(Refused::Outstanding),
            std::collections::hash_map::Entry::Vacant(vacant) => vacant,
        };
        let slot = self.free_commands.pop().unwrap_or_else(|| {
            self.commands.push(Command::default());
            (self.commands.len() - 1) as u32
        });
        vacant.insert(slot);
        self.last_age += 1;
        let command = &mut self.commands[slot as usize];
        command.age = self.last_age;
        command.bytes.clear();
        (command.pid, command.client, command.request) = key;
        (command.multi, command.dead) = (false, (0, 0));
        (command.was_sent, command.overtaken, command.since) = (false, 0, None);
        command.place = Place::Queued;
        self.queues[usize::from(pid)].commands.push_back(slot);
        Ok(slot as usize)
    }

    /// Sends all queued commands, as far as `max_open_values` allows.
    pub fn flush(&mut self, now: Time, out: &mut impl Outbox) {
        for pid in 0..self.queues.len() {
            let share = self.share(pid);
            while self.may_send(pid) && self.send_value(pid, share, now, out) {}
        }
    }

    /// Bytes of each value, if all that is queued left in as few as it needs, and in equal ones.
    fn share(&self, pid: usize) -> usize {
        let max = usize::from(self.settings.deployment.max_value);
        let bytes = self.queues[pid].bytes;
        bytes.div_ceil(bytes.div_ceil(max).max(1))
    }

    fn may_send(&self, pid: usize) -> bool {
        let queue = &self.queues[pid];
        let next = queue.first();
        let stays_small = next.is_some_and(|next| !self.commands[next as usize].multi)
            && self.is_small(queue.bytes);
        queue.open_values < self.settings.max_open_values
            && (!stays_small || queue.small.len() < MAX_SMALL)
    }

    /// Whether a value of so many bytes is less than half full, and could take more.
    fn is_small(&self, bytes: usize) -> bool {
        self.packing && 2 * bytes < usize::from(self.settings.deployment.max_value)
    }

    /// Sends one value of queued commands, of `share` bytes at least where there are so many; false when none is
    /// queued.
    fn send_value(&mut self, pid: usize, share: usize, now: Time, out: &mut impl Outbox) -> bool {
        let slot = self.free_values.pop().unwrap_or_else(|| {
            self.values.push(Value::default());
            (self.values.len() - 1) as u32
        });
        self.gather(pid, slot, share);
        let Some(&first) = self.values[slot as usize].commands.first() else {
            self.free_values.push(slot);
            return false;
        };
        self.last_number += 1;
        let value = &mut self.values[slot as usize];
        value.pid = pid as PartitionId;
        value.number = self.last_number;
        value.open = value.commands.len();
        value.packed = value.open > 1;
        value.sent_at = now;
        (value.no_failure, value.is_overtaken) = (false, false);
        (value.overtaken, value.overtakes, value.is_sampled) = (0, value.number, false);
        self.queues[pid].open_values += 1;

        let deployment = &self.settings.deployment;
        let header = Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: pid as PartitionId,
            swid: deployment.node,
            ..Header::new(MsgType::Request)
        };
        let mut bytes = 0;
        self.scratch.clear();
        for &command in &value.commands {
            let command = &mut self.commands[command as usize];
            command.place = Place::Sent(slot);
            command.since.get_or_insert(now);
            command.is_copy = std::mem::replace(&mut command.was_sent, true);
            value.overtaken = value.overtaken.max(command.overtaken);
            match command.overtaken {
                0 => command.first = value.number,
                // The answer may be to that one. Whoever took it for this one's would take all between them for lost.
                _ => value.overtakes = value.overtakes.min(command.first),
            }
            bytes += PACKED_ITEM_HEADER_LEN + command.bytes.len();
            if value.packed {
                let item = PackedItem {
                    client: command.client,
                    request: command.request,
                    bytes: &command.bytes,
                };
                append_packed(&mut self.scratch, &item);
            }
        }
        if value.packed {
            self.packs.insert(value.number, slot);
            let header = Header {
                flags: Flags::PACKED,
                client: self.settings.nonce,
                request: value.number,
                value_len: self.scratch.len() as u16,
                ..header
            };
            out.send(To::Leader, &header, &self.scratch);
        } else {
            let command = &self.commands[first as usize];
            let header = Header {
                flags: if command.multi {
                    Flags::MULTI
                } else {
                    Flags::NONE
                },
                client: command.client,
                request: command.request,
                value_len: command.bytes.len() as u16,
                ..header
            };
            out.send(To::Leader, &header, &command.bytes);
        }
        if !self.commands[first as usize].multi && self.is_small(bytes) {
            let number = self.last_number;
            self.queues[pid].small.push(number);
        }
        let values = &self.values;
        let flight = &mut self.queues[pid].flight;
        flight.sent(self.last_number, slot, |number, slot| {
            values[slot as usize].number == number
        });
        let patience = flight.patience(self.settings.retry_after);
        let delay = self.backoff.delay(patience, 0);
        self.arm(slot, now.saturating_add(delay));
        true
    }

    /// Moves commands that go together from the queue's front into a value: one multi-partition
    /// command, or others up to `share`, as far as they fit. Frees those that were answered while they waited.
    fn gather(&mut self, pid: usize, slot: u32, share: usize) {
        let max = usize::from(self.settings.deployment.max_value);
        let queue = &mut self.queues[pid];
        let gathered = &mut self.values[slot as usize].commands;
        let mut packed_len = 0;
        while let Some(next) = queue.first() {
            let command = &mut self.commands[next as usize];
            if command.place == Place::Answered {
                command.place = Place::Free;
                self.free_commands.push(next);
                queue.pop();
                continue;
            }
            let key = (command.pid, command.client, command.request);
            if oldest_held(&self.held, key).is_some_and(|held| held < key) {
                (command.place, command.since) = (Place::Held, None);
                self.held.insert(key);
                queue.take(command);
                queue.pop();
                continue;
            }
            let has_share = packed_len >= share;
            packed_len += PACKED_ITEM_HEADER_LEN + command.bytes.len();
            let full = has_share || packed_len > max || !self.packing;
            if !gathered.is_empty() && (command.multi || full) {
                break;
            }
            gathered.push(next);
            queue.take(command);
            queue.pop();
            if command.multi {
                break;
            }
        }
    }

    /// The command is answered: forgets it. True the first time.
    pub fn answered(&mut self, now: Time, pid: PartitionId, client: u64, request: u64) -> bool {
        if let Some(command) = self.index.get(&(pid, client, request)) {
            let command = &self.commands[*command as usize];
            if let Place::Sent(slot) = command.place {
                self.learn_from_answer(now, slot, command.is_copy);
            }
        }
        self.reply(pid, client, request)
    }

    /// A command of an ordered session, named by partition, client and request, took no effect, since one before it
    /// hasn't. It waits until that one is answered. Returns whether it does from now on: a late answer may be to an
    /// earlier copy. [P-EARLY]
    pub fn came_too_early(&mut self, now: Time, key: (PartitionId, u64, u64)) -> bool {
        let (pid, client, request) = key;
        let Some(&index) = self.index.get(&key) else {
            return false;
        };
        let before = (pid, client, request.wrapping_sub(1));
        let command = &self.commands[index as usize];
        let Place::Sent(slot) = command.place else {
            return false;
        };
        if !self.index.contains_key(&before) {
            return false;
        }
        self.learn_from_answer(now, slot, command.is_copy);
        self.held.insert(key);
        let command = &mut self.commands[index as usize];
        // The leader lives, and has passed it on.
        (command.place, command.since, command.overtaken) = (Place::Held, None, 0);
        self.leave_value(slot);
        true
    }

    /// Something of a session is answered. Of what came too early in it, the oldest may leave: two for each answer, so
    /// that little is sent in vain where something is lost again. [P-EARLY]
    fn release_followers(&mut self, key: Key) {
        for _ in 0..FOLLOWERS {
            let Some(next) = oldest_held(&self.held, key) else {
                return;
            };
            self.held.remove(&next);
            let index = self.index[&next];
            let command = &mut self.commands[index as usize];
            command.place = Place::Queued;
            let queue = &mut self.queues[usize::from(next.0)];
            queue.again.insert(command.age, index);
            queue.add(command);
        }
    }

    /// What the answer to a command in this value tells of the time that answers take, and of values that left
    /// before this one. [P-OVERTAKEN]
    fn learn_from_answer(&mut self, now: Time, slot: u32, is_copy: bool) {
        let first = self.settings.retry_after;
        let value = &mut self.values[slot as usize];
        // The others in it are answered at the same time.
        let is_first = value.open == value.commands.len();
        if !is_first && (is_copy || value.is_sampled) {
            return;
        }
        value.is_sampled |= !is_copy;
        let (pid, overtakes) = (usize::from(value.pid), value.overtakes);
        let waited = now.saturating_sub(value.sent_at);
        let is_overtaken = value.is_overtaken;
        let flight = &mut self.queues[pid].flight;
        if !flight.answered(waited, first, is_copy, is_overtaken) {
            return;
        }
        while let Some((earlier, slot)) = self.queues[pid].flight.overtaken_by(overtakes) {
            let value = &mut self.values[slot as usize];
            if value.number != earlier {
                continue;
            }
            value.is_overtaken = true;
            let flight = &self.queues[pid].flight;
            let again_at = flight.leaves_again_at(now, value.sent_at, value.overtaken, first);
            // Also later than it would be otherwise: others are answered, so time alone says little.
            if !value.no_failure || again_at < value.deadline {
                self.arm(slot, again_at);
            }
        }
    }

    /// The command's caller no longer waits for it: forgets it. True the first time.
    pub fn reply(&mut self, pid: PartitionId, client: u64, request: u64) -> bool {
        let Some(slot) = self.index.remove(&(pid, client, request)) else {
            return false;
        };
        let command = &mut self.commands[slot as usize];
        let queue = &mut self.queues[usize::from(pid)];
        match command.place {
            Place::Queued => {
                command.place = Place::Answered;
                queue.take(command);
            }
            Place::Sent(value) => {
                command.place = Place::Free;
                self.free_commands.push(slot);
                self.leave_value(value);
            }
            Place::Held => {
                command.place = Place::Free;
                self.free_commands.push(slot);
                self.held.remove(&(pid, client, request));
                return true;
            }
            Place::Free | Place::Answered => unreachable!("the index holds what is outstanding"),
        }
        if !self.held.is_empty() {
            self.release_followers((pid, client, request));
        }
        true
    }

    /// One of its commands is done, or waits for another one.
    fn leave_value(&mut self, slot: u32) {
        let value = &mut self.values[slot as usize];
        let queue = &mut self.queues[usize::from(value.pid)];
        queue.small.retain(|small| *small > value.number);
        value.open -= 1;
        if value.open == 0 {
            self.close(slot);
        }
    }

    /// Frees a value's slot.
    fn close(&mut self, slot: u32) {
        let value = &mut self.values[slot as usize];
        if value.packed {
            self.packs.remove(&value.number);
        }
        let queue = &mut self.queues[usize::from(value.pid)];
        queue.open_values -= 1;
        queue.small.retain(|small| *small != value.number);
        value.number = 0;
        value.commands.clear();
        self.free_values.push(slot);
        self.drop_void_deadlines();
    }

    /// Takes REPLY and REJECT. Calls `completed` with (client, request, status byte and answer) for
    /// each command that a REPLY ends. A malformed packet changes nothing. Commands for which replies
    /// made room leave with the next [`flush`](Self::flush).
    pub fn step(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> Verdict {
        if let Err(reason) = self.settings.deployment.check(packet) {
            return Verdict::Dropped(reason);
        }
        match packet.header.msgtype {
            MsgType::Reply if packet.header.flags.has(Flags::PACKED) => {
                self.on_packed_reply(now, packet, completed)
            }
            MsgType::Reply => self.on_reply(now, packet, completed),
            MsgType::Reject => self.on_reject(now, packet),
            _ => Verdict::Dropped(Reason::NotForRole),
        }
    }

    fn on_reply(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> Verdict {
        let h = &packet.header;
        if packet.value.is_empty() {
            return Verdict::Dropped(Reason::BadValue);
        }
        if self.answer(now, (h.pid, h.client, h.request), packet.value, completed) {
            Verdict::Changed
        } else {
            Verdict::Dropped(Reason::Unexpected)
        }
    }

    fn on_packed_reply(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> Verdict {
        let items = || packed_items(packet.value).filter_map(Result::ok);
        if !packed_is_valid(packet.value) || items().any(|item| item.bytes.is_empty()) {
            return Verdict::Dropped(Reason::BadValue);
        }
        let mut any = false;
        for item in items() {
            let pid = packet.header.pid;
            any |= self.answer(now, (pid, item.client, item.request), item.bytes, completed);
        }
        if any {
            Verdict::Changed
        } else {
            Verdict::Dropped(Reason::Unexpected)
        }
    }

    /// Takes one answer; returns whether it changed anything.
    fn answer(
        &mut self,
        now: Time,
        (pid, client, request): Key,
        answer: &[u8],
        completed: &mut impl FnMut(u64, u64, &[u8]),
    ) -> bool {
        // An out-of-order answer may belong to an earlier copy of a command that was sent again and
        // executed since, so it must not end the command. [P-AGAIN]
        match answer[0] {
            STATUS_OUT_OF_ORDER => return self.came_too_early(now, (pid, client, request)),
            STATUS_DEAD => return self.vector_died(now, (pid, client, request), &answer[1..]),
            _ => {}
        }
        let ends = self.answered(now, pid, client, request);
        if ends {
            completed(client, request, answer);
        }
        ends
    }

    /// Sends a command, named by partition, client and request, again if its vector is dead: at the next
    /// [`tick`](Self::tick), once for each vector. `place` follows the status in the answer. Returns
    /// whether it is sent again. [V-DEAD]
    pub fn vector_died(&mut self, now: Time, key: (PartitionId, u64, u64), place: &[u8]) -> bool {
        let (Some(place), Some(&index)) = (dead_place(place), self.index.get(&key)) else {
            return false;
        };
        let command = &mut self.commands[index as usize];
        let Place::Sent(slot) = command.place else {
            return false;
        };
        if !command.multi || place <= command.dead {
            return false;
        }
        command.dead = place;
        self.values[slot as usize].no_failure = true;
        self.arm(slot, now);
        true
    }

    fn on_reject(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        let rejection = match Rejection::parse(packet.value) {
            Ok(rejection) => rejection,
            Err(reason) => return Verdict::Dropped(reason),
        };
        let Some(slot) = self.rejected_value(&packet.header) else {
            return Verdict::Dropped(Reason::Unexpected);
        };
        match rejection.reason {
            Reason::NotLeader => {
                (self.needs_leader, self.is_refused) = (true, true);
                Verdict::Changed
            }
            Reason::Window => {
                self.values[slot as usize].no_failure = true;
                let wait = self.settings.retry_after / WINDOW_WAIT_DIVISOR;
                let soon = now.saturating_add(self.backoff.delay(wait, 0));
                if soon < self.values[slot as usize].deadline {
                    self.arm(slot, soon);
                }
                Verdict::Changed
            }
            _ => Verdict::Dropped(Reason::Unexpected),
        }
    }

    /// The open value that a REJECT names: a packed one by its number, another by its command.
    fn rejected_value(&self, header: &Header) -> Option<u32> {
        if header.client == self.settings.nonce {
            let of_partition = |slot: &&u32| self.values[**slot as usize].pid == header.pid;
            if let Some(&slot) = self.packs.get(&header.request).filter(of_partition) {
                return Some(slot);
            }
        }
        let command = *self
            .index
            .get(&(header.pid, header.client, header.request))?;
        match self.commands[command as usize].place {
            Place::Sent(slot) => Some(slot),
            _ => None,
        }
    }

    /// Sends again what has waited too long, and what is queued.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        let mut due = std::mem::take(&mut self.due);
        while let Some(&Reverse((deadline, slot, number))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            if is_armed(&self.values, (deadline, slot, number)) {
                due.push((number, slot));
                // A second entry of the same value and time must not count again.
                self.values[slot as usize].deadline = Time::MAX;
            }
        }
        due.sort_unstable();
        due.retain(|(_, slot)| self.leaves_again(now, *slot));
        self.requeue(now, &mut due);
        self.due = due;
        self.flush(now, out);
    }

    /// Whether what is due leaves now; otherwise it waits on. [P-WAIT]
    fn leaves_again(&mut self, now: Time, slot: u32) -> bool {
        let value = &self.values[slot as usize];
        let flight = &mut self.queues[usize::from(value.pid)].flight;
        if value.no_failure {
            return true;
        }
        if value.is_overtaken {
            flight.is_lost();
            return true;
        }
        let result = flight.times_out(now, self.settings.retry_after);
        if let Err(look_at) = result {
            self.arm(slot, look_at);
        }
        result.is_ok()
    }

    /// The leader that is known was named again. If it has refused something, as one does that isn't programmed yet, everything
    /// leaves again. If it was silent it may only be slow, and what is waited for may be in its queue: that waits on, and the
    /// leader is asked for anew after as long again. [P-WAIT]
    pub fn leader_confirmed(&mut self, now: Time, out: &mut impl Outbox) {
        if self.is_refused {
            return self.leader_changed(now, out);
        }
        for command in &mut self.commands {
            command.since = command.since.map(|_| now);
        }
        self.needs_leader = false;
    }

    /// There is a new leader: sends everything outstanding to it at once and starts waiting from the beginning.
    pub fn leader_changed(&mut self, now: Time, out: &mut impl Outbox) {
        let mut due = std::mem::take(&mut self.due);
        let open = self.values.iter().enumerate().filter(|(_, v)| v.number > 0);
        due.extend(open.map(|(slot, value)| (value.number, slot as u32)));
        due.sort_unstable();
        self.requeue(now, &mut due);
        self.due = due;
        for command in &mut self.commands {
            (command.since, command.overtaken) = (None, 0);
        }
        for queue in &mut self.queues {
            queue.flight.begin_anew();
        }
        (self.needs_leader, self.is_refused) = (false, false);
        self.flush(now, out);
    }

    /// Takes values out of flight and puts their unanswered commands back in front of the queue, in the order in which
    /// they were submitted: what of an ordered session left before an older one of it would come too early. [P-AGAIN]
    fn requeue(&mut self, now: Time, due: &mut Vec<(u64, u32)>) {
        while let Some((_, slot)) = due.pop() {
            let commands = std::mem::take(&mut self.values[slot as usize].commands);
            let value = &self.values[slot as usize];
            let (no_failure, is_overtaken) = (value.no_failure, value.is_overtaken);
            let queue = &mut self.queues[usize::from(self.values[slot as usize].pid)];
            for &index in &commands {
                let command = &mut self.commands[index as usize];
                if command.place == Place::Sent(slot) {
                    command.place = Place::Queued;
                    let is_lost = is_overtaken && !no_failure;
                    command.overtaken = command.overtaken.saturating_add(is_lost.into());
                    command.since = command.since.filter(|_| !no_failure);
                    let sent_for = now.saturating_sub(command.since.unwrap_or(now));
                    self.needs_leader |= sent_for >= self.settings.ask_after;
                    queue.again.insert(command.age, index);
                    queue.add(command);
                }
            }
            self.values[slot as usize].commands = commands;
            self.close(slot);
        }
    }

    /// When [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines
            .peek()
            .map(|Reverse((deadline, ..))| *deadline)
    }

    /// Whether the control plane should be asked who leads; until
    /// [`leader_changed`](Self::leader_changed).
    pub fn needs_leader(&self) -> bool {
        self.needs_leader
    }

    /// Commands not yet answered, queued ones included.
    pub fn outstanding(&self) -> usize {
        self.index.len()
    }

    /// Values in flight, of all partitions.
    pub fn open_values(&self) -> usize {
        self.queues.iter().map(|q| q.open_values).sum()
    }

    /// Sets when a value is sent again.
    fn arm(&mut self, slot: u32, deadline: Time) {
        let value = &mut self.values[slot as usize];
        value.deadline = deadline;
        self.deadlines.push(Reverse((deadline, slot, value.number)));
        self.drop_void_deadlines();
        // Void entries behind one that counts must not pile up while values come and go.
        if self.deadlines.len() > 2 * self.values.len() + 64 {
            let values = &self.values;
            self.deadlines
                .retain(|Reverse(entry)| is_armed(values, *entry));
        }
    }

    /// Keeps an entry that counts on top, so that [`next_deadline`](Self::next_deadline) is exact.
    fn drop_void_deadlines(&mut self) {
        while let Some(&Reverse(entry)) = self.deadlines.peek() {
            if is_armed(&self.values, entry) {
                break;
            }
            self.deadlines.pop();
        }
    }
}

/// The oldest of this one's session that waits for another one.
fn oldest_held(held: &BTreeSet<Key>, (pid, client, _): Key) -> Option<Key> {
    let of_session = (pid, client, 0)..=(pid, client, u64::MAX);
    held.range(of_session).next().copied()
}

/// Whether a (deadline, slot, number) is an open value's.
fn is_armed(values: &[Value], (deadline, slot, number): (Time, u32, u64)) -> bool {
    let value = &values[slot as usize];
    value.number == number && value.deadline == deadline
}

/// A hasher without a random seed. Only commands of this proposer's own sessions are ever inserted
/// and the maps are never walked, so neither flooding nor order is a concern.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u16(&mut self, n: u16) {
        self.write_u64(u64::from(n));
    }

    fn write_u64(&mut self, n: u64) {
        let mixed = (self.0.rotate_left(5) ^ n).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn finish(&self) -> u64 {
        self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}
