// SPDX-License-Identifier: Apache-2.0
//! Sessions of the sequencer, as the control plane's store shows them, and the rule whose
//! VIEW_CHANGEs a view needs.

use super::view;
use crate::configuration::MAX_REPLICAS;
use crate::reader::Reader;
use crate::{Epoch, Instance, Member, NodeId, PartitionId, Round, mix};

/// How many sessions are kept, the newest ones.
const MAX_KNOWN: usize = 64;

/// The progress of a session. Each step is a compare-and-swap that fails once a later session
/// exists, so the stage of a session before the newest is final.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Stage {
    /// The session's number is given out.
    Issued,
    /// Replicas may go to the session's views.
    Writing,
    /// f+1 of its members had the log of this view, in the partition at hand, before anything was
    /// stamped.
    Active {
        /// The view.
        by: Round,
    },
}

impl Stage {
    fn rank(self) -> u8 {
        match self {
            Stage::Issued => 0,
            Stage::Writing => 1,
            Stage::Active { .. } => 2,
        }
    }
}

/// The store's record of one session.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct Session {
    /// The session's number, which is an epoch.
    pub number: Epoch,
    /// The node that stamps.
    pub sequencer: NodeId,
    /// The sequencer's boot nonce. No other memory of that node stamps in the same session.
    pub nonce: u64,
    /// The replicas, exactly 2f+1, in ascending order of node.
    pub members: Vec<Member>,
    /// The number of members that may fail.
    pub f: u8,
    /// The member that leads partition 0 first, as an index of `members`.
    pub lead: u16,
    /// The session's progress.
    pub stage: Stage,
    /// The slot below which everything is given up, if an operator has accepted a loss in this
    /// session. No session before it counts. [F-ANEW]
    pub anew: Option<Instance>,
}

impl Session {
    /// Returns the index of a member. A node with another nonce is another member. [E-MEMBERS]
    pub fn place(&self, member: Member) -> Option<usize> {
        self.members.iter().position(|m| *m == member)
    }

    /// Returns the leader of `view` in partition `pid`. Partitions have different leaders, so that
    /// the load is spread.
    pub fn leader(&self, view: Round, pid: PartitionId) -> Member {
        let turn = u32::from(self.lead) + u32::from(pid) + view::number(view);
        self.members[turn as usize % self.members.len()]
    }

    /// Returns a digest that tells apart two sessions to which two controllers, with copies of one
    /// store, gave the same number. [W-SAME]
    pub fn digest(&self) -> u64 {
        let sequencer = [u64::from(self.sequencer), self.nonce];
        let rest = [self.number, u32::from(self.f), u32::from(self.lead)].map(u64::from);
        let members = self.members.iter();
        let members = members.flat_map(|m| [u64::from(m.node), m.nonce]);
        let anew = self.anew.map(|_| 1);
        let parts = sequencer.into_iter().chain(rest).chain(members).chain(anew);
        parts.fold(0, |digest, part| mix(digest ^ part))
    }

    /// Returns the part of the digest that an ACK shows to clients. [K-SAME]
    pub fn shown(&self) -> Round {
        Round(self.digest() as u32)
    }

    /// Returns the reason why the session is impossible, or `None` if it is valid. [E-MEMBERS]
    pub(super) fn invalid(&self) -> Option<&'static str> {
        if self.number == 0 || self.number > crate::round::MAX_EPOCH {
            Some("the session's number is out of range")
        } else if self.members.len() > MAX_REPLICAS {
            Some("too many replicas")
        } else if self.members.len() != 2 * self.f as usize + 1 {
            // With more replicas, two quorums of f+1 might not share one.
            Some("there are not exactly 2f+1 replicas")
        } else if !self.members.windows(2).all(|w| w[0].node < w[1].node) {
            Some("replicas repeat or are out of order")
        } else if self.members.iter().any(|m| m.node == 0 || m.nonce == 0) {
            Some("a replica has no id or no boot nonce")
        } else if matches!(self.stage, Stage::Active { by } if by.epoch() != self.number) {
            Some("it became active by a view of another session")
        } else {
            None
        }
    }

    fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.number.to_be_bytes());
        out.extend_from_slice(&self.sequencer.to_be_bytes());
        out.extend_from_slice(&self.nonce.to_be_bytes());
        out.push(self.f);
        out.extend_from_slice(&self.lead.to_be_bytes());
        let by = match self.stage {
            Stage::Active { by } => by,
            Stage::Issued | Stage::Writing => Round::NONE,
        };
        out.push(self.stage.rank());
        out.extend_from_slice(&by.0.to_be_bytes());
        out.push(self.anew.is_some().into());
        if let Some(anew) = self.anew {
            out.extend_from_slice(&anew.to_be_bytes());
        }
        out.push(self.members.len() as u8);
        for member in &self.members {
            out.extend_from_slice(&member.node.to_be_bytes());
            out.extend_from_slice(&member.nonce.to_be_bytes());
        }
    }

    fn load(r: &mut Reader<'_>) -> Result<Session, &'static str> {
        let (number, sequencer, nonce) = (r.u32()?, r.u16()?, r.u64()?);
        let (f, lead) = (r.u8()?, r.u16()?);
        let (rank, by) = (r.u8()?, Round(r.u32()?));
        let stage = match rank {
            0 => Stage::Issued,
            1 => Stage::Writing,
            2 => Stage::Active { by },
            _ => return Err("a session is at no stage"),
        };
        let anew = match r.flag()? {
            true => Some(r.u64()?),
            false => None,
        };
        let mut members = Vec::new();
        for _ in 0..r.u8()? {
            let (node, nonce) = (r.u16()?, r.u64()?);
            members.push(Member { node, nonce });
        }
        let session = Session {
            number,
            sequencer,
            nonce,
            members,
            f,
            lead,
            stage,
            anew,
        };
        session.invalid().map_or(Ok(session), Err)
    }

    /// Returns true if a loss was accepted in the session. From *writing* on that is final.
    fn begins_anew(&self) -> bool {
        self.anew.is_some() && self.stage != Stage::Issued
    }

    pub(super) fn is_same(&self, other: &Session) -> bool {
        let what = |s: &Session| (s.sequencer, s.nonce, s.f, s.lead, s.anew);
        what(self) == what(other) && self.members == other.members
    }
}

/// The sessions that a replica has been told, without a gap in their numbers, from the last one on
/// in which a loss was accepted.
#[derive(Clone, PartialEq, Eq, Debug, Hash, Default)]
pub struct Sessions {
    known: Vec<Session>,
    /// The end of the last loss that was accepted, even if its session isn't known any more.
    /// [F-ANEW]
    begin: Instance,
}

impl Sessions {
    /// Notes the store's sessions, which have ascending numbers without a gap, and returns true if
    /// anything is new. An older view of the store changes nothing. [E-NEWER]
    pub fn learn(&mut self, told: &[Session]) -> Result<bool, &'static str> {
        if let Some(why) = told.iter().find_map(Session::invalid) {
            return Err(why);
        }
        if !told.windows(2).all(|w| w[0].number + 1 == w[1].number) {
            return Err("sessions are missing in between");
        }
        let Some(newest) = told.last() else {
            return Err("there is no session");
        };
        let is_active = |s: &Session| matches!(s.stage, Stage::Active { .. });
        if told[0].number != 1 && !told.iter().any(is_active) {
            // Without it the outcome of the earlier sessions isn't known here.
            return Err("the last active session is missing");
        }
        if self.contradiction(told, 0).is_some() {
            return Err("a session is told with two configurations");
        }
        let place = |s: &Session| (s.number, s.stage.rank());
        if self
            .known
            .last()
            .is_some_and(|known| place(known) >= place(newest))
        {
            return Ok(false);
        }
        let first = told[0].number;
        self.known.retain(|s| s.number < first);
        if self
            .known
            .last()
            .is_some_and(|last| last.number + 1 < first)
        {
            self.known.clear();
        }
        self.known.extend_from_slice(told);
        let surplus = self.known.len().saturating_sub(MAX_KNOWN);
        let anew = self.known.iter().rposition(Session::begins_anew);
        self.known.drain(..surplus.max(anew.unwrap_or(0)));
        self.begin = self.begin.max(self.begin_of_known());
        Ok(true)
    }

    pub(super) fn save(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&(self.known.len() as u16).to_be_bytes());
        self.known.iter().for_each(|session| session.save(out));
        // The begin is stored only if the sessions don't show it themselves, so that the format of
        // other logs stays as it was.
        if self.begin != self.begin_of_known() {
            out.extend_from_slice(&self.begin.to_be_bytes());
        }
    }

    pub(super) fn load(r: &mut Reader<'_>) -> Result<Sessions, &'static str> {
        let mut known: Vec<Session> = Vec::new();
        for _ in 0..r.u16()? {
            let session = Session::load(r)?;
            if known
                .last()
                .is_some_and(|last| last.number + 1 != session.number)
            {
                return Err("sessions are missing in between");
            }
            known.push(session);
        }
        let mut sessions = Sessions { known, begin: 0 };
        sessions.begin = match r.0.is_empty() {
            true => sessions.begin_of_known(),
            false => r.u64()?,
        };
        Ok(sessions)
    }

    /// Returns the first session that is told with another configuration than was known, if
    /// replicas must not follow what is told. One with a successor doesn't matter once a session of
    /// that history is active: f+1 members of the last active one have fenced off the session that
    /// was known, so it can't have begun, unless this replica was normal in it. [E-ONE]
    pub(super) fn contradiction(&self, told: &[Session], last_normal: Epoch) -> Option<Epoch> {
        let is_active = |s: &Session| matches!(s.stage, Stage::Active { .. });
        let active = told.iter().rfind(|s| is_active(s)).map_or(0, |s| s.number);
        let newest = told.iter().rfind(|s| s.stage != Stage::Issued);
        let newest = newest.map_or(0, |s| s.number);
        let is_over = |s: &Session| s.number <= active && s.number < newest && s.anew.is_none();
        let matters = |s: &&Session| !is_over(s) || s.number <= last_normal;
        let differs = |s: &&Session| self.contradicts(s);
        let mut others = told.iter().filter(differs).filter(matters);
        others.next().map(|s| s.number)
    }

    /// Returns true if the session is known with another configuration. A session that was only
    /// issued doesn't count: it has no views, and a store that was replaced by an older copy may
    /// issue its number again. [E-ONE]
    fn contradicts(&self, told: &Session) -> bool {
        let known = self.open(view::first(told.number));
        told.stage != Stage::Issued && known.is_some_and(|known| !known.is_same(told))
    }

    /// Returns a session, if it is known.
    pub fn get(&self, number: Epoch) -> Option<&Session> {
        let first = self.known.first()?.number;
        self.known.get(number.checked_sub(first)? as usize)
    }

    /// Returns the session of a view, if replicas may go there.
    pub fn open(&self, view: Round) -> Option<&Session> {
        self.get(view.epoch())
            .filter(|session| session.stage != Stage::Issued)
    }

    /// Returns the number of the newest session.
    pub fn newest(&self) -> Option<Epoch> {
        Some(self.known.last()?.number)
    }

    /// Returns the newest session to whose views replicas may go.
    pub fn newest_open(&self) -> Option<&Session> {
        let mut newest_first = self.known.iter().rev();
        newest_first.find(|session| session.stage != Stage::Issued)
    }

    /// Returns the sessions of which f+1 members each must have told their logs before `view`
    /// starts, or `None` if the known sessions allow no conclusion. [W-QUORUM]
    pub fn needed(&self, view: Round) -> Option<Vec<&Session>> {
        let session = self.open(view)?;
        if matches!(session.stage, Stage::Active { by } if by < view) {
            return Some(vec![session]);
        }
        let at = (session.number - self.known[0].number) as usize;
        let is_active = |s: &Session| matches!(s.stage, Stage::Active { .. });
        let Some(active) = self.known[..at].iter().rposition(is_active) else {
            // Before the first active session nothing was ever stamped, and before an accepted loss
            // nothing that counts.
            let first = &self.known[0];
            return (first.number == 1 || first.begins_anew()).then(|| vec![session]);
        };
        let later = self.known[active + 1..at].iter();
        let mut needed = vec![&self.known[active]];
        needed.extend(later.filter(|s| s.stage == Stage::Writing));
        if view::number(view) > 0 {
            needed.push(session);
        }
        Some(needed)
    }

    /// Returns the slot at which the logs of all these sessions begin at the earliest: the end of
    /// the last accepted loss, as far as it was told. [F-ANEW]
    pub fn begin(&self) -> Instance {
        self.begin
    }

    fn begin_of_known(&self) -> Instance {
        let first = self.known.first().filter(|s| s.begins_anew());
        first.and_then(|s| s.anew).unwrap_or(0)
    }

    /// Returns true if a member has a say in `view`: it is a member of the view's session, or its
    /// VIEW_CHANGE counts.
    pub fn takes_part(&self, view: Round, member: Member) -> bool {
        self.part_takers(view).any(|m| m == member)
    }

    /// Returns all members that have a say in `view`, some of them more than once.
    pub fn part_takers(&self, view: Round) -> impl Iterator<Item = Member> + '_ {
        let asked = self.needed(view).unwrap_or_default();
        let own = self.open(view).into_iter();
        own.chain(asked).flat_map(|s| s.members.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(number: Epoch, stage: Stage, nonce: u64) -> Session {
        let member = |node| Member { node, nonce };
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

    fn active(number: Epoch) -> Session {
        let by = view::first(number);
        session(number, Stage::Active { by }, 1)
    }

    /// The number of a session that was only issued may be issued again with other contents.
    /// [E-ONE]
    #[test]
    fn a_session_that_was_only_issued_may_be_issued_again() {
        let mut sessions = Sessions::default();
        let told = [active(4), session(5, Stage::Issued, 1)];
        assert_eq!(sessions.learn(&told), Ok(true));
        let anew = [active(4), session(5, Stage::Writing, 2)];
        assert_eq!(sessions.learn(&anew), Ok(true));
        assert_eq!(sessions.get(5), Some(&anew[1]));
        let other = [active(4), session(5, Stage::Writing, 3)];
        assert!(sessions.learn(&other).is_err());
        assert_eq!(sessions.learn(&told), Ok(false), "it is late");
        assert_eq!(sessions.get(5), Some(&anew[1]));
    }

    /// The session's views have f+1 members of session 4, and what was known as session 5 can have
    /// none of them. [E-ONE]
    #[test]
    fn a_contradiction_is_over_once_another_session_follows_an_active_one() {
        let known = [active(4), session(5, Stage::Writing, 2)];
        let by = view::first(5);
        let other = session(5, Stage::Active { by }, 3);
        let [writing, issued] = [Stage::Writing, Stage::Issued].map(|stage| session(6, stage, 1));
        let mut sessions = Sessions::default();
        sessions.learn(&known).unwrap();
        for told in [
            vec![active(4), session(5, Stage::Writing, 3)],
            vec![active(4), session(5, Stage::Writing, 3), writing.clone()],
            vec![active(4), other.clone()],
            vec![other.clone(), issued],
        ] {
            assert!(sessions.learn(&told).is_err(), "{told:?}");
            assert_eq!(sessions.contradiction(&told, 4), Some(5));
        }
        let told = [other.clone(), writing];
        assert_eq!(
            sessions.contradiction(&told, 5),
            Some(5),
            "it was normal there"
        );
        let lost = Session {
            anew: Some(7),
            ..other
        };
        assert_eq!(sessions.contradiction(&[lost, told[1].clone()], 4), Some(5));
        assert_eq!(sessions.contradiction(&told, 4), None);
        assert_eq!(sessions.learn(&told), Ok(true));
        assert_eq!(sessions.get(5), Some(&told[0]));
    }

    /// The replica's knowledge of session 4 is old: session 4 is *writing* now, and is asked.
    /// [W-QUORUM]
    #[test]
    fn a_store_without_its_last_active_session_tells_nothing() {
        let mut sessions = Sessions::default();
        let told = [active(3), session(4, Stage::Issued, 1)];
        assert_eq!(sessions.learn(&told), Ok(true));
        let part = [session(5, Stage::Writing, 1)];
        let why = sessions.learn(&part).unwrap_err();
        assert_eq!(why, "the last active session is missing");
        assert_eq!(sessions.open(view::first(5)), None);
        let whole = [active(4), session(5, Stage::Writing, 1)];
        assert_eq!(sessions.learn(&whole), Ok(true));
        let needed = sessions.needed(view::first(5)).unwrap();
        assert_eq!(needed, [&whole[0]]);
    }
}
