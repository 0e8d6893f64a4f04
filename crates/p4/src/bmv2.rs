// SPDX-License-Identifier: Apache-2.0
//! BMv2 and its compiler: found on this machine, never built here.

use std::env;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;

/// The port behind which a node's process is (`CPU_PORT` in
/// `programs/p4/v1model/include/headers.p4`).
pub const CPU_PORT: u16 = 255;

const INSTALL: &str = "install P4 developers' packages or image (docs/testing.md names them)";
/// Older ones may compile and run the programs; nobody has tried.
const OLDEST_COMPILER: [u32; 3] = [1, 2, 3];
const OLDEST_SWITCH: [u32; 3] = [1, 15, 0];
/// The message of `simple_switch_CLI` if there is no switch.
const UNREACHABLE: &str = "Could not connect";
/// A switch that takes longer to answer doesn't run.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// The programs that compile for BMv2, are it, and fill its tables.
#[derive(Clone, Debug)]
pub struct Tools {
    /// `p4c-bm2-ss`, which `p4c` calls for this target.
    compiler: PathBuf,
    switch: PathBuf,
    /// `simple_switch_CLI`.
    tables: PathBuf,
}

impl Tools {
    /// Returns those that `WIREPAXOS_P4C` and `WIREPAXOS_BMV2` name, or in the search path;
    /// otherwise what to do.
    pub fn find() -> Result<Tools> {
        let driver = find("p4c", "WIREPAXOS_P4C")?;
        let switch = find("simple_switch", "WIREPAXOS_BMV2")?;
        Ok(Tools {
            compiler: beside(&driver, "p4c-bm2-ss")?,
            tables: beside(&switch, "simple_switch_CLI")?,
            switch,
        })
    }

    /// Returns which versions they are. Refuses those that are too old.
    pub fn versions(&self) -> Result<String> {
        let mut versions = Vec::new();
        for (tool, oldest) in [
            (&self.compiler, OLDEST_COMPILER),
            (&self.switch, OLDEST_SWITCH),
        ] {
            let output = output(Command::new(tool).arg("--version"))?;
            // The compiler says it as it says errors, below its name.
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let version = said.lines().last().unwrap_or("no version").trim();
            check_version(tool, version, oldest)?;
            versions.push(format!("{}: {version}", tool.display()));
        }
        Ok(versions.join("; "))
    }

    /// Compiles a program for BMv2, with all warnings as errors.
    pub fn compile(&self, program: &Path, defines: &[(&str, u64)], out: &Path) -> Result<()> {
        let mut command = Command::new(&self.compiler);
        command.args(["--std", "p4-16", "--Werror"]);
        // All programs share one file of numbers, and each uses some of them; newer compilers warn
        // about the others.
        command.arg("--Wdisable=unused");
        command.arg("-o").arg(out);
        for (name, number) in defines {
            command.arg(format!("-D{name}={number}"));
        }
        let output = output(command.arg(program))?;
        match output.status.success() {
            true => Ok(()),
            false => Err(format!(
                "{}: {}",
                program.display(),
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// Returns what starts a switch with this program, whose ports are these interfaces, and which
    /// takes commands at a port of loopback.
    pub fn switch(&self, compiled: &Path, ports: &[(u16, &str)], control: u16) -> Command {
        let mut command = Command::new(&self.switch);
        for (port, interface) in ports {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        // Otherwise switches of one machine would share a socket.
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let number = STARTED.fetch_add(1, Ordering::Relaxed) % 1000;
        let device = u64::from(std::process::id()) * 1000 + u64::from(number);
        command.args(["--device-id", &device.to_string()]);
        command.args(["--thrift-port", &control.to_string()]);
        command.arg(compiled).stdin(Stdio::null());
        command
    }

    /// Starts a switch in the calling thread's network namespace, and waits until its tables can be
    /// filled.
    pub fn start(&self, compiled: &Path, ports: &[(u16, &str)], control: u16) -> Result<Switch> {
        let mut command = self.switch(compiled, ports, control);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| failed(&command, &error))?;
        let mut switch = Switch {
            child,
            tables: Tables {
                program: self.tables.clone(),
                at: (Ipv4Addr::LOCALHOST, control).into(),
            },
        };
        switch.tables.wait_while(|| match switch.child.try_wait() {
            Ok(Some(status)) => Err(format!("the switch ended at once: {status}")),
            _ => Ok(()),
        })?;
        Ok(switch)
    }
}

/// A running switch; it ends with this.
#[derive(Debug)]
pub struct Switch {
    child: Child,
    /// The switch's tables, in the same network namespace.
    pub tables: Tables,
}

/// The tables of a running switch.
#[derive(Clone, Debug)]
pub struct Tables {
    /// `simple_switch_CLI`.
    program: PathBuf,
    at: SocketAddr,
}

impl Tables {
    /// Returns those of the switch that takes commands at this address.
    pub fn at(at: SocketAddr) -> Result<Tables> {
        let switch = find("simple_switch", "WIREPAXOS_BMV2")?;
        let program = beside(&switch, "simple_switch_CLI")?;
        Ok(Tables { program, at })
    }

    /// Runs lines of `simple_switch_CLI`'s language, from the calling thread's network namespace.
    pub fn run(&self, lines: &[String]) -> Result<String> {
        let mut command = Command::new(&self.program);
        command.args(["--thrift-ip", &self.at.ip().to_string()]);
        command.args(["--thrift-port", &self.at.port().to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&command, &error))?;
        let mut input = child.stdin.take().expect("it is piped");
        // If the command ends early, its own message explains more than an error of this write.
        let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
        drop(input);
        let output = child
            .wait_with_output()
            .map_err(|error| failed(&command, &error))?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let wrong = said.lines().find(|line| {
            ["Error", "Invalid", "Unknown"]
                .iter()
                .any(|it| line.contains(it))
        });
        match (output.status.success(), wrong) {
            (true, None) => Ok(said),
            (_, Some(line)) => Err(self.refused(line)),
            (false, None) if !said.contains(UNREACHABLE) => {
                Err(self.refused(&last_line(&output.stderr, &said)))
            }
            (false, None) => Err(format!(
                "no switch takes commands at {}: {}; start simple_switch with --thrift-port {}, or \
                 name its address as `p4_control`",
                self.at,
                last_line(&output.stderr, &said),
                self.at.port()
            )),
        }
    }

    fn refused(&self, why: &str) -> String {
        format!(
            "the switch at {} refuses: {why}; does it run the program of this version?",
            self.at
        )
    }

    /// Waits for a switch that was just started.
    pub fn wait_until_there(&self) -> Result<()> {
        self.wait_while(|| Ok(()))
    }

    fn wait_while(&self, mut may_come: impl FnMut() -> Result<()>) -> Result<()> {
        let started = Instant::now();
        loop {
            may_come()?;
            match self.run(&["show_ports".into()]) {
                Ok(_) => return Ok(()),
                Err(error) if started.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Returns the interface of each of the switch's ports, by number.
    pub fn ports(&self) -> Result<Vec<(u16, String)>> {
        let said = self.run(&["show_ports".into()])?;
        let port = |line: &str| {
            let mut words = line.split_whitespace();
            Some((words.next()?.parse().ok()?, words.next()?.to_owned()))
        };
        Ok(said.lines().filter_map(port).collect())
    }
}

/// Returns the last line that a program printed.
fn last_line(stderr: &[u8], stdout: &str) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let mut lines = stdout.lines().chain(stderr.lines());
    let said = lines.rfind(|line| !line.trim().is_empty());
    said.unwrap_or("it says nothing").trim().to_owned()
}

impl Drop for Switch {
    fn drop(&mut self) {
        // The process is ours and keeps no data.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn check_version(tool: &Path, said: &str, oldest: [u32; 3]) -> Result<()> {
    let oldest_named = oldest.map(|n| n.to_string()).join(".");
    let wanted = format!("the programs want {oldest_named} or newer: {INSTALL}");
    let tool = tool.display();
    match version_in(said) {
        Some(found) if found < oldest => Err(format!("{tool} is of version {said}; {wanted}")),
        Some(_) => Ok(()),
        None => Err(format!("{tool} names no version ({said:?}); {wanted}")),
    }
}

/// Returns the first number of the form 1.2.3.
fn version_in(said: &str) -> Option<[u32; 3]> {
    let words = said.split(|c: char| !c.is_ascii_digit() && c != '.');
    let version = |word: &str| {
        let mut parts = word.split('.').map(str::parse);
        let mut part = || parts.next()?.ok();
        Some([part()?, part()?, part()?])
    };
    words.into_iter().find_map(version)
}

fn find(program: &str, variable: &str) -> Result<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        let path = PathBuf::from(path);
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!(
                "{variable} names {}, which isn't there",
                path.display()
            )),
        };
    }
    let dirs = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&dirs).map(|dir| dir.join(program));
    found
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| {
            format!("{program} isn't in the search path, and {variable} doesn't name it; {INSTALL}")
        })
}

fn beside(tool: &Path, program: &str) -> Result<PathBuf> {
    let path = tool.with_file_name(program);
    match path.is_file() {
        true => Ok(path),
        false => Err(format!(
            "{program} isn't beside {}; {INSTALL}",
            tool.display()
        )),
    }
}

fn output(command: &mut Command) -> Result<Output> {
    command.output().map_err(|error| failed(command, &error))
}

fn failed(command: &Command, error: &std::io::Error) -> String {
    format!("{}: {error}", command.get_program().to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_too_old_is_refused_by_name() {
        let check = |said| check_version(Path::new("/bin/p4c"), said, [1, 2, 3]);
        for good in [
            "Version 1.2.3.9 (SHA: abc BUILD: Debug)",
            "1.15.5-3a1b",
            "2.0.0",
        ] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for (bad, why) in [
            ("Version 1.2.2.0", "/bin/p4c is of version Version 1.2.2.0"),
            ("no version", "/bin/p4c names no version"),
        ] {
            let error = check(bad).unwrap_err();
            assert!(error.starts_with(why), "{error}");
            assert!(error.contains("1.2.3 or newer: install"), "{error}");
        }
    }

    #[test]
    fn a_failing_program_is_quoted_by_its_last_word() {
        assert_eq!(
            last_line(b"", "one\nCould not connect\n\n"),
            "Could not connect"
        );
        assert_eq!(last_line(b"Traceback\nRefused\n", "one\n"), "Refused");
        assert_eq!(last_line(b"", ""), "it says nothing");
    }
}
