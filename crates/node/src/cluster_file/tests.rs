// SPDX-License-Identifier: Apache-2.0
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use std::os::unix::fs::PermissionsExt;

use super::*;

const SAMPLE: &str = include_str!("../../../../testdata/cluster.toml");

#[test]
fn the_example_is_the_sample_signed() {
    let example = include_str!("../../../../examples/cluster.toml");
    let signed = SAMPLE.replacen("# auth =", "auth =", 1);
    let read = |text| format!("{:?}", parse(text, "cluster.toml").unwrap());
    assert_eq!(read(example), read(&signed));
}

#[test]
fn the_sample_file_is_valid() {
    let file = parse(SAMPLE, "some/where/cluster.toml").unwrap();
    assert_eq!(file.cluster, 0x5eed_0001);
    assert_eq!(file.data, Path::new("some/where/data"));
    assert_eq!(file.keys, Path::new("some/where/nodes.key"));
    let group = &file.groups[0];
    assert_eq!(
        (group.f, group.g, group.slots, group.window),
        (1, 1, 65_536, 49_152)
    );
    assert_eq!((group.max_value, group.checkpoint_every), (1_024, 8_192));
    assert_eq!(group.application, ApplicationKind::RocksDb);
    assert_eq!(file.controller_node().id, 1);
    let names = |role| {
        file.with_role(role)
            .map(|n| n.name.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(Role::Leader), ["leader-1", "leader-2"]);
    assert_eq!(file.acceptors().len(), 3);
    assert_eq!(
        file.replicas(0).iter().map(|n| n.id).collect::<Vec<_>>(),
        [31, 32, 33]
    );
    let replica = file.node("replica-1").unwrap();
    assert_eq!(replica.partition_address(2).port(), 7033);
    assert_eq!(file.deployment(replica, group).node, 31);
}

#[test]
fn replicas_that_share_a_machine_have_one_thread_each_and_one_port() {
    let workers = |text: &str| {
        let file = parse(text, "x.toml").unwrap();
        let replicas = file.replicas(0).into_iter();
        let of = |node: &Node| {
            (
                node.workers,
                node.address_for(3).port() - node.address.port(),
            )
        };
        replicas.map(of).collect::<Vec<_>>()
    };
    assert_eq!(workers(SAMPLE), [(Some(1), 0); 3]);
    // The file sets another number for the first replica.
    let more = SAMPLE.replacen("# workers = 2", "workers = 2", 1);
    assert_eq!(workers(&more), [(Some(2), 1), (Some(1), 0), (Some(1), 0)]);
    let cpus = SAMPLE.replacen("# worker_cpus", "worker_cpus", 1);
    assert_eq!(workers(&cpus), [(None, 3), (Some(1), 0), (Some(1), 0)]);
    // Each replica is on its own machine.
    let apart = SAMPLE
        .replace("127.0.0.1:7031", "127.0.0.2:7031")
        .replace("127.0.0.1:7032", "127.0.0.3:7032");
    assert_eq!(workers(&apart), [(None, 3); 3]);
    let one_of_another_group = SAMPLE
        .replacen(
            "[controller]",
            "[[group]]\nid = 7\napplication = \"leveldb\"\n[controller]",
            1,
        )
        .replace("role = \"replica\"", "role = \"replica\"\ngroup = 7")
        .replacen("group = 7", "group = 0", 1);
    assert_eq!(workers(&one_of_another_group), [(None, 3)]);
}

/// A replacement in the sample: the old and the new text, a part of the line that is then reported, and parts of the
/// messages.
type Bad = (
    &'static str,
    &'static str,
    &'static str,
    &'static [&'static str],
);

#[rustfmt::skip] // a table
const BAD: &[Bad] = &[
    ("\"5eed0001\"", "\"5eed\"", "= \"5eed\"", &["no cluster number", "8 hexadecimal digits"]),
    ("\"5eed0001\"", "\"+eed0001\"", "+eed", &["no cluster number"]),
    ("\"5eed0001\"", "\"00000000\"", "00000000", &["no cluster number"]),
    ("\"5eed0001\"", "\"5eed0003\"", "5eed0003", &["no cluster number", "wirepaxos init"]),
    ("data = \"data\"", "data = \"\"", "data = \"\"", &["`data` is empty"]),
    ("data = \"data\"", "data = 7", "data = 7", &["invalid type", "quotes"]),
    ("data = \"data\"", "dada = \"data\"", "dada", &["unknown field `dada`", "spelling"]),
    ("data = \"data\"", "data = \"data", "data = \"data", &["syntax"]),
    ("data = \"data\"", "data = \"data\"\nauth = \"of\"", "auth", &["is unknown", "\"control\"", "\"siphash\"", "\"halfsiphash\""]),
    ("data = \"data\"", "data = \"data\"\nkeys = \"\"", "keys", &["`keys` is empty", "name a file"]),
    ("data = \"data\"", "data = \"data\"\nclients = [\"10.0.0.1/8\"]", "clients", &["no address, and no network", "10.0.1.0/24"]),
    ("data = \"data\"", "data = \"data\"\nclients = [\"shop\"]", "clients", &["no address, and no network"]),
    ("data = \"data\"", "data = \"data\"\nauth = \"halfsiphash\"\nclients = [\"10.0.0.7\"]", "clients", &["halfsiphash", "shows by its key"]),
    ("data = \"data\"", "data = \"data\"\nauth = \"siphash\"\nclients = [\"10.0.0.7\"]", "clients", &["shows by its key", "remove it"]),
    ("slots = 65536", "slots = 0", "slots = 0", &["`slots = 0` is out of range", "choose 16 to"]),
    ("slots = 65536", "window = 70000", "window = 70000", &["choose 4 to 61440"]),
    ("slots = 65536", "max_value = 1401", "1401", &["out of range", "64 to 1400"]),
    ("slots = 65536", "checkpoint_every = 40000", "40000", &["choose 1 to 24576"]),
    ("slots = 65536", "answer = \"sent\"", "answer", &["is unknown", "\"executed\"", "\"stored\""]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[node]]",
        &["role = \"acceptor\", and no group has protocol = \"paxos\"", "remove this node"]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[node]]", &["role = \"leader\"", "NOPaxos has sequencers"]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[group]]", &["no sequencer", "role = \"sequencer\""]),
    ("slots = 65536", "protocol = \"raft\"", "raft", &["is unknown", "\"paxos\"", "\"nopaxos\""]),
    ("id = 12\nrole = \"leader\"", "id = 12\nrole = \"sequencer\"", "[[node]]",
        &["role = \"sequencer\", and no group has protocol = \"nopaxos\"", "remove this node"]),
    ("slots = 65536", "f = 2", "f = 2", &["`f = 2` needs 2f+1", "leave `f` out"]),
    ("slots = 65536", "g = 2", "g = 2", &["`g = 2` needs 2g+1", "choose 0 to 1"]),
    ("\"rocksdb\"", "\"rockdb\"", "rockdb", &["is unknown", "\"leveldb\""]),
    ("\"rocksdb\"", "\"echo\"", "redis = ", &["needs a store", "remove `redis`"]),
    ("\"rocksdb\"", "\"own\"", "redis = ", &["needs a store", "\"own\"", "remove `redis`"]),
    ("partitions = 1 ", "partitions = 65 ", "= 65 ", &["`partitions = 65`", "1 to 64"]),
    ("redis = \"127.0.0.1:6380\"", "redis_order = \"key\"", "redis_order", &["without `redis`", "add"]),
    ("# redis_order = ", "redis_order = \"none\" # ", "redis_order", &["is unknown", "\"key\""]),
    ("partitions = 1 ", "partitions = 2 ", ":7032", &["replica-2", "replica-1", "another port"]),
    ("probe_ms = 40", "probe_ms = 1", "probe_ms", &["2 to 60000"]),
    ("probe_ms = 40", "probe_s = 50", "probe_s", &["unknown field `probe_s`"]),
    ("\"leader-1\"\nid", "\"leader/1\"\nid", "leader/1", &["no name", "letters"]),
    ("name = \"leader-2\"", "name = \"leader-1\"", "leader-1", &["taken twice"]),
    ("name = \"leader-2\"\n", "\n", "[[node]]", &["missing field `name`", "add it"]),
    ("id = 12", "id = 11", "id = 11", &["node `id` 11 is taken twice"]),
    ("id = 12", "id = 0", "id = 0", &["choose 1 to 65535"]),
    ("id = 12", "id = 70000", "id = 70000", &["choose 1 to 65535"]),
    ("role = \"acceptor\"", "role = \"acceptors\"", "acceptors", &["is unknown", "\"acceptor\""]),
    ("role = \"acceptor\"", "role = \"controller\"", "[[node]]", &["2 controllers", "take 1, 3 or 5"]),
    ("id = 22\nrole = \"acceptor\"", "id = 22\nrole = \"leader\"", "[[group]]",
        &["2 acceptors are not 2f+1", "add one or remove one"]),
    ("role = \"controller\"", "role = \"leader\"", "", &["no controller"]),
    ("127.0.0.1:7012", "localhost:7012", "localhost", &["no address", "IP address and a port"]),
    ("127.0.0.1:7012", "127.0.0.1:0", "127.0.0.1:0", &["no port"]),
    ("127.0.0.1:7012", "0.0.0.0:7012", "0.0.0.0", &["others can send to"]),
    ("127.0.0.1:7012", "[::1]:7012", "[::1]", &["another IP version"]),
    ("127.0.0.1:7012", "127.0.0.1:7111", ":7111", &["leader-2", "leader-1", "`control`"]),
    ("storage = \"volatile\"", "storage = \"disk\"", "disk", &["\"durable\""]),
    ("storage = \"volatile\"", "redis = \"127.0.0.1:1\"", "redis", &["means nothing", "acceptor"]),
    ("# group = 0", "group = 4", "group = 4", &["no group 4"]),
    ("\"127.0.0.1:6379\"", "\"10.0.0.1:6379\"", "10.0.0.1", &["anybody", "redis_password"]),
    ("\"127.0.0.1:6379\"", "\"127.0.0.1:7131\"", "redis =", &["`redis`", "`control`"]),
    ("\"127.0.0.1:6380\"", "\"127.0.0.1:6379\"", "redis =", &["replica-2", "replica-1"]),
    ("# redis_password = \"...\"", "redis_password = \"\"", "redis =", &["not empty"]),
    ("# redis_password = \"...\"", "redis_password = \"change me\"", "redis =", &["of your own"]),
    ("# redis_password = \"...\"", "redis_password = \"a\"\nredis_password_file = \"b\"", "redis_password_file",
        &["beside `redis_password`", "keep one"]),
    ("# state_tls = { certificate = \"node.pem\"", "state_tls = { certificate = \"\"", "state_tls", &["`certificate` is empty", "name a file"]),
    ("# state_tls = { certificate = \"node.pem\"", "state_tls = { c = \"a\"", "state_tls", &["unknown field `c`"]),
    ("redis = \"127.0.0.1:6380\"", "redis_tls = { certificate = \"a\", key = \"b\" }", "redis_tls",
        &["without `redis`", "add"]),
    ("storage = \"volatile\"", "redis_tls = { certificate = \"a\", key = \"b\" }", "redis_tls",
        &["means nothing", "acceptor"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"a\" }", "redis_tls", &["missing field `key`", "add it"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"a\", key = \"b\", ca = \"c\" }", "redis_tls",
        &["unknown field `ca`", "spelling"]),
    ("# redis_password = \"...\"", "redis_tls = \"a\"", "redis_tls", &["invalid type"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"\", key = \"b\" }", "redis_tls",
        &["`certificate` is empty", "name a file"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"a\", key = \"b\", client_ca = \"\" }", "redis_tls",
        &["`client_ca` is empty"]),
    ("redis = \"127.0.0.1:6379\"", "redis = \"10.0.0.1:6379\"\nredis_tls = { certificate = \"a\", key = \"b\" }", "10.0.0.1",
        &["anybody", "client_ca"]),
    ("# metrics = \"127.0.0.1:9101\"", "metrics = \"10.0.0.1:9101\"", "metrics =",
        &["tell anybody", "metrics_open = true"]),
    ("# metrics = \"127.0.0.1:9101\"", "metrics_open = true", "metrics_open", &["without `metrics`"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"fpga\"", "fpga", &["is unknown", "\"xdp\""]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"", "plane",
        &["without `dpdk_port`", "PCI address"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"\"", "dpdk_port",
        &["is empty", "PCI address"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"p\"\ndpdk_args = [\"\"]",
        "dpdk_args", &["is empty", "remove it"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"p\"", "plane",
        &["has the IP address 127.0.0.1, too", "an IP address of its own"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\ndpdk_port = \"p\"", "dpdk_port",
        &["without `plane`", "`plane = \"dpdk\"`"]),
    ("redis = \"", "plane = \"dpdk\"\ndpdk_port = \"p\"\nworkers = 2\nredis = \"", "plane",
        &["`workers`", "`cpu`"]),
    ("redis = \"", "plane = \"dpdk\"\ndpdk_port = \"p\"\nworker_cpus = [1]\nredis = \"", "plane",
        &["`worker_cpus`", "remove them"]),
    ("role = \"controller\"", "role = \"controller\"\nplane = \"dpdk\"", "plane", &["means nothing"]),
    ("role = \"controller\"", "role = \"controller\"\nplane = \"xdp\"", "plane", &["means nothing"]),
    ("storage = \"volatile\"", "storage = \"durable\"\nplane = \"xdp\"", "plane",
        &["can't write to disk", "plane = \"udp\""]),
    ("storage = \"volatile\"", "switch = \"a/b\"", "switch =", &["is no name", "letters, digits"]),
    ("redis = \"", "switch = \"sw\"\nredis = \"", "switch =",
        &["means nothing", "role = \"replica\"", "remove it"]),
    ("# trace = \"traces\"", "trace = \"\"", "trace =", &["is empty", "name a directory"]),
    ("# workers = 2", "workers = 0", "workers = 0", &["1 to 64"]),
    ("# worker_cpus = [0, 1]", "worker_cpus = [0, -1]", "worker_cpus", &["0 to 1023"]),
    ("# directories = [\"a\", \"b\"]", "directories = [\"\"]", "directories", &["is empty"]),
    ("storage = \"volatile\"", "workers = 2", "workers", &["means nothing", "replica"]),
    ("# copies = \"copies\"", "copies = \"\"", "copies =", &["is empty"]),
    ("# copies = \"copies\"", "copies = \"c\"\ncopies_kept = 0", "copies_kept = 0", &["1 to 1000"]),
    ("# copy_every_s = 3600", "copy_every_s = 3600", "copy_every_s", &["without `copies`", "add"]),
    ("storage = \"volatile\"", "copies = \"c\"", "copies", &["means nothing", "replica"]),
    ("# cpu = 0", "cpu = -1", "cpu = -1", &["0 to 1023"]),
    ("# spin_us = 50", "spin_us = 10001", "spin_us", &["0 to 10000"]),
    ("role = \"controller\"", "role = \"controller\"\nleaving = true", "leaving", &["no epoch names", "at once"]),
    ("id = 33\n", "id = 33\nleaving = 1\n", "leaving", &["invalid type"]),
    ("role = \"controller\"", "role = \"controller\"\nspin_us = 50", "spin_us", &["means nothing"]),
];

/// Returns the same cluster with NOPaxos: a sequencer, a spare, and three replicas.
fn with_nopaxos() -> String {
    let nodes = SAMPLE.split_inclusive("\n[[node]]\n");
    let kept = nodes.filter(|node| !node.contains("role = \"acceptor\""));
    let text: String = kept.collect();
    text.replacen("slots = 65536", "protocol = \"nopaxos\"\nslots = 65536", 1)
        .replace("leader", "sequencer")
        .replacen("role = \"sequencer\"", "role = \"sequencer\"\ngroup = 0", 1)
}

#[rustfmt::skip] // a table
const BAD_WITH_NOPAXOS: &[Bad] = &[
    ("id = 12\n", "id = 12\ngroup = 0\n", "[[node]]",
        &["a second sequencer of group 0", "leave `group` out", "spare"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"sequencer\"", "[[group]]",
        &["2 replicas are not 2f+1", "add one or remove one"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"acceptor\"", "[[node]]",
        &["role = \"acceptor\", and no group has protocol = \"paxos\"", "replicas remember", "remove this node"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"learner\"", "[[node]]",
        &["role = \"learner\"", "nothing to learn"]),
    ("# f = 1", "f = 2", "f = 2", &["`f = 2` needs 2f+1 replicas", "leave `f` out"]),
    ("# g = 1", "g = 0", "g = 0", &["`g = 0` needs 2g+1 replicas", "leave `g` out"]),
    ("group = 0\n", "group = 4\n", "group = 4", &["no group 4"]),
    ("[controller]", "[[group]]\nid = 4\napplication = \"echo\"\n[controller]", "", &["there is no leader"]),
    ("redis = \"", "plane = \"xdp\"\nredis = \"", "plane",
        &["on a replica of a group with `protocol = \"nopaxos\"`", "take plane = \"udp\""]),
];

#[test]
fn a_cluster_with_nopaxos_has_sequencers_and_no_acceptors() {
    let file = parse(&with_nopaxos(), "x.toml").unwrap();
    let group = &file.groups[0];
    assert_eq!(
        (group.protocol, group.f, group.g),
        (Protocol::NoPaxos, 1, 1)
    );
    let mut in_kernel = file.clone();
    assert!(in_kernel.set_plane("replica-1", Plane::Xdp).is_err());
    assert!(in_kernel.set_plane("sequencer-1", Plane::Xdp).is_ok());
    let ids = |nodes: Vec<&Node>| nodes.iter().map(|n| n.id).collect::<Vec<_>>();
    assert_eq!(ids(file.stampers(group)), [11, 12]);
    assert_eq!(ids(file.memories(group)), [31, 32, 33]);
    let spare_first = with_nopaxos().replacen("group = 0\n", "", 1).replacen(
        "id = 12\n",
        "id = 12\ngroup = 0\n",
        1,
    );
    let file = parse(&spare_first, "x.toml").unwrap();
    assert_eq!(ids(file.stampers(&file.groups[0])), [12, 11]);
    all_are_refused(&with_nopaxos(), BAD_WITH_NOPAXOS);
    let second = "[[group]]\nid = 4\napplication = \"echo\"\n[controller]";
    let of_paxos = with_nopaxos().replacen("[controller]", second, 1).replacen(
        "group = 0\n",
        "group = 4\n",
        1,
    );
    let refused = parse(&of_paxos, "x.toml").unwrap_err().to_string();
    let why = "a sequencer of group 4, whose protocol is \"paxos\"";
    assert!(refused.contains(why), "{refused}");
}

#[test]
fn every_error_names_its_line_and_a_remedy() {
    all_are_refused(SAMPLE, BAD);
}

fn all_are_refused(sample: &str, bad: &[Bad]) {
    for (old, new, line, parts) in bad {
        assert!(sample.contains(old), "{old}");
        let text = sample.replacen(old, new, 1);
        let errors = parse(&text, "x.toml").expect_err(new);
        let shown = errors.to_string();
        let is_it = |error: &Error| {
            let there = text
                .lines()
                .nth(error.line - 1)
                .is_some_and(|l| l.contains(line));
            let message = format!("{}; {}", error.problem, error.remedy);
            there && parts.iter().all(|part| message.contains(part)) && !error.remedy.is_empty()
        };
        assert!(
            errors.errors.iter().any(is_it),
            "{new}: {parts:?} at {line:?} in\n{shown}"
        );
        let first = &errors.errors[0];
        assert!(shown.starts_with(&format!("x.toml:{}: {}", first.line, first.problem)));
    }
}

/// A leaving node is known, but doesn't count. [F-NEED]
#[test]
fn who_leaves_is_known_and_not_counted() {
    for sample in [SAMPLE.to_owned(), with_nopaxos()] {
        let mut draft = Draft::from(&parse(&sample, "").unwrap());
        draft.groups[0].g = None;
        let host = draft.nodes[0].address.ip();
        draft.add_nodes(&[(Role::Replica, 2)], host);
        for node in draft.nodes.iter_mut().filter(|n| [31, 32].contains(&n.id)) {
            node.leaving = Some(true);
        }
        let cluster = draft.check().unwrap();
        assert_eq!(cluster.groups[0].g, 1);
        assert_eq!(cluster.replicas(0).len(), 5, "packets go to all of them");
        assert_eq!(Draft::from(&cluster).check().unwrap(), cluster);
        draft.nodes.last_mut().unwrap().leaving = Some(true);
        let counted = draft.check().map(|cluster| cluster.groups[0].g);
        match sample == SAMPLE {
            true => assert_eq!(counted, Ok(0), "two replicas survive no loss"),
            false => assert!(
                counted
                    .unwrap_err()
                    .to_string()
                    .contains("2 replicas are not 2f+1")
            ),
        }
    }
}

#[test]
fn the_protocol_that_is_there_may_be_named() {
    let text = SAMPLE.replacen("slots = 65536", "protocol = \"paxos\"", 1);
    parse(&text, "cluster.toml").unwrap();
}

#[test]
fn programs_in_the_kernel_sign_by_either_hash() {
    let text = SAMPLE.replacen(
        "data = \"data\"",
        "data = \"data\"\nauth = \"halfsiphash\"",
        1,
    );
    let acceptor = "role = \"acceptor\"";
    let text = text.replacen(acceptor, &format!("{acceptor}\nplane = \"xdp\""), 1);
    let file = parse(&text, "x.toml").unwrap();
    assert_eq!(file.auth.of_packets(), Some(Algorithm::HalfSipHash));
    let file = parse(&text.replacen("half", "", 1), "x.toml").unwrap();
    assert_eq!(file.auth.of_packets(), Some(Algorithm::SipHash));
}

#[test]
fn programs_in_switches_sign_in_another_way() {
    let text = SAMPLE
        .replacen("data = \"data\"", "data = \"data\"\nauth = \"siphash\"", 1)
        .replacen(
            "role = \"acceptor\"",
            "role = \"acceptor\"\nplane = \"p4\"",
            1,
        );
    let refused = parse(&text, "x.toml").unwrap_err().to_string();
    assert!(refused.contains("by HalfSipHash alone"), "{refused}");
    for auth in ["halfsiphash", "control"] {
        let text = text.replacen("\"siphash\"", &format!("{auth:?}"), 1);
        let file = parse(&text, "x.toml").unwrap();
        assert_eq!(file.auth.name(), auth);
    }
}

#[test]
fn nodes_in_the_kernel_cant_record() {
    let text = SAMPLE.replacen("# trace =", "trace =", 1).replacen(
        "role = \"acceptor\"",
        "role = \"acceptor\"\nplane = \"xdp\"",
        1,
    );
    let refused = parse(&text, "x.toml").unwrap_err().to_string();
    assert!(refused.contains("can't be recorded"), "{refused}");
    let on_sockets = text.replacen("\"xdp\"", "\"udp\"", 1);
    let mut file = parse(&on_sockets, "dir/x.toml").unwrap();
    assert_eq!(file.trace.as_deref(), Some(Path::new("dir/traces")));
    assert!(file.set_plane("acceptor-1", Plane::Xdp).is_err());
    assert!(file.set_plane("acceptor-1", Plane::Auto).is_ok());
}

/// Returns the sample with an acceptor with these lines, in a group with those.
fn with_switch(node: &str, group: &str) -> String {
    let acceptor = format!("role = \"acceptor\"\nplane = \"p4\"\n{node}");
    let sample = SAMPLE.replacen("role = \"acceptor\"\n", &acceptor, 1);
    sample.replacen("slots = 65536", group, 1)
}

#[test]
fn a_node_in_a_switch_says_where_that_is() {
    let file = parse(&with_switch("", "slots = 65536"), "x.toml").unwrap();
    let of = |file: &ClusterFile| {
        let node = file.node("acceptor-1").unwrap();
        (node.plane, node.p4_control.to_string(), node.p4_port)
    };
    let default = (Plane::P4, "127.0.0.1:9090".to_owned(), 1);
    assert_eq!((of(&file), file.groups[0].max_value), (default, 128));
    let named = "p4_control = \"[::1]:9191\"\np4_port = 7\n";
    let file = parse(&with_switch(named, "slots = 4096"), "x.toml").unwrap();
    assert_eq!(of(&file), (Plane::P4, "[::1]:9191".to_owned(), 7));
    let again = Draft::from(&file).check().unwrap();
    assert_eq!(of(&again), of(&file));
}

#[test]
fn what_no_switch_can_do_is_refused() {
    let refused = |text: &str| parse(text, "x.toml").unwrap_err().to_string();
    for (node, group, why) in [
        ("", "slots = 5000", "make `slots` a power of two"),
        ("", "max_value = 129", "set max_value = 128"),
        ("switch = \"sw\"\n", "", "`p4_control` says where"),
        ("p4_port = 255\n", "", "choose 0 to 254"),
        (
            "p4_control = \"here\"\n",
            "",
            "`p4_control = \"here\"` is no address",
        ),
    ] {
        let shown = refused(&with_switch(node, group));
        assert!(shown.contains(why), "{why} in {shown}");
    }
    let durable = with_switch("", "").replacen("\"volatile\"", "\"durable\"", 1);
    assert!(refused(&durable).contains("programs in a switch can't write to disk"));
    let traced = with_switch("", "").replacen("# trace =", "trace =", 1);
    assert!(refused(&traced).contains("what passes in a switch can't be recorded"));
    let replica = "role = \"replica\"\nplane = \"p4\"";
    let ends = SAMPLE.replacen("role = \"replica\"", replica, 1);
    assert!(refused(&ends).contains("packets end in its process"));

    let mut file = parse(SAMPLE, "x.toml").unwrap();
    assert!(file.set_plane("replica-1", Plane::P4).is_err());
    let too_long = file.set_plane("leader-1", Plane::P4).unwrap_err();
    assert!(
        too_long.to_string().contains("max_value = 128"),
        "{too_long}"
    );
}

/// Returns the sample with a learner whose record has these lines.
fn with_learner(lines: &str) -> String {
    let learner = format!(
        "[[node]]\nname = \"learner-1\"\nid = 41\nrole = \"learner\"\n\
         address = \"127.0.0.1:7041\"\ncontrol = \"127.0.0.1:7141\"\n{lines}\n\n[[node]]\n"
    );
    SAMPLE.replacen("[[node]]\n", &learner, 1)
}

#[test]
fn votes_go_to_learners_where_there_are_any() {
    let listeners = |text: &str, node: &str| {
        let two_threads = text.replace("role = \"replica\"", "role = \"replica\"\nworkers = 2");
        let file = parse(&two_threads, "x.toml").unwrap();
        let listeners = file.listeners(file.node(node).unwrap(), 0);
        let ports = listeners.iter().map(|n| n.address_for(1).port());
        ports.collect::<Vec<_>>()
    };
    // A replica has a port for each thread.
    assert_eq!(listeners(SAMPLE, "acceptor-1"), [7032, 7033, 7034]);
    let one = with_learner("metrics = \"127.0.0.1:9441\"\ncpu = 1\nplane = \"auto\"");
    assert_eq!(listeners(&one, "acceptor-1"), [7041]);
    assert_eq!(listeners(&one, "learner-1"), [7032, 7033, 7034]);
    let second = one
        .replace("learner-1", "learner-2")
        .replace("id = 41", "id = 42")
        .replace(":7041", ":7042")
        .replace(":7141", ":7142")
        .replace(":9441", ":9442");
    let second = &second[second.find("[[node]]").unwrap()..];
    let second = &second[..second[8..].find("[[node]]").unwrap() + 8];
    let two = format!("{one}\n{second}");
    assert_eq!(listeners(&two, "acceptor-3"), [7041, 7042]);
    assert_eq!(listeners(&two, "learner-2"), [7032, 7033, 7034]);
}

#[test]
fn a_learner_has_neither_group_nor_storage_nor_front_end() {
    for (line, key) in [
        ("group = 0", "group"),
        ("storage = \"volatile\"", "storage"),
        ("redis = \"127.0.0.1:6399\"", "redis"),
    ] {
        let errors = parse(&with_learner(line), "x.toml").unwrap_err();
        let expected =
            format!("`{key}` means nothing on a node with role = \"learner\"; remove it");
        let shown = errors.to_string();
        assert!(shown.contains(&expected), "{shown}");
        assert_eq!(errors.errors.len(), 1, "{shown}");
    }
    let twice = with_learner("").replace("id = 41", "id = 31");
    let errors = parse(&twice, "x.toml").unwrap_err().to_string();
    assert!(errors.contains("node `id` 31 is taken twice"), "{errors}");
    let same_port = with_learner("").replace(":7041", ":7021");
    let errors = parse(&same_port, "x.toml").unwrap_err().to_string();
    assert!(errors.contains("choose another port"), "{errors}");
    let traced = with_learner("plane = \"xdp\"").replacen("# trace =", "trace =", 1);
    let errors = parse(&traced, "x.toml").unwrap_err().to_string();
    assert!(errors.contains("can't be recorded"), "{errors}");
}

#[test]
fn a_redis_address_with_a_password_may_be_public() {
    let text = SAMPLE
        .replacen("127.0.0.1:6379", "0.0.0.0:6379", 1)
        .replacen(
            "# redis_password = \"...\"",
            "redis_password = \"secret\"",
            1,
        );
    let file = parse(&text, "x.toml").unwrap();
    assert_eq!(file.nodes[6].redis_password.as_deref(), Some("secret"));
}

#[test]
fn where_clients_show_a_certificate_they_need_no_password() {
    let tls =
        r#"redis_tls = { certificate = "s.pem", key = "/k/s.key", client_ca = "clients.pem" }"#;
    let text = SAMPLE
        .replacen("127.0.0.1:6379", "0.0.0.0:6379", 1)
        .replacen("# redis_password = \"...\"", tls, 1);
    let file = parse(&text, "/some/where/cluster.toml").unwrap();
    let files = tls::Files {
        certificate: "/some/where/s.pem".into(),
        key: "/k/s.key".into(),
        client_ca: Some("/some/where/clients.pem".into()),
    };
    assert_eq!(file.nodes[6].redis_tls, Some(files));
}

#[test]
fn a_password_may_be_in_a_file_of_its_own() {
    let directory = crate::test_dir::TestDir::new();
    let text = SAMPLE
        .replacen("127.0.0.1:6379", "0.0.0.0:6379", 1)
        .replacen(
            "# redis_password = \"...\"",
            "redis_password_file = \"redis.password\"",
            1,
        );
    let path = directory.path().join("cluster.toml");
    let file = parse(&text, path.to_str().unwrap()).unwrap();
    let replica = &file.nodes[6];
    let refused = || replica.password().unwrap_err().to_string();
    assert!(refused().contains("can't be read"), "{}", refused());
    let secret = directory.path().join("redis.password");
    let write = |text: &str, mode| {
        std::fs::write(&secret, text).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    write("pass word\n", 0o600);
    assert_eq!(replica.password().unwrap().as_deref(), Some("pass word"));
    for mode in [0o640, 0o604, 0o620] {
        write("pass word\n", mode);
        let why = refused();
        assert!(
            why.contains("redis.password") && why.contains("chmod 600"),
            "{why}"
        );
    }
    for text in ["", "\n", "a\nb\n"] {
        write(text, 0o600);
        assert!(refused().contains("one line"), "{}", refused());
    }
}

#[test]
fn metrics_may_be_open_to_others() {
    let open = "metrics = \"10.0.0.1:9101\"\nmetrics_open = true";
    let text = SAMPLE.replacen("# metrics = \"127.0.0.1:9101\"", open, 1);
    let file = parse(&text, "x.toml").unwrap();
    let written = Draft::from(&file).to_toml().unwrap();
    assert!(written.contains("metrics_open = true"), "{written}");
    assert_eq!(parse(&written, "x.toml").unwrap().nodes, file.nodes);
}

#[test]
fn a_udp_and_a_tcp_port_may_be_equal() {
    let text = SAMPLE.replacen("127.0.0.1:6379", "127.0.0.1:7011", 1);
    parse(&text, "x.toml").unwrap();
}

#[test]
fn several_groups_need_replicas_that_name_theirs() {
    let second = "[[group]]\nid = 7\napplication = \"leveldb\"\n[controller]";
    let text = SAMPLE.replacen("[controller]", second, 1);
    let errors = parse(&text, "x.toml").unwrap_err().to_string();
    assert!(errors.contains("which group it executes"), "{errors}");
    let text = text.replace("role = \"replica\"", "role = \"replica\"\ngroup = 7");
    let errors = parse(&text, "x.toml").unwrap_err().to_string();
    assert!(errors.contains("group 0 has no replica"), "{errors}");
    let text = text.replacen("group = 7", "group = 0", 1);
    let file = parse(&text, "x.toml").unwrap();
    assert_eq!((file.replicas(0).len(), file.replicas(7).len()), (1, 2));
    assert_eq!((file.group(0).unwrap().g, file.group(7).unwrap().g), (0, 0));
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_file() {
    let text = SAMPLE
        .replacen("5eed0001", "x", 1)
        .replacen("id = 33", "id = 32", 1);
    let errors = parse(&text, "x.toml").unwrap_err();
    let line = |of: &str| 1 + text.lines().position(|l| l.starts_with(of)).unwrap();
    let lines: Vec<_> = errors.errors.iter().map(|e| e.line).collect();
    let twice = text.lines().enumerate().filter(|(_, l)| *l == "id = 32");
    assert_eq!(lines, [line("cluster"), 1 + twice.last().unwrap().0]);
}

#[test]
fn nothing_at_all_and_nonsense_are_errors() {
    for text in [
        "",
        "\u{0}",
        "cluster",
        "[[node]]",
        "cluster = \"5eed0001\"\ndata = \"d\"",
    ] {
        assert!(parse(text, "x.toml").is_err(), "{text:?}");
    }
    let missing = ClusterFile::load(Path::new("/nonexistent/cluster.toml")).unwrap_err();
    assert!(
        missing
            .to_string()
            .starts_with("/nonexistent/cluster.toml: can't be read")
    );
}

#[test]
fn a_value_leaves_room_for_the_longer_header_of_ipv6() {
    let over_ipv6 = SAMPLE
        .replace("127.0.0.1", "[::1]")
        .replace("slots = 65536", "max_value = 1400");
    let errors = parse(&over_ipv6, "sample.toml").unwrap_err();
    assert_eq!(errors.errors.len(), 1, "{errors}");
    assert!(errors.to_string().contains("64 to 1380"), "{errors}");
}

/// Returns the sample with a valid value for every key.
fn with_every_key() -> String {
    let lines = SAMPLE.lines().map(|line| {
        let left = [
            "trace",
            "leaving",
            "bpffs",
            "plane",
            "switch",
            "dpdk",
            "p4",
            "redis_password_file",
        ];
        let is_left = left.iter().any(|key| line.starts_with(&format!("# {key}")));
        let key = line.starts_with("# ") && line.contains(" = ") && !is_left;
        match key || line == "# [[node]]" {
            true => &line[2..],
            false => line,
        }
    });
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let text = text
        .replacen("application = \"rocksdb\"", "application = \"redis\"", 1)
        .replacen("probe_ms = 40", "probe_ms = 70", 1)
        .replacen(
            "redis_password = \"...\"",
            "redis_password = \"a \\\"b\\\"\"",
            1,
        )
        .replacen("redis_order = \"connection\"", "redis_order = \"key\"", 1)
        .replacen(
            "data = \"data\"",
            "data = \"da ta\"\nbpffs = \"bpf\"\ntrace = \"t\"",
            1,
        );
    let switch = "role = \"leader\"\nswitch = \"sw\"\nplane = \"auto\"\nmetrics = \"[::1]:9000\"";
    text.replacen("role = \"leader\"", switch, 1)
}

#[test]
fn only_redis_servers_have_a_limit_of_memory() {
    let text = SAMPLE.replacen("slots = 65536", "max_memory_mib = 64", 1);
    let errors = parse(&text, "/x.toml").unwrap_err().to_string();
    assert!(
        errors.contains("`max_memory_mib` limits Redis servers"),
        "{errors}"
    );
    let text = text.replacen("\"rocksdb\"", "\"redis\"", 1);
    let file = parse(&text, "/x.toml").unwrap();
    assert_eq!(file.groups[0].max_memory_mib, Some(64));
}

#[test]
fn what_is_written_reads_back_to_the_same_cluster() {
    let second = "[[group]]\nid = 7\napplication = \"leveldb\"\n[controller]";
    let two_groups = SAMPLE
        .replacen("[controller]", second, 1)
        .replace("role = \"replica\"", "role = \"replica\"\ngroup = 7")
        .replacen("group = 7", "group = 0", 1);
    let fewer = SAMPLE.replacen("slots = 65536", "g = 0\nwindow = 100", 1);
    let nopaxos = with_nopaxos();
    let on_dpdk = with_dpdk();
    for text in [
        SAMPLE,
        &with_every_key(),
        &two_groups,
        &fewer,
        &nopaxos,
        &on_dpdk,
    ] {
        let read = parse(text, "/some/where/cluster.toml").unwrap();
        let written = Draft::from(&read).to_toml().unwrap();
        let again = parse(&written, "/else/where/cluster.toml");
        let again = again.unwrap_or_else(|e| panic!("{e}\n{written}"));
        assert_eq!(again, read, "{written}");
    }
    let every = parse(&with_every_key(), "/x.toml").unwrap();
    let node = |name| every.node(name).unwrap().clone();
    let replica = node("replica-1");
    assert_eq!(replica.redis_order, RedisOrder::Key);
    assert_eq!((replica.workers, replica.worker_cpus.len()), (Some(2), 2));
    assert_eq!(replica.spin, Duration::from_micros(50));
    let partition = |pid| every.partition_dir(&replica, pid);
    assert_eq!(partition(0), Path::new("/a/replica-1/partition-0"));
    assert_eq!(partition(3), Path::new("/b/replica-1/partition-3"));
    let ports = [0, 1, 2, 3].map(|pid| replica.address_for(pid).port());
    assert_eq!(ports, [7031, 7032, 7031, 7032], "one for each thread");
    let replica = node("replica-2");
    assert_eq!(replica.address_for(3).port(), 7032, "one thread");
    let by_default = every.partition_dir(&replica, 1);
    assert_eq!(by_default, every.node_dir(&replica).join("partition-1"));
    let copies = CopySettings {
        directory: "/copies".into(),
        every_s: 3_600,
        kept: 2,
    };
    assert_eq!(
        (replica.copies, node("replica-1").copies),
        (None, Some(copies))
    );
    let password = node("replica-1").redis_password;
    assert_eq!(password.as_deref(), Some("a \"b\""));
    let leader = node("leader-1");
    assert_eq!(
        (leader.switch.as_deref(), leader.plane),
        (Some("sw"), Plane::Auto)
    );
    assert_eq!(node("acceptor-1").storage, Storage::Volatile);
    assert_eq!(every.controller.probe_ms, 70);
}

/// Returns the sample with an acceptor at a DPDK port.
fn with_dpdk() -> String {
    let port = "\"127.0.0.2:7021\"\nplane = \"dpdk\"\ndpdk_port = \"net_memif0\"\ndpdk_args = [\"-m\", \"256\"]";
    SAMPLE.replacen("\"127.0.0.1:7021\"", port, 1)
}

#[test]
fn a_node_on_dpdk_has_a_port_and_an_address_of_its_own() {
    let mut file = parse(&with_dpdk(), "x.toml").unwrap();
    let acceptor = file.node("acceptor-1").unwrap();
    let dpdk = acceptor.dpdk.as_ref().unwrap();
    assert_eq!(
        (acceptor.plane, dpdk.port.as_str()),
        (Plane::Dpdk, "net_memif0")
    );
    assert_eq!(dpdk.args, ["-m", "256"]);
    // The command line may move the node elsewhere and back, but may not move a node there that has no port.
    assert!(file.set_plane("acceptor-1", Plane::Udp).is_ok());
    assert!(file.set_plane("acceptor-1", Plane::Dpdk).is_ok());
    for (node, why) in [
        ("acceptor-2", "without `dpdk_port`"),
        ("replica-1", "without `dpdk_port`"),
        ("controller", "means nothing"),
    ] {
        let refused = file.set_plane(node, Plane::Dpdk).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // The command line may not set what the file may not say.
    file.set_plane("acceptor-1", Plane::Udp).unwrap();
    let at = file.nodes.iter().position(|n| n.name == "acceptor-1");
    file.nodes[at.unwrap()].address = "127.0.0.1:7021".parse().unwrap();
    let shared = file.set_plane("acceptor-1", Plane::Dpdk).unwrap_err();
    assert!(shared.to_string().contains("127.0.0.1, too"), "{shared}");
}

fn small_draft() -> Draft {
    let group = GroupDraft {
        partitions: Some(3),
        ..GroupDraft::new(2, ApplicationKind::Echo)
    };
    let mut draft = Draft::new(0xbad_cafe, "data", group);
    let host = [127, 0, 0, 1].into();
    for role in [
        Role::Controller,
        Role::Leader,
        Role::Replica,
        Role::Replica,
        Role::Acceptor,
    ] {
        draft.add_node(role, host);
    }
    draft
}

#[test]
fn nodes_of_a_draft_get_names_numbers_and_ports_of_their_own() {
    let mut draft = small_draft();
    draft.nodes[2].metrics = Some("127.0.0.1:7100".parse().unwrap());
    draft.add_node(Role::Leader, [127, 0, 0, 1].into());
    draft.add_node(Role::Learner, [127, 0, 0, 2].into());
    let file = draft.check().unwrap();
    let all: Vec<_> = file
        .nodes
        .iter()
        .map(|n| (n.name.as_str(), n.id, n.address.port(), n.control.port()))
        .collect();
    assert_eq!(
        all,
        [
            ("controller", 1, 7000, 7001),
            ("leader-1", 2, 7002, 7003),
            ("replica-1", 3, 7004, 7007),
            ("replica-2", 4, 7008, 7011),
            ("acceptor-1", 5, 7012, 7013),
            ("leader-2", 6, 7101, 7102),
            ("learner-1", 7, 7000, 7001),
        ]
    );
    assert_eq!((file.cluster, file.groups[0].slots), (0xbad_cafe, 65_536));
}

#[test]
fn a_draft_that_is_wrong_is_refused_and_changes_nothing() {
    let directory = crate::test_dir::TestDir::new();
    let path = directory.path().join("cluster.toml");
    let good = small_draft();
    let cluster = good.write(&path).unwrap();
    assert_eq!(ClusterFile::load(&path).unwrap(), cluster);
    let before = std::fs::read_to_string(&path).unwrap();
    let mut bad = good.clone();
    bad.groups[0].slots = Some(1);
    bad.nodes[4].id = 2;
    let refused = bad.write(&path).unwrap_err();
    assert_eq!(refused.errors.len(), 2, "{refused}");
    let text = bad.to_toml().unwrap();
    let line = 1 + text.lines().position(|l| l.starts_with("slots")).unwrap();
    let first = &refused.errors[0];
    let place = format!("{}:{line}: `slots = 1`", path.display());
    assert!(refused.to_string().starts_with(&place), "{refused}");
    assert!(first.remedy.contains("choose 16"), "{refused}");
    let shown = bad.check().unwrap_err().to_string();
    assert!(shown.starts_with("line "), "{shown}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
    let nowhere = good.write(&directory.path().join("no/cluster.toml"));
    let nowhere = nowhere.unwrap_err().to_string();
    assert!(
        nowhere.contains("can't be written") && nowhere.contains("name a file"),
        "{nowhere}"
    );
    let mut no_text = good;
    no_text.data = OsStr::from_bytes(b"\xff").into();
    let no_text = no_text.write(&path).unwrap_err().to_string();
    assert!(no_text.contains("that are UTF-8"), "{no_text}");
    let there: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(there.len(), 1, "{there:?}");
}

#[test]
fn what_replicas_show_each_other_lies_beside_the_cluster_file() {
    let text = SAMPLE.replacen("# state_tls", "state_tls", 1);
    let file = parse(&text, "/some/where/cluster.toml").unwrap();
    let files = tls::PeerFiles {
        certificate: "/some/where/node.pem".into(),
        key: "/some/where/node.key".into(),
        ca: "/some/where/cluster-ca.pem".into(),
    };
    assert_eq!(file.state_tls, Some(files));
}

#[test]
fn a_file_that_is_missing_and_one_that_nobody_may_read_have_other_remedies() {
    let missing = ClusterFile::load(Path::new("no/such/cluster.toml")).unwrap_err();
    assert!(
        missing.to_string().contains("`wirepaxos init`"),
        "{missing}"
    );
    let forbidden = unread_remedy(std::io::ErrorKind::PermissionDenied);
    assert!(
        forbidden.contains("as a user who may read it"),
        "{forbidden}"
    );
    assert!(!forbidden.contains("init"), "{forbidden}");
}

#[test]
fn a_fingerprint_is_of_what_is_shared() {
    let of = |text: &str| parse(text, "cluster.toml").unwrap().fingerprint.to_string();
    let own = of(SAMPLE);
    let same = SAMPLE.replacen("[controller]", "# a comment\n[controller]  ", 1);
    assert_eq!(of(&same), own);
    assert_eq!(of(&format!("keys = \"mine.key\"\n{SAMPLE}")), own);
    assert_ne!(
        of(&SAMPLE.replacen("slots = 65536", "slots = 32768", 1)),
        own
    );
    let secret = |word| {
        let redis = "redis = \"127.0.0.1:6379\"";
        let line = format!("redis_password = \"{word}\"\n{redis}");
        SAMPLE.replacen(redis, &line, 1)
    };
    assert_eq!(of(&secret("one")), of(&secret("two")));
}
