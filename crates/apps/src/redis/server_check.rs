// SPDX-License-Identifier: Apache-2.0
//! Keeps a replica whose server isn't the [agreed](super::agreed_server) one from executing what
//! the others execute differently.
//!
//! ```text
//!  the server is ─┬─ the agreed one ─────────────────────> executes
//!                 ├─ another one that knows its commands ─> executes those alone, and warns
//!                 └─ unfit ─┬──────────────────────────────> the replica ends with an error
//!                           └─ an operator's order is there -> executes, and warns
//! ```

use std::fs;
use std::io;
use std::path::Path;

use replica::Error;

use super::fingerprint::{Difference, Fingerprint, listed};
use super::resp::put_error;
use super::saves::Purpose;
use super::state::{MALFORMED, Replicated};

/// The file in a partition's directory that is an operator's order to execute with an unfit server.
const ORDER: &str = "accept-server";

/// Orders the replica with this partition's directory to execute with an unfit server. The order
/// holds until the process begins with contents for which its server is fit.
pub fn accept(dir: &Path) -> io::Result<()> {
    fs::write(dir.join(ORDER), "by `wirepaxos accept-server`\n")
}

/// Returns an error if a server must not execute anything in a group that has agreed on another
/// one.
pub(super) fn check(dir: &Path, own: &Fingerprint, agreed: &Fingerprint) -> Result<(), Error> {
    let Difference { unfit, .. } = own.difference(agreed);
    if unfit.is_empty() || dir.join(ORDER).exists() {
        return Ok(());
    }
    Err(Error(format!(
        "the Redis server for {} would execute the group's commands differently, so nothing is \
         executed with it: {}. Install the group's server, {}, and start this replica again; if no \
         replica of the group has that one any more, see `wirepaxos accept-server --help`",
        dir.display(),
        unfit.join("; "),
        agreed.named()
    )))
}

impl Replicated {
    /// Ends an operator's order if the contents with which this process begins don't need it. Until
    /// then a restart could begin with older contents that do.
    pub(super) fn end_order(&self) {
        let own = &self.server.fingerprint;
        let fits = |agreed: &Fingerprint| own.difference(agreed).unfit.is_empty();
        if self.agreed.server.as_ref().is_some_and(fits) {
            // It may not be there.
            let _ = fs::remove_file(self.dir.join(ORDER));
        }
    }

    /// Takes a replica's report of its server.
    pub(super) fn hear_of_server(
        &mut self,
        node: u16,
        members: &[u16],
        fingerprint: &[u8],
        reply: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let Ok(server) = Fingerprint::parse(fingerprint) else {
            put_error(reply, MALFORMED);
            return Ok(());
        };
        self.note_command();
        self.comparison.begins_again(node);
        match self.agreed.report(node, members, server) {
            true => self.follow_agreed(),
            false => Ok(()),
        }
    }

    /// Compares the server with the agreed one. If other commands are refused from now on, the
    /// server is replaced by one that refuses them in scripts, too.
    pub(super) fn follow_agreed(&mut self) -> Result<(), Error> {
        let Some(agreed) = &self.agreed.server else {
            return Ok(());
        };
        let own = &self.server.fingerprint;
        check(&self.dir, own, agreed)?;
        let difference = own.difference(agreed);
        let unagreed = self.catalogue.specs().filter(|spec| spec.is_unagreed);
        let mut refused: Vec<&str> = unagreed.map(|spec| spec.name.as_str()).collect();
        refused.sort_unstable();
        let is_current = difference.unagreed == refused;
        self.remarks = Some(remarks(&difference));
        match is_current {
            true => Ok(()),
            false => self.replace_server(),
        }
    }

    /// Replaces the server by one with the same contents. What was given to the old one isn't given
    /// to the new one, which could execute it differently.
    fn replace_server(&mut self) -> Result<(), Error> {
        if self.replay_log.requests().next().is_some() {
            self.await_saved()?;
            self.begin_save(Purpose::Base)?;
            self.await_saved()?;
        }
        self.revive()
    }
}

/// Says to an operator how a server that executes differs from the agreed one.
fn remarks(difference: &Difference) -> Vec<String> {
    let Difference {
        unfit,
        tolerated,
        unagreed,
    } = difference;
    let mut remarks = Vec::new();
    if !unfit.is_empty() {
        remarks.push(format!(
            "by an operator's order it executes with a Redis server that may execute commands \
             differently: {}",
            unfit.join("; ")
        ));
    }
    if !tolerated.is_empty() {
        remarks.push(format!(
            "its Redis server isn't the group's: {}; the group takes it once all replicas have it",
            tolerated.join("; ")
        ));
    }
    if !unagreed.is_empty() {
        remarks.push(format!(
            "commands that not every replica's Redis server has are refused until all have them: \
             {}",
            listed(unagreed)
        ));
    }
    remarks
}
