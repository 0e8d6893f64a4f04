// SPDX-License-Identifier: Apache-2.0
//! A client that counts by INCR, which shows whether any command is lost or takes effect twice.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::{Lowers, TestCluster, eventually, text};
use local_cluster::resp::{Connection, Reply, Server};

/// The answers that a client got to its INCRs.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    acknowledged: i64,
    uncertain: i64,
}

/// Counts as fast as it is answered, until `runs` is false; checks that no INCR is lost or takes
/// effect twice.
fn count(server: Server, counted: &Mutex<Counted>, runs: &AtomicBool) {
    let connect = || Connection::open(server, Duration::from_secs(5)).ok();
    let mut connection = eventually("a connection", connect);
    while runs.load(Ordering::Relaxed) {
        let reply = connection.call(&[b"INCR", b"counter"]);
        let mut all = counted.lock().unwrap();
        if let Ok(Reply::Int(now)) = reply {
            let Counted {
                acknowledged,
                uncertain,
            } = *all;
            assert!(
                now > acknowledged && now <= acknowledged + uncertain + 1,
                "INCR gave {now}; acknowledged {acknowledged}, uncertain {uncertain}"
            );
            all.uncertain -= now - acknowledged - 1;
            all.acknowledged = now;
        } else {
            all.uncertain += 1;
            drop(all);
            connection = eventually("a connection", connect);
        }
    }
}

/// Waits until more INCRs are answered than before.
pub fn serves(counted: &Mutex<Counted>) {
    let before = counted.lock().unwrap().acknowledged;
    eventually("it serves", || {
        (counted.lock().unwrap().acknowledged > before + 20).then_some(())
    });
}

/// Runs `during` while a client counts; then no INCR may be missing anywhere.
pub fn under_load(
    cluster: &mut TestCluster,
    during: impl FnOnce(&mut TestCluster, &Mutex<Counted>),
) {
    cluster.call(0, &["SET", "counter", "0"]);
    let (counted, runs) = (Mutex::default(), AtomicBool::new(true));
    let server = cluster.local.redis[0];
    std::thread::scope(|scope| {
        let _ends = Lowers(&runs);
        scope.spawn(|| count(server, &counted, &runs));
        serves(&counted);
        during(cluster, &counted);
    });
    let Counted {
        acknowledged,
        uncertain,
    } = *counted.lock().unwrap();
    let Reply::Bulk(Some(value)) = cluster.call(1, &["GET", "counter"]) else {
        panic!("the counter is gone");
    };
    let value: i64 = text(&value).parse().unwrap();
    assert!(value >= acknowledged && value <= acknowledged + uncertain);
    cluster.assert_replicas_agree(3);
}
