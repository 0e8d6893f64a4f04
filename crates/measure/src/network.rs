// SPDX-License-Identifier: Apache-2.0
//! Networks for tests and measurements: namespaces without a name and veth pairs between them. They
//! end with the process, however that ends, so there is nothing to clean up.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use loader::interface::Interface;
use loader::ip;
use loader::object::Result;

const OWN: &str = "/proc/thread-self/ns/net";

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    fd: OwnedFd,
}

impl Namespace {
    /// Creates a new namespace.
    pub fn new() -> Result<Namespace> {
        let made = std::thread::spawn(|| {
            // SAFETY: takes a number only; it concerns this thread, which ends here.
            match unsafe { libc::unshare(libc::CLONE_NEWNET) } {
                0 => File::open(OWN),
                _ => Err(io::Error::last_os_error()),
            }
        });
        let fd = made.join().expect("it doesn't panic").map_err(|e| {
            format!(
                "a network namespace: {e}; this needs root (CAP_SYS_ADMIN), in a container \
                     only if that is privileged"
            )
        })?;
        Ok(Namespace { fd: fd.into() })
    }

    /// Runs `work` on the calling thread inside the namespace.
    pub fn inside<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Back(File);
        impl Drop for Back {
            fn drop(&mut self) {
                enter(self.0.as_raw_fd()).expect("it was in it before");
            }
        }
        let _back = Back(File::open(OWN).expect("a thread is in a namespace"));
        enter(self.fd.as_raw_fd()).expect("it was made by this process");
        work()
    }

    /// Runs `ip` inside the namespace with these lines of input.
    pub fn ip(&self, lines: &[String]) -> Result<()> {
        self.inside(|| ip::batch(&[], lines)).map(drop)
    }

    /// Returns an interface of the namespace.
    pub fn interface(&self, name: &str) -> Result<Interface> {
        self.inside(|| Interface::named(name))
    }

    /// Moves an interface of the calling thread's namespace into this one, until this one ends.
    pub fn take(&self, name: &str) -> Result<Interface> {
        let line = format!("link set {name} netns {}", self.path());
        ip::batch(&[], &[line])?;
        self.interface(name)
    }

    /// Returns the namespace's path for `ip`.
    fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.fd.as_raw_fd())
    }
}

/// Adds a veth pair that is up, by the names of its ends. Each CPU has a queue: redirected frames
/// are handled on the CPU that they are sent on, and a queue that several CPUs share overflows. For
/// the same reason the ends have no addresses: what IPv6 announces by itself, from any CPU, would
/// move a busy queue to that CPU for good.
pub fn veth(a: (&Namespace, &str), b: (&Namespace, &str)) -> Result<(Interface, Interface)> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let up = |name| format!("link set {name} up addrgenmode none");
    let queues = format!("numtxqueues {cpus} numrxqueues {cpus}");
    a.0.ip(&[
        format!(
            "link add {} {queues} type veth peer name {} netns {} {queues}",
            a.1,
            b.1,
            b.0.path()
        ),
        up(a.1),
    ])?;
    b.0.ip(&[up(b.1)])?;
    Ok((a.0.interface(a.1)?, b.0.interface(b.1)?))
}

fn enter(namespace: i32) -> io::Result<()> {
    // SAFETY: the call takes numbers only.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
