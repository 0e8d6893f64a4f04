// SPDX-License-Identifier: Apache-2.0
//! The errors of a client, which programs can tell apart.

use std::fmt;

use node::cluster_file;

use crate::control::NoAnswer;
use crate::outcome::{Doubt, Refusal};

/// An error. Its text says the remedy if there is one.
///
/// More kinds may come, so a `match` needs a `_`. The `{:?}` of an error is its text, too, so that
/// a `main` that returns it prints that.
#[non_exhaustive]
pub enum Error {
    /// No answer came in time. This says nothing about the outcome of a command;
    /// [`Unknown`](Error::Unknown) does.
    TimedOut(String),
    /// A command takes no effect, now or later, so it may be tried again.
    Refused(Refusal),
    /// A command may have taken effect, or may yet do so, but at most once. Check before trying
    /// again.
    Unknown(Doubt),
    /// A command took effect, but its answer is too large to be sent or remembered.
    AnswerLost,
    /// The node that was asked refuses, with the reason: for example the controller refuses to
    /// change the leader.
    Denied(String),
    /// No majority of the acceptors answers.
    NoQuorum(String),
    /// The cluster file is wrong, or doesn't fit the request. Each problem has its line, if it has
    /// one, and its remedy.
    Configuration(cluster_file::Errors),
    /// Stored data can't be read, written or relied on. Acknowledged commands are stored elsewhere,
    /// or are in the acceptors' log.
    Store(String),
    /// The host has failed: sockets, interfaces, memory or threads.
    System(String),
}

impl Error {
    /// Returns an error about a request that doesn't fit the cluster file, with the remedy.
    pub fn configuration(problem: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::Configuration(cluster_file::Errors::one("", problem, remedy))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Refused(why) => write!(f, "refused: {why}"),
            Error::Unknown(why) => write!(f, "outcome unknown: {why}"),
            Error::AnswerLost => {
                f.write_str("executed, but the answer is too large to be sent or remembered")
            }
            Error::Configuration(errors) => errors.fmt(f),
            Error::TimedOut(text)
            | Error::Denied(text)
            | Error::NoQuorum(text)
            | Error::Store(text)
            | Error::System(text) => f.write_str(text),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}

impl From<std::io::Error> for Error {
    fn from(e: std::io::Error) -> Error {
        Error::System(e.to_string())
    }
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        Error::Refused(refusal)
    }
}

impl From<Doubt> for Error {
    fn from(doubt: Doubt) -> Error {
        Error::Unknown(doubt)
    }
}

impl From<NoAnswer> for Error {
    fn from(e: NoAnswer) -> Error {
        Error::TimedOut(e.to_string())
    }
}

impl From<cluster_file::Errors> for Error {
    fn from(errors: cluster_file::Errors) -> Error {
        Error::Configuration(errors)
    }
}

impl From<replica::Error> for Error {
    fn from(e: replica::Error) -> Error {
        Error::Store(e.to_string())
    }
}

impl From<node::Error> for Error {
    fn from(e: node::Error) -> Error {
        match e {
            node::Error::Configuration(errors) => Error::Configuration(errors),
            node::Error::Store(text) => Error::Store(text),
            other => Error::System(other.to_string()),
        }
    }
}
