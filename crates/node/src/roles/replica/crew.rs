// SPDX-License-Identifier: Apache-2.0
//! The threads of a replica that execute. There may be fewer than partitions: thread `t` of `n` serves
//! the partitions whose number modulo `n` is `t`. One waking then serves all of them, and what arrives
//! for several partitions meanwhile is done at once.

use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::host::{Ready, Spinner, Stop, pin_to_cpu};
use crate::plane::SendBatch;

use super::super::control_loop::Turn;
use super::super::rotation::{Door, Polled};
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

/// A crew at work.
pub(super) enum Working {
    Thread(JoinHandle<Result<(), Error>>),
    Seated(mpsc::Receiver<Result<(), Error>>),
}

impl Working {
    /// Waits until it has ended.
    pub fn join(self) -> Result<(), Error> {
        let result = match self {
            Working::Thread(thread) => thread.join().ok(),
            Working::Seated(result) => result.recv().ok(),
        };
        result.unwrap_or_else(|| Err(Error::new("a worker thread panicked")))
    }
}

/// The workers that share a thread. Those at ports of DPDK share it with other nodes, too.
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
            if let Some(out) = first.way_out()? {
                for worker in others.iter_mut() {
                    worker.share(out.another()?, Vec::new());
                }
                let pids = others.iter().map(WorkerThread::pid).collect();
                first.share(out, pids);
            }
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
    pub fn start(self, name: String, cpu: Option<usize>) -> Result<Working, Error> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(cpu) = cpu {
                pin_to_cpu(cpu).map_err(|e| Error::new(format!("can't run on CPU {cpu}: {e}")))?;
            }
            self.run()
        })?;
        Ok(Working::Thread(thread))
    }

    /// Takes a seat among those that look for packets all the time. The result comes when it has ended.
    pub fn enter(self, door: &Door<'_>) -> Result<Working, Error> {
        let (tell, result) = mpsc::channel();
        self.tell_local_sessions();
        // It looks for jobs in each turn, so nobody needs to wake it.
        self.woken.wake_up(false);
        door.enter(Box::new(Seated { crew: self, tell }))?;
        Ok(Working::Seated(result))
    }

    fn tell_local_sessions(&self) {
        let workers = self.workers.iter();
        workers.for_each(WorkerThread::tell_local_sessions);
    }

    fn run(mut self) -> Result<(), Error> {
        self.tell_local_sessions();
        let mut handed_on = HandedOn::default();
        while !self.stop.is_requested() && !self.workers.is_empty() {
            let round = self.wait()?;
            handed_on.clear();
            self.turns(&round, &mut handed_on);
        }
        self.end()
    }

    fn end(mut self) -> Result<(), Error> {
        self.each(|_, worker| worker.end());
        self.failed
    }

    /// A turn of each worker, at ports. Whether there was something to do.
    fn poll(&mut self) -> bool {
        let mut outgoing = std::mem::take(&mut self.outgoing);
        let nothing = HandedOn::default();
        let mut busy = false;
        self.each(|_, worker| {
            let result = worker.turn(true, &nothing, &mut outgoing);
            busy |= worker.took_something();
            result
        });
        self.outgoing = outgoing;
        busy
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
        let timeout = match awake == 0 && self.woken.fall_asleep() {
            true => workers
                .iter()
                .map(WorkerThread::due_in)
                .min()
                .map_or(IDLE_WAIT, |due| due.min(IDLE_WAIT)),
            false => Duration::ZERO,
        };
        let own = [self.woken.as_fd(), self.stop.as_fd()];
        let fds = own
            .into_iter()
            .chain(workers.iter().filter_map(WorkerThread::as_fd));
        let arrived = self.spinner.wait_for(fds, Some(timeout))?;
        workers.iter().for_each(WorkerThread::wake_up);
        let woken = self.woken.wake_up(arrived.has(0));
        Ok(Round {
            arrived,
            everyone: woken || awake == 0 && arrived.none(),
        })
    }
}

/// A crew among others that look for packets all the time.
struct Seated<G> {
    crew: Crew<G>,
    tell: mpsc::Sender<Result<(), Error>>,
}

impl<G: Followed> Polled for Seated<G> {
    fn turn(&mut self, _: bool) -> Result<Turn, Error> {
        let crew = &mut self.crew;
        if crew.stop.is_requested() || crew.workers.is_empty() {
            return Ok(Turn::Ended);
        }
        match crew.poll() {
            true => Ok(Turn::Busy),
            false => Ok(Turn::Idle),
        }
    }

    /// The replica's own thread waits for the result, and ends after it.
    fn end(self: Box<Self>) -> Result<(), Error> {
        let _ = self.tell.send(self.crew.end());
        Ok(())
    }
}

/// What a wait ended with.
struct Round {
    arrived: Ready,
    /// All are to look what there is to do.
    everyone: bool,
}
