// SPDX-License-Identifier: Apache-2.0
//! The processes in a lab's namespaces: finds, starts and ends them.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::namespace::{self, Identity};
use crate::{Error, Lab, Result};

const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// A process in one of the lab's namespaces.
#[derive(Clone, Debug, Serialize)]
pub struct Process {
    /// The process number.
    pub pid: u32,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The host on which it runs.
    pub host: String,
}

impl Process {
    /// Returns the node that the process runs, if it runs one.
    pub fn node(&self) -> Option<&str> {
        let mut words = self.command.iter().skip(1).map(String::as_str);
        words.next().filter(|word| *word == "node")?;
        words.find(|word| *word == "--name")?;
        words.next()
    }
}

impl Process {
    /// Returns whether the process is a P4 switch in software.
    pub(crate) fn is_p4_switch(&self) -> bool {
        let program = self.command.first().map(Path::new);
        let name = program.and_then(Path::file_name);
        name.is_some_and(|name| name == "simple_switch")
    }
}

impl Lab {
    /// Returns all processes in the lab's namespaces except for the caller.
    pub fn processes(&self) -> Vec<Process> {
        let hosts: Vec<(Identity, String)> = namespace::list(&self.prefix())
            .into_iter()
            .filter_map(|name| {
                let host = name.strip_prefix(&self.prefix())?.to_string();
                Some((namespace::identity(&namespace::path(&name))?, host))
            })
            .collect();
        let own = std::process::id();
        let numbers = fs::read_dir("/proc").into_iter().flatten();
        let mut found: Vec<Process> = numbers
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|&pid| pid != own)
            .filter_map(|pid| {
                let there = network_of(pid)?;
                let (_, host) = hosts.iter().find(|(identity, _)| *identity == there)?;
                Some(Process {
                    pid,
                    command: command_of(pid),
                    host: host.clone(),
                })
            })
            .collect();
        found.sort_by_key(|p| p.pid);
        found
    }

    /// Sends SIGKILL to all processes in the lab's namespaces, including those that they start
    /// meanwhile.
    pub(crate) fn kill_all(&self) -> Result<usize> {
        self.kill_while_there(|_| true)
    }

    /// Sends SIGKILL to the processes that `which` selects, until there are none.
    pub(crate) fn kill_while_there(&self, which: impl Fn(&Process) -> bool) -> Result<usize> {
        let deadline = Instant::now() + KILL_TIMEOUT;
        let mut killed = std::collections::BTreeSet::new();
        loop {
            let mut left = self.processes();
            left.retain(&which);
            if left.is_empty() {
                return Ok(killed.len());
            }
            if Instant::now() > deadline {
                let pids: Vec<String> = left.iter().map(|p| p.pid.to_string()).collect();
                return Err(Error::new(format!(
                    "processes of lab {} don't end: {}",
                    self.name,
                    pids.join(" ")
                )));
            }
            for process in left {
                // SAFETY: it only takes numbers.
                unsafe { libc::kill(process.pid as libc::pid_t, libc::SIGKILL) };
                killed.insert(process.pid);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a command in a host's namespace in place of this process. It returns only an error.
    pub fn exec(&self, host: &str, command: &[String]) -> Error {
        if let Err(e) = self.enter(host) {
            return e;
        }
        let Some((program, arguments)) = command.split_first() else {
            return Error::new("which command?");
        };
        Error::at(program)(Command::new(program).args(arguments).exec())
    }

    /// Moves the calling thread, and those that it starts from now on, to a host.
    pub fn enter(&self, host: &str) -> Result<()> {
        let machine = self.machine(&self.state_when_up()?.shape, host)?;
        namespace::enter(&self.namespace(&machine)).map_err(Error::at(host))
    }

    /// Makes a command run on a host.
    pub fn place(&self, command: &mut Command, host: &str) -> Result<()> {
        let state = self.state()?;
        let known = state.and_then(|state| state.shape.machine_of(host));
        let machine = known.unwrap_or(host.to_string());
        let namespace =
            File::open(namespace::path(&self.namespace(&machine))).map_err(Error::at(host))?;
        // SAFETY: setns is async-signal-safe and touches nothing of the parent's memory.
        unsafe {
            command.pre_exec(move || namespace::enter_file(&namespace));
        }
        Ok(())
    }

    /// Starts a program in a host's namespace so that it outlives this process. Its output goes to
    /// a log file in the lab's directory.
    pub(crate) fn spawn(&self, host: &str, log: &str, mut command: Command) -> Result<u32> {
        let log = self.directory().join(format!("{log}.log"));
        let open = || -> io::Result<(File, File)> {
            let file = File::options().create(true).append(true).open(&log)?;
            Ok((file.try_clone()?, file))
        };
        let (output, errors) = open().map_err(Error::at(log.display()))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        hear_hang_ups(&mut command);
        self.place(&mut command, host)?;
        keep_descriptors_back(&mut command);
        // SAFETY: setsid is async-signal-safe and touches nothing of the parent's memory.
        unsafe {
            command.pre_exec(|| {
                // Ctrl-C at the terminal must not stop the program.
                libc::setsid();
                Ok(())
            });
        }
        let program = command.get_program().to_owned();
        let child = command
            .spawn()
            .map_err(Error::at(Path::new(&program).display()))?;
        Ok(child.id())
    }

    /// Starts these nodes, or all that don't run, and returns those that it started. P4 switches of
    /// these nodes that don't run are started first.
    pub fn start(&self, program: &Path, names: &[String]) -> Result<Vec<(String, u32)>> {
        let state = self.state_when_up()?;
        let hosts = state.shape.hosts();
        for name in names {
            self.machine(&state.shape, name)?;
        }
        self.start_switches(names)?;
        let processes = self.processes();
        let running: Vec<&str> = processes.iter().filter_map(Process::node).collect();
        let mut started = Vec::new();
        for host in hosts.iter().filter(|h| h.role.is_node()) {
            let wanted = names.is_empty() || names.contains(&host.name);
            if !wanted || running.contains(&host.name.as_str()) {
                continue;
            }
            let mut command = Command::new(program);
            command.arg("node").arg("-c").arg(self.cluster_file());
            command.args(["--name", &host.name]);
            started.push((
                host.name.clone(),
                self.spawn(&host.name, &host.name, command)?,
            ));
        }
        Ok(started)
    }

    /// Returns the machine that this host is, or is in.
    fn machine(&self, shape: &crate::Shape, name: &str) -> Result<String> {
        if let Some(machine) = shape.machine_of(name) {
            return Ok(machine);
        }
        let hosts = shape.hosts();
        let names: Vec<&str> = hosts.iter().map(|h| h.name.as_str()).collect();
        Err(Error::new(format!(
            "lab {} has no host {name}; it has {}",
            self.name,
            names.join(", ")
        )))
    }
}

/// Keeps the caller's descriptors from the program, except for standard input and output. Otherwise
/// a lock, or a pipe that somebody reads to its end, would stay open as long as the program runs.
pub fn keep_descriptors_back(command: &mut Command) {
    // SAFETY: the system call only takes numbers, and is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            let flags = libc::CLOSE_RANGE_CLOEXEC;
            match libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, flags) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }
}

/// Makes the program receive SIGHUP even if this process ignores it (`nohup`).
pub fn hear_hang_ups(command: &mut Command) {
    // SAFETY: it only takes numbers, and is async-signal-safe.
    unsafe {
        command.pre_exec(|| match libc::signal(libc::SIGHUP, libc::SIG_DFL) {
            libc::SIG_ERR => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// Waits for a lock on a file. The lock ends with the process at the latest.
pub(crate) fn lock_exclusively(file: RawFd) -> io::Result<()> {
    // SAFETY: it only takes numbers.
    match unsafe { libc::flock(file, libc::LOCK_EX) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn network_of(pid: u32) -> Option<Identity> {
    namespace::identity(Path::new(&format!("/proc/{pid}/ns/net")))
}

fn command_of(pid: u32) -> Vec<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words = line.split(|&b| b == 0).filter(|word| !word.is_empty());
    words
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_started_hears_sighup_also_under_nohup() {
        // SAFETY: it only takes numbers. No test of this program waits for SIGHUP.
        unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
        let ignored = |prepare: fn(&mut Command)| {
            let mut command = Command::new("grep");
            command.args(["SigIgn", "/proc/self/status"]);
            prepare(&mut command);
            let output = command.output().unwrap().stdout;
            let text = String::from_utf8(output).unwrap();
            let mask = text.split_whitespace().last().unwrap();
            u64::from_str_radix(mask, 16).unwrap() & 1 << (libc::SIGHUP - 1) != 0
        };
        assert!(ignored(|_| ()), "it is inherited");
        assert!(!ignored(hear_hang_ups));
    }
}
