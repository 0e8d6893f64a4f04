// SPDX-License-Identifier: Apache-2.0
//! The web page of a controller, without a browser: what is served, to whom, and what can't disturb
//! the cluster. `page_browser.rs` looks at it.

mod common;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::{TestCluster, eventually, shape};
use local_cluster::resp::Reply;
use serde_json::Value;

/// Sends bytes to a server, and returns the head and the body of its answer.
fn ask(address: SocketAddr, bytes: &[u8]) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (head.to_owned(), body.to_owned())
}

fn get(address: SocketAddr, path: &str) -> (String, String) {
    ask(
        address,
        format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes(),
    )
}

/// Returns the places of a document's values, without the indices of lists and without what is in
/// the nodes' own documents, which change from look to look.
fn places(document: &Value, at: &str, found: &mut BTreeSet<String>) {
    match document {
        Value::Object(members) if at != "/nodes/status" => members
            .iter()
            .for_each(|(key, value)| places(value, &format!("{at}/{key}"), found)),
        Value::Array(entries) => entries.iter().for_each(|value| places(value, at, found)),
        _ => {
            found.insert(at.to_owned());
        }
    }
}

fn started() -> (TestCluster, SocketAddr, SocketAddr) {
    let (cluster, addresses) = TestCluster::start_with_metrics(&shape("rocksdb"));
    let ok = Reply::Simple("OK".into());
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok);
    (cluster, addresses["controller"], addresses["leader-1"])
}

/// Nobody who looks may delay what the controller is there for, and all see the same.
#[test]
fn a_controller_serves_a_page_that_only_reads_and_delays_nothing() {
    let (mut cluster, controller, leader) = started();
    every_file_of_the_page_is_served(controller);
    let (head, _) = get(leader, "/");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");

    for (method, status) in [("POST", "405"), ("DELETE", "405"), ("HEAD", "200")] {
        let (head, body) = ask(
            controller,
            format!("{method} / HTTP/1.1\r\n\r\n").as_bytes(),
        );
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{head}");
        assert!(method != "HEAD" || body.is_empty(), "{body}");
    }
    let long = [b"GET / HTTP/1.1\r\nX: ", &[b'x'; 9_000][..], b"\r\n\r\n"].concat();
    let (head, _) = ask(controller, &long);
    assert!(
        head.is_empty() || head.starts_with("HTTP/1.1 431 "),
        "{head}"
    );

    the_status_is_that_of_the_command(&cluster, controller);

    // Nobody says anything on these connections, which are more than the server takes.
    let idle: Vec<_> = (0..40)
        .filter_map(|_| TcpStream::connect(controller).ok())
        .collect();
    let active =
        |cluster: &TestCluster| cluster.status("controller")["groups"][0]["active"].as_u64();
    let before = eventually("an epoch", || active(&cluster));
    let leads = cluster.status("controller")["groups"][0]["leader"].as_u64();
    let file = node::ClusterFile::load(&cluster.local.file).unwrap();
    let dead = file
        .node_by_id(u16::try_from(leads.unwrap()).unwrap())
        .unwrap();
    cluster.processes.kill(&dead.name);
    eventually("the next epoch", || {
        active(&cluster).filter(|now| *now > before)
    });
    drop(idle);
    let node = eventually("a silent leader", || {
        let (_, body) = get(controller, "/status.json");
        let status: Value = serde_json::from_str(&body).ok()?;
        assert_ne!(status["is_well"], true, "{status}");
        let mut nodes = status["nodes"].as_array()?.iter();
        nodes.find(|node| node["up"] == false).cloned()
    });
    assert_eq!(node["name"], *dead.name);
    let warning = node["warnings"][0].as_str().unwrap();
    assert!(warning.contains("start with: wirepaxos node"), "{warning}");
    let (_, events) = get(controller, "/events.json");
    assert!(events.contains("epoch_active"), "{events}");
}

fn every_file_of_the_page_is_served(controller: SocketAddr) {
    let (head, html) = get(controller, "/");
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("Content-Security-Policy: default-src 'none'; script-src 'self'"));
    let local = html
        .split(['"', '\''])
        .filter(|word| word.starts_with('/') && !word.ends_with('/') && !word.contains(['<', '>']));
    let mut paths: Vec<String> = local.map(str::to_owned).collect();
    assert!(paths.iter().any(|path| path == "/main.js"), "{paths:?}");
    let mut at = 0;
    while let Some(path) = paths.get(at).cloned() {
        let (head, body) = get(controller, &path);
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{path}: {head}");
        let imports = body
            .split(" from \"")
            .skip(1)
            .filter_map(|rest| rest.split('"').next());
        for import in imports.filter(|import| import.starts_with('/')) {
            if !paths.iter().any(|path| path == import) {
                paths.push(import.to_owned());
            }
        }
        // Nothing may come from elsewhere, and no text may become HTML.
        let is_code = path.ends_with(".js") || path.ends_with(".css");
        for word in [
            "innerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "@import",
            "url(",
        ] {
            assert!(!is_code || !body.contains(word), "{path} has {word}");
        }
        at += 1;
    }
    assert!(paths.len() >= 8, "{paths:?}");
    let (head, _) = get(controller, "/../Cargo.toml");
    assert!(head.starts_with("HTTP/1.1 404 "), "{head}");
}

fn the_status_is_that_of_the_command(cluster: &TestCluster, controller: SocketAddr) {
    let (head, _) = get(controller, "/status.json");
    assert!(
        head.contains("Content-Type: application/json\r\n"),
        "{head}"
    );
    let places_in = |document: &Value| {
        let mut found = BTreeSet::new();
        places(document, "", &mut found);
        found
    };
    let names = |document: &Value| {
        let nodes = document["nodes"].as_array().unwrap().iter();
        nodes.map(|node| node["name"].clone()).collect::<Vec<_>>()
    };
    // They are asked one after the other, and a warning may come or go between.
    eventually("the same status", || {
        let (_, body) = get(controller, "/status.json");
        let served: Value = serde_json::from_str(&body).unwrap();
        let output = cluster.run("status", &["--json"]);
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(names(&served), names(&printed));
        (places_in(&served) == places_in(&printed)).then_some(())
    });
}
