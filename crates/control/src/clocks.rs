// SPDX-License-Identifier: Apache-2.0
//! Finds out what time most nodes of a cluster have, by asking them.
//!
//! ```text
//!  node 1 (asks)  its own wall clock ─────────────┐
//!  node 2         ClockRequest ──> Clock ─────────┼── sort ──> the middle one: what time it is
//!  node 3         ClockRequest ──> Clock ─────────┘            (the smaller of two in the middle)
//! ```
//!
//! Each reading is kept as its distance from a clock of the asker that nobody sets, so setting a
//! wall clock moves one reading only. A node counts once, whatever it says, so wrong clocks decide
//! nothing while most of the answering nodes are right. A node that falls silent counts for
//! [`FORGET_MS`]. Moments are milliseconds of the clock that nobody sets.

use paxos::NodeId;

/// How long the clock of a silent node counts: ten minutes.
pub const FORGET_MS: u64 = 600_000;
/// The time after which an answer no longer counts.
pub const LATE_MS: u64 = 1_000;
/// How long the asker waits for most nodes, once anything is decided.
pub const PATIENCE_MS: u64 = 2_000;
/// A clock is off if it differs by more than this from the median of all.
pub const OFF_MS: i64 = 2_000;
/// A node is considered present if it answered within this time.
const THERE_MS: u64 = 10_000;
/// The most nodes that count.
const MOST: usize = 256;
/// The latest moment: stamps have 48 bits for it.
const LAST_MS: u64 = (1 << 48) - 1;

/// The clocks of all nodes, as one of them has heard of them.
pub struct Clocks {
    own: NodeId,
    voices: Vec<Voice>,
    /// The moment at which the asker learnt that something is decided.
    patient_since: Option<u64>,
}

struct Voice {
    node: NodeId,
    asked: Option<ClockQuestion>,
    heard: Option<Heard>,
}

#[derive(Clone, Copy)]
struct ClockQuestion {
    nonce: u64,
    first_ms: u64,
    last_ms: u64,
}

#[derive(Clone, Copy)]
struct Heard {
    /// How far the node's wall clock is ahead of the clock that nobody sets.
    ahead_ms: i64,
    at_ms: u64,
}

impl Clocks {
    /// Returns the clocks for node `own`, which will ask the `others`.
    pub fn new(own: NodeId, others: impl IntoIterator<Item = NodeId>) -> Clocks {
        let others = others.into_iter().filter(|node| *node != own);
        let nodes = std::iter::once(own).chain(others).take(MOST);
        let voice = |node| Voice {
            node,
            asked: None,
            heard: None,
        };
        Clocks {
            own,
            voices: nodes.map(voice).collect(),
            patient_since: None,
        }
    }

    /// Lists the nodes to ask.
    pub fn others(&self) -> Vec<NodeId> {
        let all = self.voices.iter().map(|voice| voice.node);
        all.filter(|node| *node != self.own).collect()
    }

    /// Notes what the asker's own wall clock shows.
    pub fn look(&mut self, wall_ms: u64, now_ms: u64) {
        let own = self.own;
        self.hear(own, wall_ms, now_ms, now_ms);
    }

    /// Notes that a node is asked, and returns the nonce to ask with: the last one while its answer
    /// may still come in time, else `fresh`.
    pub fn ask(&mut self, node: NodeId, fresh: u64, now_ms: u64) -> u64 {
        let Some(voice) = self.voice(node) else {
            return fresh;
        };
        let is_open = |asked: &ClockQuestion| now_ms - asked.first_ms <= LATE_MS;
        let asked = voice.asked.filter(is_open).unwrap_or(ClockQuestion {
            nonce: fresh,
            first_ms: now_ms,
            last_ms: now_ms,
        });
        voice.asked = Some(ClockQuestion {
            last_ms: now_ms,
            ..asked
        });
        asked.nonce
    }

    /// Takes a node's answer. Returns false, and changes nothing, for an answer that is late,
    /// repeated, or not asked for.
    pub fn take(&mut self, node: NodeId, nonce: u64, wall_ms: u64, now_ms: u64) -> bool {
        let Some(voice) = self.voice(node) else {
            return false;
        };
        let Some(asked) = voice.asked.take_if(|asked| asked.nonce == nonce) else {
            return false;
        };
        let in_time = now_ms - asked.first_ms <= LATE_MS;
        if in_time {
            self.hear(node, wall_ms, asked.last_ms, now_ms);
        }
        in_time
    }

    /// Notes a reading that was taken between two moments.
    fn hear(&mut self, node: NodeId, wall_ms: u64, from_ms: u64, now_ms: u64) {
        let taken_ms = from_ms + (now_ms - from_ms) / 2;
        if let Some(voice) = self.voice(node) {
            voice.heard = Some(Heard {
                ahead_ms: wall_ms.min(LAST_MS) as i64 - taken_ms as i64,
                at_ms: now_ms,
            });
        }
    }

    fn voice(&mut self, node: NodeId) -> Option<&mut Voice> {
        self.voices.iter_mut().find(|voice| voice.node == node)
    }

    /// Returns how far most wall clocks are ahead of the clock that nobody sets, if any was heard.
    pub fn median(&self, now_ms: u64) -> Option<i64> {
        let counted = self.heard_within(FORGET_MS, now_ms);
        let mut ahead: Vec<i64> = counted.map(|(_, ahead)| ahead).collect();
        ahead.sort_unstable();
        let middle = ahead.len().checked_sub(1)? / 2;
        ahead.get(middle).copied()
    }

    /// Notes that something is decided in the group: from the first such call on, patience for
    /// silent nodes is limited.
    pub fn begin_patience(&mut self, now_ms: u64) {
        self.patient_since.get_or_insert(now_ms);
    }

    /// Returns whether most nodes were heard lately.
    pub fn has_most(&self, now_ms: u64) -> bool {
        2 * self.heard_within(FORGET_MS, now_ms).count() > self.voices.len()
    }

    /// Returns whether the median is to be used: most nodes were heard, or patience for them is
    /// over.
    pub fn is_settled(&self, now_ms: u64) -> bool {
        let is_over = |since| now_ms - since >= PATIENCE_MS;
        self.has_most(now_ms) || self.patient_since.is_some_and(is_over)
    }

    /// Lists the nodes that answer and whose clocks are off, with how far each is ahead.
    pub fn off(&self, now_ms: u64) -> Vec<(NodeId, i64)> {
        let median = self.median(now_ms).unwrap_or(0);
        let there = self.heard_within(THERE_MS, now_ms);
        let by = there.map(|(node, ahead)| (node, ahead - median));
        by.filter(|(_, by)| by.abs() > OFF_MS).collect()
    }

    fn heard_within(&self, span_ms: u64, now_ms: u64) -> impl Iterator<Item = (NodeId, i64)> {
        let heard = |voice: &Voice| Some((voice.node, voice.heard?));
        let all = self.voices.iter().filter_map(heard);
        let lately = all.filter(move |(_, heard)| now_ms - heard.at_ms <= span_ms);
        lately.map(|(node, heard)| (node, heard.ahead_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 1_795_467_197_000;
    const DAY: i64 = 86_400_000;

    /// Returns the clocks after node 1 has asked and all nodes have answered at once, each with the
    /// error of its clock.
    fn asked(off: &[i64], now_ms: u64) -> Clocks {
        let mut clocks = Clocks::new(1, 1..=off.len() as NodeId);
        ask_all(&mut clocks, off, now_ms);
        clocks
    }

    fn ask_all(clocks: &mut Clocks, off: &[i64], now_ms: u64) {
        for (node, off) in (1..).zip(off) {
            let wall_ms = (NOON + now_ms).saturating_add_signed(*off);
            if node == 1 {
                clocks.look(wall_ms, now_ms);
                continue;
            }
            let nonce = clocks.ask(node, 7, now_ms);
            assert!(clocks.take(node, nonce, wall_ms, now_ms));
        }
    }

    fn median_off(clocks: &Clocks, now_ms: u64) -> i64 {
        clocks.median(now_ms).unwrap() - NOON as i64
    }

    #[test]
    fn a_minority_moves_nothing_wherever_it_is() {
        for off in [DAY, -DAY, 3_000, i64::MAX, -(NOON as i64)] {
            assert_eq!(median_off(&asked(&[off, 0, 0], 5), 5), 0, "{off}");
            let clocks = asked(&[0, off, 0, off, 0, 0, off, 0, off], 5);
            assert_eq!(median_off(&clocks, 5), 0, "{off}");
        }
        // All replicas are wrong, and the rest of the cluster isn't.
        assert_eq!(median_off(&asked(&[-DAY, -DAY, -DAY, 0, 0, 0, 0], 5), 5), 0);
        assert_eq!(median_off(&asked(&[DAY, 0], 5), 5), 0, "of two the smaller");
    }

    #[test]
    fn a_majority_that_is_corrected_is_followed() {
        let mut clocks = asked(&[-DAY, -DAY, 0], 5);
        assert_eq!(median_off(&clocks, 5), -DAY);
        ask_all(&mut clocks, &[-DAY, 0, 0], 1_500);
        assert_eq!(median_off(&clocks, 1_500), 0);
    }

    #[test]
    fn an_answer_counts_once_and_in_time_and_from_who_was_asked() {
        let mut clocks = Clocks::new(1, [1, 2, 3]);
        clocks.look(NOON, 0);
        assert!(!clocks.take(2, 0, 0, 0), "nobody asked");
        assert_eq!(clocks.ask(2, 9, 0), 9);
        assert_eq!(clocks.ask(2, 10, 250), 9, "its answer isn't late yet");
        assert_eq!(clocks.ask(3, 11, 250), 11);
        assert!(!clocks.take(3, 9, 0, 300), "another node's nonce");
        assert!(!clocks.take(4, 9, 0, 300), "a stranger");
        assert!(clocks.take(2, 9, NOON + 300, 300));
        assert!(!clocks.take(2, 9, 0, 300), "a second time");
        assert!(!clocks.take(3, 11, 0, 251 + LATE_MS), "late");
        assert_eq!(clocks.ask(3, 12, 251 + LATE_MS), 12);
        assert!(clocks.has_most(300));
    }

    #[test]
    fn an_answers_way_is_halved() {
        let mut clocks = Clocks::new(1, [2]);
        let nonce = clocks.ask(2, 9, 1_000);
        assert!(clocks.take(2, nonce, NOON + 1_300, 1_600));
        assert_eq!(median_off(&clocks, 1_600), 0);
    }

    #[test]
    fn silent_nodes_are_waited_for_and_forgotten() {
        let mut clocks = Clocks::new(1, [2, 3]);
        clocks.look(NOON, 0);
        assert!(!clocks.is_settled(PATIENCE_MS * 9), "nothing is decided");
        clocks.begin_patience(500);
        clocks.begin_patience(2_000);
        assert!(!clocks.is_settled(499 + PATIENCE_MS));
        assert!(clocks.is_settled(500 + PATIENCE_MS));

        let mut clocks = asked(&[DAY, 0, 0], 0);
        assert!(clocks.is_settled(0));
        clocks.look((NOON + FORGET_MS).saturating_add_signed(DAY), FORGET_MS);
        assert_eq!(median_off(&clocks, FORGET_MS), 0);
        assert_eq!(median_off(&clocks, FORGET_MS + 1), DAY, "it is alone");
    }

    #[test]
    fn clocks_that_are_off_are_named_while_their_nodes_answer() {
        let clocks = asked(&[0, DAY, -2_001, 2_000, 0], 0);
        assert_eq!(clocks.off(0), [(2, DAY), (3, -2_001)]);
        assert_eq!(clocks.off(THERE_MS + 1), []);
    }

    #[test]
    fn only_so_many_nodes_count() {
        let clocks = Clocks::new(1, 1..=5_000);
        assert_eq!(clocks.others().len(), MOST - 1);
    }
}
