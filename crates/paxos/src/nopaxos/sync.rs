// SPDX-License-Identifier: Apache-2.0
//! Synchronisation: a prefix of the log becomes stable, that is part of every later view's log
//! (docs/protocol/nopaxos-replicas.md).

use super::log::Entry;
use super::replica::{Replica, heard, no_value, send};
use crate::wire::nopaxos::{GapRequest, SyncPrepare, max_noop_ranges};
use crate::{Header, Instance, MsgType, Outbox, Packet, Reason, Round, Time, To, Verdict};

/// A SYNC_PREPARE that came before requests that it speaks of.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub(super) struct Early {
    header: Header,
    value: Vec<u8>,
}

impl Early {
    fn of(packet: &Packet<'_>) -> Early {
        Early {
            header: packet.header,
            value: packet.value.to_vec(),
        }
    }

    fn packet(&self) -> Packet<'_> {
        Packet {
            header: self.header,
            tag: None,
            value: &self.value,
        }
    }
}

impl Replica {
    // ---- The leader

    /// Execution waits until all that is ready is stable: the leader asks for that, once.
    pub fn hurry(&self, out: &mut impl Outbox) {
        if self.ready() > self.duty.prepared {
            self.synchronise(out);
        }
    }

    /// Asks the followers at once to make all that is ready stable.
    pub fn synchronise(&self, out: &mut impl Outbox) {
        if !self.leads() {
            return;
        }
        let end = self.ready();
        let noops = self.noops_below(end);
        if noops.len() > max_noop_ranges(self.settings.deployment.max_value) {
            return;
        }
        let digest = self.log.digest(self.stable..end);
        let mut value = Vec::new();
        SyncPrepare::append(&mut value, self.stable, digest, noops);
        let vrnd = match self.duty.is_crowded {
            true => self.view,
            false => Round::NONE,
        };
        let header = Header {
            inst: end,
            vrnd,
            ..self.header(MsgType::SyncPrepare, self.view)
        };
        self.send_to_self(header, &value, out);
    }

    pub(super) fn synchronise_if_due(&self, now: Time, out: &mut impl Outbox) {
        let waiting = self.ready().saturating_sub(self.duty.prepared);
        let is_due = self.sync_deadline().is_some_and(|due| now >= due);
        if is_due || waiting >= self.settings.sync_slots {
            self.synchronise(out);
        }
    }

    pub(super) fn sync_deadline(&self) -> Option<Time> {
        let pause = match self.ready() > self.duty.told_stable {
            true => self.settings.sync_after,
            false => self.settings.heartbeat,
        };
        Some(self.duty.sync_at + pause)
    }

    /// The leader's own order. No gap is open below. [Y-POINT]
    fn prepare(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        if h.inst > self.ready() {
            return Err(Reason::Unexpected);
        }
        let vrnd = match is_of_crowd(h) && self.may_say_crowd() {
            true => h.vrnd,
            false => Round::NONE,
        };
        self.say_crowd(h.inst, !vrnd.is_none());
        self.duty.told_stable = self.stable;
        self.duty.prepared = self.duty.prepared.max(h.inst);
        self.duty.sync_at = now;
        let header = Header {
            inst: h.inst,
            vrnd,
            ..self.header(MsgType::SyncPrepare, self.view)
        };
        self.broadcast(header, packet.value, out);
        self.count_synced(out);
        Ok(Verdict::Changed)
    }

    /// What it executes while it says that many clients wait is answered once it is stable, and so is what it has then
    /// below the point at which it first says that they don't. A word about an earlier point than the last one is old.
    /// [N-CROWD]
    fn say_crowd(&mut self, inst: Instance, is_crowd: bool) {
        if inst < self.duty.prepared {
            return;
        }
        let before = self.duty.held_below;
        self.duty.held_below = match is_crowd {
            true => Instance::MAX,
            false => before.min(inst),
        };
        self.counts.crowds += u64::from(self.duty.held_below > before);
    }

    /// Whoever hears of the next crowd before it hears that the last one is over acknowledges nothing between them. So that
    /// one begins once f others have answered a word about a point behind the end, since none of these was of a crowd. [N-CROWD]
    fn may_say_crowd(&self) -> bool {
        let held_below = self.duty.held_below;
        let is_first = held_below == 0;
        is_first || held_below == Instance::MAX || self.by_f(|peer| peer.synced) > held_below
    }

    pub(super) fn sync_rep(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        no_value(packet)?;
        let h = &packet.header;
        let place = self.sent_by_follower(h)?;
        if h.inst > self.duty.prepared {
            return Err(Reason::Unexpected);
        }
        // It has the tail of a burst that the leader lacks. [Y-TAIL]
        self.stamped_below(h.request, now);
        Ok(self.synced(place, h.inst, out))
    }

    /// A member's log equals the leader's below `inst`.
    pub(super) fn synced(
        &mut self,
        place: usize,
        inst: Instance,
        out: &mut impl Outbox,
    ) -> Verdict {
        let begun_at = self.begun.as_ref().map(|begun| begun.end());
        let peer = &mut self.duty.peers[place];
        let before = *peer;
        peer.synced = peer.synced.max(inst);
        peer.started |= begun_at.is_some_and(|end| inst >= end);
        let is_news = *peer != before;
        if is_news {
            self.count_synced(out);
        }
        heard(is_news)
    }

    /// What f others have is stable. [Y-POINT] [W-STABLE]
    fn count_synced(&mut self, out: &mut impl Outbox) {
        let stable = self.by_f(|peer| peer.synced).min(self.duty.prepared);
        if stable <= self.stable {
            return;
        }
        let is_awaited = self.duty.others_wait_below > self.stable;
        self.stable = stable;
        self.counts.synchronisations += 1;
        // The next SYNC_PREPARE tells it, too. [N-CROWD]
        if self.duty.is_crowded && !is_awaited {
            return;
        }
        self.duty.told_stable = stable;
        let header = Header {
            inst: stable,
            ..self.header(MsgType::SyncCommit, self.view)
        };
        self.broadcast(header, &[], out);
    }

    // ---- A follower

    pub(super) fn sync_prepare(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let max_value = self.settings.deployment.max_value;
        let prepare = SyncPrepare::parse(packet.value, h.inst, max_value)?;
        if h.rnd > self.view {
            // A view that it has missed.
            return self.hear_of_view(now, h, out);
        }
        self.sent_by_leader(h)?;
        if self.leads() {
            return self.prepare(now, packet, out);
        }
        self.duty.heard = now;
        self.follow(now, packet, &prepare, out)
    }

    /// Applies the no-ops, and answers once it has all that the leader has. [Y-APPLY]
    fn follow(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        prepare: &SyncPrepare<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let h = &packet.header;
        let told = self.hear_stable(prepare.noops.stable, now);
        if self.stable < prepare.noops.stable {
            return Ok(heard(told));
        }
        let changed = self.apply(&prepare.noops)? || told;
        if self.log.next() < h.inst {
            self.stamped_below(h.inst, now);
            self.keep_early(packet);
            return Ok(heard(changed));
        }
        if !self.is_equal(h.inst, prepare) {
            self.in_conflict = true;
            return Err(Reason::Conflict);
        }
        self.hear_of_crowd(h);
        let is_news = self.duty.prepared < h.inst;
        self.duty.prepared = self.duty.prepared.max(h.inst);
        let stable_rose = self.settle();
        let answer = Header {
            inst: h.inst,
            request: self.log.next(),
            ..self.header(MsgType::SyncRep, self.view)
        };
        send(To::Node(h.swid), answer, &[], out);
        Ok(heard(changed || is_news || stable_rose))
    }

    /// While the leader says that slots are of a crowd this replica acknowledges none of them. Then it makes up for those
    /// behind the last point at which it heard so: that the crowd was over may have been said before, and lost. A word
    /// about an earlier point than the last one comes late. [N-CROWD]
    fn hear_of_crowd(&mut self, h: &Header) {
        if h.inst < self.duty.prepared {
            return;
        }
        let known = self.duty.crowd.take();
        if is_of_crowd(h) {
            self.duty.crowd = Some(known.map_or(h.inst, |crowd| crowd.start)..h.inst);
        } else if let Some(crowd) = known {
            self.pass_crowd(&crowd);
        }
    }

    /// Of several the newest, since it speaks for all.
    fn keep_early(&mut self, packet: &Packet<'_>) {
        let kept = self.duty.early.as_ref();
        if kept.is_none_or(|early| early.header.inst <= packet.header.inst) {
            self.duty.early = Some(Early::of(packet));
        }
    }

    /// The SYNC_PREPARE that has overtaken requests, once these have come. True if there was one: it may be answered, and
    /// is gone, whatever else it changes. [Y-APPLY]
    #[inline]
    pub(super) fn follow_early(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        let next = self.log.next();
        let early = self.duty.early.take_if(|early| early.header.inst <= next);
        if let Some(early) = &early {
            // Whoever sent it may lead no more, or have sent a newer one since.
            let _ = self.follow_kept(now, early, out);
        }
        early.is_some()
    }

    fn follow_kept(
        &mut self,
        now: Time,
        early: &Early,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        let packet = early.packet();
        self.sent_by_leader(&packet.header)?;
        let max_value = self.settings.deployment.max_value;
        let prepare = SyncPrepare::parse(packet.value, packet.header.inst, max_value)?;
        self.follow(now, &packet, &prepare, out)
    }

    /// Two logs that differ although all rules hold: some slot was stamped twice. [Y-ALARM]
    fn is_equal(&self, end: Instance, prepare: &SyncPrepare<'_>) -> bool {
        let begin = prepare.noops.stable;
        begin < self.log.floor() || self.log.digest(begin..end) == prepare.digest
    }

    pub(super) fn sync_commit(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
    ) -> Result<Verdict, Reason> {
        no_value(packet)?;
        let h = &packet.header;
        self.sent_by_leader(h)?;
        if self.leads() {
            return Err(Reason::NotForRole);
        }
        self.duty.heard = now;
        Ok(heard(self.hear_stable(h.inst, now)))
    }

    /// The leader's `stable`; says whether that is news.
    pub(super) fn hear_stable(&mut self, stable: Instance, now: Time) -> bool {
        let was_behind = self.is_behind();
        let is_news = stable > self.duty.told_stable;
        self.duty.told_stable = self.duty.told_stable.max(stable);
        let rises = self.settle();
        if self.is_behind() && !was_behind {
            self.duty.catch_up_at = now + self.settings.ask_after;
        }
        is_news || rises
    }

    /// `stable` rises only over what is known to equal the leader's log of this view. [Y-APPLY]
    fn settle(&mut self) -> bool {
        let stable = self.duty.told_stable.min(self.duty.prepared);
        let rises = stable > self.stable && !self.in_conflict;
        if rises {
            self.stable = stable;
            self.counts.synchronisations += 1;
        }
        rises
    }

    // ---- Catching up

    /// Whether the leader's log is stable further than this one's. Its lists of no-ops don't reach down to
    /// there, and there may be requests here over no-ops of which this replica never heard.
    pub(super) fn is_behind(&self) -> bool {
        self.stable < self.duty.told_stable && !self.leads() && !self.in_conflict
    }

    /// Takes everything in between from the leader. [Y-BEHIND]
    pub(super) fn catch_up(&mut self, now: Time, out: &mut impl Outbox) {
        if self.is_behind() && now >= self.duty.catch_up_at {
            self.ask_for_stable(now, out);
        }
    }

    fn ask_for_stable(&mut self, now: Time, out: &mut impl Outbox) {
        let begin = self.stable;
        let end = self
            .duty
            .told_stable
            .min(begin + u64::from(GapRequest::MAX));
        self.duty.catch_up_end = end;
        self.duty.catch_up_at = now + 2 * self.settings.ask_after;
        let leader = self.leader().map(|leader| leader.node);
        self.ask_for(leader, begin..end, out);
    }

    /// The leader's entry at `stable`.
    pub(super) fn caught_up(
        &mut self,
        now: Time,
        inst: Instance,
        entry: &Entry<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if inst < self.log.next() {
            self.put(inst, entry);
        } else {
            self.append(entry)?;
        }
        self.stable = inst + 1;
        self.duty.prepared = self.duty.prepared.max(self.stable);
        self.duty.heard = now;
        if self.stable == self.duty.catch_up_end && self.is_behind() {
            self.ask_for_stable(now, out);
        }
        Ok(Verdict::Changed)
    }
}

/// Whether a SYNC_PREPARE says that what comes behind it is answered once it is stable. [N-CROWD]
fn is_of_crowd(h: &Header) -> bool {
    !h.vrnd.is_none()
}
