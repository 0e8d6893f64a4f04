// SPDX-License-Identifier: Apache-2.0
//! The limit of the memory of a replica's Redis servers. The front end refuses commands that would
//! exceed it before they are ordered. A server itself must not refuse them, because other replicas'
//! servers use more or less memory and would execute what this one refuses.

use apps::redis::Spec;

use crate::call::Call;
use crate::metrics::Metrics;
use crate::native::Native;

/// Redis's own words, by which clients know the error.
const OOM: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// Returns the error for a command that may need memory, if there is no room for more.
pub(crate) fn refusal(
    call: &Call<'_>,
    native: &Native,
    spec: &Spec,
    args: &[&[u8]],
) -> Option<String> {
    let seen = native.seen().memory();
    let max = native.max_memory().filter(|max| seen > *max)?;
    if !spec.may_take_memory(args) {
        return None;
    }
    Metrics::add(&call.shared.metrics.refused_for_memory);
    // The client of a numbered command may have sent it before and lost the answer, so the error
    // must not say that it had no effect.
    let numbered = match call.is_numbered {
        true => "; if this command was sent before, it may have been executed: send it again later",
        false => "",
    };
    Some(format!(
        "{OOM} The Redis servers of this replica have {} MiB, and max_memory_mib in the cluster \
         file allows {}: delete keys, or raise it{numbered}",
        seen >> 20,
        max >> 20
    ))
}
