/* SPDX-License-Identifier: Apache-2.0 */
/* Putting requests in order: what leader and sequencer have in common (crates/paxos/src/stamping.rs). Nothing is stamped
 * until it is programmed, once for each round, by naming the boot nonce. Before a role includes this it says what becomes
 * of a REQUEST (STAMPED), which role PROBE asks for (STAMPING_ROLE), and what a refusal may name as its round
 * (NAMES_ROUND). Then it says who may open the window (`stamper_trim_to`), and includes stamper.p4.
 *
 * Ingress takes one packet at a time, and an order is one packet: so instances of a vector are taken together, and no
 * packet ends in another round than it began in. [M-BANK] A round of several partitions is told by several orders: each
 * stages one of them, and the last one programs all that were staged for its epoch, or refuses. */
#ifndef STAMP_P4
#define STAMP_P4

#define PARSES_VECTORS
#include "parse.p4"
#include "forward.p4"
#include "members.p4"
#include "orders.p4"
#include "reports.p4"

/* ---- Types */

/* Of a group. */
struct leader_t {
    /* Which half of the registers of partitions is in force; the next round is staged in the other one. */
    bit<8> bank;
    /* Of this memory; 0 = it has begun with nobody there. */
    bit<64> nonce;
    /* The base round; 0 = never programmed. */
    bit<32> rnd;
    /* A later epoch exists. */
    bit<8> retired;
    bit<64> window;
    /* f+1 of its epoch's acceptors, and whose word came: bit i is the i-th. */
    bit<8> quorum;
    bit<8> told;
    bit<128> acceptors;
    /* For which epoch partitions are being staged, and how many are. */
    bit<32> staged_epoch;
    bit<16> staged;
}

/* What a handler works on. */
struct stamp_step_t {
    leader_t leader;
    /* Of the packet's partition. */
    bit<64> next;
    /* Acceptors have forgotten everything below. */
    bit<64> trimmed;
    /* Why the packet is answered by REJECT, and the trim point that this names. */
    bit<16> rejected;
    bit<64> trim;
}

/* ---- Helpers: named as in crates/paxos/src/stamping.rs; whoever is called stands before who calls. */

/* [L-WINDOW] [Q-WINDOW] */
bool window_open(in bit<64> next, in bit<64> trimmed, in bit<64> window) {
    return next < END && (next <= trimmed ? 0 : next - trimmed) < window;
}

/* [L-PROGRAM] [Q-PROGRAM] */
bit<32> round_of(in leader_t leader) {
    return leader.retired != 0 ? 0 : leader.rnd;
}

/* ---- Counting refusals */

#define FIND_ACCEPTOR(high, low, its_bit)                   \
    if (leader.acceptors[high:low] == node && node != 0) {  \
        bit_of = its_bit;                                   \
    }

/* How many bits are set. */
#define COUNT_BIT(i) count = count + (bit<8>) told[i:i];

/* Notes an acceptor's word: 0 or a reason. */
control note(inout leader_t leader, in bit<16> node, out bit<16> refused) {
    bit<8> bit_of;
    bit<8> told;
    bit<8> count;

    apply {
        refused = 0;
        bit_of = 0;
        count = 0;
        FIND_ACCEPTOR(127, 112, 1)
        FIND_ACCEPTOR(111, 96, 2)
        FIND_ACCEPTOR(95, 80, 4)
        FIND_ACCEPTOR(79, 64, 8)
        FIND_ACCEPTOR(63, 48, 16)
        FIND_ACCEPTOR(47, 32, 32)
        FIND_ACCEPTOR(31, 16, 64)
        FIND_ACCEPTOR(15, 0, 128)
        if (bit_of == 0) {
            refused = REASON_UNKNOWN_SENDER;
        } else if ((leader.told & bit_of) != 0) {
            refused = REASON_DUPLICATE;
        } else {
            leader.told = leader.told | bit_of;
            told = leader.told;
            COUNT_BIT(0)
            COUNT_BIT(1)
            COUNT_BIT(2)
            COUNT_BIT(3)
            COUNT_BIT(4)
            COUNT_BIT(5)
            COUNT_BIT(6)
            COUNT_BIT(7)
            if (count >= leader.quorum) {
                leader.retired = 1;
            }
        }
    }
}

/* ---- Handlers: named as in crates/paxos/src/stamping.rs. Acceptors have a `probe` and a `trim_to`, too, and may be in the
 * same switch. */

/* A replica's TRIM opens the window. [L-TRIM] [Q-WINDOW] */
control report(in headers_t hdr, inout metadata_t m, inout stamp_step_t s, inout reports_t r) {
    take_report() take;
    bit<16> refused;

    apply {
        take.apply(hdr, r, round_epoch(s.leader.rnd), s.trimmed, refused);
        m.verdict = refused;
        if (refused == 0) {
            m.verdict = VERDICT_CHANGED;
        }
    }
}

/* An acceptor refused what was stamped. Promises of f+1 to later epochs, the same one or not, end the stamping: fewer may
 * be forged, and the others still make a quorum. One to a repair round of its own epoch concerns that instance alone, and
 * whoever repairs it. [L-RETIRE] [Q-RETIRE] */
control rejected(in headers_t hdr, inout metadata_t m, inout stamp_step_t s) {
    note() take;
    bit<16> refused;

    apply {
        if (!hdr.rejection.isValid() || hdr.rejection.zero != 0 || hdr.rejection.reason == 0 ||
            hdr.rejection.reason >= REASONS) {
            m.verdict = REASON_BAD_VALUE;
        } else if (hdr.rejection.reason != REASON_PREEMPTED) {
            m.verdict = REASON_UNEXPECTED;
        } else if (!NAMES_ROUND(hdr.rejection.round)) {
            m.verdict = REASON_BAD_ROUND;
        } else if (round_of(s.leader) == 0 || hdr.wire.rnd != s.leader.rnd ||
                   round_epoch(hdr.rejection.round) <= round_epoch(s.leader.rnd)) {
            m.verdict = REASON_STALE;
        } else {
            take.apply(s.leader, hdr.wire.swid, refused);
            m.verdict = refused;
            if (refused == 0) {
                m.verdict = VERDICT_CHANGED;
            }
        }
    }
}

control stamper_probe(inout headers_t hdr, inout metadata_t m, in stamp_step_t s) {
    probe_is_for() asks;
    send_probe_ack() send;
    bit<16> refused;

    apply {
        asks.apply(hdr, STAMPING_ROLE, refused);
        if (refused != 0) {
            m.verdict = refused;
        } else {
            send.apply(hdr, m, round_of(s.leader), s.next, s.leader.nonce, s.trimmed, 0);
        }
    }
}

/* ---- Orders */

/* Hands a round over, once: only a larger one, of this memory, and only if every partition was staged for it.
 * [L-PROGRAM] [Q-PROGRAM] */
control program(in headers_t hdr, in metadata_t m, inout leader_t leader, out bit<16> refused) {
    apply {
        refused = 0;
        if (hdr.order.epoch == 0 || hdr.order.epoch > MAX_EPOCH) {
            refused = REASON_BAD_ROUND;
        } else if (hdr.order.epoch <= round_epoch(leader.rnd)) {
            refused = REASON_STALE;
        } else if (leader.staged_epoch != hdr.order.epoch || leader.staged != m.partitions) {
            refused = REASON_UNEXPECTED;
        } else {
            leader.rnd = hdr.order.epoch << 12;
            leader.retired = 0;
            leader.window = hdr.order.a;
            leader.quorum = (bit<8>) hdr.order.b;
            leader.told = 0;
            leader.acceptors = hdr.acceptors.n0 ++ hdr.acceptors.n1 ++ hdr.acceptors.n2 ++
                               hdr.acceptors.n3 ++ hdr.acceptors.n4 ++ hdr.acceptors.n5 ++
                               hdr.acceptors.n6 ++ hdr.acceptors.n7;
            leader.bank = leader.bank ^ 1;
            leader.staged_epoch = 0;
            leader.staged = 0;
        }
    }
}

/* A partition of a round that isn't in force yet: in turn from the first, each of them any number of times. */
control stage(in headers_t hdr, inout leader_t leader, out bit<16> refused) {
    apply {
        refused = 0;
        if (hdr.order.epoch <= round_epoch(leader.rnd)) {
            refused = REASON_STALE;
        } else if (hdr.order.pid == 0) {
            leader.staged_epoch = hdr.order.epoch;
            leader.staged = 1;
        } else if (leader.staged_epoch != hdr.order.epoch || hdr.order.pid > leader.staged) {
            refused = REASON_UNEXPECTED;
        } else if (hdr.order.pid == leader.staged) {
            leader.staged = leader.staged + 1;
        }
    }
}

#endif
