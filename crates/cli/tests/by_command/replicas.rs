// SPDX-License-Identifier: Apache-2.0
//! Replicas of a Paxos group are added, replaced and removed by command while a client counts.
//! [T-MEMBERS]

use local_cluster::resp::Reply;

use super::*;

/// A fourth replica takes another one's state and counts.
fn grow(cluster: &mut TestCluster, at: &str) {
    is_refused(
        cluster,
        &["remove", "replica-1"],
        "g would fall from 1 to 0",
    );
    let all = ["remove", "replica-1", "replica-2", "replica-3"];
    is_refused(cluster, &all, "has no replica");
    let words = ["add", &format!("replica-4={at}")];
    joins(cluster, "replica-4", &words);
    are_replicas(
        cluster,
        &["replica-1", "replica-2", "replica-3", "replica-4"],
    );
}

/// A replica that lost its machine makes room for a new one.
fn replace_a_lost_one(cluster: &mut TestCluster, at: &str) {
    cluster.processes.kill("replica-1");
    let file = file_of(cluster);
    std::fs::remove_dir_all(file.node_dir(file.node("replica-1").unwrap())).unwrap();
    let words = ["replace", "replica-1", &format!("replica-5={at}")];
    joins(cluster, "replica-5", &words);
    are_replicas(
        cluster,
        &["replica-2", "replica-3", "replica-4", "replica-5"],
    );
}

/// Expects that the third replica's front end tells clients of itself and the two new ones. It has
/// run on since the second one was removed.
fn are_front_ends(cluster: &TestCluster) {
    eventually("clients are told of members only", || {
        let shown = match cluster.call(2, &["CLUSTER", "INFO"]) {
            Reply::Bulk(Some(shown)) => text(&shown),
            other => panic!("{other:?}"),
        };
        shown.contains("cluster_known_nodes:3\r").then_some(())
    });
}

/// Expects that the last epoch counts on these replicas.
fn are_replicas(cluster: &TestCluster, expected: &[&str]) {
    let file = file_of(cluster);
    let named = eventually("the controller answers", || {
        let status = cluster.status("controller");
        let last = status["groups"][0]["epochs"].as_array()?.last()?.clone();
        let named = last["replicas"].as_array()?.iter();
        let name =
            |id: &serde_json::Value| Some(file.node_by_id(id.as_u64()? as u16)?.name.clone());
        named.map(name).collect::<Option<Vec<String>>>()
    });
    assert_eq!(named, expected);
}

/// Three replicas become four, one that lost its disk is replaced, and one leaves.
#[test]
fn replicas_change_by_command_under_load() {
    let mut cluster = TestCluster::start_with(&shape("rocksdb"), "checkpoint_every = 200");
    let at = file_of(&cluster).nodes[0].address.ip().to_string();
    let (counter, file) = (Counter::new(), cluster.local.file.clone());
    std::thread::scope(|scope| {
        let load = scope.spawn(|| counter.count(&file));
        let _lowers = Lowers(&counter.runs);
        counter.say("before");
        grow(&mut cluster, &at);
        counter.say("from three replicas to four");
        counter.takes_the_file();
        replace_a_lost_one(&mut cluster, &at);
        counter.say("a lost one replaced");
        counter.takes_the_file();
        succeeds(order(&cluster, &["remove", "replica-2"]));
        have_ended(&mut cluster, &["replica-2"]);
        are_replicas(&cluster, &["replica-3", "replica-4", "replica-5"]);
        are_front_ends(&cluster);
        counter.say("from four to three");
        assert!(!load.is_finished());
    });
    cluster.assert_replicas_agree(3);
    let ended = cluster.processes.ended();
    assert!(ended.is_empty(), "{ended:?} ended by themselves");
}
