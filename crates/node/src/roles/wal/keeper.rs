// SPDX-License-Identifier: Apache-2.0
//! A thread beside the log. It makes the next segment ahead of time, for which it reuses files of
//! freed segments, and keeps rereading all needed segments to find damage before a restart does.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::error;

use super::files::{Files, Handle};
use super::{Segment, Sizes, segment, segment_name, spare_name};

/// How many files of freed segments are kept for reuse.
const SPARES: usize = 2;
/// Zeros are written and synced in pieces of this size, so that no frame waits long behind them.
const ZEROS: usize = 256 << 10;
/// This many bytes are read and checked after each pause.
const PIECE: usize = 1 << 20;
const PAUSE: Duration = match cfg!(test) {
    true => Duration::from_millis(2),
    false => Duration::from_secs(1),
};

enum Order {
    Prepare(u32),
    /// Keeps the file of a freed segment for reuse.
    Reuse(u32),
    Remove(u32),
    SetAside(u32),
}

/// The state that the log and the keeper's thread share.
#[derive(Default)]
struct Survey {
    /// How far each needed segment is synced, by its number.
    written: VecDeque<(u32, u64)>,
    /// A segment that was found damaged and not yet reported to the log.
    found: Option<u32>,
    /// Damaged segments that were reported, and are not checked again.
    known: Vec<u32>,
    checks: u64,
    /// The log waits for the segment that is being made.
    is_awaited: bool,
    /// The log is closed, and the thread ends.
    ends: bool,
}

pub struct Keeper {
    orders: Option<Sender<Order>>,
    prepared: Receiver<io::Result<Handle>>,
    survey: Arc<Mutex<Survey>>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(
        files: Arc<dyn Files>,
        progress: Handle,
        key: u64,
        sizes: Sizes,
        spares: Vec<u32>,
    ) -> io::Result<Keeper> {
        let (orders, to_do) = channel();
        let (ready, prepared) = channel();
        let survey = Arc::new(Mutex::new(Survey::default()));
        let mut work = Work {
            files,
            progress,
            key,
            segment_bytes: sizes.segment_bytes,
            spares,
            survey: survey.clone(),
            at: (0, 0),
        };
        let run = move || {
            loop {
                match to_do.recv_timeout(PAUSE) {
                    Ok(Order::Prepare(number)) => {
                        if ready.send(work.prepare(number)).is_err() {
                            return;
                        }
                    }
                    Ok(order) => work.let_go(&order),
                    Err(RecvTimeoutError::Timeout) => work.check_a_piece(),
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        let thread = std::thread::Builder::new().name("log keeper".to_owned());
        Ok(Keeper {
            orders: Some(orders),
            prepared,
            survey,
            thread: Some(thread.spawn(run)?),
        })
    }

    /// Orders a segment, which [`Self::next`] returns.
    pub fn prepare(&self, number: u32) {
        self.order(Order::Prepare(number));
    }

    /// Returns the segment that was prepared, and waits until it is ready.
    pub fn next(&self) -> io::Result<Handle> {
        if let Ok(prepared) = self.prepared.try_recv() {
            return prepared;
        }
        self.survey().is_awaited = true;
        let prepared = self.prepared.recv();
        self.survey().is_awaited = false;
        let gone = |_| Err(io::Error::other("the thread that makes segments panicked"));
        prepared.unwrap_or_else(gone)
    }

    /// Removes a segment that was freed before a crash. It hasn't been read, so it may be damaged
    /// and isn't reused.
    pub fn remove(&self, number: u32) {
        self.order(Order::Remove(number));
    }

    /// Frees a segment: it is reused, removed if a copy shares its file, or set aside if it is
    /// damaged.
    pub fn let_go(&self, segment: &Segment) {
        self.survey().written.retain(|(n, _)| *n != segment.number);
        self.order(match segment {
            Segment { damaged: true, .. } => Order::SetAside(segment.number),
            Segment { shared: true, .. } => Order::Remove(segment.number),
            _ => Order::Reuse(segment.number),
        });
    }

    /// Notes how many bytes of a segment are synced, so that those are checked.
    pub fn written(&self, number: u32, bytes: u64) {
        let mut survey = self.survey();
        match survey.written.back_mut() {
            Some((last, written)) if *last == number => *written = bytes,
            _ => survey.written.push_back((number, bytes)),
        }
    }

    /// Returns a segment that was found damaged since the last call.
    pub fn take_damage(&self) -> Option<u32> {
        self.survey().found.take()
    }

    /// Returns how often every segment was checked.
    pub fn checks(&self) -> u64 {
        self.survey().checks
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // Sending fails only after a panic of the thread, which `next` reports.
            let _ = orders.send(order);
        }
    }

    fn survey(&self) -> MutexGuard<'_, Survey> {
        lock(&self.survey)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.orders = None;
        self.survey().ends = true;
        if let Some(thread) = self.thread.take() {
            // The next start finds the segment that the thread may still have prepared.
            let _ = thread.join();
        }
    }
}

/// Locks the survey even after a panic: it is consistent whenever it isn't locked.
fn lock(survey: &Mutex<Survey>) -> MutexGuard<'_, Survey> {
    survey.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The state of the keeper's thread.
struct Work {
    files: Arc<dyn Files>,
    /// A second handle of the file `progress`, which only this thread syncs.
    progress: Handle,
    key: u64,
    segment_bytes: u64,
    spares: Vec<u32>,
    survey: Arc<Mutex<Survey>>,
    /// The segment and offset to check next.
    at: (u32, u64),
}

impl Work {
    /// Makes a segment, or reuses a spare. A file gets its name only when it is complete, so a
    /// segment of another size must be damaged.
    fn prepare(&mut self, number: u32) -> io::Result<Handle> {
        let name = segment_name(number);
        let file = match self.spares.pop() {
            Some(spare) => {
                self.files.rename(&spare_name(spare), &name)?;
                self.files.open(&name)?
            }
            None => self.make(&name)?,
        };
        self.files.sync()?;
        self.progress.sync()?;
        Ok(file)
    }

    /// Creates a file and writes its zeros. If its room were only reserved, each later sync would
    /// also have to store that the room is now used.
    fn make(&self, name: &str) -> io::Result<Handle> {
        let fresh = format!("{name}.new");
        let file = self.files.create(&fresh, self.segment_bytes)?;
        let zeros = vec![0; ZEROS.min(self.segment_bytes as usize)];
        for offset in (0..self.segment_bytes).step_by(zeros.len()) {
            let begun = Instant::now();
            let left = (self.segment_bytes - offset).min(zeros.len() as u64);
            file.write_all_at(&zeros[..left as usize], offset)?;
            file.sync()?;
            let (awaited, ends) = {
                let survey = lock(&self.survey);
                (survey.is_awaited, survey.ends)
            };
            match (ends, awaited) {
                // The next start removes the unfinished file.
                (true, _) => return Err(io::ErrorKind::Interrupted.into()),
                (_, true) => {}
                _ => std::thread::sleep(begun.elapsed()),
            }
        }
        self.files.rename(&fresh, name)?;
        Ok(file)
    }

    /// Puts a freed segment's file away. If this fails the file stays, and the next start tries
    /// again.
    fn let_go(&mut self, order: &Order) {
        let done = match *order {
            Order::Reuse(n) if self.spares.len() < SPARES => {
                let renamed = self.files.rename(&segment_name(n), &spare_name(n));
                renamed.map(|()| self.spares.push(n))
            }
            Order::SetAside(n) => {
                let aside = format!("damaged-{}", segment_name(n));
                self.files.rename(&segment_name(n), &aside)
            }
            Order::Reuse(n) | Order::Remove(n) => self.files.remove(&segment_name(n)),
            Order::Prepare(_) => Ok(()),
        };
        // A spare must have lost its old name durably before it is reused, since `prepare` syncs
        // both names at once.
        if let Err(e) = done.and_then(|()| self.files.sync()) {
            error!(why = %e, "a segment of the log that is needed no more can't be put away");
        }
    }

    fn check_a_piece(&mut self) {
        let Some((number, offset, written)) = self.next_piece() else {
            return;
        };
        let found = self.check(number, offset, written);
        self.at = (number, offset + PIECE as u64);
        let Err(why) = found else { return };
        let mut survey = lock(&self.survey);
        // The log has freed this segment meanwhile.
        if !survey.written.iter().any(|(n, _)| *n == number) {
            return;
        }
        error!(
            "{} IS DAMAGED: {why}. What it holds is still in memory and is stored once more. The \
             disk has lost or changed what was synced: replace it",
            self.files.path().join(segment_name(number)).display()
        );
        survey.known.push(number);
        survey.found = Some(number);
    }

    /// Returns the next piece to check; after the last segment it begins again with the first.
    fn next_piece(&mut self) -> Option<(u32, u64, u64)> {
        let mut survey = lock(&self.survey);
        let (segment, offset) = self.at;
        let known = std::mem::take(&mut survey.known);
        let mut pieces = survey.written.iter().filter(|(n, _)| !known.contains(n));
        let next = pieces.find_map(|(n, written)| match *n {
            n if n == segment && offset < *written => Some((n, offset, *written)),
            n if n > segment && *written > 0 => Some((n, 0, *written)),
            _ => None,
        });
        survey.known = known;
        if next.is_none() {
            survey.checks += 1;
            self.at = (0, 0);
        }
        next
    }

    /// Reads the synced bytes of a piece from the disk, and returns an error if they are damaged.
    fn check(&self, number: u32, offset: u64, written: u64) -> Result<(), String> {
        let unreadable = |e: io::Error| format!("it can't be read: {e}");
        let file = self.files.open(&segment_name(number)).map_err(unreadable)?;
        let mut piece = vec![0; PIECE.min((written - offset) as usize)];
        let read = file
            .read_from_disk(&mut piece, offset)
            .map_err(unreadable)?;
        if read < piece.len() {
            return Err("it is cut".to_owned());
        }
        let id = segment::SegmentId {
            key: self.key,
            segment: number,
        };
        segment::check(&piece, offset, id)
    }
}
