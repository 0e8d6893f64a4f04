// SPDX-License-Identifier: Apache-2.0
//! The storage of a durable replica, and its restart (docs/protocol/nopaxos-replicas.md).
//!
//! A replica stores its changes and not the packets that made them: first entries, and then how far
//! the log reaches, or all but the entries if more than the reach has changed. So every part of the
//! storage can be written again by itself, and the files that held it before can go. [N-STORED]
//!
//! ```text
//! entry   inst u64, stamp u32, client u64, request u64, flags u16, len u16, value
//! reach   entries u32, floor u64, next u64, stable u64
//! change  entries u32, head
//! head    magic "WPNR", version u16
//!         cluster u32, group u16, node u16, partitions u16, partition u16, max_value u16,
//!         slots u64, nonce u64
//!         floor u64, next u64, stable u64
//!         view u32, last normal view u32, status u8, in conflict u8
//!         START_VIEW u8 { origin u32, end u64, len u16, value }
//!         sessions u16 { number u32, sequencer u16, nonce u64, f u8, lead u16, stage u8, by u32,
//!                        anew u8 { u64 }, members u8 { node u16, nonce u64 } }
//! ```
//!
//! Entries count only together with the reach or the change behind them, which says how many they
//! are. A view change that replaces many entries therefore takes effect at once, however many
//! pieces it is written in. [W-UNTOUCHED]
//!
//! The words of other members in a view, and entries fetched for a view, aren't stored: the replica
//! asks for them again. Until then it knows less, and never more, than it had shown.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use super::log::{Entry, OwnedEntry};
use super::replica::{Duty, Peer, Replica, ReplicaSettings, Status};
use super::session::Sessions;
use super::view_change::Begun;
use crate::acceptor::Start;
use crate::reader::Reader;
use crate::{Deployment, Flags, Instance, Outbox, PartitionId, Round, Time};

const MAGIC: [u8; 4] = *b"WPNR";
const VERSION: u16 = 1;

/// The extent of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Reach {
    floor: Instance,
    next: Instance,
    stable: Instance,
}

impl Reach {
    fn save(self, out: &mut Vec<u8>) {
        for inst in [self.floor, self.next, self.stable] {
            out.extend_from_slice(&inst.to_be_bytes());
        }
    }

    fn load(r: &mut Reader<'_>) -> Result<Reach, &'static str> {
        Ok(Reach {
            floor: r.u64()?,
            next: r.u64()?,
            stable: r.u64()?,
        })
    }
}

/// The last stored state without the entries. It is no part of the replica's state: replicas that
/// differ only in it are equal.
#[derive(Clone, Debug, Default)]
pub(super) struct LastStored {
    is_kept: bool,
    reach: Reach,
    rest: Vec<u8>,
}

impl PartialEq for LastStored {
    fn eq(&self, _: &LastStored) -> bool {
        true
    }
}

impl Eq for LastStored {}

impl Hash for LastStored {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// The changes since the last storing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unstored {
    /// The slots whose entries must be stored first.
    pub slots: Vec<Instance>,
    reach: Reach,
    /// Everything but the entries, if more than the reach has changed.
    rest: Option<Vec<u8>>,
}

/// The form in which [`Unstored::save`] wrote the changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Saved {
    /// A reach.
    Reach,
    /// A change.
    Change,
}

impl Replica {
    /// Begins to keep account of changes for [`Replica::unstored`], since this memory is stored as
    /// this start of it.
    pub fn keep(&mut self, start: Start) {
        self.start = Some(start);
        self.log.note_written();
        self.last_stored = LastStored {
            is_kept: true,
            reach: self.reach(),
            rest: self.rest(),
        };
    }

    /// Returns the changes since [`Replica::has_stored`], which must be on disk before any packet
    /// leaves that shows them. A replica that isn't [kept](Replica::keep) has none. [N-STORED]
    pub fn unstored(&self) -> Option<Unstored> {
        if !self.last_stored.is_kept {
            return None;
        }
        let slots: Vec<Instance> = self.log.written().collect();
        let (reach, rest) = (self.reach(), self.rest());
        let rest = (rest != self.last_stored.rest).then_some(rest);
        let is_new = !slots.is_empty() || reach != self.last_stored.reach || rest.is_some();
        is_new.then_some(Unstored { slots, reach, rest })
    }

    /// Notes that these changes are being stored, before any later ones.
    pub fn has_stored(&mut self, unstored: Unstored) {
        self.log.note_written();
        self.last_stored.reach = unstored.reach;
        if let Some(rest) = unstored.rest {
            self.last_stored.rest = rest;
        }
    }

    /// Appends an entry of the log, or nothing if there is none.
    pub fn save_entry(&self, inst: Instance, out: &mut Vec<u8>) {
        let Some(entry) = self.log.get(inst) else {
            return;
        };
        out.extend_from_slice(&inst.to_be_bytes());
        out.extend_from_slice(&entry.stamp.0.to_be_bytes());
        out.extend_from_slice(&entry.client.to_be_bytes());
        out.extend_from_slice(&entry.request.to_be_bytes());
        out.extend_from_slice(&entry.flags.0.to_be_bytes());
        out.extend_from_slice(&(entry.value.len() as u16).to_be_bytes());
        out.extend_from_slice(entry.value);
    }

    /// Appends all but the entries, as it was stored last.
    pub fn save_stored_head(&self, out: &mut Vec<u8>) {
        self.save_head(self.last_stored.reach, &self.last_stored.rest, out);
    }

    fn save_head(&self, reach: Reach, rest: &[u8], out: &mut Vec<u8>) {
        let d = &self.settings.deployment;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&d.cluster.to_be_bytes());
        for small in [
            d.group,
            d.node,
            d.partitions,
            self.settings.pid,
            d.max_value,
        ] {
            out.extend_from_slice(&small.to_be_bytes());
        }
        out.extend_from_slice(&(self.settings.slots as u64).to_be_bytes());
        out.extend_from_slice(&self.settings.nonce.to_be_bytes());
        reach.save(out);
        out.extend_from_slice(rest);
    }

    fn reach(&self) -> Reach {
        Reach {
            floor: self.log.floor(),
            next: self.log.next(),
            stable: self.stable,
        }
    }

    fn rest(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.view.0.to_be_bytes());
        out.extend_from_slice(&self.last_normal.0.to_be_bytes());
        out.push(match self.status {
            Status::Normal => 0,
            Status::ViewChange => 1,
            Status::Stranger => 2,
        });
        out.push(self.in_conflict.into());
        out.push(self.begun.is_some().into());
        if let Some(begun) = &self.begun {
            begun.save(&mut out);
        }
        self.sessions.save(&mut out);
        out
    }

    /// Ends muteness, once the controller has compared what this start shows, and sends the
    /// messages of a view change again. Returns true if that changed anything; refused if it names
    /// another memory or another start of it. [N-RESTART]
    pub fn resume(
        &mut self,
        now: Time,
        nonce: u64,
        start: Start,
        out: &mut impl Outbox,
    ) -> Result<bool, &'static str> {
        if nonce != self.settings.nonce {
            return Err("another boot nonce is let go on");
        }
        if Some(start) != self.start {
            return Err("another start of this memory is let go on");
        }
        let was_mute = std::mem::replace(&mut self.mute, false);
        if was_mute {
            self.duty.heard = now;
            if self.status == Status::ViewChange {
                self.begin_again(now, out);
            }
        }
        Ok(was_mute)
    }
}

impl Unstored {
    /// Appends the changes that are to be stored behind the entries of `replica`, and returns their
    /// form.
    pub fn save(&self, replica: &Replica, out: &mut Vec<u8>) -> Saved {
        out.extend_from_slice(&(self.slots.len() as u32).to_be_bytes());
        match &self.rest {
            None => {
                self.reach.save(out);
                Saved::Reach
            }
            Some(rest) => {
                replica.save_head(self.reach, rest, out);
                Saved::Change
            }
        }
    }
}

// ---- Reading

/// A replica's memory, as it is read record by record.
pub struct Loaded {
    deployment: Deployment,
    pid: PartitionId,
    slots: usize,
    head: Option<Head>,
    entries: BTreeMap<Instance, OwnedEntry>,
    /// Entries that don't count yet.
    pending: Vec<(Instance, OwnedEntry)>,
}

/// Everything in a memory but its entries.
struct Head {
    nonce: u64,
    reach: Reach,
    rest: Vec<u8>,
}

impl Loaded {
    /// Returns an empty memory of a replica whose log has this many slots.
    pub fn new(deployment: Deployment, pid: PartitionId, slots: usize) -> Loaded {
        Loaded {
            deployment,
            pid,
            slots,
            head: None,
            entries: BTreeMap::new(),
            pending: Vec::new(),
        }
    }

    /// Takes what [`Replica::save_stored_head`] wrote: the first known head, or one that equals the
    /// known one.
    pub fn head(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        let head = self.parse_head(bytes)?;
        let Some(known) = &self.head else {
            self.head = Some(head);
            return Ok(());
        };
        let what = |head: &Head| (head.nonce, head.reach);
        match what(known) == what(&head) && known.rest == head.rest {
            true => Ok(()),
            false => Err("what is said of the whole memory differs"),
        }
    }

    /// Takes an entry that [`Replica::save_entry`] wrote when it was new. It counts from the next
    /// reach or change on.
    pub fn entry(&mut self, bytes: &[u8]) -> Result<Instance, &'static str> {
        let (inst, slot) = self.parse_entry(bytes)?;
        self.pending.push((inst, slot));
        Ok(inst)
    }

    /// Takes an entry that [`Replica::save_entry`] wrote again although it counted already.
    pub fn entry_again(&mut self, bytes: &[u8]) -> Result<Instance, &'static str> {
        let (inst, slot) = self.parse_entry(bytes)?;
        self.entries.insert(inst, slot);
        Ok(inst)
    }

    /// Takes what [`Unstored::save`] wrote.
    pub fn commit(&mut self, saved: Saved, bytes: &[u8]) -> Result<(), &'static str> {
        let mut r = Reader(bytes);
        let entries = r.u32()? as usize;
        match saved {
            Saved::Change => {
                let head = self.parse_head(r.0)?;
                let known = self.head.as_ref().ok_or("it has no beginning")?;
                if known.nonce != head.nonce {
                    return Err("it is of two memories");
                }
                self.head = Some(head);
            }
            Saved::Reach => {
                let reach = Reach::load(&mut r)?;
                r.ends()?;
                self.head.as_mut().ok_or("it has no beginning")?.reach = reach;
            }
        }
        // Earlier pending entries were left by a process that ended before it wrote the rest.
        let left = self.pending.len().saturating_sub(entries);
        self.entries.extend(self.pending.drain(..).skip(left));
        let reach = self
            .head
            .as_ref()
            .map_or(Reach::default(), |head| head.reach);
        if self
            .entries
            .keys()
            .next()
            .is_some_and(|first| *first < reach.floor)
        {
            self.entries = self.entries.split_off(&reach.floor);
        }
        if self
            .entries
            .keys()
            .next_back()
            .is_some_and(|last| *last >= reach.next)
        {
            self.entries.split_off(&reach.next);
        }
        Ok(())
    }

    /// Returns the boot nonce of the memory, or `None` if there is none.
    pub fn nonce(&self) -> Option<u64> {
        self.head.as_ref().map(|head| head.nonce)
    }

    /// Returns the stored replica, [kept](Replica::keep) at another `start` and mute until it may
    /// [go on](Replica::resume), or `None` if nothing was stored. Refused if no replica can have
    /// stored these records. [N-RESTART]
    pub fn into_replica(
        self,
        settings: ReplicaSettings,
        start: Start,
    ) -> Result<Option<Replica>, &'static str> {
        let Some(head) = self.head else {
            return Ok(None);
        };
        if head.nonce != settings.nonce {
            return Err("it is of another memory of this replica");
        }
        let reach = head.reach;
        let is_possible = reach.floor <= reach.stable
            && reach.stable <= reach.next
            && reach.next - reach.floor <= settings.slots as u64;
        if !is_possible {
            return Err("it reaches to where no log does");
        }
        let mut replica = Replica::new(settings, reach.floor);
        for inst in reach.floor..reach.next {
            let entry = self.entries.get(&inst).ok_or("entries are missing")?;
            let _has_room = replica.log.push(&entry.entry());
        }
        replica.load_rest(&head.rest)?;
        replica.stable = reach.stable;
        replica.go_on_from(reach.stable);
        replica.mute = true;
        replica.keep(start);
        Ok(Some(replica))
    }

    fn parse_head(&self, bytes: &[u8]) -> Result<Head, &'static str> {
        let mut r = Reader(bytes);
        if r.array()? != MAGIC {
            return Err("this is no saved replica");
        }
        if r.u16()? != VERSION {
            return Err("saved by another version");
        }
        let d = &self.deployment;
        let (cluster, group, node) = (r.u32()?, r.u16()?, r.u16()?);
        if (cluster, node) != (d.cluster, d.node) {
            return Err("saved by another node, or in another cluster");
        }
        if group != d.group {
            return Err("saved for another group");
        }
        if r.u16()? != d.partitions {
            return Err("saved with another number of partitions");
        }
        if r.u16()? != self.pid {
            return Err("saved for another partition");
        }
        if r.u16()? != d.max_value {
            return Err("saved with another maximum value");
        }
        if r.u64()? != self.slots as u64 {
            return Err("saved with another number of slots");
        }
        let nonce = r.u64()?;
        if nonce == 0 {
            return Err("the boot nonce is 0");
        }
        Ok(Head {
            nonce,
            reach: Reach::load(&mut r)?,
            rest: r.0.to_vec(),
        })
    }

    fn parse_entry(&self, bytes: &[u8]) -> Result<(Instance, OwnedEntry), &'static str> {
        let mut r = Reader(bytes);
        let inst = r.u64()?;
        let mut entry = Entry {
            stamp: Round(r.u32()?),
            client: r.u64()?,
            request: r.u64()?,
            flags: Flags(r.u16()?),
            value: &[],
        };
        let len = r.u16()?;
        entry.value = r.take(len.into())?;
        r.ends()?;
        if !entry.stamp.is_base() {
            return Err("an entry was stamped in no session");
        }
        if len > self.deployment.max_value || entry.flags != entry.flags.of_value() {
            return Err("an entry's value is too large or has flags of no value");
        }
        Ok((inst, OwnedEntry::of(&entry)))
    }
}

impl Replica {
    fn load_rest(&mut self, rest: &[u8]) -> Result<(), &'static str> {
        let mut r = Reader(rest);
        self.view = Round(r.u32()?);
        self.last_normal = Round(r.u32()?);
        self.status = match r.u8()? {
            0 => Status::Normal,
            1 => Status::ViewChange,
            2 => Status::Stranger,
            _ => return Err("its status is none"),
        };
        self.in_conflict = r.flag()?;
        self.begun = match r.flag()? {
            true => Some(Begun::load(&mut r)?),
            false => None,
        };
        self.sessions = Sessions::load(&mut r)?;
        r.ends()?;
        let is_normal = self.status == Status::Normal;
        if self.last_normal > self.view || is_normal && self.last_normal != self.view {
            return Err("its last normal view is a later one than its view");
        }
        Ok(())
    }

    /// Asks other members anew for what they have, and tells clients again of slots that aren't
    /// stable.
    fn go_on_from(&mut self, stable: Instance) {
        self.acknowledge_from(stable);
        let members = self.session().map_or(0, |s| s.members.len());
        self.duty = Duty {
            peers: vec![Peer::default(); members],
            prepared: stable,
            told_stable: stable,
            agreed: stable,
            open_gap: self.log.noop_from(stable),
            ..Duty::default()
        };
    }
}
