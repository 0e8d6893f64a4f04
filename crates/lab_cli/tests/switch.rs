// SPDX-License-Identifier: Apache-2.0
//! Tests of `wirepaxos switch`: a machine with two interfaces is between two hosts, all of them
//! namespaces without a name.

mod testlab;

use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use loader::veth::prepare_for_xdp;
use measure::network::{Namespace, veth};
use serde_json::Value;
use testlab::{PROGRAM, TestLab, all, eventually};

const NAME: &str = "sw";

/// The machine, and a host at each of its ports.
struct Net {
    machine: Namespace,
    hosts: [Namespace; 2],
    directory: PathBuf,
    /// The lab is only used for its directory of objects; no network is built.
    lab: TestLab,
    v6: bool,
}

impl Net {
    fn new(letter: char) -> Option<Net> {
        Net::of(letter, false)
    }

    fn of(letter: char, v6: bool) -> Option<Net> {
        let lab = TestLab::with_programs(letter)?;
        let namespace = || Namespace::new().unwrap();
        let net = Net {
            machine: namespace(),
            hosts: [namespace(), namespace()],
            directory: std::env::temp_dir().join(format!("wirepaxos-switch-{}", lab.name)),
            lab,
            v6,
        };
        std::fs::create_dir_all(&net.directory).unwrap();
        std::fs::write(net.file(), net.cluster()).unwrap();
        for (host, (port, last)) in net.hosts.iter().zip([("port1", 31), ("port2", 32)]) {
            veth((&net.machine, port), (host, "eth0")).unwrap();
            host.inside(|| prepare_for_xdp("eth0")).unwrap();
            net.machine.inside(|| prepare_for_xdp(port)).unwrap();
            let lines = [
                format!("address add {} dev eth0 nodad", net.network(last)),
                "link set lo up".to_owned(),
            ];
            host.ip(&lines).unwrap();
        }
        Some(net)
    }

    fn ip(&self, last: u8) -> IpAddr {
        match self.v6 {
            true => [0xfd, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last].into(),
            false => [10, 9, 0, last].into(),
        }
    }

    fn network(&self, last: u8) -> String {
        format!("{}/{}", self.ip(last), if self.v6 { 64 } else { 24 })
    }

    /// Adds another interface, to whose other end nothing can be redirected.
    fn plain_port(&self) {
        veth((&self.machine, "port3"), (&self.hosts[0], "eth3")).unwrap();
    }

    fn file(&self) -> PathBuf {
        self.directory.join("cluster.toml")
    }

    fn cluster(&self) -> String {
        let node = |name: &str, id: u8, lines: &str, last: u8, port: u16| {
            let role = name.split('-').next().unwrap();
            let [address, control] = [port, port + 100].map(|p| SocketAddr::new(self.ip(last), p));
            format!(
                "[[node]]\nname = {name:?}\nid = {id}\nrole = {role:?}\naddress = \"{address}\"\n\
                 control = \"{control}\"\n{lines}\n"
            )
        };
        let at = format!("plane = \"xdp\"\nswitch = \"{NAME}\"");
        format!(
            "cluster = \"0a0b0c0d\"\ndata = \"data\"\nauth = \"off\"\nbpffs \
             = \"bpf\"\n[[group]]\nid = 0\napplication = \"echo\"\nslots = 64\n{}{}{}{}",
            node("controller", 1, "", 32, 7000),
            node("leader-1", 11, &at, 11, 7000),
            node("acceptor-1", 21, &at, 21, 7000),
            node("replica-1", 31, "", 31, 7000)
        )
    }

    fn wirepaxos(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command
            .args(arguments)
            .env("WIREPAXOS_BPF_DIR", &self.lab.bpf);
        command.args(["-c", self.file().to_str().unwrap()]);
        command
    }

    fn run(&self, inside: &Namespace, arguments: &[&str]) -> Output {
        // A child process stays in the namespace of the thread that started it.
        inside.inside(|| self.wirepaxos(arguments).output().unwrap())
    }

    fn switch(&self, arguments: &[&str]) -> Output {
        let (verb, rest) = arguments.split_first().unwrap();
        let all = [&["switch", verb, "--name", NAME], rest].concat();
        self.run(&self.machine, &all)
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.switch(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", all(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Returns the arguments of `up` with both ports, and an address of the switch's own.
    fn up(&self) -> Vec<String> {
        let words = ["up", "--port", "port1", "--port", "port2", "--address"];
        let mut words: Vec<_> = words.map(str::to_owned).into();
        words.push(self.network(100));
        words
    }

    #[track_caller]
    fn refused(&self, arguments: &[&str], why: &str) {
        let before = self.links();
        let output = self.switch(arguments);
        assert!(!output.status.success(), "{}", all(&output));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(why), "{why} in {said}");
        assert_eq!(self.links(), before, "{why}");
    }

    /// Returns the interfaces' names, masters, and programs.
    fn links(&self) -> Vec<[Value; 3]> {
        let shown = self.machine.inside(|| {
            Command::new("ip")
                .args(["-json", "link", "show"])
                .output()
                .unwrap()
        });
        let shown: Vec<Value> = serde_json::from_slice(&shown.stdout).unwrap();
        let of = |link: Value| {
            let program = &link["xdp"]["prog"]["name"];
            [&link["ifname"], &link["master"], program].map(Value::clone)
        };
        shown.into_iter().map(of).collect()
    }

    fn start(&self, inside: &Namespace, node: &str) -> Started {
        let log = std::fs::File::create(self.directory.join(format!("{node}.log"))).unwrap();
        inside.inside(|| {
            let mut command = self.wirepaxos(&["node", "--name", node]);
            command.stdout(Stdio::null()).stderr(log);
            Started(command.spawn().unwrap())
        })
    }
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        let unmount = |path: &Path| Command::new("umount").arg("-l").arg(path).output();
        let _ = unmount(&self.directory.join("bpf"));
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// The arguments that [`Net::up`] gives for IPv4.
const UP: [&str; 7] = [
    "up",
    "--port",
    "port1",
    "--port",
    "port2",
    "--address",
    "10.9.0.100/24",
];

#[test]
fn a_machine_becomes_a_switch_that_calls_roles_and_a_machine_again() {
    let Some(net) = Net::new('u') else { return };
    becomes_a_switch_and_a_machine_again(&net);
}

#[test]
fn the_same_with_ipv6() {
    let Some(net) = Net::of('x', true) else {
        return;
    };
    becomes_a_switch_and_a_machine_again(&net);
}

fn becomes_a_switch_and_a_machine_again(net: &Net) {
    let before = net.links();
    let up = net.up();
    let up: Vec<_> = up.iter().map(String::as_str).collect();
    let made = net.json(&up);
    assert_eq!(made["ports"].as_array().unwrap().len(), 2, "{made}");
    assert!(
        made["ports"]
            .as_array()
            .unwrap()
            .iter()
            .all(|port| port["forwards"] == true)
    );
    assert_eq!(made["roles"].as_array().unwrap().len(), 2, "{made}");
    let hosts = made["hosts"].as_array().unwrap();
    let ports: Vec<_> = hosts.iter().map(|host| &host["port"]).collect();
    assert_eq!(ports, ["port1", "port2"], "{made}");

    let [first, second] = &net.hosts;
    let leader = net.start(&net.machine, "leader-1");
    let _acceptor = net.start(&net.machine, "acceptor-1");
    let _replica = net.start(first, "replica-1");
    let _controller = net.start(second, "controller");
    let serves = || {
        let status = net.run(second, &["status", "--json"]);
        status.status.success().then(|| all(&status))
    };
    let status = eventually("a cluster that serves", serves);
    assert!(status.contains(NAME), "{status}");
    let calls = net.json(&["status"]);
    let programs = calls["roles"].as_array().unwrap();
    assert!(
        programs.iter().all(|role| role["program"].is_string()),
        "{calls}"
    );

    // A second `up` works in place: the roles are still called, and by the same numbers.
    let again = net.json(&up);
    assert_eq!(again["roles"], calls["roles"]);
    eventually("a cluster that serves still", serves);
    net.refused(&["down"], "stop its node first");
    net.plain_port();
    let more = [&up[..], &["--port", "port3"]].concat();
    net.refused(&more, "takes no frames that others redirect");
    eventually("a cluster that serves as before", serves);

    // Files and programs that a node left are removed by the node's own stop.
    drop(leader);
    net.refused(&["down"], "stop its node first");
    assert!(net.switch(&["down", "--force"]).status.success());
    assert!(net.links().starts_with(&before));
    let nothing = net.json(&["down"]);
    assert_eq!(nothing["removed"], false);
}

/// The command is killed at any moment. The next `up` completes what it left, and `down` removes
/// it.
#[test]
fn an_up_that_is_killed_is_made_whole_or_removed() {
    const MOMENTS: u32 = 12;
    let Some(net) = Net::new('i') else { return };
    let before = net.links();
    let pins = net.directory.join("bpf").join(NAME);
    let begun = Instant::now();
    let whole = net.json(&UP);
    let takes = begun.elapsed();
    assert_eq!(net.json(&["down"])["removed"], true);
    let mut left = 0;
    for moment in 0..MOMENTS {
        let words = [&["switch", "up", "--name", NAME], &UP[1..]].concat();
        let mut command = net.wirepaxos(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = net.machine.inside(|| command.spawn().unwrap());
        std::thread::sleep(takes * moment / MOMENTS);
        let _ = child.kill();
        let ended = child.wait().unwrap();
        let is_left = net.links() != before || pins.exists();
        left += u32::from(is_left && ended.signal() == Some(9));
        if moment % 2 == 0 {
            let made = net.json(&UP);
            for key in ["ports", "addresses", "hosts", "roles"] {
                assert_eq!(made[key], whole[key], "{moment}");
            }
            assert_eq!(net.json(&["status"]), made);
        }
        assert!(net.switch(&["down"]).status.success());
        // An `ip` that was started before its parent's death may still have changed something.
        assert!(net.switch(&["down"]).status.success());
        assert_eq!(net.links(), before, "{moment}");
        assert!(!pins.exists(), "{moment}");
    }
    assert!(left > 0, "it was always too early or too late");
}

#[test]
fn what_cannot_be_a_switch_is_refused_by_name_and_changes_nothing() {
    let Some(net) = Net::new('v') else { return };
    let with = |port| ["up", "--address", "10.9.0.100/24", "--port", port];
    net.refused(
        &with("eth9"),
        "no interface eth9 on this machine; it has lo",
    );
    net.refused(&with("lo"), "lo");
    net.refused(
        &["up", "--address", "10.8.0.100/24", "--port", "port1"],
        "--address 10.9.0.254/24",
    );
    let mut twice = UP;
    twice[4] = "port1";
    net.refused(&twice, "twice");
    let ip = |line: &str| net.machine.ip(&[line.to_owned()]).unwrap();
    ip("address add 10.9.0.5/24 dev port1");
    net.refused(&with("port1"), "ip address del 10.9.0.5/24 dev port1");
    ip("address del 10.9.0.5/24 dev port1");
    ip("link add br7 type bridge");
    ip("link set port1 master br7");
    net.refused(&with("port1"), "a port of br7");
    ip("link set port1 nomaster");
    ip("link add sw type bridge");
    net.refused(&with("port1"), "isn't a switch of WirePaxos");
    ip("link delete sw");

    let fault = net.lab.bpf.join("fault.bpf.o");
    ip(&format!(
        "link set port1 xdpdrv object {} section xdp",
        fault.display()
    ));
    net.refused(&with("port1"), "xdp off");
    ip("link set port1 xdpdrv off");

    // This interface's driver has no XDP.
    ip("link add br8 address 02:00:00:00:00:08 type bridge");
    net.refused(
        &with("br8"),
        "driver bridge) can't be a port: its driver has no XDP",
    );
    // A driver that takes no redirected frames is noticed only when the program is there.
    net.plain_port();
    net.refused(&with("port3"), "takes no frames that others redirect");
    net.refused(&["status"], "there is no switch sw");
    assert!(net.switch(&["down"]).status.success());
}
