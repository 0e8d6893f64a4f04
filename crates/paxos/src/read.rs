// SPDX-License-Identifier: Apache-2.0
//! Reads without the log: finds how far a log must be executed before a read may be answered
//! (docs/protocol/reads.md). One [`ReadBounds`] serves the reads of one partition.
//!
//! ```text
//! read ──> waits ──> QUERY for the whole partition ──> f+1 answers of the epoch ──> a bound
//!            ^                    │
//!            └── a later floor, or another epoch: all answers are void
//! ```
//!
//! **What an answer proves.** Everything that was decided before the question left has f+1 votes,
//! so one of any f+1 members shows an `end` behind it. That holds only while no later epoch may
//! decide without these members, which their floors say, and only for the memories that the epoch
//! counts on.

use crate::wire::value::RangeReport;
use crate::{
    Configuration, Deployment, Epoch, Flags, Header, Instance, MsgType, Outbox, Packet,
    PartitionId, Reason, Round, Time, To,
};
use std::cmp::Ordering;

/// Marks the numbers of these questions, so that the answer to another range QUERY of this host
/// isn't taken for an answer to a read.
const MARK: u64 = 1 << 63;

/// The settings of reads.
#[derive(Clone, Copy, Debug)]
pub struct ReadSettings {
    /// The deployment.
    pub deployment: Deployment,
    /// The partition.
    pub pid: PartitionId,
    /// How long to wait for answers.
    pub retry_after: Time,
    /// A random number of this process, never 0, which tells its questions from others'.
    pub nonce: u64,
}

/// The result of a question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The number of the question. Its result also serves the reads of all earlier questions
    /// without an answer.
    pub question: u64,
    /// The instance below which everything must be executed before the reads.
    pub end: Instance,
}

/// The questions of one partition's reads.
#[derive(Clone, Debug)]
pub struct ReadBounds {
    settings: ReadSettings,
    /// The active epoch; without one nothing is asked.
    active: Option<Configuration>,
    /// The number of the last question.
    last: u64,
    /// True if a read waits for the next question.
    wanted: bool,
    /// The next question isn't asked before this time.
    not_before: Time,
    open: Option<Question>,
    bound: Option<Bound>,
}

/// A question that is under way.
#[derive(Clone, Debug)]
struct Question {
    /// The members that have answered, a bit each.
    answered: u64,
    end: Instance,
    again_at: Time,
}

/// Returns true if a range report answers a question that was asked for reads, by any host.
pub fn is_for_reads(header: &Header) -> bool {
    header.request & MARK != 0
}

impl ReadBounds {
    /// Returns questions without an epoch, so that reads wait.
    pub fn new(settings: ReadSettings) -> ReadBounds {
        ReadBounds {
            settings,
            active: None,
            last: 0,
            wanted: false,
            not_before: 0,
            open: None,
            bound: None,
        }
    }

    /// Sets the active epoch, or `None` if the last one isn't active. Answers of another epoch are
    /// void.
    pub fn set_epoch(&mut self, active: Option<&Configuration>) {
        let epoch = |c: Option<&Configuration>| c.map(|c| c.epoch);
        if epoch(active) != epoch(self.active.as_ref()) {
            self.wanted |= self.open.take().is_some();
            self.active = active.cloned();
        }
    }

    /// Announces a read, and returns the number of the question that it waits for. That question
    /// has not been asked yet, since answers to an earlier one may lack what was decided meanwhile.
    /// [B-ASK]
    pub fn want(&mut self) -> u64 {
        self.wanted = true;
        self.last + 1
    }

    /// Asks, if reads wait and no question is under way, and asks again if answers are missing.
    pub fn tick(&mut self, now: Time, out: &mut impl Outbox) {
        if self.active.is_none() || self.next_deadline().is_none_or(|due| due > now) {
            return;
        }
        if self.open.is_none() {
            self.last += 1;
            self.wanted = false;
        }
        let again_at = now.saturating_add(self.settings.retry_after);
        let question = self.open.get_or_insert(Question {
            answered: 0,
            end: 0,
            again_at,
        });
        question.again_at = again_at;
        self.send(out);
    }

    fn send(&self, out: &mut impl Outbox) {
        let settings = &self.settings;
        let header = Header {
            cluster: settings.deployment.cluster,
            group: settings.deployment.group,
            pid: settings.pid,
            swid: settings.deployment.node,
            flags: Flags::RANGE,
            client: settings.nonce,
            request: self.last | MARK,
            ..Header::new(MsgType::Query)
        };
        out.send(To::Acceptors, &header, &[]);
    }

    /// Returns when [`tick`](Self::tick) is due.
    pub fn next_deadline(&self) -> Option<Time> {
        self.active.as_ref()?;
        match &self.open {
            Some(question) => Some(question.again_at),
            None => self.wanted.then_some(self.not_before),
        }
    }

    /// Takes an acceptor's answer. Returns a later epoch than the active one, if the answer shows
    /// one; then all answers are void. [B-COUNT]
    pub fn step(&mut self, now: Time, packet: &Packet<'_>) -> Result<Option<Epoch>, Reason> {
        let h = &packet.header;
        let report = RangeReport::parse(packet.value)?;
        let asked = (self.settings.nonce, self.last | MARK);
        let (Some(active), Some(question)) = (&self.active, &mut self.open) else {
            return Err(Reason::Unexpected);
        };
        if (h.client, h.request) != asked {
            return Err(Reason::Unexpected);
        }
        let member = active
            .acceptor(h.swid)
            .filter(|at| active.acceptors[*at].nonce == report.nonce)
            .ok_or(Reason::UnknownSender)?;
        match h.rnd.cmp(&Round::base(active.epoch)) {
            Ordering::Less => Err(Reason::Stale),
            Ordering::Equal => {
                question.answered |= 1 << member;
                question.end = question.end.max(report.end).max(report.trim);
                if question.answered.count_ones() as usize >= active.quorum() {
                    self.bound = Some(Bound {
                        question: self.last,
                        end: question.end,
                    });
                    self.open = None;
                }
                Ok(None)
            }
            Ordering::Greater => {
                self.open = None;
                self.wanted = true;
                self.not_before = now.saturating_add(self.settings.retry_after);
                Ok(Some(h.rnd.epoch()))
            }
        }
    }

    /// Returns the result of the last question, once.
    pub fn take_bound(&mut self) -> Option<Bound> {
        self.bound.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::Sent;
    use crate::{Member, NodeId};

    const NONCE: u64 = 77;
    const RETRY: Time = 10;

    fn configuration(epoch: Epoch, members: [(NodeId, u64); 3]) -> Configuration {
        let member = |(node, nonce)| Member { node, nonce };
        Configuration {
            epoch,
            leader: member((1, 1)),
            acceptors: members.into_iter().map(member).collect(),
            f: 1,
            replicas: vec![31],
            g: 0,
        }
    }

    fn first_epoch() -> Configuration {
        configuration(1, [(11, 1), (12, 2), (13, 3)])
    }

    fn bounds() -> ReadBounds {
        let mut bounds = ReadBounds::new(ReadSettings {
            deployment: Deployment {
                cluster: 5,
                group: 0,
                partitions: 1,
                max_value: 1024,
                node: 31,
            },
            pid: 0,
            retry_after: RETRY,
            nonce: NONCE,
        });
        bounds.set_epoch(Some(&first_epoch()));
        bounds
    }

    /// Returns the numbers of the questions that leave now.
    fn asked(bounds: &mut ReadBounds, now: Time) -> Vec<u64> {
        let mut out = Sent::default();
        bounds.tick(now, &mut out);
        let questions = out.0.iter().map(|(to, header, _)| {
            assert_eq!((*to, header.msgtype), (To::Acceptors, MsgType::Query));
            assert!(header.flags.has(Flags::RANGE) && header.client == NONCE);
            header.request
        });
        questions.collect()
    }

    struct Answer {
        from: (NodeId, u64),
        floor: Epoch,
        question: u64,
        end: Instance,
        trim: Instance,
    }

    fn answer(from: (NodeId, u64), question: u64, end: Instance) -> Answer {
        Answer {
            from,
            floor: 1,
            question,
            end,
            trim: 0,
        }
    }

    fn give(bounds: &mut ReadBounds, answer: Answer) -> Result<Option<Epoch>, Reason> {
        let report = RangeReport {
            end: answer.end,
            trim: answer.trim,
            nonce: answer.from.1,
        };
        let header = Header {
            swid: answer.from.0,
            rnd: match answer.floor {
                0 => Round::NONE,
                floor => Round::base(floor),
            },
            client: NONCE,
            request: answer.question | MARK,
            flags: Flags::RANGE,
            ..Header::new(MsgType::Phase1b)
        };
        let value = report.emit();
        let packet = Packet {
            header,
            tag: None,
            value: &value,
        };
        bounds.step(0, &packet)
    }

    const ONE: (NodeId, u64) = (11, 1);
    const TWO: (NodeId, u64) = (12, 2);

    /// A bound needs answers of f+1 members, and is the largest `end` or `trim` among them.
    /// [B-COUNT]
    #[test]
    fn f_plus_one_members_answer_and_the_largest_end_or_trim_counts() {
        let mut bounds = bounds();
        assert_eq!(bounds.want(), 1);
        assert_eq!(asked(&mut bounds, 0), [1 | MARK]);
        assert_eq!(give(&mut bounds, answer(ONE, 1, 7)), Ok(None));
        assert_eq!(give(&mut bounds, answer(ONE, 1, 7)), Ok(None));
        assert_eq!(bounds.take_bound(), None, "one that answers twice is one");
        let trimmed = Answer {
            trim: 9,
            ..answer(TWO, 1, 3)
        };
        assert_eq!(give(&mut bounds, trimmed), Ok(None));
        let bound = Bound {
            question: 1,
            end: 9,
        };
        assert_eq!(bounds.take_bound(), Some(bound));
        assert_eq!(bounds.take_bound(), None);
        assert_eq!(asked(&mut bounds, 1_000), [], "nobody waits any more");
    }

    /// A read never uses an answer to a question that was asked before the read came. [B-ASK]
    #[test]
    fn a_read_waits_for_a_question_that_is_asked_after_it_came() {
        let mut bounds = bounds();
        assert_eq!((bounds.want(), bounds.want()), (1, 1));
        assert_eq!(asked(&mut bounds, 0), [1 | MARK]);
        assert_eq!(bounds.want(), 2);
        assert_eq!(asked(&mut bounds, 1), [], "one is under way");
        for from in [ONE, TWO] {
            give(&mut bounds, answer(from, 1, 7)).unwrap();
        }
        assert_eq!(bounds.take_bound().unwrap().question, 1);
        assert_eq!(asked(&mut bounds, 2), [2 | MARK]);
        let old = give(&mut bounds, answer(ONE, 1, 7));
        assert_eq!(old, Err(Reason::Unexpected), "of the first question");
    }

    #[test]
    fn what_is_lost_is_asked_again_under_its_number() {
        let mut bounds = bounds();
        bounds.want();
        assert_eq!(asked(&mut bounds, 0), [1 | MARK]);
        assert_eq!(asked(&mut bounds, RETRY - 1), []);
        assert_eq!(bounds.next_deadline(), Some(RETRY));
        assert_eq!(asked(&mut bounds, RETRY), [1 | MARK]);
    }

    /// Only members count, in the memories that the epoch names, and with the epoch's floor.
    /// [B-COUNT]
    #[test]
    fn only_the_memories_of_the_epoch_count_with_its_floor() {
        let mut bounds = bounds();
        bounds.want();
        asked(&mut bounds, 0);
        let strangers = [(12, 9), (14, 1)];
        for from in strangers {
            let answered = give(&mut bounds, answer(from, 1, 7));
            assert_eq!(answered, Err(Reason::UnknownSender));
        }
        let behind = Answer {
            floor: 0,
            ..answer(TWO, 1, 7)
        };
        assert_eq!(give(&mut bounds, behind), Err(Reason::Stale));
        give(&mut bounds, answer(ONE, 1, 7)).unwrap();
        let later = Answer {
            floor: 2,
            ..answer(TWO, 1, 7)
        };
        assert_eq!(give(&mut bounds, later), Ok(Some(2)));
        assert_eq!(bounds.take_bound(), None);
        assert_eq!(asked(&mut bounds, RETRY - 1), [], "not in every moment");
        assert_eq!(asked(&mut bounds, RETRY), [2 | MARK]);
        give(&mut bounds, answer(TWO, 2, 8)).unwrap();
        assert_eq!(bounds.take_bound(), None, "the first answer is void");
        give(&mut bounds, answer(ONE, 2, 7)).unwrap();
        assert_eq!(bounds.take_bound().unwrap().question, 2);
    }

    /// A new epoch starts the question again, and nothing is asked while no epoch is active.
    /// [B-COUNT]
    #[test]
    fn another_epoch_begins_anew_and_without_an_active_one_nothing_is_asked() {
        let mut bounds = bounds();
        bounds.want();
        asked(&mut bounds, 0);
        give(&mut bounds, answer(ONE, 1, 7)).unwrap();
        bounds.set_epoch(None);
        assert_eq!(bounds.next_deadline(), None);
        assert_eq!(asked(&mut bounds, 100), []);
        let late = give(&mut bounds, answer(TWO, 1, 7));
        assert_eq!(late, Err(Reason::Unexpected));
        bounds.set_epoch(Some(&configuration(2, [(11, 1), (12, 2), (14, 4)])));
        assert_eq!(asked(&mut bounds, 100), [2 | MARK]);
        let of_the_epoch = |from| Answer {
            floor: 2,
            ..answer(from, 2, 5)
        };
        give(&mut bounds, of_the_epoch(ONE)).unwrap();
        give(&mut bounds, of_the_epoch((14, 4))).unwrap();
        assert_eq!(bounds.take_bound().unwrap().end, 5);
    }
}
