// SPDX-License-Identifier: Apache-2.0
//! Tests of nodes on DPDK: in a lab, with other nodes behind sockets and in the kernel; and of
//! their messages if they can't start.

mod testlab;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

use local_cluster::Error;
use local_cluster::at_port::{HOST, put_at_interface, put_together};
use node::cluster_file::{ClusterFile, Draft, Storage};
use serde_json::Value;
use testlab::{
    Increments, PROGRAM, TestLab, all, all_agree, eventually, leader, member, memory, ready,
    serving, status,
};

/// Tests run one at a time, since nodes that poll for packets slow all others down.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the library for DPDK can be used, and prints why not.
fn has_dpdk() -> bool {
    let library = node::plane::dpdk::library();
    if let Err(why) = &library {
        println!("SKIPPED: {why}");
    }
    library.is_ok()
}

/// Writes a lab's cluster file again, with a change.
fn change_file(lab: &TestLab, change: impl FnOnce(&mut Draft) -> Result<(), Error>) {
    let file = PathBuf::from(file_of(lab));
    let mut draft = Draft::from(&ClusterFile::load(&file).unwrap());
    change(&mut draft).unwrap();
    draft.write(&file).unwrap();
}

fn file_of(lab: &TestLab) -> String {
    format!("/run/wirepaxos/{}/cluster.toml", lab.name)
}

/// Runs a leader and an acceptor on DPDK, and the others on `plane`. Both are killed under load,
/// and come back: the acceptor with its votes if they are on disk, otherwise as a new member.
fn planes_mix(lab: &TestLab, storage: Storage) {
    change_file(lab, |draft| {
        put_at_interface(draft, &["leader-1", "acceptor-2"])?;
        let mut nodes = draft.nodes.iter_mut();
        let acceptor = nodes.find(|node| node.name == "acceptor-2");
        acceptor.expect("it is there").storage = Some(storage);
        Ok(())
    });
    lab.json(&["start", "--json"]);
    ready(lab);
    for node in ["leader-1", "acceptor-2"] {
        let plane = &status(lab, node)["plane"];
        assert_eq!(
            (&plane["name"], &plane["up"]),
            (&"dpdk".into(), &true.into()),
            "{plane}"
        );
    }
    member(lab, "acceptor-2");
    let before = memory(lab, "acceptor-2").0;
    let load = Increments::start(lab, 300);
    for node in ["leader-1", "acceptor-2"] {
        lab.kill(node);
        lab.json(&["start", "--json"]);
    }
    // Leadership moves from one plane to the other and back.
    for to in ["leader-2", "leader-1"] {
        if leader(lab).0 == to {
            continue;
        }
        // The order is refused while the next leader hasn't answered yet.
        eventually("another leader", || {
            let changed = lab.wirepaxos("controller", &["failover", "--to", to]);
            changed.status.success().then_some(())
        });
    }
    assert_eq!(leader(lab).0, "leader-1");
    assert_eq!(load.end(), "300");
    all_agree(lab, "300");
    member(lab, "acceptor-2");
    let since = memory(lab, "acceptor-2").0;
    assert_eq!(since == before, storage == Storage::Durable);
    lab.down();
}

#[test]
fn dpdk_mixes_with_sockets() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    let Some(lab) = TestLab::new('d') else { return };
    lab.json(&["up", "--app", "leveldb", "--json"]);
    planes_mix(&lab, Storage::Durable);
}

#[test]
fn dpdk_mixes_with_programs_in_the_kernel() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    let Some(lab) = serving('k', &[]) else { return };
    planes_mix(&lab, Storage::Volatile);
}

/// The nodes of a lab that share a process.
const TOGETHER: [&str; 4] = ["leader-1", "acceptor-1", "learner-1", "replica-1"];

/// Starts the process of these nodes.
fn start_together(lab: &TestLab) -> Running {
    let file = file_of(lab);
    let mut command = lab.lab(&["exec", HOST, "--", PROGRAM, "node", "-c", &file]);
    command.args(TOGETHER.iter().flat_map(|name| ["--name", name]));
    Running(command.spawn().unwrap())
}

#[test]
fn several_nodes_share_a_process_and_a_port() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    let Some(lab) = TestLab::new('s') else { return };
    lab.json(&["up", "--app", "leveldb", "--learners", "1", "--json"]);
    change_file(&lab, |draft| put_together(draft, &TOGETHER));
    let others = [
        "controller",
        "leader-2",
        "acceptor-2",
        "acceptor-3",
        "replica-2",
        "replica-3",
    ];
    let mut together = start_together(&lab);
    lab.json(&[&["start"], &others[..], &["--json"]].concat());
    ready(&lab);
    for node in TOGETHER {
        let document = status(&lab, node);
        assert_eq!(document["name"], node);
        let plane = &document["plane"];
        let shown = (&plane["name"], &plane["up"], &plane["unreachable"]);
        let expected = (&"dpdk".into(), &true.into(), &serde_json::json!([]));
        assert_eq!(shown, expected, "{node}: {plane}");
    }
    // All of them die at once, under load, and come back.
    let load = Increments::start(&lab, 300);
    let before = memory(&lab, "acceptor-1").0;
    drop(together);
    together = start_together(&lab);
    eventually("they lead again", || {
        let failover = ["failover", "--to", "leader-1"];
        let changed =
            leader(&lab).0 == "leader-1" || lab.wirepaxos("controller", &failover).status.success();
        changed.then_some(())
    });
    assert_eq!(load.end(), "300");
    all_agree(&lab, "300");
    member(&lab, "acceptor-1");
    let kept = memory(&lab, "acceptor-1").0;
    assert_ne!(kept, before, "it was a volatile one");
    // One node is stopped alone, and the others go on.
    let stopped = lab.wirepaxos("controller", &["stop", "--name", "acceptor-1"]);
    assert!(stopped.status.success(), "{}", all(&stopped));
    assert_eq!(
        lab.redis("client-1", "10.77.0.31", &["INCR", "counter"]),
        "301"
    );
    assert_eq!(status(&lab, "leader-1")["name"], "leader-1");
    // A signal ends them in good order, and what was stored is found again.
    let asked = Command::new("kill")
        .arg(together.0.id().to_string())
        .status();
    assert!(asked.unwrap().success());
    assert!(together.0.wait().unwrap().success());
    drop(together);
    let together = start_together(&lab);
    member(&lab, "acceptor-1");
    assert_eq!(memory(&lab, "acceptor-1").0, kept);
    assert_eq!(
        lab.redis("client-1", "10.77.0.31", &["INCR", "counter"]),
        "302"
    );
    all_agree(&lab, "302");
    drop(together);
    lab.down();
}

#[test]
fn nodes_that_cannot_share_a_process_say_why() {
    let args = "\"--no-huge\", \"-m\", \"128\", \"--no-pci\"";
    let dpdk = with("net_memif0", args);
    for (name, leader, names, parts) in [
        (
            "planes",
            "",
            ["acceptor", "leader"],
            ["leader is on plane udp", "process of its own"],
        ),
        (
            "twice",
            "",
            ["acceptor", "acceptor"],
            ["acceptor is named twice", "once"],
        ),
        (
            "cpus",
            &format!("{dpdk}\ncpu = 1"),
            ["acceptor", "leader"],
            ["`cpu`", "the same"],
        ),
    ] {
        let bed = Bed::with_two(name, &dpdk, leader);
        let mut command = bed.node(names[0]);
        let output = command.args(["--name", names[1]]).output().unwrap();
        let said = bed.refusal(output);
        for part in parts {
            assert!(said.contains(part), "{name}: {part}: {said}");
        }
    }
}

/// A directory with a cluster file, one of whose nodes is on DPDK.
struct Bed {
    directory: PathBuf,
}

impl Bed {
    fn new(test: &str, dpdk: &str) -> Bed {
        Bed::with_two(test, dpdk, "")
    }

    /// Makes a directory with a cluster file whose leader is on DPDK, too.
    fn with_two(test: &str, acceptor: &str, leader: &str) -> Bed {
        let name = format!("wirepaxos-dpdk-{test}-{}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        let nodes = [
            ("controller", 1, ""),
            ("leader", 2, leader),
            ("acceptor", 3, acceptor),
            ("replica", 4, ""),
        ];
        let mut text =
            "cluster = \"0badcafe\"\ndata = \"data\"\n[[group]]\nid = 0\napplication = \"echo\"\n"
                .to_owned();
        for (role, id, own) in nodes {
            write!(
                text,
                "[[node]]\nname = \"{role}\"\nid = {id}\nrole = \"{role}\"\naddress \
                 = \"127.77.9.{id}:7000\"\n\
                 control = \"127.77.9.{id}:7100\"\n{own}\n"
            )
            .unwrap();
        }
        std::fs::write(directory.join("cluster.toml"), text).unwrap();
        Bed { directory }
    }

    /// Returns the command of the acceptor, which is on DPDK.
    fn acceptor(&self) -> Command {
        self.node("acceptor")
    }

    fn node(&self, name: &str) -> Command {
        let mut command = Command::new(PROGRAM);
        let file = self.directory.join("cluster.toml");
        command.args(["node", "--name", name, "-c"]).arg(file);
        command
    }

    /// Waits until the acceptor reports its link in this state.
    fn is_linked(&self, up: bool) {
        eventually(&format!("its link is up: {up}"), || {
            let mut command = Command::new(PROGRAM);
            let file = self.directory.join("cluster.toml");
            let output = command.args(["status", "--json", "-c"]).arg(file).output();
            let document: Value = serde_json::from_slice(&output.unwrap().stdout).ok()?;
            let nodes = document["nodes"].as_array()?;
            let acceptor = nodes.iter().find(|node| node["name"] == "acceptor")?;
            (acceptor["status"]["plane"]["up"] == up).then_some(())
        });
    }

    /// Expects that the node couldn't start and has changed nothing; returns its message.
    fn refusal(&self, output: Output) -> String {
        let said = all(&output);
        assert!(!output.status.success(), "{said}");
        let there: Vec<_> = std::fs::read_dir(&self.directory).unwrap().collect();
        assert_eq!(there.len(), 1, "{there:?}");
        said
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn with(port: &str, args: &str) -> String {
    format!("plane = \"dpdk\"\ndpdk_port = \"{port}\"\ndpdk_args = [{args}]")
}

#[test]
fn without_the_library_a_node_says_how_to_get_it() {
    let _alone = alone();
    let bed = Bed::new("library", &with("net_memif0", ""));
    let output = bed
        .acceptor()
        .env("WIREPAXOS_DPDK_DIR", "/nonexistent")
        .output();
    let said = bed.refusal(output.unwrap());
    for part in [
        "/nonexistent/libwirepaxos_dpdk.so",
        "libdpdk-dev",
        "make -C programs/dpdk",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn a_node_that_cannot_have_its_port_says_what_to_do() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    const MEMORY: &str = "\"--no-huge\", \"-m\", \"128\", \"--no-pci\"";
    let memif = "\"--vdev=net_memif0,role=server,socket=/nonexistent/socket,socket-abstract=no\"";
    for (name, port, args, parts) in [
        (
            "args",
            "net_memif0",
            "\"--nonsense\"",
            ["--nonsense", "correct `dpdk_args`"],
        ),
        (
            "port",
            "net_memif0",
            MEMORY,
            ["no port net_memif0", "--vdev=net_memif0"],
        ),
        (
            "card",
            "0000:ff:1f.7",
            MEMORY,
            ["no port 0000:ff:1f.7", "--allow="],
        ),
        (
            "socket",
            "net_memif0",
            &format!("{MEMORY}, {memif}"),
            ["no port net_memif0", "own lines"],
        ),
    ] {
        let bed = Bed::new(name, &with(port, args));
        let said = bed.refusal(bed.acceptor().output().unwrap());
        for part in parts {
            assert!(said.contains(part), "{name}: {part}: {said}");
        }
    }
}

#[test]
fn without_hugepages_a_node_says_how_to_do_without() {
    let _alone = alone();
    let pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    if !has_dpdk() {
        return;
    }
    if std::fs::read_to_string(pages).map_or(true, |text| text.trim() != "0") {
        println!("SKIPPED: this machine has hugepages, or doesn't say that it has none");
        return;
    }
    let bed = Bed::new("pages", &with("net_memif0", "\"--no-pci\""));
    let said = bed.refusal(bed.acceptor().output().unwrap());
    for part in ["vm.nr_hugepages", "--no-huge"] {
        assert!(said.contains(part), "{said}");
    }
}

/// A running node, which is killed when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_peer_that_is_killed_and_comes_back_is_found_again() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    let socket = std::env::temp_dir().join(format!("wirepaxos-peer-{}", std::process::id()));
    let end = |role: &str| {
        let args = format!(
            "\"--no-huge\", \"-m\", \"128\", \"--no-pci\", \
             \"--vdev=net_memif0,role={role},socket={}\"",
            socket.display()
        );
        with("net_memif0", &args)
    };
    let bed = Bed::with_two("peer", &end("client"), &end("server"));
    let start = |name: &str| Running(bed.node(name).spawn().unwrap());
    let _acceptor = start("acceptor");
    bed.is_linked(false);
    for _ in 0..2 {
        let leader = start("leader");
        bed.is_linked(true);
        drop(leader);
        bed.is_linked(false);
    }
}

#[test]
fn a_socket_of_memif_that_somebody_else_has_is_refused() {
    let _alone = alone();
    if !has_dpdk() {
        return;
    }
    let socket = std::env::temp_dir().join(format!("wirepaxos-held-{}", std::process::id()));
    let args = format!(
        "\"--no-huge\", \"-m\", \"128\", \"--no-pci\", \"--vdev=net_memif0,role=server,socket={}\"",
        socket.display()
    );
    let settings = with("net_memif0", &args);
    let (first, second) = (Bed::new("first", &settings), Bed::new("second", &settings));
    let log = first.directory.join("log");
    let output = std::fs::File::create(&log).unwrap();
    let holder = Running(first.acceptor().stderr(output).spawn().unwrap());
    eventually("the first one has its port", || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.contains("plane: dpdk").then_some(())
    });
    // The second node also has the first one's address for control messages, and would report that
    // first, so it gets another one.
    let text = std::fs::read_to_string(second.directory.join("cluster.toml")).unwrap();
    let moved = text.replace("127.77.9.3:7100", "127.77.9.3:7200");
    std::fs::write(second.directory.join("cluster.toml"), moved).unwrap();
    let said = second.refusal(second.acceptor().output().unwrap());
    assert!(said.contains("no port net_memif0"), "{said}");
    assert!(said.contains("another process has the socket"), "{said}");
    drop(holder);
    assert!(!Path::new(&socket).exists() || std::fs::remove_file(&socket).is_ok());
}
