// SPDX-License-Identifier: Apache-2.0
//! Tests of Redis users, who are in a file of each replica.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use common::redis::has_redis;
use common::{TestCluster, shape};
use local_cluster::resp::{Connection, Reply};
use node::ClusterFile;
use node::cluster_file::Draft;

const OPS: &str = "user ops on >o ~* &* +@all\n";
const ALICE: &str = "user alice on >a ~cache:* +@read +@write +@transaction -del +acl|whoami";
/// What only Redis itself has.
const OF_REDIS: &str = " &news.* +publish +subscribe +psubscribe +eval";

/// Starts a cluster whose replicas have this file of users.
fn start(application: &str) -> (TestCluster, PathBuf) {
    let mut cluster = TestCluster::create(&shape(application));
    let users = cluster.local.directory().join("users.acl");
    let of_redis = if application == "redis" { OF_REDIS } else { "" };
    write(&users, &format!("{OPS}{ALICE}{of_redis}\n"));
    let file = &cluster.local.file;
    let mut draft = Draft::from(&ClusterFile::load(file).unwrap());
    for node in draft.nodes.iter_mut().filter(|node| node.redis.is_some()) {
        node.redis_password_file = Some("users.acl".into());
    }
    draft.write(file).unwrap();
    cluster.start_all();
    (cluster, users)
}

fn write(users: &PathBuf, text: &str) {
    fs::write(users, text).unwrap();
    fs::set_permissions(users, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Sends commands, a line each with the beginning of its answer behind `=>`.
fn talk(connection: &mut Connection, lines: &str) {
    for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (words, expected) = line.split_once(" => ").unwrap();
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let answer = match connection.call(&words).unwrap() {
            Reply::Error(text) | Reply::Simple(text) => text,
            Reply::Bulk(text) => String::from_utf8(text.unwrap_or(b"nil".into())).unwrap(),
            other => format!("{other:?}"),
        };
        assert!(answer.starts_with(expected), "{line}: {answer}");
    }
}

fn as_user(cluster: &TestCluster, replica: usize, name: &str, password: &str) -> Connection {
    let mut connection = cluster.connect(replica);
    talk(&mut connection, &format!("AUTH {name} {password} => OK"));
    connection
}

fn users_do_what_their_lines_say(application: &str) {
    let (cluster, users) = start(application);
    let mut stranger = cluster.connect(0);
    talk(
        &mut stranger,
        "GET cache:1 => NOAUTH
         AUTH o => WRONGPASS
         AUTH alice o => WRONGPASS",
    );
    let mut ops = as_user(&cluster, 0, "ops", "o");
    talk(
        &mut ops,
        "SET other secret => OK
         ACL WHOAMI => ops
         ACL SETUSER eve on => ERR users are in the file",
    );
    let mut alice = as_user(&cluster, 1, "alice", "a");
    talk(
        &mut alice,
        "SET cache:1 v => OK
         GET cache:1 => v
         GET other => NOPERM this user has no permissions to access one of the keys
         MGET cache:1 other => NOPERM
         DEL cache:1 => NOPERM this user has no permissions to run the 'del' command
         CONFIG GET x => NOPERM
         ACL LIST => NOPERM
         ACL WHOAMI => alice
         MULTI => OK
         SET cache:2 w => QUEUED
         GET other => NOPERM
         EXEC => EXECABORT
         GET cache:2 => nil",
    );
    a_file_is_read_again(&mut ops, &users);
    talk(&mut stranger, "AUTH alice a => WRONGPASS");
    talk(&mut stranger, "AUTH bob b => OK");
    // The other front end has the old file until somebody tells it.
    talk(&mut alice, "GET cache:1 => v");
    if application == "redis" {
        alice.push(&[b"SUBSCRIBE", b"news.1"]);
        alice.flush().unwrap();
        alice.read().unwrap();
    }
    let mut ops = as_user(&cluster, 1, "ops", "o");
    talk(&mut ops, "ACL LOAD => OK");
    // Whoever is no user any more hears nothing more, and can't go on with a transaction.
    assert!(alice.read().is_err());
    talk(&mut ops, "GET other => secret");
    talk(&mut ops, "CLIENT KILL USER alice => ERR No such user");
    talk(&mut ops, "CLIENT KILL USER bob => Int(0)");
}

/// A wrong file, or one whose end would be left out, changes nothing; a right one counts at once.
fn a_file_is_read_again(ops: &mut Connection, users: &PathBuf) {
    write(users, &format!("{OPS}user bob on >b +gte\n"));
    talk(ops, "ACL LOAD => ERR the users stay as they were: ");
    talk(ops, "GET other => secret");
    fs::set_permissions(users, fs::Permissions::from_mode(0o644)).unwrap();
    talk(ops, "ACL LOAD => ERR the users stay as they were");
    let long = format!("{OPS}user bob on >b +@all{}-get\n", " ".repeat(64 << 10));
    write(users, &long);
    talk(ops, "ACL LOAD => ERR the users stay as they were");
    write(users, &format!("{OPS}user bob on >b ~* +get\n"));
    talk(ops, "ACL LOAD => OK");
    talk(ops, "GET other => secret");
}

#[test]
fn users_of_a_store_do_what_their_lines_say() {
    users_do_what_their_lines_say("leveldb");
}

#[test]
fn users_of_redis_do_what_their_lines_say() {
    if !has_redis() {
        return;
    }
    users_do_what_their_lines_say("redis");
    let (cluster, _) = start("redis");
    let mut alice = as_user(&cluster, 0, "alice", "a");
    talk(
        &mut alice,
        "PUBLISH secret x => NOPERM this user has no permissions to access one of the channels
         PUBLISH news.1 x => Int(0)
         PSUBSCRIBE * => NOPERM
         SUBSCRIBE secret => NOPERM
         SORT cache:l BY other GET other => NOPERM
         ZUNIONSTORE cache:z 1 other => NOPERM
         OBJECT ENCODING other => NOPERM this user has no permissions to access one of the keys
         SET cache:1 v => OK
         OBJECT ENCODING cache:1 => embstr
         EVAL return(1) 0 => NOPERM this user has no permissions to run the 'eval' command, which \
         may touch any key",
    );
}
