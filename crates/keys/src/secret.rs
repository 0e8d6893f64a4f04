// SPDX-License-Identifier: Apache-2.0
//! Files that nobody but their owner may read.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::Error;

/// A longer file is none of ours.
const MAX_LEN: u64 = 64 * 1024;

/// What a secret file is called, and what to do about it.
pub(crate) struct Kind<'a> {
    pub name: &'a str,
    /// Where it can't be read.
    pub missing: &'a str,
    /// Where others may have read it.
    pub leaked: &'a str,
}

const PASSWORD: Kind<'static> = Kind {
    name: "password file",
    missing: "write the password into it",
    leaked: "choose another password",
};

const PRIVATE_KEY: Kind<'static> = Kind {
    name: "private key",
    missing: "write it there, or name another file",
    leaked: "make another key, and have a certificate signed for it",
};

/// The text of a private key for TLS.
///
/// # Errors
/// If it can't be read, or anybody but its owner may read it.
pub fn private_key(path: &Path) -> Result<String, Error> {
    read_secret(path, &PRIVATE_KEY)
}

/// The password that a file holds in one line.
///
/// # Errors
/// If it isn't there, holds none, or anybody but its owner may read it.
pub fn password(path: &Path) -> Result<String, Error> {
    let text = read_secret(path, &PASSWORD)?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    match line.is_empty() || line.contains('\n') {
        true => Err(Error::of(
            path,
            "the password file doesn't hold one line",
            PASSWORD.missing,
        )),
        false => Ok(line.to_owned()),
    }
}

/// The text, if nobody but the file's owner may read it.
pub(crate) fn read_secret(path: &Path, kind: &Kind<'_>) -> Result<String, Error> {
    let name = kind.name;
    let cannot_read = |e: io::Error| {
        Error::of(
            path,
            format_args!("the {name} can't be read: {e}"),
            kind.missing,
        )
    };
    let file = File::open(path).map_err(cannot_read)?;
    let metadata = file.metadata().map_err(cannot_read)?;
    let mode = metadata.mode() & 0o777;
    if mode & 0o077 != 0 {
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
    file.take(MAX_LEN)
        .read_to_string(&mut text)
        .map_err(cannot_read)?;
    Ok(text)
}
