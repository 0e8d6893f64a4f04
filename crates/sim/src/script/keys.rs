// SPDX-License-Identifier: Apache-2.0
//! Keys in scripts: a script names them, a role is given some, and packets are signed with any.

use paxos::auth::{Algorithm, KeyId, KeyPair, Keyring};
use paxos::wire::{HEADER_LEN, TAG_LEN, Tag};
use paxos::{Flags, Header, Packet};

use super::fields::{Fields, number};
use super::value::parse_hex;

/// The keys that a script has named, and those that its role has been given.
#[derive(Clone, Debug)]
pub(super) struct Known {
    algorithm: Algorithm,
    named: Vec<(String, KeyPair)>,
    told: Option<Keyring>,
}

impl Known {
    /// Returns no keys yet, for a cluster that signs with this algorithm.
    pub fn by(algorithm: Algorithm) -> Known {
        Known {
            algorithm,
            named: Vec::new(),
            told: None,
        }
    }

    /// Parses a `key` line: `NAME mac=... digest=...`.
    pub fn name(&mut self, text: &str) -> Result<(), String> {
        let (name, rest) = super::keyword(text);
        let mut fields = Fields::parse(rest)?;
        let mut half = |key| {
            let text = fields.take(key).ok_or(format!("{key} is missing"))?;
            let bytes = parse_hex(text)?;
            <[u8; 16]>::try_from(bytes).map_err(|_| format!("{key} isn't 16 bytes"))
        };
        let pair = KeyPair {
            mac: half("mac")?,
            digest: half("digest")?,
        };
        fields.finish()?;
        self.named.push((name.to_owned(), pair));
        Ok(())
    }

    /// Parses a `keys` line: `own=ID ID=NAME ...`.
    pub fn keyring(&self, fields: &mut Fields<'_>) -> Result<Keyring, String> {
        let own = id(fields.take("own").ok_or("own is missing")?)?;
        let mut keyring = Keyring::by(self.algorithm, own);
        for (key, name) in fields.take_all() {
            keyring.insert(id(key)?, self.pair(name)?);
        }
        Ok(keyring)
    }

    /// Notes that the role has been given these keys.
    pub fn tell(&mut self, keyring: &Keyring) {
        self.told = Some(keyring.clone());
    }

    /// Returns a signed packet. `by` is `ID`, for the role's own key with that id, or `ID:NAME`.
    pub fn sign(
        &self,
        by: &str,
        header: &Header,
        value: &[u8],
        counter: u64,
    ) -> Result<Vec<u8>, String> {
        let (by, pair) = match by.split_once(':') {
            Some((by, name)) => (id(by)?, self.pair(name)?),
            None => {
                let by = id(by)?;
                let told = self.told.as_ref().and_then(|all| all.pair(by.index()));
                (by, *told.ok_or("the role was told no such key")?)
            }
        };
        let mut keyring = Keyring::by(self.algorithm, by);
        keyring.insert(by, pair);
        let signed = keyring.datagram(header, value, by.number, counter);
        signed.ok_or_else(|| "there is no such key".to_owned())
    }

    /// Returns with which key a packet of a role is signed, and whether the signature is right.
    pub fn signed_with(&self, packet: &Packet<'_>, datagram: &[u8]) -> Option<String> {
        let tag = Tag::parse(packet.tag?);
        let header = Header {
            flags: untagged(packet.header.flags),
            ..packet.header
        };
        let again = self.told.as_ref().and_then(|told| {
            let reader = KeyId::parse(tag.key_id)?.number;
            told.datagram(&header, packet.value, reader, tag.counter)
        });
        Some(match again.as_deref() == Some(datagram) {
            true => format!("{:#x}", tag.key_id),
            false => "wrong".to_owned(),
        })
    }

    fn pair(&self, name: &str) -> Result<KeyPair, String> {
        let mut named = self.named.iter();
        let pair = named.find(|(known, _)| known == name);
        Ok(pair.ok_or(format!("no such key: {name}"))?.1)
    }
}

/// Returns the flags without that of the tag.
pub(super) fn untagged(flags: Flags) -> Flags {
    Flags(flags.0 & !Flags::TAG.0)
}

/// Replaces a packet's tag by another packet's.
pub(super) fn exchange_tags(datagram: &mut [u8], other: &[u8]) {
    let tag = HEADER_LEN..HEADER_LEN + TAG_LEN;
    datagram[tag.clone()].copy_from_slice(&other[tag]);
}

fn id(text: &str) -> Result<KeyId, String> {
    let byte = u8::try_from(number("a key's id", text)?).ok();
    byte.and_then(KeyId::parse)
        .ok_or_else(|| format!("{text} is no key's id"))
}
