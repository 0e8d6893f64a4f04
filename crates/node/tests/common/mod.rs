// SPDX-License-Identifier: Apache-2.0
//! The nodes of a cluster as threads of one process.
#![allow(dead_code)] // each test program uses a part

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use apps::Echo;
use control::OUTSIDE;
use node::{ClusterFile, ControlPeers, Services, Stop};
use serde_json::Value;

/// A cluster of one group, on an address of its own, whose files go with it.
pub struct Bed {
    dir: PathBuf,
    pub cluster: ClusterFile,
}

impl Bed {
    /// `nodes` are names and roles.
    pub fn new(test: &str, group: &str, nodes: &[(&str, &str)]) -> Bed {
        let dir = std::env::temp_dir().join(format!("wirepaxos-{test}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap();
        let host = node::loopback::draw().unwrap();
        let at = |i: usize| SocketAddr::from((host, 7000 + 10 * i as u16));
        let mut text = format!("cluster = \"0badcafe\"\ndata = \"data\"\n[[group]]\n{group}\n");
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
        Bed { dir, cluster }
    }

    pub fn start(&self, name: &'static str) -> Running {
        start(&self.cluster, name)
    }

    /// Asks a node for its status until `wanted` finds something in it.
    pub fn until<T>(&self, name: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
        until(&self.cluster, name, wanted)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

pub type Running = (Arc<Stop>, JoinHandle<Result<(), node::Error>>);

pub fn start(cluster: &ClusterFile, name: &'static str) -> Running {
    let (stop, cluster) = (Stop::new().unwrap(), cluster.clone());
    let handle = stop.clone();
    let run = move || node::run(&cluster, name, Some(&echo()), &handle);
    (stop, std::thread::spawn(run))
}

/// Returns the services of replicas that echo.
fn echo() -> Services {
    Services::new(Arc::new(|_, directory| {
        Ok(Box::new(Echo::open(directory)?))
    }))
}

pub fn end((stop, thread): Running) {
    stop.request();
    thread.join().unwrap().unwrap();
}

/// Asks a node for its status until `wanted` finds something in it. The limit is there only so
/// that a failing test ends.
fn until<T>(cluster: &ClusterFile, name: &str, wanted: impl Fn(&Value) -> Option<T>) -> T {
    let control = cluster.node(name).unwrap().control;
    let peers = ControlPeers::new(cluster, OUTSIDE);
    let begun = Instant::now();
    let mut last = None;
    while begun.elapsed() < Duration::from_secs(60) {
        let answers = node::ask_status(&peers, &[control], Duration::from_secs(1));
        if let Some(document) = answers.unwrap().remove(&control) {
            if let Some(found) = wanted(&document) {
                return found;
            }
            last = Some(document);
            std::thread::sleep(Duration::from_millis(10));
        }
    }
    panic!("{name}: {last:?}");
}

pub fn leading_epoch(document: &Value) -> Option<u64> {
    let group = &document["groups"][0];
    let leading = group["leading"] == true;
    leading.then(|| group["epoch"].as_u64()).flatten()
}
