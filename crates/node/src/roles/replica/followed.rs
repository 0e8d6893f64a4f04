// SPDX-License-Identifier: Apache-2.0
//! How a worker follows the control plane, by the protocol of its group.

use control::{EpochRecord, EpochState, Message, View};
use paxos::acceptor::Start;
use paxos::nopaxos::{Loaded, Replica, Status, view};
use paxos::{GroupId, Member, PartitionId, Time};
use replica::{Agreement, EpochView, NoPaxos, Paxos};
use serde_json::{Value, json};

/// A protocol whose replicas nodes run.
pub trait Followed: Agreement + Send + 'static {
    /// What a view says of the epochs to the worker of a partition; nothing if they aren't of this protocol.
    fn epochs(view: &View, pid: PartitionId) -> Vec<Self::EpochView>;

    /// What a partition's status document has of this protocol alone: its name there, and what it says.
    fn shown_alone(&self) -> Option<(&'static str, Value)> {
        None
    }

    /// Its memory is stored from now on; this is the first start of it.
    fn begin_memory(&mut self, _: Start) -> Result<(), replica::Error> {
        Err(replica::Error(NO_MEMORY.into()))
    }

    /// Goes on with a memory that was read from a disk, at another start of it.
    fn go_on_with(&mut self, _: Loaded, _: Start) -> Result<(), replica::Error> {
        Err(replica::Error(NO_MEMORY.into()))
    }

    /// Whose memory is stored.
    fn stored(&mut self) -> Option<&mut Replica> {
        None
    }

    /// The controller lets this start of its memory go on.
    fn let_go_on(&mut self, _now: Time, _nonce: u64, _: Start) {}

    /// What the controller is to be told of a partition by this member, again and again until that shows.
    fn report(&self, _group: GroupId, _pid: PartitionId, _from: Member) -> Option<Message> {
        None
    }
}

/// What replicas of Paxos need is remembered by acceptors.
const NO_MEMORY: &str = "replicas of this protocol have no logs of their own";

impl Followed for Paxos {
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

impl Followed for NoPaxos {
    /// Sessions, also those that have not begun: nothing is concluded from some with one missing in between.
    /// [F-TOLD]
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
        // An order that comes late, or for a memory that is gone, is nothing special.
        let _ = self.resume(now, nonce, start);
    }

    /// [F-REPORT]
    fn report(&self, group: GroupId, pid: PartitionId, from: Member) -> Option<Message> {
        let started = self.replica().unreported()?;
        Some(Message::view_started(group, from, pid, &started))
    }
}
