// SPDX-License-Identifier: Apache-2.0
//! Parses requests as clients send them, in RESP arrays of bulk strings or inline commands, and
//! writes answers.
//!
//! This is our own parser, because the crates that parse RESP serve clients: they take every type
//! in every place, know no inline commands, have no limits, and their errors aren't Redis's. The
//! server's half is small.

mod parser;
mod request;
mod writer;

pub use self::parser::{Parser, parse};
pub use self::request::{Argument, Limits, ProtocolError, Request};
pub use self::writer::Writer;
