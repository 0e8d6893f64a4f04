// SPDX-License-Identifier: Apache-2.0
//! Stations at both ends of vhost-user, the link of virtual machines and of switches in software:
//! one as the switch, one, in a process of its own, as the machine.

mod common;

use std::env;
use std::net::SocketAddr;
use std::process::{Child, Command};
use std::slice;
use std::time::{Duration, Instant};

use common::{address, library, library_or_skip, start};
use dpdk::{BURST, Eal, ROOM, Station};
use loader::frame::PORT;

/// An environment variable that is set in the machine's process.
const MACHINE: &str = "WIREPAXOS_VHOST_MACHINE";
const MACHINE_PORT: &str = "net_virtio_user0";
/// Ends a test that fails.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the switch's and the machine's address.
fn own(last: u8) -> SocketAddr {
    SocketAddr::new(address(last, false), PORT)
}

fn station(eal: Eal, port: &str, last: u8) -> Station {
    let port = eal.open(port, ROOM).expect("it opens");
    Station::new(port, own(last), [1, 3].map(|last| address(last, false)))
}

/// The machine: it sends back what comes, until it is killed.
#[test]
fn machine() {
    let Ok(port) = env::var(MACHINE) else { return };
    let eal = start(&library().expect("the switch has it"), vec![port]);
    let mut machine = station(eal, MACHINE_PORT, 3);
    let begun = Instant::now();
    while begun.elapsed() < LIMIT {
        machine.receive();
        let (arrivals, mut outlet) = machine.split();
        let all: Vec<_> = arrivals.collect();
        outlet.send(
            all.iter()
                .map(|(from, datagram)| (slice::from_ref(from), *datagram)),
        );
        std::thread::yield_now();
    }
}

struct Machine(Child);

impl Machine {
    fn start(port: &str) -> Machine {
        let mut command = Command::new(env::current_exe().expect("it runs"));
        command.args(["--exact", "machine"]).env(MACHINE, port);
        Machine(command.spawn().expect("it starts"))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Lets the switch look at its port until something holds.
fn until(what: &str, switch: &mut Station, mut holds: impl FnMut(&mut Station) -> bool) {
    let begun = Instant::now();
    loop {
        switch.receive();
        if holds(switch) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_switch_and_a_machine_meet_by_vhost_user() {
    if env::var(MACHINE).is_ok() {
        return;
    }
    let Some(library) = library_or_skip() else {
        return;
    };
    let socket = |number: u32| {
        let name = format!("wirepaxos-vhost-{}-{number}", std::process::id());
        env::temp_dir().join(name).display().to_string()
    };
    let [first, second] = [socket(0), socket(1)];
    // Either end may make the socket.
    let ports = vec![
        format!("--vdev=net_vhost0,iface={first}"),
        format!("--vdev=net_vhost1,iface={second},client=1"),
    ];
    let machines = [
        format!("--vdev={MACHINE_PORT},path={first}"),
        format!("--vdev={MACHINE_PORT},path={second},server=1"),
    ];
    let eal = start(&library, ports);
    for (port, machine) in ["net_vhost0", "net_vhost1"].into_iter().zip(machines) {
        let mut switch = station(eal, port, 1);
        // The machine dies, and another one comes.
        for life in 0_u8..2 {
            // A machine that was killed leaves its socket, and the next one can't make it.
            if machine.ends_with("server=1") {
                let _ = std::fs::remove_file(&second);
            }
            let running = Machine::start(&machine);
            until("both ends are there", &mut switch, |switch| {
                switch.view().is_up() && switch.view().unreachable().is_empty()
            });
            // The machine's answers are lost until it knows where the switch is.
            until("an answer comes", &mut switch, |switch| {
                send(switch, &[&[0xff]]);
                switch.arrivals().count() > 0
            });
            for round in 0_u8..100 {
                let numbers: Vec<_> = (0..BURST as u8).map(|n| [life, round, n]).collect();
                let all: Vec<_> = numbers.iter().map(|n| &n[..]).collect();
                send(&mut switch, &all);
                let mut came = Vec::new();
                until("answers come", &mut switch, |switch| {
                    let all = switch.arrivals().map(|(_, datagram)| datagram.to_vec());
                    came.extend(all.filter(|datagram| datagram.len() > 1));
                    came.len() == BURST
                });
                assert_eq!(came, numbers);
            }
            drop(running);
            until("its end is noticed", &mut switch, |switch| {
                !switch.view().is_up()
            });
        }
    }
    let _ = std::fs::remove_file(second);
}

fn send(switch: &mut Station, datagrams: &[&[u8]]) {
    let to = own(3);
    let all = datagrams
        .iter()
        .map(|datagram| (slice::from_ref(&to), *datagram));
    assert_eq!(switch.outlet().send(all), 0);
}
