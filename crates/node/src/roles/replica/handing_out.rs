// SPDX-License-Identifier: Apache-2.0
//! The workers as the source of their replica's state, for other replicas and for readers.

use std::sync::{Arc, Mutex, mpsc};

use paxos::{Instance, PartitionId};
use replica::Link;
use replica::application::OpenReader;

use super::AskReads;
use super::orders::Order;
use super::worker_thread::{Job, WorkerHandle};
use crate::lock::lock;
use crate::transfer::Patience;
use crate::transfer::recent::Recent;
use crate::transfer::served_state::{Copies, Keeper};
use crate::transfer::server::{WorkerPosition, Workers};

/// A lock that is held while partitions are replaced by another replica's state, and while copies
/// of them are opened, since partitions from before and after an install don't belong together.
pub type Whole = Arc<Mutex<()>>;

/// The workers that hand out their states.
pub struct HandingOut {
    pub workers: Arc<Vec<WorkerHandle>>,
    pub whole: Whole,
}

impl Workers for HandingOut {
    fn stands(&self) -> Vec<WorkerPosition> {
        let workers = self.workers.iter();
        workers.map(|worker| worker.position.get()).collect()
    }

    fn recent(&self, pid: PartitionId) -> Option<Arc<Recent>> {
        self.workers.get(usize::from(pid))?.recent.clone()
    }

    fn open(&self, keepers: Vec<Keeper>) -> Result<Copies, String> {
        self.while_held(|| {
            let mut keepers = keepers.into_iter();
            let open = |answer| {
                let keeper = keepers.next().expect("one for each partition");
                Order::Open(keeper, answer)
            };
            self.ask_all(open)?.into_iter().collect()
        })
    }
}

impl HandingOut {
    /// Has a copy of hard links made; `make` gets the links of each partition with the position
    /// that it has reached at least. Returns `None` if the application can't make links.
    pub fn link<T>(
        &self,
        make: impl FnOnce(Vec<(Instance, Link)>) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        self.while_held(|| {
            let links: Result<Vec<_>, _> = self.ask_all(Order::Link)?.into_iter().collect();
            let with_link = |(position, link): (_, Option<_>)| Some((position, link?));
            let links: Option<_> = links?.into_iter().map(with_link).collect();
            links.map(make).transpose()
        })
    }

    /// Holds all partitions from before the first copy is opened until the last one is open. So the
    /// copies have everything that a command over several partitions needs, however far apart their
    /// positions are. [X-HOLD]
    fn while_held<T>(&self, open: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
        let _whole = lock(&self.whole);
        if self.stands().iter().any(|stand| stand.is_installing) {
            return Err("installing a state myself".into());
        }
        let opened = self.ask_all(Order::Hold).and_then(|_| open());
        for worker in self.workers.iter() {
            worker.give(Job::Order(Order::Release));
        }
        opened
    }

    fn ask_all<T>(
        &self,
        mut order: impl FnMut(mpsc::Sender<T>) -> Order,
    ) -> Result<Vec<T>, String> {
        let mut asked = Vec::new();
        for worker in self.workers.iter() {
            let (answer, answers) = mpsc::channel();
            worker.give(Job::Order(order(answer)));
            asked.push(answers);
        }
        asked.iter().map(wait).collect()
    }
}

/// Returns a function that opens readers of the workers' states.
pub fn readers(workers: Arc<Vec<WorkerHandle>>) -> OpenReader {
    Arc::new(move |pid| {
        let worker = workers.get(usize::from(pid));
        let worker = worker.ok_or("there is no such partition")?;
        let (answer, answers) = mpsc::channel();
        worker.give(Job::Order(Order::Read(answer)));
        wait(&answers)?
    })
}

/// Returns a function that passes reads without the log to the workers. A worker that has ended
/// answers none; then the process ends, too.
pub fn reads(workers: Arc<Vec<WorkerHandle>>) -> AskReads {
    Arc::new(move |pid, reads| {
        if let Some(worker) = workers.get(usize::from(pid)) {
            worker.give(Job::Read(reads));
        }
    })
}

fn wait<T>(answers: &mpsc::Receiver<T>) -> Result<T, String> {
    let answer = answers.recv_timeout(Patience::default().stream);
    answer.map_err(|_| "a worker is busy or stopping".into())
}
