// SPDX-License-Identifier: Apache-2.0
//! The list of the members' changes, which the first group's state keeps.

use super::GroupControl;
use crate::members::NOT_THE_LAST;
use crate::{MemberChange, Store};
use paxos::GroupId;

impl GroupControl {
    pub fn id(&self) -> GroupId {
        self.settings.id
    }

    /// Appends changes to the first `known` ones, and returns how many there are then. A repeated
    /// order changes nothing. [E-CHANGES]
    pub fn change_members(
        &mut self,
        known: usize,
        changes: &[MemberChange],
        store: &mut impl Store,
    ) -> Result<usize, String> {
        let members = &self.state.members;
        let behind = members.get(known..).unwrap_or_default();
        if !behind.is_empty() && behind.starts_with(changes) {
            return Ok(known + changes.len());
        }
        let mut refused = None;
        let changed = self.change(store, |state| {
            let appended = state.append_members(known, changes);
            appended.inspect_err(|why| refused = Some(*why))
        });
        match (changed, refused) {
            (Ok(()), _) => Ok(self.state.members.len()),
            (Err(()), Some(crate::Refused::OutOfOrder)) => Err(NOT_THE_LAST.to_owned()),
            (Err(()), Some(why)) => Err(why.to_string()),
            (Err(()), None) => {
                let why = self.store_trouble.as_deref().unwrap_or("try again");
                Err(format!("the change can't be stored: {why}"))
            }
        }
    }
}
