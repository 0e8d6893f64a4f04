// SPDX-License-Identifier: Apache-2.0
//! The metrics of real clusters, as a strict Prometheus reads them, and what the tree does with
//! them.

mod common;
mod exposition;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use common::{TestCluster, eventually, shape};
use exposition::{Family, Sample, parse};
use local_cluster::Shape;
use local_cluster::resp::Reply;
use node::cluster_file::Protocol;

/// Returns the text that a node's metrics address serves.
fn scrape(address: SocketAddr) -> String {
    let mut scraper = TcpStream::connect(address).unwrap();
    scraper.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body.to_owned()
}

/// Starts a cluster whose nodes all serve metrics, and lets another leader take over; returns the
/// texts of the nodes that run, and the controller's address.
fn after_a_failover(shape: &Shape) -> (TestCluster, SocketAddr, BTreeMap<String, String>) {
    let (mut cluster, addresses) = TestCluster::start_with_metrics(shape);
    let ok = Reply::Simple("OK".into());
    assert_eq!(cluster.call(0, &["SET", "fruit", "apple"]), ok);
    let group = |cluster: &TestCluster| cluster.status("controller")["groups"][0].clone();
    let leader = eventually("a leader", || group(&cluster)["leader"].as_u64());
    let file = node::ClusterFile::load(&cluster.local.file).unwrap();
    let dead = file.node_by_id(u16::try_from(leader).unwrap());
    let dead = dead.unwrap().name.clone();
    cluster.processes.kill(&dead);
    eventually("another leader that is known to lead", || {
        let group = group(&cluster);
        let is_another = group["leader"].as_u64().is_some_and(|id| id != leader);
        let is_timed = group["last_failover"]["epoch"] == group["active"];
        let is_suspected = group["suspects"] == serde_json::json!([leader]);
        (is_another && is_timed && is_suspected).then_some(())
    });
    assert_eq!(cluster.call(0, &["SET", "fruit", "pear"]), ok);
    let controller = addresses["controller"];
    let alive = addresses.into_iter().filter(|(name, _)| *name != dead);
    let texts = alive.map(|(name, address)| (name, scrape(address)));
    let texts = texts.collect();
    (cluster, controller, texts)
}

fn value(families: &BTreeMap<String, Family>, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let has_all = |sample: &&Sample| {
        let mut labels = labels.iter();
        sample.name == name && labels.all(|(label, value)| sample.has(label, value))
    };
    let mut all = families.values().flat_map(|family| &family.samples);
    all.find(has_all).map(|sample| sample.value)
}

fn durable(protocol: Protocol) -> Shape {
    let base = shape("rocksdb");
    Shape {
        acceptors: if protocol == Protocol::Paxos { 3 } else { 0 },
        protocol,
        durable: true,
        ..base
    }
}

#[test]
fn a_strict_parser_takes_the_metrics_of_every_node_after_a_failover() {
    let (cluster, controller, texts) = after_a_failover(&durable(Protocol::Paxos));
    assert_eq!(texts.len(), 8);
    let mut all = BTreeMap::new();
    for (name, text) in &texts {
        let families = parse(text).unwrap_or_else(|why| panic!("{name}: {why}\n{text}"));
        for (family, Family { samples, .. }) in &families {
            assert!(family.starts_with("wirepaxos_"), "{family}");
            let all_own = samples.iter().all(|sample| sample.has("node", name));
            assert!(all_own, "{name}: {family} is another node's: {text}");
        }
        let of = |name: &str, labels: &[(&str, &str)]| value(&families, name, labels);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        assert_eq!(of("wirepaxos_build_info", &version), Some(1.0), "{text}");
        assert_eq!(of("wirepaxos_plane_info", &[("plane", "udp")]), Some(1.0));
        assert!(of("wirepaxos_uptime_seconds", &[]).is_some(), "{text}");
        assert!(of("wirepaxos_warnings", &[]).is_some(), "{text}");
        all.insert(name.as_str(), families);
    }
    let syncs = value(&all["acceptor-1"], "wirepaxos_log_sync_seconds_count", &[]);
    assert!(syncs >= Some(1.0), "{}", texts["acceptor-1"]);
    let nodes = cluster.local.nodes.iter();
    let dead: Vec<&String> = nodes.filter(|name| !texts.contains_key(*name)).collect();
    // On a busy machine the controller may suspect others for a moment.
    eventually("metrics of the failover", || {
        let families = parse(&scrape(controller)).unwrap();
        let of = |name: &str, labels: &[(&str, &str)]| value(&families, name, labels);
        let is_told = of("wirepaxos_active_epoch", &[]) >= Some(2.0)
            && of("wirepaxos_suspected_members", &[]) == Some(1.0)
            && of("wirepaxos_member_alive", &[("member", dead[0])]) == Some(0.0)
            && of("wirepaxos_failover_duration_seconds_count", &[]) >= Some(2.0)
            && of("wirepaxos_failover_stage_seconds_count", &[]) >= Some(1.0);
        is_told.then_some(())
    });
    other_parsers(&texts);
}

/// Lets the parsers of others read all nodes' texts, where they are installed.
fn other_parsers(texts: &BTreeMap<String, String>) {
    let parser = "import sys\n\
                  from prometheus_client.parser import text_string_to_metric_families as parse\n\
                  assert len(list(parse(sys.stdin.read()))) > 5";
    let ask = "import prometheus_client";
    match is_there("python3", &["-c", ask]) {
        true => each_is_taken(texts, "python3", &["-c", parser]),
        false => {
            println!("SKIPPED: Python has no prometheus_client: install python3-prometheus-client")
        }
    }
    if has_promtool() {
        each_is_taken(texts, PROMTOOL, &["check", "metrics"]);
    }
}

const PROMTOOL: &str = "promtool";

/// Returns whether promtool is there. Debian's package of it starts a server, so nothing here
/// installs it.
fn has_promtool() -> bool {
    let is_there = is_there(PROMTOOL, &["--version"]);
    if !is_there {
        println!("SKIPPED: promtool isn't in the search path: install prometheus");
    }
    is_there
}

fn each_is_taken(texts: &BTreeMap<String, String>, program: &str, arguments: &[&str]) {
    for (name, text) in texts {
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        drop(input);
        let said = child.wait_with_output().unwrap();
        assert!(
            said.status.success(),
            "{program} on {name}: {said:?}\n{text}"
        );
    }
}

fn is_there(program: &str, arguments: &[&str]) -> bool {
    let asked = Command::new(program).args(arguments).output();
    asked.is_ok_and(|output| output.status.success())
}

/// The metrics of a replica also show the clients of its front end.
#[test]
fn a_replicas_metrics_have_its_front_end() {
    let (cluster, addresses) = TestCluster::start_with_metrics(&shape("leveldb"));
    assert_eq!(
        cluster.call(0, &["SET", "fruit", "apple"]),
        Reply::Simple("OK".into())
    );
    let mut client = cluster.connect(0);
    let apple = Reply::Bulk(Some(b"apple".to_vec()));
    assert_eq!(client.call(&[b"GET", b"fruit"]).unwrap(), apple);
    assert!(matches!(client.call(&[b"NONSENSE"]), Ok(Reply::Error(_))));
    let mut writer = cluster.connect(0);
    for _ in 0..16 {
        writer.call(&[b"SET", b"fruit", b"pear"]).unwrap();
    }
    let shown = scrape(addresses["replica-1"]);
    let families = parse(&shown).unwrap();
    let metric = |name: &str| value(&families, &format!("wirepaxos_front_end_{name}"), &[]);
    assert!(metric("connected") >= Some(1.0), "{shown}");
    assert!(metric("connections_total") >= Some(2.0), "{shown}");
    assert!(metric("commands_total") >= Some(3.0), "{shown}");
    assert!(metric("logged_total") >= Some(1.0), "{shown}");
    let reads = metric("reads_total").zip(metric("reads_given_up_total"));
    let reads = reads.map(|(read, given_up)| read + given_up);
    assert_eq!(reads, Some(1.0), "{shown}");
    assert!(metric("errors_total") >= Some(1.0), "{shown}");
    assert_eq!(metric("sessions_lost_total"), Some(0.0), "{shown}");
    assert!(metric("answer_seconds_count") >= Some(1.0), "{shown}");
    // Prometheus makes rates itself, and the times have the unit in their name.
    let left_out = ["commands_per_second", "answer_times"];
    let status = cluster.status("replica-1");
    for name in status["front_end"].as_object().unwrap().keys() {
        let is_there = metric(name).or(metric(&format!("{name}_total"))).is_some();
        assert_ne!(is_there, left_out.contains(&name.as_str()), "{name}");
    }
}

/// A renamed metric would silence an alert.
#[test]
fn alert_rules_and_dashboard_use_what_clusters_export() {
    let mut exported = BTreeSet::new();
    for protocol in [Protocol::Paxos, Protocol::NoPaxos] {
        let (_cluster, _, texts) = after_a_failover(&durable(protocol));
        for text in texts.values() {
            let families = parse(text).unwrap_or_else(|why| panic!("{why}\n{text}"));
            let series = families.into_values().flat_map(|family| family.samples);
            exported.extend(series.map(|sample| sample.name));
        }
    }
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/monitoring");
    let file = |name: &str| PathBuf::from(directory).join(name);
    let rules = std::fs::read_to_string(file("alerts.yml")).unwrap();
    let dashboard = std::fs::read(file("dashboard.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_slice(&dashboard).unwrap();
    let rules = rules
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let rules: Vec<&str> = rules.collect();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let targets: Vec<&str> = targets
        .map(|target| target["expr"].as_str().unwrap())
        .collect();
    assert!(rules.len() > 10 && targets.len() > 10);
    // Only kernel programs, DPDK and a node with `copies` export these.
    let elsewhere = [
        "wirepaxos_copies_failed_total",
        "wirepaxos_plane_unreachable_members",
    ];
    for expression in rules.into_iter().chain(targets) {
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = expression.split(|c| !is_in_name(c));
        let names: Vec<&str> = words
            .filter(|word| word.starts_with("wirepaxos_"))
            .collect();
        assert!(
            !names.is_empty() || expression.contains("up{"),
            "{expression}"
        );
        for name in names {
            let is_known = exported.contains(name) || elsewhere.contains(&name);
            assert!(
                is_known,
                "no node exports {name}, which is in: {expression}"
            );
        }
    }
    if has_promtool() {
        let check = Command::new(PROMTOOL)
            .args(["check", "rules"])
            .arg(file("alerts.yml"))
            .output();
        let check = check.unwrap();
        assert!(check.status.success(), "{check:?}");
    }
}
