/* SPDX-License-Identifier: Apache-2.0 */
/* UDP checksums: verified before a value is stored, counted or passed on, and computed anew for what leaves.
 * [M-CHECKSUM] */
#ifndef CHECKSUM_P4
#define CHECKSUM_P4

#include "headers.p4"

/* For what may be there or not: as large as the largest value, and the carries of all others. */
#define REST_BITS 1040
#define ADD(header, bits)                       \
    if (hdr.header.isValid()) {                 \
        rest = rest + (bit<REST_BITS>) (bits);  \
    }
#define ADD_PLACE(i) ADD(places[i], hdr.places[i].pid ++ hdr.places[i].inst)

/* The complement of a datagram's sum, its own checksum included: 0 where that is right. A sum's words may stand in any
 * order, and numbers of whole words have the same sum when they are added up first. Of a value only the last step may be
 * odd. */
control sum_of(inout headers_t hdr, inout metadata_t m) {
    bit<REST_BITS> rest;

    apply {
        rest = 0;
        ADD(ipv4, hdr.ipv4.src ++ hdr.ipv4.dst)
        ADD(ipv6, hdr.ipv6.src ++ hdr.ipv6.dst)
        ADD(tag, hdr.tag.key_id ++ hdr.tag.alg ++ hdr.tag.counter ++ hdr.tag.digest ++ hdr.tag.mac)
        /* A value is one of these, or ends in steps. */
        if (hdr.range_report.isValid()) {
            rest = rest + (bit<REST_BITS>) (hdr.range_report.end ++ hdr.range_report.trim ++ hdr.range_report.nonce);
        } else if (hdr.rejection.isValid()) {
            rest = rest + (bit<REST_BITS>) (hdr.rejection.reason ++ hdr.rejection.zero ++ hdr.rejection.round ++
                                            hdr.rejection.trim);
        } else if (hdr.probe.isValid()) {
            rest = rest + (bit<REST_BITS>) hdr.probe.role;
        } else if (hdr.probe_report.isValid()) {
            rest = rest + (bit<REST_BITS>) (hdr.probe_report.nonce ++ hdr.probe_report.trim ++ hdr.probe_report.start);
        } else if (hdr.wire.value_len != 0) {
            if (hdr.vector.isValid()) {
                rest = rest + (bit<REST_BITS>) (hdr.vector.round ++ hdr.vector.count);
                ADD_PLACE(0)
                ADD_PLACE(1)
                ADD_PLACE(2)
                ADD_PLACE(3)
                ADD_PLACE(4)
                ADD_PLACE(5)
                ADD_PLACE(6)
                ADD_PLACE(7)
                ADD_PLACE(8)
                ADD_PLACE(9)
                ADD_PLACE(10)
                ADD_PLACE(11)
            }
            ADD(v128, hdr.v128.bytes)
            ADD(v64, hdr.v64.bytes)
            ADD(v32, hdr.v32.bytes)
            ADD(v16, hdr.v16.bytes)
            ADD(v8, hdr.v8.bytes)
            ADD(v4, hdr.v4.bytes)
            ADD(v2, hdr.v2.bytes)
            ADD(v1, hdr.v1.bytes ++ 8w0)
        }
        hash(m.sum, HashAlgorithm.csum16, (bit<16>) 0,
             { (bit<8>) 0, PROTOCOL_UDP, hdr.udp.length,
               hdr.udp.src, hdr.udp.dst, hdr.udp.length, hdr.udp.checksum,
               hdr.wire.version, hdr.wire.msgtype, hdr.wire.value_len, hdr.wire.group, hdr.wire.pid,
               hdr.wire.inst, hdr.wire.rnd, hdr.wire.vrnd, hdr.wire.swid, hdr.wire.flags,
               hdr.wire.cluster, hdr.wire.client, hdr.wire.request, rest },
             (bit<32>) 65536);
    }
}

/* IPv4 knows datagrams without a checksum, IPv6 doesn't. What another role of this switch has made out of a packet in this
 * pass was verified when it came in. Where packets are signed a tag has shown more. */
control verify_checksum_of(inout headers_t hdr, inout metadata_t m, out bit<16> refused) {
#ifndef SIGNED
    sum_of() sum;
#endif

    apply {
        refused = 0;
#ifndef SIGNED
        if (m.made_here) {
            refused = 0;
        } else if (hdr.udp.checksum != 0) {
            sum.apply(hdr, m);
            if (m.sum != 0) {
                refused = REASON_BAD_CHECKSUM;
            }
        } else if (hdr.ipv6.isValid()) {
            refused = REASON_BAD_CHECKSUM;
        }
#endif
    }
}

/* Of what leaves. A value that came without a checksum goes on without one: a checksum that is made up here would hide
 * what had happened to it before. */
control set_checksums(inout headers_t hdr, inout metadata_t m) {
    sum_of() sum;

    apply {
        if (m.goes == BACK || hdr.udp.checksum != 0 || hdr.ipv6.isValid()) {
            hdr.udp.checksum = 0;
            sum.apply(hdr, m);
            hdr.udp.checksum = m.sum;
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xffff;
            }
        }
        if (hdr.ipv4.isValid()) {
            hdr.ipv4.checksum = 0;
            hash(m.sum, HashAlgorithm.csum16, (bit<16>) 0,
                 { hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.tos, hdr.ipv4.total_len, hdr.ipv4.id,
                   hdr.ipv4.fragment, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.checksum,
                   hdr.ipv4.src, hdr.ipv4.dst },
                 (bit<32>) 65536);
            hdr.ipv4.checksum = m.sum;
        }
    }
}

#endif
