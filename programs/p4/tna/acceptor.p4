/* SPDX-License-Identifier: Apache-2.0 */
/* The acceptor: remembers promises and votes (Algorithm 2 of both papers; docs/protocol/acceptor.md).
 *
 * The rules of crates/paxos/src/acceptor.rs, in one pass. What it leaves to the node's process, and why what it does
 * differently is safe, is told in README.md.
 *
 * The ingress pipeline takes packets one behind the other, and each register is looked at once by each packet, always in the
 * order of this file: so every packet finds what all earlier ones have left, and none of what later ones leave. A range raises
 * `floors` before it reads `ends`, like everybody. [A-CPUS] A step is only taken once all that could refuse it is
 * known. [M-REFUSE] */
#include "include/headers.p4"
#include "include/receive.p4"
#include "include/nonce.p4"

/* ---- Types */

/* What is asked of this role; later, what becomes of it. */
/* Nothing: it passes by. */
const bit<4> PASSES = 0;
const bit<4> VOTE = 1;
const bit<4> PROMISE = 2;
const bit<4> SHOW = 3;
const bit<4> PROMISE_RANGE = 4;
const bit<4> SHOW_RANGE = 5;
/* What the node's process takes: TRIM, PROBE. */
const bit<4> OF_PROCESS = 6;
/* Answered by REJECT, about an instance or a range. */
const bit<4> REFUSED = 7;
const bit<4> RANGE_REFUSED = 8;
/* Orders. */
const bit<4> BEGIN = 9;
const bit<4> ENABLE = 10;
const bit<4> LOOK = 11;
/* Enabling with instances that aren't kept here. */
const bit<4> TOO_FAR = 12;
/* It counts. */
const bit<4> ENABLED = 13;
const bit<4> UNKNOWN = 14;
/* It is counted, and dropped. */
const bit<4> NOTHING = 15;

#define OF_SLOT (m.asks == VOTE || m.asks == PROMISE || m.asks == SHOW)

/* Whose the floor is that a candidate asks for: its own, or that of the first one of its round. */
const bit<2> ANOTHERS = 0;
const bit<2> ITS_OWN = 1;
const bit<2> OF_ITS_ROUND = 2;

/* A floor that nobody has enabled: larger than any round. */
const bit<32> STRANGERS = 0xffffffff;

struct metadata_t {
    bit<16> sum_left;
    bit<1> too_large;
    bit<4> asks;
    bit<16> verdict;
    /* What REJECT names. */
    bit<16> reason;
    bit<32> round;
    received_t r;
    slot_at_t slot_at;

    /* The instance, or what `trim` becomes. */
    bit<32> lap;
    bit<32> place;
    /* 1 + the instance voted, or what `end` becomes. */
    bit<32> end_lap;
    bit<32> end_place;
    /* What `floors` is compared with. Of an instance: the round with its attempt and lane all ones, as large as any of its epoch.
     * Of a range: what it holds once this candidate has the promise. Of an order: the round. */
    bit<32> floor_with;
    bit<16> form;

    /* What registers said. */
    bit<1> same_nonce_high;
    bit<1> same_nonce_low;
    bit<32> nonce_high;
    bit<32> nonce_low;
    bit<32> floor;
    bit<2> floor_is;
    bit<1> same_raiser;
    bit<32> laps_above_trim;
    bit<32> places_above_trim;
    bit<32> trim_lap;
    bit<32> trim_place;
    bit<32> promised;
    bit<32> voted;
    bit<1> ends;
    bit<32> laps_above_end;
    bit<1> same_client_high;
    bit<1> same_client_low;
    bit<1> same_request_high;
    bit<1> same_request_low;
    bit<32> w7;

    /* Instances as they are told, in two halves. */
    bit<32> trim_high;
    bit<32> trim_low;
    bit<32> told_end_high;
    bit<32> told_end_low;
}

#define CLEAR_METADATA        \
    m.too_large = 0;          \
    m.asks = PASSES;          \
    m.promised = 0;           \
    m.voted = 0;              \
    m.ends = 0;               \
    m.laps_above_end = 0;     \
    m.same_nonce_high = 0;    \
    m.same_nonce_low = 0;     \
    m.floor = 0;              \
    m.floor_is = ANOTHERS;    \
    m.same_raiser = 0;        \
    m.verdict = 0;            \
    m.r.ours = 0;             \
    m.r.at_home = 0;          \
    m.r.known = 0;

#include "include/parse.p4"
#include "include/leave.p4"

/* A part of what was voted for: it is stored with a vote, compared with a repeated one, or shown. */
#define PART(name, field)                                                                \
    WORDS(name, 32, slot_at_t, SLOTS, 0)                                                 \
    CHANGE_WORD(name, store_##name, 32, slot_at_t, value = field;)                       \
    ASK_WORD(name, show_##name, 32, slot_at_t, bit<32>, said = value;)
#define COMPARED_PART(name, field)                                                       \
    PART(name, field)                                                                    \
    ASK_WORD(name, compare_##name, 32, slot_at_t, bit<1>,                                \
        said = 0;                                                                        \
        if (value == field) { said = 1; })
#define IS_STORED (m.asks == VOTE && m.voted == 0)
#define IS_SHOWN ((m.asks == PROMISE || m.asks == SHOW) && m.voted != 0)
#define STORE_OR_SHOW(name, field)                                                       \
    if (IS_STORED) {                                                                     \
        CHANGE(store_##name, m.slot_at)                                                  \
    } else if (IS_SHOWN) {                                                               \
        ASK(field, show_##name, m.slot_at)                                               \
    }
#define STORE_COMPARE_OR_SHOW(name, field, same)                                         \
    if (IS_STORED) {                                                                     \
        CHANGE(store_##name, m.slot_at)                                                  \
    } else if (m.asks == VOTE) {                                                         \
        ASK(same, compare_##name, m.slot_at)                                             \
    } else if (IS_SHOWN) {                                                               \
        ASK(field, show_##name, m.slot_at)                                               \
    }

INGRESS {
    receive() enter;
    forward() others;
    COUNTERS(counters)

    /* ---- State */

    NONCES

    /* The round promised for all instances, always a base round; 1 is added once a candidate has that promise. */
    WORDS(floors, 32, partition_at_t, PARTITIONS, STRANGERS)
    /* [A-PREEMPT] */
    ASK_WORD(floors, look_at_floor, 32, partition_at_t, bit<32>,
        said = 0;
        if (value > m.floor_with) { said = value; })
    /* [A-RANGE] [A-ONE] */
    ASK_WORD(floors, raise_floor, 32, partition_at_t, bit<32>,
        said = 0;
        if (value < m.floor_with) { value = m.floor_with; } else { said = value; })
    /* [A-ENABLE] */
    CHANGE_WORD(floors, enable_floor, 32, partition_at_t,
        if (value == STRANGERS || value < m.floor_with) { value = m.floor_with; })
    ASK_WORD(floors, show_floor, 32, partition_at_t, bit<32>, said = value;)

    /* The number of the candidate that has the promise of the floor. */
    PAIRS(raisers, partition_at_t, PARTITIONS)
    CHANGE_PAIR(raisers, store_raiser, partition_at_t,
        value.high = hdr.wire.client[63:32];
        value.low = hdr.wire.client[31:0];)
    ASK_PAIR(raisers, compare_raiser, partition_at_t, bit<1>,
        said = 0;
        if (value.high == hdr.wire.client[63:32] && value.low == hdr.wire.client[31:0]) { said = 1; })

    /* Everything below is forgotten. Whoever raises a lap hears how far, and so whether the place goes with it. */
    WORDS(trim_laps, 32, partition_at_t, PARTITIONS, 0)
    WORDS(trim_places, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(trim_laps, look_at_trim_lap, 32, partition_at_t, bit<32>, said = m.lap - value;)
    ASK_WORD(trim_laps, raise_trim_lap, 32, partition_at_t, bit<32>,
        said = m.lap - value;
        if (value < m.lap) { value = m.lap; })
    ASK_WORD(trim_laps, show_trim_lap, 32, partition_at_t, bit<32>, said = value;)
    ASK_WORD(trim_places, look_at_trim_place, 32, partition_at_t, bit<32>, said = m.place - value;)
    CHANGE_WORD(trim_places, set_trim_place, 32, partition_at_t, value = m.place;)
    CHANGE_WORD(trim_places, raise_trim_place, 32, partition_at_t,
        if (value < m.place) { value = m.place; })
    ASK_WORD(trim_places, show_trim_place, 32, partition_at_t, bit<32>, said = value;)

    /* 1 + the largest instance voted, at least `trim`. */
    WORDS(end_laps, 32, partition_at_t, PARTITIONS, 0)
    WORDS(end_places, 32, partition_at_t, PARTITIONS, 0)
    ASK_WORD(end_laps, raise_end_lap, 32, partition_at_t, bit<32>,
        said = m.end_lap - value;
        if (value < m.end_lap) { value = m.end_lap; })
    ASK_WORD(end_laps, show_end_lap, 32, partition_at_t, bit<32>, said = value;)
    CHANGE_WORD(end_places, set_end_place, 32, partition_at_t, value = m.end_place;)
    CHANGE_WORD(end_places, raise_end_place, 32, partition_at_t,
        if (value < m.end_place) { value = m.end_place; })
    ASK_WORD(end_places, show_end_place, 32, partition_at_t, bit<32>, said = value;)

    /* The promise of a slot, for one instance. A later instance takes it over: the old promise is void. It says the round
     * that stands against this one, or 0. [A-PREEMPT] [A-PROMISE] */
    PAIRS(promises, slot_at_t, SLOTS)
    ASK_PAIR(promises, promise, slot_at_t, bit<32>,
        said = 0;
        if (value.high == m.lap && value.low > hdr.wire.rnd) {
            said = value.low;
        } else {
            value.high = m.lap;
            value.low = hdr.wire.rnd;
        })

    /* The vote of a slot: its instance and its round. */
    PAIRS(votes, slot_at_t, SLOTS)
    /* It says the round, if that vote is there. [A-VOTE] */
    ASK_PAIR(votes, vote, slot_at_t, bit<32>,
        said = 0;
        if (value.high == m.lap && value.low == hdr.wire.rnd) { said = value.low; }
        value.high = m.lap;
        value.low = hdr.wire.rnd;)
    /* It says the round of the instance's vote, or 0. [A-QUERY] */
    ASK_PAIR(votes, look_at_vote, slot_at_t, bit<32>,
        said = 0;
        if (value.high == m.lap) { said = value.low; })

    /* What was voted for. */
    COMPARED_PART(clients_high, hdr.wire.client[63:32])
    COMPARED_PART(clients_low, hdr.wire.client[31:0])
    COMPARED_PART(requests_high, hdr.wire.request[63:32])
    COMPARED_PART(requests_low, hdr.wire.request[31:0])
    PART(words0, hdr.w0.bytes)
    PART(words1, hdr.w1.bytes)
    PART(words2, hdr.w2.bytes)
    PART(words3, hdr.w3.bytes)
    PART(words4, hdr.w4.bytes)
    PART(words5, hdr.w5.bytes)
    PART(words6, hdr.w6.bytes)
    PART(words7, m.w7)
    /* Its flags and its length. */
    WORDS(forms, 16, slot_at_t, SLOTS, 0)
    CHANGE_WORD(forms, store_form, 16, slot_at_t, value = m.form;)
    ASK_WORD(forms, show_form_of_slot, 16, slot_at_t, bit<16>, said = value;)

    /* ---- What is asked */

    action asks(bit<4> what) {
        m.asks = what;
        m.floor_with = hdr.wire.rnd | ROUND_SUB_MASK;
    }
    action asks_for_range() {
        m.asks = PROMISE_RANGE;
        m.floor_with = hdr.wire.rnd | 1;
    }
    action is_refused(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
    }
    /* A tag passes by, and is gone in the answer. [A-NOOP] [E-ROUND] Of the last epoch's rounds none is taken: they would be
     * as large as a stranger's floor. */
#define NO_ROUND(type)                                                                   \
            (1, type, _, _, 0 &&& 0xfffff000, _, _): is_refused(REASON_BAD_ROUND);       \
            (1, type, _, _, 0xfffff000 &&& 0xfffff000, _, _): is_refused(REASON_BAD_ROUND); \
            (1, type, _, _, 0x080 &&& 0x0ff, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, type, _, _, 0x100 &&& 0x17f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, type, _, _, 0x200 &&& 0x27f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, type, _, _, 0x400 &&& 0x47f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, type, _, _, 0x800 &&& 0x87f, _, _): is_refused(REASON_BAD_ROUND);
    table what_is_asked {
        key = {
            hdr.wire.version: ternary;
            hdr.wire.msgtype: ternary;
            hdr.wire.flags: ternary;
            hdr.wire.value_len: ternary;
            hdr.wire.rnd: ternary;
            hdr.wire.client: ternary;
            hdr.wire.request: ternary;
        }
        actions = {
            asks;
            asks_for_range;
            is_refused;
        }
        const default_action = is_refused(REASON_BAD_VERSION);
        SIZE(64)
        const entries = {
            NO_ROUND(PHASE2A)
            (1, PHASE2A, FLAG_NOOP &&& 0xfffe, 0, _, 0, 0): asks(VOTE);
            (1, PHASE2A, FLAG_NOOP &&& 0xfffe, MARKER_LEN, _, 0, 0): asks(VOTE);
            (1, PHASE2A, FLAG_NOOP &&& 0xfffe, _, _, 0, 0): is_refused(REASON_BAD_VALUE);
            (1, PHASE2A, FLAG_NOOP &&& 0xfffe, _, _, _, _): is_refused(REASON_BAD_SESSION);
            (1, PHASE2A, 0 &&& 0xffe6, _, _, 0, _): is_refused(REASON_BAD_SESSION);
            (1, PHASE2A, 0 &&& 0xffe6, _, _, _, _): asks(VOTE);
            (1, PHASE2A, _, _, _, _, _): is_refused(REASON_BAD_FLAGS);
            NO_ROUND(PHASE1A)
            (1, PHASE1A, 0 &&& 0xfffe, 0, _, _, _): asks(PROMISE);
            (1, PHASE1A, FLAG_RANGE &&& 0xfffe, 0, _, 0, _): is_refused(REASON_BAD_SESSION);
            (1, PHASE1A, FLAG_RANGE &&& 0xfffe, 0, 0 &&& 0xfff, _, _): asks_for_range();
            (1, PHASE1A, FLAG_RANGE &&& 0xfffe, 0, _, _, _): is_refused(REASON_BAD_ROUND);
            (1, PHASE1A, 0 &&& 0xfffc, _, _, _, _): is_refused(REASON_BAD_VALUE);
            (1, PHASE1A, _, _, _, _, _): is_refused(REASON_BAD_FLAGS);
            (1, QUERY, 0 &&& 0xfffe, 0, _, _, _): asks(SHOW);
            (1, QUERY, FLAG_RANGE &&& 0xfffe, 0, _, _, _): asks(SHOW_RANGE);
            (1, QUERY, 0 &&& 0xfffc, _, _, _, _): is_refused(REASON_BAD_VALUE);
            (1, QUERY, _, _, _, _, _): is_refused(REASON_BAD_FLAGS);
            (1, TRIM, 0 &&& 0xfffe, 0, _, _, _): asks(OF_PROCESS);
            (1, PROBE, 0 &&& 0xfffe, PROBE_LEN, _, _, _): asks(OF_PROCESS);
            (1, _, _, _, _, _, _): is_refused(REASON_NOT_FOR_ROLE);
        }
    }

    CUT(lap_of_order, 32)
    CUT(end_lap_of_order, 32)
    action find_trim_lap() {
        PUT_CUT(m.lap, lap_of_order, hdr.order.a[LAP_HIGH:LAP_LOW])
    }
    action find_end_lap() {
        PUT_CUT(m.end_lap, end_lap_of_order, hdr.order.b[LAP_HIGH:LAP_LOW])
    }
    action find_order() {
        m.floor_with = hdr.order.round;
        m.r.partition_at = hdr.order.at;
        m.place = hdr.order.a[31:0] & PLACE_MASK;
        m.end_place = hdr.order.b[31:0] & PLACE_MASK;
    }
    action is_ordered(bit<4> what) {
        m.asks = what;
    }
    table what_is_ordered {
        key = {
            hdr.order.op: ternary;
            hdr.order.a[63:LAP_HIGH]: ternary @name("trim_beyond");
            hdr.order.b[63:LAP_HIGH]: ternary @name("end_beyond");
        }
        actions = {
            is_ordered;
        }
        const default_action = is_ordered(UNKNOWN);
        SIZE(8)
        const entries = {
            (ORDER_LOOK, _, _): is_ordered(LOOK);
            (ORDER_BEGIN, _, _): is_ordered(BEGIN);
            (ORDER_ENABLE, 0, 0): is_ordered(ENABLE);
            (ORDER_ENABLE, _, _): is_ordered(TOO_FAR);
        }
    }

    /* ---- Steps, in the order of the chip's stages */

    CUT(lap_of_packet, 32)
    action find_lap() {
        PUT_CUT(m.lap, lap_of_packet, hdr.wire.inst[LAP_HIGH:LAP_LOW])
    }
    action find_place() {
        m.place = hdr.wire.inst[31:0] & PLACE_MASK;
        m.form = hdr.wire.flags[7:0] ++ hdr.wire.value_len[7:0];
    }
    /* What is behind whole words lies where the last word does. */
    action last_word() {
        m.w7 = hdr.w7.bytes;
    }
    action last_two() {
        m.w7 = hdr.v2.bytes ++ 16w0;
    }
    action last_one() {
        m.w7 = 16w0 ++ hdr.v1.bytes ++ 8w0;
    }
    action last_three() {
        m.w7 = hdr.v2.bytes ++ hdr.v1.bytes ++ 8w0;
    }
    /* Whether it counts, and how the floor stands to its round. A message that has a fault changes nothing, and nobody is told. */
    action passes_by() {
        m.asks = PASSES;
    }
    action is_faulty() {
        m.asks = NOTHING;
        m.verdict = REASON_BAD_LENGTH;
    }
    action stays_refused() {
    }
    action look_at_its_floor() {
        ASK(m.floor, look_at_floor, m.r.partition_at)
        m.slot_at = m.r.first_slot | m.place;
    }
    action raise_its_floor() {
        ASK(m.floor, raise_floor, m.r.partition_at)
    }
    action enable_its_floor() {
        m.asks = ENABLED;
        CHANGE(enable_floor, m.r.partition_at)
    }
    action show_its_floor() {
        ASK(m.floor, show_floor, m.r.partition_at)
        m.slot_at = m.r.first_slot | m.place;
    }
    table at_floor {
        key = {
            m.same_nonce_high: ternary;
            m.same_nonce_low: ternary;
            m.asks: ternary;
            COUNTS_KEYS
        }
        actions = {
            passes_by;
            is_faulty;
            stays_refused;
            look_at_its_floor;
            raise_its_floor;
            enable_its_floor;
            show_its_floor;
        }
        const default_action = is_faulty();
        SIZE(64)
        const entries = {
            (1, 1, ENABLE, ANY_MESSAGE): enable_its_floor();
            (_, _, BEGIN, ANY_MESSAGE): show_its_floor();
            (_, _, ENABLE, ANY_MESSAGE): show_its_floor();
            (_, _, LOOK, ANY_MESSAGE): show_its_floor();
            (_, _, TOO_FAR, ANY_MESSAGE): show_its_floor();
            (_, _, UNKNOWN, ANY_MESSAGE): show_its_floor();
            (_, _, _, NOBODYS): passes_by();
            (_, _, NOTHING, OURS): stays_refused();
            COUNTS_IF(look_at_its_floor, 1, _, _, VOTE)
            COUNTS_IF(look_at_its_floor, 1, _, _, PROMISE)
            COUNTS_IF(show_its_floor, 1, _, _, SHOW)
            COUNTS_IF(raise_its_floor, 1, _, _, PROMISE_RANGE)
            COUNTS_IF(show_its_floor, 1, _, _, SHOW_RANGE)
            COUNTS_IF(show_its_floor, 1, _, _, OF_PROCESS)
        }
    }

    /* Nothing changes, and nobody is told why. */
    action drop(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
    }
    action refuse(bit<16> reason) {
        m.asks = REFUSED;
        m.verdict = VERDICT_REJECTED + reason;
        m.reason = reason;
        m.round = 0;
    }
    action refuse_below_floor(bit<4> what) {
        m.asks = what;
        m.verdict = VERDICT_REJECTED + REASON_PREEMPTED;
        m.reason = REASON_PREEMPTED;
        m.round = m.floor & 0xfffff000;
    }
    action refuse_below_promise() {
        m.asks = REFUSED;
        m.verdict = VERDICT_REJECTED + REASON_PREEMPTED;
        m.reason = REASON_PREEMPTED;
        m.round = m.promised;
    }

    /* The window, and the promise. [A-WINDOW] [A-STRANGER] [A-PREEMPT] */
    action promise_it() {
        ASK(m.promised, promise, m.slot_at)
    }
    action stays() {
    }
    table at_promise {
        key = {
            m.asks: ternary;
            m.floor: ternary;
            hdr.wire.inst[63:LAP_HIGH]: ternary @name("beyond");
            m.laps_above_trim: ternary;
            m.places_above_trim[31:31]: ternary @name("place_below_trim");
            m.floor_is: ternary;
            m.same_raiser: ternary;
        }
        actions = {
            promise_it;
            stays;
            drop;
            refuse;
            refuse_below_floor;
        }
        const default_action = stays();
        SIZE(64)
        /* Above the trim point by less than the ring. Its last entry takes what is further. */
#define BELOW_TRIM(what)                                                                 \
            (what, STRANGERS, _, _, _, _, _): drop(REASON_STRANGER);                     \
            (what, _, 0, 0x80000000 &&& 0x80000000, _, _, _): refuse(REASON_TRIMMED);    \
            (what, _, 0, 0, 1, _, _): refuse(REASON_TRIMMED);
#define IN_RING(what, floor, does)                                                       \
            (what, floor, 0, 0, 0, _, _): does;                                          \
            (what, floor, 0, 1, 1, _, _): does;
#define BEYOND(what)                                                                     \
            (what, _, _, _, _, _, _): refuse(REASON_WINDOW);
        const entries = {
            BELOW_TRIM(VOTE)
            IN_RING(VOTE, 0, promise_it())
            IN_RING(VOTE, _, refuse_below_floor(REFUSED))
            BEYOND(VOTE)
            BELOW_TRIM(PROMISE)
            IN_RING(PROMISE, 0, promise_it())
            IN_RING(PROMISE, _, refuse_below_floor(REFUSED))
            BEYOND(PROMISE)
            BELOW_TRIM(SHOW)
            IN_RING(SHOW, _, stays())
            BEYOND(SHOW)
            (PROMISE_RANGE, STRANGERS, _, _, _, _, _): drop(REASON_STRANGER);
            (PROMISE_RANGE, _, _, _, _, ANOTHERS, _): refuse_below_floor(RANGE_REFUSED);
            (PROMISE_RANGE, _, _, _, _, OF_ITS_ROUND, 0): drop(REASON_CONFLICT);
            (SHOW_RANGE, STRANGERS, _, _, _, _, _): drop(REASON_STRANGER);
        }
    }

    /* ---- What leaves */

    action turn_into_answer(bit<8> msgtype) {
        hdr.wire.msgtype = msgtype;
        hdr.wire.swid = m.r.node;
        hdr.tag.setInvalid();
    }
    action send_vote() {
        turn_into_answer(PHASE2B);
        hdr.wire.vrnd = hdr.wire.rnd;
        SEND_MULTICAST(m.r.members)
    }
    action send_reject() {
        turn_into_answer(REJECT);
        NO_VALUE
        hdr.wire.vrnd = 0;
        hdr.wire.flags = 0;
        hdr.wire.value_len = REJECTION_LEN;
        hdr.rejection.setValid();
        hdr.rejection.reason = m.reason;
        hdr.rejection.zero = 0;
        hdr.rejection.round = m.round;
        SEND_BACK
    }
    /* The slot's value follows. */
    action send_promise() {
        turn_into_answer(PHASE1B);
        hdr.wire.vrnd = m.voted;
        SEND_BACK
    }
    action send_shown() {
        turn_into_answer(PHASE2B);
        hdr.wire.vrnd = m.voted;
        hdr.wire.rnd = m.voted;
        SEND_BACK
    }
    action send_promise_without_vote() {
        turn_into_answer(PHASE1B);
        hdr.wire.vrnd = 0;
        hdr.wire.flags = 0;
        hdr.wire.client = 0;
        hdr.wire.request = 0;
        SEND_BACK
    }
    action send_no_vote() {
        turn_into_answer(PHASE1B);
        hdr.wire.rnd = 0;
        hdr.wire.vrnd = 0;
        hdr.wire.flags = 0;
        SEND_BACK
    }
    action send_range_report() {
        turn_into_answer(PHASE1B);
        hdr.wire.inst = 0;
        hdr.wire.vrnd = 0;
        hdr.wire.flags = FLAG_RANGE;
        hdr.wire.value_len = RANGE_REPORT_LEN;
        hdr.range_report.setValid();
        hdr.range_report.nonce[63:32] = m.nonce_high;
        hdr.range_report.nonce[31:0] = m.nonce_low;
        SEND_BACK
    }
    action show_range() {
        send_range_report();
        hdr.wire.rnd = m.floor & 0xfffff000;
    }
    action answer_order(bit<8> result) {
        hdr.order.op = hdr.order.op | ORDER_ANSWER;
        hdr.order.result = result;
        LEAVE_BY(CPU_PORT)
        LEAVE_AS_IT_IS
    }
    action answer_look() {
        answer_order(0);
        hdr.order.nonce[63:32] = m.nonce_high;
        hdr.order.nonce[31:0] = m.nonce_low;
        hdr.order.round = m.floor;
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
            m.voted: ternary;
            m.same_nonce_high: ternary;
            m.same_nonce_low: ternary;
        }
        actions = {
            send_vote;
            send_reject;
            send_promise;
            send_promise_without_vote;
            send_shown;
            send_no_vote;
            send_range_report;
            show_range;
            answer_order;
            answer_look;
            to_process;
            leaves_not;
        }
        const default_action = leaves_not();
        SIZE(32)
        const entries = {
            (VOTE, _, _, _): send_vote();
            (PROMISE, 0, _, _): send_promise_without_vote();
            (PROMISE, _, _, _): send_promise();
            (SHOW, 0, _, _): send_no_vote();
            (SHOW, _, _, _): send_shown();
            (PROMISE_RANGE, _, _, _): send_range_report();
            (SHOW_RANGE, _, _, _): show_range();
            (REFUSED, _, _, _): send_reject();
            (RANGE_REFUSED, _, _, _): send_reject();
            (OF_PROCESS, _, _, _): to_process();
            (BEGIN, _, 1, 1): answer_order(0);
            (BEGIN, _, _, _): answer_order((bit<8>) REASON_CONFLICT);
            (ENABLED, _, _, _): answer_order(0);
            (ENABLE, _, _, _): answer_order((bit<8>) REASON_STRANGER);
            (TOO_FAR, _, _, _): answer_order((bit<8>) REASON_WINDOW);
            (UNKNOWN, _, _, _): answer_order((bit<8>) REASON_NOT_FOR_ROLE);
            (LOOK, _, _, _): answer_look();
        }
    }

    /* Instances as they are told. */
    CUT(trim_high, 32)
    CUT(trim_low, 32)
    CUT(end_high, 32)
    CUT(end_low, 32)
    action tell_trim_high() {
        PUT_CUT(m.trim_high, trim_high, HIGH_OF(m.trim_lap))
    }
    action tell_trim_low() {
        PUT_CUT(m.trim_low, trim_low, LOW_OF(m.trim_lap, m.trim_place))
    }
    action tell_end_high() {
        PUT_CUT(m.told_end_high, end_high, HIGH_OF(m.end_lap))
    }
    action tell_end_low() {
        PUT_CUT(m.told_end_low, end_low, LOW_OF(m.end_lap, m.end_place))
    }

    /* Room for a value, before its length is known; and what is kept of it: so many words, and a rest. */
    action show_flags() {
        hdr.wire.flags = 11w0 ++ m.form[12:10] ++ 2w0;
    }
    action show_form() {
        hdr.wire.flags = 11w0 ++ m.form[12:10] ++ 2w0;
        hdr.wire.value_len = 8w0 ++ m.form[7:0];
    }
    action make_room() {
        hdr.w0.setValid();
        hdr.w1.setValid();
        hdr.w2.setValid();
        hdr.w3.setValid();
        hdr.w4.setValid();
        hdr.w5.setValid();
        hdr.w6.setValid();
    }
    action keep_0_words() {
        hdr.w0.setInvalid();
        hdr.w1.setInvalid();
        hdr.w2.setInvalid();
        hdr.w3.setInvalid();
        hdr.w4.setInvalid();
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_1_words() {
        hdr.w1.setInvalid();
        hdr.w2.setInvalid();
        hdr.w3.setInvalid();
        hdr.w4.setInvalid();
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_2_words() {
        hdr.w2.setInvalid();
        hdr.w3.setInvalid();
        hdr.w4.setInvalid();
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_3_words() {
        hdr.w3.setInvalid();
        hdr.w4.setInvalid();
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_4_words() {
        hdr.w4.setInvalid();
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_5_words() {
        hdr.w5.setInvalid();
        hdr.w6.setInvalid();
    }
    action keep_6_words() {
        hdr.w6.setInvalid();
    }
    action keep_8_words() {
        hdr.w7.setValid();
        hdr.w7.bytes = m.w7;
    }
    action put_rest1() {
        hdr.v1.setValid();
        hdr.v1.bytes = m.w7[15:8];
    }
    action put_rest2() {
        hdr.v2.setValid();
        hdr.v2.bytes = m.w7[31:16];
    }
    action put_rest3() {
        hdr.v2.setValid();
        hdr.v2.bytes = m.w7[31:16];
        hdr.v1.setValid();
        hdr.v1.bytes = m.w7[15:8];
    }
    table keep_words {
        key = {
            m.form[5:2]: exact @name("words");
        }
        actions = {
            keep_0_words;
            keep_1_words;
            keep_2_words;
            keep_3_words;
            keep_4_words;
            keep_5_words;
            keep_6_words;
            keep_8_words;
            @defaultonly NoAction;
        }
        const default_action = NoAction();
        SIZE(16)
        const entries = {
            0: keep_0_words();
            1: keep_1_words();
            2: keep_2_words();
            3: keep_3_words();
            4: keep_4_words();
            5: keep_5_words();
            6: keep_6_words();
            8: keep_8_words();
        }
    }

    apply {
        /* Stage 0: what it is. */
        if (hdr.wire.isValid()) {
            enter.apply(hdr, m.r);
            what_is_asked.apply();
            find_lap();
            find_place();
            if (hdr.w7.isValid()) {
                last_word();
            } else if (hdr.v2.isValid() && hdr.v1.isValid()) {
                last_three();
            } else if (hdr.v2.isValid()) {
                last_two();
            } else if (hdr.v1.isValid()) {
                last_one();
            }
        } else if (hdr.order.isValid()) {
            what_is_ordered.apply();
            find_order();
            find_trim_lap();
            find_end_lap();
        }
        if (hdr.order.isValid() && hdr.order.op == ORDER_BEGIN) {
            ASK(m.same_nonce_high, begin_nonces_high, 0)
            ASK(m.same_nonce_low, begin_nonces_low, 0)
        } else if (hdr.order.isValid() && hdr.order.op == ORDER_ENABLE) {
            ASK(m.same_nonce_high, compare_nonces_high, 0)
            ASK(m.same_nonce_low, compare_nonces_low, 0)
        } else {
            ASK(m.nonce_high, show_nonces_high, 0)
            ASK(m.nonce_low, show_nonces_low, 0)
        }

        /* Stage 1: whether it counts, how it stands to the floor and to the trim point. */
        if (m.asks == ENABLE && m.same_nonce_high == 1 && m.same_nonce_low == 1) {
            ASK(m.laps_above_trim, raise_trim_lap, m.r.partition_at)
        } else if (OF_SLOT) {
            ASK(m.laps_above_trim, look_at_trim_lap, m.r.partition_at)
        } else {
            ASK(m.trim_lap, show_trim_lap, m.r.partition_at)
        }
        at_floor.apply();
        if (hdr.wire.isValid()) {
            m.end_place = m.place + 1;
            m.end_lap = m.lap;
        }

        /* Stage 2: the rest of the trim point, and who raised the floor. */
        if (m.asks == ENABLED && m.laps_above_trim == 0) {
            CHANGE(raise_trim_place, m.r.partition_at)
        } else if (m.asks == ENABLED && m.laps_above_trim[31:31] == 0) {
            CHANGE(set_trim_place, m.r.partition_at)
        } else if (OF_SLOT) {
            ASK(m.places_above_trim, look_at_trim_place, m.r.partition_at)
        } else {
            ASK(m.trim_place, show_trim_place, m.r.partition_at)
        }
        if (m.asks == PROMISE_RANGE) {
            if (m.floor == 0) {
                CHANGE(store_raiser, m.r.partition_at)
                m.floor_is = ITS_OWN;
            } else if (m.floor == m.floor_with) {
                ASK(m.same_raiser, compare_raiser, m.r.partition_at)
                m.floor_is = OF_ITS_ROUND;
            }
        }
        if (hdr.wire.isValid() && m.end_place[SLOT_BITS:SLOT_BITS] == 1) {
            m.end_place = 0;
            m.end_lap = m.lap + 1;
        }

        /* Stage 3: the window, and the promise. */
        at_promise.apply();

        /* Stage 4: the vote. */
        if (m.promised != 0) {
            refuse_below_promise();
        } else if (m.asks == VOTE) {
            ASK(m.voted, vote, m.slot_at)
        } else if (m.asks == PROMISE || m.asks == SHOW) {
            ASK(m.voted, look_at_vote, m.slot_at)
        }
        if (m.asks == REFUSED) {
            m.trim_lap = m.lap - m.laps_above_trim;
            m.trim_place = m.place - m.places_above_trim;
        }

        /* The other stages: the value; `end`; what leaves. */
        if (IS_SHOWN) {
            make_room();
        }
        if (IS_STORED) {
            CHANGE(store_form, m.slot_at)
        } else if (m.asks == VOTE || IS_SHOWN) {
            ASK(m.form, show_form_of_slot, m.slot_at)
        }
        STORE_COMPARE_OR_SHOW(clients_high, hdr.wire.client[63:32], m.same_client_high)
        STORE_COMPARE_OR_SHOW(clients_low, hdr.wire.client[31:0], m.same_client_low)
        STORE_COMPARE_OR_SHOW(requests_high, hdr.wire.request[63:32], m.same_request_high)
        STORE_COMPARE_OR_SHOW(requests_low, hdr.wire.request[31:0], m.same_request_low)
        STORE_OR_SHOW(words7, m.w7)
        STORE_OR_SHOW(words0, hdr.w0.bytes)
        STORE_OR_SHOW(words1, hdr.w1.bytes)
        STORE_OR_SHOW(words2, hdr.w2.bytes)
        STORE_OR_SHOW(words3, hdr.w3.bytes)
        STORE_OR_SHOW(words4, hdr.w4.bytes)
        STORE_OR_SHOW(words5, hdr.w5.bytes)
        STORE_OR_SHOW(words6, hdr.w6.bytes)

        if (m.asks == ENABLED || IS_STORED) {
            m.ends = 1;
            ASK(m.laps_above_end, raise_end_lap, m.r.partition_at)
        } else {
            ASK(m.end_lap, show_end_lap, m.r.partition_at)
        }
        if (m.ends == 1 && m.laps_above_end == 0) {
            CHANGE(raise_end_place, m.r.partition_at)
        } else if (m.ends == 1 && m.laps_above_end[31:31] == 0) {
            CHANGE(set_end_place, m.r.partition_at)
        } else {
            ASK(m.end_place, show_end_place, m.r.partition_at)
        }

        if (m.asks == PASSES) {
            OTHERS
        } else {
            answer.apply();
        }
        tell_trim_high();
        tell_trim_low();
        tell_end_high();
        tell_end_low();
        if (hdr.rejection.isValid()) {
            hdr.rejection.trim[63:32] = m.trim_high;
            hdr.rejection.trim[31:0] = m.trim_low;
        } else if (hdr.range_report.isValid()) {
            hdr.range_report.trim[63:32] = m.trim_high;
            hdr.range_report.trim[31:0] = m.trim_low;
            hdr.range_report.end[63:32] = m.told_end_high;
            hdr.range_report.end[31:0] = m.told_end_low;
        } else if (m.asks == LOOK) {
            hdr.order.a[63:32] = m.trim_high;
            hdr.order.a[31:0] = m.trim_low;
            hdr.order.b[63:32] = m.told_end_high;
            hdr.order.b[31:0] = m.told_end_low;
        }
        if (m.asks == VOTE) {
            show_flags();
        } else if (IS_SHOWN) {
            show_form();
            keep_words.apply();
            if (m.form[1:0] == 1) {
                put_rest1();
            } else if (m.form[1:0] == 2) {
                put_rest2();
            } else if (m.form[1:0] == 3) {
                put_rest3();
            }
        }
        /* [A-CONFLICT] */
        if (m.asks == VOTE && m.voted != 0 &&
            (m.same_client_high == 0 || m.same_client_low == 0 || m.same_request_high == 0 ||
             m.same_request_low == 0)) {
            drop(REASON_CONFLICT);
            leaves_not();
        }
        if (m.r.ours == 1) {
            COUNT_VERDICT(counters)
        }
    }
}

/* ---- The chip */

SWITCH
