// SPDX-License-Identifier: Apache-2.0
//! Courses with commands over several partitions, in which one partition knows of a command and
//! another one doesn't.

use paxos::{MsgType, Time};

use super::{Course, REPLACED, SESSION};
use crate::application::Span;
use crate::draw::{BEGIN, operation};
use crate::plan::{Action, Catch, Direction, Scenario};
use crate::queue::MICROSECOND;
use crate::rng::Rng;

/// Adds some courses if there are several partitions.
pub fn add(scenario: &Scenario, duration: Time, actions: &mut Vec<(Time, Action)>) {
    let mut rng = Rng::new(scenario.seed ^ 0x7370_616e_636f_7572);
    if scenario.partitions < 2 {
        return;
    }
    for _ in 0..rng.between(1, 2) {
        let at = BEGIN + rng.below(duration);
        let mut course = Course::new(scenario, at, &mut rng);
        match course.rng.below(4) {
            0 => course.copy_of_one_leader(),
            1 => course.slots_of_an_earlier_session(),
            2 => course.ahead_behind_a_copy(),
            _ => course.same_slot_in_the_next_session(),
        }
        actions.append(&mut course.actions);
    }
}

impl Course<'_> {
    // ---- The courses

    /// Draws a course in which only a partition's leader has its copy of a command, which is stable
    /// in the lowest partition. Then that leader is cut off, and the copy is lost.
    fn copy_of_one_leader(&mut self) {
        let (pid, leader) = self.led_apart();
        for n in self.all_but(leader) {
            self.hold(None, Some(n), MsgType::Ordered, pid);
        }
        self.hold(None, None, MsgType::GapRequest, pid);
        self.under_spans(pid, 1_000, 8_000);
        self.now(Action::Isolate(self.replicas[leader], Direction::Both));
        self.ends(REPLACED);
    }

    /// Draws a course in which only a partition's leader has executed commands, which are lost with
    /// their session. In the next session copies take their slots, of which the old leader hears in
    /// the lowest partition first.
    fn slots_of_an_earlier_session(&mut self) {
        let (pid, leader) = self.led_apart();
        self.next_led_by(self.leads_nothing(pid, leader));
        self.only_gets(leader);
        self.under_commands(pid, 500, 3_000);
        for (from, to, msgtype) in [
            (Some(leader), None, MsgType::SyncPrepare),
            (Some(leader), None, MsgType::ViewChange),
            (None, Some(leader), MsgType::StartView),
        ] {
            self.hold(from, to, msgtype, pid);
        }
        self.now(Action::Heal);
        self.now(Action::Failover);
        self.at += SESSION / 2;
        self.under_spans(pid, 5_000, 15_000);
        self.ends(REPLACED);
    }

    /// Draws a course in which a partition's leader executes commands that nobody else gets, right
    /// after a copy that all have; then it is cut off.
    fn ahead_behind_a_copy(&mut self) {
        let (pid, leader) = self.led_apart();
        self.under_spans(pid, 200, 1_000);
        self.at += self.rng.between(200, 1_200) * MICROSECOND;
        self.only_gets(leader);
        self.under_commands(pid, 300, 3_000);
        self.now(Action::Heal);
        self.now(Action::Isolate(self.replicas[leader], Direction::Both));
        self.ends(REPLACED);
    }

    /// Draws a course in which only a partition's leader has a copy, and is away while the command
    /// is sent again in the next session, where it gets the same slot.
    fn same_slot_in_the_next_session(&mut self) {
        let (pid, leader) = self.led_apart();
        self.next_led_by(self.leads_nothing(pid, leader));
        self.only_gets(leader);
        self.under_spans(pid, 100, 1_000);
        self.now(Action::Heal);
        self.now(Action::Isolate(self.replicas[leader], Direction::Both));
        self.now(Action::Failover);
        self.ends(2 * REPLACED);
    }

    // ---- The parts of courses

    /// Returns a partition that isn't the lowest, and who leads it in a session that has begun.
    fn led_apart(&mut self) -> (u8, usize) {
        self.led_by(0);
        let last = u64::from(self.scenario.partitions) - 1;
        let pid = self.rng.between(1, last) as u8;
        (pid, usize::from(pid) % self.replicas.len())
    }

    /// Returns which turn must come first so that a replica leads neither the lowest partition nor
    /// this one.
    fn leads_nothing(&self, pid: u8, replica: usize) -> usize {
        let count = self.replicas.len();
        let leads = |first: usize| [first, (first + usize::from(pid)) % count].contains(&replica);
        (0..count).find(|first| !leads(*first)).unwrap_or(0)
    }

    fn all_but(&self, replica: usize) -> Vec<usize> {
        (0..self.replicas.len()).filter(|n| *n != replica).collect()
    }

    fn hold(&mut self, from: Option<usize>, to: Option<usize>, msgtype: MsgType, pid: u8) {
        let name = |n: Option<usize>| n.map(|n| self.replicas[n]);
        let (from, to) = (name(from), name(to));
        let pid = Some(pid);
        self.now(Action::Hold(Catch {
            from,
            to,
            msgtype,
            pid,
        }));
    }

    /// Lets stamped commands reach only this replica from now on, which tells nobody.
    fn only_gets(&mut self, replica: usize) {
        for n in self.all_but(replica) {
            self.cut_from_sequencers(n);
            self.cut(replica, n);
        }
    }

    /// Lets all clients send commands over the lowest partition and this one, for a time in
    /// microseconds.
    fn under_spans(&mut self, pid: u8, least: u64, most: u64) {
        let end = self.at + self.rng.between(least, most) * MICROSECOND;
        self.until(end, |course| Action::Span {
            client: course.client(),
            keys: [0, pid]
                .map(|pid| (pid, course.rng.below(4) as u8))
                .to_vec(),
            span: Span::Fold(course.rng.below(1 << 16)),
        });
    }

    /// Lets all clients send commands to one partition, for a time in microseconds.
    fn under_commands(&mut self, pid: u8, least: u64, most: u64) {
        let end = self.at + self.rng.between(least, most) * MICROSECOND;
        self.until(end, |course| Action::Submit {
            client: course.client(),
            pid,
            key: course.rng.below(4) as u8,
            op: operation(course.rng),
            padding: 0,
        });
    }
}
