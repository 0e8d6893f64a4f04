// SPDX-License-Identifier: Apache-2.0
//! Tests of replicas that send their states over TLS alone: real processes, with certificates as an
//! operator makes them. [X-SIGNED]
#![cfg(feature = "rustls")]

mod common;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{TestCluster, eventually, json, shape, text};
use local_cluster::Shape;
use local_cluster::resp::Reply;
use node::ClusterFile;
use node::cluster_file::Auth;
use test_world::certificates::Certificates;

/// The number of commands. They fill the window several times, so those that a replica misses are
/// trimmed.
const COMMANDS: u32 = 60_000;

/// A cluster whose file has `state_tls`, and the same file with a certificate that another
/// authority has signed.
struct Encrypted {
    cluster: TestCluster,
    /// The certificates' files, which are removed with this.
    _certificates: Certificates,
    strangers: PathBuf,
}

impl Encrypted {
    /// Creates the cluster, or returns `None` if there is no `openssl`.
    fn create(auth: Auth) -> Option<Encrypted> {
        let certificates = Certificates::new(&format!("states-{auth:?}"))?;
        let cluster = TestCluster::create(&Shape {
            slots: 512,
            auth: Some(auth),
            ..shape("rocksdb")
        });
        let file = &cluster.local.file;
        let host = host(file);
        certificates.authority("strangers");
        certificates.sign_for("node", "ca", host);
        certificates.sign_for("stranger", "strangers", host);
        let read = fs::read_to_string(file).unwrap();
        let with = |name: &str| {
            let path = |file: &str| certificates.path(file).display().to_string();
            let (certificate, key) = (path(&format!("{name}.pem")), path(&format!("{name}.key")));
            let ca = path("ca.pem");
            format!(
                "state_tls = \
                 {{ certificate = {certificate:?}, key = {key:?}, ca = {ca:?} }}\n{read}"
            )
        };
        let strangers = file.with_file_name("strangers.toml");
        fs::write(&strangers, with("stranger")).unwrap();
        fs::write(file, with("node")).unwrap();
        Some(Encrypted {
            cluster,
            strangers,
            _certificates: certificates,
        })
    }

    /// Starts a replica with the other certificate.
    fn start_stranger(&mut self, name: &str) {
        let mut command = Command::new(common::PROGRAM);
        command.arg("node").arg("-c").arg(&self.strangers);
        command.args(["--name", name]);
        let directory = self.cluster.local.directory();
        let started = self.cluster.processes.start(command, directory, name);
        started.unwrap();
    }

    fn log(&self, name: &str) -> String {
        let directory = self.cluster.local.directory();
        fs::read_to_string(directory.join(format!("{name}.log"))).unwrap()
    }
}

/// Returns the address of the cluster's nodes.
fn host(file: &Path) -> Ipv4Addr {
    match ClusterFile::load(file)
        .unwrap()
        .controller_node()
        .control
        .ip()
    {
        IpAddr::V4(host) => host,
        host => panic!("{host} on loopback"),
    }
}

/// Runs `wirepaxos copy make` of the first replica, with a cluster file.
fn copy(file: &Path, to: &Path) -> Output {
    let mut command = Command::new(common::PROGRAM);
    command.args(["copy", "make", "--name", "replica-1", "--json", "-c"]);
    command.arg(file).arg(to).output().unwrap()
}

/// Sets keys that are overwritten again and again.
fn fill(cluster: &TestCluster) {
    let mut connection = cluster.connect(0);
    for n in 0..COMMANDS {
        let key = format!("key:{}", n % 5_000);
        connection.push(&[b"SET", key.as_bytes(), &n.to_be_bytes()]);
        if n % 1_000 == 999 {
            connection.flush().unwrap();
            for _ in 0..1_000 {
                assert_eq!(connection.read().unwrap(), Reply::Simple("OK".into()));
            }
        }
    }
}

/// A replica loses its disk. With the certificate of another authority it gets no state, and both
/// sides say why; with the cluster's own certificate it catches up. [X-SIGNED]
fn catches_up_over_tls(auth: Auth) {
    let Some(mut encrypted) = Encrypted::create(auth) else {
        return;
    };
    encrypted.cluster.start_all();
    encrypted.cluster.call(0, &["SET", "ready", "1"]);
    encrypted.cluster.processes.kill("replica-3");
    let data = encrypted.cluster.local.directory().join("data/replica-3");
    fs::remove_dir_all(data).unwrap();
    fill(&encrypted.cluster);

    encrypted.start_stranger("replica-3");
    eventually("both sides to say why", || {
        let asker = encrypted
            .log("replica-3")
            .contains("the other node doesn't take this one's certificate");
        let sources = ["replica-1", "replica-2"].map(|name| encrypted.log(name));
        let source = sources.iter().any(|log| {
            log.contains("no state for who asked for one")
                && log.contains("isn't signed by the `ca` of `state_tls`")
        });
        (asker && source).then_some(())
    });
    assert!(!encrypted.log("replica-3").contains("state is in place"));
    let copies = encrypted.cluster.local.directory().join("copies");
    fs::create_dir(&copies).unwrap();
    let refused = copy(&encrypted.strangers, &copies.join("strangers"));
    let said = text(&refused.stderr);
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("doesn't take this one's certificate"),
        "{said}"
    );

    encrypted.cluster.processes.kill("replica-3");
    encrypted.cluster.start_node("replica-3");
    let keys = encrypted.cluster.call(2, &["DBSIZE"]);
    assert_eq!(keys, Reply::Int(5_001));
    eventually("a state that is in place", || {
        let log = encrypted.log("replica-3");
        log.contains("state is in place").then_some(())
    });
    encrypted.cluster.assert_replicas_agree(3);
    let made = copy(&encrypted.cluster.local.file, &copies.join("own"));
    assert!(made.status.success(), "{}", text(&made.stderr));
    assert!(json(&made)["positions"][0].as_u64() > Some(0));
}

#[test]
fn a_wiped_replica_catches_up_over_tls() {
    catches_up_over_tls(Auth::Off);
}

#[test]
fn a_wiped_replica_catches_up_over_tls_with_keys_inside() {
    catches_up_over_tls(Auth::SipHash);
}
