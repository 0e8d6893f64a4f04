/* SPDX-License-Identifier: Apache-2.0 */
/* Putting requests in order: what leader and sequencer have in common (crates/paxos/src/stamping.rs). A role says what becomes
 * of a REQUEST (STAMPED), and includes this.
 *
 * A partition is programmed by one order, in one pass, so that no packet ends in another round than it began in. [M-BANK] */
#ifndef STAMP_P4
#define STAMP_P4

#include "headers.p4"
#include "receive.p4"
#include "nonce.p4"

/* ---- Types */

/* What is asked of this role. */
const bit<4> NOTHING = 0;
const bit<4> STAMP = 1;
/* What the node's process takes: TRIM, REJECT, PROBE. */
const bit<4> OF_PROCESS = 6;
/* Orders. */
const bit<4> BEGIN = 8;
const bit<4> PROGRAM = 9;
const bit<4> OPEN = 10;
const bit<4> RETIRE = 11;
const bit<4> LOOK = 12;

struct metadata_t {
    bit<1> ours;
    bit<1> ordered;
    bit<16> sum_left;
    bit<1> too_large;
    bit<4> asks;
    bit<16> verdict;
    received_t r;

    /* What registers said. */
    bit<1> same_nonce_high;
    bit<1> same_nonce_low;
    bit<32> nonce_high;
    bit<32> nonce_low;
    bit<1> programmed;
    bit<1> opened;
    bit<1> stamps;
    bit<32> round;
    bit<32> limit;
    bit<32> next_high;
    bit<32> next_low;
}

#define CLEAR_METADATA        \
    m.ours = 0;               \
    m.ordered = 0;            \
    m.too_large = 0;          \
    m.asks = NOTHING;         \
    m.same_nonce_high = 0;    \
    m.same_nonce_low = 0;     \
    m.programmed = 0;         \
    m.opened = 0;             \
    m.stamps = 0;             \
    m.verdict = 0;            \
    m.r.ours = 0;             \
    m.r.at_home = 0;          \
    m.r.known = 0;

#include "parse.p4"
#include "leave.p4"

INGRESS {
    receive() enter;
    forward() others;
    COUNTERS(counters)

    /* ---- State */

    NONCES

    /* The base round that is stamped in; 1 is added once a later epoch exists; 0 = never programmed. */
    WORDS(rounds, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(rounds, show_round, 32, partition_at_t, bit<32>, said = value;)
    /* Once for each round, and only for a larger one. [L-PROGRAM] [Q-PROGRAM] */
    ASK_WORD(rounds, program_round, 32, partition_at_t, bit<1>,
        said = 0;
        if (value < hdr.order.round) {
            value = hdr.order.round;
            said = 1;
        })
    /* [L-RETIRE] [Q-RETIRE] */
    CHANGE_WORD(rounds, retire_round, 32, partition_at_t,
        if (value < hdr.order.round) { value = value | 1; })

    /* The first instance that isn't to be stamped yet: `trimmed + window`, and never below `next`. So the window is open unless both
     * are equal, and their lower halves tell. An order that opens it names what it replaces: so one that comes late
     * changes nothing. [L-WINDOW] [Q-WINDOW] */
    PAIRS(limits, partition_at_t, PARTITIONS)
    ASK_PAIR(limits, show_limit, partition_at_t, bit<32>, said = value.low;)
    CHANGE_PAIR(limits, store_limit, partition_at_t,
        value.high = hdr.order.b[63:32];
        value.low = hdr.order.b[31:0];)
    ASK_PAIR(limits, replace_limit, partition_at_t, bit<1>,
        said = 0;
        if (value.high == hdr.order.c[63:32] && value.low == hdr.order.c[31:0]) {
            value.high = hdr.order.b[63:32];
            value.low = hdr.order.b[31:0];
            said = 1;
        })

    /* The next instance: its lower half, and the upper one, into which that carries. [L-STAMP] [Q-STAMP] */
    WORDS(nexts_low, 32, partition_at_t, PARTITIONS, 0)
    WORDS(nexts_high, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(nexts_low, take_low, 32, partition_at_t, bit<32>,
        said = value;
        if (value != m.limit) { value = value + 1; })
    CHANGE_WORD(nexts_low, store_low, 32, partition_at_t, value = hdr.order.a[31:0];)
    ASK_WORD(nexts_low, show_low, 32, partition_at_t, bit<32>, said = value;)
    ASK_WORD(nexts_high, take_high, 32, partition_at_t, bit<32>,
        said = value;
        if (m.next_low == 0xffffffff) { value = value + 1; })
    CHANGE_WORD(nexts_high, store_high, 32, partition_at_t, value = hdr.order.a[63:32];)
    ASK_WORD(nexts_high, show_high, 32, partition_at_t, bit<32>, said = value;)

    /* ---- What is asked */

    action asks(bit<4> what) {
        m.asks = what;
    }
    action is_refused(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
    }
    /* Commands of several partitions take several instances at once, which one access to a register can't. */
    table what_is_asked {
        key = {
            hdr.wire.version: ternary;
            hdr.wire.msgtype: ternary;
            hdr.wire.flags: ternary;
            hdr.wire.value_len: ternary;
            hdr.wire.client: ternary;
        }
        actions = {
            asks;
            is_refused;
        }
        const default_action = is_refused(REASON_BAD_VERSION);
        const entries = {
            (1, REQUEST, 0 &&& 0xffee, _, 0): is_refused(REASON_BAD_SESSION);
            (1, REQUEST, 0 &&& 0xffee, _, _): asks(STAMP);
            (1, REQUEST, _, _, _): is_refused(REASON_BAD_FLAGS);
            (1, TRIM, 0 &&& 0xfffe, 0, _): asks(OF_PROCESS);
            (1, REJECT, 0 &&& 0xfffe, REJECTION_LEN, _): asks(OF_PROCESS);
            (1, PROBE, 0 &&& 0xfffe, PROBE_LEN, _): asks(OF_PROCESS);
            (1, _, _, _, _): is_refused(REASON_NOT_FOR_ROLE);
        }
    }

    /* ---- Steps */

    action from_order(bit<4> what) {
        m.asks = what;
        m.r.partition_at = hdr.order.at[7:0];
    }
    action drop(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
        DROP
    }
    action send_stamped() {
        hdr.wire.msgtype = STAMPED;
        hdr.wire.inst[63:32] = m.next_high;
        hdr.wire.inst[31:0] = m.next_low;
        hdr.wire.rnd = m.round;
        hdr.wire.vrnd = 0;
        hdr.wire.swid = m.r.node;
        hdr.wire.flags = hdr.wire.flags & FLAGS_OF_VALUE;
        hdr.tag.setInvalid();
        m.verdict = VERDICT_CHANGED;
        SEND_MULTICAST(m.r.members)
    }
    action send_reject(bit<16> reason) {
        hdr.wire.msgtype = REJECT;
        hdr.wire.vrnd = 0;
        hdr.wire.swid = m.r.node;
        hdr.wire.flags = 0;
        hdr.wire.value_len = REJECTION_LEN;
        hdr.tag.setInvalid();
        NO_VALUE
        hdr.rejection.setValid();
        hdr.rejection.reason = reason;
        hdr.rejection.zero = 0;
        hdr.rejection.round = 0;
        hdr.rejection.trim = 0;
        m.verdict = VERDICT_REJECTED + reason;
        SEND_BACK
    }
    action answer_order(bit<8> result) {
        hdr.order.op = hdr.order.op | 0x80;
        hdr.order.result = result;
        LEAVE_BY(CPU_PORT)
        LEAVE_AS_IT_IS
    }
    action to_process() {
        LEAVE_BY(CPU_PORT)
        LEAVE_AS_IT_IS
    }

    apply {
        /* What it is. */
        if (hdr.wire.isValid()) {
            enter.apply(hdr, m.r);
            what_is_asked.apply();
            LEAVE_OUT_UDP
        } else if (m.ordered == 1) {
            if (hdr.order.op == ORDER_BEGIN) {
                from_order(BEGIN);
                ASK(m.same_nonce_high, begin_nonces_high, 0)
                ASK(m.same_nonce_low, begin_nonces_low, 0)
            } else if (hdr.order.op == ORDER_LOOK) {
                from_order(LOOK);
                ASK(m.nonce_high, show_nonces_high, 0)
                ASK(m.nonce_low, show_nonces_low, 0)
            } else {
                ASK(m.same_nonce_high, compare_nonces_high, 0)
                ASK(m.same_nonce_low, compare_nonces_low, 0)
                if (hdr.order.op == ORDER_PROGRAM) {
                    from_order(PROGRAM);
                } else if (hdr.order.op == ORDER_OPEN) {
                    from_order(OPEN);
                } else {
                    from_order(RETIRE);
                }
            }
        }

        /* Whether it counts, and the round. */
        if (m.ordered == 0) {
            if (m.r.ours == 0) {
                m.asks = NOTHING;
            } else if ((m.asks == OF_PROCESS && m.r.at_home == 0) || m.r.known == 0 || SUM_IS_WRONG ||
                       m.too_large == 1 ||
                       !((hdr.wire.flags[0:0] == 1 && m.r.around_value == UDP_LEN + HEADER_LEN + TAG_LEN) ||
                         (hdr.wire.flags[0:0] == 0 && m.r.around_value == UDP_LEN + HEADER_LEN))) {
                drop(REASON_BAD_LENGTH);
            } else {
                ASK(m.round, show_round, m.r.partition_at)
            }
        } else if (m.asks == LOOK) {
            ASK(m.round, show_round, m.r.partition_at)
        } else if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
            if (m.asks == PROGRAM) {
                ASK(m.programmed, program_round, m.r.partition_at)
            } else if (m.asks == RETIRE) {
                CHANGE(retire_round, m.r.partition_at)
            } else {
                ASK(m.round, show_round, m.r.partition_at)
            }
        }

        /* The window. */
        if (m.asks == STAMP && m.round != 0 && m.round[0:0] == 0) {
            m.stamps = 1;
        }
        if (m.programmed == 1) {
            CHANGE(store_limit, m.r.partition_at)
        } else if (m.asks == OPEN && m.same_nonce_high == 1 && m.same_nonce_low == 1) {
            ASK(m.opened, replace_limit, m.r.partition_at)
        } else {
            ASK(m.limit, show_limit, m.r.partition_at)
        }

        /* The instance. */
        if (m.programmed == 1) {
            CHANGE(store_low, m.r.partition_at)
        } else if (m.stamps == 1) {
            ASK(m.next_low, take_low, m.r.partition_at)
        } else {
            ASK(m.next_low, show_low, m.r.partition_at)
        }
        if (m.programmed == 1) {
            CHANGE(store_high, m.r.partition_at)
        } else if (m.stamps == 1 && m.next_low != m.limit) {
            ASK(m.next_high, take_high, m.r.partition_at)
        } else {
            ASK(m.next_high, show_high, m.r.partition_at)
        }

        if (m.asks == NOTHING) {
            if (hdr.wire.isValid() && m.r.ours == 1) {
                DROP
            } else {
                OTHERS
            }
        } else if (m.asks == STAMP) {
            if (m.stamps == 0) {
                send_reject(REASON_NOT_LEADER);
                hdr.rejection.round = m.round & 0xfffff000;
            } else if (m.next_low == m.limit) {
                send_reject(REASON_WINDOW);
            } else {
                send_stamped();
            }
        } else if (m.asks == OF_PROCESS) {
            to_process();
        } else if (m.asks == LOOK) {
            answer_order(0);
            hdr.order.nonce[63:32] = m.nonce_high;
            hdr.order.nonce[31:0] = m.nonce_low;
            hdr.order.round = m.round;
            hdr.order.a[63:32] = m.next_high;
            hdr.order.a[31:0] = m.next_low;
            hdr.order.b[63:32] = 0;
            hdr.order.b[31:0] = m.limit;
        } else if (m.same_nonce_high == 0 || m.same_nonce_low == 0) {
            answer_order((bit<8>) REASON_STRANGER);
        } else if ((m.asks == PROGRAM && m.programmed == 0) || (m.asks == OPEN && m.opened == 0)) {
            answer_order((bit<8>) REASON_STALE);
        } else {
            answer_order(0);
        }
        if (m.r.ours == 1) {
            COUNT_VERDICT(counters)
        }
    }
}

/* ---- The chip */

SWITCH

#endif
