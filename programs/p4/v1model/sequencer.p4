/* SPDX-License-Identifier: Apache-2.0 */
/* The sequencer: gives requests their slots (section 4 of the NOPaxos paper; docs/protocol/nopaxos.md).
 *
 * The same rules, step by step, as crates/paxos/src/nopaxos/sequencer.rs. How it stamps is told in include/stamp.p4. */
#define STAMPED ORDERED
#define STAMPING_ROLE PROBE_SEQUENCER
/* A replica names its view. */
#define NAMES_ROUND(round) (round_epoch(round) != 0)
#include "include/stamp.p4"

/* ---- Handlers */

/* A member's TRIM opens the window. Nobody else's does: a session has no candidate. [Q-WINDOW] */
control stamper_trim_to(in headers_t hdr, inout metadata_t m, inout stamp_step_t s, inout reports_t r) {
    report() take;

    apply {
        if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else if (hdr.wire.rnd != 0) {
            m.verdict = REASON_BAD_ROUND;
        } else {
            take.apply(hdr, m, s, r);
        }
    }
}

#include "include/stamper.p4"
