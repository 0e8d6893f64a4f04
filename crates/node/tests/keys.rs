// SPDX-License-Identifier: Apache-2.0
//! The control plane with keys. [E-SIGNED]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use common::{Bed, Running, end, leading_epoch, start};
use control::{Message, OUTSIDE, Turned};
use keys::KeyFile;
use node::cluster_file::Auth;
use node::{ClusterFile, ControlPeers};
use serde_json::{Value, json};

const NODES: [(&str, &str); 6] = [
    ("controller", "controller"),
    ("leader", "leader"),
    ("acceptor-1", "acceptor"),
    ("acceptor-2", "acceptor"),
    ("acceptor-3", "acceptor"),
    ("replica", "replica"),
];
const PATIENCE: Duration = Duration::from_millis(300);

fn bed(test: &str) -> Bed {
    let mut bed = Bed::new(test, "id = 3\napplication = \"echo\"\n", &NODES);
    bed.cluster.auth = Auth::Control;
    bed
}

fn secret(bed: &Bed) -> KeyFile {
    let keys = KeyFile::new(bed.cluster.cluster).unwrap();
    keys.create(&bed.cluster.keys).unwrap();
    keys
}

fn start_all(bed: &Bed) -> Vec<Running> {
    NODES.map(|(name, _)| bed.start(name)).into()
}

/// Returns how many messages a node has turned away for their signatures.
fn turned_away(document: &Value) -> u64 {
    let of = |why: &&str| document["control"][*why].as_u64().unwrap();
    ["unsigned", "bad_mac", "other_key"].iter().map(of).sum()
}

/// Says something to a node again and again, also with the number that it is told; what comes back,
/// if anything does.
fn say(cluster: &ClusterFile, name: &str, message: &Message) -> Option<Result<Message, Turned>> {
    let to = cluster.node(name).unwrap().control;
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let socket = std::net::UdpSocket::bind((to.ip(), 0)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 65_536];
    for _ in 0..5 {
        socket
            .send_to(&peers.seal(to, message).unwrap(), to)
            .unwrap();
        let Ok(n) = socket.recv(&mut buffer) else {
            continue;
        };
        match peers.open(&buffer[..n], to) {
            Ok(Message::Challenge { .. }) => {}
            answer => return Some(answer),
        }
    }
    None
}

fn failover(epoch: u64) -> Message {
    Message::Failover {
        group: 3,
        epoch: epoch as u32,
        to: None,
        forced: true,
        accept_data_loss: false,
    }
}

#[test]
fn a_node_starts_only_with_a_key_file_that_is_its_own() {
    let bed = bed("key-files");
    let refused = || {
        let (_, thread) = bed.start("leader");
        thread.join().unwrap().unwrap_err().to_string()
    };
    let why = refused();
    assert!(
        why.contains("nodes.key") && why.contains("wirepaxos keys new"),
        "{why}"
    );
    let mut keys = secret(&bed);
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(&bed.cluster.keys, open).unwrap();
    let why = refused();
    assert!(
        why.contains("nodes.key") && why.contains("chmod 600"),
        "{why}"
    );
    // The node refuses a client's key as well.
    std::fs::remove_file(&bed.cluster.keys).unwrap();
    keys.client("some")
        .unwrap()
        .create(&bed.cluster.keys)
        .unwrap();
    let why = refused();
    assert!(why.contains("the client \"some\""), "{why}");
}

#[test]
fn without_a_key_nothing_is_learnt_and_nothing_changed() {
    let bed = bed("strangers");
    let mut keys = secret(&bed);
    let nodes = start_all(&bed);
    let epoch = bed.until("leader", leading_epoch);

    let mut stranger = bed.cluster.clone();
    stranger.auth = Auth::Off;
    let mut other = bed.cluster.clone();
    other.keys = bed.cluster.keys.with_extension("other");
    KeyFile::new(other.cluster)
        .unwrap()
        .create(&other.keys)
        .unwrap();
    let questions = [
        ("leader", Message::StatusRequest { id: 1, part: 0 }),
        ("leader", Message::ViewRequest { group: 3 }),
        ("replica", Message::DigestRequest { group: 3 }),
        ("controller", failover(epoch)),
        ("acceptor-1", Message::Stop),
    ];
    for who in [&stranger, &other] {
        for (name, question) in &questions {
            assert_eq!(say(who, name, question), None);
        }
    }
    bed.until("leader", |document| {
        let control = &document["control"];
        (control["unsigned"] != 0 && control["bad_mac"] != 0).then_some(())
    });

    // A client's key is good for questions.
    let mut client = bed.cluster.clone();
    client.keys = bed.cluster.keys.with_extension("client");
    keys.client("some").unwrap().create(&client.keys).unwrap();
    let answer = say(&client, "leader", &questions[1].1);
    assert!(matches!(answer, Some(Ok(Message::View(_)))), "{answer:?}");
    for (name, order) in &questions[2..] {
        assert_eq!(say(&client, name, order), None);
    }
    assert_eq!(bed.until("leader", leading_epoch), epoch);

    // The operator's is good for everything.
    let answer = say(&bed.cluster, "controller", &failover(epoch));
    let Some(Ok(Message::FailoverReply {
        result: Ok(later), ..
    })) = answer
    else {
        panic!("{answer:?}");
    };
    assert!(u64::from(later) > epoch);
    nodes.into_iter().for_each(end);
}

#[test]
fn the_secret_is_replaced_while_the_cluster_works() {
    let bed = bed("rotation");
    let mut keys = secret(&bed);
    let nodes = start_all(&bed);
    let mut epoch = bed.until("leader", leading_epoch);
    for _ in 0..3 {
        keys.rotate().unwrap();
        keys.replace(&bed.cluster.keys).unwrap();
        let accepts: Vec<u32> = keys.generations().collect();
        for (name, _) in NODES {
            bed.until(name, |document| {
                let shown = &document["control"]["keys"];
                let same = shown["signs"] == keys.signs() && shown["accepts"] == json!(accepts);
                same.then_some(())
            });
        }
        let answer = say(&bed.cluster, "controller", &failover(epoch));
        let Some(Ok(Message::FailoverReply {
            result: Ok(later), ..
        })) = answer
        else {
            panic!("{answer:?}");
        };
        epoch = bed.until("leader", |document| {
            leading_epoch(document).filter(|at| *at >= u64::from(later))
        });
    }
    for (name, _) in NODES {
        let document = bed.until(name, |document| Some(document.clone()));
        assert_eq!(turned_away(&document), 0, "{document}");
    }
    nodes.into_iter().for_each(end);
}

/// A node that hears nothing, or to which nothing gets through that is signed with keys that it
/// hasn't. [M-SIGNED]
#[test]
fn a_node_that_hears_nothing_follows_its_key_file() {
    let mut bed = bed("unheard");
    bed.cluster.auth = Auth::SipHash;
    let mut keys = secret(&bed);
    let acceptor = bed.start("acceptor-1");
    let has = |keys: &KeyFile| {
        let generations: Vec<u32> = keys.generations().collect();
        let expected = json!({ "generations": generations, "signs": keys.signs() });
        bed.until("acceptor-1", |document| {
            (document["auth"] == expected).then_some(())
        });
    };
    has(&keys);
    for _ in 0..3 {
        keys.rotate().unwrap();
    }
    keys.replace(&bed.cluster.keys).unwrap();
    has(&keys);
    end(acceptor);
}

#[test]
fn a_node_with_an_old_key_is_named() {
    let bed = bed("old-key");
    let mut keys = secret(&bed);
    let mut old = bed.cluster.clone();
    old.keys = bed.cluster.keys.with_extension("old");
    keys.create(&old.keys).unwrap();
    for _ in 0..2 {
        keys.rotate().unwrap();
    }
    keys.replace(&bed.cluster.keys).unwrap();
    let named = |document: &Value| {
        let warnings = document["warnings"].as_array()?;
        let mut warnings = warnings.iter().filter_map(Value::as_str);
        let says = |text: &str| text.contains("replica signs with generation 1 of the key");
        warnings.any(says).then_some(())
    };
    let controller = bed.start("controller");
    let replica = start(&old, "replica");
    bed.until("controller", named);
    // The same holds when its key counts no longer.
    keys.rotate().unwrap();
    keys.replace(&bed.cluster.keys).unwrap();
    bed.until("controller", |document| {
        let refused = document["control"]["other_key"] != 0;
        refused.then(|| named(document)).flatten()
    });
    end(controller);
    end(replica);
}
