/* SPDX-License-Identifier: Apache-2.0 */
/* From a frame to headers, and back, on both sides of the traffic manager. The chip drops what ends before its headers do.
 *
 * A role's metadata has `sum_left` (what is left of a message's UDP checksum) and `too_large` (its value is). */
#ifndef PARSE_P4
#define PARSE_P4

#include "headers.p4"

/* A value, by its length: whole words, then what is left of it. */
#define WORD_STATES(LAST)                                  \
    state parse_word0 {                                    \
        transition select(hdr.wire.value_len) {            \
            0 &&& 0xfffc: parse_rest;                      \
            default: take_word0;                           \
        }                                                  \
    }                                                      \
    WORD_STATE(0, 4 &&& 0xfffc, 1)                         \
    WORD_STATE(1, 8 &&& 0xfffc, 2)                         \
    WORD_STATE(2, 12 &&& 0xfffc, 3)                        \
    WORD_STATE(3, 16 &&& 0xfffc, 4)                        \
    WORD_STATE(4, 20 &&& 0xfffc, 5)                        \
    WORD_STATE(5, 24 &&& 0xfffc, 6)                        \
    WORD_STATE(6, 28 &&& 0xfffc, 7)                        \
    state take_word7 {                                     \
        packet.extract(hdr.w7);                            \
        ADD_TO_SUM(hdr.w7)                                 \
        transition LAST;                                   \
    }                                                      \
    state parse_rest {                                     \
        transition select(hdr.wire.value_len) {            \
            2 &&& 3: parse_v2;                             \
            3 &&& 3: parse_v2_v1;                          \
            1 &&& 3: parse_v1;                             \
            default: LAST;                                 \
        }                                                  \
    }                                                      \
    state parse_v2 {                                       \
        packet.extract(hdr.v2);                            \
        ADD_TO_SUM(hdr.v2)                                 \
        transition LAST;                                   \
    }                                                      \
    state parse_v2_v1 {                                    \
        packet.extract(hdr.v2);                            \
        ADD_TO_SUM(hdr.v2)                                 \
        transition parse_v1;                               \
    }                                                      \
    state parse_v1 {                                       \
        packet.extract(hdr.v1);                            \
        ADD_TO_SUM(hdr.v1)                                 \
        transition LAST;                                   \
    }
#define WORD_STATE(i, IS_LAST, next)                       \
    state take_word##i {                                   \
        packet.extract(hdr.w##i);                          \
        ADD_TO_SUM(hdr.w##i)                               \
        transition select(hdr.wire.value_len) {            \
            IS_LAST: parse_rest;                           \
            default: take_word##next;                      \
        }                                                  \
    }

#define EMIT_VALUE          \
    packet.emit(hdr.w0);    \
    packet.emit(hdr.w1);    \
    packet.emit(hdr.w2);    \
    packet.emit(hdr.w3);    \
    packet.emit(hdr.w4);    \
    packet.emit(hdr.w5);    \
    packet.emit(hdr.w6);    \
    packet.emit(hdr.w7);    \
    packet.emit(hdr.v2);    \
    packet.emit(hdr.v1);

/* ---- Into the chip */

#ifdef ON_BMV2
#define SUM_ADDRESSES
#define SUM_UDP
#define SUM_WIRE
#define SUM_TAG
#define SUM_ONE(header)
#define SUM_LEFT
#define BEGIN_PARSE
parser parse(packet_in packet, out headers_t hdr, inout metadata_t m, inout standard_metadata_t standard) {
#else
/* Of a datagram's checksum everything is subtracted that is known here: a right one leaves nothing. It counts UDP's number, which is
 * left out, and the length of the datagram twice. A parser takes a field once; the second time that is IP's length, which is larger by
 * the 20 bytes of its header. So 17 - 20 is left, SUM_IS_RIGHT. [M-CHECKSUM] */
#define SUM_ADDRESSES sum.subtract({hdr.ipv4.total_len, hdr.ipv4.src, hdr.ipv4.dst});
#define SUM_UDP sum.subtract({hdr.udp.src, hdr.udp.dst, hdr.udp.length, hdr.udp.checksum});
#define SUM_WIRE                                                                         \
    sum.subtract({hdr.wire.version, hdr.wire.msgtype, hdr.wire.value_len, hdr.wire.group, hdr.wire.pid, \
                  hdr.wire.inst, hdr.wire.rnd, hdr.wire.vrnd, hdr.wire.swid, hdr.wire.flags, \
                  hdr.wire.cluster, hdr.wire.client, hdr.wire.request});
#define SUM_TAG                                                                          \
    sum.subtract({hdr.tag.key_id, hdr.tag.alg, hdr.tag.counter, hdr.tag.digest, hdr.tag.mac});
#define SUM_ONE(header) sum.subtract({header.bytes});
#define SUM_LEFT sum.subtract_all_and_deposit(m.sum_left);
#define BEGIN_PARSE                       \
    packet.extract(chip);                 \
    packet.advance(PORT_METADATA_SIZE);
parser parse(packet_in packet, out headers_t hdr, out metadata_t m,
             out ingress_intrinsic_metadata_t chip) {
    Checksum() sum;
    /* Where roles of this switch listen. */
    value_set<bit<16>>(4) ports;
#endif

    state start {
        BEGIN_PARSE
        CLEAR_METADATA
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype, FROM_PORT) {
            (ETHERTYPE_IPV4, _): parse_ipv4;
            (ETHERTYPE_ORDER, CPU_PORT): parse_order;
            default: accept;
        }
    }

    /* Only the process of this switch is behind that port. */
    state parse_order {
        packet.extract(hdr.order);
        transition accept;
    }

    /* Options and fragments are not ours; "don't fragment" is no fragment. */
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        SUM_ADDRESSES
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.protocol, hdr.ipv4.fragment) {
            (4, 5, PROTOCOL_UDP, 0x0000 &&& 0xbfff): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        SUM_UDP
        transition select(hdr.udp.dst) {
            ports: parse_wire;
            default: accept;
        }
    }

    state parse_wire {
        packet.extract(hdr.wire);
        SUM_WIRE
        transition select(hdr.wire.flags) {
            FLAG_TAG &&& FLAG_TAG: parse_tag;
            default: parse_value;
        }
    }

    state parse_tag {
        packet.extract(hdr.tag);
        SUM_TAG
        transition parse_value;
    }

    state parse_value {
        transition select(hdr.wire.value_len) {
            0 &&& 0xffe0: parse_word0;
            MAX_VALUE: take_word0;
            default: too_large;
        }
    }

    state too_large {
        m.too_large = 1;
        transition accept;
    }

#define ADD_TO_SUM(header) SUM_ONE(header)
    WORD_STATES(verified)
#undef ADD_TO_SUM

    state verified {
        SUM_LEFT
        transition accept;
    }
}

#ifdef ON_BMV2
control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.order);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.wire);
        packet.emit(hdr.tag);
        packet.emit(hdr.range_report);
        packet.emit(hdr.rejection);
        EMIT_VALUE
    }
}
#else
control deparse(packet_out packet, inout headers_t hdr, in metadata_t m) {
    apply {
        packet.emit(hdr);
    }
}

/* ---- Out of the chip */

struct egress_metadata_t {
    /* The UDP checksum is computed. */
    bit<1> sums;
}

parser parse_leaving(packet_in packet, out headers_t hdr, out egress_metadata_t m,
                     out egress_intrinsic_metadata_t chip) {
    state start {
        packet.extract(chip);
        packet.extract(hdr.bridge);
        m.sums = 0;
        transition parse_message;
    }

    state parse_message {
        packet.extract(hdr.ethernet);
        packet.extract(hdr.ipv4);
        packet.extract(hdr.udp);
        packet.extract(hdr.wire);
        transition select(hdr.wire.value_len) {
            MAX_VALUE: take_word0;
            default: parse_word0;
        }
    }

#define ADD_TO_SUM(header)
    WORD_STATES(accept)
#undef ADD_TO_SUM
}

/* The checksums of what a role has made. */
control deparse_leaving(packet_out packet, inout headers_t hdr, in egress_metadata_t m) {
    Checksum() ipv4_sum;
    Checksum() udp_sum;

    apply {
        hdr.ipv4.checksum = ipv4_sum.update({
            hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len, hdr.ipv4.id,
            hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.src, hdr.ipv4.dst});
        if (m.sums == 1) {
            hdr.udp.checksum = udp_sum.update({
                hdr.ipv4.src, hdr.ipv4.dst, 8w0, hdr.ipv4.protocol, hdr.udp.length,
                hdr.udp.src, hdr.udp.dst, hdr.udp.length,
                hdr.wire.version, hdr.wire.msgtype, hdr.wire.value_len, hdr.wire.group, hdr.wire.pid,
                hdr.wire.inst, hdr.wire.rnd, hdr.wire.vrnd, hdr.wire.swid, hdr.wire.flags,
                hdr.wire.cluster, hdr.wire.client, hdr.wire.request,
                hdr.w0.bytes, hdr.w1.bytes, hdr.w2.bytes, hdr.w3.bytes,
                hdr.w4.bytes, hdr.w5.bytes, hdr.w6.bytes, hdr.w7.bytes,
                hdr.v2.bytes, hdr.v1.bytes, 8w0}, true);
        }
        packet.emit(hdr.ethernet);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.udp);
        packet.emit(hdr.wire);
        EMIT_VALUE
    }
}

#endif

#endif
