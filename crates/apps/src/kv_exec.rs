// SPDX-License-Identifier: Apache-2.0
//! Executes the command language on the contents of a store.

use replica::Error;

use crate::contents::{Contents, StoredKeys};
use crate::glob;
use crate::kv::{self, Command, MAX_REPLY_LEN, Refusal, Reply, SetFlags};
use crate::strings::Strings;

/// Executes one command and appends the answer, of at most `most` bytes. The effect depends on the
/// command and the contents alone, whether or not these are committed yet; a refused command
/// changes nothing.
pub(crate) fn execute(
    contents: &mut Contents,
    command: &[u8],
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let Ok(command) = Command::parse(command) else {
        Reply::Error(Refusal::Malformed).encode(out);
        return Ok(());
    };
    match command {
        Command::Scan {
            count,
            from,
            pattern,
        } => scan(count, pattern, most, out, |visit| {
            contents.walk(from, |place, key, _| visit(place, key))
        })?,
        Command::Dbsize => Reply::Int(contents.count() as i64).encode(out),
        Command::Watch { keys } => {
            kv::put_array_header(out, keys.len());
            for key in keys {
                Reply::Int(contents.watch(key) as i64).encode(out);
            }
        }
        Command::Exec { watched, commands } => {
            if !contents.has_versions(&watched) {
                Reply::Nil.encode(out);
                return Ok(());
            }
            execute_all(contents, &commands, most, out)?;
        }
        command => execute_on(contents, &command, most, out)?,
    }
    Ok(())
}

/// Executes the commands of a transaction, and appends the array of their answers. A refused
/// command changes nothing; the others take effect.
pub(crate) fn execute_all(
    strings: &mut impl Strings,
    commands: &[Command<'_>],
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    kv::put_array_header(out, commands.len());
    for command in commands {
        let own = out.len();
        // A read isn't executed if its answer would be dropped.
        if command.is_read() && is_beyond(strings, command, own - start, most)? {
            Reply::Error(Refusal::ReplyTooLarge).encode(out);
            continue;
        }
        execute_on(strings, command, most, out)?;
        // The limit holds for all answers together.
        if out.len() - start > most {
            out.truncate(own);
            Reply::Error(Refusal::ReplyTooLarge).encode(out);
        }
    }
    Ok(())
}

/// Returns whether a read's answer would exceed the limit for all answers together, of which `used`
/// bytes are taken. Only lengths are looked at.
fn is_beyond(
    strings: &mut impl Strings,
    command: &Command<'_>,
    used: usize,
    most: usize,
) -> Result<bool, Error> {
    let keys = match command {
        Command::Get { key } => std::slice::from_ref(key),
        Command::Mget { keys } => keys,
        _ => return Ok(used > most),
    };
    let mut len = used;
    for key in keys {
        if len > most {
            return Ok(true);
        }
        len += strings.len(key)?;
    }
    Ok(len > most)
}

/// Executes a command that names its keys.
fn execute_on(
    contents: &mut impl Strings,
    command: &Command<'_>,
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    match *command {
        Command::Get { key } => {
            let start = out.len();
            answer_with(contents, key, out)?;
            refuse_if_large(out, start, most);
        }
        Command::Set { flags, key, value } => {
            let start = out.len();
            set(contents, flags, key, value, out)?;
            refuse_if_large(out, start, most);
        }
        Command::Del { ref keys } => {
            let deleted = count_keys(keys, |key| contents.remove(key))?;
            Reply::Int(deleted).encode(out);
        }
        Command::Exists { ref keys } => {
            let found = count_keys(keys, |key| contents.exists(key))?;
            Reply::Int(found).encode(out);
        }
        Command::Mget { ref keys } => mget(contents, keys, most, out)?,
        Command::Mset { ref pairs } => {
            for (key, value) in pairs {
                contents.put(key, value)?;
            }
            Reply::Ok.encode(out);
        }
        Command::IncrBy { key, delta } => increment(contents, key, delta, out)?,
        Command::Append { key, value } => append(contents, key, value, out)?,
        Command::Strlen { key } => {
            Reply::Int(contents.len(key)? as i64).encode(out);
        }
        Command::GetDel { key } => {
            let start = out.len();
            if answer_with(contents, key, out)? {
                contents.remove(key)?;
            }
            refuse_if_large(out, start, most);
        }
        Command::Scan { .. } | Command::Dbsize | Command::Watch { .. } | Command::Exec { .. } => {
            Reply::Error(Refusal::Malformed).encode(out);
        }
    }
    Ok(())
}

/// Answers with a key's value, however it is stored. Returns false if there is none.
fn answer_with(contents: &mut impl Strings, key: &[u8], out: &mut Vec<u8>) -> Result<bool, Error> {
    let start = out.len();
    Reply::Bulk(&[]).encode(out);
    let found = contents.read(key, |part| out.extend_from_slice(part))?;
    if found {
        kv::end_bulk(&mut out[start..]);
    } else {
        out.truncate(start);
        Reply::Nil.encode(out);
    }
    Ok(found)
}

fn set(
    contents: &mut impl Strings,
    flags: SetFlags,
    key: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let conditional = flags.if_absent || flags.if_present;
    let existed = if flags.get {
        answer_with(contents, key, out)?
    } else {
        conditional && contents.exists(key)?
    };
    let holds = !(flags.if_absent && existed || flags.if_present && !existed);
    if holds {
        contents.put(key, value)?;
    }
    match (flags.get, flags.answer_int, holds) {
        (true, ..) => {}
        (_, true, _) => Reply::Int(i64::from(holds)).encode(out),
        (_, _, true) => Reply::Ok.encode(out),
        (_, _, false) => Reply::Nil.encode(out),
    }
    Ok(())
}

fn count_keys(
    keys: &[&[u8]],
    mut counts: impl FnMut(&[u8]) -> Result<bool, Error>,
) -> Result<i64, Error> {
    keys.iter()
        .try_fold(0, |sum, key| Ok(sum + i64::from(counts(key)?)))
}

fn mget(
    contents: &mut impl Strings,
    keys: &[&[u8]],
    most: usize,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    kv::put_array_header(out, keys.len());
    for key in keys {
        answer_with(contents, key, out)?;
        if refuse_if_large(out, start, most) {
            break;
        }
    }
    Ok(())
}

/// Replaces an answer that began at `start` and has grown too long, and returns whether it has.
fn refuse_if_large(out: &mut Vec<u8>, start: usize, most: usize) -> bool {
    let large = out.len() - start > most;
    if large {
        out.truncate(start);
        Reply::Error(Refusal::ReplyTooLarge).encode(out);
    }
    large
}

fn increment(
    contents: &mut impl Strings,
    key: &[u8],
    delta: i64,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let number = contents.number(key)?;
    let answer = match number.map(|number| number.checked_add(delta)) {
        None => Reply::Error(Refusal::NotAnInteger),
        Some(None) => Reply::Error(Refusal::Overflow),
        Some(Some(sum)) => {
            contents.put(key, sum.to_string().as_bytes())?;
            Reply::Int(sum)
        }
    };
    answer.encode(out);
    Ok(())
}

fn append(
    contents: &mut impl Strings,
    key: &[u8],
    tail: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let answer = match contents.append(key, tail)? {
        Some(len) => Reply::Int(len as i64),
        None => Reply::Error(Refusal::StringTooLong),
    };
    answer.encode(out);
    Ok(())
}

/// Executes a SCAN on the keys of one moment, and refuses any other command.
pub(crate) fn read(keys: &mut StoredKeys, command: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
    let most = MAX_REPLY_LEN;
    match Command::parse(command) {
        Ok(Command::Scan {
            count,
            from,
            pattern,
        }) => scan(count, pattern, most, out, |visit| keys.walk(from, visit)),
        _ => {
            Reply::Error(Refusal::Malformed).encode(out);
            Ok(())
        }
    }
}

/// Answers a SCAN. `walk` shows places and keys in order, as long as its visitor returns true.
fn scan(
    count: u32,
    pattern: Option<&[u8]>,
    most: usize,
    out: &mut Vec<u8>,
    walk: impl FnOnce(&mut dyn FnMut(u64, &[u8]) -> bool) -> Result<(), Error>,
) -> Result<(), Error> {
    let start = out.len();
    let mut found = Vec::new();
    let (mut found_count, mut looked_at) = (0, 0);
    let (mut last, mut next) = (None, None);
    walk(&mut |place, key| {
        // All keys of a place are returned together, since the next call begins at another place.
        if looked_at >= count.max(1) && last != Some(place) {
            next = Some(place);
            return false;
        }
        looked_at = looked_at.saturating_add(1);
        last = Some(place);
        if pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            Reply::Bulk(key).encode(&mut found);
            found_count += 1;
        }
        found.len() <= most
    })?;
    kv::put_array_header(out, 2);
    let next = next.map(|place| Reply::Int(place as i64));
    next.unwrap_or(Reply::Nil).encode(out);
    kv::put_array_header(out, found_count);
    out.extend_from_slice(&found);
    refuse_if_large(out, start, most);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each key has a value of `len` bytes; `read` counts the bytes that are read.
    struct Counting {
        len: usize,
        read: usize,
    }

    impl Strings for Counting {
        fn read(&mut self, _key: &[u8], mut show: impl FnMut(&[u8])) -> Result<bool, Error> {
            self.read += self.len;
            show(&vec![b'x'; self.len]);
            Ok(true)
        }

        fn len(&mut self, _key: &[u8]) -> Result<usize, Error> {
            Ok(self.len)
        }

        fn exists(&mut self, _key: &[u8]) -> Result<bool, Error> {
            Ok(true)
        }

        fn number(&mut self, _key: &[u8]) -> Result<Option<i64>, Error> {
            Ok(None)
        }

        fn put(&mut self, _key: &[u8], _value: &[u8]) -> Result<(), Error> {
            Ok(())
        }

        fn remove(&mut self, _key: &[u8]) -> Result<bool, Error> {
            Ok(true)
        }

        fn append(&mut self, _key: &[u8], _tail: &[u8]) -> Result<Option<usize>, Error> {
            Ok(None)
        }
    }

    #[test]
    fn a_transaction_reads_no_more_than_its_answers_may_have() {
        let len = 16 << 20;
        for many in [
            Command::Get { key: b"k" },
            Command::Mget {
                keys: vec![b"k"; 5],
            },
        ] {
            let mut strings = Counting { len, read: 0 };
            let mut commands = vec![many; 400];
            commands.push(Command::Set {
                flags: SetFlags::default(),
                key: b"k",
                value: b"v",
            });
            let mut out = Vec::new();
            execute_all(&mut strings, &commands, MAX_REPLY_LEN, &mut out).unwrap();
            assert!(strings.read <= MAX_REPLY_LEN, "{} bytes", strings.read);
            let mut ok = Vec::new();
            Reply::Ok.encode(&mut ok);
            assert!(out.ends_with(&ok), "what writes is executed nevertheless");
        }
    }
}
