/* SPDX-License-Identifier: Apache-2.0 */
/* A whole agreement in one switch: leader, three acceptors and a learner, each with its own node, address and registers. A REQUEST
 * that goes in comes out as a DELIVER, in one pass.
 *
 * Whoever sends to roles of this switch alone has an entry for each of their turns. A proposal then goes to each acceptor in
 * turn, and the votes of all three to the learner, without leaving. Where one of them doesn't vote the proposal leaves as it
 * would without turns, and comes in again once for each: who has voted says the same again, and who refuses tells the
 * leader. So does a command that names partitions, of which each has an instance of its own. */
#define IN_COMBINATION
#ifdef SIGNED
#error "what one role hands to another in the same switch isn't signed"
#endif
#define COUNTS_PASSES
#include "leader.p4"
#include "acceptor.p4"
#include "learner.p4"

/* A role's turn: what another one has made of the packet is addressed to it. */
control turn(inout headers_t hdr, inout metadata_t m, out bool taken) {
    action to4(bit<32> ip_to, bit<32> ip_from, bit<16> port_to, bit<16> port_from) {
        hdr.ipv4.dst = ip_to;
        hdr.ipv4.src = ip_from;
        hdr.udp.dst = port_to;
        hdr.udp.src = port_from;
        taken = true;
    }
    action to6(bit<128> ip_to, bit<128> ip_from, bit<16> port_to, bit<16> port_from) {
        hdr.ipv6.dst = ip_to;
        hdr.ipv6.src = ip_from;
        hdr.udp.dst = port_to;
        hdr.udp.src = port_from;
        taken = true;
    }
    /* By whom it was sent: its multicast group. */
    table members {
        key = {
            m.members: exact;
            hdr.ipv6.isValid(): exact;
        }
        actions = {
            to4;
            to6;
            NoAction;
        }
        default_action = NoAction();
    }

    apply {
        taken = false;
        members.apply();
    }
}

control ingress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    stamper() leader;
    acceptor() first;
    acceptor() second;
    acceptor() third;
    learner() last;
    forward() others;
    set_lengths() lengths;
    leave_by() leave;
    turn() of_first;
    turn() of_second;
    turn() of_third;
    turn() of_last;

    headers_t proposal;
    bool proposed;
    bit<16> members;
    bit<16> copies;
    bool in_turns;
    bool taken;
    bit<8> votes;

#define TAKE_TURN(of_role, role)                                               \
        if (in_turns) {                                                        \
            hdr = proposal;                                                    \
            m.members = members;                                               \
            m.goes = NOWHERE;                                                  \
            of_role.apply(hdr, m, taken);                                      \
            in_turns = taken;                                                  \
        }                                                                      \
        if (in_turns || (!m.ours && !m.ordered)) {                             \
            role.apply(hdr, m, standard);                                      \
        }                                                                      \
        if (in_turns && m.goes == TO_MEMBERS && hdr.wire.msgtype == PHASE2B) { \
            votes = votes + 1;                                                 \
        }

    apply {
        votes = 0;
        m.made_here = false;
        leader.apply(hdr, m, standard);
        proposed = m.goes == TO_MEMBERS;
        members = m.members;
        copies = m.copies;
        in_turns = proposed && (hdr.wire.flags & FLAG_MULTI) == 0;
        if (in_turns) {
            m.made_here = true;
            lengths.apply(hdr, m);
        }
        proposal = hdr;
        TAKE_TURN(of_first, first)
        TAKE_TURN(of_second, second)
        TAKE_TURN(of_third, third)
        if (in_turns && votes == 3) {
            m.goes = NOWHERE;
            of_last.apply(hdr, m, taken);
            in_turns = taken;
        } else {
            in_turns = false;
        }
        if (in_turns || (!m.ours && !m.ordered)) {
            last.apply(hdr, m, standard);
        }
        if (!m.ours && !m.ordered) {
            others.apply(hdr, m, standard);
        }
        if (proposed && !in_turns) {
            hdr = proposal;
            m.goes = TO_MEMBERS;
            m.members = members;
            m.copies = copies;
            leave.apply(m, standard);
        }
    }
}

V1Switch(parse(), no_verify(), ingress(), egress(), no_update(), deparse()) main;
