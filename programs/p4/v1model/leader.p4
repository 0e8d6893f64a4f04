/* SPDX-License-Identifier: Apache-2.0 */
/* The leader: puts requests in order (Algorithm 1 of both papers; docs/protocol/leader.md).
 *
 * The same rules, step by step, as crates/paxos/src/leader.rs. How it stamps is told in include/stamp.p4. */
#define STAMPED PHASE2A
#define STAMPING_ROLE PROBE_LEADER
#define NAMES_ROUND(round) round_is_valid(round)
#include "include/stamp.p4"

/* ---- Handlers */

/* TRIM opens the window: a replica's report (no round), or a candidate's word (its base round). [L-TRIM] */
control stamper_trim_to(in headers_t hdr, inout metadata_t m, inout stamp_step_t s, inout reports_t r) {
    report() take;

    apply {
        if (hdr.wire.value_len != 0) {
            m.verdict = REASON_BAD_VALUE;
        } else if (hdr.wire.rnd == 0) {
            take.apply(hdr, m, s, r);
        } else if (!round_is_base(hdr.wire.rnd)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (s.leader.rnd == 0 || hdr.wire.rnd < s.leader.rnd || hdr.wire.inst < s.trimmed) {
            m.verdict = REASON_STALE;
        } else if (hdr.wire.inst == s.trimmed) {
            m.verdict = REASON_DUPLICATE;
        } else {
            s.trimmed = hdr.wire.inst;
            m.verdict = VERDICT_CHANGED;
        }
    }
}

#include "include/stamper.p4"
