// SPDX-License-Identifier: Apache-2.0
//! The last events, in memory and in two files beside the store. When `events.jsonl` is full it
//! takes the place of `events.old.jsonl`, so that both are bounded.
//!
//! A thread writes them, as a failover must not wait for a disk: a kill loses at most what that
//! thread hasn't taken yet, and a power failure what it hasn't synced. Nothing depends on events,
//! so a file that can't be used is set aside, and the controller goes on.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::warn;

use super::event::Event;
use crate::cluster_clock::wall_clock_ms;
use crate::document::Document;

const FORMAT: u32 = 1;
/// The size at which a file is full. One that is much larger is no file of events.
const FULL: u64 = 1 << 20;
/// The number of events that are kept in memory.
const KEPT: usize = 4_096;
/// The number of events that may wait for the disk; later ones are kept in memory only.
const WAITING: usize = 1_024;
/// The largest number of events in an answer.
const MAX_ANSWERED: usize = 1_000;

#[derive(Serialize, Deserialize)]
struct Body {
    cluster: u32,
    event: Event,
}

/// The events of a controller.
pub(super) struct Events {
    kept: VecDeque<Event>,
    next: u64,
    writer: Option<(SyncSender<Event>, JoinHandle<()>)>,
}

impl Events {
    /// Reads the events that earlier processes have left in a directory.
    pub fn open(directory: &Path, cluster: u32) -> Events {
        let place = EventFiles {
            newest: directory.join("events.jsonl"),
            old: directory.join("events.old.jsonl"),
            cluster,
        };
        let mut kept = VecDeque::new();
        let old = place.read_or_set_aside(&place.old);
        let newest = place.read_or_set_aside(&place.newest);
        for event in [&old, &newest]
            .into_iter()
            .flatten()
            .flat_map(|file| &file.events)
        {
            kept.push_back(event.clone());
        }
        kept.drain(..kept.len().saturating_sub(KEPT));
        let next = kept.iter().map(|event| event.n).max().unwrap_or(0) + 1;
        // Without a place of its own nothing may be written over what is there.
        let writer = newest.and_then(|newest| {
            let (events, waiting) = sync_channel(WAITING);
            let work = move || write_all(&place, newest.len, &waiting);
            match std::thread::Builder::new()
                .name("events".to_owned())
                .spawn(work)
            {
                Ok(thread) => Some((events, thread)),
                Err(why) => {
                    warn!("events are kept in memory only: no thread can be started: {why}");
                    None
                }
            }
        });
        Events { kept, next, writer }
    }

    /// Keeps an event, and lets it be written.
    pub fn keep(&mut self, event: Event) {
        let event = Event {
            n: self.next,
            at_ms: wall_clock_ms(),
            ..event
        };
        self.next += 1;
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(event.clone());
        if let Some((writer, _)) = &self.writer {
            // If the disk hangs, memory has it.
            let _ = writer.try_send(event);
        }
    }

    /// Returns the last events after the one with a number, at most `limit`.
    pub fn after(&self, n: u64, limit: u32) -> Value {
        let later = self.kept.iter().filter(|event| event.n > n).count();
        let limit = usize::try_from(limit)
            .unwrap_or(MAX_ANSWERED)
            .min(MAX_ANSWERED);
        let first = self.kept.len() - later.min(limit);
        let events: Vec<&Event> = self.kept.range(first..).collect();
        json!({ "events": events, "newest": self.next - 1 })
    }
}

/// Waits until all events are written.
impl Drop for Events {
    fn drop(&mut self) {
        if let Some((events, thread)) = self.writer.take() {
            drop(events);
            let _ = thread.join();
        }
    }
}

/// What is in a file.
struct Found {
    events: Vec<Event>,
    /// The length of the whole lines. A kill or a power failure may leave a part of another one.
    len: u64,
}

struct EventFiles {
    newest: PathBuf,
    old: PathBuf,
    cluster: u32,
}

impl EventFiles {
    /// Reads a file. One that can't be used is set aside, and an empty one is in its place; `None`
    /// if that fails, too.
    fn read_or_set_aside(&self, path: &Path) -> Option<Found> {
        let why = match self.read(path) {
            Ok(found) => return Some(found),
            Err(why) => why,
        };
        let named = |n: u64| {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".set-aside-{n}"));
            PathBuf::from(name)
        };
        let is_free = |place: &PathBuf| fs::symlink_metadata(place).is_err();
        let aside = (1..).map(named).find(is_free)?;
        let shown = path.display();
        match fs::rename(path, &aside) {
            Ok(()) => {
                warn!("{shown} is set aside as {}: {why}", aside.display());
                let events = Vec::new();
                Some(Found { events, len: 0 })
            }
            Err(other) => {
                warn!(
                    "events are kept in memory only: {shown}: {why}, and it can't be set aside: \
                     {other}"
                );
                None
            }
        }
    }

    fn read(&self, path: &Path) -> io::Result<Found> {
        let (mut events, mut len) = (Vec::new(), 0);
        let metadata = match fs::symlink_metadata(path) {
            Ok(metadata) => metadata,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found { events, len }),
            Err(e) => return Err(e),
        };
        // Opening a pipe would wait for its other end.
        if !metadata.is_file() || metadata.len() > 2 * FULL {
            return Err(io::Error::other("it is no file of events"));
        }
        let bytes = fs::read(path)?;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let end = len + line.len() as u64;
            match self.read_line(line) {
                Ok(event) if line.ends_with(b"\n") => events.push(event),
                Err(why) if end < bytes.len() as u64 => return Err(why),
                _ => break,
            }
            len = end;
        }
        match events.is_empty() && bytes.contains(&b'\n') {
            true => Err(io::Error::other("it holds no event")),
            false => Ok(Found { events, len }),
        }
    }

    fn read_line(&self, line: &[u8]) -> io::Result<Event> {
        let document: Document<Body> =
            serde_json::from_slice(line).map_err(|_| io::Error::other("it is damaged"))?;
        if document.format != FORMAT {
            return Err(io::Error::other("it is of another version"));
        }
        if !document.is_whole()? {
            return Err(io::Error::other("it is damaged"));
        }
        if document.body.cluster != self.cluster {
            return Err(io::Error::other("it belongs to another cluster"));
        }
        Ok(document.body.event)
    }

    fn line(&self, event: Event) -> io::Result<Vec<u8>> {
        let cluster = self.cluster;
        let document = Document::new(FORMAT, Body { cluster, event })?;
        let mut line = serde_json::to_vec(&document)?;
        line.push(b'\n');
        Ok(line)
    }
}

/// Writes the events that come, until none can come any more.
fn write_all(place: &EventFiles, len: u64, events: &Receiver<Event>) {
    let mut file = Open {
        place,
        file: None,
        len,
    };
    let mut is_said = false;
    while let Ok(event) = events.recv() {
        let mut written = file.append(event);
        while let Ok(event) = events.try_recv() {
            written = written.and(file.append(event));
        }
        match written.and_then(|()| file.sync()) {
            Ok(()) => is_said = false,
            Err(why) if !is_said => {
                is_said = true;
                warn!(
                    "{}: events are kept in memory only: {why}",
                    place.newest.display()
                );
            }
            Err(_) => {}
        }
    }
}

/// The newest file, once it is open.
struct Open<'a> {
    place: &'a EventFiles,
    file: Option<File>,
    /// The length of the whole lines.
    len: u64,
}

impl Open<'_> {
    fn append(&mut self, event: Event) -> io::Result<()> {
        let line = self.place.line(event)?;
        if self.len > 0 && self.len + line.len() as u64 > FULL {
            self.file = None;
            fs::rename(&self.place.newest, &self.place.old)?;
            self.len = 0;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let options = options.append(true).create(true).mode(0o600);
                let file = options.open(&self.place.newest)?;
                self.len = self.len.min(file.metadata()?.len());
                file.set_len(self.len)?;
                self.file.insert(file)
            }
        };
        if let Err(why) = file.write_all(&line) {
            // A part of the line may be there; the next time it is cut off.
            self.file = None;
            return Err(why);
        }
        self.len += line.len() as u64;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    fn event(text: &str) -> Event {
        Event::new("test", text.to_owned())
    }

    fn texts(events: &Events) -> Vec<&str> {
        events
            .kept
            .iter()
            .map(|event| event.text.as_str())
            .collect()
    }

    /// Keeps events in a directory, as one process of the controller.
    fn keep(dir: &TestDir, all: &[&str]) {
        let mut events = Events::open(dir.path(), 7);
        all.iter().for_each(|text| events.keep(event(text)));
    }

    fn names(dir: &TestDir) -> Vec<String> {
        let entries = fs::read_dir(dir.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn events_survive_a_restart_and_their_numbers_rise() {
        let dir = TestDir::new();
        keep(&dir, &["a", "b"]);
        keep(&dir, &["c"]);
        let events = Events::open(dir.path(), 7);
        assert_eq!(texts(&events), ["a", "b", "c"]);
        let numbers = |answer: &Value| {
            let events = answer["events"].as_array().unwrap().iter();
            events
                .map(|event| event["n"].as_u64().unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(&events.after(0, 100)), [1, 2, 3]);
        assert_eq!(numbers(&events.after(0, 2)), [2, 3]);
        assert_eq!(numbers(&events.after(2, 2)), [3]);
        assert_eq!(numbers(&events.after(9, 2)), [0; 0]);
        assert_eq!(events.after(0, 1)["newest"], 3);
    }

    #[test]
    fn a_torn_last_line_is_cut_off() {
        let dir = TestDir::new();
        keep(&dir, &["a", "b"]);
        let file = dir.path().join("events.jsonl");
        let whole = fs::read(&file).unwrap();
        let second = whole.len() / 2 + 1;
        for len in [whole.len() - 1, second + 5, whole.len() / 2 + 2] {
            fs::write(&file, &whole[..len]).unwrap();
            keep(&dir, &["c"]);
            let events = Events::open(dir.path(), 7);
            assert_eq!(texts(&events), ["a", "c"], "{len} bytes");
            assert_eq!(names(&dir), ["events.jsonl"]);
        }
    }

    #[test]
    fn what_cannot_be_used_is_set_aside() {
        let dir = TestDir::new();
        keep(&dir, &["a", "b", "c"]);
        let file = dir.path().join("events.jsonl");
        let whole = fs::read(&file).unwrap();
        let mut damaged = whole.clone();
        damaged[whole.len() / 2] ^= 4;
        let text = String::from_utf8(whole.clone()).unwrap();
        let foreign = text.replace("\"format\":1", "\"format\":9").into_bytes();
        for (at, bytes) in [damaged, foreign, b"hello\nworld\n".to_vec()]
            .iter()
            .enumerate()
        {
            fs::write(&file, bytes).unwrap();
            keep(&dir, &["d"]);
            assert_eq!(texts(&Events::open(dir.path(), 7)), ["d"]);
            assert_eq!(names(&dir).len(), at + 2, "{:?}", names(&dir));
        }
        fs::write(&file, &whole).unwrap();
        let other = Events::open(dir.path(), 8);
        assert!(texts(&other).is_empty());
        assert_eq!(names(&dir).len(), 4);
        drop(other);
        fs::create_dir(&file).unwrap();
        keep(&dir, &["e"]);
        assert_eq!(texts(&Events::open(dir.path(), 7)), ["e"]);
    }

    #[test]
    fn files_and_memory_are_bounded() {
        let dir = TestDir::new();
        let long = "x".repeat(10_000);
        let mut events = Events::open(dir.path(), 7);
        for n in 0..KEPT + 10 {
            events.keep(event(&format!("{n} {long}")));
            // The thread must be as fast, so that every event is written.
            if n % 500 == 0 {
                drop(events);
                events = Events::open(dir.path(), 7);
            }
        }
        assert!(events.kept.len() <= KEPT);
        drop(events);
        assert_eq!(names(&dir), ["events.jsonl", "events.old.jsonl"]);
        for name in names(&dir) {
            let len = fs::metadata(dir.path().join(name)).unwrap().len();
            assert!(len <= FULL, "{len}");
        }
        let events = Events::open(dir.path(), 7);
        let last = events.kept.back().unwrap();
        assert_eq!(last.n, (KEPT + 10) as u64);
        assert!(last.text.len() <= 500);
        let answer = events.after(0, u32::MAX);
        assert_eq!(answer["events"].as_array().unwrap().len(), MAX_ANSWERED);
    }
}
