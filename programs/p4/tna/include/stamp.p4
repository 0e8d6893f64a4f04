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
/* Nothing: it passes by. */
const bit<4> PASSES = 0;
const bit<4> STAMP = 1;
/* What the node's process takes: TRIM, REJECT, PROBE. */
const bit<4> OF_PROCESS = 6;
/* Orders. */
const bit<4> BEGIN = 8;
const bit<4> PROGRAM = 9;
const bit<4> OPEN = 10;
const bit<4> RETIRE = 11;
const bit<4> LOOK = 12;
const bit<4> UNKNOWN = 13;
/* It is counted, and dropped. */
const bit<4> NOTHING = 15;

struct metadata_t {
    bit<16> sum_left;
    bit<1> too_large;
    bit<4> asks;
    bit<16> verdict;
    received_t r;
    /* It comes from where commands are taken. */
    bit<1> may_ask;

    /* What registers said. */
    bit<1> same_nonce_high;
    bit<1> same_nonce_low;
    bit<32> nonce_high;
    bit<32> nonce_low;
    bit<1> programmed;
    bit<32> opens;
    bit<1> opened;
    bit<32> round;
    /* It is programmed, and stamps; the window is open. */
    bit<1> stamps;
    bit<1> is_open;
    bit<32> limit;
    bit<32> next_high;
    bit<32> next_low;
}

#define CLEAR_METADATA        \
    m.too_large = 0;          \
    m.asks = PASSES;          \
    m.same_nonce_high = 0;    \
    m.same_nonce_low = 0;     \
    m.programmed = 0;         \
    m.opened = 0;             \
    m.round = 0;              \
    m.stamps = 0;             \
    m.is_open = 0;            \
    m.verdict = 0;            \
    m.may_ask = 0;            \
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

    /* How often the window was set. An order that opens it names that number, so one that comes late, or again, changes
     * nothing. */
    WORDS(opens, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(opens, count_open, 32, partition_at_t, bit<1>,
        said = 0;
        if (value == hdr.order.c[31:0]) {
            value = value + 1;
            said = 1;
        })
    CHANGE_WORD(opens, count_program, 32, partition_at_t, value = value + 1;)
    ASK_WORD(opens, show_opens, 32, partition_at_t, bit<32>, said = value;)

    /* The lower half of the first instance that isn't to be stamped yet: `trimmed + window`, and never below `next`, nor 2^32
     * above. So the window is open unless both are equal, and their lower halves tell. [L-WINDOW] [Q-WINDOW] */
    WORDS(limits, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(limits, show_limit, 32, partition_at_t, bit<32>, said = value;)
    CHANGE_WORD(limits, store_limit, 32, partition_at_t, value = hdr.order.b[31:0];)

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
        SIZE(16)
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

    /* [M-ASKER] */
    action may_ask() {
        m.may_ask = 1;
    }
    table askers4 {
        key = {
            hdr.ipv4.src: lpm;
        }
        actions = {
            may_ask;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = ASKERS;
    }

    action is_ordered(bit<4> what) {
        m.asks = what;
        m.r.partition_at = hdr.order.at;
    }
    table what_is_ordered {
        key = {
            hdr.order.op: exact;
        }
        actions = {
            is_ordered;
        }
        const default_action = is_ordered(UNKNOWN);
        SIZE(16)
        const entries = {
            ORDER_LOOK: is_ordered(LOOK);
            ORDER_BEGIN: is_ordered(BEGIN);
            ORDER_PROGRAM: is_ordered(PROGRAM);
            ORDER_OPEN: is_ordered(OPEN);
            ORDER_RETIRE: is_ordered(RETIRE);
        }
    }

    /* ---- Steps, in the order of the chip's stages */

    /* Whether it counts, and the round. */
    action passes_by() {
        m.asks = PASSES;
    }
    action is_faulty() {
        m.asks = NOTHING;
        m.verdict = REASON_BAD_LENGTH;
    }
    action stays_refused() {
    }
    action program_its_round() {
        ASK(m.programmed, program_round, m.r.partition_at)
    }
    action retire_its_round() {
        CHANGE(retire_round, m.r.partition_at)
    }
    action show_its_round() {
        ASK(m.round, show_round, m.r.partition_at)
    }
    table at_round {
        key = {
            m.same_nonce_high: ternary;
            m.same_nonce_low: ternary;
            m.may_ask: ternary;
            m.asks: ternary;
            COUNTS_KEYS
        }
        actions = {
            passes_by;
            is_faulty;
            stays_refused;
            program_its_round;
            retire_its_round;
            show_its_round;
        }
        const default_action = is_faulty();
        SIZE(32)
        const entries = {
            (1, 1, _, PROGRAM, ANY_MESSAGE): program_its_round();
            (1, 1, _, RETIRE, ANY_MESSAGE): retire_its_round();
            (_, _, _, BEGIN, ANY_MESSAGE): show_its_round();
            (_, _, _, PROGRAM, ANY_MESSAGE): show_its_round();
            (_, _, _, OPEN, ANY_MESSAGE): show_its_round();
            (_, _, _, RETIRE, ANY_MESSAGE): show_its_round();
            (_, _, _, LOOK, ANY_MESSAGE): show_its_round();
            (_, _, _, UNKNOWN, ANY_MESSAGE): show_its_round();
            (_, _, _, _, NOBODYS): passes_by();
            (_, _, _, NOTHING, OURS): stays_refused();
            COUNTS_IF(show_its_round, _, _, _, 1, STAMP)
            COUNTS_IF(show_its_round, 1, _, _, _, OF_PROCESS)
        }
    }

    /* ---- What leaves */

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
    action send_reject(bit<16> reason, bit<32> round) {
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
        hdr.rejection.round = round;
        hdr.rejection.trim = 0;
        m.verdict = VERDICT_REJECTED + reason;
        SEND_BACK
    }
    action answer_order(bit<8> result) {
        hdr.order.op = hdr.order.op | ORDER_ANSWER;
        hdr.order.result = result;
        LEAVE_BY(CPU_PORT)
        LEAVE_AS_IT_IS
    }
    action refuse_to_lead() {
        send_reject(REASON_NOT_LEADER, m.round & 0xfffff000);
    }
    action refuse_beyond() {
        send_reject(REASON_WINDOW, 0);
    }
    action answer_look() {
        answer_order(0);
        hdr.order.nonce[63:32] = m.nonce_high;
        hdr.order.nonce[31:0] = m.nonce_low;
        hdr.order.round = m.round;
        hdr.order.a[63:32] = m.next_high;
        hdr.order.a[31:0] = m.next_low;
        hdr.order.b[63:32] = 0;
        hdr.order.b[31:0] = m.limit;
        hdr.order.c[63:32] = 0;
        hdr.order.c[31:0] = m.opens;
    }
    action to_process() {
        LEAVE_BY(CPU_PORT)
        LEAVE_AS_IT_IS
    }
    action leaves_not() {
        DROP
    }
    table answer {
        key = {
            m.asks: ternary;
            m.stamps: ternary;
            m.is_open: ternary;
            m.same_nonce_high: ternary;
            m.same_nonce_low: ternary;
            m.programmed: ternary;
            m.opened: ternary;
        }
        actions = {
            send_stamped;
            refuse_to_lead;
            refuse_beyond;
            answer_order;
            answer_look;
            to_process;
            leaves_not;
        }
        const default_action = leaves_not();
        SIZE(32)
        const entries = {
            (STAMP, 0, _, _, _, _, _): refuse_to_lead();
            (STAMP, 1, 0, _, _, _, _): refuse_beyond();
            (STAMP, 1, 1, _, _, _, _): send_stamped();
            (OF_PROCESS, _, _, _, _, _, _): to_process();
            (LOOK, _, _, _, _, _, _): answer_look();
            (UNKNOWN, _, _, _, _, _, _): answer_order((bit<8>) REASON_NOT_FOR_ROLE);
            (PROGRAM, _, _, 1, 1, 0, _): answer_order((bit<8>) REASON_STALE);
            (OPEN, _, _, 1, 1, _, 0): answer_order((bit<8>) REASON_STALE);
            (8 &&& 8, _, _, 1, 1, _, _): answer_order(0);
            (BEGIN, _, _, _, _, _, _): answer_order((bit<8>) REASON_STRANGER);
            (PROGRAM, _, _, _, _, _, _): answer_order((bit<8>) REASON_STRANGER);
            (OPEN, _, _, _, _, _, _): answer_order((bit<8>) REASON_STRANGER);
            (RETIRE, _, _, _, _, _, _): answer_order((bit<8>) REASON_STRANGER);
        }
    }

    apply {
        /* What it is. */
        if (hdr.wire.isValid()) {
            enter.apply(hdr, m.r);
            what_is_asked.apply();
            askers4.apply();
        } else if (hdr.order.isValid()) {
            what_is_ordered.apply();
        }
        if (hdr.order.isValid() && hdr.order.op == ORDER_BEGIN) {
            ASK(m.same_nonce_high, begin_nonces_high, 0)
            ASK(m.same_nonce_low, begin_nonces_low, 0)
        } else if (hdr.order.isValid() && hdr.order.op != ORDER_LOOK) {
            ASK(m.same_nonce_high, compare_nonces_high, 0)
            ASK(m.same_nonce_low, compare_nonces_low, 0)
        } else {
            ASK(m.nonce_high, show_nonces_high, 0)
            ASK(m.nonce_low, show_nonces_low, 0)
        }

        /* Whether it counts, and the round. */
        if (m.asks == OPEN && m.same_nonce_high == 1 && m.same_nonce_low == 1) {
            ASK(m.opened, count_open, m.r.partition_at)
        } else if (m.asks == PROGRAM && m.same_nonce_high == 1 && m.same_nonce_low == 1) {
            CHANGE(count_program, m.r.partition_at)
        } else {
            ASK(m.opens, show_opens, m.r.partition_at)
        }
        at_round.apply();

        /* The window. */
        if (m.programmed == 1 || m.opened == 1) {
            CHANGE(store_limit, m.r.partition_at)
        } else {
            ASK(m.limit, show_limit, m.r.partition_at)
        }
        if (m.asks == STAMP && m.round != 0 && m.round[0:0] == 0) {
            m.stamps = 1;
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
            m.is_open = 1;
            ASK(m.next_high, take_high, m.r.partition_at)
        } else {
            ASK(m.next_high, show_high, m.r.partition_at)
        }

        if (m.asks == PASSES) {
            OTHERS
        } else {
            answer.apply();
        }
        if (m.r.ours == 1) {
            COUNT_VERDICT(counters)
        }
    }
}

/* ---- The chip */

SWITCH

#endif
