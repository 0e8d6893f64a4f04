// SPDX-License-Identifier: Apache-2.0
//! The common parts of `wirepaxos up` and `wirepaxos init`: the plan of a new cluster, and its
//! secrets.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use keys::KeyFile;
use local_cluster::Error;
use node::ClusterFile;
use node::cluster_file::{ApplicationKind, Auth, Draft, GroupDraft, Role, Storage};

/// The cluster file's name in its directory.
pub const CLUSTER_FILE: &str = "cluster.toml";
/// The name of the file with the password of Redis clients, beside the cluster file.
pub const PASSWORD_FILE: &str = "redis.password";

/// Parses the name of an application that Redis clients can use.
pub fn application(name: &str) -> Result<ApplicationKind, String> {
    let redis_clients_use = ["redis", "rocksdb", "leveldb"].contains(&name);
    let named = ApplicationKind::named(name).filter(|_| redis_clients_use);
    named.ok_or("take redis, rocksdb or leveldb".to_string())
}

/// Parses the number of replicas.
pub fn replicas(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|n| [1, 2, 3, 5, 7].contains(n));
    number.ok_or(
        "take 2, of which one may die, or 1, 3, 5 or 7: the cluster serves while more than half \
         of them live"
            .to_string(),
    )
}

/// Returns a signed cluster without nodes, whose one group executes `application`.
pub fn draft(data: &str, application: ApplicationKind) -> Result<Draft, Error> {
    let number = (node::random_nonce()? as u32).max(1);
    let mut draft = Draft::new(number, data, GroupDraft::new(0, application));
    draft.auth = Some(Auth::SipHash);
    Ok(draft)
}

/// Adds an acceptor that stores its votes before it tells them.
pub fn add_acceptor(draft: &mut Draft, host: IpAddr) {
    draft.add_node(Role::Acceptor, host).storage = Some(Storage::Durable);
}

/// Adds a replica with a front end for Redis clients at `redis`.
pub fn add_replica(draft: &mut Draft, host: IpAddr, redis: SocketAddr) {
    draft.add_node(Role::Replica, host).redis = Some(redis);
}

/// Lets only clients in that know the password that `write` draws.
pub fn demand_password(draft: &mut Draft) {
    for node in draft.nodes.iter_mut().filter(|n| n.redis.is_some()) {
        node.redis_password_file = Some(PASSWORD_FILE.into());
    }
}

/// Writes the cluster file, the nodes' key and, if it is demanded, a password into a new directory,
/// which only this user may enter. If that fails, the directory is removed again.
pub fn write(directory: &Path, draft: &Draft) -> Result<ClusterFile, Error> {
    let made = DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|e| {
        Error::new(format!(
            "cannot make the directory {}: {e}; name another one, in a directory that exists and \
             may be written to",
            directory.display()
        ))
    })?;
    let written = write_into(directory, draft);
    if written.is_err() {
        let _ = fs::remove_dir_all(directory);
    }
    written
}

fn write_into(directory: &Path, draft: &Draft) -> Result<ClusterFile, Error> {
    if draft.nodes.iter().any(|n| n.redis_password_file.is_some()) {
        write_password(&directory.join(PASSWORD_FILE))?;
    }
    let cluster = draft.write(&directory.join(CLUSTER_FILE))?;
    KeyFile::new(draft.cluster)?.create(&cluster.keys)?;
    Ok(cluster)
}

/// Writes a password that nobody can guess.
fn write_password(path: &Path) -> Result<(), Error> {
    let [first, second] = [node::random_nonce()?, node::random_nonce()?];
    let mut file = OpenOptions::new();
    let mut file = file.write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{first:016x}{second:016x}")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_replicas_that_bring_nothing_are_refused() {
        assert_eq!((replicas("2"), replicas("3")), (Ok(2), Ok(3)));
        for wrong in ["0", "4", "9", "-1", "three"] {
            let why = replicas(wrong).unwrap_err();
            assert!(why.contains("1, 3, 5 or 7"), "{wrong}: {why}");
        }
    }

    #[test]
    fn only_applications_of_redis_clients_are_taken() {
        assert_eq!(application("redis"), Ok(ApplicationKind::Redis));
        assert!(application("echo").is_err() && application("postgres").is_err());
    }
}
