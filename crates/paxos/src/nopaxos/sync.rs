// SPDX-License-Identifier: Apache-2.0
//! Synchronisation: a prefix of the log becomes stable, that is part of every later view's log
//! (docs/protocol/nopaxos-replicas.md).

use super::log::Entry;
use super::replica::{Replica, heard, no_value, send};
use crate::wire::nopaxos::{GapRequest, SyncPrepare, max_noop_ranges};
use crate::{Header, Instance, MsgType, Outbox, Packet, Reason, Round, Time, To, Verdict};

/// A SYNC_PREPARE that came before some of the requests that it covers.
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

    /// Asks the followers, as a leader, to make all ready slots stable, unless that was asked
    /// before. Execution calls this when it waits for them.
    pub fn hurry(&self, out: &mut impl Outbox) {
        if self.ready() > self.duty.prepared {
            self.synchronise(out);
        }
    }

    /// Asks the followers, as a leader, to make all ready slots stable at once.
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

    /// Handles the leader's own order to synchronise. No gap may be open below its point. [Y-POINT]
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

    /// Notes whether the leader says at this point that many clients wait. Requests that it
    /// executes while it says so are answered once they are stable, and so are those below the
    /// point at which it first says the opposite; a word about an earlier point than the last one
    /// is old. [N-CROWD]
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

    /// Returns true if the leader may say that many clients wait. A follower that hears of the next
    /// crowd before the end of the last one acknowledges nothing between them; so another crowd
    /// begins only once f others have answered a word about a point behind the end, since none of
    /// these words was of a crowd. [N-CROWD]
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
        // The follower has the tail of a burst that the leader lacks. [Y-TAIL]
        self.stamped_below(h.request, now);
        Ok(self.synced(place, h.inst, out))
    }

    /// Notes that a member's log equals the leader's below `inst`.
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

    /// Makes the slots stable that f others have. [Y-POINT] [W-STABLE]
    fn count_synced(&mut self, out: &mut impl Outbox) {
        let stable = self.by_f(|peer| peer.synced).min(self.duty.prepared);
        if stable <= self.stable {
            return;
        }
        let is_awaited = self.duty.others_wait_below > self.stable;
        self.stable = stable;
        self.counts.synchronisations += 1;
        // The next SYNC_PREPARE tells the new `stable`, too. [N-CROWD]
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
            // This replica has missed a view.
            return self.hear_of_view(now, h, out);
        }
        self.sent_by_leader(h)?;
        if self.leads() {
            return self.prepare(now, packet, out);
        }
        self.duty.heard = now;
        self.answer_prepare(now, packet, &prepare, out)
    }

    /// Applies the no-ops, and answers once this log has all that the leader's has. [Y-APPLY]
    fn answer_prepare(
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

    /// Notes whether the leader says that many clients wait. While it says so this replica
    /// acknowledges nothing, and then makes up for the slots behind the last point at which it
    /// heard so, since an earlier word on the end of the crowd may be lost. A word about an earlier
    /// point than the last one comes late. [N-CROWD]
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

    /// Keeps the newest SYNC_PREPARE that came early, since it speaks for all earlier ones.
    fn keep_early(&mut self, packet: &Packet<'_>) {
        let kept = self.duty.early.as_ref();
        if kept.is_none_or(|early| early.header.inst <= packet.header.inst) {
            self.duty.early = Some(Early::of(packet));
        }
    }

    /// Follows the SYNC_PREPARE that has overtaken requests, once these have come. Returns true if
    /// there was one, since it may be answered, and is gone in any case. [Y-APPLY]
    #[inline]
    pub(super) fn follow_early(&mut self, now: Time, out: &mut impl Outbox) -> bool {
        let next = self.log.next();
        let early = self.duty.early.take_if(|early| early.header.inst <= next);
        if let Some(early) = &early {
            // The sender may lead no more, or have sent a newer SYNC_PREPARE since.
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
        self.answer_prepare(now, &packet, &prepare, out)
    }

    /// Returns false if the two logs differ although all rules hold, because some slot was stamped
    /// twice. [Y-ALARM]
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

    /// Notes the leader's `stable`, and returns true if that is news.
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

    /// Raises `stable`, but only over slots that are known to equal the leader's log of this view.
    /// Returns true if it rises. [Y-APPLY]
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

    /// Returns true if the leader's log is stable further than this one's. The leader's lists of
    /// no-ops don't reach down to this log's `stable`, so this log may have requests in place of
    /// no-ops that it never heard of.
    pub(super) fn is_behind(&self) -> bool {
        self.stable < self.duty.told_stable && !self.leads() && !self.in_conflict
    }

    /// Asks the leader for all slots in between. [Y-BEHIND]
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

    /// Takes the leader's entry at `stable`.
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

/// Returns true if a SYNC_PREPARE says that requests behind its point are answered once they are
/// stable. [N-CROWD]
fn is_of_crowd(h: &Header) -> bool {
    !h.vrnd.is_none()
}
