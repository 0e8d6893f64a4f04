// SPDX-License-Identifier: Apache-2.0
//! What became of a command.

use std::fmt;

use paxos::PartitionId;
use paxos::wire::value::MAX_VECTOR;
use replica::Status;
use replica::protocol::Effect;

use crate::error::Error;

/// What became of a command. Whatever this says, it never takes effect twice. [S-SAYS]
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
    /// It took effect. The application's answer is missing if it is too large to be sent or to be
    /// remembered.
    Executed(Option<A>),
    /// It didn't take effect, and never will.
    Refused(Refusal),
    /// It may have taken effect, or may yet.
    Unknown(Doubt),
}

/// Why a command takes no effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is longer than a command may be; one over several partitions has to fit a value.
    TooLarge {
        /// Its bytes.
        len: usize,
        /// Those that it may have.
        max: usize,
    },
    /// Too many are outstanding, or another long one is on its way: poll for completions first.
    WindowFull,
    /// The group has no such partition.
    NoPartition(PartitionId),
    /// A command can't be over so many partitions at once.
    Partitions(usize),
    /// The session was never opened.
    NoSession,
    /// The replicas don't execute it: the name of their answer.
    Answered(&'static str),
}

/// Why it isn't known whether a command took effect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Doubt {
    /// Nothing was heard in time. The client goes on trying: it may yet take effect, and is then
    /// [polled](crate::Client::poll) like any other.
    NoAnswer,
    /// The replicas don't know the session any more: it expired. Open another client.
    SessionLost,
    /// The replicas remember fewer requests of the session than have been sent since.
    Forgotten,
    /// An earlier request of an ordered session is missing.
    OutOfOrder,
    /// The client's socket failed.
    Failed(String),
}

impl<A> Outcome<A> {
    /// What a replica's answer says.
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

    /// The answer, for programs that need one; an error says which of the others it is.
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
    /// The same with an answer of its own.
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

    /// [S-SAYS]
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
