// SPDX-License-Identifier: Apache-2.0
//! The group's time. It is part of the replicated state and moves with the log alone, so all
//! replicas agree on it.
//!
//! Each front end states its wall clock with each of its commands, and in a report once a second.
//! The clock keeps the last reading of each front end. The group's time follows the median of all
//! readings, each extended by the time that has passed since it was taken:
//!
//! ```text
//!  front end 1   reading ───────── + passed ──┐
//!  front end 2   reading ── + passed ─────────┼── sort ──> the middle one ──> the group's time
//!  front end 3   reading + passed ────────────┘            (the smaller of the two in the middle)
//! ```
//!
//! - *The time that has passed* is measured by the readings of any one front end, so clocks that
//!   are off by a constant agree on it. No reading is extended by more than [`REACH_MS`], and
//!   [`ROUND_MS`] for each round in which its front end wasn't heard, so a clock that leaps or runs
//!   too fast moves the group's time by no more than that.
//! - *A round* ends when a front end reports for the second time in it. Reports are sent once a
//!   second by a clock that nobody sets, so rounds don't depend on wall clocks. A front end that
//!   wasn't heard for [`FORGET_ROUNDS`] is forgotten.
//! - *The group's time* follows a median ahead of it at once. It never goes back: while it is ahead
//!   of the median, it moves at half the median's speed.
//!
//! There is no time until more than half of the front ends have reported, or until the first
//! command arrives. In the first [`YOUNG_ROUNDS`] rounds, front ends that weren't heard yet count
//! as if they were behind, so that the first ones to speak don't decide alone.

use super::command::Stamp;

/// How far a reading is extended by the time that others say has passed: two seconds.
pub(super) const REACH_MS: u64 = 2_000;
/// How much further a reading is extended for each round without its front end, except the first,
/// which may have begun right after the reading: reports follow one another after a second or a
/// little more.
pub(super) const ROUND_MS: u64 = 1_100;
/// Rounds after which a silent front end no longer counts: ten minutes.
pub(super) const FORGET_ROUNDS: u64 = 600;
/// Rounds in which a new group waits for front ends that it hasn't heard yet.
const YOUNG_ROUNDS: u64 = 10;
/// The most front ends that count. A group has 64 replicas at most.
const MOST: usize = 64;

/// The last reading of one front end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reading {
    node: u16,
    /// The front end's wall clock: milliseconds since 1970.
    ms: u64,
    /// [`Clock::passed_ms`] at the time of this reading.
    at_ms: u64,
    /// The last round in which the front end was heard.
    round: u64,
    /// The front end has reported in the present round.
    reported: bool,
}

/// The group's clock, which the module's documentation describes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Clock {
    /// The group's time in milliseconds since 1970; 0 = there is no time yet.
    pub ms: u64,
    /// Milliseconds that have passed since the group began.
    passed_ms: u64,
    round: u64,
    /// The number of front ends, as the last report stated it.
    voices: u8,
    /// The readings, ascending by node.
    readings: Vec<Reading>,
    /// The group's time and the median, taken when the median was last found behind or going back.
    slow_from: (u64, u64),
}

const HEAD_LEN: usize = 5 * 8 + 1 + 2;
const READING_LEN: usize = 2 + 3 * 8 + 1;

impl Clock {
    /// Takes the stamp of a command. A stamp that is late changes nothing, and neither does 0,
    /// which a front end sends that doesn't know the time yet.
    pub fn take(&mut self, stamp: Stamp) {
        if stamp.ms == 0 {
            return;
        }
        let round = self.round;
        match self.reading(stamp.node) {
            Some(reading) if reading.ms >= stamp.ms => reading.round = round,
            _ => self.hear(stamp),
        }
        self.follow_median();
    }

    /// Takes a front end's report, which counts even if its clock was set back. `voices` is the
    /// number of front ends.
    pub fn report(&mut self, stamp: Stamp, voices: u8) {
        if self.reading(stamp.node).is_some_and(|r| r.reported) {
            self.begin_round();
        }
        self.hear(stamp);
        self.voices = voices;
        if let Some(reading) = self.reading(stamp.node) {
            reading.reported = true;
        }
        if self.ms > 0 || 2 * self.readings.len() > usize::from(voices) {
            self.follow_median();
        }
    }

    /// Returns the latest wall clock that any front end has stated, or 0.
    pub fn newest_ms(&self) -> u64 {
        let all = self.readings.iter().map(|reading| reading.ms);
        all.max().unwrap_or(0)
    }

    fn reading(&mut self, node: u16) -> Option<&mut Reading> {
        let at = self.readings.binary_search_by_key(&node, |r| r.node);
        at.ok().map(|at| &mut self.readings[at])
    }

    fn begin_round(&mut self) {
        self.round += 1;
        let oldest = self.round.saturating_sub(FORGET_ROUNDS);
        self.readings.retain(|reading| reading.round >= oldest);
        self.readings.iter_mut().for_each(|r| r.reported = false);
    }

    /// Notes a reading, and the time that has passed by this front end's own clock.
    fn hear(&mut self, stamp: Stamp) {
        let (round, passed_ms) = (self.round, self.passed_ms);
        if let Some(reading) = self.reading(stamp.node) {
            let since = stamp.ms.saturating_sub(reading.ms);
            let passed_ms = passed_ms.max(reading.at_ms.saturating_add(since));
            reading.ms = stamp.ms;
            reading.at_ms = passed_ms;
            reading.round = round;
            self.passed_ms = passed_ms;
            return;
        }
        if self.readings.len() == MOST && !self.forget_most_silent() {
            return;
        }
        let at = self.readings.partition_point(|r| r.node < stamp.node);
        let reading = Reading {
            node: stamp.node,
            ms: stamp.ms,
            at_ms: passed_ms,
            round,
            reported: false,
        };
        self.readings.insert(at, reading);
    }

    /// Forgets the front end that was silent longest. Returns false if all were heard in this
    /// round.
    fn forget_most_silent(&mut self) -> bool {
        let all = self.readings.iter().enumerate();
        let silent = all.filter(|(_, r)| r.round < self.round);
        let most = silent.min_by_key(|(_, r)| r.round).map(|(at, _)| at);
        most.map(|at| self.readings.remove(at)).is_some()
    }

    fn follow_median(&mut self) {
        let median = self.median();
        let (from, median_then) = self.slow_from;
        if median >= self.ms {
            self.ms = median;
            self.slow_from = (median, median);
        } else if median < median_then || from == 0 {
            self.slow_from = (self.ms, median);
        } else {
            self.ms = self.ms.max(from + (median - median_then) / 2);
        }
    }

    fn median(&self) -> u64 {
        let mut now: Vec<u64> = self.readings.iter().map(|r| self.extended(r)).collect();
        now.sort_unstable();
        let unheard = match self.round < YOUNG_ROUNDS {
            true => usize::from(self.voices).saturating_sub(now.len()),
            false => 0,
        };
        let middle = (now.len() + unheard).saturating_sub(1) / 2;
        let middle = now.get(middle.saturating_sub(unheard));
        middle.copied().unwrap_or(0)
    }

    fn extended(&self, reading: &Reading) -> u64 {
        let missed = self.round - reading.round;
        let passed = self.passed_ms - reading.at_ms;
        let most = REACH_MS.saturating_add(ROUND_MS.saturating_mul(missed.saturating_sub(1)));
        reading.ms.saturating_add(passed.min(most))
    }

    /// Appends the clock as a snapshot stores it.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let (from, median_then) = self.slow_from;
        for number in [self.ms, self.passed_ms, self.round, from, median_then] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(self.voices);
        out.extend_from_slice(&(self.readings.len() as u16).to_be_bytes());
        for reading in &self.readings {
            out.extend_from_slice(&reading.node.to_be_bytes());
            for number in [reading.ms, reading.at_ms, reading.round] {
                out.extend_from_slice(&number.to_be_bytes());
            }
            out.push(u8::from(reading.reported));
        }
    }

    /// Reads a clock from a snapshot, and returns it with the bytes behind it. Returns `None` if it
    /// is damaged.
    pub fn parse(bytes: &[u8]) -> Option<(Clock, &[u8])> {
        let (head, rest) = bytes.split_at_checked(HEAD_LEN)?;
        let many = usize::from(u16::from_be_bytes([head[41], head[42]]));
        let (readings, rest) = rest.split_at_checked(many * READING_LEN)?;
        let clock = Clock {
            ms: u64_at(head, 0),
            passed_ms: u64_at(head, 8),
            round: u64_at(head, 16),
            slow_from: (u64_at(head, 24), u64_at(head, 32)),
            voices: head[40],
            readings: readings.chunks(READING_LEN).map(parse_reading).collect(),
        };
        clock.is_sound().then_some((clock, rest))
    }

    fn is_sound(&self) -> bool {
        let is_past = |r: &Reading| r.at_ms <= self.passed_ms && r.round <= self.round;
        let (from, median_then) = self.slow_from;
        self.readings.len() <= MOST
            && self.readings.is_sorted_by(|a, b| a.node < b.node)
            && self.readings.iter().all(is_past)
            && median_then <= from
    }
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn parse_reading(bytes: &[u8]) -> Reading {
    Reading {
        node: u16::from_be_bytes([bytes[0], bytes[1]]),
        ms: u64_at(bytes, 2),
        at_ms: u64_at(bytes, 10),
        round: u64_at(bytes, 18),
        reported: bytes[26] != 0,
    }
}

#[cfg(test)]
mod tests;
