// SPDX-License-Identifier: Apache-2.0
//! The format of Redis's `aclfile`, a line for each user: `user alice on >secret ~cache:* +@read`.

use std::collections::HashSet;

use apps::glob::MAX_PATTERN;

use super::user::{Rule, Target, User};
use super::{Hash, Unknown, hash};

/// Parses a file of users.
///
/// # Errors
/// If a line isn't understood; the error has its number.
pub(super) fn parse(text: &str, unknown: &Unknown<'_>) -> Result<Vec<User>, String> {
    let mut users: Vec<User> = Vec::new();
    let mut names = HashSet::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at_line = |why: String| format!("line {}: {why}", number + 1);
        let user = user(line, unknown).map_err(at_line)?;
        if !names.insert(user.name().to_vec()) {
            return Err(at_line(
                "this user is there twice: write one line for each".into(),
            ));
        }
        users.push(user);
    }
    match users.is_empty() {
        true => {
            Err("it names no user: write a line such as `user alice on >secret ~* &* +@all`".into())
        }
        false => Ok(users),
    }
}

fn user(line: &str, unknown: &Unknown<'_>) -> Result<User, String> {
    let mut words = line.split_ascii_whitespace();
    let name = match (words.next(), words.next()) {
        (Some("user"), Some(name)) => name,
        _ => return Err("it doesn't begin with `user NAME`".into()),
    };
    let mut user = User::none(name.as_bytes());
    words.try_for_each(|word| {
        apply(&mut user, word, unknown).map_err(|why| format!("`{}`: {why}", shown(word)))
    })?;
    Ok(user)
}

/// Returns a word as an error may show it: without a password.
fn shown(word: &str) -> String {
    match word.chars().next() {
        Some(sign @ ('>' | '<' | '#' | '!')) => format!("{sign}..."),
        _ => word.escape_default().to_string(),
    }
}

/// Carries out one word of a user's line. [Redis, "ACL rules"]
fn apply(user: &mut User, word: &str, unknown: &Unknown<'_>) -> Result<(), String> {
    match word.to_ascii_lowercase().as_str() {
        "on" => user.is_on = true,
        "off" => user.is_on = false,
        "nopass" => (user.is_open, user.passwords) = (true, Vec::new()),
        "resetpass" => (user.is_open, user.passwords) = (false, Vec::new()),
        "allkeys" => user.keys = vec![b"*".to_vec()],
        "resetkeys" => user.keys.clear(),
        "allchannels" => user.channels = vec![b"*".to_vec()],
        "resetchannels" => user.channels.clear(),
        "allcommands" | "+@all" => user.commands = vec![all(true)],
        "nocommands" | "-@all" => user.commands = vec![all(false)],
        "reset" => *user = User::none(user.name()),
        "sanitize-payload" | "clearselectors" => {}
        _ => return apply_sign(user, word, unknown),
    }
    Ok(())
}

/// Carries out a word that begins with a sign.
fn apply_sign(user: &mut User, word: &str, unknown: &Unknown<'_>) -> Result<(), String> {
    let mut rest = word.chars();
    let sign = rest.next();
    let rest = rest.as_str();
    match sign {
        Some('>') => add_password(user, hash(rest)),
        Some('<') => user.passwords.retain(|own| *own != hash(rest)),
        Some('#') => add_password(user, from_hex(rest)?),
        Some('!') => {
            let gone = from_hex(rest)?;
            user.passwords.retain(|own| *own != gone);
        }
        Some('~') => user.keys.push(pattern(rest)?),
        Some('&') => user.channels.push(pattern(rest)?),
        Some('+') => user.commands.push(rule(true, rest, unknown)?),
        Some('-') => user.commands.push(rule(false, rest, unknown)?),
        Some('%' | '(') => {
            return Err(
                "selectors and %R~, %W~ aren't available: give ~PATTERN, or another user".into(),
            );
        }
        _ => return Err("it is no rule of Redis's ACL".into()),
    }
    Ok(())
}

fn add_password(user: &mut User, new: Hash) {
    user.is_open = false;
    if !user.passwords.contains(&new) {
        user.passwords.push(new);
    }
}

fn all(allows: bool) -> Rule {
    Rule {
        allows,
        target: Target::All,
    }
}

fn rule(allows: bool, name: &str, unknown: &Unknown<'_>) -> Result<Rule, String> {
    let name = name.to_ascii_lowercase();
    let (command, sub) = match name.split_once('|') {
        Some((command, sub)) => (command, Some(sub.to_owned())),
        None => (name.as_str(), None),
    };
    if let Some(why) = unknown(command) {
        return Err(why);
    }
    let target = match (command.strip_prefix('@'), sub) {
        (Some(category), None) => Target::Category(category.to_owned()),
        (Some(_), Some(_)) => return Err("a category has no subcommands".into()),
        (None, sub) => Target::Command(command.to_owned(), sub),
    };
    Ok(Rule { allows, target })
}

fn pattern(text: &str) -> Result<Vec<u8>, String> {
    match text.len() {
        0 => Err("a pattern is missing".into()),
        1..=MAX_PATTERN => Ok(text.as_bytes().to_vec()),
        len => Err(format!(
            "a pattern of {len} bytes: it may have {MAX_PATTERN}"
        )),
    }
}

fn from_hex(text: &str) -> Result<Hash, String> {
    let wrong = || "this is no SHA-256 of 64 hexadecimal digits".to_owned();
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(bytes)
}

#[cfg(test)]
#[path = "rules_tests.rs"]
mod tests;
