// SPDX-License-Identifier: Apache-2.0
//! Tests of drafts, and of files that are written.

use super::*;

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
