// SPDX-License-Identifier: Apache-2.0
//! The threads of a replica that execute. There may be fewer threads than partitions: thread `t` of
//! `n` serves the partitions whose number modulo `n` is `t`. So one wake serves all of them, and
//! packets that arrive for several partitions meanwhile are handled together.

use std::os::fd::AsFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Error;
use crate::host::{Ready, Spinner, Stop, pin_to_cpu};
use crate::plane::SendBatch;

use super::super::control_loop::Turn;
use super::super::rotation::{Door, Polled};
use super::node_protocol::NodeProtocol;
use super::waker::Waker;
use super::worker_thread::{HandedOn, WorkerThread};

/// The longest wait, after which the thread checks everything.
const IDLE_WAIT: Duration = Duration::from_secs(1);
/// The packets of one worker wait this long for those of the thread's other workers. Packets to one
/// address are then sent together, and wake their receiver once.
const SEND_AFTER: Duration = Duration::from_micros(50);
/// The index of the first socket among the descriptors of a wait.
const FIRST_SOCKET: usize = 2;

/// A crew that is running.
pub(super) enum Working {
    Thread(JoinHandle<Result<(), Error>>),
    Seated(mpsc::Receiver<Result<(), Error>>),
}

impl Working {
    /// Waits until the crew has ended.
    pub fn join(self) -> Result<(), Error> {
        let result = match self {
            Working::Thread(thread) => thread.join().ok(),
            Working::Seated(result) => result.recv().ok(),
        };
        result.unwrap_or_else(|| Err(Error::new("a worker thread panicked")))
    }
}

/// The workers that share a thread. Those at DPDK ports also share it with other nodes.
pub(super) struct Crew<G> {
    workers: Vec<WorkerThread<G>>,
    /// Wakes the thread when a worker gets a job.
    woken: Waker,
    stop: Arc<Stop>,
    spinner: Spinner,
    /// The packets of workers that wait to be sent.
    outgoing: SendBatch,
    /// The first error of a worker.
    failed: Result<(), Error>,
}

impl<G: NodeProtocol> Crew<G> {
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

    /// Starts the thread, pinned to a CPU if one is named.
    pub fn start(self, name: String, cpu: Option<usize>) -> Result<Working, Error> {
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(cpu) = cpu {
                pin_to_cpu(cpu).map_err(|e| Error::new(format!("can't run on CPU {cpu}: {e}")))?;
            }
            self.run()
        })?;
        Ok(Working::Thread(thread))
    }

    /// Enters a rotation of nodes that poll for packets. The result is sent when the crew has
    /// ended.
    pub fn enter(self, door: &Door<'_>) -> Result<Working, Error> {
        let (tell, result) = mpsc::channel();
        self.tell_local_sessions();
        // The crew looks for jobs in each turn, so nobody needs to wake it.
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

    /// Gives each worker at a port a turn, and returns whether there was work.
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

    /// Gives a turn to each worker that has work.
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
                // The batch may show changes that the worker could not store.
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

    /// Calls `what` for each worker. A worker that fails logs its error, and is no longer served.
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

    /// Waits for packets, jobs, the stop or the next deadline, but not while there is more work.
    fn wait(&mut self) -> Result<Round, Error> {
        let workers = &mut self.workers;
        // Every worker must be asked, even after one that stays awake.
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

/// A crew in a rotation with other nodes that poll for packets.
struct Seated<G> {
    crew: Crew<G>,
    tell: mpsc::Sender<Result<(), Error>>,
}

impl<G: NodeProtocol> Polled for Seated<G> {
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

    /// Ends the crew. The replica's own thread waits for the result, and ends after it.
    fn end(self: Box<Self>) -> Result<(), Error> {
        let _ = self.tell.send(self.crew.end());
        Ok(())
    }
}

/// The result of a wait.
struct Round {
    arrived: Ready,
    /// All workers must check for work.
    everyone: bool,
}
