// SPDX-License-Identifier: Apache-2.0
//! The workers as the source of their replica's state, for other replicas and for readers.

use std::sync::{Arc, mpsc};

use replica::application::OpenReader;

use super::orders::Order;
use super::worker_thread::{Job, WorkerHandle};
use crate::transfer::Patience;
use crate::transfer::held::{Copies, Keeper};
use crate::transfer::server::{Stand, Workers};

/// See the module.
pub struct HandingOut(pub Arc<Vec<WorkerHandle>>);

impl Workers for HandingOut {
    fn stands(&self) -> Vec<Stand> {
        self.0.iter().map(|worker| worker.standing.get()).collect()
    }

    /// All partitions are held from before the first copy is opened until the last one is: what a command
    /// over several of them needs is then in the copies, however far apart they stand. [X-HOLD]
    fn open(&self, keepers: Vec<Keeper>) -> Result<Copies, String> {
        let copies = self.hold().and_then(|()| self.open_copies(keepers));
        for worker in self.0.iter() {
            worker.give(Job::Order(Order::Release));
        }
        copies
    }
}

impl HandingOut {
    fn hold(&self) -> Result<(), String> {
        let mut held = Vec::new();
        for worker in self.0.iter() {
            let (answer, answers) = mpsc::channel();
            worker.give(Job::Order(Order::Hold(answer)));
            held.push(answers);
        }
        held.iter().try_for_each(wait)
    }

    fn open_copies(&self, keepers: Vec<Keeper>) -> Result<Copies, String> {
        let mut opened = Vec::new();
        for (worker, keeper) in self.0.iter().zip(keepers) {
            let (answer, answers) = mpsc::channel();
            worker.give(Job::Order(Order::Open(keeper, answer)));
            opened.push(answers);
        }
        opened.iter().map(|opened| wait(opened)?).collect()
    }
}

/// A way to readers of the workers' states.
pub fn readers(workers: Arc<Vec<WorkerHandle>>) -> OpenReader {
    Arc::new(move |pid| {
        let worker = workers.get(usize::from(pid));
        let worker = worker.ok_or("there is no such partition")?;
        let (answer, answers) = mpsc::channel();
        worker.give(Job::Order(Order::Read(answer)));
        wait(&answers)?
    })
}

fn wait<T>(answers: &mpsc::Receiver<T>) -> Result<T, String> {
    let answer = answers.recv_timeout(Patience::default().stream);
    answer.map_err(|_| "a worker is busy or stopping".into())
}
