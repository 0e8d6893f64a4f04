/* SPDX-License-Identifier: Apache-2.0 */
/* Egress: the address of one member for each copy of a multicast, and the checksums of all that leaves. In a combination
 * what is for a role of this switch comes in again instead.
 *
 * A copy's replication id is its member's number, and 256 times the place of the partition that it is for in a command's
 * vector. */
#ifndef MEMBERS_P4
#define MEMBERS_P4

#include "answer.p4"
#include "checksum.p4"

#define COPY_FOR(i)                                    \
    if (at == i && hdr.places[i].isValid()) {          \
        hdr.wire.pid = hdr.places[i].pid;              \
        hdr.wire.inst = hdr.places[i].inst;            \
    }

control egress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
    set_lengths() lengths;
    set_checksums() checksums;
#ifdef SIGNED
    sign() signed;
#endif
    bit<8> number;
    bit<8> at;

    action nobody() {
        mark_to_drop(standard);
    }
    /* `partitions` is all ones where partition p listens on `port_to + p`. */
    action to_member4(bit<48> mac_to, bit<48> mac_from, bit<32> ip_to, bit<32> ip_from,
                      bit<16> port_to, bit<16> port_from, bit<16> partitions) {
        hdr.ethernet.dst = mac_to;
        hdr.ethernet.src = mac_from;
        hdr.ipv4.dst = ip_to;
        hdr.ipv4.src = ip_from;
        hdr.udp.dst = port_to + (hdr.wire.pid & partitions);
        hdr.udp.src = port_from;
    }
    action to_member6(bit<48> mac_to, bit<48> mac_from, bit<128> ip_to, bit<128> ip_from,
                      bit<16> port_to, bit<16> port_from, bit<16> partitions) {
        hdr.ethernet.dst = mac_to;
        hdr.ethernet.src = mac_from;
        hdr.ipv6.dst = ip_to;
        hdr.ipv6.src = ip_from;
        hdr.udp.dst = port_to + (hdr.wire.pid & partitions);
        hdr.udp.src = port_from;
    }
    /* A member of the other family gets no copy. */
    table members4 {
        key = {
            m.members: exact;
            number: exact;
        }
        actions = {
            to_member4;
            nobody;
        }
        default_action = nobody();
    }
    table members6 {
        key = {
            m.members: exact;
            number: exact;
        }
        actions = {
            to_member6;
            nobody;
        }
        default_action = nobody();
    }

#ifdef IN_COMBINATION
    /* Addresses of this switch's roles. */
    action comes_again() {
        m.again = true;
        recirculate_preserving_field_list(KEPT_AGAIN);
    }
    table here4 {
        key = {
            hdr.ipv4.dst: exact;
        }
        actions = {
            comes_again;
            NoAction;
        }
        default_action = NoAction();
    }
    table here6 {
        key = {
            hdr.ipv6.dst: exact;
        }
        actions = {
            comes_again;
            NoAction;
        }
        default_action = NoAction();
    }
#endif

    apply {
        number = (bit<8>) standard.egress_rid;
        at = (bit<8>) (standard.egress_rid >> 8);
        if (m.goes == TO_MEMBERS) {
            if (m.copies > 1) {
                COPY_FOR(0)
                COPY_FOR(1)
                COPY_FOR(2)
                COPY_FOR(3)
                COPY_FOR(4)
                COPY_FOR(5)
                COPY_FOR(6)
                COPY_FOR(7)
                COPY_FOR(8)
                COPY_FOR(9)
                COPY_FOR(10)
                COPY_FOR(11)
            }
            if (hdr.ipv4.isValid()) {
                members4.apply();
            } else {
                members6.apply();
            }
        }
#ifdef SIGNED
        if (m.goes != NOWHERE) {
            signed.apply(hdr, m);
        }
#endif
        if (m.goes != NOWHERE) {
            lengths.apply(hdr, m);
            checksums.apply(hdr, m);
#ifdef IN_COMBINATION
            if (hdr.ipv4.isValid()) {
                here4.apply();
            } else {
                here6.apply();
            }
#endif
        }
    }
}

#endif
