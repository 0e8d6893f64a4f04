// SPDX-License-Identifier: Apache-2.0
//! The threads of a replica that execute. There may be fewer than partitions: thread `t` of `n` serves
//! the partitions whose number modulo `n` is `t`. One waking then serves all of them, and what arrives
//! for several partitions meanwhile is done at once.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::host::{Ready, Spinner, Stop, pin_to_cpu};
use crate::plane::SendBatch;

use super::followed::Followed;
use super::waker::Waker;
use super::worker_thread::{HandedOn, WorkerThread};

/// Waits at most so long, then looks after everything.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// What one worker sends waits for the others of its thread: those to one address leave together, and wake it
/// once. While they take so long, it doesn't.
const SEND_AFTER: Duration = Duration::from_micros(50);
/// Among the descriptors waited for.
const FIRST_SOCKET: usize = 2;

/// The workers that share a thread.
pub(super) struct Crew<G> {
    workers: Vec<WorkerThread<G>>,
    /// Something was given to one of them.
    woken: Waker,
    stop: Arc<Stop>,
    spinner: Spinner,
    /// What workers have left here, to be sent.
    outgoing: SendBatch,
    /// The first error of one of them.
    failed: Result<(), Error>,
}

impl<G: Followed> Crew<G> {
    pub fn new(
        mut workers: Vec<WorkerThread<G>>,
        woken: Waker,
        stop: Arc<Stop>,
        spin: Duration,
    ) -> Result<Crew<G>, Error> {
        if let Some((first, others @ [_, ..])) = workers.split_first_mut() {
            for worker in others.iter_mut() {
                worker.share(first.way_out()?, Vec::new());
            }
            let pids = others.iter().map(WorkerThread::pid).collect();
            first.share(first.way_out()?, pids);
        }
        Ok(Crew {
            workers,
            woken,
            stop,
            spinner: Spinner::new(spin),
            outgoing: SendBatch::new(),
            failed: Ok(()),
        })
    }

    /// Starts the thread, on a CPU of its own if one is named.
    pub fn start(
        self,
        name: String,
        cpu: Option<usize>,
    ) -> Result<JoinHandle<Result<(), Error>>, Error> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(cpu) = cpu {
                pin_to_cpu(cpu).map_err(|e| Error::new(format!("can't run on CPU {cpu}: {e}")))?;
            }
            self.run()
        })?;
        Ok(thread)
    }

    fn run(mut self) -> Result<(), Error> {
        self.workers
            .iter()
            .for_each(WorkerThread::tell_local_sessions);
        let mut handed_on = HandedOn::default();
        while !self.stop.is_requested() && !self.workers.is_empty() {
            let round = self.wait()?;
            handed_on.clear();
            self.turns(&round, &mut handed_on);
        }
        self.each(|_, worker| worker.end());
        self.failed
    }

    /// A turn of each worker for which there is something to do.
    fn turns(&mut self, round: &Round, handed_on: &mut HandedOn) {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let mut since = Instant::now();
        self.each(|at, worker| {
            let arrived = round.arrived.has(FIRST_SOCKET + at) || worker.has_more();
            let concerned = arrived || handed_on.has(worker.pid());
            if !(round.everyone || concerned || worker.is_due()) {
                return Ok(());
            }
            let result = worker.turn(arrived, handed_on, &mut outgoing);
            if result.is_err() {
                // Some of it may be what the worker didn't get to store.
                outgoing.clear();
            }
            worker.hand_on(handed_on);
            if !outgoing.is_empty() && since.elapsed() >= SEND_AFTER {
                worker.send(&mut outgoing);
                since = Instant::now();
            }
            result
        });
        if let Some(worker) = self.workers.first_mut() {
            worker.send(&mut outgoing);
        }
        self.outgoing = outgoing;
    }

    /// Does something for each worker. One that fails says so, and is served no more.
    fn each(&mut self, mut what: impl FnMut(usize, &mut WorkerThread<G>) -> Result<(), Error>) {
        let mut at = 0;
        let failed = &mut self.failed;
        self.workers.retain_mut(|worker| {
            let result = worker.span().clone().in_scope(|| what(at, worker));
            at += 1;
            if result.is_err() {
                worker.tell_failure();
            }
            let goes_on = result.is_ok();
            if failed.is_ok() {
                *failed = result;
            }
            goes_on
        });
    }

    /// Waits for packets, jobs, the stop or the next deadline; not at all while there is more to do.
    fn wait(&mut self) -> Result<Round, Error> {
        let workers = &mut self.workers;
        // All of them, also behind one that stays awake.
        let awake = workers
            .iter_mut()
            .filter_map(|w| w.stays_awake().then_some(()))
            .count();
        let timeout = match awake {
            0 => workers
                .iter()
                .map(WorkerThread::due_in)
                .min()
                .unwrap_or(IDLE_WAIT),
            _ => Duration::ZERO,
        };
        let own = [self.woken.as_fd(), self.stop.as_fd()];
        let fds = own
            .into_iter()
            .chain(workers.iter().map(|worker| worker.as_fd()));
        let arrived = self.spinner.wait_for(fds, Some(timeout.min(IDLE_WAIT)))?;
        workers.iter().for_each(WorkerThread::wake_up);
        let woken = arrived.has(0);
        if woken {
            self.woken.drain();
        }
        Ok(Round {
            arrived,
            everyone: woken || awake == 0 && arrived.none(),
        })
    }
}

/// What a wait ended with.
struct Round {
    arrived: Ready,
    /// All are to look what there is to do.
    everyone: bool,
}
