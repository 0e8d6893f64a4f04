// SPDX-License-Identifier: Apache-2.0
//! What is behind a `paxos_ctx`: a replica's threads, a client, or both.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
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
/// How often a start looks whether the replica has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

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
    /// This process ends the replica, so the program isn't told.
    is_ending: Arc<AtomicBool>,
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
    /// Returns why a replica has ended before it ran.
    fn why_it_ended(self) -> String {
        let ended = self.end();
        ended
            .err()
            .unwrap_or_else(|| "it was told to stop".to_owned())
    }

    fn end(self) -> Result<(), String> {
        self.is_ending.store(true, Ordering::Release);
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
    let delivered = callbacks.clone();
    let program = Program::stored(move |pid, directory| {
        let application = CallbackApplication::open(delivered.clone(), pid, directory)?;
        Ok(Box::new(application) as Box<dyn Application>)
    });
    // A C program has no other way to hear what its replica says.
    wirepaxos::log_to_stderr().map_err(|e| e.to_string())?;
    let id = node.id;
    let stop = Stop::new().map_err(|e| e.to_string())?;
    let (runs, told) = mpsc::channel();
    let has_run = Arc::new(AtomicBool::new(false));
    let ready = has_run.clone();
    stop.on_ready(1, move || {
        ready.store(true, Ordering::Release);
        let _ = runs.send(());
    });
    let is_ending = Arc::new(AtomicBool::new(false));
    let (stopping, ending) = (stop.clone(), is_ending.clone());
    let (cluster, name) = (cluster.clone(), name.to_owned());
    let thread = std::thread::Builder::new()
        .name("replica".into())
        .spawn(move || {
            let result = wirepaxos::run(&cluster, &name, &program, &stopping);
            if has_run.load(Ordering::Acquire) && !ending.load(Ordering::Acquire) {
                let why = result.as_ref().err().map(ToString::to_string);
                let why = why.map(|text| CString::new(text).unwrap_or_default());
                callbacks.ended(why.as_deref());
            }
            result
        })
        .map_err(|e| e.to_string())?;
    let replica = Replica {
        id,
        stop,
        is_ending,
        thread,
    };
    // The thread may end without a word.
    while told.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if replica.thread.is_finished() && told.try_recv().is_err() {
            return Err(replica.why_it_ended());
        }
    }
    Ok(replica)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::{c_char, c_int};
    use std::net::UdpSocket;
    use std::sync::mpsc::Sender;

    use wirepaxos::StateMachine;
    use wirepaxos::cluster_file::{ApplicationKind, Draft};

    use crate::{
        paxos_ctx, paxos_ctx_error, paxos_ctx_free, paxos_ctx_new, paxos_ctx_start, submit,
    };

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Directory {
            let name = format!("wirepaxos-capi-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&path).unwrap();
            Directory(path)
        }

        /// Writes a cluster file, and returns it with a context for a replica.
        fn cluster(&self, draft: &Draft) -> (ClusterFile, *mut paxos_ctx) {
            let file = self.0.join("cluster.toml");
            let cluster = draft.write(&file).unwrap();
            let file = CString::new(file.to_str().unwrap()).unwrap();
            // SAFETY: both are strings that end with a zero.
            let ctx = unsafe { paxos_ctx_new(file.as_ptr(), c"replica-1".as_ptr()) };
            (cluster, ctx)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_replica_that_cannot_start_is_an_error_of_the_start() {
        let directory = Directory::new("start");
        let draft = Draft::on_loopback("data", ApplicationKind::Own).unwrap();
        let (cluster, ctx) = directory.cluster(&draft);
        let _taken = UdpSocket::bind(cluster.node("replica-1").unwrap().address).unwrap();
        // SAFETY: the context was made above, and is freed once.
        let (started, said) = unsafe {
            let started = paxos_ctx_start(ctx);
            let said = CStr::from_ptr(paxos_ctx_error(ctx))
                .to_string_lossy()
                .into_owned();
            paxos_ctx_free(ctx);
            (started, said)
        };
        assert_eq!(started, -1);
        assert!(said.contains("another process has the port"), "{said}");
    }

    struct Nothing;

    impl StateMachine for Nothing {
        fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}

        fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> {
            Ok(())
        }

        fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> {
            Ok(Nothing)
        }
    }

    unsafe extern "C" fn no_checkpoint(_: *mut paxos_ctx, _: u16) -> c_int {
        -1
    }

    unsafe extern "C" fn tell_end(ctx: *mut paxos_ctx, why: *const c_char) {
        // SAFETY: the context is alive, `arg` is the test's channel, and `why` a string.
        unsafe {
            let channel = (*ctx).arg.cast::<Sender<String>>();
            let why = CStr::from_ptr(why).to_string_lossy().into_owned();
            (*channel).send(why).unwrap();
        }
    }

    #[test]
    fn a_program_is_told_that_its_replica_has_ended() {
        let directory = Directory::new("ended");
        let mut draft = Draft::on_loopback("data", ApplicationKind::Own).unwrap();
        draft.groups[0].checkpoint_every = Some(1);
        let (cluster, ctx) = directory.cluster(&draft);
        let stop = Stop::new().unwrap();
        let others = cluster.nodes.iter().filter(|node| node.name != "replica-1");
        let others = others.map(|node| {
            let (cluster, name, stop) = (cluster.clone(), node.name.clone(), stop.clone());
            let program = Program::in_memory(|| Nothing);
            std::thread::spawn(move || wirepaxos::run(&cluster, &name, &program, &stop))
        });
        let others: Vec<_> = others.collect();
        let (tell, told) = mpsc::channel::<String>();
        let mut tell = Box::new(tell);
        // SAFETY: the context and the channel outlive the replica, which ends with
        // `paxos_ctx_free`.
        let ended = unsafe {
            (*ctx).checkpoint = Some(no_checkpoint);
            (*ctx).ended = Some(tell_end);
            (*ctx).arg = std::ptr::from_mut(&mut *tell).cast();
            assert_eq!(paxos_ctx_start(ctx), 0);
            let mut value = *b"value";
            assert_eq!(
                submit(ctx, value.as_mut_ptr().cast(), value.len() as c_int),
                0
            );
            let why = told.recv_timeout(Duration::from_secs(60));
            (why, paxos_ctx_free(ctx))
        };
        stop.request();
        others
            .into_iter()
            .for_each(|node| node.join().unwrap().unwrap());
        let (why, freed) = ended;
        assert!(why.unwrap().contains("checkpoint"));
        assert_eq!(freed, -1, "it had failed");
    }
}
