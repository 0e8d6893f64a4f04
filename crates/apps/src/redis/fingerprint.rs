// SPDX-License-Identifier: Apache-2.0
//! What can make one server execute a command differently from another one: a replica's own server
//! is compared with the one that the group has [agreed](super::agreed_server) on before it executes
//! anything.
//!
//! | bytes | |
//! |---|---|
//! | format u8 | 1 |
//! | facts | [`FACTS`] of {length u8, text} |
//! | commands | count u16, then each, ascending: {length u8, name}, arity i16, nature u32 |
//!
//! Numbers are big-endian. Texts are printable ASCII. The bytes come through the log and are
//! untrusted: each fingerprint has one encoding, and [`Fingerprint::parse`] refuses everything
//! else.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::catalogue::Catalogue;
use super::command::Input;
use super::resp::Malformed;

const FORMAT: u8 = 1;
/// The most bytes of a fingerprint.
pub(super) const MAX_BYTES: usize = 256 << 10;
/// The most commands, with subcommands. Redis 7 has about 400.
const MAX_COMMANDS: usize = 8_192;
/// The longest fact and the longest name.
const MAX_TEXT: usize = 200;
const FACTS: usize = 7;
/// How many commands an operator is shown.
const SHOWN: usize = 8;

/// What is known of a server beside its commands. Each is a short text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fact {
    /// `redis` or `valkey`.
    Product,
    Version,
    /// The build's id and its compiler.
    Build,
    /// The C library that the server runs with.
    Libc,
    Architecture,
    /// A digest of what its arithmetic computes.
    Arithmetic,
    /// A digest of the preloaded library.
    Preload,
}

impl Fact {
    const ALL: [Fact; FACTS] = [
        Fact::Product,
        Fact::Version,
        Fact::Build,
        Fact::Libc,
        Fact::Architecture,
        Fact::Arithmetic,
        Fact::Preload,
    ];

    fn name(self) -> &'static str {
        match self {
            Fact::Product => "program",
            Fact::Version => "version",
            Fact::Build => "build",
            Fact::Libc => "C library",
            Fact::Architecture => "architecture",
            Fact::Arithmetic => "arithmetic",
            Fact::Preload => "preloaded library",
        }
    }

    /// Returns whether servers that differ in this can't execute the same log. Versions may differ
    /// while a group is upgraded one replica after the other; and a C library counts by what it
    /// computes.
    fn must_be_equal(self) -> bool {
        matches!(self, Fact::Product | Fact::Architecture | Fact::Arithmetic)
    }
}

/// What a command's description says of how it is executed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Command {
    arity: i16,
    /// A digest of the flags that matter, and of where its keys are.
    nature: u32,
}

/// A server's fingerprint.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Fingerprint {
    facts: [String; FACTS],
    commands: BTreeMap<String, Command>,
}

/// How a server differs from the one that the group has agreed on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Difference {
    /// Why the server must not execute anything.
    pub unfit: Vec<String>,
    /// Differences with which it may.
    pub tolerated: Vec<String>,
    /// The commands that the server knows and the group doesn't, in order.
    pub unagreed: Vec<String>,
}

impl Fingerprint {
    /// Makes the fingerprint of a server with these commands.
    pub(super) fn new(fact: impl Fn(Fact) -> String, catalogue: &Catalogue) -> Fingerprint {
        let commands = catalogue.specs().take(MAX_COMMANDS).map(|spec| {
            let nature = spec.nature();
            let arity = spec.arity.clamp(i16::MIN.into(), i16::MAX.into()) as i16;
            (printable(&spec.name), Command { arity, nature })
        });
        Fingerprint {
            facts: Fact::ALL.map(|of| printable(&fact(of))),
            commands: commands.collect(),
        }
    }

    /// Returns the encoding.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        self.facts.iter().for_each(|fact| put_text(&mut out, fact));
        out.extend_from_slice(&(self.commands.len() as u16).to_be_bytes());
        for (name, command) in &self.commands {
            put_text(&mut out, name);
            out.extend_from_slice(&command.arity.to_be_bytes());
            out.extend_from_slice(&command.nature.to_be_bytes());
        }
        out
    }

    /// Reads a fingerprint, which must fill `bytes` exactly.
    pub fn parse(bytes: &[u8]) -> Result<Fingerprint, Malformed> {
        let mut input = Input(bytes);
        if bytes.len() > MAX_BYTES || input.u8()? != FORMAT {
            return Err(Malformed);
        }
        let mut facts: [String; FACTS] = Default::default();
        for fact in &mut facts {
            *fact = text(&mut input)?;
        }
        let count = u16::from_be_bytes(input.array()?);
        if usize::from(count) > MAX_COMMANDS {
            return Err(Malformed);
        }
        let mut commands = BTreeMap::new();
        for _ in 0..count {
            let name = text(&mut input)?;
            let is_next = commands
                .last_key_value()
                .is_none_or(|(last, _)| *last < name);
            let command = Command {
                arity: i16::from_be_bytes(input.array()?),
                nature: u32::from_be_bytes(input.array()?),
            };
            commands.insert(name, command);
            if !is_next {
                return Err(Malformed);
            }
        }
        match input.0.is_empty() {
            true => Ok(Fingerprint { facts, commands }),
            false => Err(Malformed),
        }
    }

    /// Returns a digest that differs for different fingerprints.
    pub(super) fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.to_bytes()).into()
    }

    /// Returns whether a server with this fingerprint knows a command of this name.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.commands.contains_key(name)
    }

    /// Compares this server with the agreed one.
    pub(super) fn difference(&self, agreed: &Fingerprint) -> Difference {
        let mut difference = Difference::default();
        for (fact, (here, there)) in Fact::ALL.iter().zip(self.facts.iter().zip(&agreed.facts)) {
            if here == there {
                continue;
            }
            let told = format!("its {} is {here}, the group's is {there}", fact.name());
            match fact.must_be_equal() {
                true => difference.unfit.push(told),
                false => difference.tolerated.push(told),
            }
        }
        let mut lacks = Vec::new();
        let mut others = Vec::new();
        for (name, theirs) in &agreed.commands {
            match self.commands.get(name) {
                None => lacks.push(name.as_str()),
                Some(ours) if ours != theirs => others.push(name.as_str()),
                Some(_) => {}
            }
        }
        if !lacks.is_empty() {
            difference
                .unfit
                .push(format!("it lacks {}", listed(&lacks)));
        }
        if !others.is_empty() {
            difference.unfit.push(format!(
                "it takes other arguments or has other flags for {}",
                listed(&others)
            ));
        }
        let own = self.commands.keys();
        difference.unagreed = own.filter(|name| !agreed.knows(name)).cloned().collect();
        difference
    }

    /// Names the server for an operator.
    pub(super) fn named(&self) -> String {
        let [product, version, ..] = &self.facts;
        format!("{product} {version}")
    }
}

/// Lists names of commands for an operator, the first few of many.
pub(super) fn listed(names: &[impl AsRef<str>]) -> String {
    let shown = names.iter().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|name| name.as_ref().replace('|', " ").to_uppercase())
        .collect();
    let more = match names.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} others"),
    };
    shown.join(", ") + &more
}

fn is_printable(byte: u8) -> bool {
    byte == b' ' || byte.is_ascii_graphic()
}

fn printable(text: &str) -> String {
    let printable = text.bytes().filter(|byte| is_printable(*byte));
    printable.take(MAX_TEXT).map(char::from).collect()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.push(text.len() as u8);
    out.extend_from_slice(text.as_bytes());
}

fn text(input: &mut Input<'_>) -> Result<String, Malformed> {
    let len = input.u8()?;
    let (text, rest) = input.0.split_at_checked(len.into()).ok_or(Malformed)?;
    input.0 = rest;
    let is_sound = text.len() <= MAX_TEXT && text.iter().all(|byte| is_printable(*byte));
    match std::str::from_utf8(text) {
        Ok(text) if is_sound => Ok(text.into()),
        _ => Err(Malformed),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the fingerprint of a server of this version with these commands.
    pub fn server(version: &str, commands: &[(&str, i16)]) -> Fingerprint {
        let mut facts: [String; FACTS] = Default::default();
        facts[Fact::Product as usize] = "redis".into();
        facts[Fact::Version as usize] = version.into();
        let commands = commands.iter().map(|(name, arity)| {
            let (arity, nature) = (*arity, 7);
            (name.to_string(), Command { arity, nature })
        });
        Fingerprint {
            facts,
            commands: commands.collect(),
        }
    }

    #[test]
    fn a_fingerprint_has_one_encoding() {
        let one = server("7.0.15", &[("get", 2), ("set", -3), ("x|y", -2)]);
        let bytes = one.to_bytes();
        assert_eq!(Fingerprint::parse(&bytes), Ok(one.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            if let Ok(parsed) = Fingerprint::parse(&other) {
                assert_eq!(parsed.to_bytes(), other, "bit {bit}");
                assert_ne!(parsed.digest(), one.digest(), "bit {bit}");
            }
        }
        for end in 0..bytes.len() {
            assert_eq!(Fingerprint::parse(&bytes[..end]), Err(Malformed));
        }
        assert_eq!(
            Fingerprint::parse(&[&bytes[..], b"x"].concat()),
            Err(Malformed)
        );
        assert_eq!(
            Fingerprint::parse(&vec![FORMAT; MAX_BYTES + 1]),
            Err(Malformed)
        );
    }

    #[test]
    fn a_server_that_lacks_something_is_unfit_and_says_what() {
        let agreed = server("7.0.15", &[("get", 2), ("getdel", 2), ("set", -3)]);
        let lacks = server("7.0.15", &[("get", 2), ("set", -3)]);
        assert_eq!(lacks.difference(&agreed).unfit, ["it lacks GETDEL"]);
        let other = server("7.0.15", &[("get", 2), ("getdel", -2), ("set", -3)]);
        let [why] = &other.difference(&agreed).unfit[..] else {
            panic!("{other:?}")
        };
        assert!(why.ends_with(" GETDEL"), "{why}");
        for fact in Fact::ALL {
            let mut other = agreed.clone();
            other.facts[fact as usize] = "another".into();
            let difference = other.difference(&agreed);
            let must_be_equal = [Fact::Product, Fact::Architecture, Fact::Arithmetic];
            let is_unfit = must_be_equal.contains(&fact);
            assert_eq!(difference.unfit.len(), usize::from(is_unfit), "{fact:?}");
            assert_eq!(
                difference.tolerated.len(),
                usize::from(!is_unfit),
                "{fact:?}"
            );
        }
    }

    #[test]
    fn a_server_that_knows_more_fits() {
        let agreed = server("7.0.15", &[("get", 2)]);
        let newer = server("7.2.4", &[("get", 2), ("getnew", 2)]);
        let difference = newer.difference(&agreed);
        assert!(difference.unfit.is_empty());
        assert_eq!(difference.unagreed, ["getnew"]);
        assert_eq!(
            difference.tolerated,
            ["its version is 7.2.4, the group's is 7.0.15"]
        );
        assert_eq!(agreed.difference(&agreed), Difference::default());
    }
}
