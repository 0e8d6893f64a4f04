// SPDX-License-Identifier: Apache-2.0
//! Consensus as a network service, as a library: it replicates a program of yours and lets you call
//! it.
//!
//! A cluster is described by one file that all its nodes read, a [`ClusterFile`]. [`run`] plays the
//! role of one of its nodes. A replica executes a [`Program`]: your own [`StateMachine`] or
//! [`Application`], or the store that the file names. A [`Client`] has commands executed, each
//! once, in one order on which all replicas agree. [`Embedded`] runs a whole cluster in this
//! process, for tests and first use, and needs no privileges:
//!
//! ```
//! use std::io::{self, Read, Write};
//! use std::time::Duration;
//! use wirepaxos::cluster_file::{ApplicationKind, Draft};
//! use wirepaxos::{Client, ClientOptions, Embedded, Outcome, Program, StateMachine};
//!
//! #[derive(Default)]
//! struct Counter(u64);
//!
//! impl StateMachine for Counter {
//!     fn execute(&mut self, _command: &[u8], reply: &mut Vec<u8>) {
//!         self.0 += 1;
//!         reply.extend_from_slice(self.0.to_string().as_bytes());
//!     }
//!     fn save(&self, out: &mut dyn Write) -> io::Result<()> {
//!         out.write_all(&self.0.to_be_bytes())
//!     }
//!     fn load(from: &mut dyn Read) -> io::Result<Self> {
//!         let mut bytes = [0; 8];
//!         from.read_exact(&mut bytes)?;
//!         Ok(Counter(u64::from_be_bytes(bytes)))
//!     }
//! }
//!
//! # fn main() -> Result<(), wirepaxos::Error> {
//! # let name = format!("wirepaxos-doc-lib-{}", std::process::id());
//! # let directory = std::env::temp_dir().join(name);
//! let cluster = Draft::on_loopback(&directory, ApplicationKind::Own)?.check()?;
//! let nodes = Embedded::start(&cluster, &Program::in_memory(Counter::default))?;
//! let mut client = Client::open(&cluster, ClientOptions::default())?;
//! let first = client.call(0, b"next", Duration::from_secs(10));
//! assert_eq!(first, Outcome::Executed(Some(b"1".to_vec())));
//! nodes.stop()?;
//! # std::fs::remove_dir_all(&directory)?;
//! # Ok(())
//! # }
//! ```
//!
//! `examples/counter.rs` is this program with a process for each node, and `examples/bank.rs` is a
//! program over several partitions. The module [`oum`] offers the ordering alone, without replicas.
//!
//! # Features
//!
//! The feature `stores`, on by default, adds RocksDB and LevelDB (the system's own libraries) and
//! the front end for Redis clients. A program that brings its own state machine doesn't need it.

pub mod admin;
mod embedded;
#[cfg(feature = "stores")]
mod front_end;
#[cfg(feature = "stores")]
mod machine_memory;
pub mod oum;
mod program;
#[cfg(feature = "stores")]
mod stores;

use std::sync::Arc;

/// Many commands may be under way at once: [`submit`](Client::submit) them, and call
/// [`poll`](Client::poll) for their outcomes.
///
/// ```
/// # use std::time::Duration;
/// # use wirepaxos::cluster_file::{ApplicationKind, Draft};
/// use wirepaxos::{Client, ClientOptions, Embedded, Outcome, Program};
///
/// # struct Echo;
/// # impl wirepaxos::StateMachine for Echo {
/// #     fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
/// #         reply.extend_from_slice(command)
/// #     }
/// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
/// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Echo) }
/// # }
/// # fn main() -> Result<(), wirepaxos::Error> {
/// # let name = format!("wirepaxos-doc-client-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let cluster = Draft::on_loopback(&directory, ApplicationKind::Own)?.check()?;
/// # let nodes = Embedded::start(&cluster, &Program::in_memory(|| Echo))?;
/// let options = ClientOptions { window: 64, ..ClientOptions::default() };
/// let mut client = Client::open(&cluster, options)?;
/// for command in [b"one", b"two"] {
///     client.submit(0, command)?; // to partition 0; nothing is sent before `poll` or `flush`
/// }
/// for _ in 0..2 {
///     match client.poll(Duration::from_secs(10))? {
///         Some(completion) => match completion.outcome() {
///             Outcome::Executed(answer) => assert_eq!(answer.map(<[u8]>::len), Some(3)),
///             other => panic!("{other:?}"),
///         },
///         None => println!("no answer yet; the client goes on trying at the next `poll`"),
///     }
/// }
/// # drop(client);
/// # nodes.stop()?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use client::Client;
/// ```
/// # use std::time::Duration;
/// # use wirepaxos::cluster_file::{ApplicationKind, Draft};
/// use wirepaxos::{Client, ClientOptions, Error};
///
/// # fn main() -> Result<(), Error> {
/// # let cluster = Draft::on_loopback("data", ApplicationKind::Own)?.check()?;
/// # let open_timeout = Duration::from_millis(20);
/// let options = ClientOptions { open_timeout, ..ClientOptions::default() };
/// match Client::open(&cluster, options) {
///     Ok(_) => unreachable!("no node of this cluster runs"),
///     Err(Error::TimedOut(why)) => println!("{why}"), // and what to look at
///     Err(Error::Configuration(errors)) => {
///         for error in &errors.errors {
///             println!("line {}: {}; {}", error.line, error.problem, error.remedy);
///         }
///     }
///     Err(other) => return Err(other),
/// }
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use client::Error;
#[doc(inline)]
pub use client::{ClientOptions, Completion, Doubt, Freshness, Home, Outcome, Refusal};
/// ```
/// use wirepaxos::ClusterFile;
///
/// let errors = ClusterFile::load("no/such/file.toml".as_ref()).unwrap_err();
/// assert!(errors.to_string().starts_with("no/such/file.toml: can't be read"));
/// ```
///
/// The module [`cluster_file`] shows how to write one.
#[doc(inline)]
pub use node::ClusterFile;
/// ```
/// # use wirepaxos::cluster_file::{ApplicationKind, Draft};
/// # use wirepaxos::Program;
/// use wirepaxos::Stop;
///
/// # struct Echo;
/// # impl wirepaxos::StateMachine for Echo {
/// #     fn execute(&mut self, command: &[u8], reply: &mut Vec<u8>) {
/// #         reply.extend_from_slice(command)
/// #     }
/// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
/// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Echo) }
/// # }
/// # fn main() -> Result<(), wirepaxos::Error> {
/// # let name = format!("wirepaxos-doc-stop-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let cluster = Draft::on_loopback(&directory, ApplicationKind::Own)?.check()?;
/// # let program = Program::in_memory(|| Echo);
/// let stop = Stop::new()?;
/// let requested = stop.clone();
/// let node =
///     std::thread::spawn(move || wirepaxos::run(&cluster, "acceptor-1", &program, &requested));
/// stop.request();
/// node.join().unwrap()?;
/// # let _ = std::fs::remove_dir_all(&directory);
/// # Ok(())
/// # }
/// ```
#[doc(inline)]
pub use node::Stop;
#[doc(inline)]
pub use replica::{Application, StateMachine};

pub use embedded::Embedded;
pub use program::Program;

/// The parts of the cluster file, and a [`Draft`](cluster_file::Draft) to write one.
///
/// ```
/// use wirepaxos::ClusterFile;
/// use wirepaxos::cluster_file::{ApplicationKind, Draft};
///
/// # fn main() -> Result<(), wirepaxos::Error> {
/// # let name = format!("wirepaxos-doc-file-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # std::fs::create_dir_all(&directory)?;
/// let file = directory.join("cluster.toml");
/// let mut draft = Draft::on_loopback("data", ApplicationKind::Own)?;
/// draft.groups[0].max_value = Some(256);
/// let written = draft.write(&file)?;
/// assert_eq!(ClusterFile::load(&file)?, written);
///
/// draft.groups[0].max_value = Some(7);
/// let refused = draft.write(&file).unwrap_err(); // and the file is as it was
/// assert!(refused.errors[0].line > 0);
/// assert_eq!(refused.errors[0].problem, "`max_value = 7` is out of range");
/// assert_eq!(refused.errors[0].remedy, "choose 64 to 1400");
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok(())
/// # }
/// ```
pub mod cluster_file {
    #[doc(inline)]
    pub use node::cluster_file::{
        ApplicationKind, Auth, ControllerDraft, ControllerSettings, CopySettings, Draft, Error,
        Errors, EtcdSettings, Group, GroupDraft, Node, NodeDraft, Plane, Protocol, RedisOrder,
        RedisReads, Role, Storage,
    };
}

/// The types of an [`Application`], for programs that store their state themselves.
pub mod application {
    #[doc(inline)]
    pub use replica::application::{
        Checkpoint, Error, Link, Part, Record, RecordVisitor, Restore, Snapshot,
    };
    #[doc(inline)]
    pub use replica::memory::InMemory;
    #[doc(inline)]
    pub use replica::storage::CheckpointFile;
}

/// The `recover` operation of the papers: it returns the value that an instance decided, and closes
/// the instance with a value of yours if it decided nothing.
///
/// ```
/// # use std::time::Duration;
/// # use wirepaxos::cluster_file::{ApplicationKind, Draft};
/// # use wirepaxos::{Client, ClientOptions, Embedded, Outcome, Program};
/// use wirepaxos::recovery::{Filler, Flags, Header, Recovery};
///
/// # struct Nothing;
/// # impl wirepaxos::StateMachine for Nothing {
/// #     fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}
/// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
/// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Nothing) }
/// # }
/// # fn main() -> Result<(), wirepaxos::Error> {
/// # let name = format!("wirepaxos-doc-rec-{}", std::process::id());
/// # let directory = std::env::temp_dir().join(name);
/// # let cluster = Draft::on_loopback(&directory, ApplicationKind::Own)?.check()?;
/// # let nodes = Embedded::start(&cluster, &Program::in_memory(|| Nothing))?;
/// # let mut client = Client::open(&cluster, ClientOptions::default())?;
/// let timeout = Duration::from_secs(10);
/// let mut recovery = Recovery::open(&cluster, cluster.groups[0].id, 0)?; // partition 0
/// let decided = recovery.recover_with(0, b"my no-op", timeout)?; // instance 0
/// assert_ne!(decided.value, b"my no-op"); // the client's session was opened there
/// let again = recovery.recover(0, Filler::Noop, timeout)?;
/// let header: Header = again.header;
/// assert_eq!(header.flags.has(Flags::NOOP), decided.header.flags.has(Flags::NOOP));
/// assert_eq!(again.value, decided.value);
/// # nodes.stop()?;
/// # std::fs::remove_dir_all(&directory)?;
/// # Ok(())
/// # }
/// ```
pub mod recovery {
    #[doc(inline)]
    pub use client::{Decided, Recovery};
    #[doc(inline)]
    pub use paxos::recover::Filler;
    #[doc(inline)]
    pub use paxos::{Flags, Header, Round};
}

/// Plays the role of the node `name` in the calling thread until `stop` is requested or `wirepaxos
/// stop` is run; the node then stores its state before it ends. `program` is executed if the node
/// is a replica; other roles ignore it.
///
/// # Errors
/// [`Error::Configuration`] if the file has no such node; [`Error::Store`] if stored state can't be
/// read or written; [`Error::System`] if, for example, its sockets are taken.
///
/// ```no_run
/// # struct Nothing;
/// # impl wirepaxos::StateMachine for Nothing {
/// #     fn execute(&mut self, _: &[u8], _: &mut Vec<u8>) {}
/// #     fn save(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
/// #     fn load(_: &mut dyn std::io::Read) -> std::io::Result<Self> { Ok(Nothing) }
/// # }
/// use wirepaxos::{ClusterFile, Program, Stop};
///
/// # fn main() -> Result<(), wirepaxos::Error> {
/// let cluster = ClusterFile::load("cluster.toml".as_ref())?;
/// let stop = Stop::new()?;
/// stop.on_signals()?; // SIGTERM and Ctrl-C end it in good order
/// wirepaxos::run(&cluster, "replica-1", &Program::in_memory(|| Nothing), &stop)?;
/// # Ok(())
/// # }
/// ```
pub fn run(
    cluster: &ClusterFile,
    name: &str,
    program: &Program,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    run_together(cluster, &[name], program, stop)
}

/// Plays the roles of several nodes in the calling thread, as [`run`] does for one. All of them
/// must be at ports of DPDK (`plane = "dpdk"`), which they may share; packets between nodes at one
/// port then don't leave the process.
///
/// # Errors
/// The errors of [`run`], and one if a node isn't at such a port. A node that fails ends all of
/// them.
pub fn run_together(
    cluster: &ClusterFile,
    names: &[&str],
    program: &Program,
    stop: &Arc<Stop>,
) -> Result<(), Error> {
    for name in names {
        node::await_addresses(cluster.named(name)?, stop);
    }
    let services = names.iter().map(|name| program.services_of(cluster, name));
    let services = services.collect::<Result<Vec<_>, _>>()?;
    let nodes = names.iter().zip(&services);
    let nodes: Vec<_> = nodes.map(|(name, s)| (*name, s.as_ref())).collect();
    Ok(node::run_together(cluster, &nodes, stop)?)
}

/// Prints the log of this process's nodes on its standard error. The environment's `WIREPAXOS_LOG`
/// chooses the level (`error`, `warn`, `info`, `debug`); a program with its own subscriber for the
/// events of crate `tracing` keeps that.
///
/// # Errors
/// [`Error::System`] if the variable isn't a level.
///
/// ```
/// wirepaxos::log_to_stderr()?;
/// # Ok::<(), wirepaxos::Error>(())
/// ```
pub fn log_to_stderr() -> Result<(), Error> {
    Ok(node::log::to_stderr()?)
}
