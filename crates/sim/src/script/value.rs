// SPDX-License-Identifier: Apache-2.0
//! Values as text: structured values by their meaning, and others as characters, or as bytes if not
//! all of them can be written.

use std::fmt::Write as _;

use paxos::wire::value::{
    self as wire, PackedItem, Probe, ProbeReport, RangeReport, Rejection, Vector,
};
use paxos::{Flags, MsgType, Reason};

use super::fields::{number, parse_round};

/// A value of at least this length that consists of `x` only is written `fill(length)`.
const FILL_FROM: usize = 32;

/// Returns the bytes that a text stands for.
pub fn parse(text: &str) -> Result<Vec<u8>, String> {
    let text = text.trim();
    if text.starts_with('"') {
        let (bytes, rest) = parse_text(text)?;
        return if rest.is_empty() {
            Ok(bytes)
        } else {
            Err(format!("{rest} follows the value"))
        };
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return parse_hex(hex);
    }
    let (name, rest) = text
        .split_once('(')
        .ok_or_else(|| format!("{text} is no value"))?;
    if name == "vector" {
        return parse_vector(rest);
    }
    let inner = rest.strip_suffix(')').ok_or("the value lacks its )")?;
    match name {
        "fill" => Ok(vec![b'x'; number("fill", inner)? as usize]),
        "marker" => Ok(wire::emit_marker(number("marker", inner)? as u32).to_vec()),
        "probe" => parse_probe(inner),
        "pack" => parse_pack(inner),
        "range" | "reject" | "report" => parse_fixed(name, inner),
        _ => Err(format!("no such value: {name}")),
    }
}

/// Parses hexadecimal digits, two for each byte; blanks between bytes are ignored.
pub fn parse_hex(text: &str) -> Result<Vec<u8>, String> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    if digits.len() % 2 != 0 {
        return Err("half a byte is left over".into());
    }
    let byte = |pair: &[char]| {
        let digit = |c: char| c.to_digit(16).ok_or_else(|| format!("{c} is no digit"));
        Ok((digit(pair[0])? << 4 | digit(pair[1])?) as u8)
    };
    digits.chunks(2).map(byte).collect()
}

/// Parses characters between quotes, and returns the text after them.
fn parse_text(text: &str) -> Result<(Vec<u8>, &str), String> {
    let inner = text
        .strip_prefix('"')
        .ok_or_else(|| format!("{text} has no quote"))?;
    let end = inner.find('"').ok_or("the text lacks its quote")?;
    Ok((inner.as_bytes()[..end].to_vec(), &inner[end + 1..]))
}

fn parse_probe(role: &str) -> Result<Vec<u8>, String> {
    let probe = match role {
        "leader" => Probe::Leader,
        "acceptor" => Probe::Acceptor,
        "replica" => Probe::Replica,
        "sequencer" => Probe::Sequencer,
        _ => return Err(format!("no such role: {role}")),
    };
    Ok(probe.emit().to_vec())
}

/// Parses `range(end,trim,nonce)`, `reject(reason,round,trim)`, or `report(nonce,trim)`.
fn parse_fixed(name: &str, inner: &str) -> Result<Vec<u8>, String> {
    let parts: Vec<&str> = inner.split(',').collect();
    match (name, parts.as_slice()) {
        ("range", [end, trim, nonce]) => Ok(RangeReport {
            end: number("end", end)?,
            trim: number("trim", trim)?,
            nonce: number("nonce", nonce)?,
        }
        .emit()
        .to_vec()),
        ("reject", [reason, round, trim]) => Ok(Rejection {
            reason: Reason::from_name(reason).ok_or_else(|| format!("no such reason: {reason}"))?,
            round: parse_round(round)?,
            trim: number("trim", trim)?,
        }
        .emit()
        .to_vec()),
        ("report", [nonce, trim, start]) => Ok(ProbeReport {
            nonce: number("nonce", nonce)?,
            trim: number("trim", trim)?,
            start: number("start", start)?,
        }
        .emit()
        .to_vec()),
        _ => Err(format!("{name} has another number of parts")),
    }
}

/// Parses items `client:request:"bytes"`.
fn parse_pack(mut inner: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    while !inner.trim().is_empty() {
        let bad = || format!("{inner} is no item of a pack");
        let (client, rest) = inner.trim().split_once(':').ok_or_else(bad)?;
        let (request, rest) = rest.split_once(':').ok_or_else(bad)?;
        let (bytes, rest) = parse_text(rest)?;
        let item = PackedItem {
            client: number("client", client)?,
            request: number("request", request)?,
            bytes: &bytes,
        };
        wire::append_packed(&mut out, &item);
        inner = rest;
    }
    Ok(out)
}

/// Parses `round pid:inst ...)"command"`.
fn parse_vector(rest: &str) -> Result<Vec<u8>, String> {
    let (inner, command) = rest.split_once(')').ok_or("the vector lacks its )")?;
    let mut words = inner.split_whitespace();
    let round = parse_round(words.next().ok_or("the vector lacks its round")?)?;
    let mut out = round.0.to_be_bytes().to_vec();
    let entries: Vec<&str> = words.collect();
    out.extend((entries.len() as u16).to_be_bytes());
    for entry in entries {
        let (pid, inst) = entry.split_once(':').ok_or("an entry is pid:inst")?;
        out.extend((number("pid", pid)? as u16).to_be_bytes());
        out.extend(number("inst", inst)?.to_be_bytes());
    }
    if !command.is_empty() {
        out.extend(parse(command)?);
    }
    Ok(out)
}

/// Returns the text of a packet's value.
pub fn print(msgtype: MsgType, flags: Flags, value: &[u8]) -> String {
    print_structure(msgtype, flags, value).unwrap_or_else(|| print_bytes(value))
}

fn print_structure(msgtype: MsgType, flags: Flags, value: &[u8]) -> Option<String> {
    match msgtype {
        MsgType::Reject => {
            let r = Rejection::parse(value).ok()?;
            Some(format!(
                "reject({},{},{})",
                r.reason.name(),
                r.round,
                r.trim
            ))
        }
        MsgType::ProbeAck => {
            let r = ProbeReport::parse(value).ok()?;
            Some(format!("report({:#x},{},{:#x})", r.nonce, r.trim, r.start))
        }
        MsgType::Phase1b if flags.has(Flags::RANGE) => {
            let r = RangeReport::parse(value).ok()?;
            Some(format!("range({},{},{:#x})", r.end, r.trim, r.nonce))
        }
        _ if flags.has(Flags::NOOP) => {
            let epoch = wire::parse_marker(value).ok()??;
            Some(format!("marker({epoch})"))
        }
        _ if flags.has(Flags::MULTI) => print_vector(value),
        _ if flags.has(Flags::PACKED) => print_pack(value),
        _ => None,
    }
}

fn print_vector(value: &[u8]) -> Option<String> {
    let vector = Vector::parse(value).ok()?;
    let mut out = format!("vector({}", vector.round);
    for (pid, inst) in vector.iter() {
        write!(out, " {pid}:{inst}").expect("a string");
    }
    out.push(')');
    if !vector.command.is_empty() {
        out.push_str(&print_bytes(vector.command));
    }
    Some(out)
}

fn print_pack(value: &[u8]) -> Option<String> {
    let mut parts = Vec::new();
    for item in wire::packed_items(value) {
        let item = item.ok()?;
        let text = printable(item.bytes)?;
        parts.push(format!("{}:{}:\"{text}\"", item.client, item.request));
    }
    Some(format!("pack({})", parts.join(" ")))
}

/// Returns characters if all of them can be written, and bytes otherwise.
pub fn print_bytes(value: &[u8]) -> String {
    if value.len() >= FILL_FROM && value.iter().all(|b| *b == b'x') {
        return format!("fill({})", value.len());
    }
    if let Some(text) = printable(value) {
        return format!("\"{text}\"");
    }
    let digits: String = value.iter().map(|b| format!("{b:02x}")).collect();
    format!("0x{digits}")
}

fn printable(value: &[u8]) -> Option<&str> {
    let plain = |b: &u8| matches!(b, b' '..=b'~') && *b != b'"';
    let text = std::str::from_utf8(value).ok()?;
    value.iter().all(plain).then_some(text)
}
