// SPDX-License-Identifier: Apache-2.0
//! Tells each partition once a second what time most nodes have, through the log: the group's time is the median of what its front ends
//! say. Notes by how much the group's time differs from that. Nothing is told, and clients wait, until it is known what time most have.
//!
//! ```text
//!  no session ──OPEN──> open ──REPORT──> in flight ──answer──> open, until the next report is due
//! ```

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use apps::redis::{Command, Stamp};
use paxos::PartitionId;
use replica::Status;

use crate::lane::Session;
use crate::log::{Log, Plane};
use crate::metrics::Metrics;
use crate::native::Native;

const INTERVAL: Duration = Duration::from_secs(1);
/// A session for reports has one in flight.
const WINDOW: u16 = 1;
/// A group's time that differs by more than this from the nodes' is named.
const OFF_MS: u64 = 2_000;
/// How long clients of a new group wait until most front ends have said their clocks.
const FIRST_TIME: Duration = Duration::from_secs(5);
/// How soon the front end looks again what time most nodes have, while that isn't known.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// See the module.
pub(crate) struct ClockReports {
    voices: u8,
    due: Instant,
    /// Until when clients wait for the group's first time, once this front end tells it.
    first_time_until: Option<Instant>,
    /// The group has a time, or was waited for long enough.
    has_time: bool,
    lanes: Vec<ReportLane>,
}

struct ReportLane {
    session: Session,
    last_request: u64,
    /// The time as the report in flight says it.
    in_flight: Option<u64>,
    /// By how much what this front end tells is ahead of the partition's time; negative: behind.
    off_ms: i64,
}

impl ClockReports {
    /// For groups with so many front ends.
    pub fn new(native: &Native, front_ends: usize) -> ClockReports {
        let now = Instant::now();
        let lane = |_| ReportLane {
            session: Session::None,
            last_request: 0,
            in_flight: None,
            off_ms: 0,
        };
        ClockReports {
            voices: u8::try_from(front_ends).unwrap_or(u8::MAX),
            due: now,
            first_time_until: None,
            has_time: false,
            lanes: (0..native.seen().partitions()).map(lane).collect(),
        }
    }

    /// When something is to be done next.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.due.saturating_duration_since(now)
    }

    /// Reports what is due. A partition whose last report isn't answered yet gets no other one.
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
        let voices = self.voices;
        for (pid, lane) in (0..).zip(&mut self.lanes) {
            match lane.session {
                Session::None => {
                    let nonce = nonce();
                    lane.session = Session::Opening(nonce);
                    log.open_session(pid, nonce, WINDOW);
                }
                Session::Open(_) if lane.in_flight.is_none() => lane.send(log, pid, native, voices),
                Session::Opening(_) | Session::Open(_) => {}
            }
        }
    }

    /// Whether a session, or the nonce that it was asked for under, is one of these.
    pub fn owns(&self, pid: PartitionId, number: u64) -> bool {
        let lane = self.lanes.get(usize::from(pid));
        lane.is_some_and(|lane| match lane.session {
            Session::Opening(of) | Session::Open(of) => of == number,
            Session::None => false,
        })
    }

    /// Takes the first answer to something of a session that is [owned](Self::owns); `opened`: the session that it opens.
    pub fn take<P: Plane>(
        &mut self,
        log: &mut Log<P>,
        native: &Native,
        pid: PartitionId,
        (status, opened): (Option<Status>, Option<u64>),
    ) {
        let voices = self.voices;
        let lane = &mut self.lanes[usize::from(pid)];
        match (lane.session, opened) {
            (Session::Opening(_), Some(id)) => {
                lane.session = Session::Open(id);
                lane.last_request = 0;
                lane.send(log, pid, native, voices);
            }
            // The table of sessions is full, or this one is gone: the next report asks for another one.
            (Session::Opening(_), None) => lane.session = Session::None,
            (..) if status == Some(Status::Ok) => lane.compare(pid, native),
            (..) => {
                lane.session = Session::None;
                lane.in_flight = None;
            }
        }
    }

    /// Shows by how much the clock is off, in the partition where that is most.
    pub fn show(&self, metrics: &Metrics) {
        let all = self.lanes.iter().map(|lane| lane.off_ms);
        let most = all.max_by_key(|off| off.unsigned_abs()).unwrap_or(0);
        metrics.clock_off_ms.store(most, Relaxed);
    }

    /// Returns until when clients wait, as nobody knows what time it is.
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
        self.has_time = all || until <= now;
        (!self.has_time).then_some(until)
    }
}

impl ReportLane {
    fn send<P: Plane>(&mut self, log: &mut Log<P>, pid: PartitionId, native: &Native, voices: u8) {
        let Session::Open(session) = self.session else {
            return;
        };
        let stamp: Stamp = native.stamp();
        let mut bytes = Vec::new();
        Command::Report { stamp, voices }.encode(&mut bytes);
        self.last_request += 1;
        self.in_flight = Some(stamp.ms);
        log.submit_part(pid, session, self.last_request, &bytes);
    }

    /// Compares the group's time with what was told, once the report is executed. It is behind if even then it isn't what was told, and
    /// ahead if the nodes aren't there yet now: what the report has spent on its way makes no difference.
    fn compare(&mut self, pid: PartitionId, native: &Native) {
        let Some(reported) = self.in_flight.take() else {
            return;
        };
        let (group, now) = (native.seen().ms(pid), native.stamp().ms);
        let (ahead, behind) = (reported.saturating_sub(group), group.saturating_sub(now));
        self.off_ms = match (group, ahead, behind) {
            (0, ..) => 0,
            (_, ahead, _) if ahead > OFF_MS => ahead as i64,
            (_, _, behind) if behind > OFF_MS => -(behind as i64),
            _ => 0,
        };
    }
}
