// SPDX-License-Identifier: Apache-2.0
//! MULTI: transactions aren't supported, and none may be executed in part.
//!
//! Client libraries send MULTI, the commands and EXEC in one go and look at the answers later. So
//! refusing MULTI and EXEC alone would execute what they then report as failed.

use crate::commands::{Call, Outcome, Spec};

pub(crate) const REFUSED: &str =
    "ERR transactions are not supported: nothing up to EXEC, DISCARD or RESET is executed";

/// Answers a command between MULTI and what ends it. Returns false if there is no MULTI before it,
/// or if it is to be executed all the same.
pub(crate) fn refuses(call: &mut Call<'_>, spec: Option<&Spec>) -> bool {
    let ends = spec.is_some_and(|s| matches!(s.name, "exec" | "discard" | "reset" | "quit"));
    let refused = call.client.in_transaction && !ends;
    if refused {
        call.fail(REFUSED);
    }
    refused
}

pub(crate) fn multi(call: &mut Call<'_>) -> Outcome {
    call.client.in_transaction = true;
    call.fail(REFUSED);
    Outcome::Answered
}

pub(crate) fn exec(call: &mut Call<'_>) -> Outcome {
    if std::mem::take(&mut call.client.in_transaction) {
        call.fail("EXECABORT Transaction discarded because transactions are not supported.");
    } else {
        call.fail("ERR EXEC without MULTI");
    }
    Outcome::Answered
}

pub(crate) fn discard(call: &mut Call<'_>) -> Outcome {
    if std::mem::take(&mut call.client.in_transaction) {
        call.writer().status("OK");
    } else {
        call.fail("ERR DISCARD without MULTI");
    }
    Outcome::Answered
}
