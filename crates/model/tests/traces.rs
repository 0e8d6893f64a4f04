// SPDX-License-Identifier: Apache-2.0
//! Tests that the specification allows what the simulator recorded, and finds what was falsified.

use model::record;
use model::spec::{self, Violation};
use model::trace::Trace;
use paxos::trace::Event;
use paxos::{Flags, Header, MsgType, NodeId, Packet, Round};
use sim::cluster::mutation::Mutation;
use sim::cluster_script::ClusterScript;
use sim::draw::{self, Limits};
use sim::plan::{Action, Plan};

const SEEDS: u64 = 70;

fn verdict(trace: &Trace) -> Result<(), String> {
    spec::check(trace).map_err(|Violation { event, why }| format!("event {event}: {why}"))
}

#[test]
fn recorded_seeds_are_allowed() {
    let (mut events, mut failed) = (0, Vec::new());
    for seed in 0..SEEDS {
        let plan = draw::plan(seed, &Limits::default());
        let trace = record::plan(&plan);
        events += trace.events.len();
        match verdict(&trace) {
            Err(why) if accepts_loss(&plan) && why.contains(OVERRIDE) => {}
            Err(why) => failed.push(format!("seed {seed}, {why}")),
            Ok(()) => {}
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(events > 100_000, "only {events} events");
}

/// The model allows everything that seeds of the simulator with NOPaxos have recorded. [N-ACK]
/// [W-TELL] [W-ONCE] [W-QUORUM] [W-MERGE] [F-PROGRAM] [Q-STAMP]
#[test]
fn recorded_seeds_of_nopaxos_are_allowed() {
    let (mut events, mut failed) = (0, Vec::new());
    for seed in 0..SEEDS {
        let trace = record::ordered(seed);
        events += trace.events.len();
        failed.extend(
            verdict(&trace)
                .err()
                .map(|why| format!("seed {seed}, {why}")),
        );
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(events > 100_000, "only {events} events");
}

/// Falsifies seeds of NOPaxos: each is found where it was made, and nowhere before.
#[track_caller]
fn is_found_in_nopaxos(
    wanted: impl Fn(&Header) -> bool,
    falsify: impl Fn(&mut Header, &mut Vec<u8>),
) {
    let has = |trace: &Trace| {
        let mut sent = trace.events.iter();
        sent.any(|event| match event {
            Event::Send(_, bytes) => wanted(&Packet::parse(bytes).unwrap().header),
            _ => false,
        })
    };
    let traces = (0..SEEDS).map(record::ordered).filter(has).take(3);
    let mut count = 0;
    for mut trace in traces {
        let at = first_sent(&trace, &wanted);
        rewrite(&mut trace, at, &falsify);
        let found = spec::check(&trace).expect_err("a violation");
        assert_eq!(found.event, at, "{}", found.why);
        count += 1;
    }
    assert_eq!(count, 3);
}

/// The check of traces finds an acknowledgement of a request that never came. [N-ACK]
#[test]
fn an_acknowledgement_of_what_never_came_is_found() {
    is_found_in_nopaxos(of_type(MsgType::Ack), |h, _| h.inst += 20);
    is_found_in_nopaxos(of_type(MsgType::SyncRep), |h, _| h.inst += 20);
}

/// The check of traces finds an answer to a request that never came. [N-ANSWER]
#[test]
fn an_answer_for_what_never_came_is_found() {
    let early = |h: &Header| h.msgtype == MsgType::Reply && !h.rnd.is_none();
    is_found_in_nopaxos(early, |h, _| h.inst += 20);
    is_found_in_nopaxos(early, |h, _| h.rnd = Round(h.rnd.0 + 1));
}

/// The check of traces finds a VIEW_CHANGE that tells too little. [W-TELL]
#[test]
fn a_view_change_that_tells_too_little_is_found() {
    let later = |h: &Header| h.msgtype == MsgType::ViewChange && !h.vrnd.is_none() && h.inst > 8;
    is_found_in_nopaxos(later, |h, value| {
        h.inst = 0;
        value.fill(0);
    });
}

/// The check of traces finds a stamped packet without a request. [Q-STAMP] [Q-PROGRAM]
#[test]
fn a_stamp_that_nobody_asked_for_is_found() {
    is_found_in_nopaxos(of_type(MsgType::Ordered), |h, _| h.inst += 1);
    is_found_in_nopaxos(of_type(MsgType::Ordered), |h, _| h.request += 1);
}

/// The check of traces finds a view that begins with a shorter log than it must. [W-MERGE] [W-ONCE]
#[test]
fn a_view_that_begins_with_less_is_found() {
    let later = |h: &Header| h.msgtype == MsgType::StartView && h.inst > 8;
    is_found_in_nopaxos(later, |h, value| {
        h.inst = 0;
        value.fill(0);
    });
}

/// The check of traces finds a point that one replica alone has made stable. [Y-POINT]
#[test]
fn what_is_made_stable_alone_is_found() {
    is_found_in_nopaxos(of_type(MsgType::SyncCommit), |h, _| h.inst += 20);
}

/// An operator's override goes on without the promises that the rules ask for; the specification
/// knows no operator.
const OVERRIDE: &str = "is writing without f+1 promises";

fn accepts_loss(plan: &Plan) -> bool {
    let mut actions = plan.actions.iter();
    actions.any(|(_, action)| *action == Action::AcceptLoss)
}

#[test]
fn the_text_of_a_trace_is_the_trace() {
    let trace = record::seed(1);
    let text = trace.to_string();
    assert_eq!(Trace::parse(&text), Ok(trace));
    assert!(Trace::parse("").is_err());
    assert!(Trace::parse("trace cluster=1").is_err());
    let bad = text.lines().next().unwrap().to_owned() + "\nrecv 11 0g\n";
    assert_eq!(Trace::parse(&bad), Err("line 2: recv 11 0g".into()));
}

/// Returns the first packet that a node other than a client sent of a type, with the place of its
/// event.
fn first_sent(trace: &Trace, wanted: impl Fn(&Header) -> bool) -> usize {
    let sent = |event: &Event| match event {
        Event::Send(_, bytes) => wanted(&Packet::parse(bytes).unwrap().header),
        _ => false,
    };
    trace.events.iter().position(sent).expect("such a packet")
}

fn of_type(msgtype: MsgType) -> impl Fn(&Header) -> bool {
    move |h| h.msgtype == msgtype
}

fn rewrite(trace: &mut Trace, at: usize, change: impl FnOnce(&mut Header, &mut Vec<u8>)) {
    let Event::Send(_, bytes) = &mut trace.events[at] else {
        panic!("event {at} is no packet sent");
    };
    let packet = Packet::parse(bytes).unwrap();
    let (mut header, mut value) = (packet.header, packet.value.to_vec());
    change(&mut header, &mut value);
    *bytes = header.datagram(&value);
}

/// Returns traces of some seeds in which such a packet is sent.
fn seeds_with(wanted: impl Fn(&Header) -> bool) -> impl Iterator<Item = u64> {
    let has = move |seed: &u64| {
        record::seed(*seed).events.iter().any(|event| match event {
            Event::Send(_, bytes) => wanted(&Packet::parse(bytes).unwrap().header),
            _ => false,
        })
    };
    (1..SEEDS).filter(has).take(3)
}

/// Checks that each falsification is found where it was made, and nothing is found before.
#[track_caller]
fn is_found(falsify: impl Fn(&mut Trace) -> usize) {
    is_found_in(1..4, falsify);
}

#[track_caller]
fn is_found_in(seeds: impl Iterator<Item = u64>, falsify: impl Fn(&mut Trace) -> usize) {
    for seed in seeds {
        let mut trace = record::seed(seed);
        let at = falsify(&mut trace);
        let found = spec::check(&trace).expect_err("a violation");
        assert_eq!(found.event, at, "seed {seed}: {}", found.why);
    }
}

/// Checks that without the orders that `is_order` names, the first packet of `node` that shows them
/// is found to be wrong: PROBE_ACK already, before it votes or stamps.
#[track_caller]
fn lack_is_found(node: NodeId, is_order: impl Fn(&Event) -> bool, earned_by_it: MsgType) {
    for seed in 1..4 {
        let mut trace = record::seed(seed);
        trace.events.retain(|event| !is_order(event));
        let of_node = |h: &Header| h.msgtype == earned_by_it && h.swid == node;
        let at_last = first_sent(&trace, of_node);
        let found = spec::check(&trace).expect_err("a violation");
        assert!(found.event <= at_last, "seed {seed}: {}", found.why);
        assert!(found.why.starts_with(&format!("node {node} hasn't earned")));
    }
}

/// A leader must not retire because one acceptor refuses its proposals. [L-RETIRE]
#[test]
fn a_leader_that_retires_for_one_refusal_is_found() {
    let script = include_str!("../../../testdata/cluster/one_refusal.txt");
    let script = ClusterScript::parse(script).unwrap();
    assert_eq!(verdict(&record::plan(script.plan())), Ok(()));
    let trace = record::mistaken(script.plan(), Mutation::RetiresForOne);
    let found = spec::check(&trace).expect_err("a violation");
    assert!(
        found.why.starts_with("node 1 hasn't earned"),
        "{}",
        found.why
    );
}

#[test]
fn a_vote_in_another_round_is_found() {
    is_found(|trace| {
        let at = first_sent(trace, of_type(MsgType::Phase2b));
        rewrite(trace, at, |h, _| {
            h.rnd = Round::base(7);
            h.vrnd = h.rnd;
        });
        at
    });
}

#[test]
fn a_vote_for_another_value_is_found() {
    is_found(|trace| {
        let at = first_sent(trace, |h| h.msgtype == MsgType::Phase2b && h.value_len > 4);
        rewrite(trace, at, |_, value| value[4] ^= 1);
        at
    });
}

/// A durable acceptor may still owe the same answer to a copy of the question, but not ten of them.
#[test]
fn a_vote_given_many_times_is_found() {
    for seed in 1..4 {
        let mut trace = record::seed(seed);
        let at = first_sent(&trace, of_type(MsgType::Phase2b));
        let copies = vec![trace.events[at].clone(); 10];
        trace.events.splice(at..at, copies);
        let found = spec::check(&trace).expect_err("a violation");
        assert!((at + 1..=at + 10).contains(&found.event), "{}", found.why);
    }
}

/// The check of traces finds an instance that was stamped twice. [L-STAMP]
#[test]
fn an_instance_stamped_twice_is_found() {
    is_found(|trace| {
        let stamped = |h: &Header| h.msgtype == MsgType::Phase2a && h.swid < 10 && h.inst > 1;
        let at = first_sent(trace, stamped);
        rewrite(trace, at, |h, _| h.inst -= 1);
        at
    });
}

/// The check of traces finds a promise that doesn't show the acceptor's vote. [A-PROMISE]
#[test]
fn a_promise_that_hides_its_vote_is_found() {
    let shows = |h: &Header| h.msgtype == MsgType::Phase1b && !h.vrnd.is_none() && !h.rnd.is_none();
    is_found_in(seeds_with(shows), |trace| {
        let at = first_sent(trace, shows);
        rewrite(trace, at, |h, value| {
            *h = Header {
                vrnd: Round::NONE,
                client: 0,
                request: 0,
                flags: Flags::NONE,
                ..*h
            };
            value.clear();
        });
        at
    });
}

/// The check of traces finds a decision that differs from the votes that the learner node got, or
/// comes before them. [D-QUORUM]
#[test]
fn a_decision_that_a_learner_node_didnt_hear_is_found() {
    let with_learners = || seeds_with(of_type(MsgType::Deliver));
    assert_eq!(with_learners().count(), 3);
    // The decision has another value, or the right one before its votes have come.
    is_found_in(with_learners(), |trace| {
        let at = first_sent(trace, |h| h.msgtype == MsgType::Deliver && h.value_len > 4);
        rewrite(trace, at, |_, value| value[4] ^= 1);
        at
    });
    is_found_in(with_learners(), |trace| {
        let at = first_sent(trace, of_type(MsgType::Deliver));
        let Event::Send(learner, delivered) = trace.events[at].clone() else {
            unreachable!("it was found there")
        };
        let inst = Packet::parse(&delivered).unwrap().header.inst;
        let is_vote = |event: &Event| match event {
            Event::Recv(node, bytes) if *node == learner => {
                let h = Packet::parse(bytes).unwrap().header;
                h.msgtype == MsgType::Phase2b && h.inst == inst
            }
            _ => false,
        };
        let last_vote = trace.events[..at].iter().rposition(is_vote);
        let last_vote = last_vote.expect("votes came before it");
        let delivered = trace.events.remove(at);
        trace.events.insert(last_vote, delivered);
        last_vote
    });
}

/// The check of traces finds an answer of a stranger that must not answer. [A-STRANGER]
#[test]
fn a_stranger_that_answers_is_found() {
    let enabled = |e: &Event| matches!(e, Event::Enable(11, _));
    lack_is_found(11, enabled, MsgType::Phase2b);
}

#[test]
fn a_proposal_without_promises_is_found() {
    is_found(|trace| {
        let by_candidate = |h: &Header| h.msgtype == MsgType::Phase2a && h.swid == 90;
        let at = first_sent(trace, by_candidate);
        // The first one is a marker, which needs none.
        rewrite(trace, at, |h, value| {
            *h = Header {
                client: 5,
                request: 1,
                flags: Flags::NONE,
                ..*h
            };
            value.clear();
        });
        at
    });
}

/// The check of traces finds a leader that stamps before it has a round. [L-PROGRAM]
#[test]
fn a_leader_that_stamps_without_a_round_is_found() {
    let programmed = |e: &Event| matches!(e, Event::Program(1, _));
    lack_is_found(1, programmed, MsgType::Phase2a);
}

/// The check of traces finds a leader that doesn't begin where its epoch says. [C-HANDOVER]
#[test]
fn a_leader_that_begins_elsewhere_is_found() {
    is_found(|trace| {
        let is_program = |e: &Event| matches!(e, Event::Program(..));
        let at = trace.events.iter().position(is_program).unwrap();
        if let Event::Program(_, program) = &mut trace.events[at] {
            program.next[0] += 1;
        }
        at
    });
}

/// The check of traces finds a leader that is told of other acceptors than its epoch's. [L-RETIRE]
#[test]
fn a_leader_that_is_told_of_other_acceptors_is_found() {
    is_found(|trace| {
        let is_program = |e: &Event| matches!(e, Event::Program(..));
        let at = trace.events.iter().position(is_program).unwrap();
        if let Event::Program(_, program) = &mut trace.events[at] {
            program.f = 0;
        }
        at
    });
}

/// The check of traces finds an epoch that is active before its marker is confirmed. [C-SEAL]
#[test]
fn an_epoch_that_is_active_before_its_marker_is_found() {
    is_found(|trace| {
        let at = |wanted| trace.events.iter().position(|e| *e == wanted).unwrap();
        let (writing, active) = (at(Event::Writing(1)), at(Event::Active(1)));
        let event = trace.events.remove(active);
        trace.events.insert(writing + 1, event);
        writing + 1
    });
}

/// The check of traces finds an epoch that is writing without enough promises. [C-PROMISE]
#[test]
fn an_epoch_that_writes_without_promises_is_found() {
    let mut found = 0;
    for seed in 1..10 {
        let mut trace = record::seed(seed);
        let is_later = |e: &Event| matches!(e, Event::Writing(epoch) if *epoch > 1);
        let Some(Event::Writing(epoch)) = trace.events.iter().find(|e| is_later(e)).cloned() else {
            continue;
        };
        // All promises but one are lost.
        let mut promised_by = None;
        trace.events.retain(|event| {
            let Event::Recv(_, bytes) = event else {
                return true;
            };
            let Ok(packet) = Packet::parse(bytes) else {
                return true;
            };
            let h = packet.header;
            let promise = of_type(MsgType::Phase1b)(&h) && h.flags.has(Flags::RANGE);
            let other = promise
                && h.rnd == Round::base(epoch)
                && *promised_by.get_or_insert(h.swid) != h.swid;
            !other
        });
        let at = trace.events.iter().position(is_later).unwrap();
        let violation = spec::check(&trace).expect_err("a violation");
        assert_eq!(violation.event, at, "seed {seed}: {}", violation.why);
        found += 1;
    }
    assert!(found > 3, "only {found} seeds have a second epoch");
}

/// Lets a durable acceptor that was killed answer for an instance for which it had got a proposal.
fn after_a_kill(vote_was_sent: bool, still_there: bool, resumed: bool) -> Result<(), String> {
    let in_round = |msgtype, rnd| Header {
        cluster: 1,
        group: 1,
        rnd,
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    };
    let base = Round::base(1);
    let proposal = in_round(MsgType::Phase2a, base).datagram(b"x");
    let question = in_round(MsgType::Query, Round::NONE).datagram(&[]);
    let vote = Header {
        vrnd: base,
        swid: 11,
        ..in_round(MsgType::Phase2b, base)
    };
    let no_vote = Header {
        swid: 11,
        ..in_round(MsgType::Phase1b, Round::NONE)
    };
    let sent = |header: Header, value: &[u8]| Event::Send(11, header.datagram(value));
    let start = Event::parse("start 11 acceptor nonce=5 start=4294967296");
    let epoch = "epoch 1 leader=1:1 acceptors=11:5,12:6,13:7 f=1 replicas=21 g=0";
    let enable = "enable 11 epoch=1 nonce=5 trim=0 end=0 replicas=21 g=0";
    let mut events = vec![Event::parse(epoch).unwrap(), start.unwrap()];
    events.push(Event::parse(enable).unwrap());
    // This question shows the enabling.
    events.push(Event::Recv(11, question.clone()));
    events.push(sent(no_vote, &[]));
    events.push(Event::Recv(11, proposal));
    if vote_was_sent {
        events.push(sent(vote, b"x"));
    }
    events.push(Event::parse("start 11 acceptor nonce=5 start=8589934599").unwrap());
    if resumed {
        events.push(Event::parse("resume 11 start=8589934599").unwrap());
    }
    events.push(Event::Recv(11, question));
    events.push(match still_there {
        true => sent(vote, b"x"),
        false => sent(no_vote, &[]),
    });
    let first = "trace cluster=1 group=1 partitions=1 max_value=64 slots=8\n";
    let settings = Trace::parse(first).unwrap().settings;
    verdict(&Trace { settings, events })
}

/// After a power failure a durable acceptor may have lost only records that nobody has seen.
/// [A-DURABLE]
#[test]
fn a_log_may_lose_only_what_nobody_saw() {
    assert_eq!(after_a_kill(true, true, true), Ok(()));
    assert_eq!(after_a_kill(false, true, true), Ok(()));
    assert_eq!(after_a_kill(false, false, true), Ok(()));
    let found = after_a_kill(true, false, true).unwrap_err();
    assert!(found.contains("hasn't earned"), "{found}");
}

/// A restarted acceptor sends nothing until the controller lets it go on. [A-MUTE]
#[test]
fn a_restarted_memory_says_nothing_before_it_may_go_on() {
    let found = after_a_kill(true, true, false).unwrap_err();
    assert!(found.contains("hasn't earned"), "{found}");
}

/// An old copy was put back: what it shows was never true of this start. [A-COMPARE]
#[test]
fn an_old_copy_must_not_go_on() {
    let first = "trace cluster=1 group=1 partitions=1 max_value=64 slots=8\n\
                 start 11 acceptor nonce=5 start=4294967296\n\
                 start 11 acceptor nonce=5 start=8589934599\n\
                 resume 11 start=8589934599\n\
                 start 11 acceptor nonce=5 start=8589934600\n";
    assert_eq!(verdict(&Trace::parse(first).unwrap()), Ok(()));
    let resumed = format!("{first}resume 11 start=8589934600\n");
    let found = verdict(&Trace::parse(&resumed).unwrap()).unwrap_err();
    assert!(found.contains("has forgotten is let go on"), "{found}");
}
