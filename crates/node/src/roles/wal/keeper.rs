// SPDX-License-Identifier: Apache-2.0
//! A thread beside the log: it makes the next segment ahead of time, takes the files of segments that are
//! needed no more for it, and reads all that are needed again and again, to find damage before a restart does.

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tracing::error;

use super::files::{Files, Handle};
use super::{Segment, Sizes, segment, segment_name, spare_name};

/// Files of old segments that are kept.
const SPARES: usize = 2;
/// Zeros are written and synced in pieces of this size, so that no frame waits long behind them.
const ZEROS: usize = 256 << 10;
/// So many bytes are read, to check them, each time that it has waited so long.
const PIECE: usize = 1 << 20;
const PAUSE: Duration = match cfg!(test) {
    true => Duration::from_millis(2),
    false => Duration::from_secs(1),
};

enum Order {
    Prepare(u32),
    /// What becomes of a segment that is needed no more.
    Reuse(u32),
    Remove(u32),
    SetAside(u32),
}

/// What both threads know of the segments.
#[derive(Default)]
struct Survey {
    /// Up to where each one that is needed was synced, by its number.
    written: VecDeque<(u32, u64)>,
    /// What was found damaged, and the log doesn't know yet.
    found: Option<u32>,
    /// What was found damaged before, and is left alone.
    known: Vec<u32>,
    checks: u64,
    /// The log waits for the segment that is being made.
    is_awaited: bool,
    /// It is closed.
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

    /// Makes a segment; [`Self::next`] returns it.
    pub fn prepare(&self, number: u32) {
        self.order(Order::Prepare(number));
    }

    /// The segment that was prepared; waits until it is.
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

    /// A segment that a crash has left, although it was needed no more. Nobody has read it, so it isn't used again.
    pub fn remove(&self, number: u32) {
        self.order(Order::Remove(number));
    }

    /// A segment is needed no more.
    pub fn let_go(&self, segment: &Segment) {
        self.survey().written.retain(|(n, _)| *n != segment.number);
        self.order(match segment {
            Segment { damaged: true, .. } => Order::SetAside(segment.number),
            Segment { shared: true, .. } => Order::Remove(segment.number),
            _ => Order::Reuse(segment.number),
        });
    }

    /// So much of a segment is synced.
    pub fn written(&self, number: u32, bytes: u64) {
        let mut survey = self.survey();
        match survey.written.back_mut() {
            Some((last, written)) if *last == number => *written = bytes,
            _ => survey.written.push_back((number, bytes)),
        }
    }

    /// A segment that was found damaged since the last call.
    pub fn take_damage(&self) -> Option<u32> {
        self.survey().found.take()
    }

    /// Times that every segment was checked.
    pub fn checks(&self) -> u64 {
        self.survey().checks
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // It is gone only after a panic, which `next` shows.
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
            // What it prepares is found by the next start.
            let _ = thread.join();
        }
    }
}

/// It is whole whenever it isn't locked.
fn lock(survey: &Mutex<Survey>) -> MutexGuard<'_, Survey> {
    survey.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread's own.
struct Work {
    files: Arc<dyn Files>,
    /// Nobody else syncs it.
    progress: Handle,
    key: u64,
    segment_bytes: u64,
    spares: Vec<u32>,
    survey: Arc<Mutex<Survey>>,
    /// What is checked next: segment and offset.
    at: (u32, u64),
}

impl Work {
    /// A segment gets its name once it is as it is to be: one of another size was damaged.
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

    /// Its zeros are written, and its room not only taken: otherwise each sync would also have to store
    /// that they are.
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
                // What was made of it is removed by the next start.
                (true, _) => return Err(io::ErrorKind::Interrupted.into()),
                (_, true) => {}
                _ => std::thread::sleep(begun.elapsed()),
            }
        }
        self.files.rename(&fresh, name)?;
        Ok(file)
    }

    /// Where this fails the file stays, and the next start tries again.
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
        // A spare must not have its old name any more when it is used: `prepare` syncs both at once.
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
        // It was let go meanwhile.
        if !survey.written.iter().any(|(n, _)| *n == number) {
            return;
        }
        error!(
            "{} IS DAMAGED: {why}. What it holds is still in memory and is stored once more. The disk \
             has lost or changed what was synced: replace it",
            self.files.path().join(segment_name(number)).display()
        );
        survey.known.push(number);
        survey.found = Some(number);
    }

    /// Goes through all of them, and begins anew.
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

    /// What was synced of this piece.
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
        let place = segment::Place {
            key: self.key,
            segment: number,
        };
        segment::check(&piece, offset, place)
    }
}
