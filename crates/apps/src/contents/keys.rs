// SPDX-License-Identifier: Apache-2.0
//! The keys of the store: places, pieces and prefixes.

use super::{Form, LONG, PIECE, SHORT, USER};
use crate::kv::MAX_STRING_LEN;
use crate::place;
use crate::store::Cursor;

/// The last byte of a stored short value, and the last byte behind a long value's stored length.
pub(super) const WHOLE: u8 = 0;

pub(super) const PIECES: u8 = 1;

/// Parses what is stored under a user key.
pub(super) fn parse_value(value: &[u8]) -> Option<Form<'_>> {
    let (kind, value) = value.split_last()?;
    match *kind {
        WHOLE if value.len() <= SHORT => Some(Form::Whole(value)),
        PIECES => {
            let stored = u64::from_be_bytes(value.try_into().ok()?);
            let sound = SHORT as u64 + 1..=MAX_STRING_LEN as u64;
            sound.contains(&stored).then_some(Form::Long {
                stored: stored as usize,
                tail: &[],
            })
        }
        _ => None,
    }
}

/// Returns how many pieces a long value of `len` bytes has.
pub(super) fn pieces(len: usize) -> u32 {
    len.div_ceil(PIECE) as u32
}

pub(super) fn piece_len(len: usize, number: u32) -> usize {
    (len - number as usize * PIECE).min(PIECE)
}

pub(super) fn piece_key(key: &[u8], number: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + 2 + key.len() + 4);
    out.push(LONG);
    // Keys of the language have a length of 16 bits.
    out.extend_from_slice(&(key.len() as u16).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&number.to_be_bytes());
    out
}

pub(super) fn is_piece_key(key: &[u8]) -> bool {
    match key {
        [LONG, high, low, rest @ ..] => {
            rest.len() == usize::from(u16::from_be_bytes([*high, *low])) + 4
        }
        _ => false,
    }
}

/// A user key with its place.
pub(super) type Placed<'a> = (u64, &'a [u8]);

/// Makes `into` the stored form of a user key. Most keys are looked up and then written, so the
/// place, which is a hash, is kept from the first time.
pub(super) fn set_user_key(into: &mut Vec<u8>, key: &[u8]) {
    if split_user_key(into).is_some_and(|(_, known)| known == key) {
        return;
    }
    into.clear();
    into.push(USER);
    into.extend_from_slice(&place::to_bytes(place::of(key)));
    into.extend_from_slice(key);
}

pub(super) fn split_user_key(stored: &[u8]) -> Option<Placed<'_>> {
    let [USER, placed @ ..] = stored else {
        return None;
    };
    let (place, key) = placed.split_first_chunk()?;
    Some((place::from_bytes(*place), key))
}

/// Returns whether a stored user key is under its own place.
pub(super) fn is_user_key(stored: &[u8]) -> bool {
    split_user_key(stored).is_some_and(|(place, key)| place == place::of(key))
}

/// Goes to the first user key that isn't before a place.
pub(super) fn seek_place(cursor: &mut Cursor, place: u64) {
    let mut key = vec![USER];
    key.extend_from_slice(&place::to_bytes(place));
    cursor.seek(&key);
}

pub(super) fn set_prefixed(into: &mut Vec<u8>, prefix: u8, key: &[u8]) {
    into.clear();
    into.push(prefix);
    into.extend_from_slice(key);
}

pub(super) fn parse_count(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}
