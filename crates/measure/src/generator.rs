// SPDX-License-Identifier: Apache-2.0
//! Frames without end, for tests and measurements: the program `bench` of any object makes each one
//! new, with the next instance and the next sender, and hands it to another program.

#![allow(unsafe_code)]

use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;

use aya::maps::{DevMap, ProgramArray};
use aya::programs::ProgramFd;

use loader::features::takes_redirects;
use loader::frame;
use loader::interface::Interface;
use loader::layout::{BENCH_HEAD_LEN, Bench};
use loader::object::{Object, Result, whole};
use loader::sys::{Mapped, TestRun, atomic64, live_run, test_run};

/// The target of a generator's frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<'a> {
    /// Frames go to a program of the same object.
    Program(&'a str),
    /// Into the stack of the interface that they seem to come in on, where generic programs are.
    Stack,
    /// Out by an interface, as if a neighbour had sent them.
    Port(u32),
}

/// Drives the programs of one object.
#[derive(Debug)]
pub struct Generator {
    bench: ProgramFd,
    packets: Mapped<Bench>,
    /// Frames that are sent off at once, up to 256. A veth link queues 256, and where each leads to
    /// several more, all of them are handled before the next batch only if the kernel isn't busy.
    pub batch: u32,
}

impl Generator {
    /// Creates a generator that sends to `target`; an object has one target at a time.
    pub fn new(object: &mut Object, target: Target<'_>) -> Result<Generator> {
        aim(object, target)?;
        Generator::of(object)
    }

    /// Creates another generator of an object that has a target already.
    pub fn of(object: &mut Object) -> Result<Generator> {
        Ok(Generator {
            bench: object.program("bench")?,
            packets: object.memory("bench_packet")?,
            batch: 64,
        })
    }

    /// Sets what a CPU sends from now on: this frame with the instances from 0 on, `1 << shift`
    /// times each, from senders that count up from `first_sender`. Everything that the target
    /// writes must lie in the frame's first [`BENCH_HEAD_LEN`] bytes.
    pub fn load(&self, cpu: usize, frame: &[u8], first_sender: u16, shift: u32) {
        let len = frame.len().min(BENCH_HEAD_LEN);
        let v6 = frame[12..14] == [0x86, 0xdd];
        let mut packet = Bench {
            limit: u64::MAX,
            shift,
            first_sender: first_sender.into(),
            header_at: frame::head_len(v6) as u32,
            len: len as u32,
            ..Bench::default()
        };
        packet.head[..len].copy_from_slice(&frame[..len]);
        self.packets.set(cpu, packet);
    }

    /// Returns how many a CPU has made.
    pub fn made(&self, cpu: usize) -> u64 {
        self.packets.get(cpu).made
    }

    /// Sets how many packets a CPU may make in all; this may be called while it runs.
    pub fn set_limit(&self, cpu: usize, limit: u64) {
        let packet = self.packets.at(cpu);
        // SAFETY: the entry is inside the mapping that `self` owns.
        unsafe { atomic64(&raw mut (*packet).limit).store(limit, SeqCst) };
    }

    /// Lets a CPU go on from a number. Not while it runs.
    pub fn set_made(&self, cpu: usize, made: u64) {
        let packet = self.packets.get(cpu);
        self.packets.set(cpu, Bench { made, ..packet });
    }

    /// Makes `repeat` frames on this thread's CPU, which go nowhere.
    pub fn run(&self, frame: &[u8], repeat: u32) -> Result<TestRun> {
        let mut out = [0; 2048];
        test_run(self.bench.as_fd(), frame, &mut out, repeat)
            .map_err(|error| format!("BPF_PROG_TEST_RUN: {error}"))
    }

    /// Makes `repeat` frames on this thread's CPU, which seem to come in on `ingress` and really
    /// leave.
    pub fn send(&self, ingress: u32, frame: &[u8], repeat: u32) -> Result<()> {
        live_run(self.bench.as_fd(), ingress, frame, repeat, self.batch).map_err(|error| {
            format!("BPF_PROG_TEST_RUN with live frames: {error}; kernels have them from 5.18 on")
        })
    }
}

/// Returns an error if a multicast can't be fed with generated frames: kernels before 6.3, which
/// don't tell what a driver can do, leave their copies of such a frame empty.
pub fn can_be_copied(ingress: &Interface) -> Result<()> {
    match takes_redirects(ingress) {
        Some(_) => Ok(()),
        None => Err("kernels before 6.3 lose what is in a copy of a frame they made".into()),
    }
}

/// Changes the target of an object's generators.
pub fn aim(object: &mut Object, target: Target<'_>) -> Result<()> {
    let name = match target {
        Target::Program(name) => name,
        Target::Stack => "bench_pass",
        Target::Port(port) => {
            let map = object.ebpf().map_mut("bench_port").ok_or("no bench_port")?;
            let mut map = DevMap::try_from(map).map_err(|e| whole(&e))?;
            map.set(0, port, None, 0).map_err(|e| whole(&e))?;
            "bench_out"
        }
    };
    let program = object.program(name)?;
    let map = object.ebpf().map_mut("bench_target");
    let mut map = ProgramArray::try_from(map.ok_or("no bench_target")?).map_err(|e| whole(&e))?;
    map.set(0, &program, 0).map_err(|e| whole(&e))
}
