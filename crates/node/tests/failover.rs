//! A controller, leaders and acceptors as threads of one process: the first epoch, and the next one
//! when the leader is gone.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control::Message;
use node::{ClusterFile, Stop};
use serde_json::Value;

type Running = (Arc<Stop>, JoinHandle<Result<(), node::Error>>);

fn start(cluster: &ClusterFile, name: &'static str) -> Running {
    let (stop, cluster) = (Stop::new().unwrap(), cluster.clone());
    let handle = stop.clone();
    let run = move || node::run(&cluster, name, None, &handle);
    (stop, std::thread::spawn(run))
}

fn end((stop, thread): Running) {
    stop.request();
    thread.join().unwrap().unwrap();
}

fn status(socket: &UdpSocket, control: SocketAddr) -> Option<Value> {
    let request = serde_json::to_vec(&Message::StatusRequest).unwrap();
    socket.send_to(&request, control).unwrap();
    let mut buffer = vec![0; 65_536];
    let (n, from) = socket.recv_from(&mut buffer).ok()?;
    match serde_json::from_slice(&buffer[..n]).unwrap() {
        Message::Status { json } if from == control => Some(serde_json::from_str(&json).unwrap()),
        _ => None,
    }
}

/// Asks a node for its status until `wanted` finds something in it. The limit is there only so
/// that a failing test ends.
fn until<T>(cluster: &ClusterFile, name: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let patience = Some(Duration::from_millis(100));
    socket.set_read_timeout(patience).unwrap();
    let control = cluster.node(name).unwrap().control;
    let begun = Instant::now();
    let mut last = None;
    while begun.elapsed() < Duration::from_secs(60) {
        if let Some(document) = status(&socket, control) {
            if let Some(found) = wanted(&document) {
                return found;
            }
            last = Some(document);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    panic!("{name}: {last:?}");
}

fn leading_epoch(document: &Value) -> Option<u64> {
    let group = &document["groups"][0];
    let leading = group["leading"] == true;
    leading.then(|| group["epoch"].as_u64()).flatten()
}

#[test]
fn the_controller_programs_a_leader_and_replaces_it_when_it_is_gone() {
    let dir = std::env::temp_dir().join(format!("wirepaxos-failover-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    let nodes = [
        ("controller", "controller"),
        ("leader-1", "leader"),
        ("leader-2", "leader"),
        ("acceptor-1", "acceptor"),
        ("acceptor-2", "acceptor"),
        ("acceptor-3", "acceptor"),
        ("replica-1", "replica"),
    ];
    let host = node::loopback::draw().unwrap();
    let at = |i: usize| SocketAddr::from((host, 7000 + 10 * i as u16));
    let mut text = "cluster = \"0badcafe\"\ndata = \"data\"\n\
         [[group]]\nid = 3\napplication = \"echo\"\npartitions = 2\nslots = 256\n"
        .to_owned();
    for (i, (name, role)) in nodes.iter().enumerate() {
        let address = at(2 * i);
        text += &format!(
            "[[node]]\nname = \"{name}\"\nid = {}\nrole = \"{role}\"\n\
             address = \"{address}\"\ncontrol = \"{}\"\n",
            i + 1,
            at(2 * i + 1)
        );
    }
    let file = dir.join("cluster.toml");
    std::fs::write(&file, text).unwrap();
    let cluster = ClusterFile::load(&file).unwrap();

    let acceptors = ["acceptor-1", "acceptor-2", "acceptor-3"].map(|name| start(&cluster, name));
    let leader_1 = start(&cluster, "leader-1");
    let leader_2 = start(&cluster, "leader-2");
    let controller = start(&cluster, "controller");
    let first = until(&cluster, "leader-1", leading_epoch);

    // Not the controller keeps the leader going: only failover waits for it.
    end(controller);
    assert_eq!(until(&cluster, "leader-1", leading_epoch), first);
    end(leader_1);
    let controller = start(&cluster, "controller");
    let second = until(&cluster, "leader-2", leading_epoch);
    assert!(second > first);
    until(&cluster, "acceptor-1", |document| {
        (document["groups"][0]["member"] == true).then_some(())
    });
    until(&cluster, "controller", |document| {
        (document["groups"][0]["active"].as_u64()? == second).then_some(())
    });

    for running in acceptors.into_iter().chain([leader_2, controller]) {
        end(running);
    }
    let _ = std::fs::remove_dir_all(&dir);
}
