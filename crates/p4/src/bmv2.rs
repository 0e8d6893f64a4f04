// SPDX-License-Identifier: Apache-2.0
//! BMv2 and its compiler: found on this machine, never built here.

use std::env;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Result;

/// The port behind which a node's process is (`CPU_PORT` in `programs/p4/v1model/include/headers.p4`).
pub const CPU_PORT: u16 = 255;

const INSTALL: &str = "install P4 developers' packages or image (docs/testing.md names them)";
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
    /// Those that `WIREPAXOS_P4C` and `WIREPAXOS_BMV2` name, or in the search path; otherwise what to do.
    pub fn find() -> Result<Tools> {
        let driver = find("p4c", "WIREPAXOS_P4C")?;
        let switch = find("simple_switch", "WIREPAXOS_BMV2")?;
        Ok(Tools {
            compiler: beside(&driver, "p4c-bm2-ss")?,
            tables: beside(&switch, "simple_switch_CLI")?,
            switch,
        })
    }

    /// Which versions they are.
    pub fn versions(&self) -> Result<String> {
        let mut versions = Vec::new();
        for tool in [&self.compiler, &self.switch] {
            let output = output(Command::new(tool).arg("--version"))?;
            // The compiler says it as it says errors, below its name.
            let said =
                String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            let version = said.lines().last().unwrap_or("no version").trim();
            versions.push(format!("{}: {version}", tool.display()));
        }
        Ok(versions.join("; "))
    }

    /// Compiles a program for BMv2, with all warnings as errors.
    pub fn compile(&self, program: &Path, defines: &[(&str, u64)], out: &Path) -> Result<()> {
        let mut command = Command::new(&self.compiler);
        command.args(["--std", "p4-16", "--Werror", "-o"]).arg(out);
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

    /// Starts a switch in the calling thread's network namespace, whose ports are these interfaces, and waits until
    /// its tables can be filled.
    pub fn start(&self, compiled: &Path, ports: &[(u16, &str)], control: u16) -> Result<Switch> {
        let mut command = Command::new(&self.switch);
        for (port, interface) in ports {
            command.args(["-i", &format!("{port}@{interface}")]);
        }
        command.args(["--thrift-port", &control.to_string()]);
        command.arg(compiled).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(|error| failed(&command, &error))?;
        let mut switch = Switch {
            child,
            tables: self.tables.clone(),
            control,
        };
        let started = Instant::now();
        loop {
            if let Ok(Some(status)) = switch.child.try_wait() {
                return Err(format!("the switch ended at once: {status}"));
            }
            match switch.tables(&["show_ports".into()]) {
                Ok(_) => return Ok(switch),
                Err(error) if started.elapsed() > START_TIMEOUT => return Err(error),
                Err(_) => sleep(Duration::from_millis(50)),
            }
        }
    }
}

/// A running switch; it ends with this.
#[derive(Debug)]
pub struct Switch {
    child: Child,
    tables: PathBuf,
    control: u16,
}

impl Switch {
    /// Runs lines of `simple_switch_CLI`'s language. Of the same network namespace as when the switch was started.
    pub fn tables(&self, lines: &[String]) -> Result<String> {
        let mut command = Command::new(&self.tables);
        command.args(["--thrift-port", &self.control.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| failed(&command, &error))?;
        let mut input = child.stdin.take().expect("it is piped");
        // Where it ends early, what it says of that is the better message.
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
            (_, Some(line)) => Err(format!("the switch's tables: {line}")),
            (false, None) => Err(format!(
                "{}: {}",
                self.tables.display(),
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        // It is ours, and keeps nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
