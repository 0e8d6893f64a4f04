// SPDX-License-Identifier: Apache-2.0
//! What is behind a `paxos_ctx`: a replica's threads, a client, or both.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use wirepaxos::cluster_file::{Protocol, Role};
use wirepaxos::recovery::Recovery;
use wirepaxos::{
    Application, Client, ClientOptions, ClusterFile, Error, Freshness, Home, Outcome, Program,
    Refusal, Stop,
};

use crate::deliver::{CallbackApplication, Callbacks};
use crate::paxos_freshness::{self, PAXOS_STALE};
use crate::paxos_outcome::{self, PAXOS_EXECUTED, PAXOS_REFUSED};
use crate::tally::{Failure, Tally};

const RECOVER_TIMEOUT: Duration = Duration::from_secs(10);
/// After this time without any acknowledgement a full window is an error.
const SUBMIT_TIMEOUT: Duration = Duration::from_secs(30);
const WINDOW: u16 = 256;

/// See the module.
pub struct Context {
    file: PathBuf,
    node_name: Option<String>,
    running: Option<Running>,
    error: CString,
    outcome: paxos_outcome,
    /// To the last query.
    answer: Vec<u8>,
}

struct Running {
    cluster: ClusterFile,
    client: Client,
    /// Of values that are acknowledged or given up, since the last flush.
    tally: Tally,
    replica: Option<Replica>,
}

struct Replica {
    id: u16,
    stop: Arc<Stop>,
    thread: JoinHandle<Result<(), Error>>,
}

impl Context {
    /// Not started yet.
    pub fn new(file: &Path, node_name: Option<&str>) -> Context {
        Context {
            file: file.to_owned(),
            node_name: node_name.map(str::to_owned),
            running: None,
            error: CString::default(),
            outcome: PAXOS_REFUSED,
            answer: Vec::new(),
        }
    }

    /// The last error's text.
    pub fn error(&self) -> &CStr {
        &self.error
    }

    /// What the last call says of its values.
    pub fn outcome(&self) -> paxos_outcome {
        self.outcome
    }

    /// Starts replica and client.
    pub fn start(&mut self, callbacks: Callbacks) -> bool {
        let result = self.try_start(callbacks).map_err(Failure::refused);
        self.note(result)
    }

    fn try_start(&mut self, callbacks: Callbacks) -> Result<(), String> {
        if self.running.is_some() {
            return Err("the context is started already".into());
        }
        let cluster = ClusterFile::load(&self.file).map_err(|e| e.to_string())?;
        let replica = match &self.node_name {
            None => None,
            Some(name) => Some(start_replica(&cluster, name, callbacks)?),
        };
        // One command a value: an instance is then the unit of delivery, and the instance number
        // alone tells the program what it has.
        let options = ClientOptions {
            window: WINDOW,
            // With Paxos an acknowledgement then means: delivered here.
            home: replica.as_ref().map_or(Home::One, |r| Home::Of(r.id)),
            packing: false,
            ..ClientOptions::default()
        };
        match Client::open(&cluster, options) {
            Ok(client) => {
                self.running = Some(Running {
                    cluster,
                    client,
                    tally: Tally::default(),
                    replica,
                });
                Ok(())
            }
            Err(e) => {
                if let Some(replica) = replica {
                    let _ = replica.end();
                }
                Err(e.to_string())
            }
        }
    }

    /// Hands a value for these partitions to the proposer.
    pub fn submit(&mut self, pids: &[u16], value: &[u8]) -> bool {
        let result = self
            .running()
            .and_then(|running| running.submit(pids, value));
        self.note(result)
    }

    /// The same for the partition that a key belongs to.
    pub fn submit_by_key(&mut self, key: &[u8], value: &[u8]) -> bool {
        let result = self.running().and_then(|running| {
            let pid = running.client.partition_of(key);
            running.submit(&[pid], value)
        });
        self.note(result)
    }

    /// Waits for all acknowledgements.
    pub fn flush(&mut self, timeout_ms: i32) -> bool {
        let timeout = Duration::from_millis(timeout_ms.max(0) as u64);
        let result = self.running().and_then(|running| running.flush(timeout));
        self.note(result)
    }

    /// Asks without the log, and waits for the answer.
    pub fn read(
        &mut self,
        pid: u16,
        query: &[u8],
        freshness: paxos_freshness,
        timeout_ms: i32,
    ) -> Option<&[u8]> {
        let timeout = Duration::from_millis(timeout_ms.max(0) as u64);
        let freshness = match freshness {
            PAXOS_STALE => Freshness::Stale,
            _ => Freshness::Latest,
        };
        let answered = self
            .running()
            .and_then(|running| running.read(pid, query, freshness, timeout));
        let result = answered.map(|answer| self.answer = answer);
        self.note(result).then_some(&self.answer[..])
    }

    /// Recovers one instance of partition 0 and delivers it here.
    pub fn recover(&mut self, instance: u64, noop: &[u8], callbacks: Callbacks) -> bool {
        let result = self
            .running()
            .and_then(|running| running.recover(instance, noop, &callbacks));
        self.note(result)
    }

    /// Ends everything.
    pub fn close(&mut self) -> Result<(), String> {
        let Some(running) = self.running.take() else {
            return Ok(());
        };
        drop(running.client);
        running.replica.map_or(Ok(()), Replica::end)
    }

    fn running(&mut self) -> Result<&mut Running, Failure> {
        self.running
            .as_mut()
            .ok_or_else(|| Failure::refused("the context is not started: call paxos_ctx_start"))
    }

    fn note(&mut self, result: Result<(), Failure>) -> bool {
        let Err(failure) = result else {
            self.outcome = PAXOS_EXECUTED;
            return true;
        };
        self.outcome = failure.outcome;
        self.error = CString::new(failure.text).unwrap_or_default();
        false
    }
}

impl Running {
    /// Fails only if the value has not been handed over: who sees that may submit it again.
    fn submit(&mut self, pids: &[u16], value: &[u8]) -> Result<(), Failure> {
        loop {
            match self.client.submit_over(pids, value) {
                Ok(_) => break,
                Err(Refusal::WindowFull) => self
                    .take_acknowledgement(SUBMIT_TIMEOUT)
                    .map_err(|failure| Failure::refused(failure.text))?,
                Err(refusal) => return Err(Failure::refused(refusal)),
            }
        }
        self.client.flush();
        // Takes what has arrived, so that answers don't pile up in the socket. An error of that
        // comes again with the next call.
        if let Ok(Some(completion)) = self.client.poll(Duration::ZERO) {
            self.tally.note(&completion.outcome());
        }
        Ok(())
    }

    fn flush(&mut self, timeout: Duration) -> Result<(), Failure> {
        let deadline = Instant::now() + timeout;
        while self.client.outstanding() > 0 {
            self.take_acknowledgement(deadline.saturating_duration_since(Instant::now()))?;
        }
        while let Some(completion) = self.client.take_completion() {
            self.tally.note(&completion.outcome());
        }
        self.tally.take()
    }

    fn take_acknowledgement(&mut self, timeout: Duration) -> Result<(), Failure> {
        match self.client.poll(timeout).map_err(Failure::unknown)? {
            Some(completion) => self.tally.note(&completion.outcome()),
            None => {
                return Err(Failure::unknown(format!(
                    "{} values are not acknowledged after {} ms; they are sent again",
                    self.client.outstanding(),
                    timeout.as_millis()
                )));
            }
        }
        Ok(())
    }

    fn read(
        &mut self,
        pid: u16,
        query: &[u8],
        freshness: Freshness,
        timeout: Duration,
    ) -> Result<Vec<u8>, Failure> {
        // There it would be a value, and be delivered.
        if self.cluster.groups[0].protocol == Protocol::NoPaxos {
            return Err(Failure::refused("a group with NOPaxos has no queries"));
        }
        match self.client.call_read(pid, query, freshness, timeout) {
            Outcome::Executed(Some(answer)) => Ok(answer),
            Outcome::Executed(None) => Err(Failure::unknown("the answer is too long")),
            Outcome::Refused(why) => Err(Failure::refused(why)),
            Outcome::Unknown(why) => Err(Failure::unknown(why)),
        }
    }

    fn recover(&self, instance: u64, noop: &[u8], callbacks: &Callbacks) -> Result<(), Failure> {
        let mut recovery = Recovery::open(&self.cluster, self.cluster.groups[0].id, 0)
            .map_err(Failure::refused)?;
        let decided = recovery
            .recover_with(instance, noop, RECOVER_TIMEOUT)
            .map_err(Failure::unknown)?;
        callbacks.deliver(0, instance, &decided.value);
        Ok(())
    }
}

impl Replica {
    fn end(self) -> Result<(), String> {
        self.stop.request();
        let result = match self.thread.join() {
            Ok(result) => result.map_err(|e| e.to_string()),
            Err(_) => Err("the replica's thread panicked".into()),
        };
        if let Err(text) = &result {
            tracing::error!("{text}");
        }
        result
    }
}

fn start_replica(
    cluster: &ClusterFile,
    name: &str,
    callbacks: Callbacks,
) -> Result<Replica, String> {
    let node = cluster.named(name).map_err(|e| e.to_string())?;
    if node.role != Role::Replica {
        return Err(format!(
            "{name} is no replica: name one, or NULL for a client only"
        ));
    }
    let program = Program::stored(move |pid, directory| {
        let application = CallbackApplication::open(callbacks.clone(), pid, directory)?;
        Ok(Box::new(application) as Box<dyn Application>)
    });
    // A C program has no other way to hear what its replica says.
    wirepaxos::log_to_stderr().map_err(|e| e.to_string())?;
    let id = node.id;
    let stop = Stop::new().map_err(|e| e.to_string())?;
    let (stopping, cluster, name) = (stop.clone(), cluster.clone(), name.to_owned());
    let thread = std::thread::Builder::new()
        .name("replica".into())
        .spawn(move || wirepaxos::run(&cluster, &name, &program, &stopping))
        .map_err(|e| e.to_string())?;
    Ok(Replica { id, stop, thread })
}
