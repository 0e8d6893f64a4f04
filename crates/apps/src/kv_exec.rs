//! Executes the command language on the contents of a store.

use replica::Error;

use crate::contents::Contents;
use crate::glob;
use crate::kv::{self, Command, MAX_REPLY_LEN, MAX_STRING_LEN, Refusal, Reply, SetFlags};

/// Executes one command and appends the answer. Deterministic: what is committed and what still
/// waits makes no difference. A refused command changes nothing.
pub(crate) fn execute(
    contents: &mut Contents,
    command: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let Ok(command) = Command::parse(command) else {
        Reply::Error(Refusal::Malformed).encode(out);
        return Ok(());
    };
    match command {
        Command::Get { key } => contents.read(key, |value| answer_value(value, out))?,
        Command::Set { flags, key, value } => set(contents, flags, key, value, out)?,
        Command::Del { keys } => {
            let deleted = count_keys(&keys, |key| delete(contents, key))?;
            Reply::Int(deleted).encode(out);
        }
        Command::Exists { keys } => {
            let found = count_keys(&keys, |key| contents.exists(key))?;
            Reply::Int(found).encode(out);
        }
        Command::Mget { keys } => mget(contents, &keys, out)?,
        Command::Mset { pairs } => {
            for (key, value) in pairs {
                put(contents, key, value.to_vec())?;
            }
            Reply::Ok.encode(out);
        }
        Command::IncrBy { key, delta } => increment(contents, key, delta, out)?,
        Command::Append { key, value } => append(contents, key, value, out)?,
        Command::Strlen { key } => {
            let len = contents.read(key, |value| value.map_or(0, <[u8]>::len))?;
            Reply::Int(len as i64).encode(out);
        }
        Command::Scan {
            count,
            after,
            pattern,
        } => scan(contents, count, after, pattern, out)?,
        Command::Dbsize => Reply::Int(contents.count() as i64).encode(out),
        Command::GetDel { key } => {
            let existed = contents.read(key, |value| {
                answer_value(value, out);
                value.is_some()
            })?;
            if existed {
                contents.remove(key);
            }
        }
    }
    Ok(())
}

fn answer_value(value: Option<&[u8]>, out: &mut Vec<u8>) {
    value.map_or(Reply::Nil, Reply::Bulk).encode(out);
}

fn set(
    contents: &mut Contents,
    flags: SetFlags,
    key: &[u8],
    value: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let existed = if flags.get {
        contents.read(key, |old| {
            answer_value(old, out);
            old.is_some()
        })?
    } else {
        contents.exists(key)?
    };
    let holds = !(flags.if_absent && existed || flags.if_present && !existed);
    if holds {
        contents.put(key, value.to_vec(), existed);
    }
    match (flags.get, flags.answer_int, holds) {
        (true, ..) => {}
        (_, true, _) => Reply::Int(i64::from(holds)).encode(out),
        (_, _, true) => Reply::Ok.encode(out),
        (_, _, false) => Reply::Nil.encode(out),
    }
    Ok(())
}

fn put(contents: &mut Contents, key: &[u8], value: Vec<u8>) -> Result<(), Error> {
    let existed = contents.exists(key)?;
    contents.put(key, value, existed);
    Ok(())
}

fn delete(contents: &mut Contents, key: &[u8]) -> Result<bool, Error> {
    let existed = contents.exists(key)?;
    if existed {
        contents.remove(key);
    }
    Ok(existed)
}

fn count_keys(
    keys: &[&[u8]],
    mut counts: impl FnMut(&[u8]) -> Result<bool, Error>,
) -> Result<i64, Error> {
    keys.iter()
        .try_fold(0, |sum, key| Ok(sum + i64::from(counts(key)?)))
}

fn mget(contents: &mut Contents, keys: &[&[u8]], out: &mut Vec<u8>) -> Result<(), Error> {
    let start = out.len();
    kv::put_array_header(out, keys.len());
    for key in keys {
        contents.read(key, |value| answer_value(value, out))?;
        if refuse_if_large(out, start) {
            break;
        }
    }
    Ok(())
}

/// Replaces an answer that began at `start` and has grown too long.
fn refuse_if_large(out: &mut Vec<u8>, start: usize) -> bool {
    let large = out.len() - start > MAX_REPLY_LEN;
    if large {
        out.truncate(start);
        Reply::Error(Refusal::ReplyTooLarge).encode(out);
    }
    large
}

fn increment(
    contents: &mut Contents,
    key: &[u8],
    delta: i64,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let (number, existed) = contents.read(key, |value| match value {
        None => (Some(0), false),
        Some(text) => (kv::parse_integer(text), true),
    })?;
    let answer = match number.map(|number| number.checked_add(delta)) {
        None => Reply::Error(Refusal::NotAnInteger),
        Some(None) => Reply::Error(Refusal::Overflow),
        Some(Some(sum)) => {
            contents.put(key, sum.to_string().into_bytes(), existed);
            Reply::Int(sum)
        }
    };
    answer.encode(out);
    Ok(())
}

fn append(
    contents: &mut Contents,
    key: &[u8],
    tail: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let (mut value, existed) = contents.read(key, |value| {
        (value.unwrap_or_default().to_vec(), value.is_some())
    })?;
    if value.len() + tail.len() > MAX_STRING_LEN {
        Reply::Error(Refusal::StringTooLong).encode(out);
        return Ok(());
    }
    value.extend_from_slice(tail);
    Reply::Int(value.len() as i64).encode(out);
    contents.put(key, value, existed);
    Ok(())
}

fn scan(
    contents: &Contents,
    count: u32,
    after: Option<&[u8]>,
    pattern: Option<&[u8]>,
    out: &mut Vec<u8>,
) -> Result<(), Error> {
    let start = out.len();
    let mut found = Vec::new();
    let mut found_count = 0;
    let mut looked_at = 0;
    let mut last = Vec::new();
    contents.walk(after, |key, _| {
        if pattern.is_none_or(|pattern| glob::matches(pattern, key)) {
            Reply::Bulk(key).encode(&mut found);
            found_count += 1;
        }
        looked_at += 1;
        let go_on = looked_at < count.max(1) && found.len() <= MAX_REPLY_LEN;
        if !go_on {
            last.extend_from_slice(key);
        }
        go_on
    })?;
    let ended = looked_at < count.max(1);
    kv::put_array_header(out, 2);
    answer_value((!ended).then_some(&last), out);
    kv::put_array_header(out, found_count);
    out.extend_from_slice(&found);
    refuse_if_large(out, start);
    Ok(())
}
