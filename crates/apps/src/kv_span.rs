// SPDX-License-Identifier: Apache-2.0
//! Commands of the language over several partitions: MGET, EXISTS, DEL, MSET and WATCH of keys in
//! several partitions, EXEC of commands on such keys, and DBSIZE.
//!
//! Each partition prepares the answer for its own keys, and the lowest partition combines the
//! answers. The change in each partition is again a command of the language.

use paxos::PartitionId;
use replica::{Error, Part, slot};

use crate::contents::Contents;
use crate::kv::{self, Command, MAX_REPLY_LEN, MAX_SPANNING_LEN, Pair, Refusal, Reply};
use crate::kv_exec;
use crate::strings::InHand;

/// The share of a group's keys that a partition has.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// The partition.
    pub pid: PartitionId,
    /// The number of partitions of the group.
    pub partitions: u16,
}

impl Share {
    /// The share of a single partition, which has all keys.
    pub const ALL: Share = Share {
        pid: 0,
        partitions: 1,
    };

    fn partition_of(self, key: &[u8]) -> PartitionId {
        slot::partition_of(key, self.partitions)
    }
}

/// Appends what one partition answers for its own keys, and changes nothing.
pub(crate) fn prepare(
    contents: &mut Contents,
    share: Share,
    command: &[u8],
    prepared: &mut Vec<u8>,
) -> Result<(), Error> {
    let own = Command::parse(command)
        .ok()
        .and_then(|c| part(&c, share, share.pid));
    let question = match own {
        // DEL answers with the number of keys that it will delete.
        Some(Command::Del { mut keys }) => {
            keys.sort_unstable();
            keys.dedup();
            Command::Exists { keys }
        }
        // These are the versions that the keys get when this is applied, since nothing comes in
        // between.
        Some(Command::Watch { keys }) => {
            let versions = contents.versions(&keys).into_iter();
            let versions = versions.map(|version| Reply::Int(version as i64));
            Reply::Array(versions.collect()).encode(prepared);
            return Ok(());
        }
        Some(Command::Exec { watched, commands }) => {
            return prepare_exec(contents, &watched, &own_keys(&commands, share), prepared);
        }
        // MSET asks nothing before it sets, and an invalid command is refused when the answers are
        // combined.
        Some(Command::Mset { .. }) | None => return Ok(()),
        Some(reads) => reads,
    };
    let mut bytes = Vec::new();
    question
        .encode(&mut bytes)
        .expect("parts of a command are no longer");
    // What is prepared decides about effects, so it has the same limit everywhere.
    kv_exec::execute(contents, &bytes, MAX_REPLY_LEN, prepared)
}

/// Combines the partitions' answers into one, and fills in each partition's effect.
pub(crate) fn combine(share: Share, command: &[u8], parts: &mut [Part], out: &mut Vec<u8>) {
    let refused = Reply::Error(Refusal::Malformed);
    let Some(command) = Command::parse(command)
        .ok()
        .filter(|c| fits(c, share, parts))
    else {
        return refused.encode(out);
    };
    match &command {
        Command::Mget { keys } => return merge(share, keys, parts, out),
        Command::Watch { keys } => merge(share, keys, parts, out),
        Command::Exec { commands, .. } => return combine_exec(share, commands, parts, out),
        Command::Mset { .. } => Reply::Ok.encode(out),
        _ => match sum(parts) {
            Some(sum) => Reply::Int(sum).encode(out),
            None => return refused.encode(out),
        },
    }
    if !command.is_read() {
        for of in parts {
            if let Some(own) = part(&command, share, of.pid) {
                let encoded = own.encode(&mut of.effect);
                encoded.expect("parts of a command are no longer");
            }
        }
    }
}

/// Returns one partition's part of a command over several partitions. `None` if the partition has
/// no part, or if it isn't such a command.
fn part<'a>(command: &Command<'a>, share: Share, pid: PartitionId) -> Option<Command<'a>> {
    let is_own = |key: &[u8]| share.partition_of(key) == pid;
    let own_keys = |keys: &[&'a [u8]]| -> Option<Vec<&'a [u8]>> {
        let own: Vec<_> = keys.iter().copied().filter(|key| is_own(key)).collect();
        (!own.is_empty()).then_some(own)
    };
    Some(match command {
        Command::Mget { keys } => Command::Mget {
            keys: own_keys(keys)?,
        },
        Command::Exists { keys } => Command::Exists {
            keys: own_keys(keys)?,
        },
        Command::Del { keys } => Command::Del {
            keys: own_keys(keys)?,
        },
        Command::Mset { pairs } => {
            let own: Vec<Pair<'a>> = pairs
                .iter()
                .copied()
                .filter(|(key, _)| is_own(key))
                .collect();
            Command::Mset {
                pairs: (!own.is_empty()).then_some(own)?,
            }
        }
        Command::Watch { keys } => Command::Watch {
            keys: own_keys(keys)?,
        },
        // The commands are executed on the keys of all partitions together.
        Command::Exec { watched, commands } => Command::Exec {
            watched: watched
                .iter()
                .copied()
                .filter(|(key, _)| is_own(key))
                .collect(),
            commands: commands.clone(),
        },
        Command::Dbsize => Command::Dbsize,
        _ => return None,
    })
}

/// Returns whether a command may be over several partitions, and each of its keys is in one of
/// these.
fn fits(command: &Command<'_>, share: Share, parts: &[Part]) -> bool {
    let here = |key: &[u8]| {
        let pid = share.partition_of(key);
        parts.iter().any(|part| part.pid == pid)
    };
    let spans = matches!(
        command,
        Command::Mget { .. }
            | Command::Exists { .. }
            | Command::Del { .. }
            | Command::Mset { .. }
            | Command::Watch { .. }
            | Command::Exec { .. }
            | Command::Dbsize
    );
    spans && command.keys().into_iter().all(here)
}

/// Returns the keys of one partition that a transaction's commands name, each once.
fn own_keys<'a>(commands: &[Command<'a>], share: Share) -> Vec<&'a [u8]> {
    let named = commands.iter().flat_map(Command::keys);
    let mut own: Vec<_> = named
        .filter(|key| share.partition_of(key) == share.pid)
        .collect();
    own.sort_unstable();
    own.dedup();
    own
}

/// Appends nil if a watched key has another version, otherwise the values of `keys`.
fn prepare_exec(
    contents: &mut Contents,
    watched: &[(&[u8], u64)],
    keys: &[&[u8]],
    prepared: &mut Vec<u8>,
) -> Result<(), Error> {
    if !contents.has_versions(watched) {
        Reply::Nil.encode(prepared);
        return Ok(());
    }
    for key in keys {
        let len = contents.look(key, |held| held.map_or(0, |held| held.len()))?;
        if len > MAX_SPANNING_LEN {
            Reply::Error(Refusal::TransactionTooLarge).encode(prepared);
            return Ok(());
        }
    }
    let mget = Command::Mget {
        keys: keys.to_vec(),
    };
    kv_exec::execute_all(contents, &[mget], MAX_REPLY_LEN, prepared)
}

/// Executes a transaction on the values that the partitions have prepared. The changed values
/// become each partition's effect.
fn combine_exec(share: Share, commands: &[Command<'_>], parts: &mut [Part], out: &mut Vec<u8>) {
    let mut in_hand = InHand::default();
    for part in parts.iter() {
        let of = Share {
            pid: part.pid,
            ..share
        };
        match Reply::parse(&part.prepared) {
            // A key was changed since it was watched.
            Ok(Reply::Nil) => return Reply::Nil.encode(out),
            Ok(Reply::Array(shown)) => {
                let Some(Reply::Array(values)) = shown.first() else {
                    return Reply::Error(Refusal::TransactionTooLarge).encode(out);
                };
                for (key, value) in own_keys(commands, of).into_iter().zip(values) {
                    in_hand.add(
                        key,
                        match value {
                            Reply::Bulk(value) => Some(value),
                            _ => None,
                        },
                    );
                }
            }
            Ok(refused @ Reply::Error(_)) => return refused.encode(out),
            _ => return Reply::Error(Refusal::Malformed).encode(out),
        }
    }
    let start = out.len();
    let executed = kv_exec::execute_all(&mut in_hand, commands, MAX_REPLY_LEN, out);
    if executed.is_err() || in_hand.is_too_large {
        out.truncate(start);
        return Reply::Error(Refusal::TransactionTooLarge).encode(out);
    }
    for part in parts {
        let own = |key: &[u8]| share.partition_of(key) == part.pid;
        let (mut pairs, mut gone) = (Vec::new(), Vec::new());
        for (key, value) in in_hand.changes().filter(|(key, _)| own(key)) {
            match value {
                Some(value) => pairs.push((key, value)),
                None => gone.push(key),
            }
        }
        let set = (!pairs.is_empty()).then_some(Command::Mset { pairs });
        let removed = (!gone.is_empty()).then_some(Command::Del { keys: gone });
        let commands: Vec<_> = set.into_iter().chain(removed).collect();
        if !commands.is_empty() {
            let effect = Command::Exec {
                watched: Vec::new(),
                commands,
            };
            let encoded = effect.encode(&mut part.effect);
            encoded.expect("values are no longer than a length says");
        }
    }
}

/// Returns the sum of the partitions' numbers; a partition without a key has none.
fn sum(parts: &[Part]) -> Option<i64> {
    let number = |part: &Part| match (part.prepared.as_slice(), Reply::parse(&part.prepared)) {
        ([], _) => Some(0),
        (_, Ok(Reply::Int(n))) => Some(n),
        _ => None,
    };
    parts.iter().map(number).sum()
}

/// Appends the values of all keys, in the order of the command.
fn merge(share: Share, keys: &[&[u8]], parts: &[Part], out: &mut Vec<u8>) {
    let start = out.len();
    let mut values = Vec::new();
    for part in parts {
        match Reply::parse(&part.prepared) {
            Ok(Reply::Array(found)) => values.push((part.pid, found.into_iter())),
            // The answer of that partition alone is too large already.
            Ok(refused @ Reply::Error(_)) => return refused.encode(out),
            _ => {}
        }
    }
    kv::put_array_header(out, keys.len());
    for key in keys {
        let pid = share.partition_of(key);
        let of = values.iter_mut().find(|(of, _)| *of == pid);
        let Some(value) = of.and_then(|(_, values)| values.next()) else {
            out.truncate(start);
            return Reply::Error(Refusal::Malformed).encode(out);
        };
        value.encode(out);
        if out.len() - start > MAX_REPLY_LEN {
            out.truncate(start);
            return Reply::Error(Refusal::ReplyTooLarge).encode(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHARE: Share = Share {
        pid: 0,
        partitions: 4,
    };

    /// Combines the partitions' parts of a command; `foo` is in partition 2, `bar` in 1, `hello` in
    /// 0.
    fn combined(command: &Command<'_>, pids: &[PartitionId]) -> (Vec<Part>, Vec<u8>) {
        let mut bytes = Vec::new();
        command.encode(&mut bytes).unwrap();
        let part = |pid: &PartitionId| Part {
            pid: *pid,
            ..Part::default()
        };
        let (mut parts, mut out) = (pids.iter().map(part).collect::<Vec<_>>(), Vec::new());
        combine(SHARE, &bytes, &mut parts, &mut out);
        (parts, out)
    }

    fn is_refused((parts, out): (Vec<Part>, Vec<u8>)) -> bool {
        let unchanged = parts.iter().all(|part| part.effect.is_empty());
        unchanged && Reply::parse(&out) == Ok(Reply::Error(Refusal::Malformed))
    }

    #[test]
    fn what_names_a_key_of_another_partition_or_is_no_such_command_changes_nothing() {
        let pairs = vec![(&b"foo"[..], &b"1"[..]), (b"bar", b"2")];
        assert!(!is_refused(combined(
            &Command::Mset {
                pairs: pairs.clone()
            },
            &[1, 2]
        )));
        assert!(is_refused(combined(&Command::Mset { pairs }, &[0, 2])));
        let keys = vec![&b"foo"[..], b"bar"];
        assert!(is_refused(combined(&Command::Del { keys }, &[1, 3])));
        assert!(is_refused(combined(&Command::Get { key: b"foo" }, &[1, 2])));
        let keys = vec![&b"foo"[..]];
        // No partition has prepared anything.
        assert!(is_refused(combined(&Command::Mget { keys }, &[1, 2])));
        let mut out = Vec::new();
        combine(SHARE, b"\xff", &mut [], &mut out);
        assert_eq!(Reply::parse(&out), Ok(Reply::Error(Refusal::Malformed)));
    }

    #[test]
    fn each_partition_gets_its_own_keys_in_their_order() {
        let pairs = vec![
            (&b"foo"[..], &b"1"[..]),
            (b"bar", b"2"),
            (b"{foo}x", b"3"),
            (b"foo", b"4"),
        ];
        let (parts, out) = combined(&Command::Mset { pairs }, &[0, 1, 2]);
        assert_eq!(Reply::parse(&out), Ok(Reply::Ok));
        assert!(parts[0].effect.is_empty());
        let effect = |at: usize| Command::parse(&parts[at].effect).unwrap();
        let of = |pairs| Command::Mset { pairs };
        assert_eq!(effect(1), of(vec![(b"bar", b"2")]));
        let foo = vec![(&b"foo"[..], &b"1"[..]), (b"{foo}x", b"3"), (b"foo", b"4")];
        assert_eq!(effect(2), of(foo));
    }
}
