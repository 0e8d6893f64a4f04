// SPDX-License-Identifier: Apache-2.0
//! Printing, also to a reader that has gone: `wirepaxos status | head` is no error.
//!
//! The two macros take the place of the standard ones, which panic then, in crates that say
//! `#[macro_use] extern crate local_cluster`.

use std::fmt::Arguments;
use std::io::{self, Write};

/// The standard macro, but a reader that has gone is no error.
#[macro_export]
macro_rules! println {
    () => { $crate::output::line(format_args!("")) };
    ($($text:tt)*) => { $crate::output::line(format_args!($($text)*)) };
}

/// The standard macro, but a reader that has gone is no error.
#[macro_export]
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::output::error_line(format_args!($($text)*)) };
}

/// Prints a line on standard output, if anybody reads it.
pub fn line(text: Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints a line on standard error, if anybody reads it.
pub fn error_line(text: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}
