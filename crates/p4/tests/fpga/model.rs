// SPDX-License-Identifier: Apache-2.0
//! A simulated role of `programs/fpga/`, as a child process: frames in, frames out, cycles counted.
//! `programs/fpga/sim/bridge.cpp` is the other end.

use std::fs;
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use p4::Order;
use p4::role::Port;

/// Set by `./dev test fpga`: a model takes a while to be compiled, so other runs leave it.
const ASKED_FOR: &str = "WIREPAXOS_FPGA";
/// The sizes of the models.
pub const SLOTS: u64 = 64;
pub const PARTITIONS: u16 = 8;
pub const VALUE_BYTES: u16 = 64;

/// By which stream a frame comes or goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    Network,
    Process,
}

/// What a run was like, in cycles from its start.
#[derive(Clone, Copy, Debug)]
pub struct Cycles {
    /// Cycles in which the role didn't take the beat that a sender had for it.
    pub stalls: u64,
    pub first_in: u64,
    pub first_out: u64,
    pub last_out: u64,
}

/// A running model.
pub struct Model {
    child: Child,
    to: BufWriter<ChildStdin>,
    from: BufReader<ChildStdout>,
}

/// Returns whether models can be made here, or prints why the suite is skipped.
pub fn can_run() -> bool {
    let verilator = Command::new("verilator").arg("--version").output();
    let why = match (std::env::var_os(ASKED_FOR), verilator) {
        (None, _) => "compiling the models takes minutes; ./dev test fpga does",
        (_, Err(_)) => "verilator isn't installed",
        (Some(_), Ok(_)) => return true,
    };
    println!("SKIPPED: FPGA: {why}");
    false
}

/// Returns the directory of the roles.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../programs/fpga")
}

/// Compiles the role of that name, unless it was compiled from the same sources before. Returns
/// the program.
pub fn compile(role: &str) -> PathBuf {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("fpga")
        .join(role);
    compile_from(&sources(), role, &out)
}

/// Compiles a role from copies of the sources in another directory.
pub fn compile_from(sources: &Path, role: &str, out: &Path) -> PathBuf {
    // Two tests may want the same model, and the machine is small.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock();
    let (stamp, program) = (out.join("sources"), out.join("role"));
    let text = text_of(sources);
    if program.exists() && fs::read_to_string(&stamp).is_ok_and(|built| built == text) {
        return program;
    }
    let _ = fs::remove_dir_all(out);
    let built = Command::new(sources.join("sim/build"))
        .arg(role)
        .arg(out)
        .args(sizes(role))
        .output()
        .expect("programs/fpga/sim/build runs");
    let said = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{role} doesn't compile:\n{said}");
    fs::write(stamp, text).expect("cargo's directory for tests can be written");
    program
}

fn sizes(role: &str) -> Vec<String> {
    let mut sizes = vec![
        format!("PARTITIONS={PARTITIONS}"),
        format!("VALUE_BYTES={VALUE_BYTES}"),
    ];
    if matches!(role, "acceptor" | "learner") {
        sizes.push(format!("SLOTS={SLOTS}"));
    }
    sizes
}

/// Returns all sources, one after the other.
fn text_of(sources: &Path) -> String {
    let mut files = Vec::new();
    for dir in ["", "include", "sim"] {
        let entries = fs::read_dir(sources.join(dir)).expect("a directory of the tree");
        files.extend(entries.map(|entry| entry.expect("an entry").path()));
    }
    files.retain(|path| path.is_file());
    files.sort();
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a file of the tree");
    files.iter().map(read).collect()
}

impl Model {
    /// Starts a compiled model.
    pub fn start(program: &Path) -> Model {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the model starts");
        let to = BufWriter::new(child.stdin.take().expect("a pipe"));
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Model { child, to, from }
    }

    /// Empties the role's memory.
    pub fn reset(&mut self) {
        self.write(b"Z");
        // Receivers are ready again, and the memory is cleared before the first packet.
        self.press(0, 0, 1);
    }

    /// Lets a frame wait to be sent in.
    pub fn send(&mut self, stream: Stream, frame: &[u8]) {
        self.write(match stream {
            Stream::Network => b"N",
            Stream::Process => b"C",
        });
        self.write(&(frame.len() as u32).to_le_bytes());
        self.write(frame);
    }

    /// From now on senders pause, and receivers aren't ready, in so many of 100 cycles.
    pub fn press(&mut self, gaps: u32, busy: u32, seed: u32) {
        self.write(b"B");
        for number in [gaps, busy, seed] {
            self.write(&number.to_le_bytes());
        }
    }

    /// In the next run receivers aren't ready in these cycles.
    pub fn block(&mut self, first: u32, count: u32) {
        self.write(b"W");
        for number in [first, count] {
            self.write(&number.to_le_bytes());
        }
    }

    /// Sends what waits, until nothing is on its way; returns what came out.
    pub fn run(&mut self) -> (Vec<(Stream, Vec<u8>)>, Cycles) {
        self.write(b"R");
        self.to.flush().expect("the model lives");
        let mut frames = Vec::new();
        loop {
            let [kind] = self.read();
            let stream = match kind {
                b'n' => Stream::Network,
                b'c' => Stream::Process,
                _ => break,
            };
            let mut frame = vec![0; u32::from_le_bytes(self.read()) as usize];
            self.from.read_exact(&mut frame).expect("a frame");
            frames.push((stream, frame));
        }
        let mut number = || u64::from_le_bytes(self.read());
        let [_, stalls, first_in, first_out, last_out] = [(); 5].map(|()| number());
        let cycles = Cycles {
            stalls,
            first_in,
            first_out,
            last_out,
        };
        (frames, cycles)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.to.write_all(bytes).expect("the model lives");
    }

    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        let read = self.from.read_exact(&mut bytes);
        read.expect("the model lives; it says on its standard error why it doesn't");
        bytes
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Port for Model {
    fn ask(&mut self, order: &Order) -> Result<(Order, Vec<u8>), String> {
        self.send(Stream::Process, &order.emit());
        let (frames, _) = self.run();
        match &frames[..] {
            [(Stream::Process, frame)] => match Order::parse_answer(frame) {
                Some((answer, behind)) if answer.answers(order) => Ok((answer, behind.to_vec())),
                _ => Err(format!("{order:?} leads to {frame:02x?}")),
            },
            _ => Err(format!("{order:?} leads to {} frames", frames.len())),
        }
    }
}
