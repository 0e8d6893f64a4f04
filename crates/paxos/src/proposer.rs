// SPDX-License-Identifier: Apache-2.0
//! The proposer: gets commands into the log (docs/protocol/proposer.md).
//!
//! Commands are queued by [`Proposer::submit`] and leave with [`Proposer::flush`], several of them
//! packed into one REQUEST if they fit. A command is outstanding until it is answered, and until
//! then it is sent again. It always keeps its own (client, request), so that replicas recognise it
//! however often it gets into the log. A command that is sent again is packed anew, since its
//! identity doesn't depend on the value that carried it, and answered neighbours must not travel
//! again. [P-AGAIN]
//!
//! In an ordered session a command takes no effect if an earlier one was lost. The later one is
//! held until the earlier one is answered, and has no deadline meanwhile, since only the earlier
//! one is lost. [P-EARLY]
//!
//! At most `max_open_values` values of a partition are in flight, and only two of them may be less
//! than half full. Further commands wait in the queue and leave together when a value is done: an
//! idle proposer sends at once, a loaded one packs. Without this limit, answers that come in small
//! portions would be followed by small values for ever, above all with many partitions.
//!
//! Values that leave together have one size, as far as the commands allow it. A kernel passes on
//! datagrams of one size to one address as if they were one, at each role on the way and whatever
//! their partitions.

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

/// The status byte that says that an earlier request of the ordered session is missing. One byte of
/// status precedes an application's answer, but this one is no answer: the command took no effect,
/// and is sent again once the earlier one is through.
pub const STATUS_OUT_OF_ORDER: u8 = 3;

/// The status byte that says that a command over several partitions takes no effect at the places
/// of one vector. The round (u32) and instance (u64) of that vector in the lowest partition follow.
/// It is no answer either: the command is sent again at once, for another vector.
pub const STATUS_DEAD: u8 = 8;

/// The place of a vector in its lowest partition, as (round, instance); a later vector's place is
/// larger.
type VectorPlace = (u32, u64);

/// Reads the place that follows [`STATUS_DEAD`].
fn dead_place(place: &[u8]) -> Option<VectorPlace> {
    let place: &[u8; 12] = place.try_into().ok()?;
    let (round, inst) = place.split_first_chunk()?;
    Some((
        u32::from_be_bytes(*round),
        u64::from_be_bytes(inst.try_into().ok()?),
    ))
}

/// The most values of a partition in flight that are less than half full.
const MAX_SMALL: usize = 2;

/// How many of an ordered session's held commands leave after each answer in that session.
const FOLLOWERS: usize = 2;

/// A full window opens again soon, so the proposer waits this fraction of `retry_after` for it.
const WINDOW_WAIT_DIVISOR: Time = 8;

/// The settings of a proposer.
#[derive(Clone, Copy, Debug)]
pub struct ProposerSettings {
    /// The deployment in which the proposer proposes; a client's `node` is 0.
    pub deployment: Deployment,
    /// How long the proposer waits for an answer before any answer has shown how long that takes.
    pub retry_after: Time,
    /// How long a command is sent in vain before [`Proposer::needs_leader`] is set.
    pub ask_after: Time,
    /// A random number of this proposer alone, never 0, which names its packed values and seeds its
    /// jitter.
    pub nonce: u64,
    /// The most values of one partition in flight.
    pub max_open_values: usize,
}

/// The reason why a command can't be submitted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The command doesn't fit a value.
    TooLarge {
        /// The number of bytes that fit.
        max: usize,
    },
    /// The command's (client, request) is still outstanding in that partition.
    Outstanding,
    /// The partition doesn't exist, the partitions aren't strictly ascending or are too many, or
    /// the client is 0.
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

/// The identity of an outstanding command. The partition belongs to it, since each partition gives
/// out its own session ids.
type Key = (PartitionId, u64, u64);

/// A slot of the command slab. Free slots keep their buffers.
#[derive(Default, Debug)]
struct Command {
    pid: PartitionId,
    client: u64,
    request: u64,
    multi: bool,
    /// A count of all commands, in the order in which they were submitted.
    age: u64,
    /// The last vector of this command that is known to be dead.
    dead: VectorPlace,
    was_sent: bool,
    /// True if the command was sent before it left in its current value.
    is_copy: bool,
    /// How many times the command was sent again because later values were answered first.
    overtaken: u32,
    /// The number of the last value in which the command left before it was first overtaken.
    first: u64,
    /// The time at which the command was first sent to this leader, or at which this leader was
    /// named again; none before that.
    since: Option<Time>,
    state: CommandState,
    bytes: Vec<u8>,
}

/// The state of a command: queued, in flight, held, or done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum CommandState {
    #[default]
    Free,
    Queued,
    /// The command was answered while it was queued for a retry; the queue drops it when its turn
    /// comes.
    Answered,
    /// The command is in flight, in the value in this slot.
    Sent(u32),
    /// The command waits, because it takes no effect before an earlier one of its session that is
    /// still outstanding. [P-EARLY]
    Held,
}

/// A value in flight, or a free slot that keeps its buffer.
#[derive(Default, Debug)]
struct Value {
    pid: PartitionId,
    /// The number of the value; 0 = the slot is free. It also tells apart the uses of a slot.
    number: u64,
    packed: bool,
    /// The number of its commands that aren't answered.
    open: usize,
    commands: Vec<u32>,
    sent_at: Time,
    /// How often the command in it that was overtaken most was sent again for that.
    overtaken: u32,
    /// When this value is answered, values with lower numbers than this one are lost. It is the
    /// value's own number, or that of an earlier value whose answer may be mistaken for this one's,
    /// because a command in it was overtaken there.
    overtakes: u64,
    /// True if a command in it that was sent only once is answered, so that its round trip is
    /// certain.
    is_sampled: bool,
    deadline: Time,
    /// True if the value was refused because a window was full, or if its vector died. That is a
    /// sign of life and no failure.
    no_failure: bool,
    /// True if a value that was sent later is answered.
    is_overtaken: bool,
}

/// One partition's commands that wait to be sent, and its values in flight.
#[derive(Default, Debug)]
struct Queue {
    /// Commands that have left or were held before, by age. Within a session they are older than
    /// all commands in `commands`.
    again: BTreeMap<u64, u32>,
    commands: VecDeque<u32>,
    /// The bytes that the unanswered queued commands take in a packed value.
    bytes: usize,
    open_values: usize,
    /// The numbers of the values in flight that are less than half full. They no longer count once
    /// a later value is answered, since a lost value must not hold up the others.
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

/// A proposer, which sends commands to the leader until they are answered.
#[derive(Debug)]
pub struct Proposer {
    settings: ProposerSettings,
    packing: bool,
    backoff: Backoff,
    needs_leader: bool,
    /// The node that was taken for the leader has said that it isn't the leader.
    is_refused: bool,
    commands: Vec<Command>,
    free_commands: Vec<u32>,
    index: HashMap<Key, u32, BuildHasherDefault<KeyHasher>>,
    values: Vec<Value>,
    free_values: Vec<u32>,
    /// The packed values in flight by number, for a REJECT, which names the value.
    packs: HashMap<u64, u32, BuildHasherDefault<KeyHasher>>,
    last_number: u64,
    last_age: u64,
    queues: Vec<Queue>,
    /// Commands that wait for an earlier one of their ordered session, which is in flight or
    /// queued.
    held: BTreeSet<Key>,
    /// The deadlines as (deadline, slot, number). Entries that match no open value's deadline are
    /// void.
    deadlines: BinaryHeap<Reverse<(Time, u32, u64)>>,
    scratch: Vec<u8>,
    due: Vec<(u64, u32)>,
}

impl Proposer {
    /// Returns a proposer with nothing outstanding.
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

    /// Puts only one command into each value, for programs that get commands by instance.
    pub fn without_packing(mut self) -> Proposer {
        self.packing = false;
        self
    }

    /// Queues a command; nothing is sent before [`flush`](Self::flush). `client` is the session (or
    /// the nonce of an OPEN), and never 0.
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

    /// Takes a slot for a command, queues it, and returns the slot.
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
        command.state = CommandState::Queued;
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

    /// Returns the size of each value in bytes, if all queued commands leave in as few values as
    /// possible and in equal ones.
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

    /// Returns true if a value of this size is less than half full and could take more commands.
    fn is_small(&self, bytes: usize) -> bool {
        self.packing && 2 * bytes < usize::from(self.settings.deployment.max_value)
    }

    /// Sends one value of queued commands, of at least `share` bytes if that many are queued.
    /// Returns false if no command is queued.
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
            command.state = CommandState::Sent(slot);
            command.since.get_or_insert(now);
            command.is_copy = std::mem::replace(&mut command.was_sent, true);
            value.overtaken = value.overtaken.max(command.overtaken);
            match command.overtaken {
                0 => command.first = value.number,
                // The answer may be to that earlier value. If it were taken for this one's, all
                // values between them would count as lost.
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

    /// Moves commands that go together from the front of the queue into a value: one
    /// multi-partition command, or others up to `share`, as far as they fit. Frees commands that
    /// were answered while they waited.
    fn gather(&mut self, pid: usize, slot: u32, share: usize) {
        let max = usize::from(self.settings.deployment.max_value);
        let queue = &mut self.queues[pid];
        let gathered = &mut self.values[slot as usize].commands;
        let mut packed_len = 0;
        while let Some(next) = queue.first() {
            let command = &mut self.commands[next as usize];
            if command.state == CommandState::Answered {
                command.state = CommandState::Free;
                self.free_commands.push(next);
                queue.pop();
                continue;
            }
            let key = (command.pid, command.client, command.request);
            if oldest_held(&self.held, key).is_some_and(|held| held < key) {
                (command.state, command.since) = (CommandState::Held, None);
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

    /// Forgets a command that is answered. Returns true the first time.
    pub fn answered(&mut self, now: Time, pid: PartitionId, client: u64, request: u64) -> bool {
        if let Some(command) = self.index.get(&(pid, client, request)) {
            let command = &self.commands[*command as usize];
            if let CommandState::Sent(slot) = command.state {
                self.learn_from_answer(now, slot, command.is_copy);
            }
        }
        self.reply(pid, client, request)
    }

    /// Holds a command (partition, client, request) that took no effect because an earlier one of
    /// its ordered session didn't, until the earlier one is answered. Returns false if the command
    /// isn't in flight or the earlier one isn't outstanding, since a late answer may be to an
    /// earlier copy. [P-EARLY]
    pub fn came_too_early(&mut self, now: Time, key: (PartitionId, u64, u64)) -> bool {
        let (pid, client, request) = key;
        let Some(&index) = self.index.get(&key) else {
            return false;
        };
        let before = (pid, client, request.wrapping_sub(1));
        let command = &self.commands[index as usize];
        let CommandState::Sent(slot) = command.state else {
            return false;
        };
        if !self.index.contains_key(&before) {
            return false;
        }
        self.learn_from_answer(now, slot, command.is_copy);
        self.held.insert(key);
        let command = &mut self.commands[index as usize];
        // The leader lives, and has passed the command on.
        (command.state, command.since, command.overtaken) = (CommandState::Held, None, 0);
        self.leave_value(slot);
        true
    }

    /// Queues the oldest held commands of a session, since something in it was answered. Only two
    /// leave for each answer, so that little is sent in vain if something is lost again. [P-EARLY]
    fn release_followers(&mut self, key: Key) {
        for _ in 0..FOLLOWERS {
            let Some(next) = oldest_held(&self.held, key) else {
                return;
            };
            self.held.remove(&next);
            let index = self.index[&next];
            let command = &mut self.commands[index as usize];
            command.state = CommandState::Queued;
            let queue = &mut self.queues[usize::from(next.0)];
            queue.again.insert(command.age, index);
            queue.add(command);
        }
    }

    /// Learns from the answer to a command in this value how long answers take, and which earlier
    /// values were lost. [P-OVERTAKEN]
    fn learn_from_answer(&mut self, now: Time, slot: u32, is_copy: bool) {
        let first = self.settings.retry_after;
        let value = &mut self.values[slot as usize];
        // The other commands in this value are answered at the same time.
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
            // The new deadline may also be later than the old one: other values are answered, so
            // time alone says little.
            if !value.no_failure || again_at < value.deadline {
                self.arm(slot, again_at);
            }
        }
    }

    /// Forgets a command for whose answer its caller no longer waits. Returns true the first time.
    pub fn reply(&mut self, pid: PartitionId, client: u64, request: u64) -> bool {
        let Some(slot) = self.index.remove(&(pid, client, request)) else {
            return false;
        };
        let command = &mut self.commands[slot as usize];
        let queue = &mut self.queues[usize::from(pid)];
        match command.state {
            CommandState::Queued => {
                command.state = CommandState::Answered;
                queue.take(command);
            }
            CommandState::Sent(value) => {
                command.state = CommandState::Free;
                self.free_commands.push(slot);
                self.leave_value(value);
            }
            CommandState::Held => {
                command.state = CommandState::Free;
                self.free_commands.push(slot);
                self.held.remove(&(pid, client, request));
                return true;
            }
            CommandState::Free | CommandState::Answered => {
                unreachable!("the index holds what is outstanding")
            }
        }
        if !self.held.is_empty() {
            self.release_followers((pid, client, request));
        }
        true
    }

    /// Notes that one of a value's commands is answered or held, and closes the value after its
    /// last one.
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

    /// Takes REPLY and REJECT, and calls `completed` with (client, request, status byte and answer)
    /// for each command that a REPLY ends. A malformed packet changes nothing. Commands for which
    /// replies made room leave with the next [`flush`](Self::flush).
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

    /// Takes one answer, and returns true if it changed anything.
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

    /// Sends a command (partition, client, request) again at the next [`tick`](Self::tick) if its
    /// vector is dead, once for each vector. `place` follows the status in the answer. Returns true
    /// if the command is sent again. [V-DEAD]
    pub fn vector_died(&mut self, now: Time, key: (PartitionId, u64, u64), place: &[u8]) -> bool {
        let (Some(place), Some(&index)) = (dead_place(place), self.index.get(&key)) else {
            return false;
        };
        let command = &mut self.commands[index as usize];
        let CommandState::Sent(slot) = command.state else {
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

    /// Returns the open value that a REJECT names: a packed one by its number, another by its
    /// command.
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
        match self.commands[command as usize].state {
            CommandState::Sent(slot) => Some(slot),
            _ => None,
        }
    }

    /// Sends again the values that have waited too long, and sends what is queued.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        let mut due = std::mem::take(&mut self.due);
        while let Some(&Reverse((deadline, slot, number))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            if is_armed(&self.values, (deadline, slot, number)) {
                due.push((number, slot));
                // A second entry with the same value and time must not count again.
                self.values[slot as usize].deadline = Time::MAX;
            }
        }
        due.sort_unstable();
        due.retain(|(_, slot)| self.leaves_again(now, *slot));
        self.requeue(now, &mut due);
        self.due = due;
        self.flush(now, out);
    }

    /// Returns true if a value that is due is sent again now; otherwise it waits on. [P-WAIT]
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

    /// Notes that the known leader was named again. If it has refused something, as a leader does
    /// before it is programmed, everything is sent again. If it was silent, it may only be slow and
    /// have the commands in its queue: they wait on, and the leader is asked for again after
    /// another `ask_after`. [P-WAIT]
    pub fn leader_confirmed(&mut self, now: Time, out: &mut impl Outbox) {
        if self.is_refused {
            return self.leader_changed(now, out);
        }
        for command in &mut self.commands {
            command.since = command.since.map(|_| now);
        }
        self.needs_leader = false;
    }

    /// Sends everything outstanding to a new leader at once, and starts all waiting times from the
    /// beginning.
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

    /// Takes values out of flight and puts their unanswered commands back in front of the queue, in
    /// the order in which they were submitted: a command of an ordered session that left before an
    /// older one would come too early. [P-AGAIN]
    fn requeue(&mut self, now: Time, due: &mut Vec<(u64, u32)>) {
        while let Some((_, slot)) = due.pop() {
            let commands = std::mem::take(&mut self.values[slot as usize].commands);
            let value = &self.values[slot as usize];
            let (no_failure, is_overtaken) = (value.no_failure, value.is_overtaken);
            let queue = &mut self.queues[usize::from(self.values[slot as usize].pid)];
            for &index in &commands {
                let command = &mut self.commands[index as usize];
                if command.state == CommandState::Sent(slot) {
                    command.state = CommandState::Queued;
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

    /// Returns when [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.deadlines
            .peek()
            .map(|Reverse((deadline, ..))| *deadline)
    }

    /// Returns true if the control plane should be asked who leads, until
    /// [`leader_changed`](Self::leader_changed) or [`leader_confirmed`](Self::leader_confirmed).
    pub fn needs_leader(&self) -> bool {
        self.needs_leader
    }

    /// Returns how many commands aren't answered yet, queued ones included.
    pub fn outstanding(&self) -> usize {
        self.index.len()
    }

    /// Returns how many values of all partitions are in flight.
    pub fn open_values(&self) -> usize {
        self.queues.iter().map(|q| q.open_values).sum()
    }

    /// Sets when a value is sent again.
    fn arm(&mut self, slot: u32, deadline: Time) {
        let value = &mut self.values[slot as usize];
        value.deadline = deadline;
        self.deadlines.push(Reverse((deadline, slot, value.number)));
        self.drop_void_deadlines();
        // Void entries behind a valid one must not pile up while values come and go.
        if self.deadlines.len() > 2 * self.values.len() + 64 {
            let values = &self.values;
            self.deadlines
                .retain(|Reverse(entry)| is_armed(values, *entry));
        }
    }

    /// Keeps a valid entry on top, so that [`next_deadline`](Self::next_deadline) is exact.
    fn drop_void_deadlines(&mut self) {
        while let Some(&Reverse(entry)) = self.deadlines.peek() {
            if is_armed(&self.values, entry) {
                break;
            }
            self.deadlines.pop();
        }
    }
}

/// Returns the oldest held command of this command's session.
fn oldest_held(held: &BTreeSet<Key>, (pid, client, _): Key) -> Option<Key> {
    let of_session = (pid, client, 0)..=(pid, client, u64::MAX);
    held.range(of_session).next().copied()
}

/// Returns true if (deadline, slot, number) is the deadline of an open value.
fn is_armed(values: &[Value], (deadline, slot, number): (Time, u32, u64)) -> bool {
    let value = &values[slot as usize];
    value.number == number && value.deadline == deadline
}

/// A hasher without a random seed. Only commands of this proposer's own sessions are ever inserted,
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
