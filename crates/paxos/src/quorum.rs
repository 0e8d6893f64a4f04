// SPDX-License-Identifier: Apache-2.0
//! Counts the TRIM reports of replicas, for acceptors and leader alike.

use crate::configuration::MAX_REPLICAS;
use crate::{Header, Instance, NodeId, PartitionId, Reason};

// ---- Types

/// A replica's report of a partition: how much of the log its durable checkpoint covers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, PartialOrd, Ord)]
pub struct TrimReport {
    /// The number of the reporting disk; a replica numbers its disks in the order in which it had
    /// them. 0 = nothing was reported yet.
    pub incarnation: u64,
    /// The instance below which everything is in a durable checkpoint on that disk.
    pub inst: Instance,
}

impl TrimReport {
    /// Returns the report in a replica's TRIM.
    pub fn said_by(header: &Header) -> TrimReport {
        TrimReport {
            incarnation: header.client,
            inst: header.inst,
        }
    }
}

/// The last report of each replica of a configuration, for each partition.
///
/// Instances that g+1 replicas cover with durable checkpoints may be forgotten: at least one of
/// these replicas survives the loss of g, and the others fetch its checkpoint. A lost disk covers
/// nothing, so the first report of a newer disk replaces the older disk's report, even if it covers
/// less.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct TrimReports {
    replicas: Vec<NodeId>,
    g: u8,
    partitions: u16,
    /// The reports, partition by partition, each in the order of `replicas`.
    reports: Vec<TrimReport>,
}

// ---- State

impl TrimReports {
    /// Returns counts without replicas, so that nothing can be reported.
    pub fn none(partitions: u16) -> TrimReports {
        TrimReports {
            replicas: Vec::new(),
            g: 0,
            partitions,
            reports: Vec::new(),
        }
    }

    /// Returns counts without reports for the 2g+1 or more `replicas` of a configuration, in
    /// ascending order.
    pub fn new(partitions: u16, replicas: &[NodeId], g: u8) -> Result<TrimReports, &'static str> {
        if replicas.len() > MAX_REPLICAS {
            return Err("too many replicas");
        }
        if replicas.len() < 2 * g as usize + 1 {
            return Err("fewer than 2g+1 replicas");
        }
        if !replicas.windows(2).all(|pair| pair[0] < pair[1]) {
            return Err("replicas repeat or are out of order");
        }
        Ok(TrimReports {
            replicas: replicas.to_vec(),
            g,
            partitions,
            reports: vec![TrimReport::default(); replicas.len() * partitions as usize],
        })
    }

    /// Returns counts for another configuration's replicas. Replicas that belong to both keep their
    /// reports.
    pub fn changed(&self, replicas: &[NodeId], g: u8) -> Result<TrimReports, &'static str> {
        let mut changed = TrimReports::new(self.partitions, replicas, g)?;
        for (old, replica) in self.replicas.iter().enumerate() {
            let Some(new) = changed.position(*replica) else {
                continue;
            };
            for pid in 0..self.partitions {
                let at = changed.at(pid, new);
                changed.reports[at] = self.reports[self.at(pid, old)];
            }
        }
        Ok(changed)
    }

    /// Returns the replicas that may report.
    pub fn replicas(&self) -> &[NodeId] {
        &self.replicas
    }

    /// Returns how many replicas may fail without stopping TRIM.
    pub fn g(&self) -> u8 {
        self.g
    }

    /// Returns every replica's report of a partition, in the order of [`Self::replicas`].
    pub fn of(&self, pid: PartitionId) -> &[TrimReport] {
        let start = self.at(pid, 0);
        &self.reports[start..start + self.replicas.len()]
    }

    /// Returns the same reports to be overwritten, when a saved memory is loaded.
    pub(crate) fn of_mut(&mut self, pid: PartitionId) -> &mut [TrimReport] {
        let start = self.at(pid, 0);
        &mut self.reports[start..start + self.replicas.len()]
    }

    // ---- Handlers

    /// Notes the report of a replica. A delayed older report or a report of an older disk is
    /// refused; the first report of a newer disk counts even if it covers less. [T-NEWEST]
    pub fn report(
        &mut self,
        pid: PartitionId,
        replica: NodeId,
        report: TrimReport,
    ) -> Result<(), Reason> {
        if report.incarnation == 0 {
            return Err(Reason::BadSession);
        }
        let index = self.position(replica).ok_or(Reason::UnknownSender)?;
        let at = self.at(pid, index);
        let known = &mut self.reports[at];
        if report < *known {
            return Err(Reason::Stale);
        }
        if report == *known {
            return Err(Reason::Duplicate);
        }
        *known = report;
        Ok(())
    }

    /// Returns the instance below which g+1 replicas cover everything: the (g+1)-th largest report.
    /// [T-QUORUM]
    pub fn trim_point(&self, pid: PartitionId) -> Instance {
        let mut sorted = [0; MAX_REPLICAS];
        let sorted = &mut sorted[..self.replicas.len()];
        for (inst, report) in sorted.iter_mut().zip(self.of(pid)) {
            *inst = report.inst;
        }
        sorted.sort_unstable_by(|a, b| b.cmp(a));
        sorted.get(self.g as usize).copied().unwrap_or(0)
    }

    // ---- Helpers

    fn position(&self, replica: NodeId) -> Option<usize> {
        self.replicas.iter().position(|known| *known == replica)
    }

    fn at(&self, pid: PartitionId, index: usize) -> usize {
        pid as usize * self.replicas.len() + index
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(incarnation: u64, inst: Instance) -> TrimReport {
        TrimReport { incarnation, inst }
    }

    /// Once a replica has a new disk, reports of its old one no longer count. [T-NEWEST]
    #[test]
    fn a_disk_that_is_gone_covers_nothing() {
        let mut reports = TrimReports::new(1, &[7, 8, 9], 1).unwrap();
        for (replica, inst) in [(7, 1000), (8, 400), (9, 400)] {
            reports.report(0, replica, of(1, inst)).unwrap();
        }
        assert_eq!(reports.trim_point(0), 400);
        reports.report(0, 7, of(4, 0)).unwrap();
        reports.report(0, 8, of(1, 900)).unwrap();
        assert_eq!(reports.trim_point(0), 400, "one replica alone has 900");
        assert_eq!(reports.report(0, 7, of(1, 2000)), Err(Reason::Stale));
        assert_eq!(reports.report(0, 7, of(4, 0)), Err(Reason::Duplicate));
        assert_eq!(reports.report(0, 7, of(0, 2000)), Err(Reason::BadSession));
        reports.report(0, 7, of(4, 900)).unwrap();
        assert_eq!(reports.trim_point(0), 900);
    }

    /// The trim point is the largest position that the checkpoints of g+1 replicas cover.
    /// [T-QUORUM]
    #[test]
    fn trims_to_what_g_plus_one_replicas_cover() {
        let mut reports = TrimReports::new(2, &[7, 8, 9], 1).unwrap();
        reports.report(1, 7, of(1, 10)).unwrap();
        assert_eq!(reports.trim_point(1), 0, "one of g+1 = 2");
        reports.report(1, 9, of(1, 5)).unwrap();
        assert_eq!((reports.trim_point(0), reports.trim_point(1)), (0, 5));
        reports.report(1, 8, of(1, 30)).unwrap();
        assert_eq!(reports.trim_point(1), 10);
    }

    #[test]
    fn one_replica_cannot_report_twice() {
        let mut reports = TrimReports::new(1, &[7, 8, 9], 1).unwrap();
        reports.report(0, 7, of(1, 10)).unwrap();
        reports.report(0, 7, of(1, 20)).unwrap();
        assert_eq!(reports.report(0, 7, of(1, 20)), Err(Reason::Duplicate));
        assert_eq!(reports.report(0, 7, of(1, 19)), Err(Reason::Stale));
        assert_eq!(reports.report(0, 6, of(1, 20)), Err(Reason::UnknownSender));
        assert_eq!(reports.trim_point(0), 0);
    }

    #[test]
    fn replicas_that_go_on_keep_their_reports() {
        let mut reports = TrimReports::new(2, &[7, 8, 9], 1).unwrap();
        for (pid, replica, inst) in [(0, 7, 10), (0, 8, 20), (1, 8, 40), (1, 9, 50)] {
            reports.report(pid, replica, of(1, inst)).unwrap();
        }
        let none = TrimReport::default();
        let changed = reports.changed(&[8, 10, 11], 1).unwrap();
        assert_eq!(
            (changed.of(0), changed.of(1)),
            (&[of(1, 20), none, none][..], &[of(1, 40), none, none][..])
        );
        assert_eq!(reports.changed(&[8], 0).unwrap().trim_point(1), 40);
    }

    /// Configurations without quorums that meet are refused. [E-MEMBERS]
    #[test]
    fn impossible_configurations_are_refused() {
        assert!(TrimReports::new(1, &[7, 8], 1).is_err());
        assert!(TrimReports::new(1, &[7, 7, 8], 1).is_err());
        assert!(TrimReports::new(1, &[8, 7, 9], 1).is_err());
        assert!(TrimReports::new(1, &(1..=33).collect::<Vec<_>>(), 1).is_err());
        assert!(TrimReports::new(1, &[], 0).is_err());
        assert_eq!(
            TrimReports::none(1).report(0, 7, of(1, 1)),
            Err(Reason::UnknownSender)
        );
        assert_eq!(TrimReports::none(1).trim_point(0), 0);
    }
}
