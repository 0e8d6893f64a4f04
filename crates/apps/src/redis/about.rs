// SPDX-License-Identifier: Apache-2.0
//! The part of a snapshot that describes a replica's state beside its keys: `about` in database 1.

use super::clock::Clock;
use crate::watches::Watches;

const FORMAT: u8 = 3;

/// Encodes the clock, how often random numbers were seeded, and the watched keys.
pub(super) fn emit(clock: &Clock, drawn: u64, watches: &Watches) -> Vec<u8> {
    let mut about = vec![FORMAT];
    clock.emit(&mut about);
    about.extend_from_slice(&drawn.to_be_bytes());
    about.extend_from_slice(&watches.last().to_be_bytes());
    for (key, version) in watches.all() {
        about.extend_from_slice(&(key.len() as u32).to_be_bytes());
        about.extend_from_slice(key);
        about.extend_from_slice(&version.to_be_bytes());
    }
    about
}

/// Decodes what [`emit`] has encoded.
pub(super) fn parse(about: &[u8]) -> Result<(Clock, u64, Watches), String> {
    let (format, rest) = about.split_first().ok_or("they name no format")?;
    if *format != FORMAT {
        return Err(format!(
            "they are of format {format}, and this program reads format {FORMAT}: start the version that wrote them"
        ));
    }
    let parsed = Clock::parse(rest).and_then(|(clock, rest)| {
        let (drawn, rest) = rest.split_first_chunk()?;
        let (last, mut rest) = rest.split_first_chunk()?;
        let mut watched = Vec::new();
        while !rest.is_empty() {
            let (len, behind) = rest.split_first_chunk()?;
            let (key, behind) = behind.split_at_checked(u32::from_be_bytes(*len) as usize)?;
            let (version, behind) = behind.split_first_chunk()?;
            watched.push((key.to_vec(), u64::from_be_bytes(*version)));
            rest = behind;
        }
        let last = u64::from_be_bytes(*last);
        let watches = Watches::load(last, watched.into_iter());
        Some((clock, u64::from_be_bytes(*drawn), watches))
    });
    parsed.ok_or_else(|| "what they say of themselves is damaged".into())
}
