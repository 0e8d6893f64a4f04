/* SPDX-License-Identifier: Apache-2.0 */
/* Where frames go, and what they look like when they leave. */
#ifndef LEAVE_P4
#define LEAVE_P4

#include "headers.p4"

/* To where the packet came from. */
#define SEND_BACK                                   \
    hdr.bridge.setValid();                          \
    hdr.bridge.goes = BACK;                         \
    LEAVE_BY(FROM_PORT)

/* One copy a member, by the chip's multicast. */
#define SEND_MULTICAST(members)                     \
    hdr.bridge.setValid();                          \
    hdr.bridge.goes = TO_MEMBERS;                   \
    LEAVE_TO_GROUP(members)

/* Nothing of what the packet carried behind its header. */
#define NO_VALUE            \
    hdr.w0.setInvalid();    \
    hdr.w1.setInvalid();    \
    hdr.w2.setInvalid();    \
    hdr.w3.setInvalid();    \
    hdr.w4.setInvalid();    \
    hdr.w5.setInvalid();    \
    hdr.w6.setInvalid();    \
    hdr.w7.setInvalid();    \
    hdr.v2.setInvalid();    \
    hdr.v1.setInvalid();

/* What isn't for a role here goes on by its destination address, or between the CPU port and the port beside it. */
#ifdef ON_BMV2
#define OTHERS others.apply(hdr, m, standard);
control forward(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
#else
#define OTHERS others.apply(hdr, chip, leaving, manager);
control forward(inout headers_t hdr, in ingress_intrinsic_metadata_t chip,
                inout ingress_intrinsic_metadata_for_deparser_t leaving,
                inout ingress_intrinsic_metadata_for_tm_t manager) {
#endif
    action to_port(PortId_t port, bit<48> mac_to, bit<48> mac_from) {
        LEAVE_BY(port)
        LEAVE_AS_IT_IS
        hdr.ethernet.dst = mac_to;
        hdr.ethernet.src = mac_from;
    }
    action pass_by(PortId_t port) {
        LEAVE_BY(port)
        LEAVE_AS_IT_IS
    }
    action drop() {
        DROP
    }
    @ternary(1)
    table routes4 {
        key = {
            hdr.ipv4.dst: exact;
        }
        actions = {
            to_port;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 512;
    }
    table beside {
        key = {
            FROM_PORT: exact;
        }
        actions = {
            pass_by;
            drop;
        }
        default_action = drop();
        size = 64;
    }

    apply {
        if (hdr.ipv4.isValid()) {
            if (!routes4.apply().hit) {
                beside.apply();
            }
        } else {
            beside.apply();
        }
    }
}

/* The address of one member for each copy, lengths, and whether there is a checksum: what comes without one goes on without
 * one. A message that is made here has one. */
#ifdef ON_BMV2
control egress(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
#else
control egress(inout headers_t hdr, inout egress_metadata_t m, in egress_intrinsic_metadata_t chip,
               in egress_intrinsic_metadata_from_parser_t parsed,
               inout egress_intrinsic_metadata_for_deparser_t leaving,
               inout egress_intrinsic_metadata_for_output_port_t port) {
#endif
    action nobody() {
        DROP
    }
    action to_member4(bit<48> mac_to, bit<48> mac_from, bit<32> ip_to, bit<32> ip_from, bit<16> port_to,
                      bit<16> port_from) {
        hdr.ethernet.dst = mac_to;
        hdr.ethernet.src = mac_from;
        hdr.ipv4.dst = ip_to;
        hdr.ipv4.src = ip_from;
        hdr.udp.dst = port_to;
        hdr.udp.src = port_from;
    }
    @ternary(1)
    table members4 {
        key = {
            COPY: exact;
            hdr.wire.pid: exact;
        }
        actions = {
            to_member4;
            nobody;
        }
        default_action = nobody();
        size = MEMBERS;
    }

    action turn_around() {
        bit<48> mac = hdr.ethernet.dst;
        bit<32> address = hdr.ipv4.dst;
        bit<16> number = hdr.udp.dst;
        hdr.ethernet.dst = hdr.ethernet.src;
        hdr.ethernet.src = mac;
        hdr.ipv4.dst = hdr.ipv4.src;
        hdr.ipv4.src = address;
        hdr.udp.dst = hdr.udp.src;
        hdr.udp.src = number;
    }

    action set_lengths() {
        hdr.udp.length = hdr.wire.value_len + (UDP_LEN + HEADER_LEN);
        hdr.ipv4.total_len = hdr.wire.value_len + (IPV4_LEN + UDP_LEN + HEADER_LEN);
        hdr.ipv4.ttl = HOPS;
    }

    apply {
        if (hdr.bridge.isValid()) {
            set_lengths();
            if (hdr.bridge.goes == BACK) {
                WITH_SUM
                turn_around();
            } else {
                if (hdr.udp.checksum != 0) {
                    WITH_SUM
                }
                members4.apply();
            }
        }
    }
}

#endif
