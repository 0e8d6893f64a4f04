// SPDX-License-Identifier: Apache-2.0
//! Packets as text.

use std::fmt::Write as _;

use paxos::wire::HEADER_LEN;
use paxos::{Flags, Header, MsgType, Packet, To};

use super::fields::Fields;
use super::keys::{exchange_tags, untagged};
use super::{Setup, value};

/// The offsets of fields that an `in` line may falsify (docs/wire.md).
const VERSION_AT: usize = 0;
const MSGTYPE_AT: usize = 1;
const VALUE_LEN_AT: usize = 2;

const FLAG_NAMES: [(Flags, &str); 4] = [
    (Flags::RANGE, "range"),
    (Flags::NOOP, "noop"),
    (Flags::MULTI, "multi"),
    (Flags::PACKED, "packed"),
];

/// Returns the datagram of `TYPE field=value ... value=...`. Cluster and group default to the
/// role's own.
pub fn parse(text: &str, setup: &Setup) -> Result<Vec<u8>, String> {
    let (text, value) = match text.split_once("value=") {
        Some((text, value)) => (text, value::parse(value)?),
        None => (text, Vec::new()),
    };
    let (name, rest) = super::keyword(text);
    let msgtype = MsgType::from_name(name).ok_or_else(|| format!("no such type: {name}"))?;
    let mut fields = Fields::parse(rest)?;
    let deployment = &setup.deployment;
    let tag = fields.take("tag").map(value::parse_hex).transpose()?;
    let mut flags = fields.take("flags").map_or(Ok(Flags::NONE), parse_flags)?;
    if tag.is_some() {
        flags = flags.with(Flags::TAG);
    }
    let header = Header {
        value_len: value.len() as u16,
        group: fields.u16("group", deployment.group)?,
        pid: fields.u16("pid", 0)?,
        inst: fields.u64("inst", 0)?,
        rnd: fields.round("rnd")?,
        vrnd: fields.round("vrnd")?,
        swid: fields.u16("swid", 0)?,
        flags,
        cluster: fields.u32("cluster", deployment.cluster)?,
        client: fields.u64("client", 0)?,
        request: fields.u64("request", 0)?,
        ..Header::new(msgtype)
    };
    let mut head = [0; HEADER_LEN];
    header.emit(&mut head);
    let mut datagram = match fields.take("sign") {
        Some(by) => sign(&mut fields, by, &header, &value, setup)?,
        None => [&head[..], &tag.unwrap_or_default(), &value].concat(),
    };
    falsify(&mut fields, &mut datagram)?;
    fields.finish()?;
    Ok(datagram)
}

/// Returns header, tag and value. The tag may be that of the same packet for another instance.
fn sign(
    fields: &mut Fields<'_>,
    by: &str,
    header: &Header,
    value: &[u8],
    setup: &Setup,
) -> Result<Vec<u8>, String> {
    let counter = fields.u64("counter", 0)?;
    let mut datagram = setup.keys.sign(by, header, value, counter)?;
    if let Some(inst) = fields.take("tag_of") {
        let inst = super::fields::number("tag_of", inst)?;
        let other = Header { inst, ..*header };
        exchange_tags(&mut datagram, &setup.keys.sign(by, &other, value, counter)?);
    }
    Ok(datagram)
}

/// Falsifies fields to values that no sender of this project would send.
fn falsify(fields: &mut Fields<'_>, datagram: &mut Vec<u8>) -> Result<(), String> {
    datagram[VERSION_AT] = fields.u8("version", datagram[VERSION_AT])?;
    datagram[MSGTYPE_AT] = fields.u8("msgtype", datagram[MSGTYPE_AT])?;
    if let Some(text) = fields.take("value_len") {
        let len = super::fields::number("value_len", text)?;
        let len = u16::try_from(len).map_err(|_| "value_len is too large")?;
        datagram[VALUE_LEN_AT..VALUE_LEN_AT + 2].copy_from_slice(&len.to_be_bytes());
    }
    if let Some(bit) = fields.take("flip") {
        let bit = super::fields::number("flip", bit)? as usize;
        let byte = datagram.get_mut(bit / 8).ok_or("there is no such bit")?;
        *byte ^= 0x80 >> (bit % 8);
    }
    let cut = fields.u16("cut", 0)? as usize;
    datagram.truncate(datagram.len().saturating_sub(cut));
    let pad = fields.u16("pad", 0)? as usize;
    datagram.resize(datagram.len() + pad, 0);
    Ok(())
}

/// Returns the text of a sent packet. It leaves out fields that are 0, except for the instance, and
/// cluster and group if they are the role's own.
pub fn print(to: To, packet: &Packet<'_>, datagram: &[u8], setup: &Setup) -> String {
    let h = &packet.header;
    let mut out = format!("to={} {}", print_to(to), h.msgtype.name());
    let mut field = |name: &str, text: String| write!(out, " {name}={text}").expect("a string");
    if h.cluster != setup.deployment.cluster {
        field("cluster", format!("{:#x}", h.cluster));
    }
    if h.group != setup.deployment.group {
        field("group", h.group.to_string());
    }
    if h.pid != 0 {
        field("pid", h.pid.to_string());
    }
    field("inst", h.inst.to_string());
    if !h.rnd.is_none() {
        field("rnd", h.rnd.to_string());
    }
    if !h.vrnd.is_none() {
        field("vrnd", h.vrnd.to_string());
    }
    if h.swid != 0 {
        field("swid", h.swid.to_string());
    }
    if untagged(h.flags) != Flags::NONE {
        field("flags", print_flags(untagged(h.flags)));
    }
    if let Some(key) = setup.keys.signed_with(packet, datagram) {
        field("signed", key);
    }
    if h.client != 0 {
        field("client", h.client.to_string());
    }
    if h.request != 0 {
        field("request", h.request.to_string());
    }
    if !packet.value.is_empty() {
        field("value", value::print(h.msgtype, h.flags, packet.value));
    }
    out
}

fn print_to(to: To) -> String {
    match to {
        To::Sender => "sender".into(),
        To::Acceptors => "acceptors".into(),
        To::Learners => "learners".into(),
        To::Replicas => "replicas".into(),
        To::Leader => "leader".into(),
        To::Node(node) => node.to_string(),
    }
}

fn parse_flags(text: &str) -> Result<Flags, String> {
    if let Some(hex) = text.strip_prefix("0x") {
        let bits = u16::from_str_radix(hex, 16);
        return Ok(Flags(bits.map_err(|_| format!("{text} is no flags"))?));
    }
    if text == "none" {
        return Ok(Flags::NONE);
    }
    text.split('+').try_fold(Flags::NONE, |flags, name| {
        let named = FLAG_NAMES.iter().find(|(_, known)| *known == name);
        let (flag, _) = named.ok_or_else(|| format!("no such flag: {name}"))?;
        Ok(flags.with(*flag))
    })
}

/// Returns names with `+` between them, or the bare bits if one has no name.
pub fn print_flags(flags: Flags) -> String {
    if flags == Flags::NONE {
        return "none".into();
    }
    let named = FLAG_NAMES.iter().filter(|(flag, _)| flags.has(*flag));
    let all = named
        .clone()
        .fold(Flags::NONE, |sum, (flag, _)| sum.with(*flag));
    if all != flags {
        return format!("{:#x}", flags.0);
    }
    named.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}
