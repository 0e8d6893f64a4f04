// SPDX-License-Identifier: Apache-2.0
//! Connects a worker with the control plane, according to the protocol of its group.

use control::{EpochRecord, EpochState, Message, View};
use paxos::acceptor::Start;
use paxos::nopaxos::{Loaded, Replica, Status, view};
use paxos::{GroupId, Member, PartitionId, Time};
use replica::{Agreement, EpochView, NoPaxos, Paxos};
use serde_json::{Value, json};

/// A protocol of replicas that nodes can run.
pub trait NodeProtocol: Agreement + Send + 'static {
    /// Returns the part of a view's epochs that concerns the worker of a partition; empty if they
    /// aren't of this protocol.
    fn epochs(view: &View, pid: PartitionId) -> Vec<Self::EpochView>;

    /// Returns the part of a partition's status document that only this protocol has: its name
    /// there, and its value.
    fn shown_alone(&self) -> Option<(&'static str, Value)> {
        None
    }

    /// Begins to store the memory, at its first start.
    fn begin_memory(&mut self, _: Start) -> Result<(), replica::Error> {
        Err(replica::Error(NO_MEMORY.into()))
    }

    /// Continues with a memory that was read from a disk, at a later start of it.
    fn go_on_with(&mut self, _: Loaded, _: Start) -> Result<(), replica::Error> {
        Err(replica::Error(NO_MEMORY.into()))
    }

    /// Returns the replica whose memory is stored, if there is one.
    fn stored(&mut self) -> Option<&mut Replica> {
        None
    }

    /// Lets this start of the memory continue, by the controller's order.
    fn let_go_on(&mut self, _now: Time, _nonce: u64, _: Start) {}

    /// Returns the report about a partition that this member must repeat to the controller until
    /// its effect shows.
    fn report(&self, _group: GroupId, _pid: PartitionId, _from: Member) -> Option<Message> {
        None
    }
}

/// With Paxos the acceptors remember what replicas need.
const NO_MEMORY: &str = "replicas of this protocol have no logs of their own";

impl NodeProtocol for Paxos {
    fn epochs(view: &View, _: PartitionId) -> Vec<EpochView> {
        view.begun_epochs().map(epoch_view).collect()
    }
}

pub fn epoch_view(epoch: &EpochRecord) -> EpochView {
    EpochView {
        configuration: epoch.configuration(),
        active: epoch.state == EpochState::Active,
    }
}

impl NodeProtocol for NoPaxos {
    /// Returns the sessions, including those that have not begun, since nothing is concluded from
    /// sessions with a gap. [F-TOLD]
    fn epochs(view: &View, pid: PartitionId) -> Vec<Self::EpochView> {
        view.sessions(pid).unwrap_or_default()
    }

    fn shown_alone(&self) -> Option<(&'static str, Value)> {
        let replica = self.replica();
        let (shown, counts) = (replica.view(), replica.counts());
        let status = match replica.status() {
            Status::Normal => "normal",
            Status::ViewChange => "changing",
            Status::Stranger => "stranger",
        };
        let own = json!({
            "status": status,
            "session": shown.epoch(),
            "leader_number": view::number(shown),
            "leader": replica.led_by().map(|leader| leader.node),
            "leads": replica.leads(),
            "filled": replica.next(),
            "stable": replica.stable(),
            "gaps": replica.open_gaps(),
            "in_conflict": replica.in_conflict(),
            "start": replica.start().map(|start| start.count()),
            "mute": replica.is_mute(),
            "gaps_asked": counts.gaps_asked,
            "gaps_found": counts.gaps_found,
            "gaps_given_up": counts.gaps_given_up,
            "view_changes": counts.view_changes,
            "synchronisations": counts.synchronisations,
            "crowds": counts.crowds,
        });
        Some(("nopaxos", own))
    }

    fn begin_memory(&mut self, start: Start) -> Result<(), replica::Error> {
        self.replica_mut().keep(start);
        Ok(())
    }

    fn go_on_with(&mut self, loaded: Loaded, start: Start) -> Result<(), replica::Error> {
        self.remember(loaded, start)
    }

    fn stored(&mut self) -> Option<&mut Replica> {
        Some(self.replica_mut())
    }

    fn let_go_on(&mut self, now: Time, nonce: u64, start: Start) {
        // An order that comes late, or is for a memory that is gone, is routine.
        let _ = self.resume(now, nonce, start);
    }

    /// Reports a view that this replica has begun as its leader. [F-REPORT]
    fn report(&self, group: GroupId, pid: PartitionId, from: Member) -> Option<Message> {
        let started = self.replica().unreported()?;
        Some(Message::view_started(group, from, pid, &started))
    }
}
