// SPDX-License-Identifier: Apache-2.0
//! Finds the program of a server, and connects to its process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use std::{fs, io};

use replica::Error;

use super::super::connection::Connection;
use super::{LOG_FILE, LOG_SHOWN, PROGRAMS, refused};

/// Finds the server's program, and the name under which to start it.
pub(super) fn find_program() -> Result<(PathBuf, &'static str), Error> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let found = PROGRAMS.iter().find_map(|(file, name)| {
        let mut files = dirs.iter().map(|dir| dir.join(file));
        let path = files.find(|path| path.is_file())?;
        // A server has another working directory.
        Some((std::path::absolute(path).ok()?, *name))
    });
    found.ok_or_else(|| {
        Error(
            "there is no redis-server in the search path: install Redis or Valkey (on Debian and \
             Ubuntu, the package redis-server, or redis-tools, which has the program, too)"
                .into(),
        )
    })
}

/// Returns whether a server is installed.
pub fn is_installed() -> bool {
    find_program().is_ok()
}

pub(super) fn program_name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Connects as soon as the server listens, and waits until it has read its contents.
pub(super) fn connect(child: &mut Child, dir: &Path, socket: &Path) -> io::Result<Connection> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Err(io::Error::other(format!("it has ended ({status})")));
        }
        let Ok(mut connection) = Connection::to(dir, socket) else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        let mut answer = Vec::new();
        connection.put(b"PING\r\n");
        connection.send()?;
        connection.receive(&mut answer)?;
        if answer == b"+PONG\r\n" {
            return Ok(connection);
        }
        if !answer.starts_with(b"-LOADING") {
            return Err(refused(&answer));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(super) fn last_words(dir: &Path) -> String {
    let texts = [LOG_FILE, "server.err"].map(|name| fs::read(dir.join(name)).unwrap_or_default());
    let text = texts.concat();
    let shown = &text[text.len().saturating_sub(LOG_SHOWN)..];
    String::from_utf8_lossy(shown).trim().replace('\n', " | ")
}
