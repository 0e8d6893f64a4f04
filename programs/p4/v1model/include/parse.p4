/* SPDX-License-Identifier: Apache-2.0 */
/* From a frame to headers, and back. The parser looks for as much as there is: what is wrong with it is told by
 * `receive`, in the order that docs/wire.md gives. Whatever it doesn't take stays behind what it took, and leaves as it
 * came.
 *
 * With PARSES_VECTORS a REQUEST's vector is taken apart, too: for those who stamp. */
#ifndef PARSE_P4
#define PARSE_P4

#include "headers.p4"

parser parse(packet_in packet, out headers_t hdr, inout metadata_t m,
             inout standard_metadata_t standard) {
    state start {
        packet.extract(hdr.ethernet);
        transition select(hdr.ethernet.ethertype) {
            ETHERTYPE_IPV4: parse_ipv4;
            ETHERTYPE_IPV6: parse_ipv6;
            ETHERTYPE_ORDER: parse_order;
            default: accept;
        }
    }

    /* Options and fragments are not ours; "don't fragment" is no fragment. */
    state parse_ipv4 {
        packet.extract(hdr.ipv4);
        transition select(hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.protocol, hdr.ipv4.fragment) {
            (4, 5, PROTOCOL_UDP, 0x0000 &&& 0xbfff): parse_udp;
            default: accept;
        }
    }

    state parse_ipv6 {
        packet.extract(hdr.ipv6);
        transition select(hdr.ipv6.version, hdr.ipv6.next_header) {
            (6, PROTOCOL_UDP): parse_udp;
            default: accept;
        }
    }

    state parse_udp {
        packet.extract(hdr.udp);
        transition parse_wire;
    }

    state parse_wire {
        packet.extract(hdr.wire);
        m.rest = hdr.wire.value_len;
        transition select(hdr.wire.flags) {
            FLAG_TAG &&& FLAG_TAG: parse_tag;
            default: parse_value;
        }
    }

    state parse_tag {
        packet.extract(hdr.tag);
        transition parse_value;
    }

#ifdef PARSES_VECTORS
    state parse_value {
        transition select(hdr.wire.msgtype, hdr.wire.flags, hdr.wire.value_len) {
            (PROBE, _, PROBE_LEN): parse_probe;
            (REJECT, _, REJECTION_LEN): parse_rejection;
            /* Fewer than 8 bytes may be fewer than its head. */
            (REQUEST, FLAG_MULTI &&& FLAG_MULTI, 0 &&& 0xfff8): parse_v128;
            (REQUEST, FLAG_MULTI &&& FLAG_MULTI, _): parse_vector;
            default: parse_v128;
        }
    }

    state parse_vector {
        packet.extract(hdr.vector);
        m.rest = m.rest - VECTOR_HEAD_LEN;
        m.copies = hdr.vector.count;
        transition parse_entries;
    }

    /* An entry is taken while one is left, and there are bytes for it: 10 or more. */
    state parse_entries {
        transition select(m.copies, m.rest) {
            (0, _): parse_v128;
            (_, 0 &&& 0xfff8): parse_v128;
            (_, 8 &&& 0xfffe): parse_v128;
            default: parse_entry;
        }
    }

    state parse_entry {
        packet.extract(hdr.places.next);
        m.copies = m.copies - 1;
        m.rest = m.rest - VECTOR_ENTRY_LEN;
        transition parse_entries;
    }

    state parse_rejection {
        packet.extract(hdr.rejection);
        transition accept;
    }
#else
    state parse_value {
        transition select(hdr.wire.msgtype, hdr.wire.value_len) {
            (PROBE, PROBE_LEN): parse_probe;
            default: parse_v128;
        }
    }
#endif

    state parse_probe {
        packet.extract(hdr.probe);
        transition accept;
    }

    /* A value, by the bits of its length. One that is longer than we take isn't taken apart. */
    state parse_v128 {
        transition select(m.rest) {
            128: take_v128;
            0 &&& 0xff80: parse_v64;
            default: accept;
        }
    }
    state take_v128 {
        packet.extract(hdr.v128);
        transition accept;
    }
    state parse_v64 {
        transition select(m.rest) {
            64 &&& 64: take_v64;
            default: parse_v32;
        }
    }
    state take_v64 {
        packet.extract(hdr.v64);
        transition parse_v32;
    }
    state parse_v32 {
        transition select(m.rest) {
            32 &&& 32: take_v32;
            default: parse_v16;
        }
    }
    state take_v32 {
        packet.extract(hdr.v32);
        transition parse_v16;
    }
    state parse_v16 {
        transition select(m.rest) {
            16 &&& 16: take_v16;
            default: parse_v8;
        }
    }
    state take_v16 {
        packet.extract(hdr.v16);
        transition parse_v8;
    }
    state parse_v8 {
        transition select(m.rest) {
            8 &&& 8: take_v8;
            default: parse_v4;
        }
    }
    state take_v8 {
        packet.extract(hdr.v8);
        transition parse_v4;
    }
    state parse_v4 {
        transition select(m.rest) {
            4 &&& 4: take_v4;
            default: parse_v2;
        }
    }
    state take_v4 {
        packet.extract(hdr.v4);
        transition parse_v2;
    }
    state parse_v2 {
        transition select(m.rest) {
            2 &&& 2: take_v2;
            default: parse_v1;
        }
    }
    state take_v2 {
        packet.extract(hdr.v2);
        transition parse_v1;
    }
    state parse_v1 {
        transition select(m.rest) {
            1 &&& 1: take_v1;
            default: accept;
        }
    }
    state take_v1 {
        packet.extract(hdr.v1);
        transition accept;
    }

    state parse_order {
        packet.extract(hdr.order);
        packet.extract(hdr.acceptors);
        packet.extract(hdr.replicas);
        transition accept;
    }
}

control deparse(packet_out packet, in headers_t hdr) {
    apply {
        packet.emit(hdr.ethernet);
        packet.emit(hdr.order);
        packet.emit(hdr.acceptors);
        packet.emit(hdr.replicas);
        packet.emit(hdr.ipv4);
        packet.emit(hdr.ipv6);
        packet.emit(hdr.udp);
        packet.emit(hdr.wire);
        packet.emit(hdr.tag);
        packet.emit(hdr.range_report);
        packet.emit(hdr.rejection);
        packet.emit(hdr.probe);
        packet.emit(hdr.probe_report);
        packet.emit(hdr.vector);
        packet.emit(hdr.places);
        packet.emit(hdr.v128);
        packet.emit(hdr.v64);
        packet.emit(hdr.v32);
        packet.emit(hdr.v16);
        packet.emit(hdr.v8);
        packet.emit(hdr.v4);
        packet.emit(hdr.v2);
        packet.emit(hdr.v1);
    }
}

/* Whoever needs a datagram's sum computes it where it is needed (`sum_of`): a verdict has to be found in a certain order,
 * and what came without a checksum must leave without one. */
control no_verify(inout headers_t hdr, inout metadata_t m) {
    apply {}
}

control no_update(inout headers_t hdr, inout metadata_t m) {
    apply {}
}

#endif
