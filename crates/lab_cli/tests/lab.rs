// SPDX-License-Identifier: Apache-2.0
//! Tests of `wirepaxos-lab lab`: networks that come and go without a trace, and a cluster that
//! loses nothing on links that lose, double and reorder. All traffic stays in namespaces that a
//! test made.

mod testlab;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use node::ClusterFile;
use node::cluster_file::Auth;
use serde_json::Value;

use testlab::waiting::all_serve;
use testlab::{LAB, TestLab, all, digests, eventually};

/// Makes a lab with these options; returns which messages its cluster file signs, and the mode of
/// the key file.
fn keys_of(lab: &TestLab, up: &[&str]) -> (Auth, Option<u32>) {
    lab.json(&[&["up", "--json"], up].concat());
    let directory = format!("/run/wirepaxos/{}", lab.name);
    let cluster = ClusterFile::load(&Path::new(&directory).join("cluster.toml")).unwrap();
    let mode = std::fs::metadata(&cluster.keys).map(|file| file.permissions().mode() & 0o777);
    lab.down();
    (cluster.auth, mode.ok())
}

#[test]
fn a_lab_has_keys_unless_it_is_to_have_none() {
    let Some(lab) = TestLab::new('k') else { return };
    assert_eq!(keys_of(&lab, &[]), (Auth::SipHash, Some(0o600)));
    let control = ["--auth", "control"];
    assert_eq!(keys_of(&lab, &control), (Auth::Control, Some(0o600)));
    assert_eq!(keys_of(&lab, &["--auth", "off"]), (Auth::Off, None));
    let said = lab.refused(&["up", "--auth", "on"]);
    assert!(
        said.contains("take off, control, siphash or halfsiphash"),
        "{said}"
    );
}

#[test]
fn a_lab_leaves_nothing_behind() {
    let Some(lab) = TestLab::new('a') else { return };
    let gone = lab.json(&["down", "--json"]);
    assert_eq!(gone["namespaces"], 0, "nothing to remove is fine");

    lab.json(&["up", "--json"]);
    let status = lab.json(&["status", "--json"]);
    assert_eq!(status["topology"], "one-switch");
    assert_eq!(status["hosts"].as_array().unwrap().len(), 11);
    let links = status["links"].as_array().unwrap();
    assert_eq!(links.len(), 10);
    // The kernel reports a new link's state with a delay.
    eventually("links that are up", || {
        let status = lab.json(&["status", "--json"]);
        let links = status["links"].as_array().unwrap();
        let ends = |link: &Value| link["ends"].as_array().unwrap().clone();
        let up = |link| ends(link).len() == 2 && ends(link).iter().all(|e| e["up"] == true);
        links.iter().all(up).then_some(())
    });
    assert!(lab.refused(&["up"]).contains("there already"));
    assert!(
        lab.refused(&["faults", "nobody", "--loss", "1%"])
            .contains("nobody")
    );
    assert!(
        lab.refused(&["exec", "nobody", "--", "true"])
            .contains("client-1")
    );
    // The host is where it should be, and reaches the others on both kinds of addresses.
    let shown = lab.exec("client-1", &["ip", "-o", "address", "show", "eth0"]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(
        shown.contains("10.77.0.41") && shown.contains("fd77::41"),
        "{shown}"
    );
    let status = lab.exec("client-1", &["sh", "-c", "exit 7"]);
    assert_eq!(status.status.code(), Some(7), "the command's own status");

    // The lab wasn't told of this process.
    let mut sleeper = lab
        .lab(&["exec", "client-1", "--", "sleep", "1000"])
        .spawn()
        .unwrap();
    eventually("the sleeper", || {
        let status = lab.json(&["status", "--json"]);
        let processes = status["processes"].as_array().unwrap().clone();
        processes
            .iter()
            .any(|p| p["host"] == "client-1")
            .then_some(())
    });
    let gone = lab.json(&["down", "--json"]);
    assert_eq!(
        (&gone["namespaces"], &gone["processes"]),
        (&12.into(), &1.into())
    );
    assert!(!sleeper.wait().unwrap().success());
    lab.down();
}

/// Otherwise a lock or a pipe of the caller stays open for as long as the nodes run.
#[test]
fn nodes_inherit_no_descriptors() {
    let Some(lab) = TestLab::new('h') else { return };
    lab.json(&["up", "--json"]);
    // The shell holds it without close-on-exec, as `flock` and `exec 9>FILE` do.
    let file = std::env::temp_dir().join(format!("wirepaxos-inherited-{}", lab.name));
    let script = format!(
        "exec 9>{}; exec {LAB} lab start leader-1 --name {} --json",
        file.display(),
        lab.name
    );
    let started = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(started.status.success(), "{}", all(&started));
    let status = lab.json(&["status", "--json"]);
    let hosts = status["hosts"].as_array().unwrap();
    let node = hosts
        .iter()
        .find(|host| host["name"] == "leader-1")
        .unwrap();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", node["node_pid"])).unwrap();
    let targets = descriptors.filter_map(|d| std::fs::read_link(d.unwrap().path()).ok());
    let inherited: Vec<PathBuf> = targets.filter(|target| *target == file).collect();
    std::fs::remove_file(file).unwrap();
    assert_eq!(inherited, Vec::<PathBuf>::new());
    lab.down();
}

#[test]
fn an_interrupted_up_is_cleaned_up() {
    let Some(lab) = TestLab::new('b') else { return };
    // `up` is killed at a few points of its way; the last kill may come too late, which is fine,
    // too.
    for milliseconds in [3, 12, 40, 120] {
        let mut up = lab
            .lab(&["up", "--start"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        sleep(Duration::from_millis(milliseconds));
        up.kill().unwrap();
        up.wait().unwrap();
        // An `ip` that `up` had started may still be at work.
        eventually("a clean machine", || {
            let down = lab.run(&["down"]);
            assert!(down.status.success(), "{}", all(&down));
            lab.traces().is_empty().then_some(())
        });
    }
    lab.json(&["up", "--json"]);
    lab.down();
}

#[test]
fn nothing_is_lost_or_doubled_on_bad_links() {
    let Some(lab) = TestLab::with_faults('c') else {
        return;
    };
    lab.json(&["up", "--wires", "--start", "--app", "leveldb", "--json"]);
    assert_eq!(
        lab.redis("client-1", "10.77.0.31", &["SET", "ready", "1"]),
        "OK"
    );
    let faults = [
        "faults",
        "all",
        "--loss",
        "10%",
        "--duplicate",
        "10%",
        "--reorder",
        "10%",
        "--corrupt",
        "1%",
        "--seed",
        "7",
        "--json",
    ];
    lab.json(&faults);

    // INCR shows both: a lost increment is missing from the sum, and a doubled one is too much.
    let script = "for i in $(seq 300); do echo INCR counter; done | \
                  redis-cli -h 10.77.0.32 -a lab --no-auth-warning | tail -n 1";
    let counted = lab.exec("client-1", &["timeout", "100", "sh", "-c", script]);
    let said = String::from_utf8_lossy(&counted.stdout).into_owned();
    assert_eq!(said.trim(), "300", "{}", all(&counted));

    let injected = lab.json(&["status", "--json"]);
    let injected = injected["faults"].as_array().unwrap();
    assert_eq!(injected.len(), 20, "both directions of all links");
    for kind in ["datagrams", "lost", "duplicated", "reordered", "corrupted"] {
        let total: u64 = injected.iter().map(|d| d[kind].as_u64().unwrap()).sum();
        assert!(total > 0, "{kind}: {injected:?}");
    }

    lab.json(&["faults", "all", "--clear", "--json"]);
    for replica in ["10.77.0.31", "10.77.0.32", "10.77.0.33"] {
        assert_eq!(lab.redis("client-1", replica, &["GET", "counter"]), "300");
    }
    let digests = digests(&lab);
    assert!(digests.iter().all(|d| *d == digests[0]), "{digests:?}");
    lab.down();
}

/// Every packet that the nodes recorded meanwhile is allowed by the protocol.
#[test]
fn recorded_nodes_keep_the_protocol_on_bad_links() {
    let Some(lab) = TestLab::with_faults('f') else {
        return;
    };
    let traces = TraceDir(std::env::temp_dir().join(format!("wirepaxos-trace-{}", lab.name)));
    let directory = traces.0.to_str().unwrap();
    lab.json(&[
        "up", "--wires", "--start", "--app", "leveldb", "--trace", directory, "--json",
    ]);
    lab.redis("client-1", "10.77.0.31", &["SET", "ready", "1"]);
    lab.json(&[
        "faults",
        "all",
        "--loss",
        "8%",
        "--duplicate",
        "10%",
        "--reorder",
        "10%",
        "--seed",
        "9",
        "--json",
    ]);
    let increments = |n: u32| {
        let script = format!(
            "for i in $(seq {n}); do echo INCR counter; done | \
             redis-cli -h 10.77.0.32 -a lab --no-auth-warning"
        );
        let counted = lab.exec("client-1", &["timeout", "100", "sh", "-c", &script]);
        assert!(counted.status.success(), "{}", all(&counted));
    };
    increments(60);
    for victim in ["leader-1", "acceptor-1"] {
        lab.kill(victim);
        increments(60);
        lab.json(&["start", victim, "--json"]);
        eventually("an epoch with all acceptors", || {
            let output = lab.wirepaxos("controller", &["status", "--json"]);
            all_serve(&output.stdout)
        });
    }
    increments(60);
    lab.down();

    let check = |directory: &str| {
        let mut command = Command::new(LAB);
        let output = command
            .args(["check-trace", directory, "--json"])
            .output()
            .unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            output.status.success(),
            report["groups"][0]["violation"].is_null()
        );
        report["groups"][0].clone()
    };
    let report = check(directory);
    assert!(report["violation"].is_null(), "{report}");
    assert_eq!(report["files"], 9);
    println!("{} events", report["events"]);
    let file = |name: &str| std::fs::read_to_string(traces.0.join(name)).unwrap();
    assert_eq!(file("acceptor-1.0.trace").matches(" start ").count(), 2);
    assert!(file("controller.0.trace").matches(" epoch ").count() >= 3);
    // Replicas had to repair losses by PHASE1A or PHASE2A of their own.
    let replicas = [
        "replica-1.0.0.trace",
        "replica-2.0.0.trace",
        "replica-3.0.0.trace",
    ];
    let repairs = |name: &&str| {
        let is_repair = |line: &str| line.contains(" send ") && line.contains(" 0101");
        file(name).lines().filter(|line| is_repair(line)).count()
    };
    let repairs: usize = replicas.iter().map(repairs).sum();
    assert!(repairs > 0, "no repair rounds");

    // A falsified trace is refused.
    falsify(&traces.0.join("acceptor-2.0.trace"));
    let report = check(directory);
    let found = report["violation"]["file"].as_str().unwrap();
    assert!(found.ends_with("acceptor-2.0.trace"), "{report}");
}

/// The directory of the traces, which is removed at the end.
struct TraceDir(PathBuf);

impl Drop for TraceDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Changes the last digit of the last vote (PHASE2B) that a node has sent.
fn falsify(file: &Path) {
    let recorded = std::fs::read_to_string(file).unwrap();
    let mut lines: Vec<String> = recorded.lines().map(str::to_string).collect();
    let is_vote = |line: &String| line.contains(" send ") && line.contains(" 0104");
    let vote = lines.iter().rposition(is_vote).unwrap();
    let digit = lines[vote].pop().and_then(|c| c.to_digit(16)).unwrap();
    lines[vote].push(char::from_digit(digit ^ 1, 16).unwrap());
    std::fs::write(file, lines.join("\n") + "\n").unwrap();
}

/// Checks each datagram that arrives through a link with faults.
#[test]
fn the_injector_does_what_it_counts() {
    let Some(lab) = TestLab::with_faults('d') else {
        return;
    };
    if !Path::new("/usr/bin/python3").exists() {
        println!("SKIPPED: python3 isn't installed; ./dev setup installs it");
        return;
    }
    const SENT: u64 = 4000;
    lab.json(&["up", "--json"]);
    // The lab is up already, so this puts a wire into its link now.
    let run = |rates: &[&str]| -> (Vec<u64>, Value) {
        lab.json(&[&["faults", "client-1", "--json"], rates].concat());
        let received = receive(&lab, SENT);
        let all = lab.json(&["status", "--json"]);
        let from_client = all["faults"].as_array().unwrap().clone();
        let from_client = from_client.into_iter().find(|d| d["from"] == "client-1");
        (received, from_client.unwrap())
    };
    let distinct = |received: &[u64]| received.iter().collect::<BTreeSet<_>>().len() as u64;
    let overtaken = |received: &[u64]| received.windows(2).filter(|w| w[0] > w[1]).count();

    let (clean, counts) = run(&["--clear"]);
    assert_eq!(clean, (0..SENT).collect::<Vec<_>>());
    assert_eq!(counts["datagrams"], SENT);

    let (received, counts) = run(&["--loss", "10%"]);
    let lost = counts["lost"].as_u64().unwrap();
    assert!((SENT / 20..SENT / 5).contains(&lost), "{counts}");
    assert_eq!(received.len() as u64, SENT - lost);
    assert_eq!(overtaken(&received), 0);

    let (received, counts) = run(&["--corrupt", "10%"]);
    let corrupted = counts["corrupted"].as_u64().unwrap();
    assert!((SENT / 20..SENT / 5).contains(&corrupted), "{counts}");
    // The receiver's checksum detects every corrupted datagram.
    assert_eq!(received.len() as u64, SENT - corrupted);

    let (received, counts) = run(&["--duplicate", "10%", "--hold", "2ms"]);
    let duplicated = counts["duplicated"].as_u64().unwrap();
    assert!((SENT / 20..SENT / 5).contains(&duplicated), "{counts}");
    assert_eq!(
        (received.len() as u64, distinct(&received)),
        (SENT + duplicated, SENT)
    );

    let (received, counts) = run(&["--reorder", "10%", "--hold", "2ms"]);
    let reordered = counts["reordered"].as_u64().unwrap();
    assert!((SENT / 20..SENT / 5).contains(&reordered), "{counts}");
    assert_eq!((received.len() as u64, distinct(&received)), (SENT, SENT));
    let overtakers = overtaken(&received) as u64;
    println!("{reordered} of {SENT} were held back; {overtakers} came right after a later one");
    assert!(overtakers > reordered / 10);

    let (received, counts) = run(&["--delay", "5ms"]);
    assert_eq!((received.len() as u64, overtaken(&received)), (SENT, 0));
    assert_eq!(counts["delayed"], SENT);
    lab.down();
}

/// Sends numbered datagrams from client-1 to the data port of replica-1, where no node runs, a few
/// at a time; returns the numbers in the order of their arrival.
fn receive(lab: &TestLab, sent: u64) -> Vec<u64> {
    const RECEIVER: &str = "
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
s.bind(('10.77.0.31', 7000))
print('ready', flush=True)
while True:
    n = s.recv(2048)
    if n.startswith(b'end'): break
    print(int(n))
";
    const SENDER: &str = "
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(('10.77.0.41', 5000))
for n in range(int(sys.argv[1])):
    s.sendto(b'%064d' % n, ('10.77.0.31', 7000))
    if n % 4 == 3: time.sleep(0.0002)
time.sleep(0.5)
";
    let mut receiver = lab
        .lab(&["exec", "replica-1", "--", "python3", "-c", RECEIVER])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines =
        std::io::BufRead::lines(std::io::BufReader::new(receiver.stdout.take().unwrap()));
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let sender = lab.exec("client-1", &["python3", "-c", SENDER, &sent.to_string()]);
    assert!(sender.status.success(), "{}", all(&sender));
    // This is sent from a host whose link has no faults.
    const END: &str = "
import socket
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'end', ('10.77.0.31', 7000))
";
    let end = lab.exec("controller", &["python3", "-c", END]);
    assert!(end.status.success(), "{}", all(&end));
    let received = lines.map(|line| line.unwrap().parse().unwrap()).collect();
    receiver.wait().unwrap();
    received
}

#[test]
fn two_switches_serve_over_ipv6() {
    let Some(lab) = TestLab::new('e') else { return };
    let up = [
        "up",
        "--topology",
        "two-switches",
        "--ipv6",
        "--app",
        "leveldb",
        "--start",
        "--json",
    ];
    let status = lab.json(&up);
    assert_eq!(status["hosts"].as_array().unwrap().len(), 13);
    let links = status["links"].as_array().unwrap();
    assert!(links.iter().any(|link| link["name"] == "trunk"));
    // Both clients, each on its own switch, ask replicas on both switches.
    assert_eq!(
        lab.redis("client-1", "fd77::33", &["SET", "fruit", "apple"]),
        "OK"
    );
    assert_eq!(
        lab.redis("client-2", "fd77::31", &["GET", "fruit"]),
        "apple"
    );
    let ran = lab.json(&["status", "--json"]);
    let nodes = ran["hosts"].as_array().unwrap().clone();
    assert_eq!(nodes.iter().filter(|h| !h["node_pid"].is_null()).count(), 9);
    lab.down();
}
