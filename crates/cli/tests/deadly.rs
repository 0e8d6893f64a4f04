// SPDX-License-Identifier: Apache-2.0
//! Tests of real Redis servers that die of one command: it takes no effect, or everywhere the
//! effect that it has at a replica that survives it. [X-DIED] [X-VOID]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::time::Duration;

use common::redis::{REPLICAS, redis_program, script};
use common::{PROGRAM, TestCluster, eventually, json, shape};
use local_cluster::Shape;
use local_cluster::processes::Processes;
use local_cluster::resp::{Connection, Reply};

/// A server that reads this text ends.
const DEADLY: &str = "deadly-7f3a";
const TOKEN: &str = "c0ffee5eed5eed02";

const LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
ssize_t read(int fd, void *bytes, size_t count) {
    ssize_t len = syscall(SYS_read, fd, bytes, count);
    if (len > 0 && memmem(bytes, len, "deadly-7f3a", 11))
        _exit(1);
    return len;
}
"#;

/// A cluster whose servers die, except those of the replicas that `survives` names. Nodes that end
/// are started again.
struct Deadly {
    cluster: TestCluster,
    /// The node that isn't started again.
    silent: Option<&'static str>,
    /// How often each node's process has ended.
    ended: BTreeMap<String, u32>,
}

impl Deadly {
    fn start(survives: &str) -> Option<Deadly> {
        Deadly::start_with(survives, 1)
    }

    fn start_with(survives: &str, partitions: u16) -> Option<Deadly> {
        let server = redis_program()?;
        let mut cluster = TestCluster::create(&Shape {
            partitions,
            ..shape("redis")
        });
        let dir = cluster.local.directory().join("deadly");
        fs::create_dir_all(dir.join("real")).unwrap();
        let real = dir.join("real/redis-server");
        symlink(server, &real).unwrap();
        let (source, library) = (dir.join("deadly.c"), dir.join("deadly.so"));
        fs::write(&source, LIBRARY).unwrap();
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status();
        assert!(compiled.unwrap().success());
        let (real, library, path) = (real.display(), library.display(), dir.display());
        script(
            &dir.join("redis-server"),
            &format!(
                "#!/bin/sh\ncase \"$(pwd)\" in *{survives}*) exec {real} \"$@\";; esac\n\
                 LD_PRELOAD=\"$LD_PRELOAD:{library}\" exec {real} \"$@\"\n"
            ),
        );
        let program = dir.join("wirepaxos");
        script(
            &program,
            &format!("#!/bin/sh\nPATH={path}:$PATH exec {PROGRAM} \"$@\"\n"),
        );
        cluster.processes = Processes::new(program);
        cluster.start_all();
        Some(Deadly {
            cluster,
            silent: None,
            ended: BTreeMap::new(),
        })
    }

    /// Starts all nodes again that have ended.
    fn tend(&mut self) {
        for (name, _) in self.cluster.processes.reap() {
            *self.ended.entry(name.clone()).or_default() += 1;
            if Some(&name[..]) != self.silent {
                self.cluster.start_node(&name);
            }
        }
    }

    /// Makes one attempt of a named command, which counts once, however often it is sent.
    fn attempt(&mut self, replica: usize, number: u64, words: &[&str]) -> Option<Reply> {
        self.tend();
        let address = self.cluster.local.redis[replica];
        let mut connection = Connection::open(address, Duration::from_millis(1_000)).ok()?;
        let name = format!("once:{TOKEN}:{number}");
        connection
            .call(&[b"CLIENT", b"SETNAME", name.as_bytes()])
            .ok()?;
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let answer = connection.call(&words).ok()?;
        let is_final = !matches!(&answer, Reply::Error(text) if !text.starts_with("DIED"));
        is_final.then_some(answer)
    }

    fn call(&mut self, number: u64, words: &[&str]) -> Reply {
        let mut replica = 0;
        eventually("an answer", || {
            replica += 1;
            self.attempt(replica % 2, number, words)
        })
    }

    fn partition(&self, replica: &str) -> serde_json::Value {
        self.cluster.status(replica)["partitions"][0].clone()
    }

    fn partitions(&self, replica: &str) -> Vec<serde_json::Value> {
        let status = self.cluster.status(replica);
        status["partitions"].as_array().cloned().unwrap_or_default()
    }

    /// Checks that all replicas live and have the same contents.
    fn assert_all_agree(&mut self) {
        self.silent = None;
        eventually("all replicas serve", || {
            self.tend();
            let serves =
                |of: &serde_json::Value| of["next"].is_u64() && !of["deadly"]["instance"].is_u64();
            let all_serve = |name: &str| {
                let partitions = self.partitions(name);
                !partitions.is_empty() && partitions.iter().all(serves)
            };
            REPLICAS.into_iter().all(all_serve).then_some(())
        });
        self.cluster.assert_replicas_agree(3);
    }
}

fn ok() -> Reply {
    Reply::Simple("OK".into())
}

fn bulk(text: &str) -> Reply {
    Reply::Bulk(Some(text.as_bytes().to_vec()))
}

#[track_caller]
fn assert_died(answer: &Reply) {
    assert!(
        matches!(answer, Reply::Error(text) if text.starts_with("DIED ")),
        "{answer:?}"
    );
}

#[test]
fn a_command_of_which_all_servers_die_has_no_effect_and_its_client_is_told() {
    let Some(mut deadly) = Deadly::start("nobody") else {
        return;
    };
    assert_eq!(deadly.call(1, &["SET", "a", "1"]), ok());
    assert_died(&deadly.call(2, &["SET", "a", DEADLY]));
    assert_died(&deadly.call(2, &["SET", "a", DEADLY]));
    assert_eq!(deadly.call(4, &["APPEND", "a", "2"]), Reply::Int(2));
    // A script is given to a server by itself, and not in a batch.
    let eval = "return redis.call('SET', KEYS[1], ARGV[1])";
    assert_died(&deadly.call(5, &["EVAL", eval, "1", "a", DEADLY]));
    assert_eq!(deadly.cluster.call(0, &["GET", "a"]), bulk("12"));
    deadly.assert_all_agree();
    for replica in REPLICAS {
        let voided = deadly.partition(replica)["voided"].clone();
        assert_eq!(voided.as_array().map(Vec::len), Some(2), "{voided}");
    }
    let ended = REPLICAS.map(|replica| deadly.ended[replica]);
    assert_eq!(ended, [2; 3], "once for each command");
}

/// A replica's process ends once, though only one of its partitions has met the command, and the
/// next process serves both.
#[test]
fn a_command_that_kills_servers_of_one_partition_has_no_effect_there_alone() {
    let Some(mut deadly) = Deadly::start_with("nobody", 2) else {
        return;
    };
    // These keys are in different partitions.
    let keys = ["a", "b"];
    for (number, key) in (1..).zip(keys) {
        assert_eq!(deadly.call(number, &["SET", key, "1"]), ok());
    }
    let there = deadly.cluster.connect(0).call(&[b"MGET", b"a", b"b"]);
    let crosses = matches!(&there, Ok(Reply::Error(text)) if text.starts_with("CROSSSLOT"));
    assert!(crosses, "{there:?}");
    assert_died(&deadly.call(3, &["SET", keys[0], DEADLY]));
    for (number, key) in (4..).zip(keys) {
        assert_eq!(deadly.call(number, &["APPEND", key, "2"]), Reply::Int(2));
    }
    deadly.assert_all_agree();
    for replica in REPLICAS {
        let voided = deadly.partitions(replica).into_iter().map(|of| {
            let voided = of["voided"].as_array();
            voided.map_or(0, Vec::len)
        });
        let mut voided: Vec<usize> = voided.collect();
        voided.sort_unstable();
        assert_eq!(voided, [0, 1], "{replica}");
        assert_eq!(deadly.ended[replica], 1, "{replica}");
    }
    for key in keys {
        assert_eq!(deadly.cluster.call(0, &["GET", key]), bulk("12"));
    }
}

#[test]
fn a_command_that_one_server_survives_takes_effect_at_all() {
    let Some(mut deadly) = Deadly::start("replica-3") else {
        return;
    };
    assert_eq!(deadly.call(1, &["SET", "a", "1"]), ok());
    assert_eq!(deadly.call(2, &["SET", "a", DEADLY]), ok());
    deadly.assert_all_agree();
    assert_eq!(deadly.cluster.call(0, &["GET", "a"]), bulk(DEADLY));
    let voided = deadly.partition("replica-1")["voided"].clone();
    assert_eq!(voided.as_array().map(Vec::len), Some(0), "{voided}");
}

#[test]
fn while_a_replica_is_silent_only_an_operator_skips_it() {
    let Some(mut deadly) = Deadly::start("nobody") else {
        return;
    };
    assert_eq!(deadly.call(1, &["SET", "a", "1"]), ok());
    deadly.silent = Some("replica-3");
    deadly.cluster.processes.kill("replica-3");
    let instance = eventually("both wait in front of it", || {
        assert_eq!(deadly.attempt(0, 2, &["SET", "a", DEADLY]), None);
        let waits = ["replica-1", "replica-2"].map(|name| deadly.partition(name)["deadly"].clone());
        let said = |deadly: &serde_json::Value| deadly["died"].as_array().map(Vec::len) == Some(2);
        waits.iter().all(said).then(|| waits[0].clone())
    });
    assert_eq!(instance["command"], "SET a ...", "{instance}");
    let warning = deadly.partition("replica-1")["warning"].to_string();
    assert!(warning.contains("wirepaxos skip"), "{warning}");
    let at = instance["instance"].as_u64().unwrap();
    let skip = |at: u64| {
        let at = at.to_string();
        let arguments = ["--group", "1", "--instance", &at, "--json"];
        deadly.cluster.run("skip", &arguments)
    };
    let refused = skip(at + 1);
    let why = common::text(&refused.stderr);
    assert!(
        why.contains("no replica of group 1 waits in front"),
        "{why}"
    );
    let skipped = json(&skip(at));
    assert_eq!(skipped["silent"][0], "replica-3", "{skipped}");
    assert_died(&deadly.call(2, &["SET", "a", DEADLY]));
    assert_eq!(deadly.cluster.call(0, &["GET", "a"]), bulk("1"));
    deadly.silent = None;
    deadly.cluster.start_node("replica-3");
    deadly.assert_all_agree();
}
