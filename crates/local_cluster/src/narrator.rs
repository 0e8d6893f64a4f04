// SPDX-License-Identifier: Apache-2.0
//! The lines that tell a person how far a command is.

use std::time::Instant;

/// Writes lines with the seconds since it was made: to standard output, or to standard error where
/// standard output is for machines.
pub struct Narrator {
    start: Instant,
    json: bool,
}

impl Narrator {
    /// Creates a narrator; with `json` standard output is for machines.
    pub fn new(json: bool) -> Narrator {
        Narrator {
            start: Instant::now(),
            json,
        }
    }

    /// Writes a line.
    pub fn line(&self, text: &str) {
        let seconds = self.start.elapsed().as_secs_f64();
        match self.json {
            true => eprintln!("{seconds:6.1} s  {text}"),
            false => println!("{seconds:6.1} s  {text}"),
        }
    }
}
