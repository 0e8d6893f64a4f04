// SPDX-License-Identifier: Apache-2.0
//! What can go wrong, so that a program can tell one from the other.

use std::fmt;

use node::cluster_file;

use crate::control::NoAnswer;
use crate::outcome::{Doubt, Refusal};

/// What went wrong. Its text says what to do, where there is something to do.
///
/// More kinds may come: a `match` needs a `_`.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Nobody answered in time. Of a command this says nothing about its outcome: that is
    /// [`Unknown`](Error::Unknown).
    TimedOut(String),
    /// A command takes no effect, now and later: it may be tried again.
    Refused(Refusal),
    /// A command may have taken effect, or may yet, once: look before trying again.
    Unknown(Doubt),
    /// A command took effect, but its answer is too large to be sent or remembered.
    AnswerLost,
    /// Who was asked says no, and why: the controller to a change of the leader, say.
    Denied(String),
    /// No majority of the acceptors answers.
    NoQuorum(String),
    /// The cluster file, or what is asked of it: each problem with its line, if it has one, and its
    /// remedy.
    Configuration(cluster_file::Errors),
    /// What is stored can't be read, written or relied on. What was acknowledged is
    /// stored, or in the acceptors' log.
    Store(String),
    /// The host: sockets, interfaces, memory, threads.
    System(String),
}

impl Error {
    /// What is asked of a cluster isn't in its file, and what to do.
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
