// SPDX-License-Identifier: Apache-2.0
//! Judges how far the log has been begun, by what others say. [X-BEGUN]
//!
//! A repair puts a no-op into an instance that holds nothing. So one acceptor that errs, or one
//! flipped bit, must not make this replica repair instances that no leader has stamped yet; it
//! would fill the log with no-ops ahead of the leader. Every decided value was voted for by f+1
//! acceptors, so what f+1 of them show is enough. If fewer are left, the leader's word counts, or
//! the beginning of the next epoch.
//!
//! What acceptors showed counts only until the next question, so that single errors over months
//! don't add up to a quorum.

use paxos::{Configuration, Instance, NodeId, Round};

#[derive(Default)]
pub(crate) struct LogExtent {
    quorum: usize,
    /// The acceptors of the last configuration, and 1 + the largest instance that each has shown.
    acceptors: Vec<(NodeId, Instance)>,
    leader: Option<Leader>,
}

/// The leader's last answer.
#[derive(Clone, Copy)]
struct Leader {
    rnd: Round,
    question: u64,
    next: Instance,
}

impl LogExtent {
    /// Takes the acceptors that count from now on.
    pub fn configure(&mut self, configuration: &Configuration) {
        self.quorum = configuration.quorum();
        let nodes = configuration.acceptors.iter().map(|member| member.node);
        self.acceptors = nodes.map(|node| (node, self.by(node))).collect();
    }

    fn by(&self, acceptor: NodeId) -> Instance {
        let mut known = self.acceptors.iter();
        known.find(|(node, _)| *node == acceptor).map_or(0, |a| a.1)
    }

    /// Notes that an acceptor shows that it has voted below `end`.
    #[inline]
    pub fn by_acceptor(&mut self, acceptor: NodeId, end: Instance) {
        let mut known = self.acceptors.iter_mut();
        if let Some((_, shown)) = known.find(|(node, _)| *node == acceptor) {
            *shown = end.max(*shown);
        }
    }

    /// Returns the instance below which f+1 acceptors have shown that the log was begun: the
    /// (f+1)-th largest.
    pub fn by_quorum(&self) -> Instance {
        let ends = || self.acceptors.iter().map(|a| a.1);
        let shown = |end: &Instance| ends().filter(|e| e >= end).count() >= self.quorum;
        ends().filter(shown).max().unwrap_or(0)
    }

    /// Forgets what acceptors have shown, since a new question goes out and only its answers count.
    pub fn ask_anew(&mut self) {
        self.acceptors.iter_mut().for_each(|a| a.1 = 0);
    }

    /// Notes the leader's answer to a question. If it is the second one in this round, it returns
    /// the smaller of the last two answers, below which everything was begun.
    pub fn by_leader(&mut self, rnd: Round, question: u64, next: Instance) -> Option<Instance> {
        let known = self.leader.filter(|known| known.rnd == rnd);
        if known.is_some_and(|known| known.question == question) {
            return None;
        }
        self.leader = Some(Leader {
            rnd,
            question,
            next,
        });
        known.map(|known| known.next.min(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paxos::Member;

    fn extent(acceptors: &[NodeId]) -> LogExtent {
        let member = |&node: &NodeId| Member { node, nonce: 1 };
        let mut extent = LogExtent::default();
        extent.configure(&Configuration {
            epoch: 1,
            leader: member(&1),
            acceptors: acceptors.iter().map(member).collect(),
            f: (acceptors.len() / 2) as u8,
            replicas: vec![31],
            g: 0,
        });
        extent
    }

    #[test]
    fn it_takes_the_word_of_f_plus_one_acceptors() {
        let mut five = extent(&[1, 2, 3, 4, 5]);
        for (acceptor, end) in [(1, 1 << 63), (2, 1 << 62), (9, 50)] {
            five.by_acceptor(acceptor, end);
        }
        assert_eq!(five.by_quorum(), 0, "f, and a stranger");
        five.by_acceptor(3, 7);
        five.by_acceptor(3, 6);
        assert_eq!(five.by_quorum(), 7);
        five.ask_anew();
        five.by_acceptor(4, 9);
        assert_eq!(five.by_quorum(), 0, "errors don't add up over time");
        assert_eq!(LogExtent::default().by_quorum(), 0);
    }

    #[test]
    fn the_leader_says_it_twice() {
        let mut one = extent(&[1]);
        let (old, new) = (Round::base(1), Round::base(2));
        assert_eq!(one.by_leader(old, 1, 9), None);
        assert_eq!(one.by_leader(old, 1, 9), None, "a duplicate");
        assert_eq!(one.by_leader(old, 2, 1 << 63), Some(9));
        assert_eq!(one.by_leader(old, 3, 10), Some(10));
        assert_eq!(one.by_leader(new, 4, 11), None, "another leader");
        assert_eq!(one.by_leader(new, 5, 12), Some(11));
    }
}
