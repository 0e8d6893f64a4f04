// SPDX-License-Identifier: Apache-2.0
//! Brings a backup's states to a later moment, by executing what the archive has behind them.
//!
//! All partitions of a group are executed together, as a replica does that catches up. A command
//! over several partitions takes effect only when all of them stand at it; so it is in all or none,
//! and a partition that waits for another one at the end stays before it. [X-CATCHUP] [V-STAND]

use std::collections::BTreeMap;

use paxos::{Header, Instance, Outbox, PartitionId, Time, To};
use replica::{Basis, Output, Replayed, ReplyTo, SiblingMessage, values_below};

use super::catalog::{Catalog, Entry};
use super::manifest::{GroupEntry, Manifest};
use super::scratch::Holder;
use crate::archive::{Archive, Cutoff, GroupPartition, Moment, Range, Reach, Reaches, Record};
use crate::{Error, utc};

/// How much time passes, for the workers, between two records.
const STEP: Time = 2_000_000;

/// A moment to which a backup is brought.
pub struct Goal {
    archive: Archive,
    since_ms: u64,
    /// The moment.
    pub until: Cutoff,
}

impl Catalog {
    /// Returns the newest backup, or the one with this name, that can be brought to a moment.
    pub fn find_for(
        &self,
        name: Option<&str>,
        moment: Moment,
    ) -> Result<(String, Manifest, Goal), Error> {
        // The cluster is that of the backup which would be taken without a moment.
        let (_, newest) = self.find(name)?;
        let cluster = newest.cluster;
        let backups = self.by_cluster(name)?.remove(&cluster).unwrap_or_default();
        let reaches = self.reaches(cluster, &backups)?;
        let since_ms = since_ms(&backups);
        let archive = Archive::of(self.directory(), cluster);
        let both = backups.iter().zip(&reaches.of_backups).rev();
        for ((name, manifest), reach) in both {
            let until = until(&archive, since_ms, manifest, reach, moment)?;
            if let Some(until) = until {
                let goal = Goal {
                    archive,
                    since_ms: manifest.begun_s.saturating_mul(1_000),
                    until,
                };
                return Ok((name.clone(), manifest.clone(), goal));
            }
        }
        Err(out_of_reach(&backups, &reaches))
    }

    /// Returns the backups that can be read, oldest first, by the number of their cluster.
    pub(super) fn by_cluster(
        &self,
        name: Option<&str>,
    ) -> Result<BTreeMap<u32, Vec<(String, Manifest)>>, Error> {
        let mut clusters = BTreeMap::<u32, Vec<_>>::new();
        for Entry { name: of, manifest } in self.entries()? {
            let is_wanted = name.is_none_or(|name| name == of);
            if let Some(manifest) = manifest.ok().filter(|_| is_wanted) {
                let backups = clusters.entry(manifest.cluster).or_default();
                backups.push((of, manifest));
            }
        }
        Ok(clusters)
    }

    pub(super) fn reaches(
        &self,
        cluster: u32,
        backups: &[(String, Manifest)],
    ) -> Result<Reaches, Error> {
        let reach = |(_, manifest): &(String, Manifest)| Reach::from(positions(manifest));
        let reaches = backups.iter().map(reach).collect();
        let archive = Archive::of(self.directory(), cluster);
        Reaches::read(&archive, since_ms(backups), reaches)
    }
}

pub(super) fn since_ms(backups: &[(String, Manifest)]) -> u64 {
    let begun = backups.iter().map(|(_, manifest)| manifest.begun_s);
    begun.min().unwrap_or(0).saturating_mul(1_000)
}

pub(super) fn positions(
    manifest: &Manifest,
) -> impl Iterator<Item = (GroupPartition, Instance)> + '_ {
    manifest.groups.iter().flat_map(|group| {
        let positions = group.positions.iter().zip(group.pids());
        positions.map(|(position, pid)| ((group.id, pid), *position))
    })
}

/// Returns up to where values count for a moment, if this backup leads to it.
fn until(
    archive: &Archive,
    since_ms: u64,
    manifest: &Manifest,
    reach: &Reach,
    moment: Moment,
) -> Result<Option<Cutoff>, Error> {
    let Some(range) = reach.range() else {
        return Ok(None);
    };
    let has = |time_ms| (range.from_ms..=range.until_ms).contains(&time_ms);
    let (place, instance) = match moment {
        Moment::Time(time_ms) => {
            let below = None;
            return Ok(has(time_ms).then_some(Cutoff { time_ms, below }));
        }
        Moment::InstanceOf(place, instance) => (place, instance),
        Moment::Instance(instance) => {
            let mut places = positions(manifest).map(|(place, _)| place);
            let first = places.next();
            let only = first.filter(|_| places.next().is_none());
            let place = only.ok_or_else(|| {
                Error::new(
                    "there are several partitions, which count instances each for itself: say \
                     GROUP/PARTITION/INSTANCE",
                )
            })?;
            (place, instance)
        }
    };
    let begin = positions(manifest).find(|(of, _)| *of == place);
    let is_there = begin.is_some_and(|(_, begin)| begin <= instance)
        && reach.reached(place).is_some_and(|end| instance <= end);
    if !is_there {
        return Ok(None);
    }
    let mut time = None;
    archive.read(since_ms, |record| {
        if record.place == place && record.end >= instance {
            time.get_or_insert(record.time_ms);
        }
        Ok(())
    })?;
    let below = Some((place, instance));
    // All others go to the time at which this partition was there.
    let time_ms = time.map(|time_ms| time_ms.max(range.from_ms));
    let time_ms = time_ms.filter(|time_ms| has(*time_ms));
    Ok(time_ms.map(|time_ms| Cutoff { time_ms, below }))
}

fn out_of_reach(backups: &[(String, Manifest)], reaches: &Reaches) -> Error {
    let both = backups.iter().zip(&reaches.of_backups);
    let ranges = both.map(|((name, _), reach)| match reach.range() {
        Some(range) => format!("{name} to any from {}", range_text(range)),
        None => format!("{name} to no other moment"),
    });
    let ranges: Vec<_> = ranges.chain(reaches.wrong.iter().cloned()).collect();
    Error::new(format!(
        "no backup can be brought to that moment: {}",
        ranges.join("; ")
    ))
}

/// Returns the moments as people read them.
pub fn range_text(range: Range) -> String {
    let [from, until] = [range.from_ms, range.until_ms].map(utc::shown);
    format!("{from} to {until}")
}

impl Goal {
    /// Executes in the states of a group's partitions, in order, what the archive has up to the
    /// moment. Returns where they stand then.
    pub fn reach(
        &self,
        group: &GroupEntry,
        holders: &mut [Holder],
    ) -> Result<Vec<Instance>, Error> {
        let partitions = holders.iter_mut().map(|holder| Partition {
            fed: holder.next(),
            holder,
            values: Vec::new(),
            is_over: false,
        });
        let mut replay = Replay {
            partitions: partitions.collect(),
            now: 0,
        };
        self.archive.read(self.since_ms, |record| {
            match record.place.0 == group.id && replay.takes(record, &self.until) {
                true => replay.execute(),
                false => Ok(()),
            }
        })?;
        let partitions = replay.partitions.iter();
        Ok(partitions.map(|of| of.holder.next()).collect())
    }
}

/// The partitions of a group, which execute together.
struct Replay<'a> {
    partitions: Vec<Partition<'a>>,
    now: Time,
}

struct Partition<'a> {
    holder: &'a mut Holder,
    /// The instance behind the last that was fed.
    fed: Instance,
    /// Values that were fed and not taken yet.
    values: Vec<u8>,
    /// The moment was reached.
    is_over: bool,
}

impl Replay<'_> {
    /// Takes a record, and returns whether anything of it counts.
    fn takes(&mut self, record: &Record<'_>, until: &Cutoff) -> bool {
        let Some(partition) = self.partitions.get_mut(usize::from(record.place.1)) else {
            return false;
        };
        partition.is_over |= record.time_ms > until.time_ms;
        let end = record.end.min(until.end(record.place));
        if partition.is_over || end <= partition.fed || record.first > partition.fed {
            return false;
        }
        let values = values_below(record.values, end);
        partition.values.extend_from_slice(values);
        partition.fed = end;
        true
    }

    /// Executes what was fed, as far as the partitions don't wait for each other.
    fn execute(&mut self) -> Result<(), Error> {
        loop {
            self.now += STEP;
            let mut out = Mail::default();
            let mut goes_on = false;
            for (pid, partition) in (0..).zip(&mut self.partitions) {
                out.from = pid;
                let went = partition.execute(self.now, &mut out);
                goes_on |= went.map_err(|why| failed(pid, &why))?;
            }
            if !goes_on && out.messages.is_empty() {
                return Ok(());
            }
            for (from, to, message) in out.messages {
                if let Some(partition) = self.partitions.get_mut(usize::from(to)) {
                    partition.holder.sibling(self.now, from, message);
                }
            }
        }
    }
}

impl Partition<'_> {
    /// Returns whether it has executed anything.
    fn execute(&mut self, now: Time, out: &mut Mail) -> Result<bool, String> {
        let before = self.holder.next();
        let failed = |e: replica::Error| e.to_string();
        match self.holder.replay(now, &self.values, out).map_err(failed)? {
            Replayed::Taken(bytes) => drop(self.values.drain(..bytes)),
            Replayed::Broken(e) => return Err(e.to_string()),
        }
        self.holder.tick(now, out).map_err(failed)?;
        self.holder.finish_batch(now, out).map_err(failed)?;
        while let Some(write) = self.holder.take_checkpoint() {
            let written = write();
            self.holder.end_checkpoint(now, written).map_err(failed)?;
        }
        Ok(self.holder.next() > before)
    }
}

fn failed(pid: PartitionId, why: &str) -> Error {
    Error::new(format!(
        "partition {pid} can't execute what the archive has: {why}"
    ))
}

/// What workers say to each other. What they send to others goes nowhere.
#[derive(Default)]
struct Mail {
    from: PartitionId,
    messages: Vec<(PartitionId, PartitionId, SiblingMessage)>,
}

impl Outbox for Mail {
    fn send(&mut self, _: To, _: &Header, _: &[u8]) {}
}

impl Output for Mail {
    fn reply(&mut self, _: &ReplyTo, _: Option<Basis>, _: u64, _: u64, _: u8, _: &[u8]) {}

    fn ack(&mut self, _: &ReplyTo, _: &Header) {}

    fn sibling(&mut self, to: PartitionId, message: SiblingMessage) {
        self.messages.push((self.from, to, message));
    }
}
