// SPDX-License-Identifier: Apache-2.0
//! The errors that tell a client the fate of a command without an answer.

use replica::Status;
use replica::protocol::Effect;

use crate::resp::Writer;

/// The answer to a command whose outcome nobody knows.
pub(crate) const UNKNOWN: &str =
    "UNKNOWN the session is lost: the command took effect, once, or not at all";

/// Writes the error that tells a client the fate of a command without an answer.
pub(crate) fn show(writer: &mut Writer<'_>, status: Option<Status>) {
    match status.map(|status| (status, status.effect(true))) {
        Some((_, Effect::Executed)) => {
            writer.error("EXECUTED the command took effect, but its answer is lost");
        }
        Some((status, Effect::Refused)) => writer.error(format!("ERR refused: {}", status.name())),
        Some((_, Effect::Unknown)) | None => writer.error(UNKNOWN),
    }
}
