// SPDX-License-Identifier: Apache-2.0
//! Computes a digest of a replica's contents. It is equal for replicas that agree, however their
//! tables are laid out.

use sha2::{Digest, Sha256};

use super::resp::{Value, put_request};
use super::server::{Dead, Server};

/// The number of keys that are asked for together.
const AT_ONCE: usize = 256;
/// The number of requests that [`put_questions`] puts.
pub(super) const QUESTIONS: usize = 3;

/// Hashes all keys of the clients' database in order, with type, value and expiry, and all
/// functions. Keys that have expired by the server's clock are left out, whether or not they are
/// still in the tables.
pub(super) fn of(server: &mut Server, hash: &mut Sha256) -> Result<(), Dead> {
    server.order(&[b"SELECT", b"0"])?;
    let all = keys(server)?;
    for keys in all.chunks(AT_ONCE) {
        add_keys(server, keys, hash)?;
    }
    add_functions(server, hash)?;
    server.order(&[b"SELECT", b"1"])?;
    Ok(())
}

/// Returns all keys in order, each once: SCAN may show a key twice.
fn keys(server: &mut Server) -> Result<Vec<Vec<u8>>, Dead> {
    let (mut keys, mut cursor) = (Vec::new(), b"0".to_vec());
    loop {
        let answer = server.order(&[b"SCAN", &cursor, b"COUNT", b"1000"])?;
        let value = Value::parse(&answer).map_err(|_| strange("SCAN"))?;
        let [next, found] = value.items() else {
            return Err(strange("SCAN"));
        };
        keys.extend(
            found
                .items()
                .iter()
                .filter_map(|key| Some(key.text()?.to_vec())),
        );
        cursor = next.text().unwrap_or(b"0").to_vec();
        if cursor == b"0" {
            keys.sort_unstable();
            keys.dedup();
            return Ok(keys);
        }
    }
}

fn add_keys(server: &mut Server, keys: &[Vec<u8>], hash: &mut Sha256) -> Result<(), Dead> {
    let mut requests = Vec::new();
    for key in keys {
        put_questions(&mut requests, key);
    }
    let answers = server.ask_all(&requests, QUESTIONS * keys.len())?;
    for (key, about) in keys.iter().zip(answers.chunks(QUESTIONS)) {
        if !exists(about) {
            continue;
        }
        add(hash, key);
        about.iter().for_each(|answer| add(hash, answer));
        // The digest of a stream leaves out its groups.
        if about[1] == b"+stream\r\n" {
            add(
                hash,
                &server.order(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"])?,
            );
        }
    }
    Ok(())
}

/// Puts the requests whose answers describe a key, and read no more than the key itself.
pub(super) fn put_questions(requests: &mut Vec<u8>, key: &[u8]) {
    put_request(requests, &[b"PEXPIRETIME", key]);
    put_request(requests, &[b"TYPE", key]);
    put_request(requests, &[b"DEBUG", b"DIGEST-VALUE", key]);
}

/// Returns whether the key to which these answers belong exists.
pub(super) fn exists(answers: &[Vec<u8>]) -> bool {
    answers[0] != b":-2\r\n"
}

fn add_functions(server: &mut Server, hash: &mut Sha256) -> Result<(), Dead> {
    let answer = server.order(&[b"FUNCTION", b"LIST", b"WITHCODE"])?;
    let value = Value::parse(&answer).map_err(|_| strange("FUNCTION LIST"))?;
    let code = |library: &Value<'_>| {
        library
            .items()
            .last()
            .and_then(Value::text)
            .map(<[u8]>::to_vec)
    };
    let mut codes: Vec<_> = value.items().iter().map(code).collect();
    codes.sort_unstable();
    codes
        .iter()
        .for_each(|code| add(hash, code.as_deref().unwrap_or_default()));
    Ok(())
}

pub(super) fn add(hash: &mut Sha256, bytes: &[u8]) {
    hash.update((bytes.len() as u64).to_be_bytes());
    hash.update(bytes);
}

fn strange(command: &str) -> Dead {
    Dead::other(format!(
        "the Redis server's answer to {command} isn't understood"
    ))
}
