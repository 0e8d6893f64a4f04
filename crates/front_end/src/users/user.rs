// SPDX-License-Identifier: Apache-2.0
//! One user: passwords, and the commands, keys and channels that the user may use.

use apps::glob;

use super::Hash;

const EVERYTHING: &[u8] = b"*";

/// A user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct User {
    name: Vec<u8>,
    pub(super) is_on: bool,
    /// True if any password is right.
    pub(super) is_open: bool,
    pub(super) passwords: Vec<Hash>,
    /// The last one that matches a command decides.
    pub(super) commands: Vec<Rule>,
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) channels: Vec<Vec<u8>>,
}

/// A rule about commands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Rule {
    pub allows: bool,
    pub target: Target,
}

/// The commands that a rule is about. All names are in lower case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Target {
    All,
    Category(String),
    /// A command, or only one of its subcommands.
    Command(String, Option<String>),
}

/// A command, as rules see it.
pub(crate) struct Described<'a> {
    pub name: &'a str,
    /// The first argument, if there is one: perhaps a subcommand.
    pub sub: Option<&'a [u8]>,
    /// The names of its categories, without the sign.
    pub categories: Vec<&'a str>,
}

impl User {
    /// Creates a user who is off and may do nothing.
    pub(super) fn none(name: &[u8]) -> User {
        User {
            name: name.to_vec(),
            is_on: false,
            is_open: false,
            passwords: Vec::new(),
            commands: Vec::new(),
            keys: Vec::new(),
            channels: Vec::new(),
        }
    }

    /// Creates a user who may do everything.
    pub(super) fn all(name: &[u8], password: Option<Hash>) -> User {
        User {
            is_on: true,
            is_open: password.is_none(),
            passwords: password.into_iter().collect(),
            commands: vec![Rule {
                allows: true,
                target: Target::All,
            }],
            keys: vec![EVERYTHING.to_vec()],
            channels: vec![EVERYTHING.to_vec()],
            ..User::none(name)
        }
    }

    pub fn name(&self) -> &[u8] {
        &self.name
    }

    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// Returns true if the user needs no password.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Returns true if a password with this hash is right. The time depends only on the number of
    /// the user's passwords.
    pub fn accepts(&self, given: &Hash) -> bool {
        let mut is_right = self.is_open;
        for own in &self.passwords {
            let pairs = own.iter().zip(given);
            let difference = pairs.fold(0, |difference, (a, b)| difference | (a ^ b));
            is_right |= std::hint::black_box(difference) == 0;
        }
        is_right
    }

    /// Returns true if the user may do everything.
    pub fn may_everything(&self) -> bool {
        let is_all = |rule: &Rule| rule.allows && rule.target == Target::All;
        let may_run_all = self.commands.last().is_some_and(is_all);
        may_run_all && self.may_all_keys() && self.channels.iter().any(|c| c == EVERYTHING)
    }

    pub fn may_run(&self, command: &Described<'_>) -> bool {
        let mut rules = self.commands.iter().rev();
        rules
            .find(|rule| rule.target.is(command))
            .is_some_and(|rule| rule.allows)
    }

    pub fn may_touch(&self, key: &[u8]) -> bool {
        matches_any(&self.keys, key)
    }

    /// Returns the number of patterns with which a key is compared.
    pub fn key_patterns(&self) -> usize {
        self.keys.len()
    }

    pub fn may_all_keys(&self) -> bool {
        self.keys.iter().any(|pattern| pattern == EVERYTHING)
    }

    /// Returns true if the user may subscribe or send to a channel.
    pub fn may_hear(&self, channel: &[u8]) -> bool {
        matches_any(&self.channels, channel)
    }

    /// Returns true if the user may subscribe to a pattern: it must be one of the user's own, since
    /// nobody can tell which channels it matches.
    pub fn may_hear_pattern(&self, pattern: &[u8]) -> bool {
        let mut own = self.channels.iter();
        own.any(|own| own == EVERYTHING || own == pattern)
    }

    /// Returns the line of ACL LIST.
    pub fn shown(&self) -> String {
        let mut words = vec![format!("user {}", self.name.escape_ascii())];
        words.push(if self.is_on { "on" } else { "off" }.to_owned());
        words.extend(self.is_open.then(|| "nopass".to_owned()));
        let hex = |hash: &Hash| hash.iter().map(|b| format!("{b:02x}")).collect::<String>();
        words.extend(self.passwords.iter().map(|hash| format!("#{}", hex(hash))));
        let shown = |sign: &str, pattern: &Vec<u8>| format!("{sign}{}", pattern.escape_ascii());
        words.extend(self.keys.iter().map(|pattern| shown("~", pattern)));
        words.extend(self.channels.iter().map(|pattern| shown("&", pattern)));
        words.extend(self.commands.iter().map(Rule::shown));
        words.join(" ")
    }
}

impl Rule {
    fn shown(&self) -> String {
        let sign = if self.allows { '+' } else { '-' };
        match &self.target {
            Target::All => format!("{sign}@all"),
            Target::Category(name) => format!("{sign}@{name}"),
            Target::Command(name, None) => format!("{sign}{name}"),
            Target::Command(name, Some(sub)) => format!("{sign}{name}|{sub}"),
        }
    }
}

impl Target {
    fn is(&self, command: &Described<'_>) -> bool {
        match self {
            Target::All => true,
            Target::Category(own) => command.categories.contains(&own.as_str()),
            Target::Command(name, None) => name == command.name,
            Target::Command(name, Some(sub)) => {
                let given = command.sub.unwrap_or_default();
                name == command.name && given.eq_ignore_ascii_case(sub.as_bytes())
            }
        }
    }
}

fn matches_any(patterns: &[Vec<u8>], text: &[u8]) -> bool {
    patterns.iter().any(|pattern| glob::matches(pattern, text))
}
