// SPDX-License-Identifier: Apache-2.0
//! A cluster whose packets are signed: clients with a key are served, and a stranger changes
//! nothing and learns nothing. [M-SIGNED] [M-REPLAYED]

mod nodes;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use client::{Client, ClientOptions};
use keys::KeyFile;
use node::ClusterFile;
use node::auth::{Keys, Signer, keyring};
use node::cluster_file::Auth;
use nodes::{Cluster, Commands, TempDir, repeat};
use paxos::auth::Algorithm;
use paxos::wire::value::Probe;
use paxos::{Flags, Header, MsgType, Round};

const NUMBER: u32 = 0x0051_69ed;

/// Returns a cluster that signs by SipHash, and the key file of a client.
fn signed_cluster(dir: &TempDir) -> (Cluster, ClusterFile) {
    cluster_signing(dir, Auth::SipHash)
}

/// Returns a cluster that signs by the hash `auth`, and the key file of a client.
fn cluster_signing(dir: &TempDir, auth: Auth) -> (Cluster, ClusterFile) {
    let mut cluster = Cluster::new(&dir.0, node::loopback::draw().unwrap(), NUMBER, 3);
    cluster.file.auth = auth;
    let mut nodes = KeyFile::new(NUMBER).unwrap();
    let client = nodes.client("test").unwrap();
    nodes.create(&cluster.file.keys).unwrap();
    let of_client = ClusterFile {
        keys: dir.0.join("test.key"),
        ..cluster.file.clone()
    };
    client.create(&of_client.keys).unwrap();
    (cluster, of_client)
}

/// Returns how many packets a role has dropped for a reason.
fn dropped(cluster: &Cluster, name: &str, reason: &str) -> u64 {
    let at = match name.starts_with("replica") {
        true => format!("/partitions/0/dropped/{reason}"),
        false => format!("/counters/dropped/{reason}"),
    };
    cluster.shown(name, &at)
}

fn header(msgtype: MsgType) -> Header {
    Header {
        cluster: NUMBER,
        swid: 1,
        client: 77,
        request: 1,
        ..Header::new(msgtype)
    }
}

/// A stranger's socket at the cluster's own address, which any program on the machine can open.
struct Stranger(UdpSocket);

impl Stranger {
    fn at(cluster: &Cluster) -> Stranger {
        let host = cluster.file.node("leader").unwrap().address.ip();
        let socket = UdpSocket::bind((host, 0)).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(300)))
            .unwrap();
        Stranger(socket)
    }

    fn send(&self, cluster: &Cluster, name: &str, datagram: &[u8]) {
        let to = cluster.file.node(name).unwrap().address;
        self.0.send_to(datagram, to).unwrap();
    }

    fn hears_nothing(&self) -> bool {
        self.0.recv(&mut [0; 2048]).is_err()
    }
}

#[test]
fn a_stranger_changes_nothing_and_learns_nothing() {
    let dir = TempDir::new("signed");
    let (mut cluster, of_client) = signed_cluster(&dir);
    cluster.start_all();
    let mut commands = Commands::open_with(&of_client);
    commands.some();
    // The nodes' own key file serves a client, too.
    let mut own = Commands::open_with(&cluster.file);
    own.acknowledged = commands.acknowledged;
    own.some();
    let next = cluster.shown("replica-1", "/partitions/0/next");
    let stranger = Stranger::at(&cluster);
    let acceptor = cluster.file.node("acceptor-1").unwrap().id;
    let forged = [
        ("leader", header(MsgType::Request), vec![b'x']),
        (
            "leader",
            header(MsgType::Probe),
            Probe::Leader.emit().to_vec(),
        ),
        ("acceptor-1", header(MsgType::Query), vec![]),
        (
            "acceptor-1",
            Header {
                flags: Flags::RANGE,
                rnd: Round::base(99),
                ..header(MsgType::Phase1a)
            },
            vec![],
        ),
        (
            "replica-1",
            Header {
                inst: next,
                rnd: Round::base(1),
                vrnd: Round::base(1),
                swid: acceptor,
                ..header(MsgType::Phase2b)
            },
            vec![b'x'],
        ),
    ];
    for (to, header, value) in &forged {
        let before = dropped(&cluster, to, "unsigned");
        stranger.send(&cluster, to, &header.datagram(value));
        repeat(|| (dropped(&cluster, to, "unsigned") > before).then_some(()));
    }
    assert!(stranger.hears_nothing());
    // The packets are signed with a stranger's key.
    let elsewhere = KeyFile::new(NUMBER).unwrap();
    let mut signer = Signer::new(Some(Arc::new(keyring(&elsewhere, Algorithm::SipHash))));
    for (to, header, value) in &forged {
        let before = dropped(&cluster, to, "bad_mac");
        stranger.send(&cluster, to, &signer.datagram(header, value).unwrap());
        repeat(|| (dropped(&cluster, to, "bad_mac") > before).then_some(()));
    }
    assert!(stranger.hears_nothing());
    assert_eq!(cluster.shown("replica-1", "/partitions/0/next"), next);
    own.some();
    drop((commands, own));
    cluster.stop_all();
}

/// Ends the flood, even if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A stranger that sends without end packets with bad tags keeps no command from being executed.
#[test]
fn a_flood_of_bad_tags_stops_nothing() {
    let dir = TempDir::new("flood");
    let (mut cluster, of_client) = signed_cluster(&dir);
    cluster.start_all();
    let mut commands = Commands::open_with(&of_client);
    commands.some();
    let elsewhere = Arc::new(keyring(&KeyFile::new(NUMBER).unwrap(), Algorithm::SipHash));
    let acceptor = cluster.file.node("acceptor-1").unwrap().id;
    let floods = [
        ("leader", header(MsgType::Request)),
        ("acceptor-1", header(MsgType::Phase2a)),
        (
            "replica-1",
            Header {
                swid: acceptor,
                ..header(MsgType::Phase2b)
            },
        ),
    ];
    let over = AtomicBool::new(false);
    let before = floods.map(|(to, _)| dropped(&cluster, to, "bad_mac"));
    thread::scope(|scope| {
        for (to, header) in floods {
            let stranger = Stranger::at(&cluster);
            let to = cluster.file.node(to).unwrap().address;
            let mut signer = Signer::new(Some(elsewhere.clone()));
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let datagram = signer.datagram(&header, &[0x5a; 64]).unwrap();
                    // Datagrams for which the kernel has no room are lost.
                    let _ = stranger.0.send_to(&datagram, to);
                }
            });
        }
        let _over = Over(&over);
        for _ in 0..5 {
            commands.some();
        }
    });
    for ((to, _), before) in floods.iter().zip(before) {
        assert!(dropped(&cluster, to, "bad_mac") > before, "{to}");
    }
    drop(commands);
    cluster.stop_all();
}

/// Nodes that sign by HalfSipHash refuse packets signed by SipHash, with any of their keys.
#[test]
fn a_cluster_signs_by_halfsiphash_alone() {
    let dir = TempDir::new("half");
    let (mut cluster, of_client) = cluster_signing(&dir, Auth::HalfSipHash);
    cluster.start_all();
    let mut commands = Commands::open_with(&of_client);
    commands.some();
    let file = KeyFile::load_nodes(&cluster.file.keys, NUMBER).unwrap();
    let request = |algorithm| {
        let mut signer = Signer::new(Some(Arc::new(keyring(&file, algorithm))));
        signer.datagram(&header(MsgType::Request), b"x").unwrap()
    };
    let stamped = || cluster.shown("leader", "/counters/sent/phase2a");
    let before = stamped();
    let client = Stranger::at(&cluster);
    client.send(&cluster, "leader", &request(Algorithm::SipHash));
    repeat(|| (dropped(&cluster, "leader", "unknown_key") == 1).then_some(()));
    assert_eq!(stamped(), before);
    client.send(&cluster, "leader", &request(Algorithm::HalfSipHash));
    repeat(|| (stamped() > before).then_some(()));
    commands.some();
    drop(commands);
    cluster.stop_all();
}

#[test]
fn a_request_that_was_overheard_takes_no_place_in_the_log() {
    let dir = TempDir::new("overheard");
    let (mut cluster, of_client) = signed_cluster(&dir);
    cluster.start_all();
    let mut commands = Commands::open_with(&of_client);
    commands.some();
    let keyring = Keys::of_client(&of_client).unwrap().keyring();
    let request = Signer::new(keyring)
        .datagram(&header(MsgType::Request), b"x")
        .unwrap();
    let client = Stranger::at(&cluster);
    let stamped = || cluster.shown("leader", "/counters/sent/phase2a");
    let before = stamped();
    client.send(&cluster, "leader", &request);
    repeat(|| (stamped() > before).then_some(()));
    for n in 1..=20 {
        client.send(&cluster, "leader", &request);
        repeat(|| (dropped(&cluster, "leader", "replayed") >= n).then_some(()));
    }
    assert_eq!(stamped(), before + 1);
    commands.some();
    drop(commands);
    cluster.stop_all();
}

#[test]
fn who_has_no_key_of_this_cluster_is_not_served() {
    let dir = TempDir::new("no-key");
    let (mut cluster, of_client) = signed_cluster(&dir);
    cluster.start_all();
    Commands::open_with(&of_client).some();
    let other = ClusterFile {
        keys: dir.0.join("other.key"),
        ..of_client.clone()
    };
    let refused = |file: &ClusterFile| {
        let options = ClientOptions {
            open_timeout: Duration::from_secs(1),
            ..ClientOptions::default()
        };
        Client::open(file, options)
            .err()
            .expect("it isn't served")
            .to_string()
    };
    let missing = refused(&other);
    assert!(missing.contains("the key file can't be read"), "{missing}");
    KeyFile::new(NUMBER).unwrap().create(&other.keys).unwrap();
    // With a stranger's key the client isn't even told who leads.
    let silent = refused(&other);
    assert!(silent.contains("no leader"), "{silent}");
    let unsigned = ClusterFile {
        auth: Auth::Off,
        ..other
    };
    let silent = refused(&unsigned);
    assert!(silent.contains("no leader"), "{silent}");
    cluster.stop_all();
    // A node needs the nodes' key file.
    let as_node = node::run(&of_client, "leader", None, &node::Stop::new().unwrap());
    let refused = as_node.unwrap_err().to_string();
    assert!(refused.contains("nodes need the cluster's"), "{refused}");
}

/// The secret is replaced while a client works. No packet is refused, and nothing has to be
/// restarted.
#[test]
fn the_secret_is_replaced_under_load() {
    let dir = TempDir::new("rotation");
    let (mut cluster, of_client) = signed_cluster(&dir);
    cluster.start_all();
    let mut commands = Commands::open_with(&of_client);
    commands.some();
    let mut nodes = KeyFile::load_nodes(&cluster.file.keys, NUMBER).unwrap();
    let names: Vec<_> = cluster.file.nodes.iter().map(|n| n.name.clone()).collect();
    for (generations, signs) in [(&[1, 2][..], 1), (&[1, 2], 2), (&[2], 2)] {
        nodes.rotate().unwrap();
        nodes
            .client("test")
            .unwrap()
            .replace(&of_client.keys)
            .unwrap();
        nodes.replace(&cluster.file.keys).unwrap();
        repeat(|| {
            commands.some();
            let has_it = |name: &String| {
                let document = cluster.status(name)?;
                let auth = match name.starts_with("replica") {
                    true => &document["partitions"][0]["auth"],
                    false => &document["auth"],
                };
                (auth["signs"] == signs && auth["generations"] == serde_json::json!(generations))
                    .then_some(())
            };
            names
                .iter()
                .all(|name| has_it(name).is_some())
                .then_some(())
        });
        commands.some();
    }
    for name in &names {
        for reason in [
            "unsigned",
            "unknown_key",
            "bad_mac",
            "bad_digest",
            "foreign_key",
        ] {
            assert_eq!(dropped(&cluster, name, reason), 0, "{name}: {reason}");
        }
    }
    drop(commands);
    cluster.stop_all();
}
