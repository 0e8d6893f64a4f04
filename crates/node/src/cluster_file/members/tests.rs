// SPDX-License-Identifier: Apache-2.0
use super::*;
use std::net::IpAddr;

const SAMPLE: &str = include_str!("../../../../../testdata/cluster.toml");

fn sample() -> ClusterFile {
    parse(SAMPLE, "cluster.toml").unwrap()
}

fn add(number: u16) -> MemberChange {
    let (name, node) = (format!("acceptor-{number}"), 90 + number);
    MemberChange::Add {
        record: format!(
            "name = \"{name}\"\nid = {node}\nrole = \"acceptor\"\n\
             address = \"127.0.0.1:{node}01\"\ncontrol = \"127.0.0.1:{node}02\"\n"
        ),
        name,
        node,
    }
}

fn leave(name: &str) -> MemberChange {
    let node = sample().node(name).unwrap().id;
    MemberChange::Leave {
        name: name.to_owned(),
        node,
    }
}

fn remove(name: &str) -> MemberChange {
    let node = sample().node(name).unwrap().id;
    MemberChange::Remove {
        name: name.to_owned(),
        node,
    }
}

#[test]
fn a_replaced_acceptor_is_known_until_it_is_removed() {
    let order = [add(4), leave("acceptor-2")];
    let after = check_order(&sample(), &order).unwrap();
    assert!(after.node("acceptor-2").unwrap().leaving);
    assert_eq!(after.node("acceptor-4").unwrap().id, 94);
    assert_eq!(after.groups[0].f, 1);
    let all = [&order[..], &[remove("acceptor-2")]].concat();
    let last = sample().with_changes(&all).unwrap();
    assert_eq!(last.node("acceptor-2"), None);
    assert_eq!(last.changes(), all);
    assert_eq!(last.with_changes(&all).unwrap(), last);
}

#[test]
fn an_order_that_would_do_harm_is_refused_by_name() {
    let again = [add(4), leave("acceptor-2"), remove("acceptor-2")];
    let then = sample().with_changes(&again).unwrap();
    let MemberChange::Add { record, .. } = add(4) else {
        unreachable!()
    };
    let as_learner = record.replace("\"acceptor\"", "\"learner\"");
    let on_one_port = add(5);
    let MemberChange::Add { name, node, record } = on_one_port else {
        unreachable!()
    };
    let taken = sample().node("acceptor-1").unwrap().address.to_string();
    let record = record.replace("127.0.0.1:9501", &taken);
    let on_one_port = MemberChange::Add { name, node, record };
    let refused = [
        (sample(), vec![], "nothing is ordered"),
        (sample(), vec![add(4)], "4 acceptors"),
        (sample(), vec![leave("acceptor-1")], "2 acceptors"),
        (
            sample(),
            vec![leave("controller")],
            "controller is a controller",
        ),
        (
            sample(),
            vec![remove("acceptor-1")],
            "acceptor-1 is removed by the controller",
        ),
        (
            sample(),
            vec![on_one_port, leave("acceptor-2")],
            "acceptor-5",
        ),
        (
            then.clone(),
            vec![add(4), leave("acceptor-1")],
            "acceptor-4, node 94, is or was",
        ),
        (then, vec![leave("acceptor-2")], "no node acceptor-2"),
        (
            sample(),
            vec![MemberChange::Add {
                name: "acceptor-4".to_owned(),
                node: 94,
                record: as_learner,
            }],
            "acceptor-4 is a learner",
        ),
    ];
    for (cluster, order, why) in refused {
        is_refused(&cluster, &order, why);
    }
}

fn is_refused(cluster: &ClusterFile, order: &[MemberChange], why: &str) {
    let said = check_order(cluster, order).unwrap_err().to_string();
    assert!(said.contains(why), "{why:?} isn't in {said}");
}

#[test]
fn the_last_leader_and_the_last_replica_stay() {
    let leaders = ["leader-1", "leader-2"].map(leave);
    is_refused(&sample(), &leaders, "there is no leader");
    let replicas = ["replica-1", "replica-2", "replica-3"].map(leave);
    is_refused(&sample(), &replicas, "has no replica");
}

/// A file that says something else about an added node can't be right.
#[test]
fn a_file_that_disagrees_with_a_change_is_named() {
    let other = SAMPLE.replace("acceptor-3", "acceptor-4");
    let cluster = parse(&other, "here/cluster.toml").unwrap();
    let said = cluster.with_changes(&[add(4)]).unwrap_err().to_string();
    assert!(
        said.starts_with("here/cluster.toml: it has acceptor-4"),
        "{said}"
    );
}

#[test]
fn who_uses_what_changes_is_affected() {
    let (old, all) = (sample(), [add(4), leave("acceptor-2")]);
    let grown = old.with_changes(&all).unwrap();
    let removed = [&all[..], &[remove("acceptor-2")]].concat();
    let removed = old.with_changes(&removed).unwrap();
    for (name, is_told) in [
        ("acceptor-1", false),
        ("leader-1", true),
        ("replica-1", true),
        ("controller", true),
    ] {
        let node = old.node(name).unwrap();
        assert_eq!(!is_unaffected(node, &old, &grown), is_told, "{name}");
        assert!(is_unaffected(node, &grown, &removed), "{name}");
    }
}

#[test]
fn a_file_is_edited_and_keeps_its_comments() {
    let all = [add(4), leave("acceptor-2")];
    let text = edited(SAMPLE, &all).unwrap();
    let comments = |text: &str| text.matches('#').count();
    assert_eq!(comments(&text), comments(SAMPLE), "{text}");
    assert!(text.contains("leaving = true"), "{text}");
    let cluster = parse(&text, "cluster.toml").unwrap();
    assert_eq!(cluster, sample().with_changes(&all).unwrap());
    assert_eq!(edited(&text, &all).unwrap(), text, "it is repeated");
    let all = [&all[..], &[remove("acceptor-2")]].concat();
    let text = edited(&text, &all).unwrap();
    let cluster = parse(&text, "cluster.toml").unwrap();
    assert_eq!(cluster, sample().with_changes(&all).unwrap());
}

#[test]
fn f_follows_in_groups_that_name_it() {
    let named = SAMPLE.replacen("partitions =", "f = 1\npartitions =", 1);
    assert_ne!(named, SAMPLE);
    let cluster = parse(&named, "cluster.toml").unwrap();
    let two = [4, 5].map(|n| {
        let at = |port: u16| std::net::SocketAddr::from(([127, 0, 0, 1], port + n));
        NodeDraft::new(
            format!("acceptor-{n}"),
            90 + n,
            Role::Acceptor,
            at(9400),
            at(9500),
        )
    });
    let order = cluster
        .order(&two, &["storage = \"durable\"".to_owned()], &[])
        .unwrap();
    let after = check_order(&cluster, &order).unwrap();
    assert_eq!((after.acceptors().len(), after.groups[0].f), (5, 2));
    let stored = after.node("acceptor-5").unwrap().storage;
    assert_eq!(stored, crate::cluster_file::Storage::Durable);
    let text = edited(&named, &order).unwrap();
    assert_eq!(parse(&text, "cluster.toml").unwrap(), after);
}

/// A level of which only tests know stores nothing new, so there is a way back from it. [E-LEVEL]
#[test]
fn the_level_moves_by_one_and_back_only_while_nothing_new_is_stored() {
    assert_eq!(check_level(1, 2), Ok(()));
    assert_eq!(check_level(2, 1), Ok(()), "level 2 has nothing new");
    let (problem, remedy) = check_level(1, 0).unwrap_err();
    assert!(problem.contains("can't be read at level 0"), "{problem}");
    assert!(remedy.contains("restore a backup"), "{remedy}");
    let refused = [
        (
            MemberChange::SetLevel { level: 3 },
            "at format level 1, and can't go to level 3 at once",
        ),
        (MemberChange::Unknown, "doesn't know the change"),
    ];
    for (change, why) in refused {
        let said = check_order(&sample(), &[change]).unwrap_err().to_string();
        assert!(said.contains(why), "{why:?} isn't in {said}");
    }
    let only_level = [MemberChange::SetLevel { level: 1 }];
    let same = sample().with_changes(&only_level).unwrap();
    assert_eq!(same, sample(), "the level isn't in the file");
    assert_eq!(edited(SAMPLE, &only_level).unwrap(), SAMPLE);
    let others = [add(4), leave("acceptor-2")];
    let all = [&only_level[..], &others].concat();
    let both = sample().with_changes(&all).unwrap();
    assert_eq!(both, sample().with_changes(&others).unwrap());
}

/// A new replica is like the one that it replaces, apart from its machine.
#[test]
fn a_new_replica_takes_over_how_clients_reach_another_one() {
    let line = "name = \"replica-2\"\n";
    let keys = "redis_password_file = \"some.password\"\nredis_order = \"key\"\n";
    let text = SAMPLE.replace(line, &format!("{line}{keys}"));
    let cluster = parse(&text, "cluster.toml").unwrap();
    let old = cluster.node("replica-2").unwrap();
    let redis = old.redis.expect("the sample has a front end");
    let new = |ip: [u8; 4]| {
        let at = |port| SocketAddr::from((ip, port));
        let mut new = NodeDraft::new("replica-4", 99, Role::Replica, at(9900), at(9901));
        cluster.share_record(old, &mut new);
        new
    };
    let elsewhere = new([127, 0, 9, 9]);
    assert_eq!(elsewhere.redis.map(|at| at.port()), Some(redis.port()));
    assert_eq!(elsewhere.group, old.group);
    assert_eq!(elsewhere.redis_password_file, Some("some.password".into()));
    let order = cluster.order(&[elsewhere], &[], &[old]).unwrap();
    let after = check_order(&cluster, &order).unwrap();
    let taken = after.node("replica-4").unwrap();
    assert_eq!(taken.redis_order, crate::cluster_file::RedisOrder::Key);
    let IpAddr::V4(here) = old.address.ip() else {
        unreachable!()
    };
    assert_eq!(new(here.octets()).redis.map(|at| at.port()), Some(9902));
}
