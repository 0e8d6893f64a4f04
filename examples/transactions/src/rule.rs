// SPDX-License-Identifier: Apache-2.0
//! The rules that keep transactions strictly serializable. Tests take them away one by one, and
//! each must be missed.

/// A rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[cfg_attr(not(test), allow(dead_code))]
pub(crate) enum Rule {
    /// A shard votes yes only if nothing has changed that the transaction read.
    Validates,
    /// A commit raises the version.
    RaisesVersion,
    /// A prepared transaction holds its locks until it is finished.
    HoldsLocks,
    /// Nobody writes what a prepared transaction has read.
    LocksReads,
    /// What is locked to be written isn't read, since it may be old already.
    ReadsNoOldValues,
    /// A shard remembers that it voted yes until the transaction is finished everywhere.
    RemembersVote,
    /// A shard that is asked for its vote before it has voted votes no for good.
    VotesWhenAsked,
    /// A transaction is prepared at most once.
    PreparesOnce,
    /// A replica that starts from a snapshot locks what was prepared.
    RestoresLocks,
    /// A transaction is committed only if all shards vote yes.
    CountsAllVotes,
    /// Who finishes another client's transaction asks how all shards voted.
    AsksForVotes,
}

/// Returns whether a rule is kept, which it is outside tests.
pub(crate) fn keeps(broken: Option<Rule>, rule: Rule) -> bool {
    broken != Some(rule)
}
