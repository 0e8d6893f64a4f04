// SPDX-License-Identifier: Apache-2.0
//! The text of a key file.

use std::fmt::Write;

use serde::Deserialize;

use crate::file::{Generation, Holder, KeyFile};
use crate::{KEY_LEN, MAX_CLIENTS};

/// The only version of the format.
const VERSION: u32 = 1;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    version: u32,
    holder: String,
    cluster: String,
    name: Option<String>,
    number: Option<u8>,
    signs: u32,
    secret: Vec<RawSecret>,
    #[serde(default)]
    client: Vec<RawClient>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSecret {
    generation: u32,
    secret: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawClient {
    name: String,
    number: u8,
}

/// Parses a key file. Its errors show no part of a secret.
pub(crate) fn parse(text: &str) -> Result<KeyFile, String> {
    // The reader's own message would quote the line.
    let raw: Raw = toml::from_str(text).map_err(|e| format!("is no key file ({})", e.message()))?;
    if raw.version != VERSION {
        return Err(format!(
            "has version {}, and this program reads version {VERSION}",
            raw.version
        ));
    }
    let secrets = generations(&raw.secret)?;
    if !secrets.iter().any(|s| s.number == raw.signs) {
        return Err(format!(
            "has no secret of the generation that signs, {}",
            raw.signs
        ));
    }
    Ok(KeyFile {
        cluster: cluster(&raw.cluster)?,
        holder: holder(&raw)?,
        signs: raw.signs,
        secrets,
        clients: clients(&raw)?,
    })
}

fn generations(raw: &[RawSecret]) -> Result<Vec<Generation>, String> {
    let secrets: Vec<Generation> = raw
        .iter()
        .map(|raw| {
            Ok(Generation {
                number: raw.generation,
                secret: unhex(&raw.secret)?,
            })
        })
        .collect::<Result<_, String>>()?;
    let sound = match &secrets[..] {
        [only] => only.number > 0,
        [old, new] => old.number > 0 && old.number.checked_add(1) == Some(new.number),
        _ => false,
    };
    match sound {
        true => Ok(secrets),
        false => Err("must have one secret, or two of generations that follow each other".into()),
    }
}

fn cluster(hex: &str) -> Result<u32, String> {
    match u32::from_str_radix(hex, 16) {
        Ok(cluster) if hex.len() == 8 && cluster != 0 => Ok(cluster),
        _ => Err(format!("`cluster = {hex:?}` is no cluster number")),
    }
}

fn holder(raw: &Raw) -> Result<Holder, String> {
    match (raw.holder.as_str(), &raw.name, raw.number) {
        ("nodes", None, None) => Ok(Holder::Nodes),
        ("client", Some(name), Some(number)) => Ok(Holder::Client {
            name: name.clone(),
            number: sound_number(number)?,
        }),
        _ => Err("says neither `holder = \"nodes\"` nor which client holds it".into()),
    }
}

fn clients(raw: &Raw) -> Result<Vec<(String, u8)>, String> {
    let mut clients: Vec<(String, u8)> = Vec::new();
    for RawClient { name, number } in &raw.client {
        sound_number(*number)?;
        if clients.iter().any(|(n, at)| n == name || at == number) {
            return Err(format!("has the client {name:?}, or its number, twice"));
        }
        clients.push((name.clone(), *number));
    }
    match raw.holder == "nodes" || clients.is_empty() {
        true => Ok(clients),
        false => Err("is a client's and names clients".into()),
    }
}

fn sound_number(number: u8) -> Result<u8, String> {
    match (1..=MAX_CLIENTS).contains(&number) {
        true => Ok(number),
        false => Err(format!(
            "has a client number {number}; they are 1 to {MAX_CLIENTS}"
        )),
    }
}

fn unhex(hex: &str) -> Result<[u8; KEY_LEN], String> {
    let mut secret = [0; KEY_LEN];
    let is_hex = hex.len() == 2 * KEY_LEN && hex.bytes().all(|b| b.is_ascii_hexdigit());
    for (at, byte) in secret.iter_mut().enumerate() {
        let digits = is_hex.then(|| &hex[2 * at..2 * at + 2]);
        *byte = digits
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(|| format!("has a secret that isn't {} hexadecimal digits", 2 * KEY_LEN))?;
    }
    Ok(secret)
}

pub(crate) fn emit(file: &KeyFile) -> String {
    let mut out = String::new();
    let KeyFile { cluster, signs, .. } = file;
    let head = match &file.holder {
        Holder::Nodes => {
            "# WirePaxos: the secret of a cluster. Who has it is taken for any of its \
                          nodes, and for any client.\n\
             # Keep it from everybody else. `wirepaxos keys` writes this file.\n\
             version = 1\nholder = \"nodes\"\n"
                .to_owned()
        }
        Holder::Client { name, number } => format!(
            "# WirePaxos: the key of a client. Who has it can send commands to the cluster.\n\
             # `wirepaxos keys` writes this file.\n\
             version = 1\nholder = \"client\"\nname = \"{name}\"\nnumber = {number}\n"
        ),
    };
    let _ = write!(out, "{head}cluster = \"{cluster:08x}\"\nsigns = {signs}\n");
    for Generation { number, secret } in &file.secrets {
        let hex: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let _ = write!(
            out,
            "\n[[secret]]\ngeneration = {number}\nsecret = \"{hex}\"\n"
        );
    }
    for (name, number) in &file.clients {
        let _ = write!(out, "\n[[client]]\nname = \"{name}\"\nnumber = {number}\n");
    }
    out
}
