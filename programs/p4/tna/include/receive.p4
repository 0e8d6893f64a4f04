/* SPDX-License-Identifier: Apache-2.0 */
/* From headers to a message for this node: what every role looks at before it does anything (docs/wire.md, "What a packet
 * must pass"). All of it is decided by tables that don't wait for one another, so a packet with two faults is counted
 * under either. */
#ifndef RECEIVE_P4
#define RECEIVE_P4

#include "headers.p4"

/* What is left of a right checksum: see parse.p4. IPv4 knows datagrams without one. [M-CHECKSUM] */
#ifdef ON_BMV2
#define SUM_IS_RIGHT _
#else
#define SUM_IS_RIGHT 0xfffc
#endif

/* What the datagram has beyond its value: header, and a tag if there is one. */
#define UNTAGGED (UDP_LEN + HEADER_LEN)
#define TAGGED (UDP_LEN + HEADER_LEN + TAG_LEN)

/* Of a table that asks whether a message counts: its last keys, and the entries of one that does, whose sender is `home`. In front
 * are the keys and values of the table's own. */
#define COUNTS_KEYS                    \
            m.r.ours: ternary;         \
            m.r.at_home: ternary;      \
            m.r.known: ternary;        \
            m.too_large: ternary;      \
            m.r.around_value: ternary; \
            hdr.wire.flags[0:0]: ternary @name("has_tag"); \
            hdr.udp.checksum: ternary; \
            m.sum_left: ternary;
#define COUNTS_IF(does, home, ...)                                                     \
            (__VA_ARGS__, 1, home, 1, 0, UNTAGGED, 0, 0, _): does();                   \
            (__VA_ARGS__, 1, home, 1, 0, UNTAGGED, 0, _, SUM_IS_RIGHT): does();        \
            (__VA_ARGS__, 1, home, 1, 0, TAGGED, 1, 0, _): does();                     \
            (__VA_ARGS__, 1, home, 1, 0, TAGGED, 1, _, SUM_IS_RIGHT): does();
/* Whatever comes with it. */
#define ANY_MESSAGE _, _, _, _, _, _, _, _
#define NOBODYS 0, _, _, _, _, _, _, _
#define OURS 1, _, _, _, _, _, _, _

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
    /* What the datagram has beyond its value. */
    bit<16> around_value;
}

control receive(inout headers_t hdr, inout received_t r) {
    action own(bit<16> node) {
        r.ours = 1;
        r.node = node;
    }
    @ternary(1)
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
    @ternary(1)
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
    @ternary(1)
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
    }
}

#endif
