// SPDX-License-Identifier: Apache-2.0
//! An acceptor's memory as bytes, for an orderly stop and for snapshots of the durable log.
//!
//! Numbers are big-endian. Nothing below `trim` is written. There is no checksum: whoever stores
//! the bytes adds one.
//!
//! ```text
//! magic "WPAC", version u16
//! cluster u32, group u16, node u16, partitions u16, max_value u16, slots u64
//! nonce u64, start u64, told u16, told x start u64, epoch u32, g u8, replicas u8,
//! replicas x node u16
//! partitions x {
//!   floor u32, raiser u64, trim u64, end u64, replicas x report { incarnation u64, inst u64 },
//!   used slots u64,
//!   used x { inst u64, rnd u32, vrnd u32, client u64, request u64, flags u16, len u16, value }
//! }
//! ```

use super::{Acceptor, Partition, Slot, SlotView, Start, ToldStarts};
use crate::configuration::MAX_REPLICAS;
use crate::reader::Reader;
use crate::{
    Deployment, Epoch, Flags, Instance, NodeId, PartitionId, Round, TrimReport, TrimReports,
};

const MAGIC: [u8; 4] = *b"WPAC";
const VERSION: u16 = 5;

/// The membership that a saved memory begins with. Planes that keep an acceptor's memory elsewhere
/// save it in the same form: the membership, then each partition.
#[derive(Clone, Copy, Debug)]
pub struct Membership<'a> {
    /// The boot nonce.
    pub nonce: u64,
    /// The start of the memory that saves it.
    pub start: Start,
    /// The starts at which the memory was asked for an earlier one.
    pub told: &'a ToldStarts,
    /// The epoch that enabled the memory last; 0 = a stranger.
    pub epoch: Epoch,
    /// How many replicas may fail without stopping TRIM.
    pub g: u8,
    /// The epoch's replicas, in ascending order.
    pub replicas: &'a [NodeId],
}

impl Membership<'_> {
    /// Appends this beginning of a saved acceptor.
    pub fn save(&self, deployment: &Deployment, slots: u64, out: &mut Vec<u8>) {
        let d = deployment;
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&d.cluster.to_be_bytes());
        for small in [d.group, d.node, d.partitions, d.max_value] {
            out.extend_from_slice(&small.to_be_bytes());
        }
        out.extend_from_slice(&slots.to_be_bytes());
        out.extend_from_slice(&self.nonce.to_be_bytes());
        out.extend_from_slice(&self.start.number().to_be_bytes());
        out.extend_from_slice(&(self.told.all().len() as u16).to_be_bytes());
        for told in self.told.all() {
            out.extend_from_slice(&told.number().to_be_bytes());
        }
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.push(self.g);
        out.push(self.replicas.len() as u8);
        for replica in self.replicas {
            out.extend_from_slice(&replica.to_be_bytes());
        }
    }
}

/// A partition of a saved memory, without its slots.
#[derive(Clone, Copy, Debug)]
pub struct SavedPartition<'a> {
    /// The round promised for all instances.
    pub floor: Round,
    /// The nonce of the candidate that has the promise of that round; 0 = no candidate has.
    pub raiser: u64,
    /// The instance below which everything is forgotten.
    pub trim: Instance,
    /// 1 + the largest instance voted for.
    pub end: Instance,
    /// The report of each replica.
    pub reports: &'a [TrimReport],
}

impl SavedPartition<'_> {
    /// Appends the partition. `slots` hands over every slot in order; unused and forgotten slots
    /// are left out.
    pub fn save(&self, out: &mut Vec<u8>, slots: impl FnOnce(&mut dyn FnMut(&SlotView<'_>))) {
        out.extend_from_slice(&self.floor.0.to_be_bytes());
        out.extend_from_slice(&self.raiser.to_be_bytes());
        out.extend_from_slice(&self.trim.to_be_bytes());
        out.extend_from_slice(&self.end.to_be_bytes());
        for report in self.reports {
            out.extend_from_slice(&report.incarnation.to_be_bytes());
            out.extend_from_slice(&report.inst.to_be_bytes());
        }
        let count_at = out.len();
        out.extend_from_slice(&[0; 8]);
        let mut used = 0u64;
        slots(&mut |slot| {
            if slot.rnd.is_none() || slot.inst < self.trim {
                return;
            }
            used += 1;
            save_slot(slot, out);
        });
        out[count_at..count_at + 8].copy_from_slice(&used.to_be_bytes());
    }
}

fn save_slot(slot: &SlotView<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(&slot.inst.to_be_bytes());
    out.extend_from_slice(&slot.rnd.0.to_be_bytes());
    out.extend_from_slice(&slot.vrnd.0.to_be_bytes());
    out.extend_from_slice(&slot.client.to_be_bytes());
    out.extend_from_slice(&slot.request.to_be_bytes());
    out.extend_from_slice(&slot.flags.0.to_be_bytes());
    out.extend_from_slice(&(slot.value.len() as u16).to_be_bytes());
    out.extend_from_slice(slot.value);
}

impl Acceptor {
    /// Appends all that this acceptor must remember.
    pub fn save(&self, out: &mut Vec<u8>) {
        self.save_membership(out);
        for pid in 0..self.deployment.partitions {
            self.save_partition(pid, true, out);
        }
    }

    /// Appends everything but the slots, as if this acceptor had used none.
    pub fn save_head(&self, out: &mut Vec<u8>) {
        self.save_membership(out);
        for pid in 0..self.deployment.partitions {
            self.save_partition(pid, false, out);
        }
    }

    /// Appends the slot of an instance, or nothing if the slot holds nothing of it.
    pub fn save_slot(&self, pid: PartitionId, inst: Instance, out: &mut Vec<u8>) {
        if let Some(slot) = self.slot(pid, inst) {
            save_slot(&slot, out);
        }
    }

    fn save_membership(&self, out: &mut Vec<u8>) {
        let membership = Membership {
            nonce: self.nonce,
            start: self.start,
            told: &self.told,
            epoch: self.epoch,
            g: self.reports.g(),
            replicas: self.reports.replicas(),
        };
        membership.save(&self.deployment, self.ring.slots(), out);
    }

    fn save_partition(&self, pid: PartitionId, with_slots: bool, out: &mut Vec<u8>) {
        let partition = &self.partitions[pid as usize];
        let saved = SavedPartition {
            floor: partition.floor,
            raiser: partition.raiser,
            trim: partition.trim,
            end: partition.end,
            reports: self.reports.of(pid),
        };
        let first = pid as usize * self.ring.slots() as usize;
        let slots = match with_slots {
            true => self.ring.slots() as usize,
            false => 0,
        };
        let own = first..first + slots;
        saved.save(out, |save| {
            for index in own {
                let slot = &self.slots[index];
                save(&SlotView {
                    inst: slot.inst,
                    rnd: slot.rnd,
                    vrnd: slot.vrnd,
                    client: slot.client,
                    request: slot.request,
                    flags: slot.flags,
                    value: self.value(index),
                });
            }
        });
    }

    /// Reads what [`Self::save`] wrote, for the same place in the cluster and the same number of
    /// slots. The bytes may be anything: whatever could not have been saved is refused, and memory
    /// is allocated for `deployment` and `slots` alone. A caller that read them from a disk must
    /// call [`Acceptor::restarted`] next.
    pub fn load(
        deployment: Deployment,
        slots: usize,
        bytes: &[u8],
    ) -> Result<Acceptor, &'static str> {
        let mut r = Reader(bytes);
        if r.array()? != MAGIC {
            return Err("this is no saved acceptor");
        }
        if u16::from_be_bytes(r.array()?) != VERSION {
            return Err("saved by another version");
        }
        let saved_for = Deployment {
            cluster: r.u32()?,
            group: r.u16()?,
            node: r.u16()?,
            partitions: r.u16()?,
            max_value: r.u16()?,
        };
        if (saved_for.cluster, saved_for.node) != (deployment.cluster, deployment.node) {
            return Err("saved by another node, or in another cluster");
        }
        if saved_for.group != deployment.group {
            return Err("saved for another group");
        }
        if saved_for.partitions != deployment.partitions {
            return Err("saved with another number of partitions");
        }
        if saved_for.max_value != deployment.max_value {
            return Err("saved with another maximum value");
        }
        if r.u64()? != slots as u64 {
            return Err("saved with another number of slots");
        }
        let nonce = r.u64()?;
        if nonce == 0 {
            return Err("the boot nonce is 0");
        }
        let start = Start::from_number(r.u64()?).ok_or("it was never started")?;
        let mut acceptor = Acceptor::new(deployment, slots, nonce);
        acceptor.start = start;
        acceptor.told = told(&mut r, start)?;
        acceptor.load_membership(&mut r)?;
        for pid in 0..deployment.partitions {
            acceptor.load_partition(pid, &mut r)?;
        }
        r.ends()?;
        Ok(acceptor)
    }

    /// Takes a slot that [`Self::save_slot`] wrote while the rest of this memory was as it is now.
    /// Returns its instance.
    pub fn load_saved_slot(
        &mut self,
        pid: PartitionId,
        saved: &[u8],
    ) -> Result<Instance, &'static str> {
        if pid >= self.deployment.partitions {
            return Err("a slot's partition doesn't exist");
        }
        let mut r = Reader(saved);
        let index = self.load_slot(pid, &mut r)?;
        r.ends()?;
        Ok(self.slots[index].inst)
    }

    /// Goes on at the start of `head`, which [`Self::save_head`] wrote of this memory. Refused if
    /// anything but the slots differs from this memory, or if that start is an earlier one.
    pub fn continue_at(&mut self, head: &Acceptor) -> Result<(), &'static str> {
        let same = head.nonce == self.nonce
            && head.epoch == self.epoch
            && head.told == self.told
            && head.partitions == self.partitions
            && head.reports == self.reports;
        if !same || head.start.count() < self.start.count() {
            return Err("what is said of the whole memory differs");
        }
        self.start = head.start;
        Ok(())
    }

    fn load_membership(&mut self, r: &mut Reader<'_>) -> Result<(), &'static str> {
        self.epoch = r.u32()?;
        if self.epoch > crate::round::MAX_EPOCH {
            return Err("the epoch is out of range");
        }
        let [g, count] = r.array()?;
        if count as usize > MAX_REPLICAS {
            return Err("too many replicas");
        }
        let mut replicas = Vec::with_capacity(count as usize);
        for _ in 0..count {
            replicas.push(r.u16()?);
        }
        if self.is_stranger() {
            return if g == 0 && replicas.is_empty() {
                Ok(())
            } else {
                Err("a stranger knows no replicas")
            };
        }
        self.reports = TrimReports::new(self.deployment.partitions, &replicas, g)?;
        Ok(())
    }

    fn load_partition(&mut self, pid: PartitionId, r: &mut Reader<'_>) -> Result<(), &'static str> {
        let partition = Partition {
            floor: Round(r.u32()?),
            raiser: r.u64()?,
            trim: r.u64()?,
            end: r.u64()?,
        };
        if self.is_stranger() && partition != Partition::default() {
            return Err("a stranger has promised");
        }
        if !self.is_stranger() && partition.floor < Round::base(self.epoch)
            || !(partition.floor.is_base() || partition.floor.is_none())
        {
            return Err("the floor is no base round of this epoch or a later one");
        }
        if partition.end < partition.trim {
            return Err("the end lies below the trim point");
        }
        for report in self.reports.of_mut(pid) {
            *report = TrimReport {
                incarnation: r.u64()?,
                inst: r.u64()?,
            };
            if report.incarnation == 0 && report.inst != 0 {
                return Err("a replica has reported, but no disk of it");
            }
        }
        if self.reports.trim_point(pid) > partition.trim {
            return Err("the trim point lies below the reported one");
        }
        self.partitions[pid as usize] = partition;
        let used = r.u64()?;
        let mut last_index = None;
        for _ in 0..used {
            let index = self.load_slot(pid, r)?;
            if last_index.is_some_and(|last| last >= index) {
                return Err("slots repeat or are out of order");
            }
            last_index = Some(index);
        }
        Ok(())
    }

    fn load_slot(&mut self, pid: PartitionId, r: &mut Reader<'_>) -> Result<usize, &'static str> {
        let slot = Slot {
            inst: r.u64()?,
            rnd: Round(r.u32()?),
            vrnd: Round(r.u32()?),
            client: r.u64()?,
            request: r.u64()?,
            flags: Flags(r.u16()?),
            len: r.u16()?,
            ..Slot::unused(0)
        };
        let partition = &self.partitions[pid as usize];
        if self.is_stranger() {
            return Err("a stranger has voted");
        }
        if slot.inst < partition.trim || slot.inst - partition.trim >= self.ring.slots() {
            return Err("a slot's instance lies outside the window");
        }
        if !slot.rnd.is_valid() || slot.vrnd > slot.rnd {
            return Err("a slot's promise is no round, or older than its vote");
        }
        let no_value = (slot.client, slot.request, slot.flags.0, slot.len) == (0, 0, 0, 0);
        if slot.vrnd.is_none() && !no_value {
            return Err("a slot without a vote has a value");
        }
        if !slot.vrnd.is_none() && (!slot.vrnd.is_valid() || slot.inst >= partition.end) {
            return Err("a slot's vote is of no round, or beyond the end");
        }
        if slot.len > self.deployment.max_value || slot.flags != slot.flags.of_value() {
            return Err("a slot's value is too large or has flags of no value");
        }
        let value = r.take(slot.len as usize)?;
        let index = self.ring.index(pid, slot.inst);
        self.slots[index] = slot;
        self.store_value(index, value);
        Ok(index)
    }

    /// Returns a number for the state that this acceptor must remember: two acceptors at the same
    /// place with the same state have the same number. It reads every slot, so only tests and
    /// checkers call it.
    pub fn state_hash(&self) -> u64 {
        let mut saved = Vec::new();
        self.save(&mut saved);
        // FNV-1a: stable over versions of the compiler, unlike the standard library's hasher.
        saved.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// Reads the starts at which a memory was asked for an earlier one. `last` is its last start.
fn told(r: &mut Reader<'_>, last: Start) -> Result<ToldStarts, &'static str> {
    let count = usize::from(r.u16()?);
    let mut told = Vec::with_capacity(count.min(ToldStarts::MAX));
    for _ in 0..count {
        let start = Start::from_number(r.u64()?).ok_or("it was asked at no start")?;
        if start.count() > last.count() {
            return Err("it was asked at a later start than its last");
        }
        told.push(start);
    }
    ToldStarts::new(told)
}
