// SPDX-License-Identifier: Apache-2.0
//! A replica: what it keeps, and which handler takes a packet.

use std::collections::{BTreeMap, VecDeque};

use paxos::{
    Flags, Header, Instance, MsgType, NodeId, Outbox, Packet, Reason, Round, Time, To, Verdict,
};
use replica::{Basis, Settings};

use crate::change::Change;
use crate::free::Votes;
use crate::log::{Entry, SlotLog};
use crate::matching::superquorum;
use crate::message::Order;
use crate::ordered::Batch;

const MILLISECOND: Time = 1_000_000;
/// A leader shows that it is there.
pub(crate) const HEARTBEAT: Time = 10 * MILLISECOND;
/// The time after which a message without an answer is sent again.
pub(crate) const AGAIN: Time = 5 * MILLISECOND;
/// The time after which entries are asked for again that the leader has sent: a question and its
/// answer take some hundred microseconds.
pub(crate) const FETCH_AGAIN: Time = MILLISECOND / 2;
/// The time for which the other replicas bear a silent leader, each a little longer than the one
/// before it.
pub(crate) const PATIENCE: Time = 200 * MILLISECOND;
/// Requests that arrived during a view change and wait for its end.
const MAX_HELD: usize = 4_096;

/// How commands get into one order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Multi-Paxos, or Viewstamped Replication: a slot a request.
    Vr,
    /// Viewstamped Replication with batches.
    VrBatch,
    /// Fast Paxos.
    FastPaxos,
    /// Speculative Paxos.
    SpecPaxos,
}

impl Protocol {
    /// Returns the order of the first view, and of all views in which enough replicas take part.
    pub(crate) fn order(self) -> Order {
        match self {
            Protocol::Vr | Protocol::VrBatch => Order::Ordered,
            Protocol::FastPaxos | Protocol::SpecPaxos => Order::Free,
        }
    }
}

/// The members of a group, which a replica learns once, when it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerGroup {
    /// How they agree.
    pub protocol: Protocol,
    /// 2f+1 replicas, in the same order for all.
    pub members: Vec<NodeId>,
    /// The rule that a test takes away.
    #[cfg(test)]
    pub(crate) broken: Option<crate::tests::Broken>,
}

/// The state of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The replica takes part in its view.
    Normal,
    /// The replica waits for a view to begin.
    Changing,
    /// No other replica keeps what this one lacks, so it can't continue.
    Lost,
}

/// Counters since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Views that began here, but for the first.
    pub view_changes: u64,
    /// Entries that were asked for.
    pub fetched: u64,
    /// Slots whose execution was taken back.
    pub rewound: u64,
}

/// One replica of a group.
pub struct Peer {
    pub(crate) settings: Settings,
    pub(crate) now: Time,
    pub(crate) group: Option<PeerGroup>,
    /// The place among the members.
    pub(crate) me: usize,
    pub(crate) status: Status,
    pub(crate) view: u32,
    /// The last view in which it was normal: the log is of that one.
    pub(crate) normal_view: u32,
    /// The order of that view, and the length of the log with which it began.
    pub(crate) order: Order,
    pub(crate) base: Instance,
    pub(crate) log: SlotLog,
    /// Everything below this slot stays in every later view.
    pub(crate) commit: Instance,
    /// The next slot to execute, and the slot below which everything executed is on disk.
    pub(crate) executed: Instance,
    pub(crate) durable: Instance,
    pub(crate) rewind: Option<Instance>,
    /// Entries of an ordered view that came before their turn.
    pub(crate) early: BTreeMap<Instance, Entry>,
    pub(crate) asked_at: Time,
    /// The slot up to which each member has shown in this view that its log is that of the leader.
    pub(crate) filled: Vec<Instance>,
    /// The time when the leader was heard last; for the leader itself, when others last heard it.
    pub(crate) heard: Time,
    pub(crate) told: Time,
    /// True if this batch of packets has brought something that the leader, or the followers, are
    /// to be shown.
    pub(crate) has_news: bool,
    pub(crate) batch: Batch,
    pub(crate) votes: Votes,
    pub(crate) change: Change,
    /// Requests that came during a view change.
    pub(crate) held: VecDeque<Entry>,
    pub(crate) counters: Counters,
}

impl Peer {
    pub(crate) fn new(settings: &Settings, nonce: u64, next: Instance, now: Time) -> Peer {
        Peer {
            settings: settings.clone(),
            now,
            group: None,
            me: 0,
            // A replica that has executed something existed before, and has forgotten its log.
            status: if next == 0 {
                Status::Changing
            } else {
                Status::Lost
            },
            view: 0,
            normal_view: 0,
            order: Order::Ordered,
            base: 0,
            log: SlotLog::default(),
            commit: 0,
            executed: next,
            durable: next,
            rewind: None,
            early: BTreeMap::new(),
            asked_at: 0,
            filled: Vec::new(),
            heard: now,
            told: now,
            has_news: false,
            batch: Batch::new(nonce),
            votes: Votes::default(),
            change: Change::default(),
            held: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    // ---- What is asked

    /// Returns what it is doing.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns its view; 0 = none yet.
    pub fn view(&self) -> u32 {
        self.view
    }

    /// Returns what has happened.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns what an answer that isn't final was computed on: the digest of the log up to a slot,
    /// included. None if the view isn't in force here any more; then nobody is to get the answer.
    pub fn digest_at(&self, basis: Basis) -> Option<u64> {
        let is_here = self.status == Status::Normal && self.view == basis.view.0;
        self.log.digest(basis.slot + 1).filter(|_| is_here)
    }

    /// Returns whether it leads its view.
    pub fn leads(&self) -> bool {
        self.status == Status::Normal && self.leader_of(self.view) == self.me
    }

    // ---- The group

    /// Takes the group's members, once. A replica that starts with nothing begins in view 1.
    pub(crate) fn join(&mut self, now: Time, group: &PeerGroup) -> bool {
        let place = group
            .members
            .iter()
            .position(|member| *member == self.settings.deployment.node);
        let Some(place) = place.filter(|_| self.group.is_none()) else {
            return false;
        };
        self.me = place;
        self.group = Some(group.clone());
        if self.status != Status::Lost {
            self.status = Status::Normal;
            self.order = group.protocol.order();
            (self.view, self.normal_view) = (1, 1);
            self.enter(now);
        }
        true
    }

    /// Enters a view that begins here.
    pub(crate) fn enter(&mut self, now: Time) {
        self.filled = vec![0; self.members().len()];
        self.votes = Votes::new(self.members().len(), now);
        self.early.clear();
        (self.heard, self.told) = (now, now);
        self.has_news = true;
    }

    pub(crate) fn protocol(&self) -> Protocol {
        self.group.as_ref().map_or(Protocol::Vr, |g| g.protocol)
    }

    pub(crate) fn members(&self) -> &[NodeId] {
        self.group.as_ref().map_or(&[], |group| &group.members)
    }

    pub(crate) fn f(&self) -> usize {
        self.members().len().saturating_sub(1) / 2
    }

    pub(crate) fn superquorum(&self) -> usize {
        superquorum(self.members().len())
    }

    pub(crate) fn leader_of(&self, view: u32) -> usize {
        (view.max(1) as usize - 1) % self.members().len().max(1)
    }

    pub(crate) fn leader(&self) -> NodeId {
        let leader = self.leader_of(self.view);
        self.members().get(leader).copied().unwrap_or(0)
    }

    /// Returns the other members.
    pub(crate) fn others(&self) -> impl Iterator<Item = NodeId> + use<'_> {
        let me = self.settings.deployment.node;
        self.members().iter().copied().filter(move |m| *m != me)
    }

    // ---- Packets

    pub(crate) fn header(&self, msgtype: MsgType) -> Header {
        let deployment = &self.settings.deployment;
        Header {
            cluster: deployment.cluster,
            group: deployment.group,
            pid: self.settings.pid,
            swid: deployment.node,
            rnd: Round(self.view),
            ..Header::new(msgtype)
        }
    }

    pub(crate) fn tell_others(&self, header: &Header, value: &[u8], out: &mut impl Outbox) {
        let header = Header {
            value_len: value.len() as u16,
            ..*header
        };
        for member in self.others() {
            out.send(To::Node(member), &header, value);
        }
    }

    pub(crate) fn tell(&self, to: NodeId, header: &Header, value: &[u8], out: &mut impl Outbox) {
        let header = Header {
            value_len: value.len() as u16,
            ..*header
        };
        out.send(To::Node(to), &header, value);
    }

    pub(crate) fn take(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        self.now = now;
        if self.group.is_none() || self.status == Status::Lost {
            return Err(Reason::NotNormal);
        }
        if packet.header.msgtype == MsgType::Request {
            return self.on_request(packet, out);
        }
        let h = &packet.header;
        let sender = self.members().iter().position(|m| *m == h.swid);
        let sender = sender
            .filter(|sender| *sender != self.me)
            .ok_or(Reason::UnknownSender)?;
        self.meet_view(h, sender, out)?;
        match h.msgtype {
            MsgType::Phase2a => self.on_prepare(packet, out),
            MsgType::Ack => self.on_prepare_ok(h, sender, out),
            MsgType::SyncPrepare => self.on_sync(packet, out),
            MsgType::SyncRep => self.on_vote(h, sender, out),
            MsgType::ViewChangeReq => Ok(Verdict::Answered),
            MsgType::ViewChange => self.on_report(packet, sender, out),
            MsgType::StartView => self.on_start(packet, out),
            MsgType::GapRequest => self.on_fetch(packet, sender, out),
            MsgType::GapReply => self.on_entry(packet, sender, out),
            _ => Err(Reason::NotForRole),
        }
    }

    /// Follows others into a later view; refuses what is of an earlier one, and a leader's messages
    /// from who doesn't lead.
    fn meet_view(
        &mut self,
        h: &Header,
        sender: usize,
        out: &mut impl Outbox,
    ) -> Result<(), Reason> {
        let view = h.rnd.0;
        let of_leader = matches!(
            h.msgtype,
            MsgType::Phase2a | MsgType::SyncPrepare | MsgType::StartView
        );
        if of_leader && self.leader_of(view) != sender {
            return Err(Reason::NotLeader);
        }
        if view < self.view {
            return Err(Reason::Stale);
        }
        let tells_of_it = matches!(
            h.msgtype,
            MsgType::ViewChangeReq | MsgType::ViewChange | MsgType::StartView
        );
        if view > self.view {
            if !of_leader && !tells_of_it {
                return Err(Reason::WrongView);
            }
            self.change_to(view, out);
        }
        if self.status != Status::Normal && of_leader && !tells_of_it {
            // The view has begun, and this replica hasn't heard with which log.
            self.report(out);
            return Err(Reason::NotNormal);
        }
        if of_leader {
            self.heard = self.now;
        }
        Ok(())
    }

    fn on_request(
        &mut self,
        packet: &Packet<'_>,
        out: &mut impl Outbox,
    ) -> Result<Verdict, Reason> {
        if packet.header.flags.has(Flags::MULTI) {
            // Peers have no commands over several partitions.
            return Err(Reason::BadFlags);
        }
        if self.status == Status::Changing {
            if self.held.len() == MAX_HELD {
                return Err(Reason::Busy);
            }
            self.held.push_back(Entry::of(packet));
            return Ok(Verdict::Answered);
        }
        self.request(Entry::of(packet), out)
    }

    /// Handles a request in a view that has begun.
    fn request(&mut self, entry: Entry, out: &mut impl Outbox) -> Result<Verdict, Reason> {
        if self.log.end() - self.commit >= self.settings.window {
            return Err(Reason::Window);
        }
        match self.order {
            Order::Free => self.append_free(entry, out),
            Order::Ordered if self.leads() => self.append_ordered(entry, out),
            Order::Ordered => self.pass_on(&entry, out),
        }
    }

    /// Clients of VR send to one replica, others to all.
    fn pass_on(&mut self, entry: &Entry, out: &mut impl Outbox) -> Result<Verdict, Reason> {
        if self.protocol().order() == Order::Free {
            return Err(Reason::NotLeader);
        }
        let header = Header {
            rnd: Round::NONE,
            swid: 0,
            ..self.header(MsgType::Request)
        };
        self.tell(self.leader(), &entry.header(header), &entry.value, out);
        Ok(Verdict::Answered)
    }

    /// Handles the requests that waited for the end of a view change, unless another replica's log
    /// contained them.
    pub(crate) fn take_held(&mut self, out: &mut impl Outbox) {
        let held = std::mem::take(&mut self.held);
        let names: std::collections::BTreeSet<_> = (self.commit..self.log.end())
            .filter_map(|slot| self.log.get(slot).map(Entry::name))
            .collect();
        for entry in held {
            if !names.contains(&entry.name()) {
                // A request that finds no room is sent again by its client.
                let _ = self.request(entry, out);
            }
        }
    }

    // ---- What becomes of the log

    /// Commits everything below `to`. Returns true if that is news.
    pub(crate) fn commit_to(&mut self, to: Instance) -> bool {
        debug_assert!(to <= self.log.end());
        let news = to > self.commit;
        self.commit = self.commit.max(to);
        news
    }

    /// Forgets what everybody else has had the time to fetch, and this replica will not execute
    /// again.
    pub(crate) fn trim(&mut self) {
        let kept = self.log.end().saturating_sub(self.settings.window);
        let needed = self.executed.min(self.durable).min(self.commit);
        self.log.trim(kept.min(needed));
    }

    /// Returns how far f+1 members' logs are filled in this view, the leader's included.
    pub(crate) fn filled_by(&self, how_many: usize) -> Instance {
        let mut filled = self.filled.clone();
        filled[self.me] = self.log.end();
        filled.sort_unstable_by(|a, b| b.cmp(a));
        filled[how_many - 1]
    }

    #[cfg(test)]
    pub(crate) fn is_broken(&self, rule: crate::tests::Broken) -> bool {
        self.group.as_ref().and_then(|group| group.broken) == Some(rule)
    }
}
