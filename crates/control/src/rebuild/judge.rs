// SPDX-License-Identifier: Apache-2.0
//! Decides whether the answers show every epoch that may be in force.
//!
//! A view with last epoch L shows all epochs below L as they are for ever, since no epoch moves
//! once a later one exists. So only L may have moved on, and later epochs may have begun. Such an
//! epoch has the promises of f+1 members of L, or, if L never wrote, of the active epoch before it.
//! If f+1 of these members show no later promise, it has written nothing. [E-REBUILD]

use super::Collected;
use crate::memory::MemoryRecord;
use crate::message::MemberRecord;
use crate::state::needed_epochs;
use crate::suspicion::Watched;
use crate::{EpochRecord, EpochState, GroupState, Protocol, View};
use paxos::wire::value::Probe;
use paxos::{Epoch, NodeId};

impl Collected {
    /// Returns the state to store, `None` if the found one isn't older than what the nodes show, or
    /// why neither can be said. [E-REBUILD]
    pub(super) fn judge(
        &self,
        trusts_disks: bool,
        name: &dyn Fn(NodeId) -> String,
    ) -> Result<Option<GroupState>, String> {
        let judge = Judge {
            collected: self,
            trusts_disks,
            name,
        };
        judge.state()
    }
}

struct Judge<'a> {
    collected: &'a Collected,
    trusts_disks: bool,
    name: &'a dyn Fn(NodeId) -> String,
}

impl Judge<'_> {
    fn state(&self) -> Result<Option<GroupState>, String> {
        let (settings, found) = (&self.collected.settings, &self.collected.found);
        if let Some(why) = self.collected.contradiction {
            return Err(why.to_string());
        }
        if self.collected.suspicion.iter().all(|w| w.memory.is_none()) {
            return Err("no node answers: start all of them but the controller".into());
        }
        let newest = self.collected.views.get(settings.id);
        let told = newest.and_then(|view| view.epochs.last());
        let told = told.map_or(0, |record| record.epoch);
        let shown = self.collected.suspicion.iter().map(|w| w.round().epoch());
        let shown: Vec<Epoch> = shown.chain([told]).collect();
        if !shown.iter().any(|epoch| found.lacks(*epoch)) {
            return Ok(None);
        }
        if settings.protocol == Protocol::NoPaxos {
            return Err(
                "its protocol is NOPaxos, whose sessions can't be made anew yet: restore the \
                 newest copy of the file"
                    .into(),
            );
        }
        let view = newest.filter(|view| !view.epochs.is_empty());
        let view = view.ok_or_else(|| self.lacks_record(0))?;
        if let Some(why) = self.is_beyond(told) {
            return Err(why);
        }
        let view = self.settled(view)?;
        let seen = shown.into_iter().max().unwrap_or(0);
        let state = GroupState::made_anew(&view, seen, found, self.memories(&view));
        state.map(Some).map_err(|why| why.to_string())
    }

    /// Returns why the records don't reach far enough, if a node shows that an epoch behind `told`
    /// was active.
    fn is_beyond(&self, told: Epoch) -> Option<String> {
        let mut all = self.collected.suspicion.iter();
        let later = |w: &&Watched| w.role != Probe::Acceptor && w.round().epoch() > told;
        all.find(later).map(|_| self.lacks_record(told))
    }

    /// Returns the view in which each epoch counts that may have written, or why a later one may
    /// have.
    fn settled(&self, view: &View) -> Result<View, String> {
        if view.epochs.len() >= View::MAX_EPOCHS {
            return Err("too many epochs were left unfinished to know all of them".into());
        }
        let mut view = view.clone();
        let needed: Vec<EpochRecord> = needed_epochs(&view.epochs).cloned().collect();
        let (Some(last), false) = (view.epochs.last_mut(), needed.is_empty()) else {
            // Nobody promises anything to what follows a first epoch that never wrote.
            return Err(self.lacks_record(0));
        };
        if last.state != EpochState::Issued {
            self.has_no_later_promise(last, last.epoch)?;
            return Ok(view);
        }
        if self
            .any_has_no_later_promise(&needed, last.epoch - 1)
            .is_ok()
        {
            return Ok(view);
        }
        // A node that told of the last epoch may not know that it has written since. In that case
        // the epoch's own members promise to later ones; otherwise those of the epochs before it
        // do.
        self.has_no_later_promise(last, last.epoch)?;
        self.any_has_no_later_promise(&needed, last.epoch)?;
        last.state = EpochState::Writing;
        Ok(view)
    }

    /// Returns an error unless one of these epochs, whose promises every later one needs, shows
    /// that none has them.
    fn any_has_no_later_promise(&self, needed: &[EpochRecord], until: Epoch) -> Result<(), String> {
        let mut result = Err("no epoch has written".into());
        for record in needed {
            result = self.has_no_later_promise(record, until);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Returns an error unless f+1 members of an epoch show that they have promised nothing after
    /// epoch `until`.
    fn has_no_later_promise(&self, record: &EpochRecord, until: Epoch) -> Result<(), String> {
        let members = record.acceptors.iter();
        let doubts = members.filter_map(|&(node, nonce)| {
            let why = self.doubt(record, (node, nonce), until)?;
            Some(format!("{} {why}", (self.name)(node)))
        });
        let doubts: Vec<String> = doubts.collect();
        let quorum = record.configuration().quorum();
        if record.acceptors.len() - doubts.len() >= quorum {
            return Ok(());
        }
        Err(format!(
            "{quorum} of the {} acceptors of epoch {} must show that no later epoch has begun, but \
             {}",
            record.acceptors.len(),
            record.epoch,
            doubts.join("; ")
        ))
    }

    /// Returns why a member may have promised something after epoch `until`, or nothing if it shows
    /// that it hasn't.
    fn doubt(
        &self,
        record: &EpochRecord,
        (node, nonce): MemberRecord,
        until: Epoch,
    ) -> Option<String> {
        let watched = self.collected.suspicion.get(Probe::Acceptor, node);
        let answered =
            |w: &&Watched| w.memory.is_some() && w.partitions.iter().all(Option::is_some);
        let Some(watched) = watched.filter(answered) else {
            return Some("doesn't answer: start it".into());
        };
        if watched.memory != Some(nonce) {
            return Some("has lost its memory".into());
        }
        if watched.mute && !self.trusts_disks {
            return Some(
                "was started while no controller ran, and only you know whether its files are the \
                 newest: if no copy of them was put back, add --trust-disks"
                    .into(),
            );
        }
        // A stranger of an epoch that isn't active, such as the first one, is enabled by later ones
        // instead. [C-FIRST]
        if !watched.has_round() && record.state == EpochState::Active {
            return Some("isn't enabled".into());
        }
        if self.record_of(watched).is_none_or(|m| m.forgot.is_some()) {
            return Some("HAS FORGOTTEN VOTES, as the store that is left shows".into());
        }
        let epoch = watched.round().epoch();
        (epoch > until).then(|| {
            format!(
                "has promised epoch {epoch}, of which no node that answers has a record: start \
                     the others"
            )
        })
    }

    /// Returns the records of the memories that the next epoch may rely on. One that doesn't answer
    /// may come back with an old copy of its files, which nobody could tell any more; so it counts
    /// as lost if it comes back from a disk. [A-COMPARE]
    fn memories(&self, view: &View) -> Vec<MemoryRecord> {
        let mut members: Vec<MemberRecord> = needed_epochs(&view.epochs)
            .flat_map(|record| record.acceptors.iter().copied())
            .collect();
        members.sort_unstable();
        members.dedup();
        let record = |(node, nonce)| {
            let watched = self.collected.suspicion.get(Probe::Acceptor, node);
            let watched = watched.filter(|w| w.memory == Some(nonce));
            let shown = watched.and_then(|w| self.record_of(w));
            shown.unwrap_or(MemoryRecord::unseen(node, nonce))
        };
        members.into_iter().map(record).collect()
    }

    /// Returns the record of a memory that answers, compared with what the found store knows of it.
    fn record_of(&self, watched: &Watched) -> Option<MemoryRecord> {
        let shown = MemoryRecord::shown_by(watched)?;
        let mut known = self.collected.found.memories.iter();
        let known = known.find(|m| (m.node, m.nonce) == (shown.node, shown.nonce));
        Some(match known {
            Some(known) => {
                let mut known = known.clone();
                known.take(&shown, watched.mute);
                known
            }
            None => MemoryRecord::of_unknown(shown, watched.mute),
        })
    }

    fn lacks_record(&self, told: Epoch) -> String {
        let all = self.collected.suspicion.iter();
        let newest = all.max_by_key(|w| w.round().epoch());
        let (who, epoch) = newest.map_or((String::new(), 0), |w| {
            ((self.name)(w.node), w.round().epoch())
        });
        let known = match told {
            0 => "no node that answers has the record of an active epoch".to_owned(),
            told => format!("the newest record that any node has is epoch {told}'s"),
        };
        format!(
            "{who} shows epoch {epoch}, but {known}. Start all nodes, with this version of the \
             program: {}",
            self.silent()
        )
    }

    /// Returns a text that names the nodes that haven't told a view.
    fn silent(&self) -> String {
        let all = self.collected.suspicion.iter().map(|w| w.node);
        let mut silent: Vec<NodeId> = all
            .filter(|node| !self.collected.told.contains(node))
            .collect();
        silent.sort_unstable();
        silent.dedup();
        let silent: Vec<String> = silent.into_iter().map(self.name).collect();
        match silent.is_empty() {
            true => "all have answered".into(),
            false => format!("no record came from {}", silent.join(", ")),
        }
    }
}
