// SPDX-License-Identifier: Apache-2.0
//! Deliberate mistakes, to prove that the checkers find them.
//!
//! None of them is in the code that ships. The harness makes them: it rewrites packets that a role
//! gets or sends, damages stored state, or sets a role up falsely, so that the cluster behaves as
//! if the rule in question had been left out.

pub mod members;
pub mod ordered;
pub mod spanning;

use std::ops::Range;

use control::{ControlOutbox, GivenUp, GroupState, Message, Peer, Store};
use paxos::read::is_for_reads;
use paxos::round::MAX_EPOCH;
use paxos::wire::value::{ProbeReport, RangeReport};
use paxos::{Flags, Header, Instance, MsgType, NodeId, Packet, Round};

use super::world::World;
use crate::application::SharedStore;
use crate::check::Invariant;

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum Mutation {
    /// An acceptor that lost its memory takes part as if it had not.
    AcceptorForgets,
    /// A restarted leader begins its round again.
    LeaderReusesRound,
    /// A replica's learner counts one acceptor's vote as two.
    DuplicateVoteCounted,
    /// A learner node counts one acceptor's vote as two, and tells the result to all replicas.
    LearnerNodeCountsTwice,
    /// A candidate accepts the answers of only f acceptors.
    QuorumOfF,
    /// Replicas report more than they have stored, so slots are reused too early.
    FalseTrim,
    /// Votes in promises are ignored, so a no-op replaces what may have been chosen.
    VotesIgnored,
    /// An answer to QUERY counts as a promise.
    QueryCountedAsPromise,
    /// A range promise doesn't raise the floor.
    IgnoresFloor,
    /// An acceptor votes below the round that it promised.
    StaleRoundAccepted,
    /// The candidate believes that there is nothing to read.
    SkipsReading,
    /// The candidate believes that there is nothing to read, and only the replicas' alarm may
    /// notice it. The replicas make no mistake.
    BeginsTooLow,
    /// Like `BeginsTooLow`, but replicas aren't told where an epoch begins.
    BeginningIgnored,
    /// Epochs are issued a second time, and only the replicas' alarm may notice it. The replicas
    /// make no mistake.
    EpochsBeginAnew,
    /// Like `EpochsBeginAnew`, but the numbers of disks continue although epochs begin again.
    NumberIgnored,
    /// Replicas show nothing of the epochs that they have met.
    ReplicasShowNoEpoch,
    /// The controller doesn't see the replicas' positions.
    PositionsUnknown,
    /// The controller sees a checkpoint that confirms every trim point.
    AnyTrimConfirmed,
    /// A leader counts one acceptor's refusal as two.
    RetiresForOne,
    /// All repairing hosts get the same lane.
    SharedLane,
    /// The leader begins at the marker's instance instead of after it.
    NextIsMarker,
    /// The session table doesn't survive a restart.
    SessionForgets,
    /// The position in the log is stored later than the effects.
    PositionNotAtomic,
    /// A commit is reported before it has happened.
    CommitReportedEarly,
    /// A checkpoint counts as soon as it has begun.
    CheckpointReportedEarly,
    /// A re-joined acceptor is enabled with the floor of the first epoch.
    KeepsOldMembership,
    /// A durable acceptor, or replica with NOPaxos, answers before its log is synced.
    AnswersBeforeSync,
    /// At the end of a sync answers are sent that were given during it.
    SyncCoversLater,
    /// A damaged record counts as the unfinished end of a log.
    DamageIsTheEnd,
    /// All disks of a replica have the same number.
    DisksNotNumbered,
    /// Control messages count from any sender, and even if they contradict earlier ones.
    OldClusterBelieved,
    /// Lanes are drawn from the store's last epoch, even if an earlier process has issued it.
    LanesOfEarlierProcess,
    /// Numbers of disks are drawn from the store's last epoch, even if an earlier process has
    /// issued it.
    IncarnationsOfEarlierProcess,
    /// An acceptor that was read from disk votes before it was compared.
    RestartedIsNotMute,
    /// An acceptor that was read from disk says that it was at any start.
    AnyStartIsKnown,
    /// The controller lets an acceptor that was read from disk continue, whatever it shows.
    NothingCompared,
    /// An acceptor promises a round to each candidate that asks.
    PromisesToAnyone,
    /// A replica repairs as far as a single acceptor says that it has voted.
    OneEndBelieved,
    /// Answers that must wait until they are stored are sent at once.
    AnswersDoNotWait,
    /// After a kill everything executed and answered counts as stored.
    ExecutedCountsAsStored,
    /// Outcomes of commands over several partitions don't survive a restart.
    OutcomesForgotten,
    /// After a restart a marker takes precedence over a recorded outcome.
    MarkerBeforeRecord,
    /// A leader stamps commands over several partitions in each of them separately.
    StampsCrosswise,
    /// Each partition continues after the instances that were given up as soon as it reaches them,
    /// whatever its siblings do.
    LeapsAlone,
    /// The controller takes the positions of a replica's partitions from answers of different
    /// moments.
    PositionsOfTwoMoments,
    /// An install isn't noted, so a replica that is killed during one continues with only some
    /// partitions replaced.
    InstallNotNoted,
    /// Commands that only read are answered from copies of a replica's state before the log was
    /// asked.
    ReadsAtOnce,
    /// A read without the log doesn't wait until the instances that acceptors show are executed.
    ReadsUnexecuted,
    /// A read counts answers to a question that was asked before the read came.
    ReadsShareEarlier,
    /// Keys of several partitions are read without the log.
    ReadsSeveral,
    /// Commands that a connection sends after a read don't wait for its answer.
    WritesBesideRead,
    /// A restarted sequencer begins its session again.
    SequencerBeginsAgain,
    /// A NOPaxos replica that lost its log takes part as if it had not.
    ReplicaForgets,
    /// Values that an ousted leader has executed ahead aren't taken back.
    NothingTakenBack,
    /// Parts of incomplete commands don't survive a restart.
    PartsForgotten,
    /// Parts of two commands aren't told apart.
    PartsMixed,
    /// Replicas accept what sequencers of earlier sessions stamp.
    OldSessionTaken,
    /// VIEW_CHANGE doesn't tell which slots are no-ops.
    NoopsNotTold,
    /// VIEW_CHANGEs of all views are merged, not only those of the latest one.
    AllViewsMerged,
    /// The new leader counts one member's VIEW_CHANGE as two.
    ToldByAnother,
    /// A view of a later session doesn't ask the members of earlier ones.
    OldMembersNotAsked,
    /// A session is active as soon as one member has begun a view of it.
    ActiveByOne,
    /// A sequencer stamps before its session is active.
    ProgrammedEarly,
    /// GAP_COMMIT is answered but not carried out.
    GapAnsweredEarly,
    /// SYNC_PREPARE is answered but not carried out.
    SyncAnsweredEarly,
    /// A follower acknowledges slots that it doesn't have.
    AcksTooMuch,
    /// Answers that share a packet name the first one's slot instead of the last one's.
    FirstSlotNamed,
    /// A client accepts the leader's answer alone.
    LeaderSuffices,
    /// NOPaxos replicas aren't told where a session has begun.
    SealNotTold,
    /// NOPaxos replicas are told that a session has begun before everything.
    SealedTooLow,
    /// A partition tells its siblings that it stands at a copy that isn't stable.
    StandsUnstable,
    /// A partition tells its siblings that it has passed a place without a record before that place
    /// is stable.
    PassedUnstable,
    /// A partition that has passed a copy runs ahead before the copy is stored.
    AheadOfCopies,
    /// A follower that hears that a crowd is over doesn't acknowledge the slots that it has left
    /// out.
    CrowdNotMadeUp,
    /// A replica whose program died of a command takes it for void, whatever the others have done.
    VoidedAlone,
    /// A NOPaxos replica keeps its entry in a slot if a command of the same name comes, whatever
    /// its vector.
    FirstVectorKept,
    /// An added replica counts as if it had everything in a checkpoint.
    AddedHoldsAtOnce,
    /// A candidate reads nothing but what was read ahead.
    AheadSuffices,
    /// A replica counts the vote of an acceptor that was removed.
    RemovedVotes,
    /// A vote that is read ahead counts whatever memory it is of.
    AheadOfAnyMemory,
}

impl Mutation {
    /// All mutations except for [`Mutation::BeginsTooLow`] and [`Mutation::EpochsBeginAnew`], which
    /// are no mistakes of the roles that must notice them.
    pub const ALL: [Mutation; 78] = [
        Mutation::BeginningIgnored,
        Mutation::NumberIgnored,
        Mutation::ReplicasShowNoEpoch,
        Mutation::PositionsUnknown,
        Mutation::AnyTrimConfirmed,
        Mutation::RetiresForOne,
        Mutation::IncarnationsOfEarlierProcess,
        Mutation::AcceptorForgets,
        Mutation::LeaderReusesRound,
        Mutation::DuplicateVoteCounted,
        Mutation::LearnerNodeCountsTwice,
        Mutation::QuorumOfF,
        Mutation::FalseTrim,
        Mutation::VotesIgnored,
        Mutation::QueryCountedAsPromise,
        Mutation::IgnoresFloor,
        Mutation::StaleRoundAccepted,
        Mutation::SkipsReading,
        Mutation::SharedLane,
        Mutation::NextIsMarker,
        Mutation::SessionForgets,
        Mutation::PositionNotAtomic,
        Mutation::CommitReportedEarly,
        Mutation::CheckpointReportedEarly,
        Mutation::KeepsOldMembership,
        Mutation::AnswersBeforeSync,
        Mutation::SyncCoversLater,
        Mutation::DamageIsTheEnd,
        Mutation::DisksNotNumbered,
        Mutation::OldClusterBelieved,
        Mutation::LanesOfEarlierProcess,
        Mutation::RestartedIsNotMute,
        Mutation::AnyStartIsKnown,
        Mutation::NothingCompared,
        Mutation::PromisesToAnyone,
        Mutation::OneEndBelieved,
        Mutation::AnswersDoNotWait,
        Mutation::ExecutedCountsAsStored,
        Mutation::OutcomesForgotten,
        Mutation::MarkerBeforeRecord,
        Mutation::StampsCrosswise,
        Mutation::LeapsAlone,
        Mutation::PositionsOfTwoMoments,
        Mutation::InstallNotNoted,
        Mutation::ReadsAtOnce,
        Mutation::ReadsUnexecuted,
        Mutation::ReadsShareEarlier,
        Mutation::ReadsSeveral,
        Mutation::WritesBesideRead,
        Mutation::SequencerBeginsAgain,
        Mutation::ReplicaForgets,
        Mutation::NothingTakenBack,
        Mutation::PartsForgotten,
        Mutation::PartsMixed,
        Mutation::OldSessionTaken,
        Mutation::NoopsNotTold,
        Mutation::AllViewsMerged,
        Mutation::ToldByAnother,
        Mutation::OldMembersNotAsked,
        Mutation::ActiveByOne,
        Mutation::ProgrammedEarly,
        Mutation::GapAnsweredEarly,
        Mutation::SyncAnsweredEarly,
        Mutation::AcksTooMuch,
        Mutation::FirstSlotNamed,
        Mutation::LeaderSuffices,
        Mutation::SealNotTold,
        Mutation::SealedTooLow,
        Mutation::StandsUnstable,
        Mutation::PassedUnstable,
        Mutation::AheadOfCopies,
        Mutation::CrowdNotMadeUp,
        Mutation::FirstVectorKept,
        Mutation::VoidedAlone,
        Mutation::AddedHoldsAtOnce,
        Mutation::AheadSuffices,
        Mutation::RemovedVotes,
        Mutation::AheadOfAnyMemory,
    ];

    /// Returns the only invariant that judges a run with this mistake, if the mistake breaks others
    /// at once.
    pub fn only(self) -> Option<Invariant> {
        match self {
            Mutation::BeginsTooLow
            | Mutation::BeginningIgnored
            | Mutation::EpochsBeginAnew
            | Mutation::NumberIgnored => Some(Invariant::Alarm),
            // Neither command is ever executed, nor anything after them.
            Mutation::StampsCrosswise => Some(Invariant::Liveness),
            // The copies of a command wait for one that was never stamped.
            Mutation::SealNotTold => Some(Invariant::Liveness),
            // The log itself is wrong, before anybody executes it.
            Mutation::FirstVectorKept => Some(Invariant::Committed),
            _ => None,
        }
    }
}

/// Rewrites a packet that a candidate or a repairing replica gets.
pub fn rewrite(mutation: Mutation, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let h = &packet.header;
    match mutation {
        Mutation::VotesIgnored => without_vote(h).map(|header| (header, Vec::new())),
        Mutation::SkipsReading | Mutation::BeginsTooLow | Mutation::BeginningIgnored => {
            nothing_to_read(h, packet.value).map(|value| (*h, value))
        }
        _ => None,
    }
}

/// Rewrites an acceptor's answer to a replica's question for reads; `last` is the number of the
/// replica's last question.
pub fn rewrite_bound(world: &World, packet: &Packet<'_>, last: u64) -> Option<(Header, Vec<u8>)> {
    let (mut header, mut value) = (packet.header, packet.value.to_vec());
    let report = RangeReport::parse(packet.value).ok()?;
    if header.msgtype != MsgType::Phase1b || !is_for_reads(&header) {
        return None;
    }
    match world.mutation {
        Some(Mutation::ReadsUnexecuted) => {
            let nothing = RangeReport {
                end: 0,
                trim: 0,
                ..report
            };
            value = nothing.emit().to_vec();
        }
        Some(Mutation::ReadsShareEarlier) => header.request = last,
        _ => return None,
    }
    Some((header, value))
}

/// Rewrites a replica's PROBE_ACK to the controller.
pub fn rewrite_shown(mutation: Mutation, packet: &Packet<'_>) -> Option<(Header, Vec<u8>)> {
    let (mut header, report) = (packet.header, ProbeReport::parse(packet.value).ok()?);
    let mut trim = report.trim;
    match mutation {
        // A position without an epoch would be that of a backup.
        Mutation::ReplicasShowNoEpoch => (header.rnd, header.inst) = (Round::NONE, 0),
        // An epoch can begin too low only if the replicas' positions are unknown.
        Mutation::PositionsUnknown | Mutation::BeginsTooLow | Mutation::BeginningIgnored => {
            header.inst = 0;
        }
        Mutation::AnyTrimConfirmed => trim = Instance::MAX,
        _ => return None,
    }
    Some((header, ProbeReport { trim, ..report }.emit().to_vec()))
}

/// Returns a copy of a REJECT to a leader, as if another acceptor had sent it.
pub fn refused_by_another(world: &World, header: &Header) -> Option<Header> {
    let refused = header.msgtype == MsgType::Reject && world.mutated(Mutation::RetiresForOne);
    refused.then(|| by_next_acceptor(world, header))
}

/// Returns whether an acceptor must answer as if it promised without remembering it. The question
/// then only reads, like QUERY, and counts as PHASE1A.
pub fn not_remembered(world: &World, header: &Header) -> bool {
    let range = header.flags.has(Flags::RANGE);
    match world.mutation {
        Some(Mutation::IgnoresFloor) => range,
        Some(Mutation::QueryCountedAsPromise) => header.msgtype == MsgType::Phase1a && !range,
        _ => false,
    }
}

/// Returns a copy of an answer, as if another acceptor with memory `nonce` had given it.
pub fn second_answer(
    mistake: Mutation,
    packet: &Packet<'_>,
    other: NodeId,
    nonce: u64,
) -> Option<(Header, Vec<u8>)> {
    let h = &packet.header;
    let answer = matches!(h.msgtype, MsgType::Phase1b | MsgType::Phase2b);
    let poll = h.msgtype == MsgType::Phase1b && h.flags.has(Flags::RANGE);
    if !answer || mistake == Mutation::OneEndBelieved && !poll {
        return None;
    }
    let header = Header { swid: other, ..*h };
    let value = match RangeReport::parse(packet.value) {
        Ok(report) if h.flags.has(Flags::RANGE) => RangeReport { nonce, ..report }.emit().to_vec(),
        _ => packet.value.to_vec(),
    };
    Some((header, value))
}

/// Returns a copy of a vote, as if another acceptor had sent it, if `mistake` is made.
pub fn second_vote(
    world: &World,
    mistake: Mutation,
    packet: &Packet<'_>,
) -> Option<(Header, Vec<u8>)> {
    let h = &packet.header;
    if h.msgtype != MsgType::Phase2b || !world.mutated(mistake) {
        return None;
    }
    Some((by_next_acceptor(world, h), packet.value.to_vec()))
}

fn by_next_acceptor(world: &World, header: &Header) -> Header {
    let next = 11 + (header.swid - 11 + 1) % u16::from(world.scenario.acceptors);
    Header {
        swid: next,
        ..*header
    }
}

/// Makes a replica's TRIM claim more than is true.
pub fn overstate_trim(world: &World, header: &mut Header) {
    if world.mutated(Mutation::FalseTrim) {
        header.inst += u64::from(world.scenario.checkpoint_every);
    }
}

/// Makes all TRIMs of a replica name the same disk.
pub fn number_no_disks(world: &World, header: &mut Header) {
    if world.mutated(Mutation::DisksNotNumbered) {
        header.client = 1;
    }
}

/// Damages the state that a process finds when it starts.
pub fn spoil_store(world: &World, store: &SharedStore) {
    match world.mutation {
        Some(Mutation::SessionForgets) => store.forget_replies(),
        Some(Mutation::PositionNotAtomic) => store.undo_records(),
        Some(Mutation::CommitReportedEarly) => store.commit_late(),
        Some(Mutation::ExecutedCountsAsStored) => store.count_executed(),
        Some(Mutation::OutcomesForgotten) => store.forget_outcomes(),
        Some(Mutation::PartsForgotten) => store.forget_parts(),
        Some(Mutation::MarkerBeforeRecord) => store.forget_overtaken_outcomes(),
        Some(Mutation::AheadOfCopies) => store.delay_applied(),
        _ => {}
    }
}

/// Falsifies an order of the controller.
pub fn spoil_order(world: &World, mut message: Message) -> Message {
    match &mut message {
        Message::ProgramLeader { next, .. } if world.mutated(Mutation::NextIsMarker) => {
            next.iter_mut().for_each(|next| *next -= 1);
        }
        Message::EnableAcceptor { epoch, .. } if world.mutated(Mutation::KeepsOldMembership) => {
            *epoch = 1;
        }
        &mut (Message::EarlierStartRequest {
            group,
            nonce,
            start,
            ..
        }
        | Message::DiscardMemory {
            group,
            nonce,
            start,
        }) if world.mutated(Mutation::NothingCompared) => {
            message = Message::ResumeAcceptor {
                group,
                nonce,
                start,
            };
        }
        _ => {}
    }
    message
}

/// Returns the instances that a worker is told to be given up, by partition.
pub fn told_as_given_up(world: &World, given_up: &GivenUp, pid: usize) -> Vec<Range<Instance>> {
    let mut ranges = given_up.ranges();
    if world.mutated(Mutation::LeapsAlone) {
        let others = (0..ranges.len()).filter(|other| *other != pid);
        others.for_each(|other| ranges[other] = 0..0);
    }
    ranges
}

/// Returns a report of a replica's positions with that of the last partition from an earlier
/// moment.
pub fn mix_moments(world: &World, message: &Message) -> Option<Message> {
    if !world.mutated(Mutation::PositionsOfTwoMoments) {
        return None;
    }
    let mut message = message.clone();
    let Message::ExecutionStopped { next, .. } = &mut message else {
        return None;
    };
    let last = next.last_mut().filter(|_| world.scenario.partitions > 1)?;
    *last = last.saturating_sub(1);
    Some(message)
}

/// Gives out a lane or an incarnation in the controller's place, if that mistake is made.
pub fn gives_any_number(
    world: &World,
    store: &mut impl Store,
    message: &Message,
    from: Peer,
    out: &mut impl ControlOutbox,
) -> bool {
    let (mistake, group) = match *message {
        Message::LaneRequest { group, .. } => (Mutation::LanesOfEarlierProcess, group),
        Message::IncarnationRequest { group, .. } => {
            (Mutation::IncarnationsOfEarlierProcess, group)
        }
        _ => return false,
    };
    if !world.mutated(mistake) {
        return false;
    }
    let Ok(mut state) = store.load(group) else {
        return true;
    };
    let version = state.version;
    if let Some(answer) = drawn(&mut state, message) {
        if store.swap(group, version, &state).is_ok() {
            out.control(from, answer);
        }
    }
    true
}

fn drawn(state: &mut GroupState, request: &Message) -> Option<Message> {
    match *request {
        Message::LaneRequest {
            group,
            epoch,
            nonce,
            ..
        } => {
            let lane = state.draw_lane(epoch, nonce).ok()?;
            Some(Message::Lane {
                group,
                epoch,
                nonce,
                lane,
            })
        }
        Message::IncarnationRequest { group, node, nonce } => {
            let incarnation = state.draw_incarnation(node, nonce).ok()?;
            Some(Message::Incarnation {
                group,
                nonce,
                incarnation,
            })
        }
        _ => None,
    }
}

/// Returns the number of a replica's disk. A number that isn't of this epoch reveals that epochs
/// begin again.
pub fn number_of_disk(world: &World, drawn: u64) -> u64 {
    match world.mutated(Mutation::NumberIgnored) {
        true => drawn | u64::from(MAX_EPOCH) << 32,
        false => drawn,
    }
}

/// Returns a range answer that says that there are no votes.
fn nothing_to_read(header: &Header, value: &[u8]) -> Option<Vec<u8>> {
    let range = header.msgtype == MsgType::Phase1b && header.flags.has(Flags::RANGE);
    let report = RangeReport::parse(value).ok().filter(|_| range)?;
    let shortened = RangeReport {
        end: report.trim,
        ..report
    };
    Some(shortened.emit().to_vec())
}

/// Returns a promise without its vote.
fn without_vote(header: &Header) -> Option<Header> {
    let promise = header.msgtype == MsgType::Phase1b
        && !header.flags.has(Flags::RANGE)
        && !header.rnd.is_none();
    promise.then_some(Header {
        vrnd: Round::NONE,
        client: 0,
        request: 0,
        flags: Flags::NONE,
        value_len: 0,
        ..*header
    })
}
