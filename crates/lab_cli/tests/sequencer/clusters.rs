// SPDX-License-Identifier: Apache-2.0
//! Tests of whole clusters with sequencers.

use super::*;

/// Runs a whole cluster: controller and replicas at sockets, the sequencers in the kernel. The
/// program goes on stamping while its process is away; when the machine dies, the spare one follows
/// in another session. [F-NEED]
fn a_cluster_loses_nothing(letter: char, up: &[&str]) {
    let Some(lab) = serving(letter, &[&["--protocol", "nopaxos"], up].concat()) else {
        return;
    };
    let file = PathBuf::from(format!("/run/wirepaxos/{}/cluster.toml", lab.name));
    let cluster = ClusterFile::load(&file).unwrap();
    let start = |name: &str| lab.json(&["start", name, "--json"]);
    for node in &cluster.nodes {
        start(&node.name);
    }
    ready(&lab);
    let mut count = 0;
    let mut increments = || {
        for _ in 0..10 {
            count += 1;
            let replica = REPLICAS[count % 3];
            let answer = lab.redis("client-1", replica, &["INCR", "counter"]);
            assert_eq!(answer, count.to_string());
        }
    };
    let first = who_stamps(&lab, &cluster);
    increments();
    lab.kill(&first);
    increments();
    start(&first);
    increments();
    lab.kill(&first);
    let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, &first).unwrap();
    pins.remove().unwrap();
    increments();
    assert_ne!(who_stamps(&lab, &cluster), first);
    let found = digests(&lab);
    assert!(
        found.windows(2).all(|two| two[0].1 == two[1].1),
        "{found:?}"
    );
}

/// A command over all partitions takes effect in all of them, whichever sequencer stamps it.
/// [L-MULTI] [V-STABLE] [V-SEALED]
#[test]
fn commands_over_several_partitions_survive_sequencers_in_the_kernel() {
    let Some(lab) = serving('v', &["--protocol", "nopaxos", "--partitions", "4"]) else {
        return;
    };
    let file = PathBuf::from(format!("/run/wirepaxos/{}/cluster.toml", lab.name));
    let cluster = ClusterFile::load(&file).unwrap();
    lab.json(&["start", "--json"]);
    ready(&lab);
    const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
    let mut value = 0;
    let mut over_all = || {
        for at in 0..6 {
            value += 1;
            let text = value.to_string();
            let pairs = KEYS.iter().flat_map(|key| [*key, &text]);
            let set: Vec<&str> = std::iter::once("MSET").chain(pairs).collect();
            assert_eq!(lab.redis("client-1", REPLICAS[at % 3], &set), "OK");
            let get: Vec<&str> = std::iter::once("MGET").chain(KEYS).collect();
            let found = lab.redis("client-1", REPLICAS[(at + 1) % 3], &get);
            assert_eq!(found, [&text[..]; KEYS.len()].join("\n"));
        }
    };
    over_all();
    let first = who_stamps(&lab, &cluster);
    assert_eq!(status(&lab, &first)["plane"]["name"], "xdp");
    // The program goes on stamping.
    lab.kill(&first);
    over_all();
    let pins = Pins::of_node(&cluster.bpffs, cluster.cluster, &first).unwrap();
    pins.remove().unwrap();
    over_all();
    assert_ne!(who_stamps(&lab, &cluster), first);
    let found = digests(&lab);
    assert!(
        found.windows(2).all(|two| two[0].1 == two[1].1),
        "{found:?}"
    );
}

fn who_stamps(lab: &TestLab, cluster: &ClusterFile) -> String {
    eventually("who stamps", || {
        let controller = status(lab, "controller");
        let node = controller["groups"][0]["leader"].as_u64();
        let node = node.and_then(|id| cluster.node_by_id(id as u16));
        node.map(|node| node.name.clone())
    })
}

#[test]
fn a_cluster_whose_sequencers_are_in_the_kernel_loses_nothing() {
    a_cluster_loses_nothing('n', &[]);
}

/// Requests are ordered on their way.
#[test]
fn a_cluster_whose_sequencers_are_in_switches_loses_nothing() {
    a_cluster_loses_nothing('w', &["--topology", "two-switches", "--in-switch"]);
}
