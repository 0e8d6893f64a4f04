// SPDX-License-Identifier: Apache-2.0
//! One session of the sequencer on its way from issued to active (docs/protocol/nopaxos-views.md).
//!
//! ```text
//! controller                                  replicas of the session           sequencer
//!     | store: issued, then writing              |                                 |
//!     | View: writing                            |                                 |
//!     |----------------------------------------->| view change to (session, 0)     |
//!     |     ViewStarted: view, end, f+1 members  |                                 |
//!     |<-----------------------------------------| each partition's leader         |
//!     | store: active, with end and view of each partition                         |
//!     | ProgramLeader: next = end                                                  |
//!     |--------------------------------------------------------------------------->| stamps
//! ```
//!
//! Nothing is stamped before the session is active. So everything that its sequencer stamps lands
//! in a view that f+1 members have begun, and in every later one. The paper reroutes first, and
//! lets the first new packet cause the view change.
//!
//! [`SessionChange::poll`] returns everything that must be stored, as an [`Effect`]. Everything
//! that must survive is in the store: a controller that finds a session there that isn't active
//! resumes it, as often as it takes. [F-RESUME]

use super::replica::Started;
use super::session::{Session, Stage};
use crate::stamping::check_next;
use crate::{Epoch, Instance, Member, PartitionId, Reason, Round};

/// An action for the driver of the change.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Effect {
    /// Mark the session *writing*, then call [`SessionChange::marked_writing`]; give up if a later
    /// one exists.
    MarkWriting,
    /// Mark the session *active*, and store these beginnings in the same write; then call
    /// [`SessionChange::marked_active`]; give up if a later session exists.
    MarkActive(Begins),
    /// Program the sequencer with the stored beginnings.
    HandOver,
}

/// The beginning of a session in each partition.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Begins {
    /// The first slot that its sequencer stamps: the end of the log that f+1 members have.
    pub next: Vec<Instance>,
    /// The view that began with that log.
    pub by: Vec<Round>,
}

/// The progress of a session change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The change waits until the session is marked *writing*.
    MarkingWriting,
    /// The change waits for a view of each partition.
    Collecting,
    /// The change waits until the session is marked *active*.
    MarkingActive,
    /// The session is active, and the change is over.
    Done,
}

impl Phase {
    /// Returns the phase's name in `status`.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::MarkingWriting => "marking the session as writing",
            Phase::Collecting => "waiting for the views of its partitions",
            Phase::MarkingActive => "marking the session as active",
            Phase::Done => "done",
        }
    }
}

/// The change of one session from issued to active.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct SessionChange {
    session: Session,
    phase: Phase,
    /// For each partition, a view that f+1 members have begun, and the end of its log.
    begun: Vec<Option<(Round, Instance)>>,
    effects: Vec<Effect>,
}

impl SessionChange {
    /// Goes on with a session from the stage that the store shows. [F-RESUME]
    pub fn resume(session: Session, partitions: u16) -> Result<SessionChange, &'static str> {
        if let Some(why) = session.invalid() {
            return Err(why);
        }
        let (phase, effects) = match session.stage {
            Stage::Issued => (Phase::MarkingWriting, vec![Effect::MarkWriting]),
            Stage::Writing => (Phase::Collecting, Vec::new()),
            Stage::Active { .. } => return Err("the session is active already"),
        };
        Ok(SessionChange {
            session,
            phase,
            begun: vec![None; usize::from(partitions)],
            effects,
        })
    }

    /// Returns the session's number.
    pub fn number(&self) -> Epoch {
        self.session.number
    }

    /// Returns how far the change is.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Returns in how many partitions a view has begun.
    pub fn begun(&self) -> usize {
        self.begun.iter().flatten().count()
    }

    /// Returns the next action for the driver, in order.
    pub fn poll(&mut self) -> Option<Effect> {
        (!self.effects.is_empty()).then(|| self.effects.remove(0))
    }

    /// Notes that the store shows the session as *writing*, so that replicas may go to its views.
    /// [F-WRITING]
    pub fn marked_writing(&mut self) {
        if self.phase == Phase::MarkingWriting {
            self.phase = Phase::Collecting;
        }
    }

    /// Notes that the store shows the session as *active*, after which the driver programs the
    /// sequencer.
    pub fn marked_active(&mut self) {
        if self.phase == Phase::MarkingActive {
            self.phase = Phase::Done;
            self.effects.push(Effect::HandOver);
        }
    }

    /// Takes the word of a view's leader that f+1 members have begun the view. It stays true, so it
    /// may come late and more than once; it is refused if the view is of another session, the
    /// sender doesn't lead it, or it names nodes that aren't members by node and boot nonce.
    /// [F-STARTED]
    pub fn view_started(
        &mut self,
        pid: PartitionId,
        from: Member,
        told: &Started,
    ) -> Result<(), Reason> {
        let place = usize::from(pid);
        if place >= self.begun.len() {
            return Err(Reason::UnknownPartition);
        }
        if told.view.epoch() != self.session.number {
            return Err(Reason::OldSession);
        }
        if self.phase == Phase::MarkingWriting {
            return Err(Reason::Unexpected);
        }
        if self.session.leader(told.view, pid) != from {
            return Err(Reason::UnknownSender);
        }
        self.check_members(from, &told.members)?;
        if told.session != self.session.digest() {
            // Another controller has issued this number, too.
            return Err(Reason::Conflict);
        }
        check_next(&[told.end]).map_err(|_| Reason::BadValue)?;
        match self.begun[place] {
            // A view has one START_VIEW.
            Some((view, end)) if view == told.view && end != told.end => Err(Reason::Conflict),
            Some(_) => Err(Reason::Duplicate),
            None => {
                self.begun[place] = Some((told.view, told.end));
                self.finish();
                Ok(())
            }
        }
    }

    /// Checks that these are f+1 members of the session, its leader among them.
    fn check_members(&self, leader: Member, members: &[Member]) -> Result<(), Reason> {
        if members.iter().any(|m| self.session.place(*m).is_none()) {
            return Err(Reason::UnknownSender);
        }
        let mut distinct = members.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let are_enough = distinct.len() > usize::from(self.session.f);
        match distinct.len() == members.len() && are_enough && members.contains(&leader) {
            true => Ok(()),
            false => Err(Reason::BadValue),
        }
    }

    /// Asks to mark the session active, once each partition has its view. [F-ACTIVE]
    fn finish(&mut self) {
        let begun: Option<Vec<_>> = self.begun.iter().copied().collect();
        if let (Phase::Collecting, Some(begun)) = (self.phase, begun) {
            self.phase = Phase::MarkingActive;
            self.effects.push(Effect::MarkActive(Begins {
                next: begun.iter().map(|(_, end)| *end).collect(),
                by: begun.iter().map(|(view, _)| *view).collect(),
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nopaxos::view;
    use crate::round::MAX_EPOCH;

    fn member(node: u16) -> Member {
        Member {
            node,
            nonce: u64::from(node) * 11,
        }
    }

    fn session(number: Epoch, stage: Stage) -> Session {
        Session {
            number,
            sequencer: 90,
            nonce: 9,
            members: vec![member(1), member(2), member(3)],
            f: 1,
            lead: 0,
            stage,
            anew: None,
        }
    }

    fn writing() -> SessionChange {
        SessionChange::resume(session(5, Stage::Writing), 2).unwrap()
    }

    fn view(leader: u32) -> Round {
        Round(view::first(5).0 + leader)
    }

    fn started(view: Round, end: Instance, members: &[u16]) -> Started {
        Started {
            session: session(5, Stage::Issued).digest(),
            view,
            end,
            members: members.iter().map(|node| member(*node)).collect(),
        }
    }

    /// The session becomes active once each partition has a view that has begun. [F-ACTIVE]
    /// [F-WRITING]
    #[test]
    fn a_session_is_active_once_a_view_of_each_partition_has_begun() {
        let mut change = SessionChange::resume(session(5, Stage::Issued), 2).unwrap();
        assert_eq!(change.poll(), Some(Effect::MarkWriting));
        let told = started(view(0), 7, &[1, 3]);
        let early = change.view_started(0, member(1), &told);
        assert_eq!(early, Err(Reason::Unexpected), "nobody may be there yet");
        change.marked_writing();
        assert_eq!(change.view_started(0, member(1), &told), Ok(()));
        assert_eq!(
            (change.poll(), change.phase()),
            (None, Phase::Collecting),
            "partition 1 has none"
        );
        // Partition 1 has another leader, and its first view didn't begin.
        let told = started(view(1), 4, &[2, 3]);
        assert_eq!(change.view_started(1, member(3), &told), Ok(()));
        let begins = Begins {
            next: vec![7, 4],
            by: vec![view(0), view(1)],
        };
        assert_eq!(change.poll(), Some(Effect::MarkActive(begins)));
        assert_eq!(change.poll(), None, "nothing is handed over before that");
        change.marked_active();
        assert_eq!(change.poll(), Some(Effect::HandOver));
        assert_eq!(change.phase(), Phase::Done);
    }

    /// A repeated report of a view that has begun changes nothing. [F-STARTED]
    #[test]
    fn a_view_that_has_begun_is_noted_once() {
        let mut change = writing();
        let told = started(view(0), 7, &[1, 2]);
        assert_eq!(change.view_started(0, member(1), &told), Ok(()));
        let again = change.view_started(0, member(1), &told);
        assert_eq!(again, Err(Reason::Duplicate));
        // Another member has the log meanwhile, or the next leader has begun a view.
        let more = started(view(0), 7, &[1, 2, 3]);
        assert_eq!(
            change.view_started(0, member(1), &more),
            Err(Reason::Duplicate)
        );
        let later = started(view(1), 7, &[2, 3]);
        assert_eq!(
            change.view_started(0, member(2), &later),
            Err(Reason::Duplicate)
        );
        let other = started(view(0), 8, &[1, 2]);
        assert_eq!(
            change.view_started(0, member(1), &other),
            Err(Reason::Conflict)
        );
        assert_eq!(change.begun(), 1);
    }

    /// Reports of strangers and of other sessions change nothing. [F-STARTED]
    #[test]
    fn what_a_stranger_says_or_what_is_of_another_session_changes_nothing() {
        let reborn = Member {
            node: 1,
            nonce: 999,
        };
        let with = |members: Vec<Member>| Started {
            members,
            ..started(view(0), 7, &[])
        };
        let beyond = Instance::MAX;
        let cases = [
            (
                9,
                member(1),
                started(view(0), 7, &[1, 2]),
                Reason::UnknownPartition,
            ),
            (
                0,
                member(1),
                started(view::first(4), 7, &[1, 2]),
                Reason::OldSession,
            ),
            (
                0,
                member(1),
                started(view::first(6), 7, &[1, 2]),
                Reason::OldSession,
            ),
            // The sender doesn't lead this view of the partition.
            (
                0,
                member(2),
                started(view(0), 7, &[1, 2]),
                Reason::UnknownSender,
            ),
            (
                1,
                member(1),
                started(view(0), 7, &[1, 2]),
                Reason::UnknownSender,
            ),
            // The session names another memory of the leader's node.
            (
                0,
                reborn,
                started(view(0), 7, &[1, 2]),
                Reason::UnknownSender,
            ),
            (
                0,
                member(1),
                with(vec![member(1), member(4)]),
                Reason::UnknownSender,
            ),
            (
                0,
                member(1),
                with(vec![member(1), Member { node: 2, nonce: 1 }]),
                Reason::UnknownSender,
            ),
            // The members are fewer than f+1, one comes twice, or the leader isn't among them.
            (0, member(1), started(view(0), 7, &[]), Reason::BadValue),
            (0, member(1), started(view(0), 7, &[1]), Reason::BadValue),
            (0, member(1), started(view(0), 7, &[1, 1]), Reason::BadValue),
            (0, member(1), started(view(0), 7, &[2, 3]), Reason::BadValue),
            (
                0,
                member(1),
                started(view(0), beyond, &[1, 2]),
                Reason::BadValue,
            ),
            // The members know another session with this number.
            (
                0,
                member(1),
                Started {
                    session: 1,
                    ..started(view(0), 7, &[1, 2])
                },
                Reason::Conflict,
            ),
        ];
        for (pid, from, told, reason) in cases {
            let mut change = writing();
            assert_eq!(
                change.view_started(pid, from, &told),
                Err(reason),
                "{pid} {from:?} {told:?}"
            );
            assert_eq!(change, writing());
        }
    }

    /// The change continues from the stage that is stored. [F-RESUME]
    #[test]
    fn it_goes_on_from_what_the_store_has() {
        let mut issued = SessionChange::resume(session(5, Stage::Issued), 1).unwrap();
        assert_eq!(issued.poll(), Some(Effect::MarkWriting));
        // The controller dies right after the session was stored as *writing*.
        let mut change = SessionChange::resume(session(5, Stage::Writing), 1).unwrap();
        assert_eq!(change.poll(), None, "it isn't marked again");
        let told = started(view(0), 7, &[1, 2]);
        change.view_started(0, member(1), &told).unwrap();
        assert!(matches!(change.poll(), Some(Effect::MarkActive(_))));
        // The controller dies right before that was stored, so the same report comes again.
        let mut change = SessionChange::resume(session(5, Stage::Writing), 1).unwrap();
        change.view_started(0, member(1), &told).unwrap();
        assert!(matches!(change.poll(), Some(Effect::MarkActive(_))));
        let active = Stage::Active { by: view(0) };
        assert!(SessionChange::resume(session(5, active), 1).is_err());
    }

    /// A session with an impossible number or impossible members is refused. [E-ISSUE] [E-MEMBERS]
    #[test]
    fn impossible_sessions_are_refused() {
        let resume = |session| SessionChange::resume(session, 1);
        assert!(resume(session(MAX_EPOCH, Stage::Issued)).is_ok());
        for number in [0, MAX_EPOCH + 1] {
            let why = resume(session(number, Stage::Issued)).unwrap_err();
            assert_eq!(why, "the session's number is out of range");
        }
        let mut even = session(5, Stage::Issued);
        even.members.pop();
        assert_eq!(
            resume(even).unwrap_err(),
            "there are not exactly 2f+1 replicas"
        );
    }
}
