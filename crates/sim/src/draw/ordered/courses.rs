// SPDX-License-Identifier: Apache-2.0
//! Courses of events that chance would rarely cause, since NOPaxos makes everything stable within a
//! millisecond, and then most mistakes no longer show. So in each course one replica knows
//! something that the others don't, and goes away before it is stable.

pub mod spanning;

use paxos::{MsgType, Time};

use crate::draw::{BEGIN, operation};
use crate::plan::{Action, Catch, Direction, Name, Scenario};
use crate::queue::{MICROSECOND, MILLISECOND};
use crate::rng::Rng;

/// The time after which the controller has probed all partitions of all replicas.
const PROBED: Time = 35 * MILLISECOND;
/// The time after which an ordered session has begun, if nothing hinders it.
const SESSION: Time = 45 * MILLISECOND;
/// A time shorter than it takes to replace a silent leader.
const UNNOTICED: u64 = 12;
/// The time until a silent leader is replaced, and its successor has begun.
const REPLACED: Time = 90 * MILLISECOND;

/// Adds some courses.
pub fn add(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x636f_7572_7365);
    for _ in 0..rng.between(1, 4) {
        let at = BEGIN + rng.below(duration);
        let mut course = Course::new(scenario, at, &mut rng);
        match course.rng.below(6) {
            0 => course.leader_alone_is_ahead(),
            1 | 2 => course.holder_forgets(),
            3 => course.no_op_is_unheard_of(),
            4 => course.no_op_of_an_earlier_view(),
            _ => course.two_sequencers(),
        }
        actions.append(&mut course.actions);
    }
}

struct Course<'a> {
    scenario: &'a Scenario,
    rng: &'a mut Rng,
    at: Time,
    /// The replicas in the order of a session's turns, beginning with any.
    replicas: Vec<Name>,
    actions: Vec<(Time, Action)>,
}

impl<'a> Course<'a> {
    fn new(scenario: &'a Scenario, at: Time, rng: &'a mut Rng) -> Course<'a> {
        let count = u64::from(scenario.replicas);
        let first = rng.below(count);
        let turn = |n| Name::Replica(((first + n) % count) as u8 + 1);
        Course {
            scenario,
            at,
            replicas: (0..count).map(turn).collect(),
            rng,
            actions: Vec::new(),
        }
    }

    // ---- The courses

    /// Draws a course in which only the leader gets the stamped commands, and answers; then it is
    /// cut off.
    fn leader_alone_is_ahead(&mut self) {
        self.led_by(0);
        for n in 1..self.replicas.len() {
            self.now(Action::Isolate(self.replicas[n], Direction::In));
        }
        self.under_load(1, 5);
        self.now(Action::Heal);
        self.now(Action::Isolate(self.replicas[0], Direction::Both));
        self.ends(REPLACED);
    }

    /// Draws a course in which half of the replicas have fallen behind. Of the others the leader is
    /// cut off, and all others forget; then there is another session.
    fn holder_forgets(&mut self) {
        let f = self.replicas.len() / 2;
        self.led_by(0);
        self.unsynchronised();
        for n in 1..=f {
            self.now(Action::Isolate(self.replicas[n], Direction::In));
        }
        self.under_load(2, UNNOTICED);
        self.now(Action::Heal);
        let one_way = self.rng.chance(500_000);
        for n in 1..self.replicas.len() {
            self.now(Action::Cut(self.replicas[0], self.replicas[n]));
            if !one_way {
                self.now(Action::Cut(self.replicas[n], self.replicas[0]));
            }
        }
        let leads = match one_way {
            true => 0,
            false => self.rng.between(1, self.replicas.len() as u64 - 1) as usize,
        };
        self.now(Action::Lead(self.replicas[leads]));
        for n in f + 1..self.replicas.len() {
            self.now(Action::Crash(self.replicas[n]));
        }
        self.at += MILLISECOND;
        for n in f + 1..self.replicas.len() {
            self.now(Action::Restart(self.replicas[n]));
        }
        self.ends(2 * REPLACED);
    }

    /// Draws a course in which the leader agrees on a no-op with a follower, and another replica,
    /// which has the request, hears nothing of it. Then that replica leads.
    fn no_op_is_unheard_of(&mut self) {
        self.led_by(0);
        self.unsynchronised();
        for n in (0..self.replicas.len()).filter(|n| *n != 1) {
            self.cut_from_sequencers(n);
        }
        self.under_load(1, 2);
        self.now(Action::Heal);
        for n in (0..self.replicas.len()).filter(|n| *n != 1) {
            self.cut(1, n);
        }
        self.under_load(3, UNNOTICED);
        self.now(Action::Heal);
        self.now(Action::Isolate(self.replicas[0], Direction::Both));
        self.ends(REPLACED);
    }

    /// Draws a course in which a leader has its own no-op where all others have a request, and
    /// finds itself in a later session, of which it has seen nothing. The leader of that session is
    /// cut off.
    fn no_op_of_an_earlier_view(&mut self) {
        let last = self.replicas.len() - 1;
        self.led_by(last);
        self.next_led_by(0);
        self.cut_from_sequencers(last);
        self.under_load(1, 2);
        self.now(Action::Heal);
        for n in 0..last {
            self.cut(n, last);
        }
        self.under_load(3, 6);
        self.now(Action::Failover);
        self.unsynchronised();
        self.under_load(12, 25);
        self.now(Action::Heal);
        self.now(Action::Isolate(self.replicas[0], Direction::Both));
        self.ends(2 * REPLACED);
    }

    /// Draws a course in which one sequencer and some clients aren't told that there is another
    /// session, so that the old sequencer keeps stamping.
    fn two_sequencers(&mut self) {
        let old = self.rng.between(1, self.scenario.sequencers.into()) as u8;
        self.cut_from_controller(Name::Sequencer(old));
        for n in 1..=self.scenario.clients {
            if self.rng.chance(500_000) {
                self.cut_from_controller(Name::Client(n));
            }
        }
        self.now(Action::Failover);
        self.under_load(60, 120);
        self.ends(0);
    }

    // ---- The parts of courses

    fn now(&mut self, action: Action) {
        self.actions.push((self.at, action));
    }

    /// Opens a session that this replica leads.
    fn led_by(&mut self, n: usize) {
        self.now(Action::Lead(self.replicas[n]));
        self.at += PROBED;
        self.now(Action::Failover);
        self.at += SESSION;
    }

    /// Makes this replica lead the session after the one that has just begun.
    fn next_led_by(&mut self, n: usize) {
        let since = self.at - SESSION / 2;
        self.actions.push((since, Action::Lead(self.replicas[n])));
    }

    /// Keeps everything from becoming stable for the rest of the course.
    fn unsynchronised(&mut self) {
        for msgtype in [MsgType::SyncPrepare, MsgType::SyncCommit] {
            self.now(Action::Hold(Catch {
                from: None,
                to: None,
                msgtype,
                pid: None,
            }));
        }
    }

    fn cut(&mut self, one: usize, other: usize) {
        let (one, other) = (self.replicas[one], self.replicas[other]);
        self.now(Action::Cut(one, other));
        self.now(Action::Cut(other, one));
    }

    fn cut_from_sequencers(&mut self, replica: usize) {
        for n in 1..=self.scenario.sequencers {
            self.now(Action::Cut(Name::Sequencer(n), self.replicas[replica]));
        }
    }

    fn cut_from_controller(&mut self, name: Name) {
        self.now(Action::Cut(Name::Controller, name));
        self.now(Action::Cut(name, Name::Controller));
    }

    /// Lets all clients send commands, for a time in milliseconds.
    fn under_load(&mut self, least: u64, most: u64) {
        let end = self.at + self.rng.between(least, most) * MILLISECOND;
        self.until(end, |course| Action::Submit {
            client: course.client(),
            pid: course.rng.below(course.scenario.partitions.into()) as u8,
            key: course.rng.below(4) as u8,
            op: operation(course.rng),
            padding: 0,
        });
    }

    fn client(&mut self) -> u8 {
        self.rng.between(1, self.scenario.clients.into()) as u8
    }

    /// Adds one command after the other.
    fn until(&mut self, end: Time, command: impl Fn(&mut Self) -> Action) {
        let mut at = self.at;
        while at < end {
            let command = command(self);
            self.actions.push((at, command));
            at += self.rng.between(50, 400) * MICROSECOND;
        }
        self.at = end;
    }

    /// Restores everything except for the network's rates after this time.
    fn ends(&mut self, after: Time) {
        self.at += after;
        self.now(Action::Heal);
        self.now(Action::Release);
    }
}
