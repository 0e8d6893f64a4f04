// SPDX-License-Identifier: Apache-2.0
//! A real etcd of one member, on a loopback address of its own.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(40);

/// An etcd, which is killed and whose directory is removed when this is dropped.
pub struct Etcd {
    directory: PathBuf,
    host: Ipv4Addr,
    scheme: &'static str,
    child: Option<Child>,
}

impl Etcd {
    /// Returns an etcd that isn't started yet; or prints that none is installed, and returns
    /// `None`.
    pub fn new() -> Option<Etcd> {
        let version = Command::new("etcd").arg("--version").output();
        if version.is_err() {
            println!("SKIPPED: etcd is not installed (./dev setup installs etcd-server)");
            return None;
        }
        static NEXT: AtomicU8 = AtomicU8::new(0);
        let (n, process) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let name = format!("wirepaxos-etcd-{process}-{n}");
        let directory = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).unwrap();
        let [_, _, high, low] = process.to_be_bytes();
        Some(Etcd {
            directory,
            host: Ipv4Addr::new(127, 200 + n % 50, high, low),
            scheme: "http",
            child: None,
        })
    }

    /// Returns the URL of the member.
    pub fn endpoint(&self) -> String {
        format!("{}://{}", self.scheme, self.address())
    }

    /// Returns the host of the member, for certificates.
    pub fn host(&self) -> Ipv4Addr {
        self.host
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host.into(), 2379)
    }

    fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Lets clients speak TLS from the next start on, and show certificates of this authority.
    pub fn use_tls(&mut self) {
        self.scheme = "https";
    }

    /// Starts it on what is stored, with more arguments, and waits until its port is open.
    pub fn start(&mut self, more: &[&str]) {
        let client = self.endpoint();
        let peer = format!("http://{}:2380", self.host);
        let log = self.directory.join("log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        // `setpriv` lets it end with the test's thread, also if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "etcd"]);
        command.arg("--data-dir").arg(self.data());
        command.args(["--listen-client-urls", &client]);
        command.args(["--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer]);
        command.args(["--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}")]);
        command.args(more).stdin(Stdio::null());
        command.stdout(log.try_clone().unwrap()).stderr(log);
        self.child = Some(command.spawn().unwrap());
        let since = Instant::now();
        while TcpStream::connect(self.address()).is_err() {
            assert!(
                since.elapsed() < PATIENCE,
                "etcd doesn't start: {}",
                self.log()
            );
            sleep(Duration::from_millis(20));
        }
    }

    /// Kills it at once, as a power failure of its process would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Copies what it has stored to another name. It must not run.
    pub fn save(&self, name: &str) {
        copy(&self.data(), &self.directory.join(name));
    }

    /// Puts back what was saved. It must not run.
    pub fn restore(&self, name: &str) {
        fs::remove_dir_all(self.data()).unwrap();
        copy(&self.directory.join(name), &self.data());
    }

    /// Loses all that it has stored. It must not run.
    pub fn forget(&self) {
        fs::remove_dir_all(self.data()).unwrap();
    }

    /// Sends a request to its JSON gateway until it succeeds.
    pub fn post(&self, path: &str, body: &str) {
        let since = Instant::now();
        while !self.posted(path, body) {
            assert!(since.elapsed() < PATIENCE, "{path} {body}: {}", self.log());
            sleep(Duration::from_millis(50));
        }
    }

    fn posted(&self, path: &str, body: &str) -> bool {
        let Ok(mut stream) = TcpStream::connect(self.address()) else {
            return false;
        };
        let (host, len) = (self.address(), body.len());
        let request = format!(
            "POST /v3/{path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len}\r\n\
             Connection: close\r\n\r\n{body}"
        );
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.1 200")
    }

    /// Returns what it has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log")).unwrap_or_default()
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- etcd\n{}", self.log());
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), &to).unwrap()),
        }
    }
}
