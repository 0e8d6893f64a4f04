/* SPDX-License-Identifier: Apache-2.0 */
/* The learner in the network: counts votes (Algorithm 3 of both papers; docs/protocol/learner.md).
 *
 * The same rules, step by step, as crates/paxos/src/learner.rs. On f+1 equal votes of the round's configuration the value
 * in hand is decided, and leaves as one DELIVER. [D-OPAQUE] A decision is remembered in its slot, also where a newer round
 * is counted afresh: so no repeated vote, and no vote of another round, delivers it again.
 *
 * Configurations are tables. One never changes, so its acceptors are entered first, and `known` last: a vote finds all
 * of them, or none. [M-BANK] */
#include "include/parse.p4"
#include "include/forward.p4"
#include "include/members.p4"
#include "include/orders.p4"

/* ---- Types */

/* All zero is an unused slot: no round, so no votes. */
struct learner_slot_t {
    bit<64> inst;
    bit<64> client;
    bit<64> request;
    bit<32> rnd;
    bit<8> votes;
    bit<8> noop;
    bit<8> delivered;
}

/* What a handler works on. */
struct learner_step_t {
    /* Where the window begins, and whether there is one: a learner in the network as a rule has none. */
    bit<64> floor;
    bit<8> bounded;
    learner_slot_t slot;
    /* Of the round's epoch: f+1; 0 = the configuration isn't known. */
    bit<8> quorum;
    /* The bit of the sender, or those of several; 0 = it is none of its acceptors. */
    bit<8> voter;
    bool decided;
}

/* ---- Helpers: named as in crates/paxos/src/learner.rs; whoever is called stands before who calls. */

/* [D-WINDOW] */
bit<16> within_window(in bit<64> inst, in bit<64> floor, in bit<8> bounded, in bit<32> slots) {
    return bounded == 0 ? 0
                        : (inst < floor ? REASON_STALE
                                        : (inst - floor >= (bit<64>) slots ? REASON_WINDOW : 0));
}

bool same_value(in learner_slot_t slot, in wire_t h) {
    return slot.client == h.client && slot.request == h.request &&
           (slot.noop != 0) == ((h.flags & FLAG_NOOP) != 0);
}

/* How many bits are set. */
#define COUNT_VOTE(i) count = count + (bit<8>) votes[i:i];

control are_quorum(in bit<8> votes, in bit<8> quorum, out bool enough) {
    bit<8> count;

    apply {
        count = 0;
        COUNT_VOTE(0)
        COUNT_VOTE(1)
        COUNT_VOTE(2)
        COUNT_VOTE(3)
        COUNT_VOTE(4)
        COUNT_VOTE(5)
        COUNT_VOTE(6)
        COUNT_VOTE(7)
        enough = count >= quorum;
    }
}

/* ---- Handlers: named as in crates/paxos/src/learner.rs. */

/* Counts a vote. [D-QUORUM] */
control count_vote(in headers_t hdr, inout metadata_t m, inout learner_step_t s) {
    are_quorum() decides;
    bit<8> votes;
    bool same;
    bool known;
    bool again;

    apply {
        votes = 0;
        same = same_value(s.slot, hdr.wire);
        known = hdr.wire.inst == s.slot.inst && s.slot.rnd != 0;
        again = hdr.wire.rnd == s.slot.rnd;
        if (hdr.wire.inst < s.slot.inst) {
            /* [D-SLOT] */
            m.verdict = REASON_STALE;
        } else if (known && hdr.wire.rnd < s.slot.rnd) {
            m.verdict = REASON_STALE;
        } else if (known && (again || s.slot.delivered != 0) && !same) {
            /* One round has one value, and so has every round after a decision. [D-CONFLICT] */
            m.verdict = REASON_CONFLICT;
        } else if (known && (s.slot.delivered != 0 || (again && (s.slot.votes & s.voter) == s.voter))) {
            m.verdict = REASON_DUPLICATE;
        } else {
            /* Votes of a newer round, or of another instance, begin anew; "delivered" has stayed. [D-ROUND] */
            if (known && again) {
                votes = s.slot.votes;
            }
            votes = votes | s.voter;
            decides.apply(votes, s.quorum, s.decided);
            s.slot.inst = hdr.wire.inst;
            s.slot.client = hdr.wire.client;
            s.slot.request = hdr.wire.request;
            s.slot.rnd = hdr.wire.rnd;
            s.slot.votes = votes;
            s.slot.noop = 0;
            if ((hdr.wire.flags & FLAG_NOOP) != 0) {
                s.slot.noop = 1;
            }
            s.slot.delivered = 0;
            if (s.decided) {
                s.slot.delivered = 1;
            }
            m.verdict = VERDICT_CHANGED;
        }
    }
}

/* Counts a vote, and sends what it decides. [D-VOTE] */
control phase2b(inout headers_t hdr, inout metadata_t m, inout learner_step_t s) {
    count_vote() count;
    send_multicast() send;
    bit<16> outside;

    apply {
        outside = within_window(hdr.wire.inst, s.floor, s.bounded, m.slots);
        if (!round_is_valid(hdr.wire.rnd) || hdr.wire.rnd != hdr.wire.vrnd) {
            m.verdict = REASON_BAD_ROUND;
        } else if (s.quorum == 0) {
            m.verdict = REASON_UNKNOWN_EPOCH;
        } else if (s.voter == 0) {
            m.verdict = REASON_UNKNOWN_SENDER;
        } else if (outside != 0) {
            m.verdict = outside;
        } else {
            count.apply(hdr, m, s);
            if (s.decided) {
                send.apply(hdr, m, DELIVER, hdr.wire.flags & FLAGS_OF_VALUE);
            }
        }
    }
}

/* ---- State */

control learner(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    register<bit<64>>(PARTITIONS) floors;
    register<bit<8>>(PARTITIONS) boundeds;
    register<bit<64>>(SLOTS) slot_insts;
    register<bit<64>>(SLOTS) slot_clients;
    register<bit<64>>(SLOTS) slot_requests;
    register<bit<32>>(SLOTS) slot_rnds;
    register<bit<8>>(SLOTS) slot_votes;
    register<bit<8>>(SLOTS) slot_noops;
    register<bit<8>>(SLOTS) slot_delivereds;
    register<bit<64>>(128) counters;

    receive() enter;
    verify_checksum_of() verified;
    phase2b() take;
    answer_order() answer;
    leave_by() leave;

    learner_step_t s;
    bit<16> refused;
    bit<32> epoch;
    bit<64> count;

    /* Of an epoch: f+1, of at most MAX_ACCEPTORS. */
    action decided_by(bit<8> quorum) {
        s.quorum = quorum;
    }
    action unknown() {
        s.quorum = 0;
    }
    table known {
        key = {
            m.group: exact;
            epoch: exact;
        }
        actions = {
            decided_by;
            unknown;
        }
        default_action = unknown();
    }

    /* One bit of each of its acceptors. */
    action votes_as(bit<8> its_bit) {
        s.voter = its_bit;
    }
    action no_voter() {
        s.voter = 0;
    }
    table voters {
        key = {
            m.group: exact;
            epoch: exact;
            hdr.wire.swid: exact;
        }
        actions = {
            votes_as;
            no_voter;
        }
        default_action = no_voter();
    }

#ifdef COUNTS_PASSES
    /* The bits of all acceptors of this switch, for a pass in which each of them has voted. */
    table voters_here {
        key = {
            m.group: exact;
            epoch: exact;
        }
        actions = {
            votes_as;
            no_voter;
        }
        default_action = no_voter();
    }
#endif

    /* Finds what is kept about an instance. */
    action find() {
        floors.read(s.floor, m.partition_at);
        boundeds.read(s.bounded, m.partition_at);
        slot_insts.read(s.slot.inst, m.slot_at);
        slot_clients.read(s.slot.client, m.slot_at);
        slot_requests.read(s.slot.request, m.slot_at);
        slot_rnds.read(s.slot.rnd, m.slot_at);
        slot_votes.read(s.slot.votes, m.slot_at);
        slot_noops.read(s.slot.noop, m.slot_at);
        slot_delivereds.read(s.slot.delivered, m.slot_at);
    }
    action keep() {
        slot_insts.write(m.slot_at, s.slot.inst);
        slot_clients.write(m.slot_at, s.slot.client);
        slot_requests.write(m.slot_at, s.slot.request);
        slot_rnds.write(m.slot_at, s.slot.rnd);
        slot_votes.write(m.slot_at, s.slot.votes);
        slot_noops.write(m.slot_at, s.slot.noop);
        slot_delivereds.write(m.slot_at, s.slot.delivered);
    }
    action show_slot() {
        hdr.order.a = s.slot.inst;
        hdr.order.b = s.slot.client;
        hdr.order.c = s.slot.request;
        hdr.order.d = (bit<64>) s.slot.votes << 16 | (bit<64>) s.slot.noop << 8 |
                      (bit<64>) s.slot.delivered;
        hdr.order.round = s.slot.rnd;
    }

    /* This one, and the next three. */
    action show_counters() {
        counters.read(hdr.order.a, (bit<32>) hdr.order.at);
        counters.read(hdr.order.b, (bit<32>) hdr.order.at + 1);
        counters.read(hdr.order.c, (bit<32>) hdr.order.at + 2);
        counters.read(hdr.order.d, (bit<32>) hdr.order.at + 3);
    }

    apply {
        enter.apply(hdr, m, standard, refused);
        if (m.ours && refused == 0 && hdr.wire.msgtype != PHASE2B) {
            refused = REASON_NOT_FOR_ROLE;
        }
        if (m.ours && refused == 0) {
            /* Here values leave the network for an application. [M-CHECKSUM] */
            verified.apply(hdr, m, refused);
        }
        s.decided = false;
        find();

        if (m.ours) {
            m.verdict = refused;
            if (refused == 0) {
                epoch = round_epoch(hdr.wire.rnd);
                known.apply();
#ifdef COUNTS_PASSES
                if (m.made_here) {
                    voters_here.apply();
                } else {
                    voters.apply();
                }
#else
                voters.apply();
#endif
                take.apply(hdr, m, s);
            }
            if (m.verdict == VERDICT_CHANGED) {
                keep();
            }
            if (s.decided) {
                counters.read(count, (bit<32>) COUNT_DECIDED);
                counters.write((bit<32>) COUNT_DECIDED, count + 1);
            }
            counters.read(count, (bit<32>) m.verdict);
            counters.write((bit<32>) m.verdict, count + 1);
            DROP_UNSIGNABLE
        } else if (m.ordered) {
            if (refused == 0 && !m.carried_out) {
                if (hdr.order.op == ORDER_LOOK) {
                    hdr.order.a = s.floor;
                    hdr.order.b = (bit<64>) s.bounded;
                } else if (hdr.order.op == ORDER_LOOK_SLOT) {
                    show_slot();
                } else if (hdr.order.op == ORDER_LOOK_COUNTER) {
                    if (hdr.order.at > COUNTERS - 4) {
                        refused = REASON_BAD_VALUE;
                    } else {
                        show_counters();
                    }
                } else if (hdr.order.op == ORDER_FLOOR) {
                    if (s.bounded == 0 || hdr.order.a > s.floor) {
                        floors.write(m.partition_at, hdr.order.a);
                        boundeds.write(m.partition_at, 1);
                    }
                } else {
                    refused = REASON_NOT_FOR_ROLE;
                }
            }
            answer.apply(hdr, standard, ROLE_LEARNER, refused);
        }
        leave.apply(m, standard);
    }
}

/* ---- The switch */

#ifndef IN_COMBINATION
control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    learner() role;
    forward() others;

    apply {
        role.apply(hdr, m, standard);
        if (!m.ours && !m.ordered) {
            others.apply(hdr, m, standard);
        }
    }
}

V1Switch(parse(), no_verify(), ingress(), egress(), no_update(), deparse()) main;
#endif
