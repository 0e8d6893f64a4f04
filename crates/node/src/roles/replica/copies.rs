// SPDX-License-Identifier: Apache-2.0
//! The thread that regularly makes copies of a replica's state, and keeps the newest of them.
//!
//! | in the directory of the cluster file, below the node's name | |
//! |---|---|
//! | `copy-`number | a copy, whole and synced: of links ([`linked_copy`]), parts ([`copy::make`]) |
//! | `copy-`number`.unfinished` | one that was being made, or removed |
//!
//! An error costs only the copy: it is logged and shown in `status`, and the copy is tried again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Moment};

use paxos::Instance;
use replica::storage::private_directory;
use serde_json::{Value, json};
use tracing::{Span, info, warn};

use super::handing_out::HandingOut;
use crate::Error;
use crate::cluster_file::{ClusterFile, CopySettings, Group, Node};
use crate::lock::lock;
use crate::transfer::client::Interrupt;
use crate::transfer::{copy, incoming, linked_copy};

/// The longest time until the next attempt after a copy that failed.
const RETRY: Duration = Duration::from_secs(30);

/// The handle of the thread, which ends when this is dropped.
pub struct Copies {
    stop: Option<Sender<()>>,
    interrupt: Arc<Interrupt>,
    thread: Option<JoinHandle<()>>,
    shown: Arc<Mutex<CopyStatus>>,
}

/// The results so far.
#[derive(Default)]
struct CopyStatus {
    made: u64,
    failed: u64,
    last: Option<Last>,
    /// The reason why the last attempt failed, if it did.
    error: Option<String>,
}

struct Last {
    name: String,
    linked: bool,
    positions: Vec<Instance>,
    at: Moment,
}

impl Copies {
    /// Starts making copies, if the cluster file asks for them.
    pub fn start(
        cluster: &ClusterFile,
        node: &Node,
        group: &Group,
        state: Arc<HandingOut>,
    ) -> Result<Option<Copies>, Error> {
        let Some(settings) = &node.copies else {
            return Ok(None);
        };
        let (stop, stopped) = mpsc::channel();
        let interrupt = Arc::new(Interrupt::default());
        let shown = Arc::new(Mutex::new(CopyStatus::default()));
        let maker = Maker {
            directory: settings.directory.join(&node.name),
            settings: settings.clone(),
            cluster: cluster.clone(),
            node: node.clone(),
            group: group.clone(),
            state,
            interrupt: interrupt.clone(),
        };
        let (span, results) = (Span::current(), shown.clone());
        let thread = std::thread::Builder::new()
            .name("copies".into())
            .spawn(move || {
                let _said_there = span.entered();
                let mut pause = maker.due_in();
                while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    pause = lock(&results).note(maker.next(), maker.every());
                }
            })?;
        Ok(Some(Copies {
            stop: Some(stop),
            interrupt,
            thread: Some(thread),
            shown,
        }))
    }

    /// Returns the status, and adds a warning if the last attempt failed.
    pub fn status(&self, warnings: &mut Vec<String>) -> Value {
        let shown = lock(&self.shown);
        warnings.extend(shown.error.as_ref().map(|e| format!("no copy: {e}")));
        let last = shown.last.as_ref();
        json!({
            "made": shown.made,
            "failed": shown.failed,
            "error": shown.error,
            "last": last.map(|last| &last.name),
            "linked": last.map(|last| last.linked),
            "positions": last.map(|last| &last.positions),
            "age_s": last.map(|last| last.at.elapsed().as_secs()),
        })
    }
}

impl Drop for Copies {
    fn drop(&mut self) {
        self.stop = None;
        self.interrupt.request();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl CopyStatus {
    /// Logs the result of an attempt, and returns the time until the next one.
    fn note(&mut self, made: Result<Last, Error>, every: Duration) -> Duration {
        match made {
            Ok(last) => {
                info!(name = last.name, linked = last.linked, positions = ?last.positions, "a copy \
                                                                                            of my \
                                                                                            state");
                self.made += 1;
                self.last = Some(last);
                self.error = None;
                every
            }
            Err(e) => {
                let why = e.to_string();
                if self.error.as_ref() != Some(&why) {
                    warn!(why, "no copy of my state");
                }
                self.failed += 1;
                self.error = Some(why);
                every.min(RETRY)
            }
        }
    }
}

struct Maker {
    directory: PathBuf,
    settings: CopySettings,
    cluster: ClusterFile,
    node: Node,
    group: Group,
    state: Arc<HandingOut>,
    interrupt: Arc<Interrupt>,
}

impl Maker {
    fn every(&self) -> Duration {
        Duration::from_secs(self.settings.every_s)
    }

    /// Returns the time until the next copy, according to the copies that earlier processes have
    /// made.
    fn due_in(&self) -> Duration {
        let numbers = self.numbers().unwrap_or_default();
        let last = numbers.last().map(|number| self.path(*number));
        let made = last.and_then(|path| fs::metadata(path).ok()?.modified().ok());
        let passed = made.and_then(|at| at.elapsed().ok());
        self.every().saturating_sub(passed.unwrap_or_default())
    }

    fn next(&self) -> Result<Last, Error> {
        let failed = |e: io::Error| Error::store(format!("{}: {e}", self.directory.display()));
        private_directory(&self.directory).map_err(failed)?;
        self.clean().map_err(failed)?;
        let numbers = self.numbers().map_err(failed)?;
        let number = numbers.last().map_or(1, |last| last + 1);
        let last = self.make(&self.path(number))?;
        // The new copy counts among those that are kept.
        let old = numbers.len().saturating_sub(self.settings.kept - 1);
        for number in &numbers[..old] {
            self.remove(*number).map_err(failed)?;
        }
        Ok(last)
    }

    fn make(&self, to: &Path) -> Result<Last, Error> {
        let linked = self.link(to)?;
        let last = |linked, positions| Last {
            name: to
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            linked,
            positions,
            at: Moment::now(),
        };
        match linked {
            Some(positions) => Ok(last(true, positions)),
            // This copies over the network, as another machine would.
            None => copy::make(&self.cluster, &self.node, to, &self.interrupt, |_| {})
                .map(|positions| last(false, positions)),
        }
    }

    /// Makes a copy of hard links, if that is possible.
    fn link(&self, to: &Path) -> Result<Option<Vec<Instance>>, Error> {
        let failed = |why: String| Error::store(format!("{}: {why}", to.display()));
        let from =
            (0..self.group.partitions).map(|pid| self.cluster.partition_dir(&self.node, pid));
        let from: Vec<_> = from.collect();
        let possible = linked_copy::possible(&from, &self.directory);
        if !possible.map_err(|e| failed(e.to_string()))? {
            return Ok(None);
        }
        let deployment = self.cluster.deployment(&self.node, &self.group);
        let make = |links| {
            let made = copy::under_another_name(to, |to| linked_copy::make(&deployment, links, to));
            made.map_err(|e| e.to_string())
        };
        self.state.link(make).map_err(failed)
    }

    /// Removes what a killed process has left.
    fn clean(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.directory)? {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == copy::UNFINISHED) {
                incoming::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Removes a copy, which first gets a name that doesn't look like a copy's.
    fn remove(&self, number: u64) -> io::Result<()> {
        let path = self.path(number);
        let unfinished = copy::unfinished(&path);
        fs::rename(&path, &unfinished)?;
        incoming::remove(&unfinished)
    }

    fn path(&self, number: u64) -> PathBuf {
        self.directory.join(format!("copy-{number}"))
    }

    /// Returns the numbers of the existing copies, in ascending order.
    fn numbers(&self) -> io::Result<Vec<u64>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("copy-"));
            numbers.extend(number.and_then(|number| number.parse::<u64>().ok()));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }
}
