// SPDX-License-Identifier: Apache-2.0
//! Operations of the host besides sockets and files: waiting, stopping, pinning, disk space, and
//! who may read stored files.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::mem;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use libc::c_int;

use crate::lock::lock;

/// Returns the nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share.
pub fn monotonic_ns() -> u64 {
    // SAFETY: all zeros is a valid value of this plain structure.
    let mut now: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: `now` lives. This clock exists on every Linux, so the call can't fail.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Tells the threads of a node to end in good order. Threads that wait also wait for its
/// descriptor, so none has to wake up just to check.
pub struct Stop {
    requested: AtomicBool,
    event: OwnedFd,
    awaited: Mutex<Option<Awaited>>,
    may_begin_anew: AtomicBool,
    begins_anew: AtomicBool,
}

/// Who waits until nodes are ready.
struct Awaited {
    /// The nodes that aren't ready yet.
    nodes: usize,
    tell: Box<dyn FnOnce() + Send>,
}

impl Stop {
    /// Returns a stop that hasn't been requested.
    pub fn new() -> io::Result<Arc<Stop>> {
        Ok(Arc::new(Stop {
            requested: AtomicBool::new(false),
            event: event()?,
            awaited: Mutex::new(None),
            may_begin_anew: AtomicBool::new(false),
            begins_anew: AtomicBool::new(false),
        }))
    }

    /// Calls `tell` once, as soon as so many nodes that are run with this stop are ready: they have
    /// read what they store and listen. A node that can't start never is.
    pub fn on_ready(&self, nodes: usize, tell: impl FnOnce() + Send + 'static) {
        let tell = Box::new(tell);
        *lock(&self.awaited) = Some(Awaited { nodes, tell });
    }

    /// Notes that another node is ready.
    pub(crate) fn has_another_ready(&self) {
        let mut awaited = lock(&self.awaited);
        let Some(one) = awaited.as_mut() else { return };
        one.nodes = one.nodes.saturating_sub(1);
        if one.nodes == 0 {
            let one = awaited.take();
            drop(awaited);
            if let Some(one) = one {
                (one.tell)();
            }
        }
    }

    /// Requests the stop. It may be called from any thread, any number of times, and from a signal
    /// handler.
    pub fn request(&self) {
        self.begins_anew.store(false, Ordering::Release);
        self.end();
    }

    fn end(&self) {
        self.requested.store(true, Ordering::Release);
        raise(&self.event);
    }

    /// Promises that the process starts its nodes again whenever
    /// [`begins_anew`](Self::begins_anew) is true at their end.
    pub fn allow_to_begin_anew(&self) {
        self.may_begin_anew.store(true, Ordering::Release);
    }

    /// Requests the stop, after which the nodes are started again. Returns false if that was never
    /// promised.
    pub(crate) fn begin_anew(&self) -> bool {
        let may = self.may_begin_anew.load(Ordering::Acquire);
        if may && !self.is_requested() {
            self.begins_anew.store(true, Ordering::Release);
            self.end();
        }
        may
    }

    /// Returns whether the stop was requested only to start the nodes again.
    pub fn begins_anew(&self) -> bool {
        self.begins_anew.load(Ordering::Acquire)
    }

    /// Returns whether the stop was requested.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Acquire)
    }

    /// Makes SIGTERM, SIGINT and SIGHUP of this process request this stop, so that a closed
    /// terminal costs no votes; under `nohup`, SIGHUP stays ignored. This is for programs that run
    /// one node (or one embedded cluster); the handle is never freed.
    pub fn on_signals(self: &Arc<Stop>) -> io::Result<()> {
        SIGNALLED.store(
            Arc::into_raw(Arc::clone(self)).cast_mut(),
            Ordering::Release,
        );
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            // SAFETY: a zeroed sigaction is valid; the handler does only what is allowed in one.
            let result = unsafe {
                let mut action: libc::sigaction = mem::zeroed();
                let mut before: libc::sigaction = mem::zeroed();
                if libc::sigaction(signal, ptr::null(), &mut before) == 0
                    && signal == libc::SIGHUP
                    && before.sa_sigaction == libc::SIG_IGN
                {
                    continue;
                }
                action.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
                action.sa_flags = libc::SA_RESTART;
                libc::sigaction(signal, &action, ptr::null_mut())
            };
            if result < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

impl AsFd for Stop {
    /// Returns a descriptor that is readable once the stop was requested.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// Wakes a thread that also waits for other descriptors.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub fn new() -> io::Result<Bell> {
        event().map(Bell)
    }

    /// Makes the bell readable. It may be called from any thread.
    pub fn ring(&self) {
        raise(&self.0);
    }

    /// Makes the bell unreadable until it rings again.
    pub fn hush(&self) {
        let mut count = 0u64;
        // SAFETY: reads 8 bytes into 8 live ones. It fails only if the bell didn't ring.
        let _ = unsafe { libc::read(self.0.as_raw_fd(), ptr::from_mut(&mut count).cast(), 8) };
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn event() -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Raises an event; allowed in a signal handler.
fn raise(event: &OwnedFd) {
    let one = 1u64;
    // SAFETY: writes 8 live bytes to a descriptor of our own. It fails only if the event's
    // counter is full, and then it is raised already.
    let _ = unsafe { libc::write(event.as_raw_fd(), ptr::from_ref(&one).cast(), 8) };
}

/// The stop that signals request: null, or leaked by [`Stop::on_signals`].
static SIGNALLED: AtomicPtr<Stop> = AtomicPtr::new(ptr::null_mut());

extern "C" fn on_signal(_: c_int) {
    // SAFETY: null, or a pointer that was leaked and so stays valid. `request` stores an atomic
    // and calls write, both allowed in a signal handler.
    if let Some(stop) = unsafe { SIGNALLED.load(Ordering::Acquire).as_ref() } {
        stop.request();
    }
}

/// The descriptors that are ready after a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready(u128);

impl Ready {
    /// Returns whether the `i`-th descriptor is ready.
    pub fn has(self, i: usize) -> bool {
        self.0 & 1 << i != 0
    }

    /// Returns whether no descriptor is ready.
    pub fn none(self) -> bool {
        self.0 == 0
    }
}

/// Room for the sockets of 64 partitions, and a few more.
const MAX_WAIT_FDS: usize = 72;

/// Waits until one of `fds` (at most 72) is readable, for at most `timeout`. Returns early, with
/// nothing ready, when a signal comes.
pub fn wait(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Ready> {
    wait_for(fds.iter().copied(), timeout)
}

/// Waits like [`wait`] for descriptors that are in no slice.
pub fn wait_for<'a>(
    fds: impl Iterator<Item = BorrowedFd<'a>>,
    timeout: Option<Duration>,
) -> io::Result<Ready> {
    Spinner::new(Duration::ZERO).wait_for(fds, timeout)
}

/// Polls for a while before it sleeps, since waking a thread takes longer than everything else when
/// little is in flight. Between polls it yields the CPU to other threads.
pub struct Spinner {
    spin: Duration,
    crowd: Crowd,
}

impl Spinner {
    /// Returns a spinner that polls for `spin` before it sleeps.
    pub fn new(spin: Duration) -> Spinner {
        Spinner {
            spin,
            crowd: Crowd::default(),
        }
    }

    /// Waits like the function [`wait_for`], but polls first.
    pub fn wait_for<'a>(
        &mut self,
        fds: impl Iterator<Item = BorrowedFd<'a>>,
        timeout: Option<Duration>,
    ) -> io::Result<Ready> {
        let mut entries = [NO_ENTRY; MAX_WAIT_FDS];
        let entries = fill(&mut entries, fds);
        let spin = timeout.map_or(self.spin, |timeout| timeout.min(self.spin));
        if spin.is_zero() || !self.crowd.lets_spin() {
            return poll(entries, timeout);
        }
        let start = Instant::now();
        let (mut looked, mut longest) = (start, None);
        loop {
            let ready = poll(entries, Some(Duration::ZERO))?;
            let spun = start.elapsed();
            if !ready.none() || spun >= spin {
                self.crowd.let_others_run(longest);
                return match ready.none() {
                    true => poll(entries, timeout.map(|t| t.saturating_sub(spun))),
                    false => Ok(ready),
                };
            }
            std::thread::yield_now();
            let now = Instant::now();
            longest = longest.max(Some(now - looked));
            looked = now;
        }
    }
}

/// Decides whether spinning is worth while, by how long other threads keep the CPU when the spinner
/// yields. A role of the cluster yields soon, too; a program that computes runs for milliseconds,
/// and then a sleeping thread gets the CPU back sooner than a spinning one.
#[derive(Default)]
struct Crowd {
    /// How many more waits don't spin.
    pauses: u32,
    /// How often others ran for too long, minus how often they didn't.
    strikes: u32,
}

/// Threads that work on a command normally keep the CPU for less than this.
const TOO_LONG: Duration = Duration::from_millis(1);
/// A pause lasts at most 2 to the power of this many waits.
const MAX_STRIKES: u32 = 10;

impl Crowd {
    fn lets_spin(&mut self) -> bool {
        let lets = self.pauses == 0;
        self.pauses = self.pauses.saturating_sub(1);
        lets
    }

    /// Notes the longest time for which others had the CPU during a spin, or `None` if they never
    /// had it.
    fn let_others_run(&mut self, longest: Option<Duration>) {
        match longest {
            None => {}
            Some(time) if time < TOO_LONG => self.strikes = self.strikes.saturating_sub(1),
            Some(_) => {
                self.strikes = (self.strikes + 1).min(MAX_STRIKES);
                self.pauses = 1 << self.strikes;
            }
        }
    }
}

const NO_ENTRY: libc::pollfd = libc::pollfd {
    fd: -1,
    events: libc::POLLIN,
    revents: 0,
};

fn fill<'e, 'a>(
    entries: &'e mut [libc::pollfd],
    fds: impl Iterator<Item = BorrowedFd<'a>>,
) -> &'e mut [libc::pollfd] {
    let mut count = 0;
    for fd in fds {
        entries[count].fd = fd.as_raw_fd();
        count += 1;
    }
    &mut entries[..count]
}

/// Waits for entries that can be polled again.
fn poll(entries: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<Ready> {
    let timeout = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: t.subsec_nanos() as _,
    });
    let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = entries.len() as libc::nfds_t;
    // SAFETY: so many entries are live; the timeout is null or live.
    let n = unsafe { libc::ppoll(entries.as_mut_ptr(), count, timeout, ptr::null()) };
    if n < 0 {
        let error = io::Error::last_os_error();
        return match error.kind() {
            io::ErrorKind::Interrupted => Ok(Ready(0)),
            _ => Err(error),
        };
    }
    let bits = |bits, (i, e): (usize, &libc::pollfd)| bits | u128::from(e.revents != 0) << i;
    Ok(Ready(entries.iter().enumerate().fold(0, bits)))
}

/// Reserves the disk space of a file's first `bytes`, so that a lack of it shows now and later
/// writes only fill it in. The file reads as zeros there.
pub fn preallocate(file: &File, bytes: u64) -> io::Result<()> {
    let length = libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the call takes no pointers.
    if unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // On a file system without this call, writes take the space one by one.
        Some(libc::EOPNOTSUPP) => file.set_len(bytes),
        _ => Err(error),
    }
}

/// Drops a part of a file from the system's cache, so that it is next read from the disk. Unsynced
/// data stays in the cache.
pub(crate) fn forget_cached(file: &File, offset: u64, bytes: u64) {
    let (offset, bytes) = (offset as libc::off_t, bytes as libc::off_t);
    // SAFETY: the call takes no pointers. It is advice: where it is refused, nothing is forgotten.
    let _ =
        unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, bytes, libc::POSIX_FADV_DONTNEED) };
}

/// Pins the calling thread to this CPU and makes it a batch thread, which doesn't preempt the
/// running thread when it is woken. So roles that share a CPU finish their batches: a replica that
/// the first of three votes wakes finds all three, instead of being switched to three times
/// (measured: 70 µs instead of 60 µs a command with everything on one CPU).
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    // SAFETY: a zeroed cpu_set_t is the empty set, `cpu` is within it, and its true size is given.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a zeroed sched_param is valid and what SCHED_BATCH wants. Where it is refused the
    // thread is only a little slower.
    unsafe {
        let parameters: libc::sched_param = mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_BATCH, &parameters);
    }
    Ok(())
}

/// Makes all files and directories that this process creates readable by their owner only (0600 and
/// 0700), including those of libraries such as RocksDB. Only programs call this, since a library
/// must not change its process's mask.
pub fn keep_private() {
    // SAFETY: takes no pointers, and can't fail.
    unsafe { libc::umask(0o077) };
}

/// Returns whether an action that was last done at `last`, or never, is due again.
pub(crate) fn is_due(last: Option<Instant>, interval: Duration) -> bool {
    last.is_none_or(|at| at.elapsed() >= interval)
}

/// Returns an address with a free port on the interface that leads to `peer`, so that replies can
/// reach it.
pub fn local_address(peer: SocketAddr) -> io::Result<SocketAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let probe = UdpSocket::bind((any, 0))?;
    probe.connect(peer)?;
    Ok((probe.local_addr()?.ip(), 0).into())
}

/// Sets how many connections may wait to be accepted, as far as the host allows (`somaxconn`). The
/// standard library sets 128.
pub fn set_backlog(listener: &TcpListener, backlog: c_int) -> io::Result<()> {
    // SAFETY: the call takes no pointers. To a socket that listens already it gives the new number.
    match unsafe { libc::listen(listener.as_raw_fd(), backlog) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Raises the number of files and connections that this process may have open to its hard limit,
/// and returns that limit. Most hosts begin with 1,024 and allow far more.
pub fn raise_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is live, and only written to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is live, and only read.
    match unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } {
        0 => Ok(limit.rlim_cur),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Lets this process keep up to 64 MiB of freed memory. Its batches need about the same memory each
/// time, and each 4 KiB taken from the kernel anew cost a page fault. It works in glibc only.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for (parameter, bytes) in [
        (libc::M_TRIM_THRESHOLD, 64 << 20),
        (libc::M_MMAP_THRESHOLD, 8 << 20),
    ] {
        // SAFETY: takes no pointers, and what was allocated before stays as it is.
        unsafe { libc::mallopt(parameter, bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in its own process, since the limit applies to the whole process.
    #[test]
    fn the_limit_of_open_files_is_raised_as_far_as_it_goes() {
        const CHILD: &str = "WIREPAXOS_TEST_FILE_LIMIT";
        if std::env::var_os(CHILD).is_some() {
            let raised = raise_file_limit().unwrap().to_string();
            let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
            let files = limits.lines().find(|l| l.starts_with("Max open files"));
            let shown: Vec<_> = files.unwrap().split_whitespace().skip(3).take(2).collect();
            assert_eq!(shown, [&raised, "200"]);
            return;
        }
        let name = "host::tests::the_limit_of_open_files_is_raised_as_far_as_it_goes";
        let child = std::process::Command::new("sh")
            .args(["-c", "ulimit -Sn 100; ulimit -Hn 200; exec \"$@\"", "sh"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&child.stdout);
        assert!(
            child.status.success() && text.contains("1 passed"),
            "{text}"
        );
    }

    #[test]
    fn who_spins_hears_what_comes_and_ends_when_nothing_does() {
        let (bell, silent) = (Bell::new().unwrap(), Bell::new().unwrap());
        let fds = || [silent.as_fd(), bell.as_fd()].into_iter();
        let long = Duration::from_secs(60);
        for (timeout, spin) in [(10, 1), (1, 10), (0, 10), (10, 0)] {
            let [timeout, spin] = [timeout, spin].map(Duration::from_millis);
            let waited = Spinner::new(spin).wait_for(fds(), Some(timeout));
            assert!(waited.unwrap().none());
        }
        for (timeout, spin) in [(None, long), (Some(long), long), (None, Duration::ZERO)] {
            let ready = std::thread::scope(|scope| {
                scope.spawn(|| bell.ring());
                Spinner::new(spin).wait_for(fds(), timeout).unwrap()
            });
            assert_eq!((ready.has(0), ready.has(1)), (false, true));
            bell.hush();
        }
    }

    #[test]
    fn who_spins_pauses_where_others_need_the_cpu() {
        let waits_until_next = |crowd: &mut Crowd| (0..).find(|_| crowd.lets_spin()).unwrap();
        let mut crowd = Crowd::default();
        crowd.let_others_run(Some(TOO_LONG / 2));
        assert_eq!(waits_until_next(&mut crowd), 0);
        for pause in [2, 4, 8, 16] {
            crowd.let_others_run(Some(TOO_LONG));
            assert_eq!(waits_until_next(&mut crowd), pause);
        }
        // Others that didn't run at all change nothing; a short run of others takes one step back.
        crowd.let_others_run(None);
        crowd.let_others_run(Some(TOO_LONG / 2));
        crowd.let_others_run(Some(TOO_LONG));
        assert_eq!(waits_until_next(&mut crowd), 16);
        for _ in 0..100 {
            crowd.let_others_run(Some(TOO_LONG));
        }
        assert_eq!(waits_until_next(&mut crowd), 1 << MAX_STRIKES);
    }

    #[test]
    fn a_bell_rings_until_it_is_hushed() {
        let bell = Bell::new().unwrap();
        let rings = || wait(&[bell.as_fd()], Some(Duration::ZERO)).unwrap().has(0);
        assert!(!rings());
        bell.ring();
        bell.ring();
        assert!(rings() && rings());
        bell.hush();
        assert!(!rings());
    }

    #[test]
    fn a_request_wakes_every_waiter_and_stays() {
        let stop = Stop::new().unwrap();
        assert!(wait(&[stop.as_fd()], Some(Duration::ZERO)).unwrap().none());
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let stop = Arc::clone(&stop);
                std::thread::spawn(move || wait(&[stop.as_fd()], None).unwrap().has(0))
            })
            .collect();
        stop.request();
        assert!(waiters.into_iter().all(|w| w.join().unwrap()));
        assert!(stop.is_requested());
        assert!(wait(&[stop.as_fd()], None).unwrap().has(0));
    }
}
