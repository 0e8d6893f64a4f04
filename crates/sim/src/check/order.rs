// SPDX-License-Identifier: Apache-2.0
//! Checks invariant 5: the order in which commands took effect, over all partitions, has no circle.
//! What a client was told before another one asked is a part of that order, so this also checks
//! linearizability over all keys.

use paxos::Time;

/// The times when a command was submitted and when it was answered, if it was.
pub type Span = (Time, Option<Time>);

/// Returns whether one order of all commands agrees with that of each partition (`histories` has
/// commands by number), and puts no command before one that was answered before it was submitted.
pub fn has_no_circle(histories: &[Vec<usize>], when: impl Fn(usize) -> Span) -> bool {
    let count = histories.iter().flatten().max().map_or(0, |last| last + 1);
    let mut left = vec![0; count];
    histories
        .iter()
        .flatten()
        .for_each(|&command| left[command] += 1);
    let executed = (0..count).filter(|&command| left[command] > 0);
    let mut answers: Vec<(Time, usize)> = executed
        .filter_map(|command| Some((when(command).1?, command)))
        .collect();
    answers.sort_unstable();
    let mut answers = answers.into_iter().peekable();
    let mut next = vec![0; histories.len()];
    loop {
        // The first answer among the commands that have no place yet.
        while answers
            .next_if(|(_, command)| left[*command] == 0)
            .is_some()
        {}
        let bound = answers.peek().map_or(Time::MAX, |(answered, _)| *answered);
        let head = |pid: usize| histories[pid].get(next[pid]).copied();
        let heads = |command| (0..histories.len()).filter(move |&pid| head(pid) == Some(command));
        let fits =
            |&command: &usize| heads(command).count() == left[command] && when(command).0 <= bound;
        let Some(command) = (0..histories.len()).filter_map(head).find(fits) else {
            return next
                .iter()
                .zip(histories)
                .all(|(next, history)| *next == history.len());
        };
        let partitions: Vec<usize> = heads(command).collect();
        partitions.into_iter().for_each(|pid| next[pid] += 1);
        left[command] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: [Span; 3] = [(0, None); 3];

    fn orders(histories: &[&[usize]], when: [Span; 3]) -> bool {
        let histories: Vec<Vec<usize>> = histories.iter().map(|h| h.to_vec()).collect();
        has_no_circle(&histories, |command| when[command])
    }

    #[test]
    fn partitions_agree_on_the_order_of_what_they_share() {
        assert!(orders(&[&[0, 1], &[0, 2, 1]], OPEN));
        assert!(!orders(&[&[0, 1], &[1, 0]], OPEN));
        assert!(
            !orders(&[&[0, 1], &[1, 2], &[2, 0]], OPEN),
            "a longer circle"
        );
    }

    /// x (1) was answered before y (2) was submitted, and a command over both partitions (0) lies
    /// between them in the wrong direction.
    #[test]
    fn what_clients_know_of_the_order_counts() {
        let x_first = [(0, None), (1, Some(2)), (3, None)];
        assert!(!orders(&[&[0, 1], &[2, 0]], x_first));
        assert!(orders(
            &[&[0, 1], &[2, 0]],
            [(0, None), (1, Some(4)), (3, None)]
        ));
        assert!(orders(&[&[1, 0], &[0, 2]], x_first));
        assert!(!orders(&[&[2, 1]], x_first), "in one partition, too");
    }
}
