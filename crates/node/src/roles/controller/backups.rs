// SPDX-License-Identifier: Apache-2.0
//! The thread that regularly backs up the whole cluster, beside the controller that acts.
//!
//! It asks replicas for their states as `wirepaxos backup create` does, and shares with the
//! controller only what is shown of it. An error costs only the backup, and so does a directory
//! that never answers: the controller doesn't wait for this thread, not even at its end.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tracing::Span;

use super::archiving::{self, Archiving};
use super::event::Event;
use crate::backup::{Catalog, Manifest, create};
use crate::cluster_clock::wall_clock_ms;
use crate::cluster_file::{BackupSettings, ClusterFile};
use crate::host::is_due;
use crate::lock::lock;
use crate::transfer::client::Interrupt;
use crate::{Error, utc};

/// How often the thread looks whether this controller acts, and whether a backup is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// The seconds until a failed backup is tried again. They double with each failure, up to the time
/// between two backups, since each attempt may fetch the whole state. The first is soon over: where
/// everything is started at once, no replica may be ready yet.
const FIRST_RETRY_S: u64 = 5;
/// The seconds by which a backup may be late, and those between two behind holes of the archive.
const GRACE_S: u64 = 60;
/// The seconds after which the thread looks whether the archive has a hole.
const LOOK_AGAIN_S: u64 = 1;
/// How long the end waits for the thread.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The handle of the thread, which ends when this is dropped.
pub(super) struct Backups {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
    interrupt: Arc<Interrupt>,
    /// This controller acts, and the cluster serves.
    is_on: Arc<AtomicBool>,
    shown: Arc<Mutex<Shown>>,
    archiving: Option<Archiving>,
    /// When the controller last looked.
    looked: Option<Instant>,
}

/// What the thread has come to.
#[derive(Default)]
struct Shown {
    every_s: u64,
    made: u64,
    failed: u64,
    /// The newest backup of this cluster.
    last: Option<Last>,
    /// When the thread began to make backups, in seconds since 1970.
    since_s: Option<u64>,
    /// Why the last attempt failed, if it did.
    error: Option<String>,
    /// The events that the controller hasn't taken yet.
    news: Vec<Event>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Last {
    name: String,
    begun_s: u64,
}

impl Backups {
    /// Starts the thread, if the cluster file asks for backups.
    pub fn start(cluster: &ClusterFile) -> Result<Option<Backups>, Error> {
        let Some(settings) = &cluster.backup else {
            return Ok(None);
        };
        let (stop, stopped) = mpsc::channel();
        let (ends, ended) = mpsc::channel::<()>();
        let interrupt = Arc::new(Interrupt::default());
        let is_on = Arc::new(AtomicBool::new(false));
        let shown = Arc::new(Mutex::new(Shown {
            every_s: settings.every_s,
            ..Shown::default()
        }));
        let archiving = Archiving::start(cluster, settings, is_on.clone())?;
        let maker = Maker {
            cluster: cluster.clone(),
            settings: settings.clone(),
            interrupt: interrupt.clone(),
            archived: archiving.as_ref().map(|archiving| archiving.state.clone()),
        };
        let (span, results, on) = (Span::current(), shown.clone(), is_on.clone());
        std::thread::Builder::new()
            .name("backups".into())
            .spawn(move || {
                let (_said_there, _ends) = (span.entered(), ends);
                maker.run(&stopped, &on, &results);
            })?;
        Ok(Some(Backups {
            stop: Some(stop),
            ended,
            interrupt,
            is_on,
            shown,
            archiving,
            looked: None,
        }))
    }

    /// Returns whether the controller is to look after this again.
    pub fn is_due(&mut self) -> bool {
        let is_due = is_due(self.looked, LOOK_INTERVAL);
        if is_due {
            self.looked = Some(Instant::now());
        }
        is_due
    }

    /// Says whether this controller acts and the cluster serves. Only then backups are made.
    pub fn turn(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Returns what has happened since the last call.
    pub fn news(&self) -> Vec<Event> {
        std::mem::take(&mut lock(&self.shown).news)
    }

    /// Returns the status. Where this controller acts, it adds a warning if the last attempt failed
    /// or the last backup is old.
    pub fn status(&self, warnings: &mut Vec<String>) -> Value {
        let shown = lock(&self.shown);
        let now_s = wall_clock_ms() / 1_000;
        if self.is_on.load(Ordering::Relaxed) {
            warnings.extend(shown.warning(now_s));
        }
        let archive = self.archiving.as_ref();
        let archive = archive.map(|archiving| lock(&archiving.state).status(warnings));
        let last = shown.last.as_ref();
        json!({
            "archive": archive,
            "every_s": shown.every_s,
            "made": shown.made,
            "failed": shown.failed,
            "error": shown.error,
            "last": last.map(|last| &last.name),
            "age_s": last.map(|last| now_s.saturating_sub(last.begun_s)),
        })
    }
}

impl Drop for Backups {
    fn drop(&mut self) {
        self.stop = None;
        self.interrupt.request();
        // A directory that never answers keeps the thread; it ends with the process.
        let _ = self.ended.recv_timeout(END_TIMEOUT);
    }
}

impl Shown {
    fn warning(&self, now_s: u64) -> Option<String> {
        if let Some(why) = &self.error {
            return Some(format!("no backup: {why}"));
        }
        let since_s = self
            .last
            .as_ref()
            .map(|last| last.begun_s)
            .max(self.since_s)?;
        let age_s = now_s.saturating_sub(since_s);
        // A backup takes its time, and the next is due only after it.
        let is_late = age_s > 2 * self.every_s + GRACE_S;
        is_late.then(|| {
            format!(
                "the last backup is {} old, and one is due every {}: look whether the directory of \
                 `[backup]` still answers",
                utc::lasted(age_s),
                utc::lasted(self.every_s)
            )
        })
    }

    /// Notes the result of an attempt, and returns the seconds until the next one after a failure.
    fn note(&mut self, made: Result<Last, Error>, failures: u32) -> Option<u64> {
        match made {
            Ok(last) => {
                let text = format!("the backup {} was made", last.name);
                self.news.push(Event::new("backup_made", text));
                self.made += 1;
                self.last = Some(last);
                self.error = None;
                None
            }
            Err(e) => {
                let text = format!("no backup: {e}");
                self.news.push(Event::warning("backup_failed", text));
                self.failed += 1;
                self.error = Some(e.to_string());
                Some(retry_s(failures, self.every_s))
            }
        }
    }
}

/// Returns the seconds between the failure of this number, from 0, and the next attempt.
fn retry_s(failures: u32, every_s: u64) -> u64 {
    let doubled = 1u64.checked_shl(failures.min(32)).unwrap_or(u64::MAX);
    FIRST_RETRY_S.saturating_mul(doubled).min(every_s)
}

struct Maker {
    cluster: ClusterFile,
    settings: BackupSettings,
    interrupt: Arc<Interrupt>,
    /// What is archived, if anything is.
    archived: Option<Arc<Mutex<archiving::ArchiveState>>>,
}

impl Maker {
    /// Makes backups until the other end of the channel is gone.
    fn run(&self, stopped: &Receiver<()>, is_on: &AtomicBool, results: &Mutex<Shown>) {
        let (mut failures, mut not_before_s) = (0, 0);
        while stopped.recv_timeout(LOOK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            if !is_on.load(Ordering::Relaxed) {
                // Who acts again looks anew what others have made meanwhile.
                (failures, not_before_s) = (0, 0);
                continue;
            }
            let now_s = wall_clock_ms() / 1_000;
            lock(results).since_s.get_or_insert(now_s);
            if now_s < not_before_s {
                continue;
            }
            let made = match self.due_in(now_s) {
                Ok((last, left_s)) if left_s > 0 => {
                    let mut results = lock(results);
                    // None is due, so what went wrong at the last look is over.
                    (results.last, results.error) = (last, None);
                    not_before_s = now_s + left_s;
                    continue;
                }
                Ok(_) => self.make(),
                Err(e) => Err(e),
            };
            let retry = lock(results).note(made, failures);
            failures = retry.map_or(0, |_| failures + 1);
            not_before_s = wall_clock_ms() / 1_000 + retry.unwrap_or(0);
        }
    }

    /// Returns the newest backup of this cluster, and the seconds until the next one is due.
    fn due_in(&self, now_s: u64) -> Result<(Option<Last>, u64), Error> {
        let newest = newest(self.cluster.cluster, &self.settings.directory)?;
        let archived = self.archived.as_ref();
        let leads_on = |manifest: &Manifest| {
            archived.is_none_or(|archived| lock(archived).leads_on_from(manifest))
        };
        let every_s = match &newest {
            // What is archived behind a hole is of no use without a backup.
            Some((_, manifest)) if !leads_on(manifest) => self.settings.every_s.min(GRACE_S),
            _ => self.settings.every_s,
        };
        // A backup of the future would put the next one off, perhaps for years.
        let begun_s = newest.as_ref().map_or(0, |(_, of)| of.begun_s.min(now_s));
        let due_s = begun_s.saturating_add(every_s);
        let last = newest.map(|(name, manifest)| Last {
            name,
            begun_s: manifest.begun_s,
        });
        // A hole may come at any time.
        let left_s = due_s.saturating_sub(now_s);
        Ok((last, archived.map_or(left_s, |_| left_s.min(LOOK_AGAIN_S))))
    }

    fn make(&self) -> Result<Last, Error> {
        let directory = &self.settings.directory;
        let (name, manifest) = create(&self.cluster, directory, &self.interrupt, |_| {})?;
        let catalog = Catalog::open(directory)?;
        catalog.prune_of(self.settings.keep, Some(self.cluster.cluster))?;
        Ok(Last {
            name,
            begun_s: manifest.begun_s,
        })
    }
}

/// Returns the newest backup of a cluster that is in a directory.
pub(super) fn newest(cluster: u32, directory: &Path) -> Result<Option<(String, Manifest)>, Error> {
    check_directory(directory)?;
    let entries = Catalog::open(directory)?.entries()?.into_iter().rev();
    let mut own = entries.filter_map(|entry| {
        let manifest = entry.manifest.ok()?;
        (manifest.cluster == cluster).then_some((entry.name, manifest))
    });
    Ok(own.next())
}

/// Returns an error unless the directory is there. It isn't created: where a file system isn't
/// mounted, backups would fill the disk below it.
pub(super) fn check_directory(directory: &Path) -> Result<(), Error> {
    match directory.is_dir() {
        true => Ok(()),
        false => Err(Error::store(format!(
            "{} is no directory here: create it, or mount its file system",
            directory.display()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(last_s: Option<u64>) -> Shown {
        Shown {
            every_s: 100,
            since_s: Some(1_000),
            last: last_s.map(|begun_s| Last {
                name: "backup-1".to_owned(),
                begun_s,
            }),
            ..Shown::default()
        }
    }

    #[test]
    fn a_backup_is_late_two_times_after_it_was_due() {
        let late_s = 2 * 100 + GRACE_S;
        for (last, from_s) in [(None, 1_000), (Some(5_000), 5_000), (Some(10), 1_000)] {
            let shown = shown(last);
            assert_eq!(shown.warning(from_s + late_s), None, "{last:?}");
            let warning = shown.warning(from_s + late_s + 1).unwrap();
            assert!(warning.starts_with("the last backup is"), "{warning}");
        }
        let never_on = Shown::default();
        assert_eq!(never_on.warning(u64::MAX), None);
    }

    #[test]
    fn failures_are_told_each_time_and_tried_again_ever_later() {
        let mut shown = shown(None);
        shown.every_s = 86_400;
        let waits: Vec<_> = (0..16)
            .map(|n| shown.note(Err(Error::new("the disk is full")), n).unwrap())
            .collect();
        assert_eq!(waits[..3], [5, 10, 20]);
        assert_eq!(waits[15], 86_400);
        assert_eq!(shown.failed, 16);
        assert_eq!(std::mem::take(&mut shown.news).len(), 16);
        let warning = shown.warning(1_000).unwrap();
        assert_eq!(warning, "no backup: the disk is full");
        let last = Last {
            name: "backup-2".to_owned(),
            begun_s: 1_000,
        };
        assert_eq!(shown.note(Ok(last), 16), None);
        assert_eq!(shown.warning(1_000), None);
        assert!(!shown.news[0].is_warning);
        assert_eq!(retry_s(u32::MAX, 100), 100);
    }
}
