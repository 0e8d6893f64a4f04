// SPDX-License-Identifier: Apache-2.0
//! Programs that are stopped on their way while something else happens.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread;

use loader::frame;
use loader::layout::Stop;
use loader::map_place::MapPlace;
use loader::object::{Role, possible_cpus};
use loader::sys::{pin_to_cpu, test_run};
use paxos::{Deployment, Header, Instance, MsgType, NodeId, PartitionId, Program, Round};

use super::Loaded;

/// Places (`programs/xdp/include/stop.h`).
pub const BEFORE_TAKING: u32 = 1;
pub const AFTER_TAKING: u32 = 2;
pub const AT_CONFIGURATION: u32 = 3;
pub const AT_REPORT: u32 = 4;
pub const AMONG_PLACES: u32 = 5;

pub fn load(dir: &Path, role: Role, partitions: u16) -> Loaded {
    let deployment = Deployment {
        cluster: 0xc1,
        group: 1,
        partitions,
        max_value: 64,
        node: 9,
    };
    Loaded::new(
        &dir.join("stopping"),
        role,
        MapPlace::only(deployment, 64),
        1,
    )
}

pub fn header(msgtype: MsgType, swid: NodeId, epoch: u32) -> Header {
    Header {
        cluster: 0xc1,
        group: 1,
        swid,
        rnd: Round(epoch << 12),
        client: 7,
        request: 1,
        ..Header::new(msgtype)
    }
}

/// Returns a request of a client to one partition.
pub fn request(pid: PartitionId) -> Header {
    Header {
        pid,
        ..header(MsgType::Request, 0, 0)
    }
}

pub fn program(epoch: u32, next: &[Instance]) -> Program {
    Program {
        epoch,
        nonce: 1,
        next: next.to_vec(),
        trimmed: vec![0; next.len()],
        window: 1 << 40,
        acceptors: vec![11, 12, 13],
        f: 1,
        replicas: vec![31],
        g: 0,
    }
}

/// Runs the program on a datagram on this CPU. Returns the action and the frame.
pub fn run(loaded: &Loaded, datagram: &[u8]) -> (u32, Vec<u8>) {
    take(&program_of(loaded), datagram)
}

fn program_of(loaded: &Loaded) -> impl AsFd + Send {
    let program = loaded.object.own_program();
    program.expect("it is loaded")
}

fn take(program: &impl AsFd, datagram: &[u8]) -> (u32, Vec<u8>) {
    let mut out = vec![0; 2048];
    let frame = frame::build(datagram, false);
    let run = test_run(program.as_fd(), &frame, &mut out, 1).expect("it runs");
    out.truncate(run.len);
    (run.action, out)
}

/// Runs the program on a datagram on the last CPU. Once it has come to `place`, it stops there
/// while `others` run, unless they wait for it. Returns the action and the frame.
///
/// A stopped program lets nobody else run on its CPU until its test goes on. So all such tests run
/// on the first CPU: two tests that each stopped a program on the other's CPU would wait for ever.
pub fn meanwhile(
    loaded: &Loaded,
    place: u32,
    datagram: &[u8],
    others: impl FnOnce(),
) -> (u32, Vec<u8>) {
    pin_to_cpu(0).expect("the first CPU is there");
    let stops = loaded.object.memory::<Stop>("stops").expect("a map");
    stops.set(0, Stop { place, reached: 0 });
    let program = program_of(loaded);
    thread::scope(|scope| {
        let running = scope.spawn(move || {
            pin_to_cpu(possible_cpus() - 1).expect("the CPU is there");
            take(&program, datagram)
        });
        while stops.get(0).reached == 0 && !running.is_finished() {
            thread::yield_now();
        }
        assert_eq!(stops.get(0).reached, place, "it never came there");
        others();
        stops.set(0, Stop::default());
        running.join().expect("it ends")
    })
}
