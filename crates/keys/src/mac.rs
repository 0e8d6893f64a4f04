// SPDX-License-Identifier: Apache-2.0
//! HMAC-SHA256 (RFC 2104), by which a holder of a key recognizes messages of another holder.

use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::KEY_LEN;

/// Returns the MAC of several parts in a row. The caller must make sure that the parts can't be
/// split at another boundary.
pub fn mac(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> [u8; KEY_LEN] {
    running(key, parts).finalize().into_bytes().into()
}

/// Returns whether this is the MAC of the parts. The comparison takes the same time wherever they
/// differ.
pub fn is_mac(key: &[u8; KEY_LEN], parts: &[&[u8]], mac: &[u8]) -> bool {
    running(key, parts).verify_slice(mac).is_ok()
}

fn running(key: &[u8; KEY_LEN], parts: &[&[u8]]) -> Hmac<Sha256> {
    let mut running = Hmac::new_from_slice(key).expect("a key may have any length");
    for part in parts {
        running.update(part);
    }
    running
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This is test case 2 of RFC 4231, with its key padded with zeros as HMAC does.
    #[test]
    fn it_is_hmac_sha256() {
        let mut key = [0; KEY_LEN];
        key[..4].copy_from_slice(b"Jefe");
        let parts: [&[u8]; 2] = [b"what do ya want ", b"for nothing?"];
        let expected = [
            0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95,
            0x75, 0xc7, 0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9,
            0x64, 0xec, 0x38, 0x43,
        ];
        assert_eq!(mac(&key, &parts), expected);
        assert!(is_mac(&key, &parts, &expected));
        for at in 0..KEY_LEN {
            let mut other = expected;
            other[at] ^= 1;
            assert!(!is_mac(&key, &parts, &other));
        }
        assert!(!is_mac(&key, &parts, &expected[..KEY_LEN - 1]));
        assert!(!is_mac(&key, &parts[..1], &expected));
    }
}
