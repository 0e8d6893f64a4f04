// SPDX-License-Identifier: Apache-2.0
//! Wakes a thread that waits for sockets.
//!
//! A wake costs a system call only if the thread may be asleep, and only the first of several wakes
//! does. So workers that share a thread wake one another at no cost, and so do threads that are
//! busy anyway.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The waiting side. It counts as asleep until it says that it is awake.
pub struct Waker {
    bell: UnixStream,
    sleep: Arc<Sleep>,
}

/// The waking side. A job must be left before the other side is woken.
#[derive(Clone)]
pub struct Wake {
    bell: Arc<UnixStream>,
    sleep: Arc<Sleep>,
}

/// Returns a connected pair.
pub fn waker_pair() -> io::Result<(Wake, Waker)> {
    let (wake, waker) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    waker.set_nonblocking(true)?;
    let sleep = Arc::new(Sleep::default());
    let wake = Wake {
        bell: Arc::new(wake),
        sleep: sleep.clone(),
    };
    Ok((wake, Waker { bell: waker, sleep }))
}

impl Wake {
    /// Wakes the other side.
    pub fn wake(&self) {
        if self.sleep.wake() {
            // There is room, since the other side has been awake between two bytes.
            let _ = (&*self.bell).write(&[1]);
        }
    }
}

impl Waker {
    /// Makes every later wake ring the bell. Returns false if there has been a wake since the other
    /// side was last awake; then it must look for jobs, and must not wait.
    pub fn fall_asleep(&self) -> bool {
        self.sleep.fall_asleep()
    }

    /// Makes later wakes cost nothing; `rung` means that the bell was found readable. Returns
    /// whether there was a wake, whose job is there by now.
    pub fn wake_up(&self, rung: bool) -> bool {
        if rung {
            self.drain();
        }
        self.sleep.wake_up()
    }

    fn drain(&self) {
        let mut buffer = [0; 64];
        while matches!((&self.bell).read(&mut buffer), Ok(n) if n == buffer.len()) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The state of the waiting side: it may be asleep, and it may have been woken.
///
/// ```text
///   AWAKE  -- fall_asleep --> ASLEEP
///   ASLEEP -- wake, rings --> WOKEN
///   AWAKE  -- wake ---------> WOKEN      WOKEN -- fall_asleep: fails --> WOKEN
///   any    -- wake_up ------> AWAKE
/// ```
///
/// No wake is lost. Each step is one atomic exchange, so all steps are in one order, and a step
/// sees everything that was written before earlier steps. Suppose that a thread leaves a job and
/// then wakes. Its step finds
///
/// - ASLEEP, and rings the bell. The other side ends its wait by the bell or for another reason,
///   then calls `wake_up`, and finds the job. Wakes in between find WOKEN, and their jobs are found
///   as well, even if the thread that rings is slow: the state has left ASLEEP before the bell
///   rings, so the bell can't be drained before and the side sleep on.
/// - WOKEN. A `wake_up` is still to come, and the job is found there.
/// - AWAKE. The next `fall_asleep` fails, `wake_up` comes next, and the job is found.
///
/// A bell that rings after the other side has woken up for another reason only ends its next wait
/// early.
#[derive(Default)]
struct Sleep(AtomicU8);

const ASLEEP: u8 = 0;
const AWAKE: u8 = 1;
const WOKEN: u8 = 2;

impl Sleep {
    /// Sets the state to WOKEN, and returns whether the bell must ring.
    fn wake(&self) -> bool {
        self.0.swap(WOKEN, Ordering::AcqRel) == ASLEEP
    }

    fn fall_asleep(&self) -> bool {
        let fallen = self
            .0
            .compare_exchange(AWAKE, ASLEEP, Ordering::AcqRel, Ordering::Acquire);
        fallen != Err(WOKEN)
    }

    fn wake_up(&self) -> bool {
        self.0.swap(AWAKE, Ordering::AcqRel) == WOKEN
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::host::wait_for;

    /// The state of two threads that wake and one that waits, after any of their steps.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        sleep: u8,
        /// The bells that have rung since the waiting side last listened.
        bells: u8,
        jobs: u8,
        waits: Waits,
        wakers: [Step; 2],
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Waits {
        FallsAsleep,
        /// Waits for a bell, unless it must not wait.
        Polls {
            waits: bool,
        },
        Drains,
        WakesUp,
        TakesJobs,
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Step {
        /// This many more times.
        LeavesJob(u8),
        Wakes(u8),
        Rings(u8),
    }

    impl World {
        fn on_sleep<T>(&mut self, step: impl Fn(&Sleep) -> T) -> T {
            let sleep = Sleep(AtomicU8::new(self.sleep));
            let result = step(&sleep);
            self.sleep = sleep.0.into_inner();
            result
        }

        /// Takes a step of the waiting side, or returns `None` if it sleeps. With `packet` an
        /// arriving packet ends the wait, and not a wake-up.
        fn waits(mut self, packet: bool) -> Option<World> {
            self.waits = match self.waits {
                Waits::FallsAsleep => Waits::Polls {
                    waits: self.on_sleep(Sleep::fall_asleep),
                },
                Waits::Polls { .. } if self.bells > 0 => Waits::Drains,
                Waits::Polls { waits: true } if !packet => return None,
                Waits::Polls { .. } => Waits::WakesUp,
                Waits::Drains => {
                    self.bells = 0;
                    Waits::WakesUp
                }
                Waits::WakesUp => match self.on_sleep(Sleep::wake_up) {
                    true => Waits::TakesJobs,
                    false => Waits::FallsAsleep,
                },
                Waits::TakesJobs => {
                    self.jobs = 0;
                    Waits::FallsAsleep
                }
            };
            Some(self)
        }

        /// Takes a step of a waking thread, or returns `None` if it has done all.
        fn wakes(mut self, who: usize) -> Option<World> {
            self.wakers[who] = match self.wakers[who] {
                Step::LeavesJob(0) => return None,
                Step::LeavesJob(left) => {
                    self.jobs += 1;
                    Step::Wakes(left - 1)
                }
                Step::Wakes(left) => match self.on_sleep(Sleep::wake) {
                    true => Step::Rings(left),
                    false => Step::LeavesJob(left),
                },
                Step::Rings(left) => {
                    self.bells += 1;
                    Step::LeavesJob(left)
                }
            };
            Some(self)
        }
    }

    /// In all orders of steps, a waiting side that sleeps for good has found all jobs.
    #[test]
    fn no_wake_is_lost() {
        let mut to_visit = vec![World {
            sleep: ASLEEP,
            bells: 0,
            jobs: 0,
            waits: Waits::FallsAsleep,
            wakers: [Step::LeavesJob(3); 2],
        }];
        let mut seen = BTreeSet::new();
        let mut ends = 0;
        while let Some(world) = to_visit.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let woken = [0, 1].map(|who| world.clone().wakes(who));
            let goes_on = world.clone().waits(false);
            if goes_on.is_none() && woken.iter().all(Option::is_none) {
                assert_eq!(world.jobs, 0, "it sleeps");
                ends += 1;
            }
            let by_packet = world.waits(true);
            to_visit.extend(woken.into_iter().chain([goes_on, by_packet]).flatten());
        }
        assert!(ends > 0 && seen.len() > 1_000, "{ends} of {}", seen.len());
    }

    fn is_readable(waker: &Waker) -> bool {
        let ready = wait_for([waker.as_fd()].into_iter(), Some(Duration::ZERO));
        ready.unwrap().has(0)
    }

    #[test]
    fn who_is_awake_is_woken_for_nothing_and_who_sleeps_by_one_bell() {
        let (wake, waker) = waker_pair().unwrap();
        wake.wake();
        assert!(is_readable(&waker), "it is asleep at first");
        assert!(!waker.fall_asleep() && waker.wake_up(true));
        wake.wake();
        assert!(!is_readable(&waker) && !waker.fall_asleep());
        assert!(waker.wake_up(false) && !waker.wake_up(false) && waker.fall_asleep());
        wake.wake();
        wake.clone().wake();
        let mut bells = [0; 8];
        assert_eq!((&waker.bell).read(&mut bells).unwrap(), 1);
    }

    /// With real threads, each job is left while the other side falls asleep, or nearly so.
    #[test]
    fn a_thread_that_falls_asleep_finds_every_job() {
        const ROUNDS: u32 = 100_000;
        let (wake, waker) = waker_pair().unwrap();
        let (give, given) = mpsc::channel();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            for n in 0..ROUNDS {
                give.send(n).unwrap();
                wake.wake();
                if n % 3 == 0 && is_done.recv().is_err() {
                    return;
                }
            }
        });
        let mut found = 0;
        while found < ROUNDS {
            let sleeps = waker.fall_asleep();
            if sleeps {
                let ready = wait_for([waker.as_fd()].into_iter(), Some(Duration::from_secs(30)));
                assert!(ready.unwrap().has(0), "{found}");
            }
            if !waker.wake_up(sleeps) {
                continue;
            }
            for n in given.try_iter() {
                found += 1;
                if n % 3 == 0 {
                    done.send(()).unwrap();
                }
            }
        }
    }
}
