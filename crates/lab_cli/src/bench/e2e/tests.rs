// SPDX-License-Identifier: Apache-2.0
use clap::Parser;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

fn options(line: &str) -> Options {
    let words = std::iter::once("e2e").chain(line.split_whitespace());
    Line::try_parse_from(words).expect("a valid line").options
}

#[test]
fn nodes_on_dpdk_are_in_no_switch_and_beside_no_other_server() {
    let said = |line| options(line).settings(1).map_err(|e| e.to_string());
    assert!(said("--plane dpdk").is_ok_and(|settings| settings.is_in_lab()));
    for line in [
        "--plane dpdk --in-switch",
        "--plane dpdk --baseline unreplicated",
    ] {
        assert!(said(line).unwrap_err().contains("measure --lab"), "{line}");
    }
}

#[test]
fn values_in_flight_are_the_librarys_by_default() {
    let by_default = options("").open_values;
    assert_eq!(by_default, ClientOptions::default().max_open_values);
    assert_eq!(options("--open-values 8").open_values, 8);
}

#[test]
fn protocols_are_measured_in_the_order_in_which_they_are_named() {
    let names = |line| -> Vec<_> {
        let contenders = options(line).contenders();
        contenders.iter().map(|c| c.name()).collect()
    };
    assert_eq!(names(""), ["paxos"]);
    assert_eq!(names("--protocol spec,vr"), ["spec", "vr"]);
    let all = "paxos,nopaxos,unreplicated,vr,vr-batch,fast,spec";
    assert_eq!(names("--protocol all").join(","), all);
    let said = |line| options(line).settings(1).map_err(|e| e.to_string());
    assert!(said("--protocol vr").is_ok());
    assert!(said("--protocol vr --lab").is_ok());
    assert!(said("--protocol paxos,nopaxos --durable").is_ok_and(|s| s.durable));
    for line in [
        "--protocol vr --plane xdp",
        "--protocol nopaxos --in-switch --lab",
        "--protocol vr --sequencer host",
        "--followers stub",
        "--protocol nopaxos --followers stub --partitions 2",
        "--protocol vr --baseline unreplicated",
        "--protocol all --durable",
        "--protocol nopaxos --followers stub --durable",
        "--protocol nopaxos --sequencer xdp --spin 50",
    ] {
        let partitions = options(line).partitions[0];
        let refused = options(line).settings(partitions).is_err();
        assert!(refused, "{line}");
    }
    let why = said("--protocol nopaxos --plane xdp").unwrap_err();
    assert!(why.contains("--sequencer"), "{why}");
}

#[test]
fn gets_that_nobody_could_answer_are_refused_by_name() {
    let said = |line: &str| options(line).settings(1).map_err(|e| e.to_string());
    for reads in Reads::ALL {
        let line = format!("--app leveldb --gets 95 --reads {}", reads.name());
        assert_eq!(said(&line).map(|s| (s.gets, s.reads)), Ok((95, reads)));
    }
    assert!(said("--app leveldb --gets 50 --baseline unreplicated").is_ok());
    for (line, why) in [
        ("--gets 50", "--app"),
        ("--app leveldb --reads stale", "--gets"),
        ("--app leveldb --gets 50 --baseline local", "--baseline"),
        (
            "--app leveldb --gets 50 --reads quorum --baseline unreplicated",
            "--baseline",
        ),
        (
            "--app leveldb --gets 50 --reads quorum --protocol nopaxos",
            "paxos alone",
        ),
    ] {
        let refused = said(line).map(drop).unwrap_err();
        assert!(refused.contains(why), "{line}: {refused}");
    }
}

#[test]
fn each_sequencer_has_a_cluster_in_the_network_of_all_others() {
    let line = "--protocol nopaxos,vr --sequencer host,xdp,switch --followers stub";
    let each = options(line).each(1).unwrap();
    let shown: Vec<_> = each
        .iter()
        .map(|s| {
            (
                s.contender.name(),
                s.sequencer().map(|s| s.name()),
                s.stub_followers,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("nopaxos", Some("host"), true),
            ("nopaxos", Some("xdp"), true),
            ("nopaxos", Some("switch"), true),
            ("vr", None, false),
        ]
    );
    assert!(each.iter().all(|s| s.is_in_lab() && s.forwards));
    let at_sockets = options("--protocol nopaxos --sequencer host")
        .each(1)
        .unwrap();
    assert!(at_sockets.iter().all(|s| s.is_in_lab() && !s.forwards));
    let alone = options("--protocol nopaxos").each(1).unwrap();
    assert_eq!(alone[0].sequencer(), Some(Sequencer::Host));
    assert!(!alone[0].is_in_lab());
}

#[test]
fn independent_clients_stand_beside_the_one_where_each_has_a_request() {
    let beside = |line, outstanding| options(line).independent_beside(outstanding);
    assert_eq!(beside("", 256), Some(32));
    assert_eq!(beside("", 32), Some(32));
    assert_eq!(beside("", 31), None);
    assert_eq!(beside("--independent 4", 8), Some(4));
    assert_eq!(beside("--independent 0", 256), None);
    assert_eq!(beside("--clients 2", 256), None);
}
