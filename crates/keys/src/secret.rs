// SPDX-License-Identifier: Apache-2.0
//! Files that only their owner may read.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Error;

/// A longer file is refused: what lies behind its end may be what forbids something.
const MAX_LEN: u64 = 64 * 1024;
const ROOT: u32 = 0;

/// The name of a kind of secret file, and the remedies for its errors.
pub(crate) struct SecretKind<'a> {
    pub name: &'a str,
    /// The remedy if the file can't be read.
    pub missing: &'a str,
    /// The remedy if others may have read it.
    pub leaked: &'a str,
}

const PASSWORD: SecretKind<'static> = SecretKind {
    name: "password file",
    missing: "write the password into it",
    leaked: "choose another password",
};

const PRIVATE_KEY: SecretKind<'static> = SecretKind {
    name: "private key",
    missing: "write it there, or name another file",
    leaked: "make another key, and have a certificate signed for it",
};

/// Returns the text of a private key for TLS.
///
/// # Errors
/// If the file can't be read, or others than its owner may read it.
pub fn private_key(path: &Path) -> Result<String, Error> {
    read_secret(path, &PRIVATE_KEY)
}

/// What a password file holds.
pub enum Passwords {
    /// The password of all clients, in one line.
    One(String),
    /// Lines of users, in the format of Redis's `aclfile`: the first word of the first line is
    /// `user`.
    OfUsers(String),
}

/// Reads a password file.
///
/// # Errors
/// If the file is missing, has neither users nor a password, or others than its owner may read it.
pub fn passwords(path: &Path) -> Result<Passwords, Error> {
    let text = read_secret(path, &PASSWORD)?;
    if text.starts_with("user ") {
        return Ok(Passwords::OfUsers(text));
    }
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line.is_empty() || line.contains('\n') {
        true => Err(Error::of(
            path,
            "the password file doesn't hold one line, or lines that begin with `user`",
            PASSWORD.missing,
        )),
        false => Ok(Passwords::One(line.to_owned())),
    }
}

/// Returns the text of the file, if only its owner may read it. A file of root's may be readable by
/// its group, too: so orchestrators hand secrets to programs of other users.
pub(crate) fn read_secret(path: &Path, kind: &SecretKind<'_>) -> Result<String, Error> {
    let name = kind.name;
    let cannot_read = |e: io::Error| cannot_read(path, kind, &e);
    let file = File::open(path).map_err(cannot_read)?;
    let metadata = file.metadata().map_err(cannot_read)?;
    let mode = metadata.mode() & 0o777;
    if mode & leaks(metadata.uid(), this_user()) != 0 {
        return Err(Error::of(
            path,
            format_args!("others than its owner may read or write this {name} (mode {mode:04o})"),
            format!(
                "`chmod 600 {}`; if anybody has read it, {}",
                path.display(),
                kind.leaked
            ),
        ));
    }
    let mut text = String::new();
    file.take(MAX_LEN + 1)
        .read_to_string(&mut text)
        .map_err(cannot_read)?;
    match text.len() as u64 {
        0..=MAX_LEN => Ok(text),
        _ => Err(Error::of(
            path,
            format_args!("this {name} has more than {MAX_LEN} bytes"),
            "keep in it only what belongs there",
        )),
    }
}

/// Returns the permissions that a secret of this owner must not have if a program of this user
/// reads it.
fn leaks(owner: u32, user: Option<u32>) -> u32 {
    match user {
        Some(user) if owner == ROOT && user != ROOT => 0o037,
        _ => 0o077,
    }
}

/// Returns the user of this process, if `/proc` tells it.
fn this_user() -> Option<u32> {
    Some(fs::metadata("/proc/self").ok()?.uid())
}

/// Returns the error of a file that can't be read. A file of another user has another remedy than a
/// missing one.
pub(crate) fn cannot_read(path: &Path, kind: &SecretKind<'_>, e: &io::Error) -> Error {
    let remedy = match e.kind() {
        io::ErrorKind::PermissionDenied => "run this as the user to whom it belongs, or with sudo",
        _ => kind.missing,
    };
    let name = kind.name;
    Error::of(path, format_args!("the {name} can't be read: {e}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_roots_file_may_be_readable_by_its_group_and_only_for_another_user() {
        assert_eq!(0o440 & leaks(ROOT, Some(100)), 0);
        for leaked in [0o660, 0o644, 0o650] {
            assert_ne!(leaked & leaks(ROOT, Some(100)), 0, "{leaked:o}");
        }
        for (owner, user) in [
            (ROOT, Some(ROOT)),
            (100, Some(100)),
            (100, Some(200)),
            (ROOT, None),
        ] {
            assert_ne!(0o440 & leaks(owner, user), 0, "{owner} {user:?}");
        }
    }
}
