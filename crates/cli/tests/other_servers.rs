// SPDX-License-Identifier: Apache-2.0
//! Tests of groups whose replicas have different Redis servers: those of some replicas lack GETDEL.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use common::redis::{REPLICAS, redis_program, script};
use common::{PROGRAM, TestCluster, eventually, json, shape};
use local_cluster::processes::Processes;
use local_cluster::resp::Reply;

/// A cluster in which the servers of replicas that are marked as old lack GETDEL.
struct Servers {
    cluster: TestCluster,
    dir: PathBuf,
}

impl Servers {
    /// Creates a cluster. Each replica has a search path of its own, since it asks a server for its
    /// commands before it knows its directory.
    fn create() -> Option<Servers> {
        let server = redis_program()?;
        let mut cluster = TestCluster::create(&shape("redis"));
        let dir = cluster.local.directory().join("servers");
        fs::create_dir_all(dir.join("real")).unwrap();
        symlink(server, dir.join("real/redis-server")).unwrap();
        let program = dir.join("wirepaxos");
        let path = dir.display();
        script(
            &program,
            &format!(
                "#!/bin/sh\nfor last; do :; done\nPATH={path}/$last:$PATH exec {PROGRAM} \"$@\"\n"
            ),
        );
        cluster.processes = Processes::new(program);
        for name in cluster.local.nodes.clone() {
            if !REPLICAS.contains(&&name[..]) {
                cluster.start_node(&name);
            }
        }
        Some(Servers { cluster, dir })
    }

    /// Starts a replica, after its process has ended if it has one, with servers that lack GETDEL
    /// or don't.
    fn start(&mut self, replica: &str, lacks: bool) {
        self.cluster.processes.kill(replica);
        let dir = self.dir.join(replica);
        fs::create_dir_all(&dir).unwrap();
        let options = if lacks {
            "--rename-command GETDEL ''"
        } else {
            ""
        };
        let real = self.dir.join("real/redis-server");
        script(
            &dir.join("redis-server"),
            &format!("#!/bin/sh\nexec {} \"$@\" {options}\n", real.display()),
        );
        self.cluster.start_node(replica);
    }

    /// Waits until a replica's process has ended because its server lacks GETDEL.
    fn await_refusal(&mut self, replica: &str) {
        eventually("the replica ends", || {
            let ended = self.cluster.processes.reap();
            ended.iter().any(|(name, _)| name == replica).then_some(())
        });
        let log = self
            .cluster
            .local
            .directory()
            .join(format!("{replica}.log"));
        let log = fs::read_to_string(log).unwrap();
        assert!(log.contains("it lacks GETDEL"), "{log}");
        assert!(log.contains("wirepaxos accept-server"), "{log}");
    }

    fn warnings(&self, replica: &str) -> String {
        self.cluster.status(replica)["warnings"].to_string()
    }

    fn error(&self, replica: usize, words: &[&[u8]]) -> Option<String> {
        match self.cluster.connect(replica).call(words).ok()? {
            Reply::Error(text) => Some(text),
            _ => None,
        }
    }
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

#[test]
fn a_replica_whose_server_lacks_a_command_executes_nothing() {
    let Some(mut servers) = Servers::create() else {
        return;
    };
    servers.start("replica-1", false);
    servers.start("replica-2", false);
    assert_eq!(servers.cluster.call(0, &["SET", "k", "v"]), ok());
    servers.start("replica-3", true);
    servers.await_refusal("replica-3");
    assert_eq!(servers.cluster.call(1, &["GETDEL", "k"]), bulk("v"));
    servers.start("replica-3", true);
    servers.await_refusal("replica-3");
    servers.cluster.assert_replicas_agree(2);
    servers.start("replica-3", false);
    servers.cluster.assert_replicas_agree(3);
    assert!(!servers.warnings("replica-3").contains("server"));
}

#[test]
fn servers_are_upgraded_one_after_the_other_while_the_group_serves() {
    let Some(mut servers) = Servers::create() else {
        return;
    };
    for replica in REPLICAS {
        servers.start(replica, true);
    }
    for at in 0..3 {
        assert_eq!(servers.cluster.call(at, &["SET", "k", "v"]), ok());
        let unknown = servers.error(at, &[b"GETDEL", b"k"]);
        assert!(unknown.unwrap().starts_with("ERR unknown command"));
    }
    for (at, replica) in REPLICAS.into_iter().enumerate() {
        servers.start(replica, false);
        if at == 2 {
            break;
        }
        assert_eq!(servers.cluster.call(at, &["SET", "k", "w"]), ok());
        let refused = servers.error(at, &[b"GETDEL", b"k"]).unwrap();
        assert!(refused.contains("GETDEL isn't available here"), "{refused}");
        let warnings = servers.warnings(replica);
        assert!(warnings.contains("GETDEL"), "{warnings}");
        assert_eq!(servers.cluster.call(2, &["GET", "k"]), bulk("w"));
    }
    // The last one has said so, and the next command of all has its effect.
    for at in 0..3 {
        assert_eq!(servers.cluster.call(at, &["SET", "k", "v"]), ok());
        assert_eq!(servers.cluster.call(at, &["GETDEL", "k"]), bulk("v"));
    }
    servers.cluster.assert_replicas_agree(3);
    eventually("nothing is warned of", || {
        let warns = |replica: &&str| servers.warnings(replica).contains("GETDEL");
        (!REPLICAS.iter().any(warns)).then_some(())
    });
}

#[test]
fn a_group_whose_servers_are_all_replaced_by_lesser_ones_goes_on_by_an_order() {
    let Some(mut servers) = Servers::create() else {
        return;
    };
    for replica in REPLICAS {
        servers.start(replica, false);
    }
    for at in 0..3 {
        assert_eq!(servers.cluster.call(at, &["SET", "k", "v"]), ok());
    }
    // The old servers execute everything that is decided.
    json(&servers.cluster.run("stop", &["--json"]));
    let nodes = servers.cluster.local.nodes.clone();
    for node in nodes.iter().filter(|node| !REPLICAS.contains(&&node[..])) {
        servers.cluster.processes.kill(node);
        servers.cluster.start_node(node);
    }
    for replica in REPLICAS {
        servers.start(replica, true);
        servers.await_refusal(replica);
    }
    let refused = servers
        .cluster
        .run("accept-server", &["--name", "leader-1"]);
    let why = common::text(&refused.stderr);
    assert!(why.contains("leader-1 is no replica of Redis"), "{why}");
    for replica in REPLICAS {
        let arguments = ["--name", replica, "--json"];
        let accepted = json(&servers.cluster.run("accept-server", &arguments));
        assert_eq!(accepted["partitions"], 1, "{accepted}");
        servers.start(replica, true);
    }
    assert_eq!(servers.cluster.call(0, &["GET", "k"]), bulk("v"));
    eventually("the group takes the servers", || {
        let warns = |replica: &&str| servers.warnings(replica).contains("GETDEL");
        (!REPLICAS.iter().any(warns)).then_some(())
    });
    servers.cluster.assert_replicas_agree(3);
    // They are the group's now, so a restart needs no order.
    servers.start("replica-2", true);
    assert_eq!(servers.cluster.call(1, &["SET", "k", "w"]), ok());
    servers.cluster.assert_replicas_agree(3);
}
