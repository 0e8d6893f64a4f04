/* SPDX-License-Identifier: Apache-2.0 */
/* The acceptor: remembers promises and votes (Algorithm 2 of both papers; docs/protocol.md, "Acceptor").
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

/* What is asked of this role. */
const bit<4> NOTHING = 0;
const bit<4> VOTE = 1;
const bit<4> PROMISE = 2;
const bit<4> PROMISE_RANGE = 3;
const bit<4> SHOW = 4;
const bit<4> SHOW_RANGE = 5;
/* What the node's process takes: TRIM, PROBE. */
const bit<4> OF_PROCESS = 6;
/* Orders. */
const bit<4> BEGIN = 8;
const bit<4> ENABLE = 9;
const bit<4> LOOK = 10;
/* Enabling with instances that aren't kept here. */
const bit<4> TOO_FAR = 11;

/* How the instance's lap stands to that of the trim point. */
const bit<2> LAP_SAME = 0;
const bit<2> LAP_NEXT = 1;
const bit<2> LAP_BELOW = 2;
const bit<2> LAP_BEYOND = 3;

/* How the floor stands to the round. */
const bit<2> FLOOR_BELOW = 0;
const bit<2> FLOOR_ABOVE = 1;
const bit<2> FLOOR_STRANGERS = 2;

/* What becomes of the slot's value. */
const bit<2> LEFT = 0;
const bit<2> STORED = 1;
const bit<2> COMPARED = 2;
const bit<2> SHOWN = 3;

/* A floor that nobody has enabled: larger than any round. */
const bit<32> STRANGERS = 0xffffffff;

struct metadata_t {
    bit<1> ours;
    bit<1> ordered;
    bit<16> sum_left;
    bit<1> too_large;
    bit<4> asks;
    bit<16> verdict;
    /* It is answered by REJECT, which names a reason and a round. */
    bit<1> refused;
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
    /* The round with its attempt and lane all ones: as large as any round of its epoch. */
    bit<32> last_of_epoch;
    /* What `floors` holds once this candidate has the promise. */
    bit<32> floor_taken;
    bit<16> form;

    /* What registers said. */
    bit<1> same_nonce_high;
    bit<1> same_nonce_low;
    bit<32> nonce_high;
    bit<32> nonce_low;
    bit<32> floor;
    bit<1> same_raiser;
    bit<32> laps_above_trim;
    bit<32> places_above_trim;
    bit<32> trim_lap;
    bit<32> trim_place;
    bit<2> lap_is;
    bit<2> floor_is;
    bit<32> promised;
    bit<32> voted;
    bit<32> laps_above_end;
    bit<2> value_is;
    bit<1> same_client_high;
    bit<1> same_client_low;
    bit<1> same_request_high;
    bit<1> same_request_low;
    bit<32> w7;
}

#define CLEAR_METADATA        \
    m.ours = 0;               \
    m.ordered = 0;            \
    m.too_large = 0;          \
    m.asks = NOTHING;         \
    m.refused = 0;            \
    m.promised = 0;           \
    m.voted = 0;              \
    m.value_is = LEFT;        \
    m.laps_above_end = 0;     \
    m.same_nonce_high = 0;    \
    m.same_nonce_low = 0;     \
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
#define STORE_OR_SHOW(name, field)                                                       \
    if (m.value_is == STORED) {                                                          \
        CHANGE(store_##name, m.slot_at)                                                  \
    } else if (m.value_is == SHOWN) {                                                    \
        ASK(field, show_##name, m.slot_at)                                               \
    }
#define STORE_COMPARE_OR_SHOW(name, field, same)                                         \
    if (m.value_is == STORED) {                                                          \
        CHANGE(store_##name, m.slot_at)                                                  \
    } else if (m.value_is == COMPARED) {                                                 \
        ASK(same, compare_##name, m.slot_at)                                             \
    } else if (m.value_is == SHOWN) {                                                    \
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
        if (value > m.last_of_epoch) { said = value; })
    /* [A-RANGE] [A-ONE] */
    ASK_WORD(floors, raise_floor, 32, partition_at_t, bit<32>,
        said = 0;
        if (value < m.floor_taken) { value = m.floor_taken; } else { said = value; })
    /* [A-ENABLE] */
    CHANGE_WORD(floors, enable_floor, 32, partition_at_t,
        if (value == STRANGERS || value < hdr.order.round) { value = hdr.order.round; })
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
    ASK_WORD(forms, show_form, 16, slot_at_t, bit<16>, said = value;)

    /* ---- What is asked */

    action asks(bit<4> what) {
        m.asks = what;
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
            is_refused;
        }
        const default_action = is_refused(REASON_BAD_VERSION);
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
            (1, PHASE1A, FLAG_RANGE &&& 0xfffe, 0, 0 &&& 0xfff, _, _): asks(PROMISE_RANGE);
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

    /* ---- Steps, in the order of the chip's stages */

    action from_packet() {
        m.lap = hdr.wire.inst[LAP_HIGH:LAP_LOW];
        m.place = (bit<32>) (hdr.wire.inst[15:0] & PLACE_MASK);
        m.last_of_epoch = hdr.wire.rnd | ROUND_SUB_MASK;
        m.floor_taken = hdr.wire.rnd | 1;
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
    action from_order(bit<4> what) {
        m.asks = what;
        m.r.partition_at = hdr.order.at[7:0];
        m.lap = hdr.order.a[LAP_HIGH:LAP_LOW];
        m.place = (bit<32>) (hdr.order.a[15:0] & PLACE_MASK);
        m.end_lap = hdr.order.b[LAP_HIGH:LAP_LOW];
        m.end_place = (bit<32>) (hdr.order.b[15:0] & PLACE_MASK);
    }

    /* Nothing changes, and nobody is told why. */
    action drop(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
        DROP
    }
    action refuse(bit<16> reason, bit<32> round) {
        m.refused = 1;
        m.verdict = VERDICT_REJECTED + reason;
        m.reason = reason;
        m.round = round;
    }

    action turn_into_answer(bit<8> msgtype) {
        hdr.wire.msgtype = msgtype;
        hdr.wire.swid = m.r.node;
        hdr.tag.setInvalid();
    }
    action send_vote() {
        turn_into_answer(PHASE2B);
        hdr.wire.vrnd = hdr.wire.rnd;
        hdr.wire.flags = (bit<16>) (m.form[15:8] & 0x1c);
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
        hdr.rejection.trim[63:LAP_HIGH + 1] = 0;
        SEND_BACK
    }
    action send_slot(bit<8> msgtype) {
        turn_into_answer(msgtype);
        hdr.wire.vrnd = m.voted;
        hdr.wire.flags = (bit<16>) (m.form[15:8] & 0x1c);
        hdr.wire.value_len = (bit<16>) m.form[7:0];
        SEND_BACK
    }
    action send_no_vote() {
        turn_into_answer(PHASE1B);
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

    /* Room for a value, before its length is known; and what is kept of it: so many words, and a rest. */
    action make_room() {
        m.value_is = SHOWN;
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
            m.form[5:2]: exact;
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
            from_packet();
            if (hdr.w7.isValid()) {
                last_word();
            } else if (hdr.v2.isValid() && hdr.v1.isValid()) {
                last_three();
            } else if (hdr.v2.isValid()) {
                last_two();
            } else if (hdr.v1.isValid()) {
                last_one();
            }
            LEAVE_OUT_UDP
            ASK(m.nonce_high, show_nonces_high, 0)
            ASK(m.nonce_low, show_nonces_low, 0)
        } else if (m.ordered == 1) {
            if (hdr.order.op == ORDER_BEGIN) {
                from_order(BEGIN);
                ASK(m.same_nonce_high, begin_nonces_high, 0)
                ASK(m.same_nonce_low, begin_nonces_low, 0)
            } else if (hdr.order.op == ORDER_ENABLE &&
                       (hdr.order.a[63:LAP_HIGH] != 0 || hdr.order.b[63:LAP_HIGH] != 0)) {
                from_order(TOO_FAR);
            } else if (hdr.order.op == ORDER_ENABLE) {
                from_order(ENABLE);
                ASK(m.same_nonce_high, compare_nonces_high, 0)
                ASK(m.same_nonce_low, compare_nonces_low, 0)
            } else {
                from_order(LOOK);
                ASK(m.nonce_high, show_nonces_high, 0)
                ASK(m.nonce_low, show_nonces_low, 0)
            }
        }

        /* Stage 1: whether it counts, how it stands to the floor and to the trim point. */
        if (m.asks == ENABLE) {
            if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
                ASK(m.laps_above_trim, raise_trim_lap, m.r.partition_at)
            }
        } else if (m.asks == VOTE || m.asks == PROMISE || m.asks == SHOW) {
            ASK(m.laps_above_trim, look_at_trim_lap, m.r.partition_at)
        } else {
            ASK(m.trim_lap, show_trim_lap, m.r.partition_at)
        }
        m.slot_at = m.r.first_slot | m.place[15:0];
        if (m.ordered == 0 && m.r.ours == 0) {
            m.asks = NOTHING;
        } else if (m.ordered == 0 &&
                   (m.r.at_home == 0 || m.r.known == 0 || SUM_IS_WRONG || m.too_large == 1 ||
                    !((hdr.wire.flags[0:0] == 1 && m.r.around_value == UDP_LEN + HEADER_LEN + TAG_LEN) ||
                      (hdr.wire.flags[0:0] == 0 && m.r.around_value == UDP_LEN + HEADER_LEN)))) {
            drop(REASON_BAD_LENGTH);
        } else if (m.asks == VOTE || m.asks == PROMISE) {
            ASK(m.floor, look_at_floor, m.r.partition_at)
        } else if (m.asks == PROMISE_RANGE) {
            ASK(m.floor, raise_floor, m.r.partition_at)
        } else if (m.asks == ENABLE) {
            if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
                CHANGE(enable_floor, m.r.partition_at)
            }
        } else {
            ASK(m.floor, show_floor, m.r.partition_at)
        }
        if (m.ordered == 0) {
            m.end_place = m.place + 1;
            m.end_lap = m.lap;
        }

        /* Stage 2: the rest of the trim point, and who raised the floor. */
        if (m.asks == ENABLE) {
            if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
                if (m.laps_above_trim == 0) {
                    CHANGE(raise_trim_place, m.r.partition_at)
                } else if (m.laps_above_trim[31:31] == 0) {
                    CHANGE(set_trim_place, m.r.partition_at)
                }
            }
        } else if (m.asks == VOTE || m.asks == PROMISE || m.asks == SHOW) {
            ASK(m.places_above_trim, look_at_trim_place, m.r.partition_at)
        } else {
            ASK(m.trim_place, show_trim_place, m.r.partition_at)
        }
        if (m.asks == PROMISE_RANGE) {
            if (m.floor == 0) {
                CHANGE(store_raiser, m.r.partition_at)
            } else if (m.floor == m.floor_taken) {
                ASK(m.same_raiser, compare_raiser, m.r.partition_at)
            }
        }
        if (hdr.wire.inst[63:LAP_HIGH] != 0) {
            m.lap_is = LAP_BEYOND;
        } else if (m.laps_above_trim == 0) {
            m.lap_is = LAP_SAME;
        } else if (m.laps_above_trim == 1) {
            m.lap_is = LAP_NEXT;
        } else if (m.laps_above_trim[31:31] == 1) {
            m.lap_is = LAP_BELOW;
        } else {
            m.lap_is = LAP_BEYOND;
        }
        if (m.floor == STRANGERS) {
            m.floor_is = FLOOR_STRANGERS;
        } else if (m.floor == 0) {
            m.floor_is = FLOOR_BELOW;
        } else {
            m.floor_is = FLOOR_ABOVE;
        }
        if (m.ordered == 0 && m.end_place[SLOT_BITS:SLOT_BITS] == 1) {
            m.end_place = 0;
            m.end_lap = m.lap + 1;
        }

        /* Stage 3: the window, and the promise. [A-WINDOW] [A-STRANGER] */
        if (m.asks == VOTE || m.asks == PROMISE || m.asks == SHOW) {
            if (m.floor_is == FLOOR_STRANGERS) {
                drop(REASON_STRANGER);
            } else if (m.lap_is == LAP_BELOW || (m.lap_is == LAP_SAME && m.places_above_trim[31:31] == 1)) {
                refuse(REASON_TRIMMED, 0);
            } else if (m.lap_is == LAP_BEYOND || (m.lap_is == LAP_NEXT && m.places_above_trim[31:31] == 0)) {
                refuse(REASON_WINDOW, 0);
            } else if (m.asks != SHOW) {
                if (m.floor_is == FLOOR_ABOVE) {
                    refuse(REASON_PREEMPTED, m.floor & 0xfffff000);
                } else {
                    ASK(m.promised, promise, m.slot_at)
                }
            }
        } else if (m.asks == PROMISE_RANGE) {
            if (m.floor_is == FLOOR_STRANGERS) {
                drop(REASON_STRANGER);
            } else if (m.floor_is == FLOOR_ABOVE && m.floor != m.floor_taken) {
                refuse(REASON_PREEMPTED, m.floor & 0xfffff000);
            } else if (m.floor_is == FLOOR_ABOVE && m.same_raiser == 0) {
                drop(REASON_CONFLICT);
            }
        } else if (m.asks == SHOW_RANGE && m.floor_is == FLOOR_STRANGERS) {
            drop(REASON_STRANGER);
        }

        /* Stage 4: the vote. */
        if (m.refused == 0) {
            if (m.promised != 0) {
                refuse(REASON_PREEMPTED, m.promised);
            } else if (m.asks == VOTE) {
                ASK(m.voted, vote, m.slot_at)
            } else if (m.asks == PROMISE || m.asks == SHOW) {
                ASK(m.voted, look_at_vote, m.slot_at)
            }
        }

        /* Stage 5: what becomes of the value. */
        if (m.refused == 0) {
            if (m.asks == VOTE && m.voted == 0) {
                m.value_is = STORED;
            } else if (m.asks == VOTE) {
                m.value_is = COMPARED;
            } else if (m.voted != 0) {
                make_room();
            }
        }

        /* The other stages: the value; `end`; the answer. */
        if (m.value_is == STORED) {
            CHANGE(store_form, m.slot_at)
        } else if (m.value_is != LEFT) {
            ASK(m.form, show_form, m.slot_at)
        }
        STORE_OR_SHOW(words7, m.w7)
        STORE_COMPARE_OR_SHOW(clients_high, hdr.wire.client[63:32], m.same_client_high)
        STORE_COMPARE_OR_SHOW(clients_low, hdr.wire.client[31:0], m.same_client_low)
        STORE_COMPARE_OR_SHOW(requests_high, hdr.wire.request[63:32], m.same_request_high)
        STORE_COMPARE_OR_SHOW(requests_low, hdr.wire.request[31:0], m.same_request_low)
        STORE_OR_SHOW(words0, hdr.w0.bytes)
        STORE_OR_SHOW(words1, hdr.w1.bytes)
        STORE_OR_SHOW(words2, hdr.w2.bytes)
        STORE_OR_SHOW(words3, hdr.w3.bytes)
        STORE_OR_SHOW(words4, hdr.w4.bytes)
        STORE_OR_SHOW(words5, hdr.w5.bytes)
        STORE_OR_SHOW(words6, hdr.w6.bytes)

        if (m.value_is == STORED || (m.asks == ENABLE && m.same_nonce_high == 1 && m.same_nonce_low == 1)) {
            ASK(m.laps_above_end, raise_end_lap, m.r.partition_at)
        } else {
            ASK(m.end_lap, show_end_lap, m.r.partition_at)
        }
        if (m.value_is == STORED || (m.asks == ENABLE && m.same_nonce_high == 1 && m.same_nonce_low == 1)) {
            if (m.laps_above_end == 0) {
                CHANGE(raise_end_place, m.r.partition_at)
            } else if (m.laps_above_end[31:31] == 0) {
                CHANGE(set_end_place, m.r.partition_at)
            }
        } else {
            ASK(m.end_place, show_end_place, m.r.partition_at)
        }

        if (m.refused == 1 && m.asks != PROMISE_RANGE) {
            m.trim_lap = m.lap - m.laps_above_trim;
            m.trim_place = m.place - m.places_above_trim;
        }
        if (m.asks == NOTHING) {
            if (hdr.wire.isValid() && m.r.ours == 1) {
                DROP
            } else {
                OTHERS
            }
        } else if (m.refused == 1) {
            send_reject();
            hdr.rejection.trim[LAP_HIGH:LAP_LOW] = m.trim_lap;
            hdr.rejection.trim[SLOT_BITS - 1:0] = m.trim_place[SLOT_BITS - 1:0];
        } else if (m.asks == VOTE) {
            /* [A-CONFLICT] */
            if (m.value_is == COMPARED &&
                (m.same_client_high == 0 || m.same_client_low == 0 || m.same_request_high == 0 ||
                 m.same_request_low == 0)) {
                drop(REASON_CONFLICT);
            } else {
                send_vote();
            }
        } else if (m.asks == PROMISE) {
            if (m.value_is == SHOWN) {
                send_slot(PHASE1B);
            } else {
                send_no_vote();
                hdr.wire.client = 0;
                hdr.wire.request = 0;
            }
        } else if (m.asks == SHOW) {
            if (m.value_is == SHOWN) {
                send_slot(PHASE2B);
                hdr.wire.rnd = m.voted;
            } else {
                send_no_vote();
                hdr.wire.rnd = 0;
            }
        } else if (m.asks == PROMISE_RANGE || m.asks == SHOW_RANGE) {
            send_range_report();
            if (m.asks == SHOW_RANGE) {
                hdr.wire.rnd = m.floor & 0xfffff000;
            }
            hdr.range_report.trim[63:LAP_HIGH + 1] = 0;
            hdr.range_report.trim[LAP_HIGH:LAP_LOW] = m.trim_lap;
            hdr.range_report.trim[SLOT_BITS - 1:0] = m.trim_place[SLOT_BITS - 1:0];
            hdr.range_report.end[63:LAP_HIGH + 1] = 0;
            hdr.range_report.end[LAP_HIGH:LAP_LOW] = m.end_lap;
            hdr.range_report.end[SLOT_BITS - 1:0] = m.end_place[SLOT_BITS - 1:0];
        } else if (m.asks == OF_PROCESS) {
            to_process();
        } else if (m.asks == BEGIN) {
            if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
                answer_order(0);
            } else {
                answer_order((bit<8>) REASON_CONFLICT);
            }
        } else if (m.asks == ENABLE) {
            if (m.same_nonce_high == 1 && m.same_nonce_low == 1) {
                answer_order(0);
            } else {
                answer_order((bit<8>) REASON_STRANGER);
            }
        } else if (m.asks == TOO_FAR) {
            answer_order((bit<8>) REASON_WINDOW);
        } else {
            answer_order(0);
            hdr.order.nonce[63:32] = m.nonce_high;
            hdr.order.nonce[31:0] = m.nonce_low;
            hdr.order.round = m.floor;
            hdr.order.a[63:LAP_HIGH + 1] = 0;
            hdr.order.a[LAP_HIGH:LAP_LOW] = m.trim_lap;
            hdr.order.a[SLOT_BITS - 1:0] = m.trim_place[SLOT_BITS - 1:0];
            hdr.order.b[63:LAP_HIGH + 1] = 0;
            hdr.order.b[LAP_HIGH:LAP_LOW] = m.end_lap;
            hdr.order.b[SLOT_BITS - 1:0] = m.end_place[SLOT_BITS - 1:0];
        }
        if (m.value_is == SHOWN) {
            keep_words.apply();
            if (m.form[1:0] == 1) {
                put_rest1();
            } else if (m.form[1:0] == 2) {
                put_rest2();
            } else if (m.form[1:0] == 3) {
                put_rest3();
            }
        }
        if (m.r.ours == 1) {
            COUNT_VERDICT(counters)
        }
    }
}

/* ---- The chip */

SWITCH
