// SPDX-License-Identifier: Apache-2.0
//! Cluster files that are refused, and where each of them has its error.

use super::*;

/// A replacement in the sample: the old and the new text, a part of the line that is then reported,
/// and parts of the messages.
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
    ("data = \"data\"", "data = \"data\"\nauth = \"of\"", "auth",
        &["is unknown", "\"control\"", "\"siphash\"", "\"halfsiphash\""]),
    ("data = \"data\"", "data = \"data\"\nkeys = \"\"", "keys",
        &["`keys` is empty", "name a file"]),
    ("data = \"data\"", "data = \"data\"\nclients = [\"10.0.0.1/8\"]", "clients",
        &["no address, and no network", "10.0.1.0/24"]),
    ("data = \"data\"", "data = \"data\"\nclients = [\"shop\"]", "clients",
        &["no address, and no network"]),
    ("data = \"data\"", "data = \"data\"\nauth = \"halfsiphash\"\nclients = [\"10.0.0.7\"]",
        "clients",
        &["halfsiphash", "shows by its key"]),
    ("data = \"data\"", "data = \"data\"\nauth = \"siphash\"\nclients = [\"10.0.0.7\"]", "clients",
        &["shows by its key", "remove it"]),
    ("slots = 65536", "slots = 0", "slots = 0", &["`slots = 0` is out of range", "choose 16 to"]),
    ("slots = 65536", "window = 70000", "window = 70000", &["choose 4 to 61440"]),
    ("slots = 65536", "max_value = 1401", "1401", &["out of range", "64 to 1400"]),
    ("slots = 65536", "checkpoint_every = 40000", "40000", &["choose 1 to 24576"]),
    ("slots = 65536", "answer = \"sent\"", "answer", &["is unknown", "\"executed\"", "\"stored\""]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[node]]",
        &["role = \"acceptor\", and no group has protocol = \"paxos\"", "remove this node"]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[node]]",
        &["role = \"leader\"", "NOPaxos has sequencers"]),
    ("slots = 65536", "protocol = \"nopaxos\"", "[[group]]",
        &["no sequencer", "role = \"sequencer\""]),
    ("slots = 65536", "protocol = \"raft\"", "raft", &["is unknown", "\"paxos\"", "\"nopaxos\""]),
    ("id = 12\nrole = \"leader\"", "id = 12\nrole = \"sequencer\"", "[[node]]",
        &["role = \"sequencer\", and no group has protocol = \"nopaxos\"", "remove this node"]),
    ("slots = 65536", "f = 2", "f = 2", &["`f = 2` needs 2f+1", "leave `f` out"]),
    ("slots = 65536", "g = 2", "g = 2", &["`g = 2` needs 2g+1", "choose 0 to 1"]),
    ("\"rocksdb\"", "\"rockdb\"", "rockdb", &["is unknown", "\"leveldb\""]),
    ("\"rocksdb\"", "\"echo\"", "redis = ", &["needs a store", "remove `redis`"]),
    ("\"rocksdb\"", "\"own\"", "redis = ", &["needs a store", "\"own\"", "remove `redis`"]),
    ("partitions = 1 ", "partitions = 65 ", "= 65 ", &["`partitions = 65`", "1 to 64"]),
    ("redis = \"127.0.0.1:6380\"", "redis_order = \"key\"", "redis_order",
        &["without `redis`", "add"]),
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
    ("role = \"acceptor\"", "role = \"controller\"", "[[node]]",
        &["2 controllers", "take 1, 3 or 5"]),
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
    ("# redis_password = \"...\"", "redis_password = \"a\"\nredis_password_file = \"b\"",
        "redis_password_file",
        &["beside `redis_password`", "keep one"]),
    ("# state_tls = { certificate = \"node.pem\"", "state_tls = { certificate = \"\"", "state_tls",
        &["`certificate` is empty", "name a file"]),
    ("# state_tls = { certificate = \"node.pem\"", "state_tls = { c = \"a\"", "state_tls",
        &["unknown field `c`"]),
    ("redis = \"127.0.0.1:6380\"", "redis_tls = { certificate = \"a\", key = \"b\" }", "redis_tls",
        &["without `redis`", "add"]),
    ("storage = \"volatile\"", "redis_tls = { certificate = \"a\", key = \"b\" }", "redis_tls",
        &["means nothing", "acceptor"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"a\" }", "redis_tls",
        &["missing field `key`", "add it"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"a\", key = \"b\", ca = \"c\" }",
        "redis_tls",
        &["unknown field `ca`", "spelling"]),
    ("# redis_password = \"...\"", "redis_tls = \"a\"", "redis_tls", &["invalid type"]),
    ("# redis_password = \"...\"", "redis_tls = { certificate = \"\", key = \"b\" }", "redis_tls",
        &["`certificate` is empty", "name a file"]),
    ("# redis_password = \"...\"",
        "redis_tls = { certificate = \"a\", key = \"b\", client_ca = \"\" }", "redis_tls",
        &["`client_ca` is empty"]),
    ("redis = \"127.0.0.1:6379\"",
        "redis = \"10.0.0.1:6379\"\nredis_tls = { certificate = \"a\", key = \"b\" }", "10.0.0.1",
        &["anybody", "client_ca"]),
    ("# metrics = \"127.0.0.1:9101\"", "metrics = \"10.0.0.1:9101\"", "metrics =",
        &["tell anybody", "metrics_open = true"]),
    ("# metrics = \"127.0.0.1:9101\"", "metrics_open = true", "metrics_open",
        &["without `metrics`"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"fpga\"", "fpga",
        &["is unknown", "\"xdp\""]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"", "plane",
        &["without `dpdk_port`", "PCI address"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"\"", "dpdk_port",
        &["is empty", "PCI address"]),
    ("role = \"acceptor\"",
        "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"p\"\ndpdk_args = [\"\"]",
        "dpdk_args", &["is empty", "remove it"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\nplane = \"dpdk\"\ndpdk_port = \"p\"", "plane",
        &["has the IP address 127.0.0.1, too", "an IP address of its own"]),
    ("role = \"acceptor\"", "role = \"acceptor\"\ndpdk_port = \"p\"", "dpdk_port",
        &["without `plane`", "`plane = \"dpdk\"`"]),
    ("redis = \"", "plane = \"dpdk\"\ndpdk_port = \"p\"\nworkers = 2\nredis = \"", "plane",
        &["`workers`", "`cpu`"]),
    ("redis = \"", "plane = \"dpdk\"\ndpdk_port = \"p\"\nworker_cpus = [1]\nredis = \"", "plane",
        &["`worker_cpus`", "remove them"]),
    ("role = \"controller\"", "role = \"controller\"\nplane = \"dpdk\"", "plane",
        &["means nothing"]),
    ("role = \"controller\"", "role = \"controller\"\nplane = \"xdp\"", "plane",
        &["means nothing"]),
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
    ("role = \"controller\"", "role = \"controller\"\nleaving = true", "leaving",
        &["no epoch names", "at once"]),
    ("id = 33\n", "id = 33\nleaving = 1\n", "leaving", &["invalid type"]),
    ("role = \"controller\"", "role = \"controller\"\nspin_us = 50", "spin_us", &["means nothing"]),
];

#[rustfmt::skip] // a table
pub(super) const BAD_WITH_NOPAXOS: &[Bad] = &[
    ("id = 12\n", "id = 12\ngroup = 0\n", "[[node]]",
        &["a second sequencer of group 0", "leave `group` out", "spare"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"sequencer\"", "[[group]]",
        &["2 replicas are not 2f+1", "add one or remove one"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"acceptor\"", "[[node]]",
        &["role = \"acceptor\", and no group has protocol = \"paxos\"", "replicas remember",
        "remove this node"]),
    ("id = 33\nrole = \"replica\"", "id = 33\nrole = \"learner\"", "[[node]]",
        &["role = \"learner\"", "nothing to learn"]),
    ("# f = 1", "f = 2", "f = 2", &["`f = 2` needs 2f+1 replicas", "leave `f` out"]),
    ("# g = 1", "g = 0", "g = 0", &["`g = 0` needs 2g+1 replicas", "leave `g` out"]),
    ("group = 0\n", "group = 4\n", "group = 4", &["no group 4"]),
    ("[controller]", "[[group]]\nid = 4\napplication = \"echo\"\n[controller]", "",
        &["there is no leader"]),
    ("redis = \"", "plane = \"xdp\"\nredis = \"", "plane",
        &["on a replica of a group with `protocol = \"nopaxos\"`", "take plane = \"udp\""]),
];

#[test]
fn every_error_names_its_line_and_a_remedy() {
    all_are_refused(SAMPLE, BAD);
}

pub(super) fn all_are_refused(sample: &str, bad: &[Bad]) {
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
