// SPDX-License-Identifier: Apache-2.0
//! The same transactions by MULTI, WATCH and EXEC, whose commands take effect in all partitions at
//! once, so no client has to bring them to an end. Each connection is a thread.

use std::sync::Arc;
use std::time::{Duration, Instant};

use local_cluster::processes::Processes;
use local_cluster::resp::{Connection, Reply, Server, await_service};
use local_cluster::{Error, LocalCluster, Shape, programs};

use super::Settings;
use super::load::Ran;
use super::measured::{Measured, measure_all};
use super::shards::shape;
use super::workload::{Keys, Plan, VALUE_BYTES, Workload, filling};
use crate::e2e::Contender;

const LIMIT: Duration = Duration::from_secs(60);

/// A cluster with front ends.
pub(super) struct Redis {
    servers: Vec<Server>,
    // The processes must be killed before their directory is removed; fields are dropped in this
    // order.
    processes: Processes,
    _local: LocalCluster,
}

impl Redis {
    pub fn start(settings: &Settings) -> Result<Redis, Error> {
        let shape = Shape {
            partitions: settings.shards,
            redis: true,
            ..shape(Contender::Paxos, settings, "rocksdb")
        };
        let local = LocalCluster::create(&std::env::temp_dir(), &shape)?;
        let mut processes = Processes::new(programs::wirepaxos()?);
        processes.start_nodes(&local)?;
        await_service(&local.redis, LIMIT)?;
        Ok(Redis {
            servers: local.redis.clone(),
            processes,
            _local: local,
        })
    }

    /// Writes all keys once.
    pub fn fill(&self, keys: &Keys) -> Result<(), Error> {
        let mut connection = Connection::open(self.servers[0], LIMIT)?;
        for plan in filling(keys) {
            execute(&mut connection, &plan)?;
        }
        Ok(())
    }

    pub fn measure(
        &self,
        settings: &Settings,
        keys: &Arc<Keys>,
        outstanding: u16,
    ) -> Result<Measured, Error> {
        let servers = self.servers.iter().cycle();
        let numbered = servers.zip(1..=u64::from(outstanding));
        let connect = |(server, n): (&Server, u64)| {
            let connection = Connection::open(*server, LIMIT)?;
            Ok((connection, Workload::new(keys.clone(), n)))
        };
        let mut connections = numbered.map(connect).collect::<Result<Vec<_>, Error>>()?;
        let run = |(connection, workload): &mut (Connection, Workload), end: Instant| {
            run(connection, workload, end)
        };
        measure_all(&mut connections, settings.time, run, &[&self.processes])
    }
}

fn run(connection: &mut Connection, workload: &mut Workload, end: Instant) -> Result<Ran, Error> {
    let mut ran = Ran::default();
    while Instant::now() < end {
        let plan = workload.next_plan();
        let begun = Instant::now();
        while !execute(connection, &plan)? {
            ran.aborted += 1;
        }
        ran.latencies.record(begun.elapsed());
    }
    Ok(ran)
}

/// Tries a transaction; returns false if a key that it has read was changed meanwhile.
fn execute(connection: &mut Connection, plan: &Plan) -> Result<bool, Error> {
    let command = |name: &'static [u8]| {
        let reads = plan.reads.iter().map(Vec::as_slice);
        [name].into_iter().chain(reads).collect::<Vec<&[u8]>>()
    };
    let watches = !plan.writes.is_empty() && !plan.reads.is_empty();
    if watches {
        connection.push(&command(b"WATCH"));
    }
    if !plan.reads.is_empty() {
        connection.push(&command(b"MGET"));
        connection.flush()?;
        for _ in 0..1 + usize::from(watches) {
            expect(connection.read()?)?;
        }
    }
    if plan.writes.is_empty() {
        return Ok(true);
    }
    connection.push(&[b"MULTI"]);
    for key in &plan.writes {
        connection.push(&[b"SET", key, &[b'x'; VALUE_BYTES]]);
    }
    connection.push(&[b"EXEC"]);
    connection.flush()?;
    for _ in 0..=plan.writes.len() {
        expect(connection.read()?)?;
    }
    match expect(connection.read()?)? {
        // Nothing was executed.
        Reply::Array(done) if done.is_empty() => Ok(false),
        Reply::Array(done) if done.len() == plan.writes.len() => Ok(true),
        other => Err(Error::new(format!("EXEC was answered {other:?}"))),
    }
}

fn expect(reply: Reply) -> Result<Reply, Error> {
    match reply {
        Reply::Error(why) => Err(Error::new(format!("the front end refuses: {why}"))),
        reply => Ok(reply),
    }
}
