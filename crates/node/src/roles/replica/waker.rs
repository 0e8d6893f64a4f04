// SPDX-License-Identifier: Apache-2.0
//! Wakes a thread that waits for sockets.
//!
//! A wake costs a system call only if the thread may be asleep, and only the first of several does. So workers that share a
//! thread tell one another for nothing, and so do threads that are busy anyway.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// The waiting side. It is asleep until it says that it isn't.
pub struct Waker {
    bell: UnixStream,
    sleep: Arc<Sleep>,
}

/// The waking side. What the other side is to find has to be there before it is woken.
#[derive(Clone)]
pub struct Wake {
    bell: Arc<UnixStream>,
    sleep: Arc<Sleep>,
}

/// A connected pair.
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
            // There is room: between two bytes the other side has been awake.
            let _ = (&*self.bell).write(&[1]);
        }
    }
}

impl Waker {
    /// From now on a wake makes this readable. False if there has been one since the other side was awake: then it has to
    /// look what there is, and must not wait.
    pub fn fall_asleep(&self) -> bool {
        self.sleep.fall_asleep()
    }

    /// From now on a wake costs nothing. `rung`: it was found readable. Says whether somebody has woken it; what was left
    /// before that is there.
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

/// Whether the waiting side may be asleep, and whether it was woken.
///
/// ```text
///   AWAKE  -- fall_asleep --> ASLEEP
///   ASLEEP -- wake, rings --> WOKEN
///   AWAKE  -- wake ---------> WOKEN      WOKEN -- fall_asleep: fails --> WOKEN
///   any    -- wake_up ------> AWAKE
/// ```
///
/// No wake is lost. Each step is one atomic exchange, so all of them are in one order, and who takes a step sees what the others
/// wrote before theirs that lie before it. Let somebody leave a job and then wake. That step finds
///
/// - ASLEEP, and rings. The other side ends its wait by the bell or for another reason, then `wake_up` comes, and the job is
///   found. Wakes in between find WOKEN, and their jobs are found as well, though the one who rings may take its time: it
///   has left ASLEEP before it rings, so nobody takes its bell for nothing and sleeps on.
/// - WOKEN. A `wake_up` is still to come, and the job is found there.
/// - AWAKE. The next `fall_asleep` fails, `wake_up` comes next, and the job is found.
///
/// A bell that rings after the other side has woken up for another reason ends its next wait for nothing. That is all.
#[derive(Default)]
struct Sleep(AtomicU8);

const ASLEEP: u8 = 0;
const AWAKE: u8 = 1;
const WOKEN: u8 = 2;

impl Sleep {
    /// Whether the bell has to ring.
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

    /// Everything that two who wake and one who waits have done so far, one step of one of them at a time.
    #[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
    struct World {
        sleep: u8,
        /// Bells that have rung since the waiting side has listened.
        bells: u8,
        jobs: u8,
        waits: Waits,
        wakers: [Step; 2],
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Waits {
        FallsAsleep,
        /// Until there is a bell, unless it must not.
        Polls {
            waits: bool,
        },
        Drains,
        WakesUp,
        TakesJobs,
    }

    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Step {
        /// So many times more.
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

        /// A step of the waiting side; nothing where it sleeps. `packet`: something else than a bell ends its wait.
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

        /// A step of one who wakes; nothing where it has done all.
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

    /// In all orders of their steps: who sleeps for good has found all jobs.
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

    /// By real threads: each job is left while the other side falls asleep, or nearly.
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
