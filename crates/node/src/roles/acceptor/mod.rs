//! An acceptor's process: the role of every group behind one socket, or in the kernel
//! (`kernel.rs`), and where its votes are kept.
//!
//! *Volatile*: in memory. An orderly stop writes them to `acceptor.state`, which the next start
//! reads and removes before it serves: a dump is used once. After a crash there is none, and the
//! acceptor starts as a stranger with a new boot nonce. [A-MUTE]
//!
//! *Durable*: in memory and in a log; nothing that a packet caused leaves before the packet is on
//! disk (see `wal.rs`). [A-DURABLE]

mod image;
mod kernel;
#[cfg(any(test, fuzzing))]
pub mod stored;
mod wal;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use control::Message;
use paxos::acceptor::Start;
use paxos::{
    Acceptor, Deployment, Epoch, GroupId, Header, Instance, NodeId, Outbox, Packet, Round, To,
    TrimReport, Verdict, trace,
};
use serde_json::{Value, json};

use self::kernel::KernelAcceptor;
use self::wal::{Kind, Memory, Owner, Wal};
use crate::cluster_file::{ClusterFile, Node, Storage};
use crate::host::Stop;
use crate::roles::control_loop::{of_group, refused};
use crate::roles::kernel as in_kernel;
use crate::roles::outbox::AddressedOutbox;
use crate::roles::sockets::{Role, RoleLoop};
use crate::trace::{Recorded, Recorder};
use crate::{Error, random_nonce, status};

/// Runs an acceptor until the stop is requested.
pub fn run(cluster: &ClusterFile, node: &Node, stop: &Stop) -> Result<(), Error> {
    if in_kernel::run::<KernelAcceptor>(cluster, node, stop)? {
        return Ok(());
    }
    let role_loop = RoleLoop::open(cluster, node, stop)?;
    let mut role = AcceptorRole::open(cluster, node)?;
    role_loop.run(&mut role)
}

struct AcceptorRole {
    /// By group, in the order of the cluster file.
    acceptors: Vec<Acceptor>,
    keeping: Keeping,
    /// By group.
    traces: Vec<Recorder>,
}

enum Keeping {
    /// Where an orderly stop leaves the memory.
    Volatile(PathBuf),
    Durable(Box<Wal>),
}

impl AcceptorRole {
    fn open(cluster: &ClusterFile, node: &Node) -> Result<AcceptorRole, Error> {
        let mine = memory_on_disk(cluster, node)?;
        let (acceptors, keeping) = match node.storage {
            Storage::Volatile => Self::open_volatile(cluster, node, &mine)?,
            Storage::Durable => Self::open_durable(cluster, node, &mine)?,
        };
        let mut traces = Recorder::open_all(cluster, node)?;
        for (trace, acceptor) in traces.iter_mut().zip(&acceptors) {
            trace.started(
                trace::Role::Acceptor,
                acceptor.nonce(),
                acceptor.start().number(),
            );
        }
        Ok(AcceptorRole {
            acceptors,
            keeping,
            traces,
        })
    }

    fn open_volatile(
        cluster: &ClusterFile,
        node: &Node,
        dump: &Path,
    ) -> Result<(Vec<Acceptor>, Keeping), Error> {
        let mut dumped = read_dump(cluster, node, dump)?;
        for acceptor in dumped.iter_mut().flatten() {
            acceptor.restarted(random_nonce()? as u32);
        }
        let acceptors = strangers_for_none(dumped, cluster, node)?;
        // This must come before the first vote: from then on the dump would be a memory that forgot
        // that vote.
        remove_dump(dump)?;
        Ok((acceptors, Keeping::Volatile(dump.to_owned())))
    }

    fn open_durable(
        cluster: &ClusterFile,
        node: &Node,
        log: &Path,
    ) -> Result<(Vec<Acceptor>, Keeping), Error> {
        let mut memory = LoggedMemory {
            cluster,
            node,
            acceptors: None,
        };
        let owner = Owner {
            cluster: cluster.cluster,
            node: node.id,
        };
        let mut wal = Wal::open(log, owner, &mut memory)?;
        let acceptors = match memory.acceptors {
            Some(mut acceptors) => {
                for acceptor in &mut acceptors {
                    acceptor.restarted(random_nonce()? as u32);
                }
                acceptors
            }
            None => {
                let nothing = cluster.groups.iter().map(|_| None);
                strangers_for_none(nothing.collect(), cluster, node)?
            }
        };
        // A memory's boot nonce and the number of its starts are stored in snapshots, so there must
        // be a snapshot before they are shown. [A-MUTE]
        wal.snapshot(image::encode(&acceptors))?;
        wal.finish_snapshot()?;
        Ok((acceptors, Keeping::Durable(Box::new(wal))))
    }
}

/// Where a node's kind of storage keeps its votes. Refuses to start if a memory of the other kind
/// was left behind: it must not vote again later, since meanwhile another one votes under the same
/// node id.
fn memory_on_disk(cluster: &ClusterFile, node: &Node) -> Result<PathBuf, Error> {
    let directory = cluster.node_dir(node);
    image::create_directory(&directory)
        .map_err(|e| Error::new(format!("can't create {}: {e}", directory.display())))?;
    let (dump, log) = (directory.join("acceptor.state"), directory.join("log"));
    let (mine, other) = match node.storage {
        Storage::Volatile => (dump, log),
        Storage::Durable => (log, dump),
    };
    if other.exists() {
        let why = format!("`storage` is {:?} now", node.storage.name());
        return Err(image::unusable(&other, &why));
    }
    Ok(mine)
}

/// What an orderly stop has left, by group.
fn read_dump(
    cluster: &ClusterFile,
    node: &Node,
    dump: &Path,
) -> Result<Vec<Option<Acceptor>>, Error> {
    match fs::read(dump) {
        Ok(bytes) => {
            let decoded = image::decode(&bytes, cluster, node);
            decoded.map_err(|why| image::unusable(dump, &why))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Ok(cluster.groups.iter().map(|_| None).collect())
        }
        Err(e) => Err(image::unusable(dump, &e.to_string())),
    }
}

fn remove_dump(dump: &Path) -> Result<(), Error> {
    match image::remove(dump) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => {
            Err(Error::new(format!("can't remove {}: {e}", dump.display())))
        }
        _ => Ok(()),
    }
}

fn write_dump(dump: &Path, image: &[u8]) -> Result<(), Error> {
    image::write(dump, image).map_err(|e| {
        Error::new(format!(
            "can't write {}: {e}; this acceptor will re-join as a new member",
            dump.display()
        ))
    })
}

/// What the log is read into.
struct LoggedMemory<'a> {
    cluster: &'a ClusterFile,
    node: &'a Node,
    acceptors: Option<Vec<Acceptor>>,
}

impl Memory for LoggedMemory<'_> {
    fn restore(&mut self, image: &[u8]) -> Result<(), String> {
        let decoded = image::decode(image, self.cluster, self.node)?;
        let all =
            strangers_for_none(decoded, self.cluster, self.node).map_err(|e| e.to_string())?;
        self.acceptors = Some(all);
        Ok(())
    }

    fn replay(&mut self, kind: Kind, bytes: &[u8]) -> Result<(), String> {
        let acceptors = self.acceptors.as_mut();
        replay(
            acceptors.ok_or("there is no snapshot before it")?,
            kind,
            bytes,
        )
    }
}

/// Fills the groups without a memory with strangers.
fn strangers_for_none(
    known: Vec<Option<Acceptor>>,
    cluster: &ClusterFile,
    node: &Node,
) -> Result<Vec<Acceptor>, Error> {
    let stranger_for_none = |(known, group): (Option<Acceptor>, _)| match known {
        Some(acceptor) => Ok(acceptor),
        None => {
            let deployment = cluster.deployment(node, group);
            Ok(Acceptor::new(deployment, group.slots, random_nonce()?))
        }
    };
    known
        .into_iter()
        .zip(&cluster.groups)
        .map(stranger_for_none)
        .collect()
}

/// What a replayed packet would send was sent before, or never left; it isn't sent again.
struct Nowhere;

impl Outbox for Nowhere {
    fn send(&mut self, _: To, _: &Header, _: &[u8]) {}
}

fn replay(acceptors: &mut [Acceptor], kind: Kind, bytes: &[u8]) -> Result<(), String> {
    match kind {
        Kind::Packet => {
            let packet = Packet::parse(bytes)
                .map_err(|reason| format!("a record holds no packet ({})", reason.name()))?;
            let group = packet.header.group;
            let acceptor = of_group(acceptors, group, |a| a.deployment().group)
                .ok_or_else(|| format!("it holds votes of the unknown group {group}"))?;
            match acceptor.step(&packet, &mut Nowhere) {
                Verdict::Changed => Ok(()),
                verdict => Err(format!(
                    "a record doesn't fit what precedes it: {verdict:?}"
                )),
            }
        }
        Kind::Enable => {
            let message: Message = serde_json::from_slice(bytes)
                .map_err(|e| format!("a record holds no order: {e}"))?;
            let (group, enable) = message.enable().ok_or("a record holds another order")?;
            let acceptor = of_group(acceptors, group, |a| a.deployment().group)
                .ok_or_else(|| format!("it enables the unknown group {group}"))?;
            acceptor
                .enable(&enable)
                .map(|_| ())
                .map_err(|why| format!("a record doesn't fit what precedes it: {why}"))
        }
    }
}

impl Role for AcceptorRole {
    #[inline]
    fn step(
        &mut self,
        group: usize,
        packet: &Packet<'_>,
        datagram: &[u8],
        out: &mut AddressedOutbox<'_>,
    ) -> Verdict {
        let trace = &mut self.traces[group];
        trace.received(datagram);
        let verdict = self.acceptors[group].step(packet, &mut Recorded { out, trace });
        if let (Verdict::Changed, Keeping::Durable(wal)) = (verdict, &mut self.keeping) {
            wal.append(Kind::Packet, datagram);
        }
        verdict
    }

    /// [A-DURABLE]
    fn commit(&mut self) -> Result<(), Error> {
        if let Keeping::Durable(wal) = &mut self.keeping {
            let mut traces = self.traces.iter_mut();
            traces.try_for_each(Recorder::flush_received)?;
            if wal.commit()? {
                wal.snapshot(image::encode(&self.acceptors))?;
            }
        }
        self.traces.iter_mut().try_for_each(Recorder::flush)
    }

    fn order(&mut self, order: &Message) -> Result<(), Error> {
        if let Some((group, nonce, start)) = order.resume() {
            self.resume(group, nonce, start);
        } else if let Some((group, nonce, start)) = order.discard() {
            self.discard(group, nonce, start)?;
        }
        let Some((group, enable)) = order.enable() else {
            return Ok(());
        };
        let mut acceptors = self.acceptors.iter_mut().zip(&mut self.traces);
        let Some((acceptor, trace)) = acceptors.find(|(a, _)| a.deployment().group == group) else {
            return Ok(());
        };
        trace.enabled(&enable);
        let changed = match acceptor.enable(&enable) {
            Ok(changed) => changed,
            Err(why) => {
                // An order that comes late, or repeated for a memory that is gone, is nothing special.
                let node = acceptor.deployment().node;
                refused(node, &format!("enabling in epoch {}", enable.epoch), why);
                false
            }
        };
        match &mut self.keeping {
            // The controller repeats its orders all the time.
            Keeping::Durable(wal) if changed => {
                let bytes = serde_json::to_vec(order).map_err(|e| Error::new(e.to_string()))?;
                wal.append(Kind::Enable, &bytes);
                self.commit()
            }
            _ => Ok(()),
        }
    }

    fn view(&mut self, _: &control::View) {}

    fn stop(&mut self) -> Result<(), Error> {
        match &mut self.keeping {
            Keeping::Durable(wal) => wal.finish_snapshot(),
            Keeping::Volatile(dump) => write_dump(dump, &image::encode(&self.acceptors)),
        }
    }

    fn status(&self, warnings: &mut Vec<String>) -> Vec<Value> {
        let storage = match self.keeping {
            Keeping::Volatile(_) => Storage::Volatile,
            Keeping::Durable(_) => Storage::Durable,
        };
        let status = |acceptor: &Acceptor| {
            let partitions = 0..acceptor.deployment().partitions;
            let shown = Shown {
                group: acceptor.deployment().group,
                epoch: acceptor.epoch(),
                nonce: acceptor.nonce(),
                start: acceptor.start(),
                mute: acceptor.is_mute(),
                storage,
                slots: acceptor.slots(),
                partitions: partitions.map(|pid| of_partition(acceptor, pid)).collect(),
            };
            shown.to_json(warnings)
        };
        self.acceptors.iter().map(status).collect()
    }
}

impl AcceptorRole {
    /// The controller has compared what this start of a memory shows. [A-MUTE]
    fn resume(&mut self, group: GroupId, nonce: u64, start: Start) {
        let mut acceptors = self.acceptors.iter_mut().zip(&mut self.traces);
        let Some((acceptor, trace)) = acceptors.find(|(a, _)| a.deployment().group == group) else {
            return;
        };
        match acceptor.resume(nonce, start) {
            Ok(true) => trace.resumed(start),
            Ok(false) => {}
            Err(why) => refused(acceptor.deployment().node, "going on", why),
        }
    }

    /// The controller has seen more of this memory than there is: it is put aside, and an empty one
    /// takes its place. [A-DISCARD]
    fn discard(&mut self, group: GroupId, nonce: u64, start: Start) -> Result<(), Error> {
        let mut acceptors = self.acceptors.iter();
        let Some(at) = acceptors.position(|a| a.deployment().group == group) else {
            return Ok(());
        };
        let acceptor = &self.acceptors[at];
        let is_meant = (acceptor.nonce(), acceptor.start()) == (nonce, start);
        if !is_meant || !acceptor.is_mute() {
            let why = "it is meant for another memory, or another start of it";
            refused(acceptor.deployment().node, "giving up its memory", why);
            return Ok(());
        }
        let empty = Acceptor::new(
            *acceptor.deployment(),
            acceptor.slots() as usize,
            random_nonce()?,
        );
        match &mut self.keeping {
            Keeping::Volatile(dump) => {
                let aside = put_aside_as(dump, nonce);
                write_dump(&aside, &image::encode(std::slice::from_ref(acceptor)))?;
                say_what_was_put_aside(acceptor.deployment(), &aside);
                self.acceptors[at] = empty;
            }
            Keeping::Durable(wal) => {
                let aside = put_aside_as(wal.directory(), nonce);
                wal.keep_as(&aside)?;
                say_what_was_put_aside(acceptor.deployment(), &aside);
                self.acceptors[at] = empty;
                wal.snapshot(image::encode(&self.acceptors))?;
                wal.finish_snapshot()?;
            }
        }
        let acceptor = &self.acceptors[at];
        let start = acceptor.start().number();
        self.traces[at].started(trace::Role::Acceptor, acceptor.nonce(), start);
        Ok(())
    }
}

/// Where a memory that has forgotten is kept, for anybody who wants to look at it.
fn put_aside_as(memory: &Path, nonce: u64) -> PathBuf {
    let mut name = memory.as_os_str().to_owned();
    name.push(format!(".forgotten-{nonce:016x}"));
    name.into()
}

fn say_what_was_put_aside(deployment: &Deployment, aside: &Path) {
    eprintln!(
        "node {}, group {}: THIS MEMORY HAS FORGOTTEN VOTES that the controller had seen: an old copy \
         of its files was put back, or the disk lost writes. It is kept as {}, and this acceptor \
         joins again with an empty one",
        deployment.node,
        deployment.group,
        aside.display()
    );
}

fn of_partition(acceptor: &Acceptor, pid: u16) -> ShownPartition {
    let replicas = acceptor.reports().replicas().iter().copied();
    let reports = acceptor.reports().of(pid).iter().copied();
    ShownPartition {
        floor: acceptor.floor(pid),
        trim: acceptor.trim(pid),
        end: acceptor.end(pid),
        reports: replicas.zip(reports).collect(),
    }
}

/// What an acceptor of one group shows, on any plane.
struct Shown {
    group: GroupId,
    epoch: Epoch,
    nonce: u64,
    start: Start,
    mute: bool,
    storage: Storage,
    slots: u64,
    partitions: Vec<ShownPartition>,
}

struct ShownPartition {
    floor: Round,
    trim: Instance,
    end: Instance,
    /// Up to where each replica's checkpoint reaches: who holds back the trim.
    reports: Vec<(NodeId, TrimReport)>,
}

impl Shown {
    fn to_json(&self, warnings: &mut Vec<String>) -> Value {
        let partition = |(pid, p): (usize, &ShownPartition)| {
            let used = p.end.saturating_sub(p.trim);
            let full = status::ring_warning("the ring", self.group, pid, used, self.slots);
            warnings.extend(full);
            let reports = p.reports.iter();
            let reports = reports.map(|(node, report)| {
                json!({ "replica": node, "trim": report.inst, "incarnation": report.incarnation })
            });
            json!({
                "pid": pid,
                "floor": p.floor.epoch(),
                "trim": p.trim,
                "end": p.end,
                "used": used,
                "reports": reports.collect::<Value>(),
            })
        };
        let partitions: Vec<_> = self.partitions.iter().enumerate().map(partition).collect();
        if self.mute {
            warnings.push(format!(
                "group {}: the memory was read from disk, and the acceptor stays silent until the \
                 controller has compared it with what it had shown before",
                self.group
            ));
        }
        json!({
            "group": self.group,
            "member": self.epoch != 0,
            "epoch": self.epoch,
            "nonce": format!("{:016x}", self.nonce),
            "start": self.start.count(),
            "mute": self.mute,
            "storage": self.storage.name(),
            "slots": self.slots,
            "partitions": partitions,
        })
    }
}

#[cfg(test)]
mod tests;
