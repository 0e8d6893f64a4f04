// SPDX-License-Identifier: Apache-2.0
//! Cycles in the graph of a history's transactions.

use std::collections::{BTreeSet, VecDeque};

use crate::checker::AnomalyKind;

/// Why one transaction comes before another one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Edge {
    /// It wrote something that the other one overwrote.
    WriteWrite,
    /// It wrote something that the other one read.
    WriteRead,
    /// It read something that the other one overwrote.
    ReadWrite,
    /// It had ended when the other one began.
    RealTime,
}

/// A graph of transactions, and of moments, which are nodes behind them: so real time needs one
/// edge for each begin and end and not one for each pair.
pub(crate) struct Graph {
    transactions: usize,
    edges: Vec<BTreeSet<(usize, Edge)>>,
}

impl Graph {
    pub fn new(transactions: usize) -> Graph {
        Graph {
            transactions,
            edges: vec![BTreeSet::new(); transactions],
        }
    }

    pub fn add(&mut self, from: usize, to: usize, edge: Edge) {
        if from != to {
            self.edges[from].insert((to, edge));
        }
    }

    /// Adds the edges of real time for transactions with their begins and, where these are known,
    /// ends.
    pub fn add_real_time(&mut self, times: impl Iterator<Item = (usize, u64, Option<u64>)>) {
        let mut moments = Vec::new();
        for (at, begin, end) in times {
            // A begin at the time of an end isn't later.
            moments.push((begin, false, at));
            moments.extend(end.map(|end| (end, true, at)));
        }
        moments.sort_unstable();
        let mut last_end = None;
        for (_, is_end, at) in moments {
            if !is_end {
                last_end
                    .iter()
                    .for_each(|moment| self.add(*moment, at, Edge::RealTime));
                continue;
            }
            let moment = self.edges.len();
            self.edges.push(BTreeSet::new());
            self.add(at, moment, Edge::RealTime);
            last_end
                .iter()
                .for_each(|earlier| self.add(*earlier, moment, Edge::RealTime));
            last_end = Some(moment);
        }
    }

    /// Returns the nodes of a shortest path over some edges.
    fn path(&self, from: usize, to: usize, over: &[Edge]) -> Option<Vec<usize>> {
        let mut reached_from = vec![usize::MAX; self.edges.len()];
        let mut queue = VecDeque::from([from]);
        while let Some(node) = queue.pop_front() {
            for (next, _) in self.edges[node].iter().filter(|(_, e)| over.contains(e)) {
                if reached_from[*next] != usize::MAX {
                    continue;
                }
                reached_from[*next] = node;
                if *next == to {
                    return Some(walk_back(&reached_from, from, to));
                }
                queue.push_back(*next);
            }
        }
        None
    }

    /// Returns the nodes from which a cycle over these edges can be reached and that can be reached
    /// from one: the others are taken away one by one.
    fn cyclic(&self, over: &[Edge]) -> Vec<usize> {
        let mut incoming = vec![0; self.edges.len()];
        let kept = |node: usize| self.edges[node].iter().filter(|(_, e)| over.contains(e));
        for node in 0..self.edges.len() {
            kept(node).for_each(|(to, _)| incoming[*to] += 1);
        }
        let mut free: Vec<usize> = (0..incoming.len()).filter(|n| incoming[*n] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in kept(node) {
                incoming[*to] -= 1;
                if incoming[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        (0..incoming.len()).filter(|n| incoming[*n] > 0).collect()
    }

    fn edge(&self, from: usize, to: usize, over: &[Edge]) -> Option<Edge> {
        let between = self.edges[from].iter().filter(|(node, _)| *node == to);
        between.map(|(_, edge)| *edge).find(|e| over.contains(e))
    }
}

fn walk_back(reached_from: &[usize], from: usize, to: usize) -> Vec<usize> {
    let mut path = vec![to];
    let mut node = reached_from[to];
    while node != from {
        path.push(node);
        node = reached_from[node];
    }
    path.push(from);
    path.reverse();
    path
}

/// A cycle: its kind, the transactions in it, and the edges from each to the next.
type Cycle = (AnomalyKind, Vec<usize>, Vec<Edge>);

/// Returns a cycle of the worst kind that there is.
pub(crate) fn find(graph: &Graph) -> Option<Cycle> {
    use Edge::{ReadWrite, RealTime, WriteRead, WriteWrite};
    let writes = [WriteWrite];
    let information = [WriteWrite, WriteRead];
    let dependencies = [WriteWrite, WriteRead, ReadWrite];
    let all = [WriteWrite, WriteRead, ReadWrite, RealTime];
    None.or_else(|| any(graph, &writes, AnomalyKind::DirtyWrite))
        .or_else(|| any(graph, &information, AnomalyKind::CircularInformation))
        .or_else(|| single(graph, &information))
        .or_else(|| any(graph, &dependencies, AnomalyKind::AntiDependency))
        .or_else(|| any(graph, &all, AnomalyKind::RealTime))
}

fn any(graph: &Graph, over: &[Edge], kind: AnomalyKind) -> Option<Cycle> {
    let nodes = graph.cyclic(over);
    let nodes = nodes.into_iter().filter(|node| *node < graph.transactions);
    let path = nodes
        .filter_map(|node| graph.path(node, node, over))
        .next()?;
    let edges = path.windows(2);
    let edges = edges.filter_map(|pair| graph.edge(pair[0], pair[1], over));
    Some(described(graph, kind, &path, edges.collect()))
}

/// Finds a cycle with exactly one read-write edge.
fn single(graph: &Graph, information: &[Edge]) -> Option<Cycle> {
    let dependencies = [Edge::WriteWrite, Edge::WriteRead, Edge::ReadWrite];
    for node in graph.cyclic(&dependencies) {
        let reads = graph.edges[node].iter();
        for (next, _) in reads.filter(|(_, edge)| *edge == Edge::ReadWrite) {
            let Some(back) = graph.path(*next, node, information) else {
                continue;
            };
            let path = [vec![node], back].concat();
            let rest = path[1..].windows(2);
            let rest = rest.filter_map(|pair| graph.edge(pair[0], pair[1], information));
            let edges = std::iter::once(Edge::ReadWrite).chain(rest).collect();
            return Some(described(
                graph,
                AnomalyKind::SingleAntiDependency,
                &path,
                edges,
            ));
        }
    }
    None
}

/// Leaves out the moments between transactions.
fn described(graph: &Graph, kind: AnomalyKind, path: &[usize], edges: Vec<Edge>) -> Cycle {
    let steps = path.iter().zip(edges);
    let steps = steps.filter(|(node, _)| **node < graph.transactions);
    let (transactions, edges) = steps.map(|(node, edge)| (*node, edge)).unzip();
    (kind, transactions, edges)
}
