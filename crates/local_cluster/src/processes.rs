// SPDX-License-Identifier: Apache-2.0
//! Child processes that never outlive their parent.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::LocalCluster;
use crate::at_port;
use crate::error::Error;

/// The process that several nodes share.
pub const TOGETHER: &str = "together";

/// The nodes of a cluster as child processes. Dropping it kills what is left.
pub struct Processes {
    program: PathBuf,
    children: Vec<(String, Child)>,
}

impl Processes {
    /// Creates an empty set of processes. Nodes run `program`, a `wirepaxos`.
    pub fn new(program: impl Into<PathBuf>) -> Processes {
        Processes {
            program: program.into(),
            children: Vec::new(),
        }
    }

    /// Starts `wirepaxos node` for `name` where it belongs; its output goes to a log file in the
    /// cluster's directory.
    pub fn start_node(&mut self, cluster: &LocalCluster, name: &str) -> Result<(), Error> {
        let mut command = Command::new(&self.program);
        command
            .arg("node")
            .arg("-c")
            .arg(&cluster.file)
            .args(["--name", name]);
        cluster.place(&mut command, name)?;
        Ok(self.start(command, cluster.directory(), name)?)
    }

    /// Starts all nodes of the cluster. Those that share a process have the name [`TOGETHER`].
    pub fn start_nodes(&mut self, cluster: &LocalCluster) -> Result<(), Error> {
        let is_alone = |name: &&String| !cluster.together.contains(name);
        for name in cluster.nodes.iter().filter(is_alone) {
            self.start_node(cluster, name)?;
        }
        if cluster.together.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(&self.program);
        command.arg("node").arg("-c").arg(&cluster.file);
        command.args(cluster.together.iter().flat_map(|name| ["--name", name]));
        cluster.place(&mut command, at_port::HOST)?;
        Ok(self.start(command, cluster.directory(), TOGETHER)?)
    }

    /// Starts `command` as `name`; its output goes to a log file in `directory`.
    pub fn start(&mut self, mut command: Command, directory: &Path, name: &str) -> io::Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(directory.join(format!("{name}.log")))?;
        command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        die_with_parent(&mut command);
        lab::process::hear_hang_ups(&mut command);
        self.children.push((name.to_string(), command.spawn()?));
        Ok(())
    }

    /// Returns the process id of a running node.
    pub fn pid(&self, name: &str) -> Option<u32> {
        self.child(name).map(|c| c.id())
    }

    /// Names and process ids of all.
    pub fn pids(&self) -> Vec<(String, u32)> {
        self.children
            .iter()
            .map(|(name, child)| (name.clone(), child.id()))
            .collect()
    }

    /// Kills a node at once by SIGKILL.
    pub fn kill(&mut self, name: &str) {
        if let Some(at) = self.children.iter().position(|(n, _)| n == name) {
            let (_, mut child) = self.children.remove(at);
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Names of children that ended by themselves, which none should.
    pub fn ended(&mut self) -> Vec<String> {
        self.children
            .iter_mut()
            .filter_map(|(name, child)| match child.try_wait() {
                Ok(Some(_)) => Some(name.clone()),
                _ => None,
            })
            .collect()
    }

    /// Returns the children that ended by themselves since the last call, and how.
    pub fn reap(&mut self) -> Vec<(String, ExitStatus)> {
        let mut ended = Vec::new();
        self.children
            .retain_mut(|(name, child)| match child.try_wait() {
                Ok(Some(status)) => {
                    ended.push((name.clone(), status));
                    false
                }
                _ => true,
            });
        ended
    }

    /// Sends a signal to a child that runs.
    #[allow(unsafe_code)]
    pub fn signal(&self, name: &str, signal: libc::c_int) {
        if let Some(pid) = self.pid(name) {
            // SAFETY: it only takes numbers; the child hasn't been waited for, so it is still
            // itself.
            unsafe { libc::kill(pid as libc::pid_t, signal) };
        }
    }

    /// Returns whether a signal would end this child before it has any say in it: a new process
    /// lets the kernel do so until it has come to its handlers.
    pub fn is_at_mercy_of(&self, name: &str, signal: libc::c_int) -> bool {
        let handled = |pid: u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
            let masks = ["SigCgt:", "SigIgn:"].map(|mask| signals(&status, mask));
            Some(masks.iter().any(|mask| mask >> (signal - 1) & 1 == 1))
        };
        // A process that has ended has no number, so the answer is false.
        self.pid(name).and_then(handled) == Some(false)
    }

    /// Waits until all have ended by themselves; says whether they have.
    pub fn wait_all(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        while Instant::now() < deadline {
            self.children
                .retain_mut(|(_, child)| !matches!(child.try_wait(), Ok(Some(_))));
            if self.children.is_empty() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }

    fn child(&self, name: &str) -> Option<&Child> {
        self.children
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, child)| child)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
        }
        for (_, child) in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// Returns CPU seconds that this process has used so far, threads that have ended included.
#[allow(unsafe_code)]
pub fn own_cpu_seconds() -> f64 {
    // SAFETY: all zero is a usage, and the call writes one.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Returns CPU seconds that the threads of a process have used so far, from the scheduler's
/// statistics.
pub fn cpu_seconds(pid: u32) -> Option<f64> {
    let mut nanoseconds = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        let text = std::fs::read_to_string(path).ok()?;
        nanoseconds += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(nanoseconds as f64 / 1e9)
}

/// Returns the CPU seconds of the threads of a store's library. RocksDB names its threads; those of
/// LevelDB have the name of our thread that started them.
pub fn library_cpu_seconds(pid: u32) -> Option<f64> {
    let mut tasks = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = task.ok()?.path();
        let id: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(path.join("comm")).ok()?;
        let used = std::fs::read_to_string(path.join("schedstat")).ok()?;
        let used: u64 = used.split_whitespace().next()?.parse().ok()?;
        tasks.push((id, name, used));
    }
    tasks.sort();
    let mut ours = std::collections::BTreeSet::new();
    let of_library = |(_, name, used): (u32, String, u64)| {
        let theirs = name.starts_with("rocksdb") || !ours.insert(name);
        theirs.then_some(used)
    };
    let nanoseconds: u64 = tasks.into_iter().filter_map(of_library).sum();
    Some(nanoseconds as f64 / 1e9)
}

/// Returns the signals that a line of a process's status names, a bit each.
fn signals(status: &str, line: &str) -> u64 {
    let found = status.lines().find_map(|l| l.strip_prefix(line));
    let mask = found.map(|mask| u64::from_str_radix(mask.trim(), 16));
    mask.and_then(Result::ok).unwrap_or(0)
}

/// Returns the resident memory of a process in MiB; without what it maps from files, as LevelDB
/// does with its tables, since that is the kernel's cache.
pub fn memory_mib(pid: u32) -> Option<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"))?;
    let kib: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib / 1024.0)
}

/// Makes the kernel kill the child when this process ends, however it ends.
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    // SAFETY: the call is async-signal-safe and touches nothing of the parent's memory.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_a_handler_is_at_the_mercy_of_a_signal() {
        let directory = std::env::temp_dir();
        let mut processes = Processes::new("sh");
        let mut start = |name: &str, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            processes.start(command, &directory, name).unwrap();
        };
        start("bare", "while :; do sleep 1; done");
        start(
            "handles",
            "trap : TERM; trap '' HUP; while :; do sleep 1; done",
        );
        let deadline = Instant::now() + Duration::from_secs(10);
        for signal in [libc::SIGTERM, libc::SIGHUP] {
            while processes.is_at_mercy_of("handles", signal) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(!processes.is_at_mercy_of("handles", signal));
            assert!(processes.is_at_mercy_of("bare", signal));
        }
        processes.kill("bare");
        assert!(!processes.is_at_mercy_of("bare", libc::SIGTERM));
        for name in ["bare", "handles"] {
            let _ = std::fs::remove_file(directory.join(format!("{name}.log")));
        }
    }
}
