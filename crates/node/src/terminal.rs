// SPDX-License-Identifier: Apache-2.0
//! The terminal of a command that draws on a screen of its own: its size, its mode, and its keys.
//!
//! Whatever ends the command, the terminal is as it was before: at its end, after a panic (whose
//! words then stand on the usual screen), and after each signal that requests a stop.

#![allow(unsafe_code)]

use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::host::{Stop, wait};

/// Shows the other screen, without a cursor.
const BEGIN: &str = "\x1b[?1049h\x1b[?25l";
const END: &str = "\x1b[?25h\x1b[?1049l";

/// The mode to which the terminal returns, while a screen is open.
static BEFORE: Mutex<Option<libc::termios>> = Mutex::new(None);

/// Returns the lines and columns of the terminal at standard output.
pub fn size() -> Option<(usize, usize)> {
    // SAFETY: zeros are a valid value.
    let mut size: libc::winsize = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes a `winsize` there.
    let result = unsafe { libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &mut size) };
    let size = (usize::from(size.ws_row), usize::from(size.ws_col));
    (result == 0 && size.0 > 0 && size.1 > 0).then_some(size)
}

/// A screen of the command's own, until this is dropped. A process has at most one.
pub struct Screen(());

impl Screen {
    /// Opens the screen. Keys come at once from now on, and aren't shown; Ctrl-C still is a signal.
    pub fn open() -> io::Result<Screen> {
        let before = mode()?;
        let mut mode = before;
        mode.c_lflag &= !(libc::ICANON | libc::ECHO);
        // A stopped command would leave the terminal to the shell like this.
        mode.c_cc[libc::VSUSP] = 0;
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            restore();
            hook(panic);
        }));
        *BEFORE.lock().unwrap_or_else(PoisonError::into_inner) = Some(before);
        let screen = Screen(());
        set_mode(&mode)?;
        screen.draw(BEGIN)?;
        Ok(screen)
    }

    /// Writes to the screen.
    pub fn draw(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Returns the keys that come within some time, or before a stop is requested.
    pub fn keys(&self, stop: &Stop, within: Duration) -> io::Result<Vec<u8>> {
        let ready = wait(&[io::stdin().as_fd(), stop.as_fd()], Some(within))?;
        if !ready.has(0) {
            return Ok(Vec::new());
        }
        let mut keys = [0; 64];
        match io::stdin().lock().read(&mut keys)? {
            // The terminal has gone.
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => Ok(keys[..n].to_vec()),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Makes the terminal as it was before the screen was opened, if one is open.
fn restore() {
    let before = BEFORE.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(before) = before {
        // Nothing can be done for a terminal that has gone.
        let _ = io::stdout().write_all(END.as_bytes());
        let _ = io::stdout().flush();
        let _ = set_mode(&before);
    }
}

fn mode() -> io::Result<libc::termios> {
    // SAFETY: zeros are a valid value.
    let mut mode: libc::termios = unsafe { mem::zeroed() };
    // SAFETY: `mode` is live, and only written to.
    match unsafe { libc::tcgetattr(io::stdin().as_raw_fd(), &mut mode) } {
        0 => Ok(mode),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_mode(mode: &libc::termios) -> io::Result<()> {
    // SAFETY: `mode` is live, and only read.
    match unsafe { libc::tcsetattr(io::stdin().as_raw_fd(), libc::TCSADRAIN, mode) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// The variable that tells the child process of the test below from the test.
    const CHILD: &str = "WIREPAXOS_TEST_TERMINAL";

    #[test]
    fn a_terminal_is_as_it_was_after_a_panic() {
        if std::env::var_os(CHILD).is_some() {
            let _screen = Screen::open().unwrap();
            panic!("on purpose");
        }
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../cli/tests/terminal/on_terminal.py"
        );
        let python = Command::new("python3")
            .args([script, "none", "-"])
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture"])
            .arg("terminal::tests::a_terminal_is_as_it_was_after_a_panic")
            .env(CHILD, "1")
            .output();
        let Ok(output) = python else {
            println!("SKIPPED: there is no python3, which makes the terminal");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        for words in ["restored\n", "left the screen\n"] {
            assert!(said.contains(words), "{words:?} isn't in {said}");
        }
        // What the panic says stands on the screen that stays.
        let behind = said.rsplit(END).next().unwrap();
        assert!(behind.contains("on purpose"), "{said}");
    }
}
