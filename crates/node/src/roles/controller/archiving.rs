// SPDX-License-Identifier: Apache-2.0
//! The thread that archives what the cluster decides, beside the controller that acts.
//!
//! It asks replicas for what they have executed, and appends it to the archive. Replicas never wait
//! for it: where it was away for longer than they remember, or its directory was, the archive has a
//! hole, and the thread beside it makes a backup behind that.

mod appender;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant as Moment};

use paxos::Instance;
use serde_json::{Value, json};
use tracing::{Span, warn};

use self::appender::Appender;
use super::backups;
use crate::archive::{Archive, GroupPartition};
use crate::backup::Manifest;
use crate::cluster_clock::wall_clock_ms;
use crate::cluster_file::{BackupSettings, ClusterFile, Group};
use crate::lock::lock;
use crate::transfer::client::{Interrupt, Peer};
use crate::transfer::recent::KeptRange;
use crate::transfer::wire::Trust;
use crate::transfer::{Patience, Question};
use crate::{Error, utc};

/// How often replicas are asked.
const ASK_INTERVAL: Duration = Duration::from_millis(250);
/// A lag of more seconds is worth a warning.
const LATE_S: u64 = 10;
/// The most answers that are taken from one partition before the others have their turn.
const IN_A_ROW: usize = 32;
/// The pause after an error.
const PAUSE: Duration = Duration::from_secs(2);
/// A replica that didn't answer isn't asked for so long while others answer.
const REST: Duration = Duration::from_secs(5);
/// How long values that some replica may still have are waited for.
const HOLE_AFTER: Duration = Duration::from_secs(10);
/// How long the end waits for the thread.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The handle of the thread, which ends when this is dropped.
pub(super) struct Archiving {
    stop: Option<Sender<()>>,
    ended: Receiver<()>,
    interrupt: Arc<Interrupt>,
    pub state: Arc<Mutex<ArchiveState>>,
}

/// What the thread has come to.
#[derive(Default)]
pub(super) struct ArchiveState {
    /// When the thread began to archive, in ms since 1970.
    on_ms: Option<u64>,
    /// All that was executed by then is durable in the archive.
    until_ms: Option<u64>,
    /// The first instance of each partition that is archived without a hole behind it.
    first: BTreeMap<GroupPartition, Instance>,
    holes: u64,
    /// The bytes that were archived.
    bytes: u64,
    /// Why nothing can be archived.
    error: Option<String>,
    /// Why some partitions' values didn't come last time.
    missing: Option<String>,
}

impl Archiving {
    /// Starts the thread, if the cluster file asks for an archive. It works while `is_on`.
    pub fn start(
        cluster: &ClusterFile,
        settings: &BackupSettings,
        is_on: Arc<AtomicBool>,
    ) -> Result<Option<Archiving>, Error> {
        if !settings.archive {
            return Ok(None);
        }
        let (stop, stopped) = mpsc::channel();
        let (ends, ended) = mpsc::channel::<()>();
        let interrupt = Arc::new(Interrupt::default());
        let state = Arc::<Mutex<ArchiveState>>::default();
        let mut archiver = Archiver {
            archive: Archive::of(&settings.directory, cluster.cluster),
            settings: settings.clone(),
            cluster: cluster.cluster,
            sources: sources(cluster, &interrupt)?,
            appender: None,
            state: state.clone(),
        };
        let span = Span::current();
        std::thread::Builder::new()
            .name("archive".into())
            .spawn(move || {
                let (_said_there, _ends) = (span.entered(), ends);
                archiver.run(&stopped, &is_on);
            })?;
        Ok(Some(Archiving {
            stop: Some(stop),
            ended,
            interrupt,
            state,
        }))
    }
}

impl Drop for Archiving {
    fn drop(&mut self) {
        self.stop = None;
        // What is under way ends soon, and a directory that never answers keeps the thread alone.
        if self.ended.recv_timeout(END_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            self.interrupt.request();
        }
    }
}

impl ArchiveState {
    /// Returns the status, and adds a warning if the archive is behind.
    pub fn status(&self, warnings: &mut Vec<String>) -> Value {
        let now_ms = wall_clock_ms();
        warnings.extend(self.warning(now_ms));
        json!({
            "until": self.until_ms.map(utc::shown),
            "lag_s": self.lag_s(now_ms),
            "bytes": self.bytes,
            "holes": self.holes,
            "error": self.error.as_ref().or(self.missing.as_ref()),
        })
    }

    /// Returns whether the archive leads on from a backup with these positions.
    pub fn leads_on_from(&self, manifest: &Manifest) -> bool {
        let position = |(group, pid): GroupPartition| {
            let group = manifest.groups.iter().find(|of| of.id == group)?;
            group.positions.get(usize::from(pid)).copied()
        };
        let reaches = |(place, first): (&GroupPartition, &Instance)| {
            position(*place).is_some_and(|position| position >= *first)
        };
        self.first.iter().all(reaches)
    }

    /// Returns the seconds that a loss of everything would take.
    fn lag_s(&self, now_ms: u64) -> Option<u64> {
        let from_ms = self.until_ms.or(self.on_ms)?;
        Some(now_ms.saturating_sub(from_ms) / 1_000)
    }

    fn warning(&self, now_ms: u64) -> Option<String> {
        let lag_s = self.lag_s(now_ms)?;
        if let Some(why) = &self.error {
            return Some(format!(
                "the archive ends {} ago: {why}",
                utc::lasted(lag_s)
            ));
        }
        let missing = self.missing.as_ref().map(|why| format!(": {why}"));
        (lag_s > LATE_S).then(|| {
            format!(
                "the archive is {} behind, and so much would be lost with all machines{}: look \
                 whether the replicas run, and whether the directory of `[backup]` answers",
                utc::lasted(lag_s),
                missing.unwrap_or_default()
            )
        })
    }
}

/// The replicas of a group.
struct Source {
    group: Group,
    question: Question,
    replicas: Vec<Replica>,
    /// The replica that is asked first. They take turns, so that none is relied on.
    turn: usize,
    /// Since when no replica has handed out the values of a partition.
    missing: BTreeMap<u16, Moment>,
}

struct Replica {
    peer: Peer,
    /// When it last gave no answer.
    failed: Option<Moment>,
}

fn sources(cluster: &ClusterFile, interrupt: &Arc<Interrupt>) -> Result<Vec<Source>, Error> {
    let mut sources = Vec::new();
    for group in &cluster.groups {
        let trust = Trust::of_outside(cluster)?;
        let replicas = cluster.replicas(group.id);
        let Some(first) = replicas.first() else {
            continue;
        };
        let needs = vec![Some(0); usize::from(group.partitions)];
        let question = Question::new(&cluster.deployment(first, group), needs);
        let peer = |address| {
            let patience = Patience::default();
            Replica {
                peer: Peer::new(address, patience, interrupt.clone(), trust.clone()),
                failed: None,
            }
        };
        sources.push(Source {
            group: group.clone(),
            question,
            replicas: replicas.iter().map(|node| peer(node.control)).collect(),
            turn: 0,
            missing: BTreeMap::new(),
        });
    }
    Ok(sources)
}

struct Archiver {
    cluster: u32,
    settings: BackupSettings,
    archive: Archive,
    sources: Vec<Source>,
    appender: Option<Appender>,
    state: Arc<Mutex<ArchiveState>>,
}

impl Archiver {
    fn run(&mut self, stopped: &Receiver<()>, is_on: &AtomicBool) {
        let mut pause = ASK_INTERVAL;
        while stopped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
            pause = ASK_INTERVAL;
            if is_on.load(Ordering::Relaxed) {
                lock(&self.state).on_ms.get_or_insert_with(wall_clock_ms);
                let done = self.ask_all();
                if done.is_err() {
                    pause = PAUSE;
                }
                self.note(done);
            } else {
                self.close();
                *lock(&self.state) = ArchiveState::default();
            }
        }
        self.close();
    }

    fn close(&mut self) {
        if let Some(Err(e)) = self.appender.take().map(Appender::close) {
            warn!("a segment of the archive wasn't closed: {e}");
        }
    }

    fn note(&mut self, done: Result<(), Error>) {
        let mut state = lock(&self.state);
        match done {
            Ok(()) => state.error = None,
            Err(e) => {
                // Nothing may be appended behind what was written in part.
                self.appender = None;
                let why = e.to_string();
                if state.error.as_ref() != Some(&why) {
                    warn!("nothing is archived: {why}");
                }
                state.error = Some(why);
            }
        }
    }

    /// Takes from each partition what was executed since the last time.
    fn ask_all(&mut self) -> Result<(), Error> {
        backups::check_directory(&self.settings.directory)?;
        let appender = match &mut self.appender {
            Some(appender) => appender,
            none => none.insert(self.archive.go_on(self.cluster, &self.settings.directory)?),
        };
        let mut missing = None;
        for source in &mut self.sources {
            for pid in 0..source.group.partitions {
                match source.take(pid, &self.archive, appender) {
                    Ok(()) => {}
                    Err(TakeError::Missing(why)) => missing = Some(why),
                    Err(TakeError::NotWritten(e)) => return Err(e),
                }
            }
            source.turn = (source.turn + 1) % source.replicas.len();
        }
        appender
            .sync_if_due()
            .map_err(|e| self.archive.failed(&e))?;
        let places = self.sources.iter().flat_map(|source| {
            let pids = 0..source.group.partitions;
            pids.map(|pid| (source.group.id, pid))
        });
        let until_ms = appender.durable_until_ms(places);
        let mut state = lock(&self.state);
        state.until_ms = until_ms.or(state.until_ms);
        state.first = appender.first();
        (state.holes, state.bytes) = (appender.holes, appender.bytes);
        state.missing = missing;
        Ok(())
    }
}

impl Archive {
    /// Goes on at the end of the archive.
    fn go_on(&self, cluster: u32, backups: &Path) -> Result<Appender, Error> {
        let newest = backups::newest(cluster, backups)?;
        let groups = newest.into_iter().flat_map(|(_, manifest)| manifest.groups);
        let positions = groups.flat_map(|group| {
            let id = group.id;
            let positions = group.positions.into_iter().zip(0..);
            positions.map(move |(position, pid)| ((id, pid), position))
        });
        Ok(Appender::after(self.tail(&positions.collect())?))
    }
}

/// Why a partition's values were not archived.
enum TakeError {
    /// No replica handed them out.
    Missing(String),
    /// They could not be written.
    NotWritten(Error),
}

impl Source {
    /// Takes what a partition has executed, from the first replica that has it.
    fn take(
        &mut self,
        pid: u16,
        archive: &Archive,
        appender: &mut Appender,
    ) -> Result<(), TakeError> {
        let place = (self.group.id, pid);
        let (mut why, mut kept_from) = (Vec::new(), Vec::new());
        for number in self.in_turn() {
            let address = self.replicas[number].peer.address;
            match self.take_from(number, place, archive, appender) {
                Ok(()) => {
                    self.missing.remove(&pid);
                    return Ok(());
                }
                Err(AskError::NotWritten(e)) => return Err(TakeError::NotWritten(e)),
                Err(AskError::Kept(kept)) if kept.first > appender.next(place) => {
                    kept_from.push(kept.first);
                    why.push(format!(
                        "{address}: it remembers only from {} on",
                        kept.first
                    ));
                }
                Err(AskError::Kept(_)) => why.push(format!("{address}: it isn't there yet")),
                Err(AskError::Failed(e)) => why.push(format!("{address}: {e}")),
            }
        }
        let since = *self.missing.entry(pid).or_insert_with(Moment::now);
        let nobody_has_them = kept_from.len() == self.replicas.len();
        if nobody_has_them || since.elapsed() > HOLE_AFTER {
            if let Some(first) = kept_from.into_iter().min() {
                self.missing.remove(&pid);
                let left = appender.leave_a_hole(place, first);
                return left.map_err(|e| TakeError::NotWritten(archive.failed(&e)));
            }
        }
        Err(TakeError::Missing(why.join("; ")))
    }

    /// Returns the replicas in the order in which they are asked: last those that didn't answer.
    fn in_turn(&self) -> Vec<usize> {
        let count = self.replicas.len();
        let mut numbers: Vec<_> = (0..count).map(|at| (self.turn + at) % count).collect();
        let rests = |failed: Moment| failed.elapsed() < REST;
        numbers.sort_by_key(|number| self.replicas[*number].failed.is_some_and(rests));
        numbers
    }

    fn take_from(
        &mut self,
        number: usize,
        place: GroupPartition,
        archive: &Archive,
        appender: &mut Appender,
    ) -> Result<(), AskError> {
        let replica = &mut self.replicas[number];
        for _ in 0..IN_A_ROW {
            let from = appender.next(place);
            let answer = replica.peer.decided(&self.question, place.1, from);
            replica.failed = answer.is_err().then(Moment::now);
            let (records, _) = answer
                .map_err(|e| AskError::Failed(e.to_string()))?
                .map_err(AskError::Kept)?;
            let is_last = appender.append(archive, place, &records);
            if let Err(AskError::Failed(_)) = is_last {
                replica.failed = Some(Moment::now());
            }
            if is_last? {
                break;
            }
        }
        Ok(())
    }
}

/// Why a replica's values were not archived.
enum AskError {
    /// It didn't answer, or what it sent can't be used.
    Failed(String),
    /// It has these values only.
    Kept(KeptRange),
    /// They could not be written.
    NotWritten(Error),
}
