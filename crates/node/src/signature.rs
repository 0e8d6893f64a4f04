// SPDX-License-Identifier: Apache-2.0
//! The signature that proves that a control message comes from a holder of a key. It is a last line
//! after the envelope, with the generation of the key, its holder's number, and HMAC-SHA256 over
//! all bytes before it, in hex. [E-SIGNED]

use control::Turned;
use keys::{KEY_LEN, KeyFile, Purpose, is_mac, mac};

const MAC_DIGITS: usize = 2 * KEY_LEN;

/// The key with which a message is signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signer {
    /// The number of the key's holder.
    pub holder: u8,
    /// The key's generation.
    pub generation: u32,
}

/// Adds a signature, or returns `None` if the file doesn't have that key.
pub fn sign(keys: &KeyFile, by: Signer, mut bytes: Vec<u8>) -> Option<Vec<u8>> {
    let key = keys.key(by.holder, by.generation, Purpose::Control)?;
    let Signer { holder, generation } = by;
    bytes.extend_from_slice(format!("\n{generation}.{holder}.").as_bytes());
    let digits = mac(&key, &[&bytes]).map(|byte| format!("{byte:02x}"));
    bytes.extend_from_slice(digits.concat().as_bytes());
    Some(bytes)
}

/// Returns the key with which a message claims to be signed, without checking the claim.
pub fn claims(bytes: &[u8]) -> Option<Signer> {
    Some(split(bytes)?.by)
}

/// Returns the signed bytes and the key that has signed them, or an error if the signature is
/// wrong.
pub fn check<'a>(keys: &KeyFile, bytes: &'a [u8]) -> Result<(&'a [u8], Signer), Turned> {
    let Some(signed) = split(bytes) else {
        return Err(Turned::Unsigned);
    };
    let by = signed.by;
    let key = keys.key(by.holder, by.generation, Purpose::Control);
    let key = key.ok_or(Turned::OtherKey)?;
    match is_mac(&key, &[signed.under], &signed.mac) {
        true => Ok((signed.said, by)),
        false => Err(Turned::BadMac),
    }
}

struct Signed<'a> {
    said: &'a [u8],
    /// The bytes that the MAC covers.
    under: &'a [u8],
    by: Signer,
    mac: [u8; KEY_LEN],
}

fn split(bytes: &[u8]) -> Option<Signed<'_>> {
    let at = bytes.iter().rposition(|byte| *byte == b'\n')?;
    let line = std::str::from_utf8(&bytes[at + 1..]).ok()?;
    let (by, digits) = line.rsplit_once('.')?;
    let (generation, holder) = by.split_once('.')?;
    let is_hex = digits.len() == MAC_DIGITS && digits.bytes().all(|b| b.is_ascii_hexdigit());
    let mut mac = [0; KEY_LEN];
    for (at, byte) in mac.iter_mut().enumerate() {
        let digits = is_hex.then(|| &digits[2 * at..2 * at + 2])?;
        *byte = u8::from_str_radix(digits, 16).ok()?;
    }
    Some(Signed {
        said: &bytes[..at],
        under: &bytes[..bytes.len() - MAC_DIGITS],
        by: Signer {
            holder: holder.parse().ok()?,
            generation: generation.parse().ok()?,
        },
        mac,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use keys::NODES;

    const BY: Signer = Signer {
        holder: NODES,
        generation: 1,
    };

    /// A signed message can't be changed in any bit. [E-SIGNED]
    #[test]
    fn no_bit_of_what_is_signed_can_be_changed() {
        let keys = KeyFile::new(7).unwrap();
        let signed = sign(&keys, BY, b"{\"message\":1}".to_vec()).unwrap();
        assert_eq!(check(&keys, &signed), Ok((&b"{\"message\":1}"[..], BY)));
        for bit in 0..signed.len() * 8 {
            let mut other = signed.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            // Upper and lower case of a hex digit mean the same number.
            let same = other.eq_ignore_ascii_case(&signed) && bit / 8 >= signed.len() - MAC_DIGITS;
            assert_eq!(check(&keys, &other).is_ok(), same, "bit {bit}");
        }
        for len in 0..signed.len() {
            assert!(check(&keys, &signed[..len]).is_err(), "{len} bytes");
        }
    }

    /// A signature with another secret, client or generation isn't accepted. [E-SIGNED]
    #[test]
    fn another_secret_another_client_and_another_generation_are_told_apart() {
        let mut keys = KeyFile::new(7).unwrap();
        let signed = |keys: &KeyFile, by| sign(keys, by, b"{}".to_vec());
        assert_eq!(
            check(&KeyFile::new(7).unwrap(), &signed(&keys, BY).unwrap()),
            Err(Turned::BadMac)
        );
        assert_eq!(check(&keys, b"{}"), Err(Turned::Unsigned));
        let clients = ["a", "b"].map(|name| keys.client(name).unwrap());
        let by = |keys: &KeyFile| Signer {
            holder: keys.number(),
            generation: 1,
        };
        let [a, b] = &clients;
        let of_a = signed(a, by(a)).unwrap();
        assert_eq!(
            check(&keys, &of_a),
            Ok((&b"{}"[..], by(a))),
            "nodes have all keys"
        );
        assert_eq!(check(b, &of_a), Err(Turned::OtherKey));
        assert!(sign(a, BY, b"{}".to_vec()).is_none(), "it isn't its key");
        let old = signed(&keys, BY).unwrap();
        for (step, counts) in [(1, true), (2, true), (3, false)] {
            keys.rotate().unwrap();
            assert_eq!(check(&keys, &old).is_ok(), counts, "step {step}");
        }
        assert_eq!(check(&keys, &old), Err(Turned::OtherKey));
    }
}
