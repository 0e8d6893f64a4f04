// SPDX-License-Identifier: Apache-2.0
//! Tests of `wirepaxos up` and `wirepaxos init`: from nothing to a cluster that serves.

#[path = "waiting/mod.rs"]
mod waiting;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use local_cluster::Processes;
use local_cluster::resp::{Connection, Reply, Server};
use node::ClusterFile;
use serde_json::Value;
use waiting::within;

const PROGRAM: &str = env!("CARGO_BIN_EXE_wirepaxos");
const PATIENCE: Duration = Duration::from_secs(5);

fn eventually<T>(what: &str, attempt: impl FnMut() -> Option<T>) -> T {
    within(Duration::from_secs(60), what, attempt)
}

/// A directory that is removed with the test.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Directory {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(PROGRAM)
            .args(arguments)
            .current_dir(&self.0)
            .output()
            .unwrap()
    }

    fn refused(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} isn't refused");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process of `wirepaxos up --json`, and the lines that it prints.
struct Up {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Up {
    fn start(directory: &Directory, arguments: &[&str]) -> Up {
        let mut command = Command::new(PROGRAM);
        command
            .args(["up", "--json"])
            .args(arguments)
            .current_dir(&directory.0);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Up { child, lines }
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"))
    }

    fn end(mut self) {
        signal(self.child.id(), "-INT");
        assert_eq!(self.line()["stopped"], true);
        assert!(self.child.wait().unwrap().success());
    }

    /// Returns the process of a node that this one has started.
    fn process_of(&self, node: &str) -> Option<u32> {
        let parent = format!("PPid:\t{}\n", self.child.id());
        let arguments = format!("--name\0{node}\0");
        let is_it = |process: &u32| {
            let read = |file: &str| {
                fs::read_to_string(format!("/proc/{process}/{file}")).unwrap_or_default()
            };
            read("status").contains(&parent) && read("cmdline").ends_with(&arguments)
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let mut processes = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        processes.find(is_it)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(process: u32, signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &process.to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

/// Returns the first of three ports that are free now.
fn free_ports() -> u16 {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    eventually("three free ports", || {
        let drawn = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let first = drawn.clamp(1024, 65_000);
        (first..first + 3).all(is_free).then_some(first)
    })
}

fn call(server: Server, words: &[&str]) -> Option<Reply> {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let mut connection = Connection::open(server, PATIENCE).ok()?;
    connection.call(&words).ok()
}

fn is_apple(server: Server) -> bool {
    call(server, &["GET", "fruit"]) == Some(Reply::Bulk(Some(b"apple".to_vec())))
}

/// Returns the first line of the answer to a browser.
fn page(said: &Value) -> String {
    let page = said["page"].as_str().expect("an address");
    let address = page.trim_start_matches("http://").trim_end_matches('/');
    let mut connection = TcpStream::connect(address).unwrap();
    connection
        .write_all(b"GET / HTTP/1.1\r\nHost: up\r\n\r\n")
        .unwrap();
    let mut line = String::new();
    BufReader::new(connection).read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn a_cluster_is_up_survives_a_kill_and_goes_on_when_started_again() {
    let directory = Directory::new("up");
    let port = free_ports();
    let front_end = |at: u16| Server::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port + at)));
    let arguments = ["--app", "rocksdb", "--port", &port.to_string()];
    let mut up = Up::start(&directory, &arguments);
    assert_eq!(up.line()["serves"], true);
    assert_eq!(
        call(front_end(0), &["SET", "fruit", "apple"]),
        Some(Reply::Simple("OK".into()))
    );

    let killed = up.process_of("replica-2").expect("it runs");
    signal(killed, "-KILL");
    assert!(is_apple(front_end(0)));
    eventually("replica-2 is started again", || {
        up.process_of("replica-2").filter(|new| *new != killed)
    });
    eventually("replica-2 serves again", || {
        is_apple(front_end(1)).then_some(())
    });
    up.end();

    let said = directory.refused(&["up", "--replicas", "5"]);
    assert!(
        said.contains("--replicas 3") && said.contains("--data"),
        "{said}"
    );
    let mut up = Up::start(&directory, &[]);
    let said = up.line();
    assert_eq!(said["redis"][2], format!("127.0.0.1:{}", port + 2));
    assert_eq!(page(&said), "HTTP/1.1 200 OK");
    assert!(is_apple(front_end(2)));
    up.end();

    let nodes = directory.0.join("wirepaxos.data/nodes");
    goes_on_without_damaged_nodes(&directory, &nodes, front_end(0));
    goes_on_once_its_controller_is_made_anew(&directory, &nodes, front_end(0));
}

/// The others can do without an acceptor and a replica.
fn goes_on_without_damaged_nodes(directory: &Directory, nodes: &Path, front_end: Server) {
    let files =
        ["acceptor-1/log/key", "replica-3/partition-0/reached"].map(|name| nodes.join(name));
    let whole = files.each_ref().map(|file| fs::read(file).unwrap());
    for (file, whole) in files.iter().zip(&whole) {
        fs::write(file, &whole[..whole.len() / 2]).unwrap();
    }
    let mut up = Up::start(directory, &[]);
    assert_eq!(up.line()["serves"], true);
    assert!(is_apple(front_end));
    up.end();
    // Without any replica it ends, and says why.
    for replica in ["replica-1", "replica-2"] {
        let file = nodes.join(replica).join("partition-0/reached");
        fs::rename(&file, file.with_extension("whole")).unwrap();
        fs::write(&file, "").unwrap();
    }
    let said = directory.refused(&["up"]);
    assert!(said.contains("doesn't start"), "{said}");
    for replica in ["replica-1", "replica-2"] {
        let file = nodes.join(replica).join("partition-0/reached");
        fs::rename(file.with_extension("whole"), &file).unwrap();
    }
    for (file, whole) in files.iter().zip(&whole) {
        fs::write(file, whole).unwrap();
    }
}

/// What the other nodes know is enough, and they run.
fn goes_on_once_its_controller_is_made_anew(
    directory: &Directory,
    nodes: &Path,
    front_end: Server,
) {
    fs::write(nodes.join("controller/epochs.json"), "{").unwrap();
    let mut up = Up::start(directory, &[]);
    let file = "wirepaxos.data/cluster.toml";
    eventually("the controller's store is made anew", || {
        let arguments = ["controller", "rebuild", "-c", file, "--trust-disks"];
        directory.run(&arguments).status.success().then_some(())
    });
    assert_eq!(up.line()["serves"], true);
    assert!(is_apple(front_end));
    up.end();
}

#[test]
fn where_other_machines_reach_it_clients_need_the_password() {
    let directory = Directory::new("up-listen");
    let port = free_ports();
    let arguments = [
        "--app",
        "rocksdb",
        "--replicas",
        "1",
        "--port",
        &port.to_string(),
    ];
    let mut up = Up::start(
        &directory,
        &[&arguments[..], &["--listen", "0.0.0.0"]].concat(),
    );
    assert_eq!(up.line()["redis"][0], format!("0.0.0.0:{port}"));
    let password = fs::read_to_string(directory.0.join("wirepaxos.data/redis.password"));
    let password: &'static str = password.unwrap().trim().to_owned().leak();
    let mut front_end = Server::from(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let Some(Reply::Error(why)) = call(front_end, &["GET", "fruit"]) else {
        panic!("it is served without the password");
    };
    assert!(why.starts_with("NOAUTH"), "{why}");
    front_end.password = Some(password);
    let answer = call(front_end, &["SET", "fruit", "apple"]);
    assert_eq!(answer, Some(Reply::Simple("OK".into())));
    up.end();
    let said = directory.refused(&["up", "--listen", "127.0.0.1"]);
    assert!(said.contains("--listen 0.0.0.0"), "{said}");
}

#[test]
fn a_port_that_is_taken_is_named_and_nothing_is_left() {
    let directory = Directory::new("up-taken");
    let port = free_ports();
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port + 1)).unwrap();
    let said = directory.refused(&["up", "--app", "rocksdb", "--port", &port.to_string()]);
    assert!(
        said.contains(&format!("127.0.0.1:{}", port + 1)) && said.contains("--port"),
        "{said}"
    );
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}

/// The nodes of a cluster that `wirepaxos init` planned, each on its machine's address.
struct Machines {
    file: PathBuf,
    logs: PathBuf,
    cluster: ClusterFile,
    processes: Processes,
}

impl Machines {
    fn start(directory: &Directory, file: PathBuf) -> Machines {
        let mut machines = Machines {
            cluster: ClusterFile::load(&file).unwrap(),
            logs: directory.0.clone(),
            processes: Processes::new(PROGRAM),
            file,
        };
        for machine in machines.addresses() {
            machines.switch_on(machine);
        }
        machines
    }

    fn addresses(&self) -> BTreeSet<IpAddr> {
        let nodes = self.cluster.nodes.iter();
        nodes.map(|node| node.address.ip()).collect()
    }

    fn nodes_of(&self, machine: IpAddr) -> Vec<String> {
        let nodes = self.cluster.nodes.iter();
        let here = nodes.filter(|node| node.address.ip() == machine);
        here.map(|node| node.name.clone()).collect()
    }

    fn switch_on(&mut self, machine: IpAddr) {
        for name in self.nodes_of(machine) {
            let mut command = Command::new(PROGRAM);
            command.arg("node").arg("-c").arg(&self.file);
            command.args(["--name", &name]);
            self.processes.start(command, &self.logs, &name).unwrap();
        }
    }

    /// Waits until no node is silent or warns.
    fn are_well(&self) {
        eventually("all is well", || {
            let mut status = Command::new(PROGRAM);
            let output = status.arg("status").arg("-c").arg(&self.file).output();
            output.unwrap().status.success().then_some(())
        });
    }

    fn switch_off(&mut self, machine: IpAddr) {
        for name in self.nodes_of(machine) {
            self.processes.kill(&name);
        }
    }

    /// Returns what `members drain` says of a machine, or why it refuses.
    fn drain(&self, machine: &str) -> String {
        let mut drain = Command::new(PROGRAM);
        drain
            .args(["members", "drain", "-c"])
            .arg(&self.file)
            .arg(machine);
        let Output { stdout, stderr, .. } = drain.output().unwrap();
        String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned()
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for node in &self.cluster.nodes {
            let log = self.logs.join(format!("{}.log", node.name));
            if std::thread::panicking() {
                let log = fs::read_to_string(log).unwrap_or_default();
                eprintln!("--- {}\n{log}", node.name);
            }
        }
    }
}

/// Three machines vote, and two of them keep the data: each of the three may be off.
#[test]
fn what_init_writes_is_a_cluster_that_serves_without_any_one_machine() {
    let directory = Directory::new("init");
    let drawn = [(); 3].map(|()| node::loopback::draw().unwrap());
    let names = drawn.map(|machine| machine.to_string()).join(",");
    let data = directory.0.join("data");
    let arguments = [
        "init",
        "--machines",
        &names,
        "--app",
        "rocksdb",
        "--replicas",
        "2",
        "--data",
        data.to_str().unwrap(),
        "--json",
    ];
    let said: Value = serde_json::from_slice(&directory.run(&arguments).stdout).unwrap();
    assert_eq!(said["redis"].as_array().unwrap().len(), 2, "{said}");
    let made = directory.0.join("wirepaxos-cluster");
    let password = private_password(&made);
    unit_lets_write_to(&made, &data);
    let mut machines = Machines::start(&directory, made.join("cluster.toml"));
    let front_end = |at: usize| Server {
        address: said["redis"][at].as_str().unwrap().parse().unwrap(),
        password: Some(password),
    };
    let write = |at: usize, value: &str| {
        eventually("a value is written", || {
            let answer = call(front_end(at), &["SET", "fruit", value])?;
            (answer == Reply::Simple("OK".into())).then_some(())
        });
    };
    let reads = |at: usize, value: &str| {
        call(front_end(at), &["GET", "fruit"]) == Some(Reply::Bulk(Some(value.into())))
    };
    for (off, machine) in drawn.into_iter().enumerate() {
        write(0, "before");
        machines.switch_off(IpAddr::V4(machine));
        let other = usize::from(off == 0);
        eventually("what was acknowledged is there", || {
            reads(other, "before").then_some(())
        });
        write(other, machine.to_string().as_str());
        machines.switch_on(IpAddr::V4(machine));
        machines.are_well();
        eventually("both replicas have it", || {
            let value = machine.to_string();
            (reads(0, &value) && reads(1, &value)).then_some(())
        });
    }
    is_drained_only_where_the_others_go_on(&mut machines, &drawn.map(IpAddr::V4));

    let said = directory.refused(&["init", "--machines", &names]);
    assert!(
        said.contains("wirepaxos-cluster") && said.contains("name another"),
        "{said}"
    );
}

/// Without the last machine's acceptor the others need each other. The controller needn't have
/// noticed yet that it is gone.
fn is_drained_only_where_the_others_go_on(machines: &mut Machines, addresses: &[IpAddr; 3]) {
    let unknown = machines.drain("10.9.8.7");
    assert!(
        unknown.contains("no node of the cluster is on 10.9.8.7"),
        "{unknown}"
    );
    machines.processes.kill("acceptor-3");
    for machine in &addresses[..2] {
        let said = machines.drain(&machine.to_string());
        let refused = format!("don't stop {machine} yet");
        assert!(said.contains(&refused), "{said}");
        let why = "needs 2 memories that vote, and only 1 elsewhere answer";
        assert!(said.contains(why), "{said}");
    }
    machines.switch_off(addresses[2]);
    machines.switch_on(addresses[2]);
    machines.are_well();
    for machine in addresses {
        let said = machines.drain(&machine.to_string());
        let left = format!("left on {machine}: ");
        assert!(
            said.contains(&left) && !said.contains("don't stop"),
            "{said}"
        );
    }
}

fn unit_lets_write_to(made: &Path, data: &Path) {
    let unit = fs::read_to_string(made.join("wirepaxos@.service")).unwrap();
    assert!(unit.contains("/etc/wirepaxos/cluster.toml"));
    let writable = format!("\nReadWritePaths=-{}\n", data.display());
    assert!(unit.contains(&writable), "{unit}");
}

/// Makes sure that nobody else may read the secrets, and returns the password.
fn private_password(made: &Path) -> &'static str {
    for secret in ["redis.password", "nodes.key"] {
        let mode = fs::metadata(made.join(secret)).unwrap().permissions();
        assert_eq!(mode.mode() & 0o77, 0, "{secret}");
    }
    let password = fs::read_to_string(made.join("redis.password")).unwrap();
    password.trim().to_owned().leak()
}

#[test]
fn machines_that_make_no_cluster_are_refused() {
    let directory = Directory::new("init-refused");
    for (machines, expected) in [
        ("10.0.0.1", "`wirepaxos up`"),
        ("10.0.0.1,10.0.0.2", "name 3, 5 or 7"),
        ("10.0.0.1,10.0.0.2,10.0.0.1", "the same address 10.0.0.1"),
        ("10.0.0.1,10.0.0.2,127.0.0.1", "loopback"),
        ("10.0.0.1,10.0.0.2,0.0.0.0", "no machine's address"),
    ] {
        let said = directory.refused(&["init", "--machines", machines]);
        assert!(said.contains(expected), "{machines}: {said}");
    }
    for replicas in ["1", "4"] {
        let machines = "10.0.0.1,10.0.0.2,10.0.0.3";
        let said = directory.refused(&["init", "--machines", machines, "--replicas", replicas]);
        assert!(said.contains("from 2 to 3 copies"), "{said}");
    }
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
}
