// SPDX-License-Identifier: Apache-2.0
//! The `key=value` fields of a script line.

use paxos::{NodeId, Round};

/// The fields of one line, each taken at most once.
pub struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    /// Splits the rest of a line into fields.
    pub fn parse(text: &'a str) -> Result<Fields<'a>, String> {
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for word in text.split_whitespace() {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            if fields.iter().any(|(known, _)| *known == key) {
                return Err(format!("{key} is said twice"));
            }
            fields.push((key, value));
        }
        Ok(Fields(fields))
    }

    /// Takes a field's text.
    pub fn take(&mut self, key: &str) -> Option<&'a str> {
        let at = self.0.iter().position(|(known, _)| *known == key)?;
        Some(self.0.remove(at).1)
    }

    /// Takes all remaining fields.
    pub fn take_all(&mut self) -> Vec<(&'a str, &'a str)> {
        std::mem::take(&mut self.0)
    }

    /// Returns an error that names a field that was not taken, if there is one.
    pub fn finish(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!("no such field here: {key}")),
        }
    }

    /// Takes a number of 64 bits.
    pub fn u64(&mut self, key: &str, default: u64) -> Result<u64, String> {
        self.take(key).map_or(Ok(default), |text| number(key, text))
    }

    /// Takes a number of 32 bits.
    pub fn u32(&mut self, key: &str, default: u32) -> Result<u32, String> {
        let number = self.u64(key, default.into())?;
        number.try_into().map_err(|_| format!("{key} is too large"))
    }

    /// Takes a number of 16 bits.
    pub fn u16(&mut self, key: &str, default: u16) -> Result<u16, String> {
        let number = self.u64(key, default.into())?;
        number.try_into().map_err(|_| format!("{key} is too large"))
    }

    /// Takes a number of 8 bits.
    pub fn u8(&mut self, key: &str, default: u8) -> Result<u8, String> {
        let number = self.u64(key, default.into())?;
        number.try_into().map_err(|_| format!("{key} is too large"))
    }

    /// Takes a round.
    pub fn round(&mut self, key: &str) -> Result<Round, String> {
        self.take(key).map_or(Ok(Round::NONE), parse_round)
    }

    /// Takes numbers with commas between them; a missing field stands for `default` zeros.
    pub fn list(&mut self, key: &str, default: usize) -> Result<Vec<u64>, String> {
        match self.take(key) {
            None => Ok(vec![0; default]),
            Some("") => Ok(Vec::new()),
            Some(text) => text.split(',').map(|part| number(key, part)).collect(),
        }
    }

    /// Takes node ids with commas between them.
    pub fn nodes(&mut self, key: &str) -> Result<Vec<NodeId>, String> {
        let numbers = self.list(key, 0)?;
        numbers
            .into_iter()
            .map(|n| n.try_into().map_err(|_| format!("{key} is too large")))
            .collect()
    }
}

/// Parses a number: decimal, or hexadecimal after `0x`.
pub fn number(key: &str, text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{key}={text} is no number"))
}

/// Parses a round: `-` for none, `epoch` for a base round, `epoch.attempt/lane` for a repair round,
/// or the bare 32 bits after `0x`.
pub fn parse_round(text: &str) -> Result<Round, String> {
    let bad = || format!("{text} is no round");
    if text == "-" {
        return Ok(Round::NONE);
    }
    if let Some(hex) = text.strip_prefix("0x") {
        return Ok(Round(u32::from_str_radix(hex, 16).map_err(|_| bad())?));
    }
    let (epoch, sub) = text.split_once('.').unwrap_or((text, ""));
    let epoch: u32 = epoch.parse().map_err(|_| bad())?;
    if epoch == 0 || epoch > paxos::round::MAX_EPOCH {
        return Err(bad());
    }
    if sub.is_empty() {
        return Ok(Round::base(epoch));
    }
    let (attempt, lane) = sub.split_once('/').ok_or_else(bad)?;
    let attempt = attempt.parse().map_err(|_| bad())?;
    let lane = lane.parse().map_err(|_| bad())?;
    Round::repair(epoch, lane, attempt).ok_or_else(bad)
}
