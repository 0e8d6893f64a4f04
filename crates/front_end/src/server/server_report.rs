// SPDX-License-Identifier: Apache-2.0
//! Tells a partition which server this replica has, as the first command of the session for
//! [reports](crate::server::clock_reports). It is longer than a value, so it travels in parts.
//! [S-PARTS]

use paxos::PartitionId;
use replica::parts::{self, Progress, Sending};

use crate::log::{Log, Plane};

/// The report to one partition.
#[derive(Default)]
pub(crate) struct ServerReport {
    /// The report's parts, while they are sent.
    sending: Option<Sending>,
    is_done: bool,
}

impl ServerReport {
    /// Returns true once the report was executed.
    pub fn is_done(&self) -> bool {
        self.is_done
    }

    /// Forgets what was sent in a session that is gone. A report that was executed isn't repeated.
    pub fn begin_anew(&mut self) {
        self.sending = None;
    }

    /// Sends all that may be sent now of the report, with this request number.
    pub fn send<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        (pid, session, request): (PartitionId, u64, u64),
        report: &[u8],
        max_value: usize,
    ) {
        if report.len() <= max_value {
            return log.submit_part(pid, session, request, report);
        }
        let begin = || Sending::new(request, report.len(), max_value);
        let sending = self.sending.get_or_insert_with(begin);
        let mut part = Vec::new();
        while let Some(number) = sending.next(report, &mut part) {
            log.submit_part(pid, session, number, &part);
        }
    }

    /// Takes an answer, and returns what it means.
    pub fn answered(&mut self, number: u64, is_ok: bool) -> Progress {
        let progress = match (parts::split(number).1, &mut self.sending) {
            (Some(_), Some(sending)) => sending.answered(number, is_ok),
            (Some(_), None) => Progress::Nothing,
            (None, _) => Progress::Answered,
        };
        self.is_done |= progress == Progress::Answered && is_ok;
        progress
    }
}
