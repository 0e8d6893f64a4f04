// SPDX-License-Identifier: Apache-2.0
//! The edge to the kernel: bpf(2) commands that no loader offers, and maps as memory.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;

const BPF_PROG_TEST_RUN: libc::c_long = 10;

/// The part of `union bpf_attr` that BPF_PROG_TEST_RUN reads, as of kernel 5.18.
#[repr(C)]
#[derive(Default)]
struct TestRunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    padding: u32,
}

/// The result of running a program on a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TestRun {
    /// The number that the program returned.
    pub action: u32,
    /// The length of the frame after the run.
    pub len: usize,
    /// Nanoseconds of one repetition, on average.
    pub ns: u32,
}

/// Runs an XDP program `repeat` times over one frame (BPF_PROG_TEST_RUN) on this CPU; `out` takes
/// the frame as it is in the end.
pub fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    out: &mut [u8],
    repeat: u32,
) -> io::Result<TestRun> {
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_size_out: out.len() as u32,
        data_in: frame.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        repeat,
        ..TestRunAttr::default()
    };
    // SAFETY: `frame` and `out` live through the call and are as long as said.
    unsafe { prog_test_run(&mut attr) }?;
    Ok(TestRun {
        action: attr.retval,
        len: attr.data_size_out as usize,
        ns: attr.duration,
    })
}

/// # Safety
/// What `attr` points to must be as long as it says; the kernel reads what goes in and writes what
/// comes out.
unsafe fn prog_test_run(attr: &mut TestRunAttr) -> io::Result<()> {
    // SAFETY: `attr` is as large as said, and what it points to is the caller's duty.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_TEST_RUN,
            &raw mut *attr,
            size_of::<TestRunAttr>(),
        )
    };
    match done {
        0.. => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

const BPF_MAP_CREATE: libc::c_long = 0;
const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_OBJ_PIN: libc::c_long = 6;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_LINK_DETACH: libc::c_long = 34;
const BPF_MAP_TYPE_ARRAY: u32 = 2;
const BPF_MAP_TYPE_ARRAY_OF_MAPS: u32 = 12;
const BPF_F_MMAPABLE: u32 = 1 << 10;

/// The part of `union bpf_attr` that BPF_MAP_CREATE reads, as far as it is needed here.
#[repr(C)]
#[derive(Default)]
struct MapCreateAttr {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    map_flags: u32,
    inner_map_fd: u32,
}

/// The part that BPF_OBJ_PIN and BPF_OBJ_GET read.
#[repr(C)]
struct ObjPinAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part that BPF_MAP_LOOKUP_ELEM and BPF_MAP_UPDATE_ELEM read.
#[repr(C)]
struct MapElementAttr {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Returns an array of one number.
pub(crate) fn create_array() -> io::Result<OwnedFd> {
    create_map(MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        value_size: 4,
        max_entries: 1,
        ..MapCreateAttr::default()
    })
}

/// Returns an array of one map like this one.
pub(crate) fn create_array_of_maps(like: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    create_map(MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY_OF_MAPS,
        value_size: 4,
        max_entries: 1,
        inner_map_fd: like.as_raw_fd() as u32,
        ..MapCreateAttr::default()
    })
}

/// Returns an array that [`Mapped`] can map.
pub(crate) fn create_mapped_array(value_size: usize, entries: usize) -> io::Result<OwnedFd> {
    create_map(MapCreateAttr {
        map_type: BPF_MAP_TYPE_ARRAY,
        value_size: value_size as u32,
        max_entries: entries as u32,
        map_flags: BPF_F_MMAPABLE,
        ..MapCreateAttr::default()
    })
}

fn create_map(kind: MapCreateAttr) -> io::Result<OwnedFd> {
    let attr = MapCreateAttr {
        key_size: 4,
        ..kind
    };
    // SAFETY: it points to nothing.
    let made = unsafe { bpf(BPF_MAP_CREATE, &attr) }?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made as i32) })
}

/// Makes `map` the one in an array of one map.
pub(crate) fn put_map(array: BorrowedFd<'_>, map: BorrowedFd<'_>) -> io::Result<()> {
    let (key, value) = (0u32, map.as_raw_fd() as u32);
    let attr = MapElementAttr {
        map_fd: array.as_raw_fd() as u32,
        padding: 0,
        key: (&raw const key) as u64,
        value: (&raw const value) as u64,
        flags: 0,
    };
    // SAFETY: key and value, four bytes each, live through the call.
    unsafe { bpf(BPF_MAP_UPDATE_ELEM, &attr) }.map(drop)
}

/// Returns the number of the program at `place` of an array of programs; `None` = there is none.
pub(crate) fn program_at(array: BorrowedFd<'_>, place: u32) -> io::Result<Option<u32>> {
    let mut number = 0u32;
    let attr = MapElementAttr {
        map_fd: array.as_raw_fd() as u32,
        padding: 0,
        key: (&raw const place) as u64,
        value: (&raw mut number) as u64,
        flags: 0,
    };
    // SAFETY: key and value, four bytes each, live through the call, which writes the value.
    match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &attr) } {
        Ok(_) => Ok(Some(number)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Pins a map at `path`.
pub(crate) fn pin(map: &impl AsRawFd, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjPinAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: map.as_raw_fd() as u32,
        file_flags: 0,
    };
    // SAFETY: the path ends with a zero and lives through the call.
    unsafe { bpf(BPF_OBJ_PIN, &attr) }.map(drop)
}

/// Takes a program off its interface by its pinned link. It has left when this returns.
pub(crate) fn detach_pinned_link(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let attr = ObjPinAttr {
        pathname: path.as_ptr() as u64,
        bpf_fd: 0,
        file_flags: 0,
    };
    // SAFETY: the path ends with a zero and lives through the call.
    let link = unsafe { bpf(BPF_OBJ_GET, &attr) }?;
    // SAFETY: the kernel has just made this file descriptor for the caller.
    let link = unsafe { OwnedFd::from_raw_fd(link as i32) };
    let attr = link.as_raw_fd() as u32;
    // SAFETY: the command reads a file descriptor.
    unsafe { bpf(BPF_LINK_DETACH, &attr) }.map(drop)
}

/// # Safety
/// What `attr` points to must be as the command wants it.
unsafe fn bpf<T>(command: libc::c_long, attr: &T) -> io::Result<i64> {
    // SAFETY: `attr` is as large as said, and what it points to is the caller's duty.
    let done = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attr),
            size_of::<T>(),
        )
    };
    match done {
        0.. => Ok(done),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The frame's place in a test run (`struct xdp_md`).
#[repr(C)]
#[derive(Default)]
struct Context {
    data: u32,
    data_end: u32,
    data_meta: u32,
    ingress_ifindex: u32,
    rx_queue_index: u32,
    egress_ifindex: u32,
}

/// Runs an XDP program once over a frame with `mark` before it, as its meta data. `out` gets the
/// mark and the frame as they are after the run.
pub fn marked_run(
    program: BorrowedFd<'_>,
    mark: u32,
    frame: &[u8],
    out: &mut [u8],
) -> io::Result<TestRun> {
    let mut marked = mark.to_ne_bytes().to_vec();
    marked.extend_from_slice(frame);
    let context = Context {
        data: size_of_val(&mark) as u32,
        data_end: marked.len() as u32,
        ..Context::default()
    };
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: marked.len() as u32,
        data_size_out: out.len() as u32,
        data_in: marked.as_ptr() as u64,
        data_out: out.as_mut_ptr() as u64,
        ctx_size_in: size_of::<Context>() as u32,
        ctx_in: (&raw const context) as u64,
        repeat: 1,
        ..TestRunAttr::default()
    };
    // SAFETY: `marked`, `context` and `out` live through the call and are as long as said.
    unsafe { prog_test_run(&mut attr) }?;
    Ok(TestRun {
        action: attr.retval,
        len: attr.data_size_out as usize,
        ns: attr.duration,
    })
}

const TEST_XDP_LIVE_FRAMES: u32 = 1 << 1;

/// Runs an XDP program over `repeat` frames that come in on `ingress` and really go where it sends
/// them (BPF_F_TEST_XDP_LIVE_FRAMES), on this CPU, `batch` at once, up to 256. Frames are used
/// again: what the program has written is still there. The calling thread must be in the
/// interface's namespace.
pub fn live_run(
    program: BorrowedFd<'_>,
    ingress: u32,
    frame: &[u8],
    repeat: u32,
    batch: u32,
) -> io::Result<()> {
    let context = Context {
        data_end: frame.len() as u32,
        ingress_ifindex: ingress,
        ..Context::default()
    };
    let mut attr = TestRunAttr {
        prog_fd: program.as_raw_fd() as u32,
        data_size_in: frame.len() as u32,
        data_in: frame.as_ptr() as u64,
        ctx_size_in: size_of::<Context>() as u32,
        ctx_in: (&raw const context) as u64,
        repeat,
        flags: TEST_XDP_LIVE_FRAMES,
        batch_size: batch,
        ..TestRunAttr::default()
    };
    // SAFETY: `frame` and `context` live through the call and are as long as said.
    unsafe { prog_test_run(&mut attr) }
}

/// Binds the calling thread to one CPU: programs run where their caller runs.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    // SAFETY: a zeroed set is an empty one, and CPU_SET stays inside for any number below its size.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu % libc::CPU_SETSIZE as usize, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Binds the calling thread to the CPU that it is on, and says which.
pub fn pin_to_this_cpu() -> io::Result<usize> {
    // SAFETY: it has no arguments.
    let cpu = unsafe { libc::sched_getcpu() };
    let cpu = usize::try_from(cpu).map_err(|_| io::Error::last_os_error())?;
    pin_to_cpu(cpu)?;
    Ok(cpu)
}

/// Types of which any bytes are a value, and that programs and user space share.
///
/// # Safety
/// Every bit pattern must be valid, and the layout that of the C type.
pub unsafe trait Shared: Copy {}

/// One byte of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Byte(pub u8);

// SAFETY: every bit pattern is a valid byte.
unsafe impl Shared for Byte {}

// SAFETY: any eight bytes are one.
unsafe impl Shared for u64 {}

/// Memory that the kernel maps for this process: an array map, entry by entry.
///
/// Programs write it at any time, so it is never borrowed: entries are copied out, and written
/// field by field through raw pointers.
#[derive(Debug)]
pub struct Mapped<T> {
    start: NonNull<T>,
    entries: usize,
    bytes: usize,
    of: PhantomData<T>,
}

// SAFETY: the mapping belongs to nobody else, and accesses are volatile or atomic.
unsafe impl<T: Shared> Send for Mapped<T> {}

impl<T: Shared> Mapped<T> {
    /// Maps `entries` entries, from `offset` bytes on.
    pub fn new(map: impl AsFd, offset: usize, entries: usize, write: bool) -> io::Result<Self> {
        let bytes = (entries * size_of::<T>()).max(1);
        let protection = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        // SAFETY: a fresh shared mapping of a descriptor that is open; nothing is overlaid.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapped {
            start: NonNull::new(start.cast()).expect("a mapping is nowhere at 0"),
            entries,
            bytes,
            of: PhantomData,
        })
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }

    /// Returns the address of an entry, which is valid as long as `self`.
    ///
    /// # Panics
    ///
    /// If there is no such entry.
    pub fn at(&self, index: usize) -> *mut T {
        assert!(index < self.entries, "entry {index} of {}", self.entries);
        // SAFETY: the entry is inside the mapping, as just checked.
        unsafe { self.start.as_ptr().add(index) }
    }

    /// Returns a copy of an entry.
    pub fn get(&self, index: usize) -> T {
        // SAFETY: `at` gives a valid, aligned place; any bytes are a `T`.
        unsafe { self.at(index).read_volatile() }
    }

    /// Returns a copy of all entries.
    pub fn copy(&self) -> Vec<T> {
        (0..self.entries).map(|index| self.get(index)).collect()
    }

    /// Overwrites an entry. Only where no program writes it at the same time.
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: the place is valid as in `get`, and the mapping is writable, or else this faults.
        unsafe { self.at(index).write_volatile(value) }
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, of this size; no reference to it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// An atomic view of a number in shared memory.
///
/// # Safety
/// `number` must lie in a [`Mapped`] that outlives the result, and be aligned.
pub unsafe fn atomic64<'a>(number: *mut u64) -> &'a std::sync::atomic::AtomicU64 {
    // SAFETY: the caller's promise.
    unsafe { std::sync::atomic::AtomicU64::from_ptr(number) }
}

/// Returns the atomic number at an address, as [`atomic64`] does, with 32 bits.
///
/// # Safety
///
/// The same rules apply as for [`atomic64`].
pub(crate) unsafe fn atomic32<'a>(number: *mut u32) -> &'a std::sync::atomic::AtomicU32 {
    // SAFETY: the caller's promise.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(number) }
}
