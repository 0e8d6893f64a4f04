// SPDX-License-Identifier: Apache-2.0
//! The receiver: delivers the sequencer's requests in order, and says which of them were lost
//! (libOUM, section 3 of the paper; docs/protocol/nopaxos.md).
//!
//! ```text
//! listen(session, sequencer, slot)   take(packet) ...   next() -> Message    and so on, by slot
//!                                                              -> Dropped    skip(), or wait
//!                                    terminate(later)          -> Terminated until listen()
//! ```
//!
//! The paper's receiver ends its session when it gets a packet of a later one. Anybody can send
//! such a packet, so here it is only a hint ([`Receiver::later`]): the receiver's owner asks the
//! control plane.

use std::ops::Range;

use crate::ring::Ring;
use crate::{
    Deployment, Epoch, Flags, Header, Instance, MsgType, NodeId, Packet, PartitionId, Reason, Time,
    Verdict,
};

// ---- Types

/// The settings of a receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct ReceiverSettings {
    /// The deployment that the receiver serves.
    pub deployment: Deployment,
    /// The receiver's partition.
    pub pid: PartitionId,
    /// How many slots may wait for earlier ones.
    pub slots: usize,
    /// The time that a missing slot is waited for after a later one has come, since packets may
    /// overtake each other.
    pub reorder_wait: Time,
}

/// The next thing that a receiver delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery<'a> {
    /// The next slot's message.
    Message(Message<'a>),
    /// The next slot's message was lost, as far as is known. This is said again until the message
    /// comes, or [`Receiver::skip`] passes over the slot.
    Dropped(Instance),
    /// This later session has begun. This is said again until [`Receiver::listen`].
    Terminated(Epoch),
}

/// One ordered message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// The message's slot.
    pub slot: Instance,
    /// The flags that describe the value.
    pub flags: Flags,
    /// The session, as sent.
    pub client: u64,
    /// The request number, as sent.
    pub request: u64,
    /// The value, as sent.
    pub value: &'a [u8],
}

// ---- State

/// A receiver of one partition.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Receiver {
    settings: ReceiverSettings,
    listening: Listening,
    /// The slot that is delivered next.
    next: Instance,
    /// 1 + the largest slot that has come; `next` if none has.
    end: Instance,
    /// The latest session of any packet that came.
    later: Epoch,
    /// True if a packet has come after a later one.
    overtaken: bool,
    ring: Ring,
    slots: Vec<Slot>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
enum Listening {
    /// The receiver listens to the session with this number, whose packets come from this
    /// sequencer.
    To(Epoch, NodeId),
    /// The receiver listens to no session, since this later one has begun.
    Terminated(Epoch),
    /// The receiver hasn't listened to any session yet.
    Never,
}

/// A slot. Only slots from `next` to `end` mean anything.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
struct Slot {
    has_come: bool,
    /// The time at which a later slot came first.
    missed_at: Time,
    flags: Flags,
    client: u64,
    request: u64,
    value: Vec<u8>,
}

/// The memory in bytes that a slot of a receiver takes, besides its value.
pub const SLOT_BYTES: usize = size_of::<Slot>();

impl Receiver {
    /// Returns a receiver that listens to nothing yet.
    ///
    /// # Panics
    /// If there are no slots.
    pub fn new(settings: ReceiverSettings) -> Receiver {
        Receiver {
            settings,
            listening: Listening::Never,
            next: 0,
            end: 0,
            later: 0,
            overtaken: false,
            ring: Ring::new(settings.slots),
            slots: vec![Slot::default(); settings.slots],
        }
    }

    /// Listens to a session from a slot on, whatever the receiver did before. `sequencer` is the
    /// node that stamps in it.
    pub fn listen(&mut self, session: Epoch, sequencer: NodeId, slot: Instance) {
        self.listening = Listening::To(session, sequencer);
        self.next = slot;
        self.end = slot;
    }

    /// Ends the present session, if a later one has begun according to the control plane. Packets
    /// that weren't delivered are forgotten, since nobody knows what else that session stamped.
    /// [O-LATER]
    pub fn terminate(&mut self, later: Epoch) {
        let known = match self.listening {
            Listening::To(session, _) | Listening::Terminated(session) => session,
            Listening::Never => 0,
        };
        if later > known {
            self.listening = Listening::Terminated(later);
            self.end = self.next;
        }
    }

    /// Returns the slot that is delivered next.
    pub fn position(&self) -> Instance {
        self.next
    }

    /// Returns a later session of some packet, if there was one: a reason to ask the control plane.
    /// [O-LATER]
    pub fn later(&self) -> Option<Epoch> {
        match self.listening {
            Listening::To(session, _) => (self.later > session).then_some(self.later),
            Listening::Terminated(_) | Listening::Never => None,
        }
    }

    // ---- Handlers, named and ordered as in programs/xdp/receiver.bpf.c

    /// Takes one packet, and returns what became of it.
    pub fn take(&mut self, now: Time, packet: &Packet<'_>) -> Verdict {
        match self.handle(now, packet) {
            Ok(()) => Verdict::Changed,
            Err(reason) => Verdict::Dropped(reason),
        }
    }

    /// Checks a packet of the present session and keeps it, once. [O-ONCE] [O-SENDER]
    fn handle(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), Reason> {
        let h = &packet.header;
        self.settings.deployment.check(packet)?;
        if h.msgtype != MsgType::Ordered {
            return Err(Reason::NotForRole);
        }
        if h.pid != self.settings.pid {
            return Err(Reason::UnknownPartition);
        }
        if !h.rnd.is_base() || !h.vrnd.is_none() {
            return Err(Reason::BadRound);
        }
        self.session(h)?;
        self.within_window(h.inst)?;
        self.hold(now, packet)
    }

    /// Refuses a packet of another session than the present one, or of another sequencer.
    fn session(&mut self, h: &Header) -> Result<(), Reason> {
        let Listening::To(session, sequencer) = self.listening else {
            return Err(Reason::OldSession);
        };
        if h.rnd.epoch() != session {
            self.later = self.later.max(h.rnd.epoch());
            return Err(Reason::OldSession);
        }
        if h.swid != sequencer {
            return Err(Reason::UnknownSender);
        }
        Ok(())
    }

    fn within_window(&mut self, inst: Instance) -> Result<(), Reason> {
        let Some(ahead) = inst.checked_sub(self.next) else {
            self.overtaken = true;
            return Err(Reason::Stale);
        };
        // The slot behind this one must have a number, too.
        if ahead >= self.ring.slots() || inst == Instance::MAX {
            return Err(Reason::Window);
        }
        Ok(())
    }

    /// Keeps a packet until it is delivered, or refuses it if its slot has come before.
    fn hold(&mut self, now: Time, packet: &Packet<'_>) -> Result<(), Reason> {
        let h = &packet.header;
        if h.inst < self.end && self.slot(h.inst).has_come {
            return Err(Reason::Duplicate);
        }
        self.overtaken |= h.inst < self.end;
        self.miss_up_to(now, h.inst);
        let slot = self.slot_mut(h.inst);
        slot.has_come = true;
        slot.flags = h.flags.of_value();
        slot.client = h.client;
        slot.request = h.request;
        slot.value.clear();
        slot.value.extend_from_slice(packet.value);
        Ok(())
    }

    /// Returns the next delivery, or `None` if there is none yet. A message is delivered once.
    /// [O-ONCE] [O-WAIT]
    pub fn next(&mut self, now: Time) -> Option<Delivery<'_>> {
        match self.listening {
            Listening::Never => return None,
            Listening::Terminated(later) => return Some(Delivery::Terminated(later)),
            Listening::To(..) => {}
        }
        let slot = self.next;
        if slot == self.end {
            return None;
        }
        if !self.slot(slot).has_come {
            let is_due = self.is_due(now, slot);
            return is_due.then_some(Delivery::Dropped(slot));
        }
        self.next += 1;
        let held = self.slot(slot);
        Some(Delivery::Message(Message {
            slot,
            flags: held.flags,
            client: held.client,
            request: held.request,
            value: &held.value,
        }))
    }

    /// Passes over the next slot, if it is missing. A packet that still comes for it is dropped.
    pub fn skip(&mut self) {
        if self.next < self.end && !self.slot(self.next).has_come {
            self.next += 1;
        }
    }

    /// Passes over everything below `slot`, which the owner has from elsewhere. [O-ONCE]
    pub fn skip_to(&mut self, slot: Instance) {
        self.next = self.next.max(slot);
        self.end = self.end.max(self.next);
    }

    /// Returns the missing slots that were waited for long enough, at most `most` of them, so that
    /// all can be asked for at once. [O-WAIT]
    pub fn missing(&self, now: Time, most: usize) -> Vec<Range<Instance>> {
        let mut ranges: Vec<Range<Instance>> = Vec::new();
        let missing = |slot: &Instance| !self.slot(*slot).has_come && self.is_due(now, *slot);
        for slot in (self.next..self.end).filter(missing).take(most) {
            match ranges.last_mut() {
                Some(last) if last.end == slot => last.end += 1,
                _ => ranges.push(slot..slot + 1),
            }
        }
        ranges
    }

    /// Returns when [`Receiver::next`] will say that a slot was lost, if it doesn't come.
    pub fn next_deadline(&self) -> Option<Time> {
        let listens = matches!(self.listening, Listening::To(..));
        let waits = listens && self.next < self.end && !self.slot(self.next).has_come;
        waits.then(|| self.due_at(self.next))
    }

    /// Returns when the next missing slot is due that wasn't due at `looked`.
    pub fn missing_deadline(&self, looked: Time) -> Option<Time> {
        self.next_deadline()?;
        let missing = (self.next..self.end).filter(|slot| !self.slot(*slot).has_come);
        let due = missing.map(|slot| self.due_at(slot));
        due.filter(|due| *due > looked).min()
    }

    /// Returns true if a packet has come after a later one, or twice, since the last call.
    pub fn take_overtaken(&mut self) -> bool {
        std::mem::take(&mut self.overtaken)
    }

    /// Sets how long a missing slot is waited for from now on.
    pub fn set_reorder_wait(&mut self, time: Time) {
        self.settings.reorder_wait = time;
    }

    // ---- Helpers

    /// Marks the slots before `inst` that haven't come as missing since now.
    fn miss_up_to(&mut self, now: Time, inst: Instance) {
        for missed in self.end..inst {
            let slot = self.slot_mut(missed);
            slot.has_come = false;
            slot.missed_at = now;
        }
        self.end = self.end.max(inst + 1);
    }

    fn is_due(&self, now: Time, slot: Instance) -> bool {
        now >= self.due_at(slot)
    }

    fn due_at(&self, slot: Instance) -> Time {
        self.slot(slot)
            .missed_at
            .saturating_add(self.settings.reorder_wait)
    }

    fn slot(&self, inst: Instance) -> &Slot {
        &self.slots[self.ring.index(0, inst)]
    }

    fn slot_mut(&mut self, inst: Instance) -> &mut Slot {
        let index = self.ring.index(0, inst);
        &mut self.slots[index]
    }
}
