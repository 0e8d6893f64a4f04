// SPDX-License-Identifier: Apache-2.0
//! Reports to each partition, through the log and once a second, what time most nodes have; the
//! group's time is the median of its front ends' reports. The first report tells which server this
//! replica has, and clients wait until the group has agreed on one. Notes by how much the group's
//! time differs from the nodes' time. As long as it isn't known what time most nodes have, nothing
//! is reported and clients wait.
//!
//! ```text
//!  no session ──OPEN──> open ──SERVER once, REPORT──> in flight
//!                       open <─────────answer─────────┘          until the next report is due
//! ```

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use paxos::PartitionId;
use replica::Status;
use replica::parts::Progress;

use crate::log::lane::LaneSession;
use crate::log::{Log, Plane};
use crate::metrics::Metrics;
use crate::native::Native;
use crate::server::clock_difference::{ClockDifference, Finding};
use crate::server::server_report::ServerReport;

const INTERVAL: Duration = Duration::from_secs(1);
/// A session for reports has at most one command in flight.
const WINDOW: u16 = 1;
/// Clients of a new group wait at most this long for the group's first time.
const FIRST_TIME: Duration = Duration::from_secs(5);
/// While it isn't known what time most nodes have, the front end looks again after this time.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The sessions in which this front end reports the time to the partitions.
pub(crate) struct ClockReports {
    content: Content,
    due: Instant,
    /// Clients wait for the group's first time until then; set once this front end can report.
    first_time_until: Option<Instant>,
    /// True once every partition has agreed on a server and has a time, or clients have waited long
    /// enough for the time.
    has_time: bool,
    lanes: Vec<ReportLane>,
}

/// The content of the reports, besides the time.
struct Content {
    voices: u8,
    /// The command that tells which server this replica has.
    server: Vec<u8>,
    max_value: usize,
}

struct ReportLane {
    session: LaneSession,
    server: ServerReport,
    last_request: u64,
    /// The time that the report in flight tells.
    in_flight: Option<u64>,
    difference: ClockDifference,
}

impl ClockReports {
    /// Creates the reports for a group with this many front ends, and values of this many bytes.
    pub fn new(native: &Native, front_ends: usize, max_value: u16) -> ClockReports {
        let now = Instant::now();
        let lane = |_| ReportLane {
            session: LaneSession::None,
            server: ServerReport::default(),
            last_request: 0,
            in_flight: None,
            difference: ClockDifference::default(),
        };
        ClockReports {
            content: Content {
                voices: u8::try_from(front_ends).unwrap_or(u8::MAX),
                server: native.server_report(),
                max_value: max_value.into(),
            },
            due: now,
            first_time_until: None,
            has_time: false,
            lanes: (0..native.seen().partitions()).map(lane).collect(),
        }
    }

    /// Returns how long it is until the next report is due.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Sends the reports that are due. A partition whose last report isn't answered yet gets none.
    pub fn report<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        native: &Native,
        mut nonce: impl FnMut() -> u64,
    ) {
        let now = Instant::now();
        if now < self.due {
            return;
        }
        if !native.knows_time() {
            self.due = now + LOOK_AGAIN;
            return;
        }
        self.due = now + INTERVAL;
        let content = &self.content;
        for (pid, lane) in (0..).zip(&mut self.lanes) {
            match lane.session {
                LaneSession::None => {
                    let nonce = nonce();
                    lane.session = LaneSession::Opening(nonce);
                    log.open_session(pid, nonce, WINDOW);
                }
                LaneSession::Open(_) if lane.is_idle() => lane.send(log, pid, native, content),
                LaneSession::Opening(_) | LaneSession::Open(_) => {}
            }
        }
    }

    /// Returns true if a session, or the nonce for which it was asked, belongs to these reports.
    pub fn owns(&self, pid: PartitionId, number: u64) -> bool {
        let lane = self.lanes.get(usize::from(pid));
        lane.is_some_and(|lane| match lane.session {
            LaneSession::Opening(of) | LaneSession::Open(of) => of == number,
            LaneSession::None => false,
        })
    }

    /// Takes the first answer to a command of a session that these reports [own](Self::owns);
    /// `opened` is the new session's id if the answer is to OPEN, and `number` the number of the
    /// command otherwise.
    pub fn take<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        native: &Native,
        pid: PartitionId,
        (number, status, opened): (u64, Option<Status>, Option<u64>),
    ) {
        let content = &self.content;
        let lane = &mut self.lanes[usize::from(pid)];
        match (lane.session, opened) {
            (LaneSession::Opening(_), Some(id)) => {
                lane.session = LaneSession::Open(id);
                lane.last_request = 0;
                lane.server.begin_anew();
                lane.send(log, pid, native, content);
            }
            // The partition has no room for a session now; the next report asks for one again.
            (LaneSession::Opening(_), None) => lane.session = LaneSession::None,
            (LaneSession::Open(_), _) if !lane.server.is_done() => {
                let is_ok = status == Some(Status::Ok);
                match lane.server.answered(number, is_ok) {
                    Progress::Answered if !is_ok => lane.session = LaneSession::None,
                    _ => lane.send(log, pid, native, content),
                }
            }
            (..) if status == Some(Status::Ok) => lane.compare(pid, native),
            (..) => {
                lane.session = LaneSession::None;
                lane.in_flight = None;
            }
        }
    }

    /// Shows the clock's largest difference over all partitions in the metrics, and how many
    /// replicas have other contents.
    pub fn show(&self, native: &Native, metrics: &Metrics) {
        let all = self.lanes.iter().map(|lane| lane.difference.shown_ms());
        let most = all.max_by_key(|off| off.unsigned_abs()).unwrap_or(0);
        metrics.clock_off_ms.store(most, Relaxed);
        let alarms = native.seen().alarms().len() as u64;
        metrics.replicas_that_differ.store(alarms, Relaxed);
    }

    /// Returns until when clients must wait because the group has no time yet, or hasn't agreed on
    /// a server, or nothing if they needn't. Before they know that their servers execute the same,
    /// replicas execute nothing for clients.
    pub fn waits_for_time(&mut self, native: &Native) -> Option<Instant> {
        if self.has_time {
            return None;
        }
        let now = Instant::now();
        if !native.knows_time() {
            return Some(now + LOOK_AGAIN);
        }
        let until = *self.first_time_until.get_or_insert(now + FIRST_TIME);
        let seen = native.seen();
        let all = (0..seen.partitions()).all(|pid| seen.ms(pid) > 0);
        let has_agreed = seen.has_agreed();
        self.has_time = has_agreed && (all || until <= now);
        let look_again = if has_agreed { until } else { now + LOOK_AGAIN };
        (!self.has_time).then_some(look_again)
    }
}

impl ReportLane {
    /// Returns true if nothing is in flight in the session. The server's report is sent as soon as
    /// the session is open.
    fn is_idle(&self) -> bool {
        self.in_flight.is_none() && self.server.is_done()
    }

    fn send<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        pid: PartitionId,
        native: &Native,
        content: &Content,
    ) {
        let LaneSession::Open(session) = self.session else {
            return;
        };
        if !self.server.is_done() {
            self.last_request = 1;
            let place = (pid, session, self.last_request);
            return self
                .server
                .send(log, place, &content.server, content.max_value);
        }
        let voices = content.voices;
        let bytes = native.clock_report(pid, voices, content.max_value);
        self.last_request += 1;
        self.in_flight = Some(native.stamp().ms);
        log.submit_part(pid, session, self.last_request, &bytes);
    }

    /// Compares the group's time with the reported one, after the report was answered.
    fn compare(&mut self, pid: PartitionId, native: &Native) {
        let Some(reported_ms) = self.in_flight.take() else {
            return;
        };
        // In this order: the newest reading is never of a later state than the group's time.
        let newest_ms = native.seen().newest_ms(pid);
        self.difference.note(&Finding {
            reported_ms,
            newest_ms,
            group_ms: native.seen().ms(pid),
            now_ms: native.stamp().ms,
        });
    }
}
