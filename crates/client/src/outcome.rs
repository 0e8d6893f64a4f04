// SPDX-License-Identifier: Apache-2.0
//! The outcome of a command.

use std::fmt;

use paxos::PartitionId;
use paxos::wire::value::MAX_VECTOR;
use replica::Status;
use replica::protocol::Effect;

use crate::error::Error;

/// The outcome of a command. In every case the command takes effect at most once. [S-SAYS]
///
/// ```
/// # use client::{Outcome, Refusal};
/// # fn show(outcome: Outcome) {
/// match outcome {
///     Outcome::Executed(Some(answer)) => println!("done: {} bytes", answer.len()),
///     Outcome::Executed(None) => println!("done, but the answer is lost: read what you need"),
///     Outcome::Refused(why) => println!("not done, so it may be tried again: {why}"),
///     Outcome::Unknown(why) => println!("done or not: look before trying again: {why}"),
/// }
/// # }
/// # show(Outcome::Refused(Refusal::WindowFull));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "a command may have been refused, or its outcome may be unknown"]
pub enum Outcome<A = Vec<u8>> {
    /// The command took effect. The application's answer is missing if it is too large to be sent
    /// or remembered.
    Executed(Option<A>),
    /// The command took no effect, and never will.
    Refused(Refusal),
    /// The command may have taken effect, or may yet do so.
    Unknown(Doubt),
}

/// The reason why a command takes no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// The command is too long; one over several partitions must fit a value.
    TooLarge {
        /// The length of the command in bytes.
        len: usize,
        /// The largest length in bytes.
        max: usize,
    },
    /// Too many commands are outstanding, or another long one is being sent. Poll for completions
    /// first.
    WindowFull,
    /// The group has no such partition.
    NoPartition(PartitionId),
    /// A command can't be over this many partitions at once.
    Partitions(usize),
    /// The session was never opened.
    NoSession,
    /// The replicas don't execute the command; this is the name of their answer.
    Answered(&'static str),
}

/// The reason why it is unknown whether a command took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// No answer came in time. The client keeps trying, so the command may yet take effect, and is
    /// then [polled](crate::Client::poll) like any other.
    NoAnswer,
    /// The replicas no longer know the session because it expired. Open another client.
    SessionLost,
    /// More requests of the session have been sent since than the replicas remember.
    Forgotten,
    /// An earlier request of an ordered session is missing.
    OutOfOrder,
    /// The client's socket failed.
    Failed(String),
}

impl<A> Outcome<A> {
    /// Returns the outcome that a replica's answer means.
    pub(crate) fn of_answer(status: Status, ordered: bool, answer: A) -> Outcome<A> {
        match (status.effect(ordered), status) {
            (Effect::Executed, Status::Ok) => Outcome::Executed(Some(answer)),
            (Effect::Executed, _) => Outcome::Executed(None),
            (Effect::Refused, _) => Outcome::Refused(Refusal::Answered(status.name())),
            (Effect::Unknown, Status::StaleRequest) => Outcome::Unknown(Doubt::Forgotten),
            (Effect::Unknown, Status::OutOfOrder) => Outcome::Unknown(Doubt::OutOfOrder),
            (Effect::Unknown, _) => Outcome::Unknown(Doubt::SessionLost),
        }
    }

    /// Returns the answer, or an error for every other outcome.
    pub fn answer(self) -> Result<A, Error> {
        match self {
            Outcome::Executed(Some(answer)) => Ok(answer),
            Outcome::Executed(None) => Err(Error::AnswerLost),
            Outcome::Refused(why) => Err(Error::Refused(why)),
            Outcome::Unknown(why) => Err(Error::Unknown(why)),
        }
    }
}

impl Outcome<&[u8]> {
    /// Returns the same outcome with its own copy of the answer.
    pub fn to_owned(&self) -> Outcome {
        match self {
            Outcome::Executed(answer) => Outcome::Executed(answer.map(<[u8]>::to_vec)),
            Outcome::Refused(why) => Outcome::Refused(*why),
            Outcome::Unknown(why) => Outcome::Unknown(why.clone()),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooLarge { len, max } => write!(
                f,
                "a command of {len} bytes is too large: here it may have {max}"
            ),
            Refusal::WindowFull => f.write_str("the session's window is full: poll first"),
            Refusal::NoPartition(pid) => write!(f, "there is no partition {pid}"),
            Refusal::Partitions(count) => write!(
                f,
                "a command is over 1 to {MAX_VECTOR} partitions, and not over {count}"
            ),
            Refusal::NoSession => f.write_str("there is no session"),
            Refusal::Answered(name) => f.write_str(name),
        }
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for Doubt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doubt::NoAnswer => f.write_str("no answer in time"),
            Doubt::SessionLost => f.write_str("the session expired; open another client"),
            Doubt::Forgotten => f.write_str("the session has gone on too far to remember it"),
            Doubt::OutOfOrder => f.write_str("an earlier request of the session is missing"),
            Doubt::Failed(why) => write!(f, "the client's socket failed: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every status of an answer has its outcome. [S-SAYS]
    #[test]
    fn every_answer_has_its_outcome() {
        use Outcome::{Executed, Refused, Unknown};
        let of = |status, ordered| Outcome::of_answer(status, ordered, b"a");
        for ordered in [false, true] {
            assert_eq!(of(Status::Ok, ordered), Executed(Some(b"a")));
            assert_eq!(of(Status::ReplyTooLarge, ordered), Executed(None));
            let lost = Unknown(Doubt::SessionLost);
            assert_eq!(of(Status::UnknownSession, ordered), lost);
            let refused = Refused(Refusal::Answered("unsupported"));
            assert_eq!(of(Status::Unsupported, ordered), refused);
        }
        assert_eq!(of(Status::StaleRequest, false), Unknown(Doubt::Forgotten));
        assert_eq!(of(Status::StaleRequest, true), Executed(None));
    }
}
