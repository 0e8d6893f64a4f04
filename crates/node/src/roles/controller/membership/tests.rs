// SPDX-License-Identifier: Apache-2.0
use control::status::{MemberStatus, PartitionStatus};
use control::{EpochRecord, EpochState};
use paxos::{Configuration, Member, Round};

use super::*;
use crate::cluster_file::parse;
use crate::level::levels;

const SAMPLE: &str = include_str!("../../../../../../testdata/cluster.toml");
const NEW: NodeId = 94;

fn cluster() -> ClusterFile {
    parse(SAMPLE, "cluster.toml").unwrap()
}

fn id(name: &str) -> NodeId {
    cluster().node(name).unwrap().id
}

/// Acceptor 4 comes in the place of acceptor 3.
fn replacement() -> Vec<MemberChange> {
    let record = "name = \"acceptor-4\"\nid = 94\nrole = \"acceptor\"\n\
                  address = \"127.0.0.1:9401\"\ncontrol = \"127.0.0.1:9402\"\n";
    vec![
        MemberChange::Add {
            name: "acceptor-4".to_owned(),
            node: NEW,
            record: record.to_owned(),
        },
        MemberChange::Leave {
            name: "acceptor-3".to_owned(),
            node: id("acceptor-3"),
        },
    ]
}

/// The active epoch has these acceptors, and all nodes of the file answer.
fn status(leader: &str, acceptors: &[NodeId]) -> GroupStatus {
    let member = |node| Member { node, nonce: 7 };
    let mut acceptors = acceptors.to_vec();
    acceptors.sort_unstable();
    let configuration = Configuration {
        epoch: 5,
        leader: member(id(leader)),
        acceptors: acceptors.into_iter().map(member).collect(),
        f: 1,
        replicas: cluster().replicas(0).iter().map(|n| n.id).collect(),
        g: cluster().groups[0].g,
    };
    let watched = |node: &Node| MemberStatus {
        node: node.id,
        role: node.role.name().to_owned(),
        alive: true,
        nonce: Some(7),
        start: None,
        mute: false,
        disbelieved: false,
        partitions: vec![PartitionStatus::default()],
    };
    GroupStatus {
        group: 0,
        active: Some(5),
        epochs: vec![EpochRecord::new(&configuration, EpochState::Active)],
        leader: Some(id(leader)),
        members: cluster().nodes.iter().map(watched).collect(),
        behind: vec![],
        suspects: vec![],
        attempt: None,
        last_failover: None,
        refused_lanes: 0,
        warnings: vec![],
    }
}

fn old() -> [NodeId; 3] {
    ["acceptor-1", "acceptor-2", "acceptor-3"].map(id)
}

fn membership(cluster: &ClusterFile) -> Membership {
    Membership::new(cluster, cluster.node("controller").unwrap())
}

fn answer(membership: &mut Membership, node: NodeId, kept: u32, uses: u32) {
    let trouble = None;
    membership.note(&MembersMessage::Kept {
        node,
        kept,
        uses,
        levels: levels(),
        trouble,
        lost: vec![],
    });
}

fn all_but_one_answer(membership: &mut Membership, silent: &str, uses: u32) {
    for node in cluster().nodes.iter().filter(|node| node.name != silent) {
        let uses = if node.role == Role::Acceptor { 2 } else { uses };
        answer(membership, node.id, 2, uses);
    }
}

#[test]
fn nodes_begin_anew_one_by_one_and_who_leads_hands_over() {
    let mut one = membership(&cluster());
    let (changes, groups) = (replacement(), [status("leader-1", &old())]);
    all_but_one_answer(&mut one, "acceptor-3", 0);
    let mut order = Vec::new();
    for _ in 0..20 {
        match one.step(&changes, &groups) {
            Step::BeginAnew(node) => {
                order.push(one.name(node));
                answer(&mut one, node, 2, 2);
            }
            step => {
                let (group, epoch, to) = (0, 5, id("leader-2"));
                assert_eq!(step, Step::HandOver { group, epoch, to });
                break;
            }
        }
    }
    let replicas = ["replica-1", "replica-2", "replica-3"];
    let expected = [&replicas[..], &["leader-2"]].concat();
    assert_eq!(order, expected);
    let groups = [status("leader-2", &old())];
    for name in ["leader-1", "controller"] {
        assert_eq!(one.step(&changes, &groups), Step::BeginAnew(id(name)));
        answer(&mut one, id(name), 2, 2);
    }
}

#[test]
fn nobody_begins_anew_while_a_node_lacks_the_list_or_a_replica_is_behind() {
    let waits = |one: &mut Membership, groups: &[GroupStatus], why: &str| {
        let step = one.step(&replacement(), groups);
        let waits = matches!(&step, Step::Wait(what) if what.contains(why));
        assert!(waits, "{why:?} isn't why: {step:?}");
    };
    let group = status("leader-1", &old());
    let mut one = membership(&cluster());
    all_but_one_answer(&mut one, "acceptor-1", 0);
    waits(
        &mut one,
        std::slice::from_ref(&group),
        "acceptor-1 doesn't answer",
    );
    answer(&mut one, id("acceptor-1"), 1, 1);
    waits(
        &mut one,
        std::slice::from_ref(&group),
        "acceptor-1 writes it down",
    );
    answer(&mut one, id("acceptor-1"), 2, 2);
    answer(&mut one, id("replica-2"), 2, 2);
    answer(&mut one, id("replica-3"), 2, 2);
    let behind = GroupStatus {
        behind: vec![id("replica-2")],
        ..group.clone()
    };
    waits(&mut one, &[behind], "replica-2 catches up");
    let mut lags = group.clone();
    let replica = |m: &&mut MemberStatus| m.node == id("replica-3");
    let others = lags.members.iter_mut().filter(|m| !replica(m));
    others.for_each(|member| member.partitions[0].inst = 1_000_000);
    waits(&mut one, &[lags], "replica-3 catches up");
    let changing = GroupStatus {
        active: None,
        ..group.clone()
    };
    waits(&mut one, &[changing], "no epoch is in force");
    one.note(&MembersMessage::Kept {
        node: id("replica-1"),
        kept: 2,
        uses: 0,
        levels: Levels::default(),
        trouble: Some("it runs inside another program".to_owned()),
        lost: vec![],
    });
    waits(
        &mut one,
        &[group],
        "replica-1: it runs inside another program",
    );
}

#[test]
fn who_left_is_removed_once_the_epoch_has_the_others() {
    let changes = replacement();
    let used = cluster().with_changes(&changes).unwrap();
    let mut one = membership(&used);
    all_but_one_answer(&mut one, "acceptor-3", 2);
    let step = one.step(&changes, &[status("leader-1", &old())]);
    let waits = matches!(&step, Step::Wait(what) if what.contains("acceptor-4 doesn't answer"));
    assert!(waits, "{step:?}");
    answer(&mut one, NEW, 2, 2);
    let step = one.step(&changes, &[status("leader-1", &old())]);
    let waits = matches!(&step, Step::Wait(what) if what.contains("start it at 127.0.0.1:9401"));
    assert!(waits, "{step:?}");

    let groups = [status("leader-1", &[old()[0], old()[1], NEW])];
    let removal = MemberChange::Remove {
        name: "acceptor-3".to_owned(),
        node: id("acceptor-3"),
    };
    assert_eq!(
        one.step(&changes, &groups),
        Step::Append(vec![removal.clone()])
    );
    let all = [&changes[..], &[removal]].concat();
    for node in used.nodes.iter().filter(|node| node.name != "acceptor-3") {
        answer(&mut one, node.id, 3, 3);
    }
    assert_eq!(one.step(&all, &groups), Step::Done);
}

#[test]
fn a_second_order_is_refused_unless_it_takes_new_nodes_back() {
    let changes = replacement();
    let used = cluster().with_changes(&changes).unwrap();
    let groups = [status("leader-1", &old())];
    let mut one = membership(&used);
    let leave = |name: &str, node| MemberChange::Leave {
        name: name.to_owned(),
        node,
    };
    let back = [leave("acceptor-4", NEW)];
    let why = one.against(&back, &groups).unwrap();
    assert!(why.contains("try again"), "{why}");
    all_but_one_answer(&mut one, "acceptor-3", 2);
    one.step(&changes, &groups);
    let other = [leave("acceptor-1", id("acceptor-1"))];
    let why = one.against(&other, &groups).unwrap();
    assert!(
        why.contains("another change is on its way: acceptor-4"),
        "{why}"
    );
    let why = one.against(&back, &groups).unwrap();
    assert!(why.contains("2 acceptors"), "acceptor-3 leaves, too: {why}");
    let mut instead = replacement();
    if let MemberChange::Add { name, node, record } = &mut instead[0] {
        *record = record
            .replace("94", "95")
            .replace("acceptor-4", "acceptor-5");
        (*name, *node) = ("acceptor-5".to_owned(), NEW + 1);
    }
    instead[1] = back[0].clone();
    assert_eq!(one.against(&instead, &groups), None);
}

/// If the store was lost, the list on the controller's own disk is stored again.
#[test]
fn a_store_that_has_less_than_the_controller_is_completed() {
    let changes = replacement();
    let used = cluster().with_changes(&changes).unwrap();
    let mut one = membership(&used);
    let groups = [status("leader-1", &old())];
    assert_eq!(
        one.step(&changes[..1], &groups),
        Step::Append(changes[1..].to_vec())
    );
}

/// The store is lost with the controller's machine, and the others know what was changed.
#[test]
fn changes_that_only_other_nodes_know_are_stored_again() {
    let cluster = cluster();
    let mut one = membership(&cluster);
    let group = status("leader-1", &old());
    let refused = one.against(&replacement(), std::slice::from_ref(&group));
    assert!(refused.unwrap().contains("no node has answered"));
    assert_eq!(one.step(&[], std::slice::from_ref(&group)), Step::Done);
    one.note(&MembersMessage::Kept {
        node: id("leader-1"),
        kept: 2,
        uses: 2,
        levels: Levels::default(),
        trouble: None,
        lost: replacement(),
    });
    assert_eq!(
        one.step(&[], std::slice::from_ref(&group)),
        Step::Append(replacement())
    );
    let rest = replacement()[1..].to_vec();
    let first = &replacement()[..1];
    assert_eq!(one.step(first, &[group]), Step::Append(rest));
}

/// The level rises only if each node has said lately that its program has it. [E-LEVEL]
#[test]
fn the_level_waits_for_all_programs() {
    let group = [status("leader-1", &old())];
    let order = [MemberChange::SetLevel { level: 2 }];
    let mut one = membership(&cluster());
    let newer = Levels {
        oldest: 1,
        newest: 2,
    };
    let say = |one: &mut Membership, node: NodeId, levels: Levels| {
        one.note(&MembersMessage::Kept {
            node,
            kept: 0,
            uses: 0,
            levels,
            trouble: None,
            lost: vec![],
        });
    };
    let names = |one: &Membership| one.against_level(&order).unwrap_or_default();
    for node in cluster().nodes.iter().skip(1) {
        say(&mut one, node.id, newer);
    }
    assert_eq!(one.step(&[], &group), Step::Done);
    let silent = &cluster().nodes[0];
    let why = names(&one);
    assert!(
        why.contains(&format!("{} hasn't answered", silent.name)),
        "{why}"
    );
    assert!(!one.is_due(), "all is done, so nodes are only reminded");
    one.ask_again();
    assert!(one.is_due());
    say(&mut one, silent.id, newer);
    assert_eq!(one.against_level(&order), None);
    say(&mut one, id("replica-2"), Levels::default());
    let why = names(&one);
    assert!(why.contains("level 2: replica-2 has level 1; see"), "{why}");
}

fn leave(name: &str) -> MemberChange {
    let (name, node) = (name.to_owned(), id(name));
    MemberChange::Leave { name, node }
}

/// Returns a controller that works with these changes, as all nodes do.
fn in_use(changes: &[MemberChange]) -> Membership {
    let used = cluster().with_changes(changes).unwrap();
    let mut one = membership(&used);
    let (nodes, all) = (used.nodes.iter(), changes.len() as u32);
    nodes.for_each(|node| answer(&mut one, node.id, all, all));
    one
}

#[test]
fn a_leader_that_leaves_hands_over_before_it_is_removed() {
    let changes = [leave("leader-1")];
    let mut one = in_use(&changes);
    let to = id("leader-2");
    let step = one.step(&changes, &[status("leader-1", &old())]);
    assert_eq!(
        step,
        Step::HandOver {
            group: 0,
            epoch: 5,
            to
        }
    );
    let step = one.step(&changes, &[status("leader-2", &old())]);
    let (name, node) = ("leader-1".to_owned(), id("leader-1"));
    assert_eq!(
        step,
        Step::Append(vec![MemberChange::Remove { name, node }])
    );
}

/// The controller is another one since, and has heard of the dead node only in the list.
#[test]
fn a_dead_node_is_replaced_after_earlier_changes() {
    let (name, node) = ("leader-2".to_owned(), id("leader-2"));
    let before = [leave("leader-2"), MemberChange::Remove { name, node }];
    let used = cluster().with_changes(&before).unwrap();
    let mut one = membership(&used);
    let groups = [status("leader-1", &old())];
    let alive = used.nodes.iter().filter(|n| n.name != "acceptor-3");
    alive.for_each(|node| answer(&mut one, node.id, 2, 2));
    let step = one.step(&before, &groups);
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
    let refused = one.against(&[leave("replica-1")], &groups).unwrap();
    assert!(refused.contains("acceptor-3 doesn't answer"), "{refused}");
    assert_eq!(one.against(&replacement(), &groups), None);
}

/// The controller began anew before acceptors, which don't answer the new replica yet.
#[test]
fn a_new_replica_that_is_behind_keeps_nobody_from_knowing_it() {
    let record = "name = \"replica-4\"\nid = 99\nrole = \"replica\"\n\
                  address = \"127.0.0.1:9901\"\ncontrol = \"127.0.0.1:9902\"\n";
    let changes = [MemberChange::Add {
        name: "replica-4".to_owned(),
        node: 99,
        record: record.to_owned(),
    }];
    let mut one = in_use(&changes);
    answer(&mut one, id("acceptor-2"), 1, 0);
    let mut group = status("leader-1", &old());
    group.epochs.last_mut().unwrap().replicas.push(99);
    group.behind = vec![99];
    let step = one.step(&changes, &[group.clone()]);
    assert_eq!(step, Step::BeginAnew(id("acceptor-2")));
    answer(&mut one, id("acceptor-2"), 1, 1);
    answer(&mut one, id("controller"), 1, 0);
    let step = one.step(&changes, &[group]);
    assert_eq!(step, Step::BeginAnew(id("controller")));
}

/// Otherwise the only replica of a group would refuse its state to the one that takes its place.
#[test]
fn a_replica_that_leaves_begins_anew_if_it_answers_so_that_it_knows_a_new_one() {
    let mut changes = vec![leave("replica-3")];
    let record = "name = \"replica-4\"\nid = 99\nrole = \"replica\"\n\
                  address = \"127.0.0.1:9901\"\ncontrol = \"127.0.0.1:9902\"\n";
    changes.push(MemberChange::Add {
        name: "replica-4".to_owned(),
        node: 99,
        record: record.to_owned(),
    });
    let mut one = in_use(&changes);
    let mut group = status("leader-1", &old());
    group.epochs.last_mut().unwrap().replicas.push(99);
    group.behind = vec![99];
    let groups = [group];
    answer(&mut one, id("replica-3"), 2, 0);
    let step = one.step(&changes, &groups);
    assert_eq!(step, Step::BeginAnew(id("replica-3")));
    answer(&mut one, id("replica-3"), 2, 2);
    let step = one.step(&changes, &groups);
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
    // It needn't answer at all.
    one.heard.remove(&id("replica-3"));
    let step = one.step(&changes, &groups);
    assert!(matches!(step, Step::Wait(_)), "{step:?}");
}

/// It may know too few acceptors to catch up, so it mustn't be waited for.
#[test]
fn a_replica_that_is_behind_and_lacks_changes_begins_anew_first() {
    let changes = replacement();
    let mut one = membership(&cluster());
    all_but_one_answer(&mut one, "acceptor-3", 0);
    let mut group = status("leader-1", &old());
    group.behind = vec![id("replica-2")];
    let step = one.step(&changes, &[group.clone()]);
    assert_eq!(step, Step::BeginAnew(id("replica-2")));
    answer(&mut one, id("replica-2"), 2, 2);
    let step = one.step(&changes, &[group]);
    let waits = matches!(&step, Step::Wait(what) if what.contains("replica-2 catches up"));
    assert!(waits, "{step:?}");
}

/// A replica that leaves holds what acceptors have forgotten until others hold it, too.
/// [T-MEMBERS]
#[test]
fn a_replica_that_leaves_is_needed_until_others_have_its_checkpoint() {
    let changes = [leave("replica-3")];
    let mut one = in_use(&changes);
    let waits = |one: &mut Membership, group: &GroupStatus, why: &str| {
        let step = one.step(&changes, std::slice::from_ref(group));
        let waits = matches!(&step, Step::Wait(what) if what.contains(why));
        assert!(waits, "{why:?} isn't why: {step:?}");
    };
    let mut group = status("leader-1", &old());
    waits(&mut one, &group, "who leaves counts until others");
    let last = group.epochs.last_mut().unwrap();
    last.replicas.retain(|node| *node != id("replica-3"));
    last.g = 0;
    let show = |group: &mut GroupStatus, name: &str, epoch, trim| {
        let mut members = group.members.iter_mut();
        let member = members.find(|m| m.node == id(name)).unwrap();
        member.partitions[0].round = Round::base(epoch).0;
        member.partitions[0].trim = trim;
    };
    show(&mut group, "replica-3", 4, 90);
    waits(&mut one, &group, "replica-3 hasn't come to epoch 5");
    show(&mut group, "replica-3", 5, 90);
    show(&mut group, "replica-1", 5, 89);
    waits(&mut one, &group, "replica-3 ends once 1 others have");
    show(&mut group, "replica-2", 5, 90);
    let step = one.step(&changes, &[group]);
    assert!(matches!(step, Step::Append(_)), "{step:?}");
}

/// Otherwise more memories than f could be on their way at once.
#[test]
fn nobody_begins_anew_before_the_last_one_shows_its_memory_again() {
    let changes = replacement();
    let mut one = membership(&cluster());
    all_but_one_answer(&mut one, "acceptor-3", 0);
    let mut group = status("leader-1", &old());
    let mut members = group.members.iter_mut();
    members.find(|m| m.node == id("acceptor-2")).unwrap().mute = true;
    let step = one.step(&changes, &[group]);
    let waits = matches!(&step, Step::Wait(what) if what.contains("acceptor-2 comes back"));
    assert!(waits, "{step:?}");
}
