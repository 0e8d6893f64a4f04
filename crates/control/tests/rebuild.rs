// SPDX-License-Identifier: Apache-2.0
//! Tests what a lost store is made anew from: the newest record of any node, with a quorum's word
//! that nothing has begun since. [E-REBUILD]

use std::collections::BTreeMap;

use control::{
    ControlOutbox, EpochRecord, EpochState, GroupSettings, GroupState, Message, Peer, Protocol,
    Rebuild, Settings, View,
};
use paxos::acceptor::Start;
use paxos::outbox::Sent;
use paxos::wire::value::{Probe, ProbeReport};
use paxos::{Epoch, Header, MsgType, NodeId, Outbox, Packet, Round, To};
use test_world::cluster::{
    ACCEPTORS, CLUSTER, CONTROLLER, GROUP, LEADERS, REPLICAS, configuration, nonce_of,
};

/// What a node shows to PROBE.
#[derive(Clone, Copy)]
struct ProbeAnswer {
    nonce: u64,
    epoch: Epoch,
    mute: bool,
}

/// The nodes of a cluster whose epoch 2 is active, and the answers that they give.
struct Nodes {
    shown: BTreeMap<NodeId, ProbeAnswer>,
    records: BTreeMap<NodeId, View>,
    found: GroupState,
    trusts_disks: bool,
}

#[derive(Default)]
struct Out {
    sent: Sent,
    messages: Vec<(Peer, Message)>,
}

impl Outbox for Out {
    fn send(&mut self, to: To, header: &Header, value: &[u8]) {
        self.sent.send(to, header, value);
    }
}

impl ControlOutbox for Out {
    fn control(&mut self, to: Peer, message: Message) {
        self.messages.push((to, message));
    }
}

fn record(epoch: Epoch, state: EpochState) -> EpochRecord {
    EpochRecord::new(&configuration(epoch), state)
}

fn view(epochs: &[EpochRecord]) -> View {
    View {
        version: 10,
        epochs: epochs.to_vec(),
        ..View::nothing(GROUP)
    }
}

use EpochState::{Active, Issued, Writing};

impl Nodes {
    fn new() -> Nodes {
        let told = view(&[record(1, Active), record(2, Active)]);
        let shown = |epoch| {
            move |node: NodeId| {
                let nonce = nonce_of(node);
                let mute = false;
                (node, ProbeAnswer { nonce, epoch, mute })
            }
        };
        let rest = ACCEPTORS.into_iter().chain(REPLICAS).map(shown(2));
        Nodes {
            shown: LEADERS.into_iter().map(shown(0)).chain(rest).collect(),
            records: REPLICAS.map(|node| (node, told.clone())).into(),
            found: GroupState::default(),
            trusts_disks: false,
        }
    }

    fn show(&mut self, node: NodeId, epoch: Epoch) {
        self.shown.get_mut(&node).unwrap().epoch = epoch;
    }

    fn tell(&mut self, node: NodeId, epochs: &[EpochRecord]) {
        self.records.insert(node, view(epochs));
    }

    /// Returns the state that follows from all answers, or why there is none.
    fn rebuilt(&self) -> Result<Option<GroupState>, String> {
        let outcome = self.asked().outcome(&|node| format!("node {node}"));
        outcome.map(|mut groups| groups.remove(0).state)
    }

    /// Returns the collection once nodes have had time to answer.
    fn asked(&self) -> Rebuild {
        let group = GroupSettings {
            id: GROUP,
            protocol: Protocol::Paxos,
            partitions: 1,
            max_value: 1_024,
            slots: 64,
            window: 48,
            leaders: LEADERS.into(),
            acceptors: ACCEPTORS.into(),
            f: 1,
            replicas: REPLICAS.into(),
            g: 1,
            learners: Vec::new(),
            leaving: Vec::new(),
        };
        let settings = Settings::new(CLUSTER, CONTROLLER, vec![group]);
        let found = |_| self.found.clone();
        let mut rebuild = Rebuild::new(&settings, found, self.trusts_disks, 5);
        let mut now = 0;
        for _ in 0..5 {
            let mut out = Out::default();
            rebuild.tick(now, &mut out);
            for (to, header, value) in &out.sent.0 {
                self.answer(&mut rebuild, *to, header, value);
            }
            for (to, message) in out.messages {
                assert_eq!(message, Message::RecordRequest { group: GROUP });
                let Peer::Node(node) = to else {
                    panic!("{to:?}")
                };
                let runs = self.shown.contains_key(&node);
                let none = runs.then_some(View::nothing(GROUP));
                if let Some(view) = self.records.get(&node).cloned().or(none) {
                    rebuild.message(to, &Message::Record { node, view });
                }
            }
            now = rebuild.next_deadline();
        }
        rebuild
    }

    fn answer(&self, rebuild: &mut Rebuild, to: To, probe: &Header, value: &[u8]) {
        let To::Node(node) = to else { panic!("{to:?}") };
        let Some(shown) = self.shown.get(&node) else {
            return;
        };
        let start = match value == Probe::Acceptor.emit() {
            true => Start::FIRST.shown(shown.mute),
            false => 0,
        };
        let report = ProbeReport {
            nonce: shown.nonce,
            trim: 0,
            start,
        };
        let header = Header {
            msgtype: MsgType::ProbeAck,
            swid: node,
            rnd: match shown.epoch {
                0 => Round(0),
                epoch => Round::base(epoch),
            },
            value_len: ProbeReport::LEN as u16,
            ..*probe
        };
        let datagram = header.datagram(&report.emit());
        let verdict = rebuild.packet(&Packet::parse(&datagram).unwrap());
        assert_eq!(verdict, paxos::Verdict::Changed);
    }
}

fn states(state: &GroupState) -> Vec<(Epoch, EpochState)> {
    state.epochs.iter().map(|e| (e.epoch, e.state)).collect()
}

/// An empty node says so, and nobody is waited for longer than that. [E-REBUILD]
#[test]
fn answers_are_complete_once_empty_nodes_have_answered_too() {
    let mut nodes = Nodes::new();
    assert!(nodes.records.len() < nodes.shown.len());
    assert!(nodes.asked().is_complete());
    nodes.shown.remove(&ACCEPTORS[0]);
    assert!(!nodes.asked().is_complete());
}

/// The next epoch lies above all numbers that the lost store may have issued, and needs the active
/// one's promises. [E-REBUILD] [E-ISSUE]
#[test]
fn what_a_quorum_knows_is_gone_on_from() {
    let mut nodes = Nodes::new();
    // A later epoch has the promise of one acceptor, and nobody has its record: it wrote nothing.
    nodes.show(ACCEPTORS[0], 5);
    let state = nodes.rebuilt().unwrap().unwrap();
    assert!(state.is_sound());
    assert_eq!(states(&state), [(1, Active), (2, Active), (1029, Issued)]);
    assert_eq!(state.needed(), [configuration(2)]);
    assert!([6, 1029, 1030].into_iter().all(|e| state.lacks(e)));
    assert!((1..6).all(|e| !state.lacks(e)));
    let mut next = state.clone();
    assert_eq!(next.issue(&configuration(0)), Ok(1030));
    next.mark_writing(1030).unwrap();
    let handed = control::state::Handed {
        next: vec![9],
        trim: vec![0],
        end: vec![8],
    };
    next.mark_active(1030, handed).unwrap();
    assert!(!next.lacks(6), "it has the promises of a quorum");
}

/// A quorum that doesn't answer, or shows a promise of an epoch without a record, may hide an
/// active one. [E-REBUILD]
#[test]
fn an_epoch_that_may_have_begun_is_not_passed_over() {
    let refused = |change: fn(&mut Nodes), why: &str| {
        let mut nodes = Nodes::new();
        change(&mut nodes);
        let said = nodes.rebuilt().unwrap_err();
        assert!(said.contains(why), "{said}");
    };
    refused(
        |nodes| nodes.shown.retain(|n, _| !ACCEPTORS[1..].contains(n)),
        "2 of the 3 acceptors of epoch 2 must show that no later epoch has begun, but node 4 \
         doesn't answer: start it; node 5 doesn't answer",
    );
    refused(
        |nodes| ACCEPTORS[1..].iter().for_each(|n| nodes.show(*n, 3)),
        "node 4 has promised epoch 3, of which no node that answers has a record",
    );
    refused(
        |nodes| {
            nodes.shown.remove(&ACCEPTORS[0]);
            nodes.shown.get_mut(&ACCEPTORS[2]).unwrap().nonce += 1;
        },
        "node 5 has lost its memory",
    );
    refused(
        |nodes| {
            let shown = nodes.shown.iter_mut();
            let acceptors = shown.filter(|(n, _)| ACCEPTORS.contains(n));
            acceptors.for_each(|(_, shown)| shown.mute = true);
        },
        "node 3 was started while no controller ran",
    );
    refused(
        |nodes| nodes.show(LEADERS[1], 3),
        "the newest record that any node has is epoch 2's",
    );
    refused(|nodes| nodes.show(REPLICAS[1], 3), "node 7 shows epoch 3");
    refused(
        |nodes| nodes.records.clear(),
        "no node that answers has the record of an active epoch",
    );

    fn first_was_issued(nodes: &mut Nodes) {
        for node in REPLICAS {
            nodes.tell(node, &[record(1, Issued)]);
        }
    }
    refused(
        first_was_issued,
        "the newest record that any node has is epoch 1's",
    );
    refused(
        |nodes| {
            first_was_issued(nodes);
            REPLICAS.iter().for_each(|n| nodes.show(*n, 0));
            ACCEPTORS.iter().for_each(|n| nodes.show(*n, 1));
        },
        "no node that answers has the record of an active epoch",
    );
    refused(|nodes| nodes.shown.clear(), "no node answers");
}

/// An operator vouches for disks that no controller has compared.
#[test]
fn memories_read_from_disks_count_if_an_operator_vouches_for_them() {
    let mut nodes = Nodes::new();
    nodes.trusts_disks = true;
    for shown in nodes.shown.values_mut() {
        shown.mute = true;
    }
    nodes.shown.remove(&ACCEPTORS[0]);
    let state = nodes.rebuilt().unwrap().unwrap();
    let starts: Vec<_> = state.memories.iter().map(|m| (m.node, m.start)).collect();
    let first = Start::FIRST.number();
    assert_eq!(starts, [(3, 0), (4, first), (5, first)]);
}

/// The last epoch of the newest record may have gone further than its teller knew. [E-REBUILD]
#[test]
fn the_last_epoch_that_any_node_knows_counts_as_one_that_wrote() {
    let mut nodes = Nodes::new();
    let issued = [record(2, Active), record(3, Issued)];
    nodes.tell(REPLICAS[2], &issued);
    let wrote_not = nodes.rebuilt().unwrap().unwrap();
    assert_eq!(states(&wrote_not), [(2, Active), (1027, Issued)]);
    // One promise is no quorum, and two may be.
    nodes.show(ACCEPTORS[0], 3);
    assert_eq!(nodes.rebuilt().unwrap().unwrap().needed().len(), 1);
    nodes.show(ACCEPTORS[1], 3);
    let may_have_written = nodes.rebuilt().unwrap().unwrap();
    let expected = [(2, Active), (3, Writing), (1027, Issued)];
    assert_eq!(states(&may_have_written), expected);
    // If epoch 3 has written, its own members promise to the next, which may have begun.
    nodes.show(ACCEPTORS[0], 4);
    nodes.show(ACCEPTORS[1], 4);
    let said = nodes.rebuilt().unwrap_err();
    assert!(said.contains("of the 3 acceptors of epoch 3"), "{said}");
    // The record of a writing epoch is enough.
    let mut nodes = Nodes::new();
    nodes.tell(REPLICAS[2], &[record(2, Active), record(3, Writing)]);
    let expected = [(2, Active), (3, Writing), (1027, Issued)];
    assert_eq!(states(&nodes.rebuilt().unwrap().unwrap()), expected);
}

/// A store that isn't older stays; what an old copy knows of memories is compared. [E-NEWEST]
/// [A-COMPARE]
#[test]
fn what_is_left_of_the_store_counts_too() {
    let mut nodes = Nodes::new();
    nodes.found.epochs = vec![record(2, Active)];
    assert_eq!(nodes.rebuilt(), Ok(None));
    nodes.found.epochs = vec![record(1, Active)];
    let state = nodes.rebuilt().unwrap().unwrap();
    let lost = |node| control::MemoryRecord {
        start: Start::FIRST.next(7).number(),
        ..state
            .memories
            .iter()
            .find(|m| m.node == node)
            .unwrap()
            .clone()
    };
    nodes.found.memories = vec![lost(ACCEPTORS[0])];
    let others = nodes.rebuilt().unwrap().unwrap();
    assert!(others.memories[0].forgot.is_some());
    nodes.found.memories.push(lost(ACCEPTORS[1]));
    let said = nodes.rebuilt().unwrap_err();
    assert!(said.contains("node 3 HAS FORGOTTEN VOTES"), "{said}");
    // One epoch with two configurations is another controller's.
    let mut other = configuration(2);
    other.leader.nonce += 1;
    nodes.tell(REPLICAS[0], &[EpochRecord::new(&other, Active)]);
    let said = nodes.rebuilt().unwrap_err();
    assert!(said.contains("two configurations"), "{said}");
}
