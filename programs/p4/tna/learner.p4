/* SPDX-License-Identifier: Apache-2.0 */
/* The learner in the network: counts votes (Algorithm 3 of both papers; docs/protocol/learner.md).
 *
 * The rules of crates/paxos/src/learner.rs, in one pass. On f+1 equal votes of the round's configuration the value in hand is
 * decided, and leaves as one DELIVER. [D-OPAQUE] What it does differently, and why that is safe, is told in README.md.
 *
 * Configurations are tables. One never changes, so its quorums are entered first, and its acceptors last: a vote finds all of
 * it, or isn't counted. [M-BANK] */
#include "include/headers.p4"
#include "include/receive.p4"

/* ---- Types */

/* What is asked of this role. */
/* Nothing: it passes by. */
const bit<4> PASSES = 0;
const bit<4> COUNT = 1;
/* It is counted, and dropped. */
const bit<4> NOTHING = 15;

/* How a vote stands to what was counted in its slot. */
const bit<2> OF_OLDER = 0;
const bit<2> OF_NEWER = 1;
const bit<2> OF_SAME = 2;

struct metadata_t {
    bit<16> sum_left;
    bit<1> too_large;
    bit<4> asks;
    bit<16> verdict;
    received_t r;
    slot_at_t slot_at;
    bit<32> lap;
    bit<32> place;
    /* The lap as a decision is remembered: 1 more, since 0 is none. */
    bit<32> decided_lap;
    /* Its two rounds differ. */
    bit<1> bad_round;

    /* Of the round's epoch: the number of its configuration here, and the bit of the sender. 0 = it isn't known, or the sender is
     * none of its acceptors. */
    bit<8> configuration;
    bit<8> voter;

    /* What registers said. */
    bit<32> laps_above;
    bit<32> counted_round;
    bit<2> round_is;
    bit<1> same_client;
    bit<1> same_request;
    bit<8> votes;
    bit<1> decides;
    bit<1> first;
}

#define CLEAR_METADATA        \
    m.too_large = 0;          \
    m.asks = PASSES;          \
    m.verdict = 0;            \
    m.configuration = 0;      \
    m.voter = 0;              \
    m.bad_round = 0;          \
    m.laps_above = 0;         \
    m.counted_round = 0;      \
    m.round_is = OF_OLDER;    \
    m.same_client = 0;        \
    m.same_request = 0;       \
    m.votes = 0;              \
    m.decides = 0;            \
    m.first = 0;              \
    m.r.ours = 0;             \
    m.r.at_home = 0;          \
    m.r.known = 0;

#include "include/parse.p4"
#include "include/leave.p4"

INGRESS {
    receive() enter;
    forward() others;
    COUNTERS(counters)

    /* ---- State */

    /* An instance takes its slot over from an older one, and never from a newer one. [D-SLOT] */
    WORDS(laps, 32, slot_at_t, SLOTS, 0)
    ASK_WORD(laps, raise_lap, 32, slot_at_t, bit<32>,
        said = m.lap - value;
        if (value < m.lap) { value = m.lap; })

    /* The round that is counted. It says the one before, unless that was older. [D-ROUND] */
    WORDS(rounds, 32, slot_at_t, SLOTS, 0)
    ASK_WORD(rounds, raise_round, 32, slot_at_t, bit<32>,
        said = 0;
        if (value < hdr.wire.rnd) { value = hdr.wire.rnd; } else { said = value; })
    CHANGE_WORD(rounds, store_round, 32, slot_at_t, value = hdr.wire.rnd;)

    /* What is voted for in that round. A no-op has no client, and a command has one. */
    PAIRS(clients, slot_at_t, SLOTS)
    PAIRS(requests, slot_at_t, SLOTS)
#define COMPARED_NUMBER(register, field)                                                 \
    CHANGE_PAIR(register, store_##register, slot_at_t,                                   \
        value.high = field[63:32];                                                       \
        value.low = field[31:0];)                                                        \
    ASK_PAIR(register, compare_##register, slot_at_t, bit<1>,                            \
        said = 0;                                                                        \
        if (value.high == field[63:32] && value.low == field[31:0]) { said = 1; })
    COMPARED_NUMBER(clients, hdr.wire.client)
    COMPARED_NUMBER(requests, hdr.wire.request)

    /* Who has voted so: a bit for each acceptor. */
    WORDS(votes, 8, slot_at_t, SLOTS, 0)
    ASK_WORD(votes, add_vote, 8, slot_at_t, bit<8>,
        value = value | m.voter;
        said = value;)
    CHANGE_WORD(votes, begin_votes, 8, slot_at_t, value = m.voter;)

    /* The instance that was delivered, by 1 + its lap: so nothing is delivered again, whatever the round. */
    WORDS(deliveries, 32, slot_at_t, SLOTS, 0)
    ASK_WORD(deliveries, deliver, 32, slot_at_t, bit<1>,
        said = 0;
        if (value != m.decided_lap) {
            value = m.decided_lap;
            said = 1;
        })

    /* ---- What is asked */

    action asks(bit<4> what) {
        m.asks = what;
    }
    action is_refused(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
    }
#define NO_ROUND                                                                         \
            (1, PHASE2B, _, 0 &&& 0xfffff000, _, _): is_refused(REASON_BAD_ROUND);       \
            (1, PHASE2B, _, 0x080 &&& 0x0ff, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, PHASE2B, _, 0x100 &&& 0x17f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, PHASE2B, _, 0x200 &&& 0x27f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, PHASE2B, _, 0x400 &&& 0x47f, _, _): is_refused(REASON_BAD_ROUND);        \
            (1, PHASE2B, _, 0x800 &&& 0x87f, _, _): is_refused(REASON_BAD_ROUND);
    table what_is_asked {
        key = {
            hdr.wire.version: ternary;
            hdr.wire.msgtype: ternary;
            hdr.wire.flags: ternary;
            hdr.wire.rnd: ternary;
            hdr.wire.client: ternary;
            hdr.wire.request: ternary;
        }
        actions = {
            asks;
            is_refused;
        }
        const default_action = is_refused(REASON_BAD_VERSION);
        SIZE(32)
        const entries = {
            NO_ROUND
            (1, PHASE2B, FLAG_NOOP &&& 0xffe6, _, 0, 0): asks(COUNT);
            (1, PHASE2B, FLAG_NOOP &&& 0xffe6, _, _, _): is_refused(REASON_BAD_SESSION);
            (1, PHASE2B, 0 &&& 0xffe6, _, 0, _): is_refused(REASON_BAD_SESSION);
            (1, PHASE2B, 0 &&& 0xffe6, _, _, _): asks(COUNT);
            (1, PHASE2B, _, _, _, _): is_refused(REASON_BAD_FLAGS);
            (1, _, _, _, _, _): is_refused(REASON_NOT_FOR_ROLE);
        }
    }

    /* Acceptors of an epoch's configuration. [D-VOTE] */
    action votes_as(bit<8> configuration, bit<8> its_bit) {
        m.configuration = configuration;
        m.voter = its_bit;
    }
    @ternary(1)
    table voters {
        key = {
            hdr.wire.group: exact;
            hdr.wire.rnd[31:12]: exact @name("epoch");
            hdr.wire.swid: exact;
        }
        actions = {
            votes_as;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 512;
    }

    /* Sets of f+1 acceptors of a configuration, each as the bits that must be there. [D-QUORUM] */
    action is_quorum() {
        m.decides = 1;
    }
    table quorums {
        key = {
            m.configuration: exact;
            m.votes: ternary;
        }
        actions = {
            is_quorum;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 512;
    }

    /* ---- Steps */

    CUT(lap_of_packet, 32)
    action find_lap() {
        PUT_CUT(m.lap, lap_of_packet, hdr.wire.inst[LAP_HIGH:LAP_LOW])
    }
    action find_place() {
        m.place = hdr.wire.inst[31:0] & PLACE_MASK;
    }

    /* Whether it counts. Here values leave the network for an application. [M-CHECKSUM] */
    action counts() {
        m.slot_at = m.r.first_slot | m.place;
    }
    action passes_by() {
        m.asks = PASSES;
    }
    action stays_refused() {
    }
    action drop(bit<16> reason) {
        m.asks = NOTHING;
        m.verdict = reason;
    }
    action of_unknown_sender() {
        drop(REASON_UNKNOWN_SENDER);
    }
    action of_two_rounds() {
        drop(REASON_BAD_ROUND);
    }
    action beyond() {
        drop(REASON_WINDOW);
    }
    table is_counted {
        key = {
            m.voter: ternary;
            m.bad_round: ternary;
            hdr.wire.inst[63:LAP_HIGH]: ternary @name("beyond");
            m.asks: ternary;
            COUNTS_KEYS
        }
        actions = {
            counts;
            passes_by;
            stays_refused;
            drop;
            of_unknown_sender;
            of_two_rounds;
            beyond;
        }
        const default_action = drop(REASON_BAD_LENGTH);
        SIZE(32)
        const entries = {
            (_, _, _, _, NOBODYS): passes_by();
            (_, _, _, NOTHING, OURS): stays_refused();
            COUNTS_IF(of_unknown_sender, 1, 0, _, _, COUNT)
            COUNTS_IF(of_two_rounds, 1, _, 1, _, COUNT)
            COUNTS_IF(counts, 1, _, _, 0, COUNT)
            COUNTS_IF(beyond, 1, _, _, _, COUNT)
        }
    }

    /* ---- What leaves */

    action send_delivery() {
        hdr.wire.msgtype = DELIVER;
        hdr.wire.swid = m.r.node;
        hdr.wire.flags = hdr.wire.flags & FLAGS_OF_VALUE;
        hdr.tag.setInvalid();
        m.verdict = VERDICT_CHANGED;
        SEND_MULTICAST(m.r.members)
    }

    action leaves_not() {
        m.verdict = VERDICT_CHANGED;
        DROP
    }

    apply {
        if (hdr.wire.isValid()) {
            enter.apply(hdr, m.r);
            what_is_asked.apply();
            voters.apply();
            find_lap();
            find_place();
            if (hdr.wire.rnd != hdr.wire.vrnd) {
                m.bad_round = 1;
            }
        }
        is_counted.apply();
        m.decided_lap = m.lap + 1;

        /* The instance. */
        if (m.asks == COUNT) {
            ASK(m.laps_above, raise_lap, m.slot_at)
        }

        /* The round. */
        if (m.asks == COUNT) {
            if (m.laps_above == 0) {
                ASK(m.counted_round, raise_round, m.slot_at)
            } else if (m.laps_above[31:31] == 0) {
                CHANGE(store_round, m.slot_at)
            } else {
                drop(REASON_STALE);
            }
        }

        /* The value. [D-CONFLICT] */
        if (m.asks == COUNT) {
            if (m.counted_round == 0) {
                m.round_is = OF_NEWER;
                CHANGE(store_clients, m.slot_at)
            } else if (m.counted_round == hdr.wire.rnd) {
                m.round_is = OF_SAME;
                ASK(m.same_client, compare_clients, m.slot_at)
            } else {
                drop(REASON_STALE);
            }
        }
        if (m.round_is == OF_NEWER) {
            CHANGE(store_requests, m.slot_at)
        } else if (m.round_is == OF_SAME) {
            ASK(m.same_request, compare_requests, m.slot_at)
        }

        /* The votes. */
        if (m.round_is == OF_NEWER) {
            CHANGE(begin_votes, m.slot_at)
            m.votes = m.voter;
        } else if (m.round_is == OF_SAME && m.same_client == 1 && m.same_request == 1) {
            ASK(m.votes, add_vote, m.slot_at)
        } else if (m.round_is == OF_SAME) {
            drop(REASON_CONFLICT);
        }
        quorums.apply();

        /* The decision. */
        if (m.decides == 1) {
            ASK(m.first, deliver, m.slot_at)
        }
        if (m.asks == PASSES) {
            OTHERS
        } else if (m.first == 1) {
            send_delivery();
        } else if (m.asks == COUNT) {
            leaves_not();
        } else {
            DROP
        }
        if (m.r.ours == 1) {
            COUNT_VERDICT(counters)
        }
    }
}

/* ---- The chip */

SWITCH
