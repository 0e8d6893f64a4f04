/* SPDX-License-Identifier: Apache-2.0 */
/* From headers to a message for a group of this node: what every role checks of a packet, in the order of docs/wire.md
 * (`Packet::parse`, `Senders::parse`, `Deployment::check`). */
#ifndef RECEIVE_P4
#define RECEIVE_P4

#include "headers.p4"
#ifdef SIGNED
#include "siphash.p4"
#ifdef STAMPED
#include "replays.p4"
#endif
#else
#define DROP_UNSIGNABLE
#endif

/* ---- Rounds */

/* [E-ROUND] */
bool round_is_valid(in bit<32> rnd) {
    return rnd > ROUND_SUB_MASK && ((rnd & ROUND_SUB_MASK) == 0 || (rnd & ROUND_LANE_MASK) != 0);
}

bool round_is_base(in bit<32> rnd) {
    return rnd != 0 && (rnd & ROUND_SUB_MASK) == 0;
}

bit<32> round_epoch(in bit<32> rnd) {
    return rnd >> 12;
}

/* ---- A packet's way in */

/* Leaves `ours` false where a packet isn't for a role of this node. Otherwise 0 or a reason. */
control receive(inout headers_t hdr, inout metadata_t m, inout standard_metadata_t standard,
                out bit<16> refused) {
    /* Who this role is. A key that matches any address is for tests. */
    action own(bit<16> node, bit<32> cluster, bit<16> port, bit<16> ports) {
        m.node = node;
        m.cluster = cluster;
        m.port = port;
        m.ports = ports;
    }
    action nobodys() {
        m.ports = 0;
    }
    table own4 {
        key = {
            hdr.ipv4.dst: ternary;
        }
        actions = {
            own;
            nobodys;
        }
        default_action = nobodys();
    }
    table own6 {
        key = {
            hdr.ipv6.dst: ternary;
        }
        actions = {
            own;
            nobodys;
        }
        default_action = nobodys();
    }

    /* Orders name it. */
    table own_order {
        key = {
            hdr.order.node: exact;
        }
        actions = {
            own;
            nobodys;
        }
        default_action = nobodys();
    }

    /* Nodes and their addresses; tests let anybody speak for anybody by the default actions. [M-SENDER] */
    action at_home() {
        m.at_home = true;
    }
    action foreign() {
        m.at_home = false;
    }
    table nodes4 {
        key = {
            hdr.wire.swid: exact;
            hdr.ipv4.src: exact;
        }
        actions = {
            at_home;
            foreign;
        }
        default_action = foreign();
    }
    table nodes6 {
        key = {
            hdr.wire.swid: exact;
            hdr.ipv6.src: exact;
        }
        actions = {
            at_home;
            foreign;
        }
        default_action = foreign();
    }

    /* From where commands are taken: where packets are signed that is from anywhere. [M-ASKER] */
    table askers4 {
        key = {
            hdr.ipv4.src: lpm;
        }
        actions = {
            at_home;
            foreign;
        }
        default_action = foreign();
    }
    table askers6 {
        key = {
            hdr.ipv6.src: lpm;
        }
        actions = {
            at_home;
            foreign;
        }
        default_action = foreign();
    }

    /* `slots` is a power of two. */
    action of_group(bit<16> partitions, bit<16> max_value, bit<32> at, bit<32> first_partition,
                    bit<32> slots, bit<32> first_slot, bit<16> members) {
        m.partitions = partitions;
        m.max_value = max_value;
        m.group_at = at;
        m.first_partition = first_partition;
        m.slots = slots;
        m.first_slot = first_slot;
        m.members = members;
    }
    action no_group() {
        m.partitions = 0;
    }
    table groups {
        key = {
            m.group: exact;
        }
        actions = {
            of_group;
            no_group;
        }
        default_action = no_group();
    }

#ifdef SIGNED
    keyring() signed;
#ifdef STAMPED
    admit() once;
#endif
#endif

    bit<32> udp_len;
    bit<32> ip_payload;
    bit<32> rest;
    bit<16> allowed;
    bit<16> pid;
    bit<64> inst;

    apply {
        refused = 0;
        m.ours = false;
        m.ordered = false;
        m.carried_out = false;
        m.ports = 0;
        m.partitions = 0;
        m.copies = 0;
        udp_len = 0;
        ip_payload = 0;
        if (hdr.ipv4.isValid()) {
            own4.apply();
            m.ip_len = IPV4_LEN;
            ip_payload = (bit<32>) hdr.ipv4.total_len - (bit<32>) IPV4_LEN;
        } else if (hdr.ipv6.isValid()) {
            own6.apply();
            m.ip_len = IPV6_LEN;
            ip_payload = (bit<32>) hdr.ipv6.payload_len;
        }
        /* A port below the first is a very large number here. */
        if (hdr.udp.isValid() && hdr.udp.dst - m.port < m.ports) {
            m.ours = true;
            udp_len = (bit<32>) hdr.udp.length;
        }

        /* [M-PACKET] */
        rest = udp_len - (bit<32>) UDP_LEN - (bit<32>) HEADER_LEN;
        if (m.ours) {
            if (udp_len < (bit<32>) UDP_LEN || udp_len != ip_payload ||
                (bit<32>) ETHERNET_LEN + (bit<32>) m.ip_len + udp_len > standard.packet_length) {
                refused = REASON_BAD_LENGTH;
            } else if (udp_len < (bit<32>) UDP_LEN + (bit<32>) HEADER_LEN || !hdr.wire.isValid()) {
                refused = REASON_TRUNCATED;
            } else if (hdr.wire.version != WIRE_VERSION) {
                refused = REASON_BAD_VERSION;
            } else if (hdr.wire.msgtype >= MSGTYPES) {
                refused = REASON_UNKNOWN_TYPE;
            }
        }
        allowed = 0;
        if (m.ours && refused == 0) {
            if (hdr.wire.msgtype < 16) {
                allowed = (bit<16>) (ALLOWED >> (hdr.wire.msgtype << 2)) & (bit<16>) 0xf;
            }
            allowed = (allowed << 1) | FLAG_TAG;
            if ((hdr.wire.flags & ~allowed) != 0) {
                refused = REASON_BAD_FLAGS;
            } else if ((hdr.wire.flags & FLAG_TAG) != 0) {
                if (rest < (bit<32>) TAG_LEN || !hdr.tag.isValid()) {
                    refused = REASON_TRUNCATED;
                }
                rest = rest - (bit<32>) TAG_LEN;
            }
            if (refused == 0 && rest != (bit<32>) hdr.wire.value_len) {
                refused = REASON_BAD_LENGTH;
            }
        }

        /* Only the process of this switch is behind that port. */
        if (hdr.order.isValid() && standard.ingress_port == CPU_PORT) {
            own_order.apply();
            m.ordered = m.ports != 0;
        }
        m.group = 0;
        pid = 0;
        inst = 0;
        if (m.ours && refused == 0) {
            m.group = hdr.wire.group;
            pid = hdr.wire.pid;
            inst = hdr.wire.inst;
        } else if (m.ordered) {
            m.group = hdr.order.group;
            pid = hdr.order.pid;
            inst = hdr.order.a;
        }
        groups.apply();
        m.partition_at = m.first_partition + (bit<32>) pid;
        m.slot_at = m.first_slot + (bit<32>) pid * m.slots + ((bit<32>) inst & (m.slots - 1));

        if (m.ours && refused == 0) {
            if (((OF_ANYBODY >> hdr.wire.msgtype) & 1) == 1) {
                if (hdr.ipv4.isValid()) {
                    askers4.apply();
                } else {
                    askers6.apply();
                }
            } else if (hdr.ipv4.isValid()) {
                nodes4.apply();
            } else {
                nodes6.apply();
            }
            if (hdr.wire.cluster != m.cluster) {
                refused = REASON_WRONG_CLUSTER;
            } else if (!m.at_home) {
                refused = REASON_FOREIGN_ADDRESS;
            }
        } else if (m.ordered) {
            if (m.partitions == 0) {
                refused = REASON_UNKNOWN_GROUP;
            } else if (hdr.order.pid >= m.partitions) {
                refused = REASON_UNKNOWN_PARTITION;
            }
        }
#ifdef SIGNED
        if (refused == 0 && (m.ours || m.ordered)) {
            signed.apply(hdr, m, refused);
        }
#ifdef STAMPED
        if (refused == 0 && m.ours && hdr.wire.msgtype == REQUEST) {
            once.apply(hdr, m, refused);
        }
#endif
#endif
        if (refused == 0 && m.ours) {
            if (m.partitions == 0) {
                refused = REASON_UNKNOWN_GROUP;
            } else if (hdr.wire.pid >= m.partitions) {
                refused = REASON_UNKNOWN_PARTITION;
            } else if ((hdr.wire.value_len > m.max_value || hdr.wire.value_len > MAX_VALUE) &&
                       hdr.wire.msgtype != REPLY) {
                refused = REASON_VALUE_TOO_LARGE;
            } else if ((hdr.wire.flags & FLAG_NOOP) != 0) {
                if ((hdr.wire.client | hdr.wire.request) != 0) {
                    refused = REASON_BAD_SESSION;
                }
            } else if (hdr.wire.client == 0 && ((OF_COMMANDS >> hdr.wire.msgtype) & 1) == 1) {
                refused = REASON_BAD_SESSION;
            }
        }

        /* No index reaches beyond a register array, whatever the table says: BMv2 stores nothing there, and doesn't
         * tell. What isn't for this role looks at the first of each. */
        if ((m.ours || m.ordered) && refused == 0 &&
            (m.partition_at >= PARTITIONS || m.group_at >= GROUPS || m.slot_at >= SLOTS ||
             m.first_partition + (bit<32>) m.partitions > PARTITIONS)) {
            refused = REASON_FULL;
        }
        if (refused != 0 || (!m.ours && !m.ordered)) {
            m.group_at = 0;
            m.partition_at = 0;
            m.slot_at = 0;
        }
    }
}

#endif
