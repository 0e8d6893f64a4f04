// SPDX-License-Identifier: Apache-2.0
//! Keeps beside a partition's store the commands that have made this replica's program crash, which
//! it never executes, whatever happens later. Other replicas rely on that, so it is on disk before
//! anybody is told. [X-DIED]

use std::path::{Path, PathBuf};

use paxos::Instance;
use replica::protocol::CommandPlace;
use replica::storage::{CheckpointFile, Storage};
use replica::{Agreement, Application, MOVE_AWAY, Worker};
use serde_json::{Value, json};
use tracing::{error, warn};

use crate::document::other_format;

/// The first bytes of the file, which name its kind and format.
const MAGIC: &[u8; 8] = b"WPXDIED\x01";

/// A command that is never executed here. `is_ordered` means that an operator has ordered that it
/// takes no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promise {
    pub place: CommandPlace,
    pub is_ordered: bool,
}

const LEN: usize = CommandPlace::LEN + 1;

/// The promises of a partition.
pub struct Promises {
    path: PathBuf,
}

impl Promises {
    /// Returns the promises of the partition in `directory`.
    pub fn new(directory: &Path) -> Promises {
        Promises {
            path: directory.join("died"),
        }
    }

    /// Returns the promises that aren't below `next`, since commands below were passed, and all
    /// that were ordered.
    pub fn read(&self, next: Instance) -> Result<Vec<Promise>, replica::Error> {
        let mut all = self.load()?;
        all.retain(|promise| promise.is_ordered || promise.place.inst >= next);
        Ok(all)
    }

    /// Notes a promise durably.
    pub fn note(&self, place: CommandPlace, is_ordered: bool) -> Result<(), replica::Error> {
        let mut all = self.load()?;
        match all.iter_mut().find(|promise| promise.place == place) {
            Some(known) if known.is_ordered || !is_ordered => return Ok(()),
            Some(known) => known.is_ordered = true,
            None => all.push(Promise { place, is_ordered }),
        }
        self.write(&all)
    }

    /// Notes a promise when the process ends. If that fails, the next process crashes on the
    /// command again.
    pub fn note_death(&self, place: CommandPlace) {
        let CommandPlace { inst, index } = place;
        match self.note(place, false) {
            Ok(()) => error!(
                instance = inst,
                index,
                "the program has died of this command twice; this replica never executes it, and \
                 says so when it starts again"
            ),
            Err(e) => error!("can't note of which command the program has died: {e}"),
        }
    }

    fn write(&self, all: &[Promise]) -> Result<(), replica::Error> {
        let mut bytes = MAGIC.to_vec();
        for promise in all {
            bytes.extend_from_slice(&promise.place.emit());
            bytes.push(promise.is_ordered.into());
        }
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_be_bytes());
        let written = CheckpointFile::new(&self.path).replace(&bytes);
        written.map_err(|e| replica::Error(e.to_string()))
    }

    fn load(&self) -> Result<Vec<Promise>, replica::Error> {
        let bytes = CheckpointFile::new(&self.path).load();
        let Some(bytes) = bytes.map_err(|e| replica::Error(e.to_string()))? else {
            return Ok(Vec::new());
        };
        if let Some(why) = other_format(&bytes, MAGIC) {
            let path = self.path.display();
            return Err(replica::Error(format!("{path}: {why}; or {MOVE_AWAY}")));
        }
        parse(&bytes).ok_or_else(|| {
            let path = self.path.display();
            replica::Error(format!(
                "{path} is damaged, so this replica can't tell which commands it has promised \
                 never to execute: {MOVE_AWAY}"
            ))
        })
    }
}

fn parse(bytes: &[u8]) -> Option<Vec<Promise>> {
    let (noted, sum) = bytes.split_last_chunk()?;
    if crc32fast::hash(noted) != u32::from_be_bytes(*sum) {
        return None;
    }
    let one = |bytes: &[u8]| {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let (is_ordered, place) = bytes.split_last()?;
        Some(Promise {
            place: CommandPlace::parse(place.try_into().ok()?),
            is_ordered: *is_ordered == 1,
        })
    };
    noted.strip_prefix(MAGIC)?.chunks(LEN).map(one).collect()
}

/// The events of a partition that were logged, so that each is logged once.
#[derive(Default)]
pub struct Noticed {
    waits_at: Option<CommandPlace>,
    voided: Option<CommandPlace>,
    contradicted: Option<CommandPlace>,
}

impl Noticed {
    /// Logs the changes.
    pub fn tell<A: Application, G: Agreement>(&mut self, worker: &Worker<A, G>) {
        let waits_at = worker.execution().waits_at();
        if waits_at != self.waits_at {
            if let Some(deadly) = worker.deadly().filter(|_| waits_at.is_some()) {
                let CommandPlace { inst, index } = deadly.place;
                warn!(
                    instance = inst,
                    index,
                    command = deadly.command,
                    "waits in front of a command of which the program has died, until another \
                     replica's state comes that has passed it, or all replicas have died of it"
                );
            }
            self.waits_at = waits_at;
        }
        let voided = worker.execution().voided().last();
        if voided != self.voided {
            if let Some(CommandPlace { inst, index }) = voided {
                warn!(
                    instance = inst,
                    index, "a command of which programs die takes no effect"
                );
            }
            self.voided = voided;
        }
        let contradicted = worker.execution().contradicted();
        if let Some(place) = contradicted.filter(|_| contradicted != self.contradicted) {
            error!("{}", contradiction(place));
        }
        self.contradicted = contradicted;
    }
}

/// Returns the place of the command that an operator orders to take no effect, or why it can't be
/// that command.
pub fn ordered<A: Application, G: Agreement>(
    worker: &Worker<A, G>,
    inst: Instance,
) -> Result<CommandPlace, String> {
    match worker.execution().waits_at() {
        Some(place) if place.inst == inst => Ok(place),
        Some(place) => Err(format!("this replica waits in front of {}", place.inst)),
        None => Err("this replica waits in front of no command".into()),
    }
}

fn contradiction(place: CommandPlace) -> String {
    let CommandPlace { inst, index } = place;
    format!(
        "command {index} of instance {inst} was executed here, and takes no effect at other \
         replicas by an operator's order: this replica's state differs; {MOVE_AWAY}"
    )
}

/// Returns the warning for `status` that an operator should see first.
pub fn warning<A: Application, G: Agreement>(worker: &Worker<A, G>) -> Option<String> {
    if let Some(place) = worker.execution().contradicted() {
        return Some(contradiction(place));
    }
    let deadly = worker.deadly()?;
    let CommandPlace { inst, index } = deadly.place;
    Some(format!(
        "waits in front of command {index} of instance {inst} ({}), of which its program has died, \
         as have those of replicas {:?}; it goes on once it has the state of a replica that has \
         passed it, or all replicas have died of it; if one is gone for good, see `wirepaxos skip \
         --help`",
        deadly.command, deadly.promised,
    ))
}

/// Returns the command before which the partition waits, for `status`.
pub fn deadly_to_json<A: Application, G: Agreement>(worker: &Worker<A, G>) -> Value {
    worker.deadly().map_or(Value::Null, |deadly| {
        json!({
            "instance": deadly.place.inst,
            "index": deadly.place.index,
            "command": deadly.command,
            "died": deadly.promised,
        })
    })
}

/// Returns the last commands that took no effect, for `status`.
pub fn voided_to_json<A: Application, G: Agreement>(worker: &Worker<A, G>) -> Value {
    let place = |at: CommandPlace| json!({ "instance": at.inst, "index": at.index });
    worker.execution().voided().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_dir::TestDir;

    /// Promises stay until they are passed, and damage is noticed. [X-DIED]
    #[test]
    fn promises_are_there_until_they_are_passed_and_damage_is_noticed() {
        let dir = TestDir::new();
        let promises = Promises::new(dir.path());
        let of = |(inst, index, is_ordered)| Promise {
            place: CommandPlace { inst, index },
            is_ordered,
        };
        let all = [(7, 0, false), (7, 3, true), (900, 1, false)].map(of);
        assert_eq!(promises.read(0).unwrap(), []);
        for Promise { place, is_ordered } in all {
            promises.note(place, false).unwrap();
            promises.note(place, is_ordered).unwrap();
            promises.note(place, false).unwrap();
        }
        assert_eq!(promises.read(7).unwrap(), all);
        assert_eq!(promises.read(8).unwrap(), all[1..]);
        let path = dir.path().join("died");
        let whole = std::fs::read(&path).unwrap();
        for bit in 0..whole.len() * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, bytes).unwrap();
            assert!(promises.read(0).is_err(), "bit {bit}");
        }
    }
}
