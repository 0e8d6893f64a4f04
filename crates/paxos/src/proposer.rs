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

mod answers;
mod flight;
mod key_hasher;
mod retries;
mod values;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use self::flight::Flight;
use crate::backoff::Backoff;
use crate::wire::value::{PACKED_ITEM_HEADER_LEN, Vector};
use crate::{Deployment, Flags, MsgType, Outbox, Packet, PartitionId, Reason, Time, Verdict};
use key_hasher::KeyHasher;

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
}
