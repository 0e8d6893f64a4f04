// SPDX-License-Identifier: Apache-2.0
//! Events of keys, as Redis's keyspace notifications tell them. Each replica's own servers make
//! them, so a front end needs only those of its own replica.
//!
//! `CONFIG SET notify-keyspace-events` is a command of partition 0's log, and the flags belong to
//! its state; a replica's other partitions follow it. A server gets the flags only while a client
//! has subscribed to such events, and not while it is given old commands again.
//!
//! ```text
//!  CONFIG SET ──log of partition 0──> flags ──┐
//!  subscriptions to events of keys ───────────┴──> notify-keyspace-events of each server
//!                                                   └──> ear ──> front end
//! ```

/// The setting's name.
pub const SETTING: &str = "notify-keyspace-events";

/// The flags in the order in which Redis shows them. The first [`CLASSES`] are those that `A`
/// stands for.
const FLAGS: &[u8; 13] = b"g$lshzxetdnKE";
const CLASSES: u16 = (1 << 10) - 1;
const ALL: u8 = b'A';
/// A flag that Redis has, and that can't be the same at all front ends.
const MISSES: u8 = b'm';
/// Redis doesn't show it beside `A`.
const NEW: u16 = 1 << 10;

const WRONG_NUMBER: &str = "ERR wrong number of arguments for 'config|set' command";
const DUPLICATE: &str = "ERR CONFIG SET failed (possibly related to argument \
                         'notify-keyspace-events') - duplicate parameter";
const NO_CLASS: &str = "ERR CONFIG SET failed (possibly related to argument \
                        'notify-keyspace-events') - Invalid event class character. Use \
                        'Ag$lshzxeKEtmdn'.";
const NO_MISSES: &str = "ERR CONFIG SET failed (possibly related to argument \
                         'notify-keyspace-events') - events of keys that aren't found aren't \
                         available here: one replica alone executes a read; leave 'm' out";

/// The beginnings of the channels of keys that clients see.
const CHANNELS: [&[u8]; 2] = [b"__keyspace@0__:", b"__keyevent@0__:"];
/// Those of the replica's own records.
const OWN_CHANNELS: [&[u8]; 2] = [b"__keyspace@1__:", b"__keyevent@1__:"];

/// The classes of events that are told, as a set of flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Notifications(u16);

impl Notifications {
    /// Returns the flags that CONFIG SET is to set, or the error that answers it; `None` for any
    /// other command, and for one that names another setting, too.
    pub fn asked(args: &[&[u8]]) -> Option<Result<Notifications, &'static str>> {
        let pairs = is_config_set(args).then(|| &args[2..])?;
        let mut names = pairs.iter().step_by(2);
        let is_it = |name: &&[u8]| name.eq_ignore_ascii_case(SETTING.as_bytes());
        if pairs.is_empty() || !names.all(is_it) {
            return None;
        }
        Some(match pairs {
            [_, flags] => Notifications::parse(flags),
            pairs if pairs.len() % 2 == 1 => Err(WRONG_NUMBER),
            _ => Err(DUPLICATE),
        })
    }

    fn parse(text: &[u8]) -> Result<Notifications, &'static str> {
        let mut flags = 0;
        for letter in text {
            flags |= match FLAGS.iter().position(|flag| flag == letter) {
                Some(at) => 1 << at,
                None if *letter == ALL => CLASSES,
                None if *letter == MISSES => return Err(NO_MISSES),
                None => return Err(NO_CLASS),
            };
        }
        Ok(Notifications(flags))
    }

    /// Returns the flags as Redis shows them.
    pub fn shown(self) -> String {
        let has_all = self.0 & CLASSES == CLASSES;
        let left = match has_all {
            true => self.0 & !(CLASSES | NEW),
            false => self.0,
        };
        let has = |(at, _): &(usize, &u8)| left >> at & 1 == 1;
        let letters = FLAGS.iter().enumerate().filter(has);
        let all = has_all.then_some(char::from(ALL));
        all.into_iter()
            .chain(letters.map(|(_, letter)| char::from(*letter)))
            .collect()
    }

    /// Returns the flags as they are given to a server: all, also those that Redis doesn't show.
    pub(super) fn letters(self) -> Vec<u8> {
        let has = |(at, _): &(usize, &u8)| self.0 >> at & 1 == 1;
        let letters = FLAGS.iter().enumerate().filter(has);
        letters.map(|(_, letter)| *letter).collect()
    }

    pub(super) fn bits(self) -> u16 {
        self.0
    }

    /// Returns the flags that these bits stand for, or `None` if there are no such flags.
    pub(super) fn of_bits(bits: u16) -> Option<Notifications> {
        (bits >> FLAGS.len() == 0).then_some(Notifications(bits))
    }
}

/// Returns whether a command is CONFIG SET, of whatever setting.
pub fn is_config_set(args: &[&[u8]]) -> bool {
    let [command, set, ..] = args else {
        return false;
    };
    command.eq_ignore_ascii_case(b"config") && set.eq_ignore_ascii_case(b"set")
}

/// Returns whether a channel, or the channels of a pattern, may be those of keys.
pub fn may_be_of_keys(name: &[u8], is_pattern: bool) -> bool {
    let is_special = |byte: &u8| b"*?[\\".contains(byte);
    let special = name.iter().position(is_special).filter(|_| is_pattern);
    let fixed = &name[..special.unwrap_or(name.len())];
    let fits = |of: &&[u8]| fixed.starts_with(of) || special.is_some() && of.starts_with(fixed);
    CHANNELS.iter().any(fits)
}

/// Returns whether a channel tells of the replica's own records.
pub(super) fn is_own(channel: &[u8]) -> bool {
    OWN_CHANNELS.iter().any(|own| channel.starts_with(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Option<Result<String, &'static str>> {
        let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let asked = Notifications::asked(&words)?;
        Some(asked.map(Notifications::shown))
    }

    #[test]
    fn flags_are_shown_as_by_redis() {
        // As Redis 7.0.15 answers.
        for (given, shown) in [
            ("KEA", "AKE"),
            ("g$lshzxetdn", "A"),
            ("AnK", "AK"),
            ("KEgn", "gnKE"),
            ("A$g", "A"),
            ("xxE", "xE"),
            ("", ""),
        ] {
            let words = format!("config SET Notify-Keyspace-Events {given}");
            assert_eq!(asked(&words), Some(Ok(shown.to_owned())), "{given}");
        }
    }

    #[test]
    fn other_flags_and_other_settings_are_refused() {
        const SET: &str = "CONFIG SET notify-keyspace-events";
        for (words, why) in [
            (format!("{SET} Q"), NO_CLASS),
            (format!("{SET} AKEm"), NO_MISSES),
            (format!("{SET} Ex {SET}"), WRONG_NUMBER),
            (format!("{SET} Ex notify-keyspace-events Ex"), DUPLICATE),
            (SET.into(), WRONG_NUMBER),
        ] {
            let expected = match words.matches("SET").count() {
                2 => None,
                _ => Some(Err(why)),
            };
            assert_eq!(asked(&words), expected, "{words}");
        }
        for words in [
            "CONFIG SET",
            "CONFIG",
            "CONFIG GET notify-keyspace-events",
            "CONFIG SET maxmemory 1",
            "CONFIG SET notify-keyspace-events Ex maxmemory 1",
        ] {
            assert_eq!(asked(words), None, "{words}");
        }
    }

    #[test]
    fn bits_have_one_meaning() {
        for bits in 0..=u16::MAX {
            let flags = Notifications::of_bits(bits);
            assert_eq!(flags.is_some(), bits < 1 << FLAGS.len());
            if let Some(flags) = flags {
                assert_eq!(Notifications::parse(&flags.letters()), Ok(flags));
            }
        }
    }

    #[test]
    fn names_of_other_channels_cost_nothing() {
        for (name, is_pattern, may) in [
            (&b"__keyspace@0__:k"[..], false, true),
            (b"__keyevent@0__:expired", false, true),
            (b"__keyspace@1__:k", false, false),
            (b"__keyspace@0__:*", true, true),
            (b"__key*__:*", true, true),
            (b"__key*__:*", false, false),
            (b"*", true, true),
            (b"", true, false),
            (b"__keyspace", true, false),
            (b"socket.io#/#*", true, false),
            (b"_\\_keyevent@0__:del", true, true),
        ] {
            assert_eq!(may_be_of_keys(name, is_pattern), may, "{name:?}");
        }
    }
}
