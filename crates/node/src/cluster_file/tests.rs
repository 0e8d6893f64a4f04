// SPDX-License-Identifier: Apache-2.0
mod drafts;
mod refused;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use paxos::auth::Algorithm;

use super::*;
use refused::{BAD_WITH_NOPAXOS, all_are_refused};

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

/// Returns the same cluster with NOPaxos: a sequencer, a spare, and three replicas.
fn with_nopaxos() -> String {
    let nodes = SAMPLE.split_inclusive("\n[[node]]\n");
    let kept = nodes.filter(|node| !node.contains("role = \"acceptor\""));
    let text: String = kept.collect();
    text.replacen("slots = 65536", "protocol = \"nopaxos\"\nslots = 65536", 1)
        .replace("leader", "sequencer")
        .replacen("role = \"sequencer\"", "role = \"sequencer\"\ngroup = 0", 1)
}

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

/// Returns the sample with an acceptor at a DPDK port.
fn with_dpdk() -> String {
    let port = "\"127.0.0.2:7021\"\nplane = \"dpdk\"\ndpdk_port = \"net_memif0\"\n\
                dpdk_args = [\"-m\", \"256\"]";
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
    // The command line may move the node elsewhere and back, but may not move a node there that has
    // no port.
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
