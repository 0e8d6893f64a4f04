// SPDX-License-Identifier: Apache-2.0
//! Says how far each backup of a directory can be brought, and what the archive lacks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use paxos::Instance;

use super::catalog::Catalog;
use super::manifest::{CLUSTER_FILE, Manifest};
use super::roll_forward::{positions, since_ms};
use crate::archive::{Archive, GroupPartition, Range, Reach, Reaches};
use crate::{Error, utc};

/// How far the backups of a directory can be brought.
#[derive(Default)]
pub struct Overview {
    /// The backups that can be read.
    pub backups: Vec<Reachable>,
    /// The gaps in the archives.
    pub missing: Vec<Missing>,
    /// What is wrong with the archives' segments.
    pub wrong: Vec<String>,
}

/// How far a backup can be brought.
pub struct Reachable {
    /// The backup's name.
    pub name: String,
    /// The moments.
    pub range: Option<Range>,
    /// The partitions' instances at these moments; none without moments.
    pub instances: Vec<Instances>,
}

/// Instances of a partition: each can be the first one that isn't executed any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Instances {
    /// The partition.
    pub place: GroupPartition,
    /// The first of them.
    pub first: Instance,
    /// The last of them.
    pub last: Instance,
}

/// A gap in the archive, although the backup before it is of a cluster that archives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// The backup behind which values are missing.
    pub backup: String,
    /// The missing instances of each partition.
    pub instances: Vec<Instances>,
    /// The last moment before the gap to which that backup can be brought, in ms since 1970.
    pub after_ms: u64,
    /// The first moment of the next backup, if there is one.
    pub before_ms: Option<u64>,
}

impl Missing {
    /// Returns what is missing, and so which moments can't be brought back, as people read it.
    pub fn text(&self) -> String {
        let of = |gap: &Instances| {
            let Instances { place, first, last } = gap;
            let (group, pid) = place;
            format!("{first} to {last} of group {group}, partition {pid}")
        };
        let instances: Vec<String> = self.instances.iter().map(of).collect();
        let after = utc::shown(self.after_ms);
        let moments = match self.before_ms.map(utc::shown) {
            Some(before) => format!("between {after} and {before} UTC"),
            None => format!("after {after} UTC"),
        };
        format!(
            "behind {} the archive lacks instances {}, so no moment {moments} can be brought back",
            self.backup,
            instances.join(", ")
        )
    }
}

impl Catalog {
    /// Returns how far each backup that can be read can be brought, and what keeps them from more.
    pub fn overview(&self) -> Result<Overview, Error> {
        let mut overview = Overview::default();
        for (cluster, backups) in self.by_cluster(None)? {
            let reaches = self.reaches(cluster, &backups)?;
            overview.missing.extend(self.missing(&backups, &reaches));
            let archive = Archive::of(self.directory(), cluster);
            let instances = instances(&archive, &backups, &reaches.of_backups)?;
            overview.wrong.extend(reaches.wrong);
            let ranges = reaches.of_backups.iter().map(Reach::range);
            let all = backups.into_iter().zip(ranges).zip(instances);
            overview
                .backups
                .extend(all.map(|(((name, _), range), instances)| Reachable {
                    name,
                    range,
                    instances,
                }));
        }
        Ok(overview)
    }

    /// Returns where the archive doesn't lead from one backup to the next, or has a hole behind the
    /// last one. Behind a backup of a cluster that archived nothing then, nothing is missing.
    fn missing(&self, backups: &[(String, Manifest)], reaches: &Reaches) -> Vec<Missing> {
        let archives = |at: usize| {
            let backup: Option<&(String, Manifest)> = backups.get(at);
            backup.is_some_and(|(name, _)| archives(&self.path(name)))
        };
        let mut missing = Vec::new();
        for (at, (backup, manifest)) in backups.iter().enumerate() {
            if !archives(at) {
                continue;
            }
            let reach = &reaches.of_backups[at];
            let next = backups.get(at + 1).map(|(_, manifest)| manifest);
            let archived_on = archives(at + 1);
            let gap = |(place, _)| gap(place, reach, next, archived_on);
            let instances: Vec<Instances> = positions(manifest).filter_map(gap).collect();
            if instances.is_empty() {
                continue;
            }
            let begun_ms = |manifest: &Manifest| manifest.begun_s.saturating_mul(1_000);
            let last = reach.range().map(|range| range.until_ms);
            let of_next = reaches.of_backups.get(at + 1).and_then(Reach::range);
            let first = next.map(|next| of_next.map_or(begun_ms(next), |range| range.from_ms));
            missing.push(Missing {
                backup: backup.clone(),
                instances,
                after_ms: last.unwrap_or(begun_ms(manifest)),
                before_ms: first,
            });
        }
        missing
    }
}

/// Returns the instances of a partition that are missing between a backup, from which the archive
/// leads so far, and the next one. `archived_on` says that the cluster still archived then.
fn gap(
    place: GroupPartition,
    reach: &Reach,
    next: Option<&Manifest>,
    archived_on: bool,
) -> Option<Instances> {
    let first = reach.reached(place)?;
    let behind_hole = reach.behind_hole(place);
    let end = match next.map(|next| positions(next).find(|(of, _)| *of == place)) {
        Some(Some((_, at))) if at <= first => None,
        Some(Some((_, at))) => behind_hole.or(archived_on.then_some(at)),
        Some(None) | None => behind_hole,
    };
    let last = end?.saturating_sub(1);
    Some(Instances { place, first, last })
}

/// Returns whether a backup is of a cluster whose file asked for an archive.
fn archives(backup: &Path) -> bool {
    let text = fs::read_to_string(backup.join(CLUSTER_FILE)).unwrap_or_default();
    let file: toml::Table = toml::from_str(&text).unwrap_or_default();
    let archive = file.get("backup").and_then(|of| of.get("archive"));
    archive.and_then(toml::Value::as_bool) == Some(true)
}

/// Returns the instances to which each backup's partitions can be brought.
fn instances(
    archive: &Archive,
    backups: &[(String, Manifest)],
    reaches: &[Reach],
) -> Result<Vec<Vec<Instances>>, Error> {
    let all = backups.iter().zip(reaches);
    let mut all: Vec<Walk> = all
        .map(|((_, manifest), reach)| Walk::from(manifest, reach))
        .collect();
    archive.read(since_ms(backups), |record| {
        for walk in &mut all {
            let end = record.end;
            walk.go_on(record.place, end, record.time_ms);
        }
        Ok(())
    })?;
    let found = all.into_iter().map(|walk| walk.steps.into_iter());
    Ok(found
        .map(|steps| steps.map(|(place, step)| step.found(place)).collect())
        .collect())
}

/// Follows the archive from a backup to the last moment that all partitions reach.
struct Walk {
    until_ms: u64,
    steps: BTreeMap<GroupPartition, Step>,
}

struct Step {
    first: Instance,
    last: Instance,
    reached: Instance,
    is_over: bool,
}

impl Walk {
    fn from(manifest: &Manifest, reach: &Reach) -> Walk {
        let step = |(place, first)| {
            let step = Step {
                first,
                last: first,
                reached: reach.reached(place).unwrap_or(first),
                is_over: false,
            };
            (place, step)
        };
        let range = reach.range();
        Walk {
            until_ms: range.map_or(0, |range| range.until_ms),
            // Without a moment there is no instance either.
            steps: range
                .into_iter()
                .flat_map(|_| positions(manifest).map(step))
                .collect(),
        }
    }

    /// Takes the next record. An instance has the time of the first record that leads so far.
    fn go_on(&mut self, place: GroupPartition, end: Instance, time_ms: u64) {
        let until_ms = self.until_ms;
        let Some(step) = self.steps.get_mut(&place) else {
            return;
        };
        if step.is_over || end <= step.last {
            return;
        }
        step.is_over = time_ms > until_ms || end > step.reached;
        if !step.is_over {
            step.last = end;
        }
    }
}

impl Step {
    fn found(&self, place: GroupPartition) -> Instances {
        let (first, last) = (self.first, self.last);
        Instances { place, first, last }
    }
}

#[cfg(test)]
mod tests {
    use super::super::manifest::{FileEntry, GroupEntry, MANIFEST};
    use super::*;
    use crate::archive::Record;
    use crate::test_dir::TestDir;

    const CLUSTER: u32 = 7;
    const ARCHIVES: &str = "[backup]\narchive = true\n";

    /// Adds a backup of a group with two partitions.
    fn add(directory: &Path, begun_s: u64, positions: [Instance; 2], file: &str) {
        let group = GroupEntry {
            id: 1,
            application: "echo".into(),
            protocol: "paxos".into(),
            replica: "replica-1".into(),
            positions: positions.to_vec(),
        };
        let mut manifest = Manifest {
            cluster: CLUSTER,
            begun_s,
            program: "0.2.0".into(),
            level: control::level::FIRST,
            groups: vec![group],
            files: BTreeMap::new(),
        };
        let entry = FileEntry {
            bytes: 0,
            sha256: String::new(),
        };
        let names = manifest.names().into_iter();
        manifest.files = names.map(|name| (name, entry.clone())).collect();
        let backup = directory.join(format!("backup-{begun_s}"));
        fs::create_dir(&backup).unwrap();
        fs::write(backup.join(CLUSTER_FILE), file).unwrap();
        fs::write(backup.join(MANIFEST), manifest.emit().unwrap()).unwrap();
    }

    /// Archives in a segment of its own that a partition had come from one instance to another. The
    /// values don't matter here, so it has come there without any.
    fn archive(directory: &Path, time_s: u64, pid: u16, positions: &[Instance]) {
        let time_ms = time_s * 1_000;
        let mut writer = Archive::of(directory, CLUSTER).begin(time_ms).unwrap();
        for at in positions {
            let record = Record {
                place: (1, pid),
                time_ms,
                first: *at,
                end: *at,
                values: &[],
            };
            let mut bytes = Vec::new();
            record.emit(&mut bytes);
            writer.append(&bytes).unwrap();
        }
        writer.close(time_ms).unwrap();
    }

    fn missing(directory: &Path) -> Vec<String> {
        let overview = Catalog::open(directory).unwrap().overview().unwrap();
        overview.missing.iter().map(Missing::text).collect()
    }

    #[test]
    fn what_the_archive_lacks_is_named_with_the_moments() {
        let directory = TestDir::new();
        let directory = directory.path();
        add(directory, 10, [5, 5], ARCHIVES);
        archive(directory, 11, 0, &[5]);
        archive(directory, 11, 1, &[5]);
        assert_eq!(missing(directory), [""; 0]);
        // The archive goes on behind four instances of one partition.
        archive(directory, 12, 1, &[9]);
        let gap = "behind backup-10 the archive lacks instances 5 to 8 of group 1, partition 1, so \
                   no moment";
        assert_eq!(
            missing(directory),
            [format!(
                "{gap} after 1970-01-01 00:00:11.000 UTC can be brought back"
            )]
        );
        // From the next backup it leads on.
        add(directory, 13, [5, 9], ARCHIVES);
        archive(directory, 14, 0, &[5]);
        archive(directory, 14, 1, &[9]);
        let moments = "between 1970-01-01 00:00:11.000 and 1970-01-01 00:00:12.000 UTC";
        assert_eq!(
            missing(directory),
            [format!("{gap} {moments} can be brought back")]
        );
        // Nothing leads to one that has more than is archived.
        add(directory, 15, [6, 9], ARCHIVES);
        let last = missing(directory).pop().unwrap();
        assert!(last.starts_with("behind backup-13"), "{last}");
        assert!(
            last.contains("instances 5 to 5 of group 1, partition 0, so"),
            "{last}"
        );
    }

    /// The archive was turned on, or off, by the operator.
    #[test]
    fn nothing_is_missing_where_nothing_was_archived() {
        let directory = TestDir::new();
        let directory = directory.path();
        add(directory, 10, [5, 5], "");
        archive(directory, 12, 0, &[9]);
        add(directory, 13, [9, 9], ARCHIVES);
        add(directory, 14, [12, 12], "");
        assert_eq!(missing(directory), [""; 0]);
    }

    #[test]
    fn instances_end_at_the_last_moment_of_all_partitions() {
        let directory = TestDir::new();
        let directory = directory.path();
        add(directory, 10, [5, 7], ARCHIVES);
        archive(directory, 11, 0, &[5]);
        archive(directory, 12, 1, &[7]);
        let overview = Catalog::open(directory).unwrap().overview().unwrap();
        let instances = |place, first, last| Instances { place, first, last };
        assert_eq!(overview.backups[0].instances, []);
        archive(directory, 12, 0, &[5]);
        let overview = Catalog::open(directory).unwrap().overview().unwrap();
        let expected = [instances((1, 0), 5, 5), instances((1, 1), 7, 7)];
        assert_eq!(overview.backups[0].instances, expected);
    }

    #[test]
    fn a_partition_is_followed_until_the_last_moment() {
        let place = (1, 0);
        let mut walk = Walk {
            until_ms: 20,
            steps: BTreeMap::from([(
                place,
                Step {
                    first: 5,
                    last: 5,
                    reached: 30,
                    is_over: false,
                },
            )]),
        };
        for (end, time_ms) in [(4, 9), (8, 15), (8, 25), (12, 20), (13, 21), (14, 20)] {
            walk.go_on(place, end, time_ms);
        }
        walk.go_on((1, 1), 50, 10);
        let found = walk.steps[&place].found(place);
        assert_eq!((found.first, found.last), (5, 12));
    }
}
