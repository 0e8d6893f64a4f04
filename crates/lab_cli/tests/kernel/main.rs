// SPDX-License-Identifier: Apache-2.0
//! Tests of clusters whose roles run in the kernel, in labs: processes, programs and machines fail,
//! and nothing is lost or doubled. INCR shows both.

mod secrets;
#[path = "../testlab/mod.rs"]
mod testlab;

use std::path::Path;
use std::process::{Command, Stdio};

use loader::pins::Pins;
use local_cluster::{LocalCluster, Shape};
use node::ClusterFile;
use serde_json::Value;
use testlab::{
    Increments, PROGRAM, REPLICAS, TestLab, all, all_agree, eventually, leader, member, memory,
    ready, serving, status,
};

const ACCEPTORS: [&str; 3] = ["acceptor-1", "acceptor-2", "acceptor-3"];

fn log(lab: &TestLab, node: &str) -> String {
    let file = format!("/run/wirepaxos/{}/{node}.log", lab.name);
    std::fs::read_to_string(file).unwrap_or_default()
}

/// Makes a node's machine die: nothing of the node remains.
fn crash(lab: &TestLab, node: &str) {
    lab.kill(node);
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let cluster = ClusterFile::load(Path::new(&file)).unwrap();
    let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, node).unwrap();
    pins.remove().unwrap();
}

/// Makes the leader's machine die, and waits until another one leads; returns the new epoch.
fn crash_leader(lab: &TestLab, (leads, epoch): (&str, u64)) -> u64 {
    crash(lab, leads);
    let (next, later) = eventually("another leader", || {
        let (next, later) = leader(lab);
        (later > epoch).then_some((next, later))
    });
    assert_ne!(next, leads);
    later
}

/// Checks that another cluster's node can't start at an address whose program runs, where it would
/// hear nothing.
fn nobody_else_starts_behind(lab: &TestLab, node: &str) {
    let directory = format!("/run/wirepaxos/{}", lab.name);
    let text = std::fs::read_to_string(format!("{directory}/cluster.toml")).unwrap();
    let own = |line: &str| line.starts_with("cluster = ") || line.starts_with("data = ");
    let others: Vec<&str> = text.lines().filter(|line| !own(line)).collect();
    let file = format!("{directory}/another.toml");
    let head = "cluster = \"0badcafe\"\ndata = \"another\"\n";
    std::fs::write(&file, head.to_owned() + &others.join("\n")).unwrap();
    for plane in ["udp", "auto"] {
        let command = [
            PROGRAM, "node", "-c", &file, "--name", node, "--plane", plane,
        ];
        let output = lab.exec(node, &command);
        let said = all(&output);
        let named = said.contains("it takes what is sent to") && said.contains("`acceptor`");
        assert!(!output.status.success() && named, "{plane}: {said}");
    }
}

/// There is a ring for each partition, and two threads read the rings.
#[test]
fn partitions_behind_the_front_end() {
    let Some(lab) = serving('p', &["--partitions", "4"]) else {
        return;
    };
    lab.json(&["start", "--json"]);
    ready(&lab);
    assert_eq!(status(&lab, "replica-1")["plane"]["name"], "xdp");
    let mut script = String::new();
    for n in 0..300 {
        script += &format!("INCR key:{}\\n", n % 60);
    }
    script += "MSET a 1 b 2 c 3\\nMGET a b c\\nDBSIZE";
    let line = format!(
        "printf '{script}\\n' | timeout 100 redis-cli -h 10.77.0.32 -a lab --no-auth-warning | \
         tail -n 5"
    );
    let output = lab.exec("client-1", &["sh", "-c", &line]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(said, "OK\n1\n2\n3\n64\n", "{}", all(&output));
    for replica in REPLICAS {
        assert_eq!(lab.redis("client-1", replica, &["GET", "key:7"]), "5");
    }
}

/// Returns all values under this name anywhere in a document.
fn everywhere<'a>(document: &'a Value, name: &str) -> Vec<&'a Value> {
    let inside: Box<dyn Iterator<Item = &Value>> = match document {
        Value::Object(fields) => Box::new(fields.values()),
        Value::Array(items) => Box::new(items.iter()),
        _ => return Vec::new(),
    };
    let own = document.get(name);
    let deeper = inside.flat_map(|value| everywhere(value, name));
    own.into_iter().chain(deeper).collect()
}

#[test]
fn programs_outlive_processes_and_are_replaced_without_losing_a_vote() {
    let Some(lab) = serving('k', &[]) else {
        return;
    };
    // A controller that gets no CPU for a while must not suspect the leader.
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text + "\n[controller]\nsuspect_after = 200\n").unwrap();
    lab.json(&["start", "--json"]);
    ready(&lab);
    let (leads, epoch) = leader(&lab);
    for node in [leads, "acceptor-1", "replica-1"] {
        assert_eq!(status(&lab, node)["plane"]["name"], "xdp", "{node}");
    }
    let load = Increments::start(&lab, 800);
    let (nonce, end) = memory(&lab, "acceptor-1");

    // Without their processes the programs go on deciding, and nobody suspects the leader.
    for node in [leads, "acceptor-1", "acceptor-2", "acceptor-3"] {
        lab.kill(node);
    }
    lab.redis("client-1", REPLICAS[0], &["INCR", "unattended"]);
    nobody_else_starts_behind(&lab, "acceptor-1");
    for node in [leads, "acceptor-1", "acceptor-2", "acceptor-3"] {
        lab.json(&["start", node, "--json"]);
    }
    let (same_nonce, later) = memory(&lab, "acceptor-1");
    assert_eq!(same_nonce, nonce);
    assert!(later > end, "{later} {end}");
    assert!(log(&lab, "acceptor-1").contains("replaced in place"));
    assert_eq!(leader(&lab), (leads, epoch));
    assert_eq!(load.end(), "800");
    all_agree(&lab, "800");
    lab.down();
}

#[test]
fn machines_die_and_come_back() {
    let Some(lab) = serving('m', &["--start"]) else {
        return;
    };
    ready(&lab);
    let load = Increments::start(&lab, 1500);
    let (leads, epoch) = leader(&lab);
    let later = crash_leader(&lab, (leads, epoch));
    lab.json(&["start", leads, "--json"]);

    let (nonce, _) = memory(&lab, "acceptor-3");
    crash(&lab, "acceptor-3");
    lab.json(&["start", "acceptor-3", "--json"]);
    member(&lab, "acceptor-3");
    assert_ne!(memory(&lab, "acceptor-3").0, nonce);
    assert!(
        leader(&lab).1 > later,
        "it counts from an epoch of its own on"
    );

    lab.kill("replica-3");
    lab.json(&["start", "replica-3", "--json"]);
    assert_eq!(load.end(), "1500");
    all_agree(&lab, "1500");
    lab.down();
}

/// The leader calls the acceptors of its switch in turn if a learner there is all that they send
/// to. A run of the program sends one frame, so otherwise their votes would be lost.
#[test]
fn votes_that_leave_a_switch_are_not_lost_in_it() {
    for learners in ["0", "1", "2"] {
        // A signed answer to PROBE finds no room in a frame from a host's stack: it is counted,
        // too, and the node's process sends it.
        let up = [
            "--in-switch",
            "--learners",
            learners,
            "--start",
            "--auth",
            "off",
        ];
        let Some(lab) = serving('v', &up) else {
            return;
        };
        ready(&lab);
        ACCEPTORS.iter().for_each(|acceptor| member(&lab, acceptor));
        let unsent = || {
            ["leader-1", "leader-2", "acceptor-1"]
                .map(|node| status(&lab, node)["counters"]["unsent"].clone())
        };
        // A role that isn't in place yet is counted, too, and so is a refusal while leaders change.
        // So the load only begins when all acceptors are members, and only a load under one leader
        // is judged.
        let mut count = 0;
        let (before, after) = eventually("a load under one leader", || {
            let (reign, before) = (leader(&lab), unsent());
            count += 300;
            assert_eq!(Increments::start(&lab, 300).end(), count.to_string());
            (leader(&lab) == reign).then(|| (before, unsent()))
        });
        all_agree(&lab, &count.to_string());
        assert_eq!(after, before, "{learners} learners");
        lab.down();
    }
}

/// The lab has the papers' two switches, with the roles in them.
#[test]
fn roles_in_switches_outlive_processes_and_are_replaced() {
    let up = [
        "--topology",
        "two-switches",
        "--in-switch",
        "--learners",
        "2",
    ];
    let Some(lab) = serving('w', &[&up[..], &["--start"]].concat()) else {
        return;
    };
    ready(&lab);
    let load = Increments::start(&lab, 1500);
    let (leads, epoch) = leader(&lab);
    let (nonce, end) = memory(&lab, "acceptor-1");
    assert_eq!(status(&lab, "acceptor-3")["plane"]["switch"], "switch-2");

    // The processes of these roles end, and other nodes take over.
    let unattended = ["acceptor-1", "acceptor-2", "learner-1", "learner-2"];
    for node in unattended {
        lab.kill(node);
    }
    lab.redis("client-1", REPLICAS[0], &["INCR", "unattended"]);
    for node in unattended {
        lab.json(&["start", node, "--json"]);
        eventually(&format!("{node} is replaced"), || {
            log(&lab, node).contains("replaced in place").then_some(())
        });
    }
    let (same_nonce, later) = memory(&lab, "acceptor-1");
    assert_eq!(same_nonce, nonce);
    assert!(later > end, "{later} {end}");

    // The leader's memory is lost, and then an acceptor's.
    crash_leader(&lab, (leads, epoch));
    lab.json(&["start", leads, "--json"]);
    crash(&lab, "acceptor-3");
    lab.json(&["start", "acceptor-3", "--json"]);
    member(&lab, "acceptor-3");

    // One acceptor is stopped, and comes back with its votes.
    let (nonce, _) = memory(&lab, "acceptor-2");
    let stopped = lab.wirepaxos("controller", &["stop", "--name", "acceptor-2"]);
    assert!(stopped.status.success(), "{}", all(&stopped));
    eventually("its process is gone", || {
        let started = lab.json(&["start", "acceptor-2", "--json"]);
        (!started["started"].as_array()?.is_empty()).then_some(())
    });
    assert_eq!(memory(&lab, "acceptor-2").0, nonce);
    assert_eq!(load.end(), "1500");
    all_agree(&lab, "1500");
    lab.down();
}

#[test]
fn an_acceptor_that_is_stopped_is_taken_off_and_comes_back_with_its_votes() {
    let Some(lab) = serving('s', &["--start"]) else {
        return;
    };
    ready(&lab);
    let (nonce, end) = memory(&lab, "acceptor-2");
    let attached = || {
        let output = lab.exec("acceptor-2", &["ip", "link", "show", "eth0"]);
        String::from_utf8_lossy(&output.stdout).contains("xdp")
    };
    assert!(attached());
    let stopped = lab.wirepaxos("controller", &["stop", "--name", "acceptor-2"]);
    assert!(stopped.status.success(), "{}", all(&stopped));
    eventually("it is off", || (!attached()).then_some(()));
    let dump = format!("/run/wirepaxos/{}/data/acceptor-2/acceptor.state", lab.name);
    assert!(Path::new(&dump).exists());

    // The acceptor moves to the other plane with the same votes, and back.
    for plane in ["udp", "xdp"] {
        set_plane(&lab, "acceptor-2", plane);
        eventually("its process is gone", || {
            let started = lab.json(&["start", "acceptor-2", "--json"]);
            (!started["started"].as_array()?.is_empty()).then_some(())
        });
        assert_eq!(memory(&lab, "acceptor-2"), (nonce.clone(), end), "{plane}");
        assert_eq!(status(&lab, "acceptor-2")["plane"]["name"], plane);
        assert!(!Path::new(&dump).exists(), "a dump is used once");
        if plane == "udp" {
            lab.wirepaxos("controller", &["stop", "--name", "acceptor-2"]);
        }
    }
    // There must not be two acceptors of one name, one of them in the kernel.
    lab.kill("acceptor-2");
    let refused = lab.wirepaxos(
        "acceptor-2",
        &["node", "--name", "acceptor-2", "--plane", "udp"],
    );
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("run in the kernel"),
        "{said}"
    );
    lab.down();
}

#[test]
fn planes_mix() {
    let Some(lab) = serving('x', &[]) else { return };
    for node in ["leader-1", "acceptor-2", "replica-3"] {
        set_plane(&lab, node, "udp");
    }
    lab.json(&["start", "--json"]);
    ready(&lab);
    let load = Increments::start(&lab, 300);
    // Leadership moves from one plane to the other and back.
    for to in ["leader-2", "leader-1", "leader-2"] {
        // The order is refused while the next leader hasn't answered yet. On a busy machine the
        // controller may also suspect the new leader at once.
        eventually(&format!("{to} leads"), || {
            let leads = leader(&lab).0 == to;
            if !leads {
                lab.wirepaxos("controller", &["failover", "--to", to]);
            }
            leads.then_some(())
        });
    }
    assert_eq!(load.end(), "300");
    all_agree(&lab, "300");
    lab.down();
}

/// Some roles of one switch are behind its sockets, and others in its kernel. Packets from the
/// former reach the latter by the switch's own stack, past the forwarder, and only roles in the
/// kernel are called. One acceptor is gone, so each vote of the others is needed.
fn planes_mix_in_a_switch(letter: char, learners: &str, behind_sockets: &[&str], gone: &str) {
    let Some(lab) = serving(letter, &["--in-switch", "--learners", learners]) else {
        return;
    };
    for node in behind_sockets.iter().chain(&["replica-3"]) {
        set_plane(&lab, node, "udp");
    }
    // With a short timeout replicas would ask for missing votes, and the test would only take
    // longer.
    set_gap_timeout(&lab, 5_000);
    lab.json(&["start", "--json"]);
    ready(&lab);
    match behind_sockets.contains(&gone) {
        true => lab.kill(gone),
        false => crash(&lab, gone),
    }
    let load = Increments::start(&lab, 300);
    assert_eq!(load.end(), "300");
    all_agree(&lab, "300");
    lab.down();
}

#[test]
fn proposals_of_the_own_machine_are_voted_for() {
    planes_mix_in_a_switch(
        'y',
        "0",
        &["leader-1", "leader-2", "acceptor-2"],
        "acceptor-2",
    );
}

#[test]
fn votes_of_the_own_machine_count_at_its_learner() {
    planes_mix_in_a_switch(
        'a',
        "1",
        &["leader-1", "leader-2", "acceptor-2"],
        "acceptor-1",
    );
}

#[test]
fn an_acceptor_behind_sockets_is_not_called() {
    planes_mix_in_a_switch('b', "1", &["acceptor-2"], "acceptor-1");
}

#[test]
fn a_learner_behind_sockets_is_not_called() {
    planes_mix_in_a_switch('c', "1", &["learner-1"], "acceptor-1");
}

/// An acceptor is on the machine of a replica whose learner is in the kernel, so its votes don't
/// pass the interface.
#[test]
fn votes_of_the_own_machine_count_with_the_others() {
    let Some(lab) = serving('z', &[]) else { return };
    set_plane(&lab, "acceptor-3", "udp");
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let text = std::fs::read_to_string(&file).unwrap();
    let moved = text
        .replace("10.77.0.23:7000", "10.77.0.32:7200")
        .replace("10.77.0.23:7100", "10.77.0.32:7300");
    assert_ne!(moved, text);
    std::fs::write(&file, moved).unwrap();
    set_gap_timeout(&lab, 5_000);
    for node in [
        "controller",
        "leader-1",
        "leader-2",
        "acceptor-1",
        "acceptor-2",
        "replica-1",
        "replica-2",
        "replica-3",
    ] {
        lab.json(&["start", node, "--json"]);
    }
    let node = [PROGRAM, "node", "-c", &file, "--name", "acceptor-3"];
    let mut acceptor = lab
        .lab(&[&["exec", "replica-2", "--"][..], &node].concat())
        .spawn()
        .unwrap();
    ready(&lab);
    member(&lab, "acceptor-3");
    crash(&lab, "acceptor-1");
    let load = Increments::start(&lab, 300);
    assert_eq!(load.end(), "300");
    all_agree(&lab, "300");
    acceptor.kill().unwrap();
    acceptor.wait().unwrap();
    lab.down();
}

fn set_gap_timeout(lab: &TestLab, ms: u32) {
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let text = std::fs::read_to_string(&file).unwrap();
    let set = format!("[[group]]\ngap_timeout_ms = {ms}\n");
    std::fs::write(&file, text.replace("[[group]]\n", &set)).unwrap();
}

fn set_plane(lab: &TestLab, node: &str, plane: &str) {
    let file = format!("/run/wirepaxos/{}/cluster.toml", lab.name);
    let text = std::fs::read_to_string(&file).unwrap();
    let mut nodes: Vec<String> = text.split("[[node]]").map(str::to_string).collect();
    let of_node = nodes
        .iter_mut()
        .find(|n| n.contains(&format!("name = \"{node}\"")));
    let of_node = of_node.unwrap();
    for old in ["udp", "xdp"] {
        let old = format!("plane = \"{old}\"");
        *of_node = of_node.replace(&old, &format!("plane = \"{plane}\""));
    }
    std::fs::write(&file, nodes.join("[[node]]")).unwrap();
}

/// On loopback there is no interface for XDP, with root or without.
#[test]
fn auto_falls_back_to_sockets_and_says_why() {
    let shape = Shape {
        acceptors: 1,
        replicas: 1,
        ..Shape::of("echo")
    };
    let local = LocalCluster::create(&std::env::temp_dir(), &shape).unwrap();
    let node = |plane: &str| {
        let mut command = Command::new(PROGRAM);
        command.args(["node", "--name", "acceptor-1", "--plane", plane, "-c"]);
        command.arg(&local.file);
        command
    };
    let refused = node("xdp").output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("is on loopback"),
        "{said}"
    );

    let mut running = node("auto").stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    let mut lines = std::io::BufReader::new(running.stderr.take().unwrap());
    let names_plane = |said: &str| said.contains(": plane: ");
    while !names_plane(&said) && std::io::BufRead::read_line(&mut lines, &mut said).unwrap() > 0 {}
    running.kill().unwrap();
    running.wait().unwrap();
    assert!(
        said.contains("plane: udp, since xdp isn't possible"),
        "{said}"
    );
}
