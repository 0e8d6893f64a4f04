/* SPDX-License-Identifier: Apache-2.0 */
/* From headers to a message for this node: what every role looks at before it does anything (docs/wire.md, "What a packet
 * must pass"). All of it is decided by tables that don't wait for one another, so a packet with two faults is counted
 * under either. */
#ifndef RECEIVE_P4
#define RECEIVE_P4

#include "headers.p4"

/* IPv4 knows datagrams without a checksum. [M-CHECKSUM] */
#ifdef ON_BMV2
#define LEAVE_OUT_UDP
#define SUM_IS_WRONG false
#else
#define LEAVE_OUT_UDP                                       \
    if (hdr.udp.checksum == 0) {                            \
        m.sum_left = hdr.udp.length + hdr.udp.length;       \
    } else {                                                \
        m.sum_left = m.sum_left - (bit<16>) PROTOCOL_UDP;   \
    }
#define SUM_IS_WRONG m.sum_left != m.r.twice_length
#endif

/* What `receive` finds. */
struct received_t {
    /* Whoever the role is, whoever has sent it, where its partition lies. Each 1 if there is one. */
    bit<1> ours;
    bit<1> at_home;
    bit<1> known;
    bit<16> node;
    partition_at_t partition_at;
    slot_at_t first_slot;
    /* The multicast group of whoever gets what this role decides. */
    bit<16> members;
    /* What the datagram has beyond its value: header, and a tag if there is one. */
    bit<16> around_value;
    /* What must be left of its checksum: but for UDP's number. */
    bit<16> twice_length;
}

control receive(inout headers_t hdr, inout received_t r) {
    action own(bit<16> node) {
        r.ours = 1;
        r.node = node;
    }
    table own4 {
        key = {
            hdr.ipv4.dst: exact;
            hdr.udp.dst: exact;
        }
        actions = {
            own;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 64;
    }

    /* Nodes and their addresses. [M-SENDER] */
    action at_home() {
        r.at_home = 1;
    }
    table nodes4 {
        key = {
            hdr.wire.swid: exact;
            hdr.ipv4.src: exact;
        }
        actions = {
            at_home;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = NODES;
    }

    /* Partitions of this cluster's groups, and where they lie in the registers. */
    action lies_at(partition_at_t at, slot_at_t first_slot, bit<16> members) {
        r.known = 1;
        r.partition_at = at;
        r.first_slot = first_slot;
        r.members = members;
    }
    table partitions {
        key = {
            hdr.wire.cluster: exact;
            hdr.wire.group: exact;
            hdr.wire.pid: exact;
        }
        actions = {
            lies_at;
            @defaultonly NoAction;
        }
        default_action = NoAction();
        size = 256;
    }

    apply {
        own4.apply();
        nodes4.apply();
        partitions.apply();
        r.around_value = hdr.udp.length - hdr.wire.value_len;
        r.twice_length = hdr.udp.length + hdr.udp.length;
    }
}

#endif
