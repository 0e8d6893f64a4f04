// SPDX-License-Identifier: Apache-2.0
//! Tests of clusters with roles in P4 switches, in labs: BMv2 beside each node's process, together
//! with the other planes, with failovers between planes, and with switches that lose their power.
//! INCR shows what is lost and what is doubled.

mod testlab;

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use node::ClusterFile;
use node::cluster_file::{Auth, Draft};
use p4::bmv2::Tools;
use paxos::{Header, MsgType};
use serde_json::{Value, json};
use testlab::{
    Increments, TestLab, all, all_agree, eventually, leader, member, memory, ready, status,
};

/// Tests run one at a time: each has a dozen processes, so more at a time would only be slower.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether there are a compiler and a switch, and prints why not.
fn has_tools() -> bool {
    let why = Tools::find().and_then(|tools| tools.versions()).err();
    if let Some(why) = &why {
        println!("SKIPPED: P4: {why}");
    }
    why.is_none()
}

fn up(lab: &TestLab, planes: &[&str], more: &[&str]) {
    let planes = planes.iter().flat_map(|plane| ["--plane-of", plane]);
    let planes: Vec<&str> = planes.collect();
    let common = ["up", "--app", "leveldb", "--json"];
    lab.json(&[&common[..], &planes, more].concat());
}

fn failover(lab: &TestLab, to: &str) {
    eventually(&format!("{to} leads"), || {
        let changed = lab.wirepaxos("controller", &["failover", "--to", to]);
        changed.status.success().then_some(())
    });
}

/// Switches a node's switch off and on again.
fn reboot(lab: &TestLab, node: &str) {
    let shown = lab.json(&["status", "--json"]);
    let processes = shown["processes"].as_array().unwrap();
    let is_switch = |process: &&Value| {
        let program = process["command"][0].as_str().map(Path::new);
        let name = program.and_then(Path::file_name);
        process["host"] == node && name.is_some_and(|name| name == "simple_switch")
    };
    let pid = processes.iter().find(is_switch).unwrap()["pid"].to_string();
    let killed = Command::new("kill").args(["-s", "KILL", &pid]).status();
    assert!(killed.unwrap().success());
    eventually("the switch is gone", || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
            .then_some(())
    });
    lab.json(&["start", node, "--json"]);
}

fn plane(lab: &TestLab, node: &str) -> Value {
    status(lab, node)["plane"]["name"].clone()
}

/// The lab has a P4 leader with acceptors on all three planes, and a P4 learner between them and
/// the replicas.
#[test]
fn planes_fail_over_to_one_another() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    let Some(lab) = TestLab::with_programs('s') else {
        return;
    };
    let planes = [
        "leader-1=p4",
        "leader-2=xdp",
        "acceptor-1=p4",
        "acceptor-2=xdp",
        "learner-1=p4",
    ];
    up(&lab, &planes, &["--learners", "1", "--leaders", "3"]);
    lab.json(&["start", "--json"]);
    ready(&lab);
    for (node, on) in [
        ("leader-1", "p4"),
        ("leader-2", "xdp"),
        ("leader-3", "udp"),
        ("acceptor-1", "p4"),
        ("acceptor-2", "xdp"),
        ("acceptor-3", "udp"),
        ("learner-1", "p4"),
    ] {
        assert_eq!(plane(&lab, node), on, "{node}");
    }
    failover(&lab, "leader-1");
    assert_eq!(Increments::start(&lab, 100).end(), "100");
    for (node, counted) in [("leader-1", "/changed"), ("learner-1", "/sent/deliver")] {
        let counters = status(&lab, node)["counters"].clone();
        let n = counters.pointer(counted).and_then(Value::as_u64);
        assert!(n > Some(0), "{node}: {counters}");
    }

    // Under load, leadership moves into the kernel and to software, each time back to the switch.
    let increments = Increments::start(&lab, 300);
    for to in ["leader-2", "leader-1", "leader-3", "leader-1"] {
        failover(&lab, to);
    }
    assert_eq!(increments.end(), "400");
    for (node, counted) in [("leader-2", "/changed"), ("leader-3", "/sent/phase2a")] {
        let counters = status(&lab, node)["counters"].clone();
        let n = counters.pointer(counted).and_then(Value::as_u64);
        assert!(n > Some(0), "{node} has led: {counters}");
    }

    // A leader whose switch loses its power stamps nothing until it is programmed in a later epoch.
    let (nonce, epoch) = (leader_nonce(&lab), leader(&lab).1);
    let increments = Increments::start(&lab, 300);
    reboot(&lab, "leader-1");
    assert_eq!(increments.end(), "700");
    assert!(leader(&lab).1 > epoch, "the epoch ends with the memory");
    eventually("another memory", || {
        let now = leader_nonce(&lab);
        (now != nonce && now != "0000000000000000").then_some(())
    });
    failover(&lab, "leader-1");
    assert_eq!(Increments::start(&lab, 50).end(), "750");
    all_agree(&lab, "750");
    lab.down();
}

/// Leaders, acceptors and a learner have a switch each, in both topologies.
#[test]
fn whole_labs_are_in_switches() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    for (letter, topology) in [('o', "one-switch"), ('t', "two-switches")] {
        let Some(lab) = TestLab::new(letter) else {
            return;
        };
        up(
            &lab,
            &[],
            &["--plane", "p4", "--learners", "1", "--topology", topology],
        );
        lab.json(&["start", "--json"]);
        ready(&lab);
        for node in [
            "leader-1",
            "leader-2",
            "acceptor-1",
            "acceptor-2",
            "acceptor-3",
            "learner-1",
        ] {
            assert_eq!(plane(&lab, node), "p4", "{node}, {topology}");
        }
        assert_eq!(plane(&lab, "replica-1"), "udp");
        let increments = Increments::start(&lab, 200);
        failover(&lab, "leader-2");
        assert_eq!(increments.end(), "200");
        all_agree(&lab, "200");
        lab.down();
    }
}

/// The demo proves that nothing is lost if all roles are in switches, which lose their power one
/// after the other.
#[test]
fn the_demo_survives_in_switches() {
    let _alone = alone();
    if !has_tools() || TestLab::new('d').is_none() {
        return;
    }
    let mut command = Command::new(testlab::LAB);
    command.args(["demo", "--plane", "p4", "--app", "leveldb", "--json"]);
    command.args(["--learners", "1", "--seconds", "1"]);
    let output = command.env_remove("WIREPAXOS_LOG").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["plane"], "p4");
    assert_eq!((&report["lost"], &report["wrong"]), (&0.into(), &0.into()));
    assert_eq!(report["digests_equal"], true);
    assert!(report["acknowledged"].as_u64() > Some(0), "{report}");
}

/// A client measures a cluster whose roles are in switches.
#[test]
fn a_cluster_in_switches_is_measured() {
    let _alone = alone();
    if !has_tools() || TestLab::new('b').is_none() {
        return;
    }
    let mut command = Command::new(testlab::LAB);
    command.args(["bench", "e2e", "--plane", "p4", "--json"]);
    command.args(["--outstanding", "4", "--independent", "0", "--seconds", "1"]);
    let output = command.env_remove("WIREPAXOS_LOG").output().unwrap();
    assert!(output.status.success(), "{}", all(&output));
    let line: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(line["plane"], "p4");
    assert!(line["ops_per_s"].as_f64() > Some(0.0), "{line}");
}

/// Every hop checks a tag and makes another one, in switches and behind sockets, also while the
/// secret is replaced.
#[test]
fn switches_sign() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    let Some(lab) = TestLab::new('k') else { return };
    let planes = [
        "leader-1=p4",
        "acceptor-1=p4",
        "acceptor-2=p4",
        "learner-1=p4",
    ];
    let signed = ["--learners", "1", "--auth", "halfsiphash"];
    up(&lab, &planes, &signed);
    lab.json(&["start", "--json"]);
    ready(&lab);
    failover(&lab, "leader-1");
    assert_eq!(Increments::start(&lab, 100).end(), "100");
    let in_switches = ["leader-1", "acceptor-1", "acceptor-2", "learner-1"];
    for node in in_switches {
        let counters = status(&lab, node)["counters"].clone();
        assert!(counters["changed"].as_u64() > Some(0), "{node}: {counters}");
    }

    // An unsigned packet, a REQUEST from the client's host, is counted and has no effect.
    let unsigned = |lab: &TestLab| {
        let shown = status(lab, "leader-1");
        shown["counters"]["dropped"]["unsigned"].as_u64()
    };
    let before = unsigned(&lab).unwrap_or(0);
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let request = Header {
        cluster: ClusterFile::load(Path::new(&file)).unwrap().cluster,
        client: 7,
        request: 1,
        ..Header::new(MsgType::Request)
    };
    let bytes: String = request
        .datagram(b"x")
        .iter()
        .map(|byte| format!("\\x{byte:02x}"))
        .collect();
    let script = format!("printf '{bytes}' > /dev/udp/10.77.0.11/7000");
    let sent = lab.exec("client-1", &["bash", "-c", &script]);
    assert!(sent.status.success(), "{}", all(&sent));
    eventually("it is counted", || {
        (unsigned(&lab) == Some(before + 1)).then_some(())
    });

    // Each round takes one step of the secret's replacement; only the key file tells the nodes.
    for (step, generations) in [(1, vec![1, 2]), (2, vec![1, 2]), (3, vec![2])] {
        let increments = Increments::start(&lab, 100);
        let rotated = Command::new(testlab::PROGRAM)
            .args(["keys", "rotate", "-c", &file])
            .output()
            .unwrap();
        assert!(rotated.status.success(), "{}", all(&rotated));
        let signs = if step == 1 { 1 } else { 2 };
        for node in in_switches {
            eventually(&format!("{node} has the keys of step {step}"), || {
                let shown = status(&lab, node)["auth"].clone();
                let wanted = json!({ "generations": generations, "signs": signs });
                (shown == wanted).then_some(())
            });
        }
        assert_eq!(increments.end(), (100 + 100 * step).to_string());
    }
    all_agree(&lab, "400");

    // A switch without power has no keys either, until its process gives it some.
    let increments = Increments::start(&lab, 200);
    reboot(&lab, "acceptor-1");
    assert_eq!(increments.end(), "600");
    member(&lab, "acceptor-1");
    all_agree(&lab, "600");
    lab.down();
}

fn leader_nonce(lab: &TestLab) -> String {
    let group = &status(lab, "leader-1")["groups"][0];
    group["nonce"].as_str().unwrap_or_default().to_string()
}

/// The test stops an acceptor's process and then its switch, and looks at the acceptor's memory.
#[test]
fn a_switch_remembers_as_long_as_it_has_power() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    let Some(lab) = TestLab::new('m') else { return };
    up(&lab, &["acceptor-1=p4", "acceptor-2=p4"], &[]);
    lab.json(&["start", "--json"]);
    ready(&lab);
    member(&lab, "acceptor-1");
    let (nonce, _) = memory(&lab, "acceptor-1");

    // Without its process the acceptor goes on voting, and of the three acceptors one is down.
    lab.kill("acceptor-1");
    lab.kill("acceptor-3");
    assert_eq!(Increments::start(&lab, 100).end(), "100");
    lab.json(&["start", "acceptor-1", "acceptor-3", "--json"]);
    let (again, end) = memory(&lab, "acceptor-1");
    assert!(again == nonce && end >= 100, "{again}, not {nonce}; {end}");
    eventually("all are members", || {
        let shown = lab.wirepaxos("controller", &["status", "--json"]);
        testlab::waiting::all_serve(&shown.stdout)
    });

    // An acceptor that is stopped in good order votes no more, and finds its memory when it is
    // started again.
    let stopped = lab.wirepaxos("controller", &["stop", "--name", "acceptor-1"]);
    assert!(stopped.status.success(), "{}", all(&stopped));
    assert_eq!(Increments::start(&lab, 50).end(), "150");
    lab.json(&["start", "acceptor-1", "--json"]);
    assert_eq!(memory(&lab, "acceptor-1").0, nonce);
    member(&lab, "acceptor-1");

    // Without power the memory is lost, and the acceptor joins as a new member. Its process was
    // running all the time.
    let increments = Increments::start(&lab, 300);
    reboot(&lab, "acceptor-1");
    assert_eq!(increments.end(), "450");
    eventually("a new member", || {
        let (now, _) = memory(&lab, "acceptor-1");
        (now != nonce && now != "0000000000000000").then_some(())
    });
    member(&lab, "acceptor-1");
    // The new member counts, since it makes a quorum with the other acceptor in a switch.
    lab.kill("acceptor-3");
    assert_eq!(Increments::start(&lab, 50).end(), "500");
    all_agree(&lab, "500");
    lab.down();
}

/// NOPaxos runs behind a sequencer in a switch; a later session is stamped elsewhere.
#[test]
fn a_sequencer_in_a_switch_orders_requests() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    let Some(lab) = TestLab::new('q') else { return };
    up(&lab, &["sequencer-1=p4"], &["--protocol", "nopaxos"]);
    lab.json(&["start", "--json"]);
    ready(&lab);
    assert_eq!(plane(&lab, "sequencer-1"), "p4");
    // A software switch takes time to start, and the other sequencer may have been asked first.
    failover(&lab, "sequencer-1");
    assert_eq!(Increments::start(&lab, 100).end(), "100");
    assert!(status(&lab, "sequencer-1")["counters"]["changed"].as_u64() > Some(0));
    let increments = Increments::start(&lab, 300);
    reboot(&lab, "sequencer-1");
    assert_eq!(increments.end(), "400");
    eventually("the other one stamps", || {
        let leads = &status(&lab, "sequencer-2")["groups"][0]["leading"];
        (*leads == true).then_some(())
    });
    all_agree(&lab, "400");
    lab.down();
}

/// Each refusal names the misfit and the remedy.
#[test]
fn what_doesnt_fit_is_named() {
    let _alone = alone();
    if !has_tools() {
        return;
    }
    let Some(lab) = TestLab::new('w') else { return };
    let mut command = lab.lab(&["up", "--plane", "p4"]);
    command.env("WIREPAXOS_BMV2", "/nowhere/simple_switch");
    let said = all(&command.output().unwrap());
    assert!(
        said.contains("WIREPAXOS_BMV2 names /nowhere/simple_switch, which isn't there"),
        "{said}"
    );
    lab.down();

    up(&lab, &["acceptor-1=p4"], &[]);
    let node = ["node", "--name", "acceptor-1"];
    // An earlier process may not have ended yet.
    let refused = |why: &str| {
        eventually(why, || {
            let output = lab.wirepaxos("acceptor-1", &node);
            assert!(!output.status.success(), "{}", all(&output));
            all(&output).contains(why).then_some(())
        })
    };
    refused("no switch takes commands at 127.0.0.1:9090");

    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let good = std::fs::read_to_string(&file).unwrap();
    let change = |from: &str, to: &str| {
        assert!(good.contains(from), "{from} in {good}");
        std::fs::write(&file, good.replacen(from, to, 1)).unwrap();
    };
    // This also starts the switch.
    change("plane = \"p4\"", "plane = \"p4\"\np4_port = 9");
    lab.json(&["start", "acceptor-1", "--json"]);
    refused("has no port 9 (`p4_port`); it has 1, 255");
    std::fs::write(&file, &good).unwrap();
    let mut signed = Draft::from(&ClusterFile::load(Path::new(&file)).unwrap());
    signed.auth = Some(Auth::HalfSipHash);
    signed.clients.clear();
    signed.write(Path::new(&file)).unwrap();
    refused("was made without -DSIGNED");
    change("slots = 1024", "slots = 8192");
    refused("has room for 4096 slots, 8 partitions and 2 groups");
    change("max_value = 128", "max_value = 256");
    refused("set max_value = 128 for the group");
    let text = good.replacen("plane = \"p4\"", "plane = \"udp\"", 1);
    let leader = text.find("name = \"leader-1\"").unwrap();
    let (before, after) = text.split_at(leader);
    let after = after.replacen("plane = \"udp\"", "plane = \"p4\"", 1);
    // The leader's process is now beside the acceptor's switch.
    let (own, others) = ("10.77.0.11:", "10.77.0.21:");
    let swapped = format!("{before}{after}")
        .replace(own, "10.77.0.99:")
        .replace(others, own)
        .replace("10.77.0.99:", others);
    std::fs::write(&file, swapped).unwrap();
    let output = lab.wirepaxos("acceptor-1", &["node", "--name", "leader-1"]);
    let said = all(&output);
    assert!(said.contains("runs another role's program"), "{said}");
    lab.down();
}
