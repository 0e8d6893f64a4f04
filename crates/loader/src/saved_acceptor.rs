// SPDX-License-Identifier: Apache-2.0
//! An in-network acceptor's memory in the form in which software acceptors save theirs, so that an
//! orderly stop keeps it on any plane, and the next start may be on another one.
#![allow(unsafe_code)]

use std::sync::atomic::Ordering::SeqCst;

use paxos::acceptor::SlotView;
use paxos::acceptor::dump::{Membership, SavedPartition};
use paxos::{Flags, NodeId, PartitionId, Round, TrimReport};

use crate::acceptor::Acceptor;
use crate::layout::{AcceptorSlot, LongValue, MAX_REPLICAS, Replicas, Report, SHORT_VALUE};
use crate::sys::{atomic32, atomic64};

impl Acceptor {
    /// Returns what [`paxos::Acceptor::load`] reads. Only while no program runs.
    pub fn save(&self) -> Vec<u8> {
        let place = self.place();
        let mut out = Vec::new();
        let member = self.member();
        let replicas = member.replicas[(member.bank & 1) as usize];
        let membership = Membership {
            nonce: member.nonce,
            start: self.start().0,
            told: &self.told(),
            epoch: member.epoch,
            g: replicas.g as u8,
            replicas: &replicas.node[..usize::from(replicas.count)],
        };
        membership.save(&place.deployment, place.slots, &mut out);
        for pid in 0..place.deployment.partitions {
            let reports: Vec<TrimReport> = self.reports(pid).into_iter().map(|(_, r)| r).collect();
            let partition = SavedPartition {
                floor: self.floor(pid),
                raiser: self.raiser(pid),
                trim: self.trim(pid),
                end: self.end(pid),
                reports: &reports,
            };
            partition.save(&mut out, |save| self.each_slot(pid, save));
        }
        out
    }

    fn each_slot(&self, pid: PartitionId, save: &mut dyn FnMut(&SlotView<'_>)) {
        for index in 0..self.place().slots {
            let at = self.place().slot(pid, index);
            let slot = self.slots.get(at);
            let len = usize::from(slot.len);
            let long = (len > SHORT_VALUE).then(|| self.long_values.get(at));
            let value = long.as_ref().map_or(&slot.short_value[..], |v| &v.bytes);
            save(&SlotView {
                inst: slot.inst,
                rnd: Round(slot.rnd),
                vrnd: Round(slot.vrnd),
                client: slot.client,
                request: slot.request,
                flags: Flags(slot.flags),
                value: &value[..len],
            });
        }
    }

    /// Takes a saved memory over, into maps that are new and that no program uses yet.
    pub fn restore(&self, saved: &paxos::Acceptor) {
        let reports = saved.reports();
        self.set_replicas(reports.replicas(), reports.g());
        for pid in 0..self.place().deployment.partitions {
            self.restore_partition(saved, pid);
        }
        let member = self.members.at(self.place().index as usize);
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe {
            atomic64(&raw mut (*member).nonce).store(saved.nonce(), SeqCst);
            let start = saved.start().shown(saved.is_mute());
            atomic64(&raw mut (*member).start).store(start, SeqCst);
            let told = saved.told().all();
            for (at, start) in told.iter().enumerate() {
                atomic64(&raw mut (*member).told[at]).store(start.number(), SeqCst);
            }
            atomic64(&raw mut (*member).told_count).store(told.len() as u64, SeqCst);
            atomic32(&raw mut (*member).epoch).store(saved.epoch(), SeqCst);
        }
    }

    fn set_replicas(&self, nodes: &[NodeId], g: u8) {
        let mut replicas = Replicas {
            count: nodes.len() as u16,
            g: g.into(),
            ..Replicas::default()
        };
        replicas.node[..nodes.len()].copy_from_slice(nodes);
        let member = self.members.at(self.place().index as usize);
        // SAFETY: the entry is inside the mapping; nobody reads it yet.
        unsafe {
            (&raw mut (*member).replicas[0]).write_volatile(replicas);
            atomic32(&raw mut (*member).bank).store(0, SeqCst);
        }
    }

    fn restore_partition(&self, saved: &paxos::Acceptor, pid: PartitionId) {
        let (trim, end) = (saved.trim(pid), saved.end(pid));
        let known = saved.reports().of(pid);
        let mut reports = [Report::default(); MAX_REPLICAS];
        for (report, &TrimReport { incarnation, inst }) in reports.iter_mut().zip(known) {
            *report = Report { incarnation, inst };
        }
        let raiser = saved.raiser(pid);
        let raised = if raiser == 0 { 0 } else { saved.floor(pid).0 };
        let p = self.partitions.at(self.place().partition(pid));
        // SAFETY: the reason is the same as above.
        unsafe {
            let (floor, held) = match saved.is_mute() {
                true => (0, saved.floor(pid).0),
                false => (saved.floor(pid).0, 0),
            };
            (&raw mut (*p).floor).write_volatile(floor);
            (&raw mut (*p).held).write_volatile(held);
            (&raw mut (*p).raiser).write_volatile(raiser);
            (&raw mut (*p).raised).write_volatile(raised);
            (&raw mut (*p).trim).write_volatile(trim);
            (&raw mut (*p).earlier).write_volatile(end);
            (&raw mut (*p).reports[0]).write_volatile(reports);
        }
        for inst in trim..trim + self.place().slots {
            if let Some(slot) = saved.slot(pid, inst) {
                self.restore_slot(pid, &slot);
            }
        }
    }

    fn restore_slot(&self, pid: PartitionId, from: &SlotView<'_>) {
        let at = self.place().slot(pid, from.inst);
        let mut slot = AcceptorSlot {
            inst: from.inst,
            client: from.client,
            request: from.request,
            rnd: from.rnd.0,
            vrnd: from.vrnd.0,
            flags: from.flags.0,
            len: from.value.len() as u16,
            ..AcceptorSlot::default()
        };
        if from.value.len() <= SHORT_VALUE {
            slot.short_value[..from.value.len()].copy_from_slice(from.value);
        } else {
            let mut long = LongValue::default();
            long.bytes[..from.value.len()].copy_from_slice(from.value);
            self.long_values.set(at, long);
        }
        self.slots.set(at, slot);
    }
}
