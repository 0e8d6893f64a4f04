// SPDX-License-Identifier: Apache-2.0
//! DPDK, as far as nodes need it: the functions of `programs/dpdk/port.c`, and the one start that a
//! process has.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

use crate::Result;
use crate::port::{Frame, Opened, Port};

/// The name of the library.
pub const LIBRARY: &str = "libwirepaxos_dpdk.so";

/// The version of the interface that [`LIBRARY`] must have.
const INTERFACE: u32 = 2;

/// A port as the library knows it.
pub(crate) type RawPort = NonNull<c_void>;

/// The functions, by their names in the library, where each is described.
macro_rules! functions {
    ($($field:ident = $name:literal: $type:ty;)*) => {
        pub(crate) struct Functions {
            $(pub $field: $type,)*
        }

        impl Functions {
            fn of(library: NonNull<c_void>) -> Result<Functions> {
                Ok(Functions {
                    $($field: {
                        let symbol = symbol(library, $name)?;
                        // SAFETY: a function of this name has this type in the C file, and
                        // `interface` says whether the library is that file's.
                        unsafe { std::mem::transmute::<*mut c_void, $type>(symbol) }
                    },)*
                })
            }
        }
    };
}

functions! {
    interface = c"wp_interface": unsafe extern "C" fn() -> u32;
    start = c"wp_start": unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int;
    why = c"wp_why": unsafe extern "C" fn(c_int) -> *const c_char;
    find = c"wp_find": unsafe extern "C" fn(*const c_char) -> c_int;
    next = c"wp_next": unsafe extern "C" fn(c_int, *mut c_char, usize) -> c_int;
    open = c"wp_open": unsafe extern "C" fn(u16, u16, *mut Opened, *mut c_int) -> *mut c_void;
    close = c"wp_close": unsafe extern "C" fn(RawPort);
    receive = c"wp_receive": unsafe extern "C" fn(RawPort, *mut Frame, u32) -> u32;
    take = c"wp_take": unsafe extern "C" fn(RawPort, *mut Frame, u32) -> u32;
    send = c"wp_send": unsafe extern "C" fn(RawPort, *mut Frame, u32) -> u32;
    renew = c"wp_renew": unsafe extern "C" fn(RawPort, *mut Frame, u32) -> u32;
    release = c"wp_release": unsafe extern "C" fn(*mut Frame, u32);
    is_up = c"wp_is_up": unsafe extern "C" fn(RawPort) -> c_int;
    missed = c"wp_missed": unsafe extern "C" fn(RawPort) -> u64;
}

/// DPDK of this process, which has started.
#[derive(Clone, Copy)]
pub struct Eal {
    pub(crate) functions: &'static Functions,
}

/// The library, arguments and handle with which DPDK was started, if it was.
static STARTED: Mutex<Option<(PathBuf, Vec<String>, Eal)>> = Mutex::new(None);

impl Eal {
    /// Starts DPDK by the library at `path`, with arguments for its environment (EAL). A process
    /// can start it only once; a second start with the same arguments returns the first one.
    pub fn start(path: &Path, arguments: &[String]) -> Result<Eal> {
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((by, with, eal)) = &*started {
            if by == path && with == arguments {
                return Ok(*eal);
            }
            return Err(format!(
                "DPDK has started in this process with other arguments ({}): give all of its nodes \
                 the same, or run them as processes of their own",
                with.join(" ")
            ));
        }
        let functions = Functions::load(path)?;
        let eal = Eal { functions };
        let error = eal.begin(arguments)?;
        if error != 0 {
            return Err(why_not(arguments, error, &eal.why(error)));
        }
        *started = Some((path.to_owned(), arguments.to_vec(), eal));
        Ok(eal)
    }

    /// Starts DPDK with these arguments, which it keeps for as long as the process lives.
    fn begin(&self, arguments: &[String]) -> Result<c_int> {
        let words = std::iter::once("wirepaxos").chain(arguments.iter().map(String::as_str));
        let words = words.map(|word| {
            let word = CString::new(word);
            word.map_err(|_| "an argument for DPDK has a zero byte in it: remove it".to_owned())
        });
        let words = words.collect::<Result<Vec<_>>>()?;
        let count = words.len() as c_int;
        let mut pointers: Vec<_> = words.into_iter().map(CString::into_raw).collect();
        pointers.push(std::ptr::null_mut());
        let pointers = Box::leak(pointers.into_boxed_slice());
        // SAFETY: `count` strings that live for ever, and a null behind them; DPDK may put them in
        // another order.
        Ok(unsafe { (self.functions.start)(count, pointers.as_mut_ptr()) })
    }

    /// Returns what DPDK says of an error.
    pub(crate) fn why(&self, error: c_int) -> String {
        // SAFETY: it returns a string, valid until this thread asks again.
        let text = unsafe { CStr::from_ptr((self.functions.why)(error.abs())) };
        text.to_string_lossy().into_owned()
    }

    /// Opens the port of this name, whose buffers have `room` for a frame each. It is this thread's
    /// from now on.
    pub fn open(self, name: &str, room: u16) -> Result<Port> {
        let number = self.find(name).ok_or_else(|| self.no_port(name))?;
        Port::open(self, number, room).map_err(|(error, why)| match -error {
            libc::EBUSY => format!(
                "the port {name} of DPDK is in use by another node of this process: give each node \
                 a port of its own"
            ),
            libc::ENOMEM => format!(
                "the port {name} of DPDK doesn't start: {why}. It needs 12 MiB of DPDK's memory \
                 for its buffers: give DPDK more (`-m 256` among `dpdk_args`; without `--no-huge` \
                 it is of hugepages)"
            ),
            _ => format!("the port {name} of DPDK doesn't start: {why}. DPDK's own lines say more"),
        })
    }

    fn find(self, name: &str) -> Option<u16> {
        let name = CString::new(name).ok()?;
        // SAFETY: a string.
        let number = unsafe { (self.functions.find)(name.as_ptr()) };
        u16::try_from(number).ok()
    }

    /// Returns the names of all ports.
    pub fn ports(self) -> Vec<String> {
        let (mut ports, mut last) = (Vec::new(), -1);
        loop {
            let mut name = [0; 64];
            // SAFETY: the buffer has room for this many bytes, of which the last is set to zero.
            last = unsafe { (self.functions.next)(last, name.as_mut_ptr(), name.len()) };
            if last < 0 {
                return ports;
            }
            let bytes = name.iter().take_while(|b| **b != 0).map(|b| *b as u8);
            ports.push(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned());
        }
    }

    fn no_port(self, name: &str) -> String {
        let there = match self.ports() {
            none if none.is_empty() => "it has none".to_owned(),
            some => format!("it has {}", some.join(", ")),
        };
        let remedy = how_to_get(name, Path::new(CARDS));
        format!("DPDK has no port {name} (`dpdk_port`; {there}): {remedy}")
    }
}

/// The directory in which the kernel shows all PCI cards and their drivers.
const CARDS: &str = "/sys/bus/pci/devices";

/// The driver of a PCI card that DPDK doesn't see.
#[derive(Debug, PartialEq, Eq)]
enum Holder {
    Driver(String),
    Nobody,
}

/// Returns what to do for a port of this name.
fn how_to_get(name: &str, cards: &Path) -> String {
    match (held_by(name, cards), name.strip_prefix("net_memif")) {
        (Some(Holder::Driver(driver)), _) => format!(
            "this card belongs to the kernel's driver {driver}. Give it to DPDK, which takes it \
             from the kernel with all of its addresses: `dpdk-devbind.py --bind=vfio-pci {name}`"
        ),
        (Some(Holder::Nobody), _) => format!(
            "no driver has this card. Give it to DPDK: `dpdk-devbind.py --bind=vfio-pci {name}`"
        ),
        (None, Some(_)) => "a memif comes from an argument like \
                            `--vdev=net_memif0,role=client,socket=@name`; where one is given, \
                            DPDK's own lines say why it couldn't make it: as a server it can't, \
                            for example, where another process has the socket. Stop that one, or \
                            take another socket"
            .to_owned(),
        (None, None) => "name one of those, or add the argument that makes it (`--vdev=...`, \
                         `--allow=...`) to `dpdk_args`; DPDK's own lines say which it couldn't make"
            .to_owned(),
    }
}

/// Returns who holds a card, or nothing if it is no card of this machine or belongs to DPDK.
fn held_by(name: &str, cards: &Path) -> Option<Holder> {
    let card = cards.join(name);
    if !name.contains(':') || !card.exists() {
        return None;
    }
    let Ok(driver) = std::fs::read_link(card.join("driver")) else {
        return Some(Holder::Nobody);
    };
    let driver = driver.file_name()?.to_string_lossy().into_owned();
    let of_dpdk = ["vfio-pci", "uio_pci_generic", "igb_uio"].contains(&driver.as_str());
    (!of_dpdk).then_some(Holder::Driver(driver))
}

/// Returns why DPDK hasn't started, in words.
fn why_not(arguments: &[String], error: c_int, why: &str) -> String {
    let with = match arguments {
        [] => "without arguments".to_owned(),
        some => format!("with the arguments {}", some.join(" ")),
    };
    let on_pages = !arguments.iter().any(|argument| argument == "--no-huge");
    let remedy = match -error {
        libc::EINVAL => "one of them is wrong, and DPDK's own lines say which: correct `dpdk_args`",
        libc::EACCES | libc::ENOMEM | libc::ENOENT if on_pages => {
            "it found no hugepages to use. Reserve some (`sysctl vm.nr_hugepages=256`), or do \
             without: add \"--no-huge\" and \"-m\", \"256\" to `dpdk_args`"
        }
        libc::EACCES | libc::EPERM => "it lacks a privilege: run the node as root",
        _ => "DPDK's own lines say more",
    };
    format!("DPDK doesn't start {with}: {why}; {remedy}")
}

impl Functions {
    fn load(path: &Path) -> Result<&'static Functions> {
        let name = CString::new(path.as_os_str().as_encoded_bytes())
            .map_err(|_| format!("{}: it has a zero byte in it", path.display()))?;
        // SAFETY: a string. What runs when the library is loaded is DPDK's own registration of
        // drivers.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        let handle = NonNull::new(handle).ok_or_else(|| {
            format!(
                "the library for DPDK can't be opened: {}. Install DPDK (apt-get install \
                 libdpdk-dev) and build it: `make -C programs/dpdk`",
                last_error()
            )
        })?;
        let functions = Functions::of(handle)?;
        // SAFETY: it takes nothing.
        let interface = unsafe { (functions.interface)() };
        if interface != INTERFACE {
            return Err(format!(
                "{} has interface {interface}, and this program needs {INTERFACE}: build it again \
                 (`make -C programs/dpdk`)",
                path.display()
            ));
        }
        Ok(Box::leak(Box::new(functions)))
    }
}

fn symbol(library: NonNull<c_void>, name: &CStr) -> Result<*mut c_void> {
    // SAFETY: the library is open, and is never closed.
    let symbol = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    match symbol.is_null() {
        false => Ok(symbol),
        true => Err(format!(
            "the library for DPDK has no {name:?}: build it again (`make -C programs/dpdk`)"
        )),
    }
}

fn last_error() -> String {
    // SAFETY: it returns null, or a string that is valid until this thread calls it again.
    let text = unsafe { libc::dlerror() };
    match NonNull::new(text) {
        // SAFETY: the reason is the same as above.
        Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }
            .to_string_lossy()
            .into_owned(),
        None => "no reason is given".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_that_fails_says_what_to_do() {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        for (arguments, error, expected) in [
            (words(&["--nonsense"]), libc::EINVAL, "correct `dpdk_args`"),
            (words(&[]), libc::EACCES, "vm.nr_hugepages"),
            (words(&["--no-huge"]), libc::EACCES, "as root"),
            (words(&["--no-huge"]), libc::ENODEV, "own lines"),
        ] {
            let said = why_not(&arguments, -error, "Some reason");
            assert!(said.contains("Some reason; "), "{said}");
            assert!(said.contains(expected), "{said}");
        }
    }

    #[test]
    fn a_card_that_dpdk_does_not_have_says_whose_it_is() {
        let name = format!("wirepaxos-cards-{}", std::process::id());
        let cards = std::env::temp_dir().join(name);
        for (card, driver, holder, parts) in [
            (
                "0000:01:00.0",
                Some("ixgbe"),
                Some(Holder::Driver("ixgbe".to_owned())),
                ["driver ixgbe.", "--bind=vfio-pci 0000:01:00.0"],
            ),
            (
                "0000:01:00.1",
                None,
                Some(Holder::Nobody),
                ["no driver has", "--bind=vfio-pci 0000:01:00.1"],
            ),
            (
                "0000:01:00.2",
                Some("vfio-pci"),
                None,
                ["--allow=", "own lines"],
            ),
        ] {
            let place = cards.join(card);
            std::fs::create_dir_all(&place).expect("a directory");
            if let Some(driver) = driver {
                let to = Path::new("../../../../bus/pci/drivers").join(driver);
                std::os::unix::fs::symlink(to, place.join("driver")).expect("a link");
            }
            assert_eq!(held_by(card, &cards), holder);
            let said = how_to_get(card, &cards);
            assert!(parts.iter().all(|part| said.contains(part)), "{said}");
        }
        assert_eq!(held_by("0000:01:00.3", &cards), None, "it isn't there");
        std::fs::remove_dir_all(&cards).expect("it is there");
    }

    #[test]
    fn a_library_that_isnt_there_says_how_to_build_it() {
        let refused = Functions::load(Path::new("/nonexistent/lib.so")).err();
        let refused = refused.expect("there is none");
        for part in [
            "/nonexistent/lib.so",
            "libdpdk-dev",
            "make -C programs/dpdk",
        ] {
            assert!(refused.contains(part), "{refused}");
        }
    }
}
